//! Convolutional long short-term memory: an LSTM whose products are convolutions.
//!
//! Input `(batch, steps, spatial axes, channels)`, output `(batch, new spatial axes, filters)`, or one for each step with
//! `return_sequences`. The convolution of the input has the strides, padding and dilation of the layer, that of the state
//! keeps its size. Weights: `kernel` `[kernel size, channels, 4 filters]`, `recurrent_kernel`
//! `[kernel size, filters, 4 filters]`, `bias` `[4 filters]`, in the order input, forget, cell, output. States: `h` and `c`.

use super::cell::{Cell, DeclaredCell, Step, drop_steps};
use super::options::{self, RnnOptions};
use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs, WeightSpec};
use crate::layers::spatial::{ImageDataFormat, Padding, Sizes, Spatial, finish, spatial};
use crate::layers::support::{WeightOptions, check_at_least_one};
use crate::layers::window::{Window, convolve};
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Deserializer, Serialize};

/// A convolutional LSTM over sequences of vectors.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ConvLSTM1D;
///
/// assert_eq!(ConvLSTM1D::new(4, 3).config()["kernel_size"], serde_json::json!([3]));
/// ```
pub type ConvLSTM1D = ConvLSTM<1>;

/// A convolutional LSTM over sequences of images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ConvLSTM2D;
///
/// let layer = ConvLSTM2D::new(16, 3).padding("same").return_sequences(true);
/// assert_eq!(layer.config()["filters"], 16);
/// ```
pub type ConvLSTM2D = ConvLSTM<2>;

/// A convolutional LSTM over sequences of volumes.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ConvLSTM3D;
///
/// assert_eq!(ConvLSTM3D::new(4, (3, 3, 1)).config()["kernel_size"], serde_json::json!([3, 3, 1]));
/// ```
pub type ConvLSTM3D = ConvLSTM<3>;

/// A convolutional LSTM over `N` spatial axes.
#[derive(Clone, Debug)]
pub struct ConvLSTM<const N: usize> {
    options: RnnOptions,
    cell: ConvCell<N>,
}

/// The cell of [`ConvLSTM`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
struct ConvCell<const N: usize> {
    filters: usize,
    kernel_size: Sizes<N>,
    strides: Sizes<N>,
    padding: ByName<Padding>,
    data_format: ByName<ImageDataFormat>,
    dilation_rate: Sizes<N>,
    activation: ByName<ActivationFn>,
    recurrent_activation: ByName<ActivationFn>,
    use_bias: bool,
    kernel_initializer: ByName<Initializer>,
    recurrent_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    unit_forget_bias: bool,
    kernel_regularizer: OptionalByName<Regularizer>,
    recurrent_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    recurrent_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
    dropout: f64,
    recurrent_dropout: f64,
    seed: Option<i64>,
}

fn defaults<const N: usize>() -> ConvCell<N> {
    ConvLSTM::new(0, 0).cell
}

/// Builder methods that set an option of the cell.
macro_rules! cell_options {
    ($($(#[$doc:meta])* $option:ident: $type:ty,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $option(mut self, $option: $type) -> Self {
            self.cell.$option = $option.into();
            self
        })*
    };
}

impl<const N: usize> ConvLSTM<N> {
    const NAME: &'static str = ["ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"][N - 1];

    /// `filters` channels of output and state, from windows of `kernel_size`.
    pub fn new(filters: usize, kernel_size: impl Into<Sizes<N>>) -> ConvLSTM<N> {
        let cell = ConvCell {
            filters,
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            data_format: ImageDataFormat::ChannelsLast.into(),
            dilation_rate: 1.into(),
            activation: ActivationFn::Tanh.into(),
            recurrent_activation: ActivationFn::Sigmoid.into(),
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
            recurrent_initializer: Initializer::Orthogonal { seed: None, gain: 1.0 }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            unit_forget_bias: true,
            kernel_regularizer: OptionalByName::default(),
            recurrent_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            kernel_constraint: OptionalByName::default(),
            recurrent_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
            dropout: 0.0,
            recurrent_dropout: 0.0,
            seed: None,
        };
        ConvLSTM { options: RnnOptions::default(), cell }
    }

    cell_options! {
        /// The strides of the windows; defaults to 1.
        strides: impl Into<Sizes<N>>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Sizes<N>>,
        /// Activation of the candidate state; defaults to tanh.
        activation: impl Into<ByName<ActivationFn>>,
        /// Activation of the gates; defaults to the sigmoid.
        recurrent_activation: impl Into<ByName<ActivationFn>>,
        /// Whether to add a bias.
        use_bias: bool,
        /// Whether the bias of the forget gate starts at one; defaults to true.
        unit_forget_bias: bool,
        /// Initializer of the kernel; defaults to `glorot_uniform`.
        kernel_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the recurrent kernel; defaults to `orthogonal`.
        recurrent_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the bias; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// The fraction of the inputs to drop in training, with the same masks for all steps.
        dropout: f64,
        /// The fraction of the states to drop in training, with the same masks for all steps.
        recurrent_dropout: f64,
    }
    super::option_setters!();
}

impl<const N: usize> Layer for ConvLSTM<N> {
    fn class_name(&self) -> &'static str {
        Self::NAME
    }

    fn config(&self) -> Config {
        options::config(&self.options, &self.cell)
    }

    fn signature(&self) -> &'static [&'static str] {
        options::SIGNATURE
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        self.options.activity_regularizer.get()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        options::call(cx, &self.options, &self.cell, inputs)
    }
}

super::recurrent_layer!(ConvLSTM<N> where [const N: usize]);

impl<'de, const N: usize> Deserialize<'de> for ConvLSTM<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ConvLSTM<N>, D::Error> {
        let (options, cell) = options::read(d)?;
        Ok(ConvLSTM { options, cell })
    }
}

/// The number of gates.
const GATES: usize = 4;

/// The declared weights.
struct Declared<'a, const N: usize> {
    cell: &'a ConvCell<N>,
    activations: [ActivationFn; 2],
    kernel: NodeId,
    recurrent_kernel: NodeId,
    bias: Option<NodeId>,
    /// Random streams of the dropout of inputs and of states, one for each gate.
    streams: [Vec<u32>; 2],
}

super::cell::cell_layer!(ConvCell<N>, "ConvLSTMCell" where [const N: usize]);

impl<const N: usize> Cell for ConvCell<N> {
    fn states(&self) -> usize {
        2
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        let activations = [*self.activation.get()?, *self.recurrent_activation.get()?];
        for (name, rate) in
            [("dropout", self.dropout), ("recurrent_dropout", self.recurrent_dropout)]
        {
            if !(0.0..=1.0).contains(&rate) {
                return Err(cx.argument(name, "0 to 1", rate));
            }
        }
        check_at_least_one(cx, "filters", self.filters)?;
        let channels = match self.data_format.get()? {
            ImageDataFormat::ChannelsLast => input.last(),
            ImageDataFormat::ChannelsFirst => input.first(),
        };
        let channels = channels.copied().filter(|_| input.len() == N + 1);
        let Some((channels, columns)) = channels.zip(self.filters.checked_mul(GATES)) else {
            let expected = format!("steps with {N} spatial axes and channels");
            return Err(cx.argument("input", &expected, format!("{input:?}")));
        };
        let options = |initializer, regularizer, constraint| WeightOptions {
            initializer,
            regularizer,
            constraint,
        };
        let size = &self.kernel_size.0[..];
        let kernel =
            options(&self.kernel_initializer, &self.kernel_regularizer, &self.kernel_constraint)
                .weight(cx, "kernel", &[size, &[channels, columns]].concat())?;
        let recurrent_kernel = options(
            &self.recurrent_initializer,
            &self.recurrent_regularizer,
            &self.recurrent_constraint,
        )
        .weight(cx, "recurrent_kernel", &[size, &[self.filters, columns]].concat())?;
        let bias = match self.use_bias {
            false => None,
            true => {
                let bias =
                    options(&self.bias_initializer, &self.bias_regularizer, &self.bias_constraint);
                let spec = bias.spec(cx, "bias", &[columns])?;
                let ones = self.unit_forget_bias.then_some(self.filters..2 * self.filters);
                Some(cx.weight(WeightSpec { ones, ..spec })?)
            }
        };
        let streams = [0, 1].map(|_| (0..GATES).map(|_| cx.stream()).collect());
        Ok(Box::new(Declared { cell: self, activations, kernel, recurrent_kernel, bias, streams }))
    }
}

impl<const N: usize> Declared<'_, N> {
    /// The channels of one gate. A kernel and a bias have them last.
    fn gate(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        gate: usize,
        axis: usize,
    ) -> Result<NodeId> {
        let len = self.cell.filters;
        Ok(cx.graph().push(Op::Slice { axis, start: gate * len, len }, &[x])?)
    }

    /// The convolution of a step's input, with the layer's window.
    fn of_input(
        &self,
        cx: &mut LayerContext<'_>,
        x: &Spatial<N>,
        kernel: NodeId,
        bias: Option<NodeId>,
    ) -> Result<NodeId> {
        let window = Window {
            key: "kernel_size",
            size: self.cell.kernel_size,
            strides: self.cell.strides,
            dilation: self.cell.dilation_rate,
            padding: &self.cell.padding,
            groups: 1,
        };
        window.check_strides(cx)?;
        window.check_not_causal(cx)?;
        let filters = cx.dims(kernel)[N + 1];
        let geom = window.geometry(cx, x, filters)?;
        let y = convolve::<N>(cx, geom, x.x, kernel, bias)?;
        finish(cx, y, ActivationFn::Linear, &self.cell.data_format)
    }

    /// The convolution of a state, which keeps its size.
    fn of_state(
        &self,
        cx: &mut LayerContext<'_>,
        x: &Spatial<N>,
        kernel: NodeId,
    ) -> Result<NodeId> {
        let window = Window {
            key: "kernel_size",
            size: self.cell.kernel_size,
            strides: 1.into(),
            dilation: 1.into(),
            padding: &Padding::Same.into(),
            groups: 1,
        };
        let filters = cx.dims(kernel)[N + 1];
        let geom = window.geometry(cx, x, filters)?;
        let y = convolve::<N>(cx, geom, x.x, kernel, None)?;
        finish(cx, y, ActivationFn::Linear, &self.cell.data_format)
    }

    /// The convolution of an input (`which` 0) or a state (1) for all gates. With dropout each gate has a mask of its own.
    fn convolved(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        which: usize,
    ) -> Result<[NodeId; GATES]> {
        let rate = [self.cell.dropout, self.cell.recurrent_dropout][which];
        let kernel = [self.kernel, self.recurrent_kernel][which];
        let bias = self.bias.filter(|_| which == 0);
        let format = &self.cell.data_format;
        let apply = |cx: &mut LayerContext<'_>, x, kernel, bias| {
            let x = spatial::<N>(cx, &[x], format)?;
            match which {
                0 => self.of_input(cx, &x, kernel, bias),
                _ => self.of_state(cx, &x, kernel),
            }
        };
        let channels = match format.get()? {
            ImageDataFormat::ChannelsLast => N,
            ImageDataFormat::ChannelsFirst => 0,
        };
        let mut gates = [x; GATES];
        if cx.training() && rate > 0.0 && rate < 1.0 {
            for (number, gate) in gates.iter_mut().enumerate() {
                let dropped = drop_steps(cx, x, rate, self.streams[which][number])?;
                let kernel = self.gate(cx, kernel, number, N + 1)?;
                let bias = bias.map(|bias| self.gate(cx, bias, number, 0)).transpose()?;
                *gate = apply(cx, dropped, kernel, bias)?;
            }
            return Ok(gates);
        }
        let all = apply(cx, x, kernel, bias)?;
        for (number, gate) in gates.iter_mut().enumerate() {
            *gate = self.gate(cx, all, number, channels)?;
        }
        Ok(gates)
    }
}

impl<const N: usize> DeclaredCell for Declared<'_, N> {
    fn output(&self) -> Vec<usize> {
        vec![]
    }

    fn state_dims(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<Vec<Vec<usize>>> {
        // A state has the size of the convolved input; the step itself convolves it again.
        let [gate, ..] = self.convolved(cx, x, 0)?;
        Ok(vec![cx.dims(gate); 2])
    }

    fn project(&self, _: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
        // A convolution takes one step at a time.
        Ok(x)
    }

    fn step(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        states: &[Option<NodeId>],
    ) -> Result<Step> {
        let [h, c] = *states else { return Err(cx.argument("states", "2", states.len())) };
        let mut gates = self.convolved(cx, x, 0)?;
        if let Some(h) = h {
            let recurrent = self.convolved(cx, h, 1)?;
            for (gate, recurrent) in gates.iter_mut().zip(recurrent) {
                *gate = cx.graph().add(*gate, recurrent)?;
            }
        }
        let [activation, of_gates] = self.activations;
        let g = cx.graph();
        for (number, gate) in gates.iter_mut().enumerate() {
            let function = if number == 2 { activation } else { of_gates };
            *gate = function.apply(g, *gate)?;
        }
        let [input, forget, candidate, output] = gates;
        let mut new = g.mul(input, candidate)?;
        if let Some(c) = c {
            let kept = g.mul(forget, c)?;
            new = g.add(kept, new)?;
        }
        let shown = activation.apply(g, new)?;
        let h = g.mul(output, shown)?;
        Ok(Step { output: h, states: vec![h, new] })
    }
}
