//! Spectral normalisation: in training the kernel of a layer is divided by an estimate of its largest singular value.
//!
//! With the kernel as a matrix `w` of its last axis by all others, each call improves a vector `u`:
//! `v = u · wᵀ / |u · wᵀ|`, `u = v · w / |v · w|`, and uses the kernel `w / (v · w · uᵀ)`. As with Keras on JAX, the stored
//! kernel keeps its length, and inference uses it as it is. Weights: those of the layer, and `vector_u` `[1, columns]`.

use super::dot::unit_length;
use super::nested::NestedLayer;
use super::support::check_at_least_one;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Operand, Outputs, WeightSpec};
use crate::model::snake_case;
use crate::registry::Config;
use phalanx_graph::NodeId;
use phalanx_graph::functions::index::max_axes;
use phalanx_graph::ops::{Binary, Unary};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

/// Normalises the kernel of a layer by its spectral norm while training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::{Conv2D, SpectralNormalization};
///
/// let layer = SpectralNormalization::new(Conv2D::new(8, 3)).power_iterations(2);
/// assert_eq!(layer.config()["layer"]["class_name"], "Conv2D");
/// ```
#[derive(Debug)]
pub struct SpectralNormalization {
    layer: Box<dyn Layer>,
    name: String,
    trainable: bool,
    power_iterations: usize,
}

/// The largest number of iterations: each adds nodes to the graph.
const MAX_ITERATIONS: usize = 1000;

impl SpectralNormalization {
    /// Normalises the kernel of `layer`, with one iteration for each call.
    pub fn new(layer: impl Layer) -> SpectralNormalization {
        let name = snake_case(layer.class_name());
        SpectralNormalization { layer: Box::new(layer), name, trainable: true, power_iterations: 1 }
    }

    /// The number of iterations for each call.
    #[must_use]
    pub fn power_iterations(mut self, power_iterations: usize) -> SpectralNormalization {
        self.power_iterations = power_iterations;
        self
    }

    fn no_kernel(&self, cx: &LayerContext<'_>) -> Error {
        cx.argument("layer", "a layer with a kernel or embeddings", self.layer.class_name())
    }

    /// Declares the vector after the weights of the layer, whose first is the kernel.
    fn vector(&self, cx: &mut LayerContext<'_>) -> Result<NodeId> {
        let named = |spec: &WeightSpec| {
            spec.name.ends_with("layer/kernel") || spec.name.ends_with("layer/embeddings")
        };
        let kernel = cx.declared_weight(0).filter(named).ok_or_else(|| self.no_kernel(cx))?;
        if kernel.regularizer.is_some() {
            let expected = "no regularizer of the kernel, which would see its normalised values";
            return Err(cx.argument("layer", expected, "one"));
        }
        cx.list_twice(0);
        let columns = kernel.dims.last().copied().unwrap_or(1);
        let initializer = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02, seed: None };
        cx.weight(WeightSpec::new("vector_u", &[1, columns], initializer).non_trainable())
    }

    /// The vector after the iterations, and the estimate of the largest singular value.
    fn iterate(&self, cx: &mut LayerContext<'_>, kernel: NodeId, u: NodeId) -> Result<[NodeId; 2]> {
        let dims = cx.dims(kernel);
        let columns = dims[dims.len() - 1];
        let rows = cx.ty(kernel).len() / columns.max(1);
        let w = cx.graph().reshape(kernel, &[rows, columns])?;
        let (mut u, mut v) = (u, u);
        for _ in 0..self.power_iterations {
            v = cx.graph().einsum("ac,rc->ar", &[u, w])?;
            v = unit_length(cx, v, &[0, 1])?;
            u = cx.graph().einsum("ar,rc->ac", &[v, w])?;
            u = unit_length(cx, u, &[0, 1])?;
        }
        let g = cx.graph();
        let (u, v) = (g.stop_gradient(u)?, g.stop_gradient(v)?);
        let product = g.einsum("ar,rc->ac", &[v, w])?;
        let sigma = g.einsum("ac,bc->ab", &[product, u])?;
        let sigma = g.reshape(sigma, &[])?;
        Ok([u, sigma])
    }
}

impl Layer for SpectralNormalization {
    fn class_name(&self) -> &'static str {
        "SpectralNormalization"
    }

    fn config(&self) -> Config {
        let layer = NestedLayer::new(&*self.layer, &self.name, self.trainable);
        let config =
            json!({ "layer": layer.to_value(), "power_iterations": self.power_iterations });
        config.as_object().cloned().unwrap_or_default()
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "power_iterations", self.power_iterations)?;
        if self.power_iterations > MAX_ITERATIONS {
            let expected = format!("{MAX_ITERATIONS} at most");
            return Err(cx.argument("power_iterations", &expected, self.power_iterations));
        }
        let arguments = cx.arguments().clone();
        if !cx.training() {
            let y = cx.call_sublayer("layer", &*self.layer, self.trainable, &arguments)?;
            self.vector(cx)?;
            return outputs(cx, y);
        }
        // This call only declares the weights. Its value is not used.
        cx.call_sublayer_inside("layer", &*self.layer, self.trainable, &arguments)?;
        let number = cx.declared_weights();
        let u = self.vector(cx)?;
        let Some(kernel) = cx.weight_value(0) else { return Err(self.no_kernel(cx)) };
        let [new, sigma] = self.iterate(cx, kernel, u)?;
        // A kernel of zeros stays as it is.
        let axes: Vec<usize> = (0..cx.dims(kernel).len()).collect();
        let g = cx.graph();
        let sizes = g.unary(Unary::Abs, kernel)?;
        let largest = max_axes(g, sizes, &axes)?;
        let largest = g.reshape(largest, &[])?;
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let some = g.binary(Binary::Gt, largest, zero)?;
        let sigma = g.select(some, sigma, one)?;
        let new = g.select(some, new, u)?;
        let divided = g.div(kernel, sigma)?;
        cx.assign(number, new);
        cx.replace_weight(0, divided);
        cx.reuse_weights();
        let y = cx.call_sublayer("layer", &*self.layer, self.trainable, &arguments)?;
        self.vector(cx)?;
        outputs(cx, y)
    }
}

/// The outputs of the layer. As in Keras, they have the element type of the input.
fn outputs(cx: &mut LayerContext<'_>, operands: Vec<Operand>) -> Result<Outputs> {
    let input = cx.arguments().positional_tensors().first().map(|operand| operand.node);
    let dtype = input.map(|input| cx.ty(input).dtype);
    let mut nodes = vec![];
    for Operand { node, .. } in operands {
        let narrowed = dtype.filter(|dtype| *dtype != cx.ty(node).dtype);
        nodes.push(match narrowed {
            Some(dtype) => cx.graph().cast(node, dtype)?,
            None => node,
        });
    }
    Ok(nodes.into())
}

impl<'de> Deserialize<'de> for SpectralNormalization {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<SpectralNormalization, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            layer: Value,
            #[serde(default = "one")]
            power_iterations: usize,
        }
        fn one() -> usize {
            1
        }
        let keys = Keys::deserialize(d)?;
        let nested = NestedLayer::parse(&keys.layer);
        let NestedLayer { class, name, trainable, config } =
            nested.map_err(|e| de::Error::custom(format!("layer: {e}")))?;
        let layer = crate::layers::from_config(&class, config).map_err(de::Error::custom)?;
        let power_iterations = keys.power_iterations;
        Ok(SpectralNormalization { layer, name, trainable, power_iterations })
    }
}
