//! A dense layer over any axes: `y = activation(einsum(equation, x, kernel) + bias)`.
//!
//! The equation names the axes of input, kernel and output, such as `abc,cd->abd`. Weights: `kernel`, with the axes of the
//! equation, and `bias`, with the axes of `bias_axes`.

use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs, WeightSpec};
use crate::layers::support::{WeightOptions, activity_penalty, single};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// A dense layer over any axes.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::EinsumDense;
///
/// let layer = EinsumDense::new("abc,cd->abd", [None, Some(8)]).bias_axes("d");
/// assert_eq!(layer.config()["equation"], "abc,cd->abd");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct EinsumDense {
    equation: String,
    output_shape: OutputShape,
    activation: ByName<ActivationFn>,
    bias_axes: Option<String>,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

/// The sizes of the output's axes without the batch: one number, or a list in which `None` is any size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum OutputShape {
    One(usize),
    Several(Vec<Option<usize>>),
}

fn defaults() -> EinsumDense {
    EinsumDense::new("", [])
}

impl EinsumDense {
    /// A linear layer without bias. `output_shape` has the sizes of the output's axes without the batch; `None` is any.
    pub fn new(equation: &str, output_shape: impl Into<Vec<Option<usize>>>) -> EinsumDense {
        EinsumDense {
            equation: equation.into(),
            output_shape: OutputShape::Several(output_shape.into()),
            activation: ActivationFn::Linear.into(),
            bias_axes: None,
            kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            kernel_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            kernel_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
        }
    }

    setters! {
        /// The activation function; defaults to linear.
        activation: impl Into<ByName<ActivationFn>>,
        /// Initializer of the kernel; defaults to `glorot_uniform`.
        kernel_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the bias; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the kernel.
        kernel_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the bias.
        bias_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }

    /// The axes of the output that the bias has.
    #[must_use]
    pub fn bias_axes(mut self, axes: &str) -> EinsumDense {
        self.bias_axes = Some(axes.into());
        self
    }

    /// The shapes of kernel and bias for an input of these dimensions, without the batch; `None` if they do not fit.
    fn shapes(&self, dims: &[usize]) -> Option<Shapes> {
        let equation: String = self.equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = equation.split_once("->")?;
        let (input, kernel) = inputs.split_once(',')?;
        let left = input.starts_with("...");
        let elided = input.contains("...");
        if elided != output.contains("...") || left != output.starts_with("...") {
            return None;
        }
        let labels = |text: &str| text.replace("...", "").chars().collect::<Vec<char>>();
        let (input, kernel, output) = (labels(input), labels(kernel), labels(output));
        // Sizes with the batch, which has none.
        let sizes: Vec<Option<usize>> =
            std::iter::once(None).chain(dims.iter().copied().map(Some)).collect();
        let hidden = sizes.len().checked_sub(input.len()).filter(|n| *n == 0 || elided)?;
        let first = if left { hidden } else { 0 };
        let input_size = |label: char| sizes[first + input.iter().position(|l| *l == label)?];
        let mut shape = match &self.output_shape {
            OutputShape::One(size) => vec![Some(*size)],
            OutputShape::Several(sizes) => sizes.clone(),
        };
        // The batch is among the hidden axes, or it is the first label.
        if hidden == 0 || !left {
            shape.insert(0, None);
        }
        let output_size = |label: char| *shape.get(output.iter().position(|l| *l == label)?)?;
        let size = |label: char| match input.contains(&label) {
            true => input_size(label),
            false => output_size(label),
        };
        let kernel_dims = kernel.iter().map(|l| size(*l)).collect::<Option<Vec<usize>>>()?;
        let bias_dims = match &self.bias_axes {
            None => None,
            Some(axes) => {
                let at = axes.chars().map(|a| output.iter().position(|l| *l == a));
                let start = at.collect::<Option<Vec<usize>>>()?.into_iter().min()?;
                let one = |l: &char| if axes.contains(*l) { size(*l) } else { Some(1) };
                let mut dims = output[start..].iter().map(one).collect::<Option<Vec<usize>>>()?;
                if !left {
                    dims.extend(vec![1; hidden]);
                }
                Some(dims)
            }
        };
        Some(Shapes { initial: matrix(&kernel, &kernel_dims, &input), kernel_dims, bias_dims })
    }
}

struct Shapes {
    kernel_dims: Vec<usize>,
    bias_dims: Option<Vec<usize>>,
    /// The kernel as a matrix, if its input axes come first.
    initial: Option<Vec<usize>>,
}

/// The kernel as `[inputs, outputs]`, if the axes that it shares with the input come first.
fn matrix(kernel: &[char], dims: &[usize], input: &[char]) -> Option<Vec<usize>> {
    let inner = kernel.iter().take_while(|l| input.contains(l)).count();
    let apart = kernel[inner..].iter().all(|l| !input.contains(l));
    let count = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match apart && inner > 0 && inner < kernel.len() {
        true => Some(vec![count(&dims[..inner])?, count(&dims[inner..])?]),
        false => None,
    }
}

impl Layer for EinsumDense {
    keras_class!("EinsumDense");
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = self.activation.get()?;
        let x = single(cx, inputs)?;
        let dims = cx.dims(x);
        let Some(Shapes { kernel_dims, bias_dims, initial }) = self.shapes(&dims) else {
            let expected = format!("an equation for {dims:?} and output_shape, such as ab,bc->ac");
            return Err(cx.argument("equation", &expected, &self.equation));
        };
        let kernel = WeightOptions {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let spec = kernel.spec(cx, "kernel", &kernel_dims)?;
        let kernel = cx.weight(WeightSpec { initial_dims: initial, ..spec })?;
        let mut y = cx.graph().einsum(&self.equation, &[x, kernel])?;
        if let Some(dims) = bias_dims {
            let bias = WeightOptions {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            let bias = bias.weight(cx, "bias", &dims)?;
            y = cx.graph().add(y, bias)?;
        }
        Ok(activation.apply(cx.graph(), y)?.into())
    }
}
