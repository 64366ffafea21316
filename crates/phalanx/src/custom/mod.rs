//! Custom layers, losses, metrics, activations, initializers, regularizers and constraints, and the types they are
//! written with.
//!
//! A custom class is a struct that implements [`Layer`], [`Loss`], [`Metric`] or another trait of this module. Its formula is a function that appends
//! nodes to a [`Graph`]. The graph is differentiated, fused and run by every executor, so a formula is written once and
//! needs no derivative. Everything it takes is in this module.
//!
//! # A layer
//!
//! The struct is the config: its serde form has the keys of the Python class' `get_config`, without `name`, `trainable`
//! and `dtype`. [`Layer::call`] declares the weights and computes with them. It runs for every step that is built, so it
//! must do the same each time.
//!
//! ```
//! use phalanx::custom::*;
//! use phalanx::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! /// `y = factor · gain · x`, with one `gain` per feature.
//! #[derive(Clone, Debug, Serialize, Deserialize)]
//! struct Scale {
//!     factor: f64,
//! }
//!
//! impl Layer for Scale {
//!     fn class_name(&self) -> &'static str {
//!         "my>Scale"
//!     }
//!
//!     fn config(&self) -> Config {
//!         to_config(self)
//!     }
//!
//!     fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
//!         let x = inputs[0];
//!         let features = cx.ty(x).last();
//!         let gain = cx.weight(WeightSpec::new("gain", &[features], Initializer::Ones {}))?;
//!         let scaled = cx.graph().mul(x, gain)?;
//!         Ok(cx.graph().scale(scaled, self.factor)?.into())
//!     }
//! }
//!
//! register_layer::<Scale>("my>Scale")?; // for files; a model in this program needs no registration
//! let model = Sequential::new().add(Input::new([3])).add(Scale { factor: 2.0 }).build()?;
//! let y = model.predict(Tensor::new([1, 3], vec![1.0, 2.0, 3.0])?)?;
//! assert_eq!(y.f32().unwrap(), [2.0, 4.0, 6.0]);
//! # Ok::<(), phalanx::Error>(())
//! ```
//!
//! | a layer needs | it calls |
//! |---|---|
//! | a weight | [`LayerContext::weight`] with a [`WeightSpec`] |
//! | a weight that is assigned, such as a moving statistic | [`WeightSpec::non_trainable`], [`LayerContext::assign`] |
//! | another layer inside | [`LayerContext::call_sublayer`] with Keras' attribute name; its weights belong to this layer |
//! | to know whether the model trains | [`LayerContext::training`] |
//! | random numbers | [`Op::Uniform`] or [`Op::Dropout`] with a key from [`LayerContext::stream`]: a function of seed, step and row |
//! | the values of all samples of the global batch | [`all_rows`] |
//! | the mask of its input | [`LayerContext::mask`], [`Layer::mask_rule`], [`Outputs::masked`] |
//! | to refuse an argument | [`LayerContext::argument`] |
//!
//! # Values have a space
//!
//! A [`Type`] has an element type, a [`Space`] and dimensions. A value of [`Space::Rows`] has one entry per sample, and its
//! dimensions do not count the batch: each worker has its own rows. Weights are [`Space::Mirrored`]: equal everywhere. A sum
//! over the rows of a worker ([`Op::SumRows`]) is [`Space::Partial`], and only [`Op::AllReduce`] makes it a sum over the
//! global batch. The graph refuses anything else, so a layer that builds is right on any number of replicas.
//!
//! # A loss
//!
//! [`Loss::values`] gives one value per sample and position. Struct and defaults are as for a layer; the fields name and
//! reduction come from [`LossOptions`].
//!
//! ```
//! use phalanx::custom::*;
//! use phalanx::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! /// `mean(|y_true - y_pred|^power)`.
//! #[derive(Clone, Debug, Serialize, Deserialize)]
//! struct PowerError {
//!     #[serde(flatten)]
//!     common: LossOptions,
//!     power: f64,
//! }
//!
//! impl Default for PowerError {
//!     fn default() -> PowerError {
//!         PowerError { common: LossOptions::named("power_error"), power: 3.0 }
//!     }
//! }
//!
//! impl Loss for PowerError {
//!     fn class_name(&self) -> &'static str {
//!         "my>PowerError"
//!     }
//!
//!     fn config(&self) -> Config {
//!         to_config(self)
//!     }
//!
//!     fn common(&self) -> &LossOptions {
//!         &self.common
//!     }
//!
//!     fn common_mut(&mut self) -> &mut LossOptions {
//!         &mut self.common
//!     }
//!
//!     fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
//!         let error = g.sub(y_true, y_pred)?;
//!         let size = g.unary(Unary::Abs, error)?;
//!         let power = g.scalar(self.power);
//!         let values = g.binary(Binary::Pow, size, power)?;
//!         Ok(g.mean_row(values)?)
//!     }
//! }
//!
//! register_loss::<PowerError>("my>PowerError")?;
//! assert_eq!(phalanx::losses::get("my>PowerError")?.name(), "power_error");
//! # Ok::<(), phalanx::Error>(())
//! ```
//!
//! # A metric
//!
//! [`Metric::update`] appends the sums over the given rows, a partial vector; [`Metric::result`] computes the metric from
//! them on the host. Sums of workers and batches are added, so results do not depend on how rows were distributed.
//! [`weighted_mean`] makes the sums of a mean.
//!
//! # Initializers, regularizers and constraints
//!
//! Layers take custom ones by value (`Regularizer::custom(..)`) or by their registered name. See
//! [`register_initializer`], [`register_regularizer`] and [`register_constraint`].
//!
//! # Functions
//!
//! A function registered with [`register_activation`] is found by its name wherever an activation is named, one registered
//! with [`register_loss_function`] wherever a loss or a metric is.
//!
//! # Files
//!
//! [`Model::save`](crate::model::Model::save) writes a class `my>Scale` as Keras writes a Python class `Scale` that is
//! registered with `@keras.saving.register_keras_serializable(package="my")`: Python reads the file if it has registered
//! that class, with the same config keys and weights. The other way round, a file that has such a class loads if it was
//! registered here. Files never run code, so there is no other way to load one: `Lambda` layers and classes that are not
//! registered are refused, and the error says what to register.

mod registered;
mod weights;

pub use crate::layer::{
    Argument, Arguments, InputsForm, Layer, LayerContext, LayerExt, LayerHandle, MaskRule, Operand,
    Outputs, WeightSpec,
};
pub use crate::losses::{Common as LossOptions, Loss, Reduction};
pub use crate::metrics::{Metric, weighted_mean};
pub use crate::registry::Config;
pub use phalanx_graph::functions::batch::all_rows;
pub use phalanx_graph::ops::{Binary, ReduceKind, Unary};
pub use phalanx_graph::rng::Stream;
pub use phalanx_graph::{DType, Graph, NodeId, Op, Scope, Space, Type};

pub use registered::{
    CustomActivation, FunctionLoss, register_activation, register_layer, register_loss,
    register_loss_function, register_metric,
};
pub(crate) use registered::{
    activation, class_and_package, function_object, layer, loss, metric, object, refuse,
    short_class,
};
pub use weights::{
    CustomConstraint, CustomInitializer, CustomObject, CustomRegularizer, CustomValue,
    register_constraint, register_initializer, register_regularizer,
};

use serde::Serialize;

/// Returns the fields of a struct as a config.
pub fn to_config<T: Serialize>(value: &T) -> Config {
    crate::config::write(value)
}
