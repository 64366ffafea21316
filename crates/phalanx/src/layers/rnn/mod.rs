//! Recurrent layers, their cells, and wrappers that apply a layer to the steps of a sequence.
//!
//! A [`Cell`] computes one step. An LSTM or GRU with its default activations and without dropout of its states is one
//! op over the whole sequence (`DeclaredCell::fused`). Any other cell is part of the graph once for every step, with
//! shared weights. A cell is also a layer of one step.

pub(super) mod bidirectional;
mod cell;
pub(super) mod conv_lstm;
pub(super) mod gru;
pub(super) mod lstm;
mod options;
#[allow(clippy::module_inception)]
pub(super) mod rnn;
pub(super) mod simple_rnn;
pub(super) mod time_distributed;

pub(crate) use cell::{Cell, dot};

use crate::error::Result;
use crate::layer::Layer;
use crate::registry::Config;
use options::RnnOptions;

/// A layer that runs a cell over a sequence.
pub(crate) trait RecurrentLayer: Layer {
    /// The options of the loop.
    fn options(&self) -> &RnnOptions;

    /// The options of the loop, to change them.
    fn options_mut(&mut self) -> &mut RnnOptions;

    /// The cell.
    fn cell(&self) -> &dyn Cell;

    /// A copy of the layer.
    fn boxed(&self) -> Box<dyn RecurrentLayer>;
}

/// Reads a recurrent layer from its class name and config; `None` for other classes.
pub(super) fn read_recurrent(
    class: &str,
    config: &Config,
) -> Result<Option<Box<dyn RecurrentLayer>>> {
    Ok(Some(match class {
        "LSTM" => Box::new(super::read_config::<lstm::LSTM>(class, config)?),
        "GRU" => Box::new(super::read_config::<gru::GRU>(class, config)?),
        "SimpleRNN" => Box::new(super::read_config::<simple_rnn::SimpleRNN>(class, config)?),
        "ConvLSTM1D" => Box::new(super::read_config::<conv_lstm::ConvLSTM1D>(class, config)?),
        "ConvLSTM2D" => Box::new(super::read_config::<conv_lstm::ConvLSTM2D>(class, config)?),
        "ConvLSTM3D" => Box::new(super::read_config::<conv_lstm::ConvLSTM3D>(class, config)?),
        "RNN" => Box::new(super::read_config::<rnn::RNN>(class, config)?),
        _ => return Ok(None),
    }))
}

/// Declares a recurrent layer and its cell: the structs with Keras' arguments and the builder methods of both. `ones` names
/// the option that starts the bias of the second gate at one, or `none`. An option gives the type of its builder method's
/// argument, its own type and its default.
macro_rules! recurrent {
    (
        $(#[$layer_doc:meta])* layer $layer:ident;
        $(#[$cell_doc:meta])* cell $cell:ident;
        gates $gates:literal;
        ones $ones:ident;
        $($(#[$doc:meta])* $option:ident: $given:ty => $type:ty = $default:expr,)*
    ) => {
        use crate::by_name::{ByName, OptionalByName};
        use crate::constraints::Constraint;
        use crate::initializers::Initializer;
        use crate::regularizers::Regularizer;

        $(#[$cell_doc])*
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $cell {
            units: usize,
            activation: ByName<ActivationFn>,
            $($option: $type,)*
            use_bias: bool,
            kernel_initializer: ByName<Initializer>,
            recurrent_initializer: ByName<Initializer>,
            bias_initializer: ByName<Initializer>,
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

        impl Default for $cell {
            fn default() -> $cell {
                $cell::new(0)
            }
        }

        impl $cell {
            /// A cell of `units` units.
            pub fn new(units: usize) -> $cell {
                $cell {
                    units,
                    activation: ActivationFn::Tanh.into(),
                    $($option: $default,)*
                    use_bias: true,
                    kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
                    recurrent_initializer: Initializer::Orthogonal { seed: None, gain: 1.0 }.into(),
                    bias_initializer: Initializer::Zeros {}.into(),
                    kernel_regularizer: OptionalByName::default(),
                    recurrent_regularizer: OptionalByName::default(),
                    bias_regularizer: OptionalByName::default(),
                    kernel_constraint: OptionalByName::default(),
                    recurrent_constraint: OptionalByName::default(),
                    bias_constraint: OptionalByName::default(),
                    dropout: 0.0,
                    recurrent_dropout: 0.0,
                    seed: None,
                }
            }

            crate::layers::rnn::cell_setters! { crate::config::setters; $($(#[$doc])* $option: $given,)* }

            /// The options that all cells share. The bias has `biases` rows.
            fn options(&self, biases: usize) -> crate::layers::rnn::cell::CellOptions<'_> {
                use crate::layers::support::WeightOptions;
                crate::layers::rnn::cell::CellOptions {
                    units: self.units,
                    gates: $gates,
                    biases,
                    use_bias: self.use_bias,
                    ones: crate::layers::rnn::recurrent!(@ones self $ones),
                    kernel: WeightOptions {
                        initializer: &self.kernel_initializer,
                        regularizer: &self.kernel_regularizer,
                        constraint: &self.kernel_constraint,
                    },
                    recurrent: WeightOptions {
                        initializer: &self.recurrent_initializer,
                        regularizer: &self.recurrent_regularizer,
                        constraint: &self.recurrent_constraint,
                    },
                    bias: WeightOptions {
                        initializer: &self.bias_initializer,
                        regularizer: &self.bias_regularizer,
                        constraint: &self.bias_constraint,
                    },
                    dropout: self.dropout,
                    recurrent_dropout: self.recurrent_dropout,
                }
            }
        }

        $(#[$layer_doc])*
        ///
        /// Input `(batch, steps, features)`, output `(batch, units)`, or `(batch, steps, units)` with
        /// `return_sequences`. With `return_state`, the last states are further outputs.
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($layer), ";")]
        ///
        #[doc = concat!("let layer = ", stringify!($layer), "::new(32).return_sequences(true);")]
        /// assert_eq!(layer.config()["units"], 32);
        /// ```
        #[derive(Clone, Debug)]
        pub struct $layer {
            options: crate::layers::rnn::options::RnnOptions,
            cell: $cell,
        }

        impl $layer {
            /// A layer of `units` units that returns the last output.
            pub fn new(units: usize) -> $layer {
                $layer { options: Default::default(), cell: $cell::new(units) }
            }

            crate::layers::rnn::cell_setters! {
                crate::layers::rnn::setters_of_cell; $($(#[$doc])* $option: $given,)*
            }
            crate::layers::rnn::option_setters!();
        }

        impl crate::layer::Layer for $layer {
            fn class_name(&self) -> &'static str {
                stringify!($layer)
            }

            fn config(&self) -> crate::registry::Config {
                crate::layers::rnn::options::config(&self.options, &self.cell)
            }

            fn signature(&self) -> &'static [&'static str] {
                crate::layers::rnn::options::SIGNATURE
            }

            fn activity_penalty(&self) -> Result<Option<Regularizer>> {
                self.options.activity_regularizer.get()
            }

            fn call(
                &self,
                cx: &mut LayerContext<'_>,
                inputs: &[NodeId],
            ) -> Result<crate::layer::Outputs> {
                crate::layers::rnn::options::call(cx, &self.options, &self.cell, inputs)
            }
        }

        crate::layers::rnn::recurrent_layer!($layer);

        impl<'de> serde::Deserialize<'de> for $layer {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<$layer, D::Error> {
                let (options, cell) = crate::layers::rnn::options::read(d)?;
                Ok($layer { options, cell })
            }
        }
    };
    (@ones $self:ident none) => { None };
    (@ones $self:ident $option:ident) => {
        $self.$option.then(|| $self.units..$self.units.saturating_mul(2))
    };
}
pub(crate) use recurrent;

/// Implements [`RecurrentLayer`] for a struct with `options` and a `cell`.
macro_rules! recurrent_layer {
    ($layer:ty $(where [$($generics:tt)+])?) => {
        impl$(<$($generics)+>)? crate::layers::rnn::RecurrentLayer for $layer {
            fn options(&self) -> &crate::layers::rnn::options::RnnOptions {
                &self.options
            }

            fn options_mut(&mut self) -> &mut crate::layers::rnn::options::RnnOptions {
                &mut self.options
            }

            fn cell(&self) -> &dyn crate::layers::rnn::Cell {
                &self.cell
            }

            fn boxed(&self) -> Box<dyn crate::layers::rnn::RecurrentLayer> {
                Box::new(self.clone())
            }
        }
    };
}
pub(crate) use recurrent_layer;

/// Builder methods of a layer that set an option of its cell.
macro_rules! setters_of_cell {
    ($($(#[$doc:meta])* $option:ident: $type:ty,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $option(mut self, $option: $type) -> Self {
            self.cell = self.cell.$option($option);
            self
        })*
    };
}
pub(crate) use setters_of_cell;

/// The builder methods of all cells, made by `$setters`.
macro_rules! cell_setters {
    ($($setters:ident)::+; $($(#[$doc:meta])* $option:ident: $given:ty,)*) => {
        $($setters)::+! {
            /// Activation of the candidate state; defaults to tanh.
            activation: impl Into<ByName<ActivationFn>>,
            $($(#[$doc])* $option: $given,)*
            /// Whether to add a bias.
            use_bias: bool,
            /// Initializer of the kernel; defaults to `glorot_uniform`.
            kernel_initializer: impl Into<ByName<Initializer>>,
            /// Initializer of the recurrent kernel; defaults to `orthogonal`.
            recurrent_initializer: impl Into<ByName<Initializer>>,
            /// Initializer of the bias; defaults to zeros.
            bias_initializer: impl Into<ByName<Initializer>>,
            /// Regularizer of the kernel.
            kernel_regularizer: impl Into<OptionalByName<Regularizer>>,
            /// Regularizer of the recurrent kernel.
            recurrent_regularizer: impl Into<OptionalByName<Regularizer>>,
            /// Regularizer of the bias.
            bias_regularizer: impl Into<OptionalByName<Regularizer>>,
            /// Constraint on the kernel.
            kernel_constraint: impl Into<OptionalByName<Constraint>>,
            /// Constraint on the recurrent kernel.
            recurrent_constraint: impl Into<OptionalByName<Constraint>>,
            /// Constraint on the bias.
            bias_constraint: impl Into<OptionalByName<Constraint>>,
            /// The fraction of the inputs to drop in training, with one mask for all steps.
            dropout: f64,
            /// The fraction of the states to drop in training, with one mask for all steps.
            recurrent_dropout: f64,
        }
    };
}
pub(crate) use cell_setters;

/// The builder methods of all recurrent layers.
macro_rules! option_setters {
    () => {
        /// Whether to return the outputs of all steps.
        #[must_use]
        pub fn return_sequences(mut self, return_sequences: bool) -> Self {
            self.options.return_sequences = return_sequences;
            self
        }

        /// Whether to return the last states as further outputs.
        #[must_use]
        pub fn return_state(mut self, return_state: bool) -> Self {
            self.options.return_state = return_state;
            self
        }

        /// Whether to start at the last step. The outputs are in the order of computation.
        #[must_use]
        pub fn go_backwards(mut self, go_backwards: bool) -> Self {
            self.options.go_backwards = go_backwards;
            self
        }

        /// Whether a batch starts with the states that the last one left, sample by sample. The inputs of the model
        /// must have a fixed batch size ([`Input::batch_size`](crate::model::Input::batch_size));
        /// [`Model::reset_states`](crate::model::Model::reset_states) returns to zeros.
        #[must_use]
        pub fn stateful(mut self, stateful: bool) -> Self {
            self.options.stateful = stateful;
            self
        }

        /// Whether masked steps output zeros instead of the previous output.
        #[must_use]
        pub fn zero_output_for_mask(mut self, zero_output_for_mask: bool) -> Self {
            self.options.zero_output_for_mask = zero_output_for_mask;
            self
        }

        /// Regularizer of the outputs and, with `return_state`, of the states.
        #[must_use]
        pub fn activity_regularizer(
            mut self,
            regularizer: impl Into<
                crate::by_name::OptionalByName<crate::regularizers::Regularizer>,
            >,
        ) -> Self {
            self.options.activity_regularizer = regularizer.into();
            self
        }
    };
}
pub(crate) use option_setters;
