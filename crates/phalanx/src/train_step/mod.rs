//! Custom training steps: several models, losses and optimizers in one compiled step.
//!
//! [`Model::compile`](crate::model::Model::compile) trains one model by one loss for each of its outputs. A [`TrainStep`]
//! trains any number of models, as a `train_step` of a Keras model does. A function describes the step with a
//! [`StepContext`]: it calls models, computes losses, and says which weights minimize which loss with which optimizer. The
//! function runs when the step is compiled, not for every batch. What it describes becomes one program, like the step of a
//! model: mirrored on all replicas, resumed to the bit, profiled, printed.
//!
//! ```
//! use phalanx::prelude::*;
//! use phalanx::train_step::TrainStep;
//!
//! let teacher = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
//! let student = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
//! let mut trainer = TrainStep::new("distillation")
//!     .input("x", Input::new([4]))
//!     .model("teacher", &teacher)
//!     .model("student", &student)
//!     .optimizer("adam", Adam::default())
//!     .compile(|cx| {
//!         let x = cx.input("x")?;
//!         let wanted = cx.call_inference("teacher", &[x])?;
//!         let found = cx.call("student", &[x])?;
//!         let loss = cx.loss(&MeanSquaredError::default(), wanted, found)?;
//!         cx.minimize("loss", loss, &["student"], "adam")
//!     })?;
//! let history = trainer.fit(Tensor::zeros([32, 4]), Fit::new().epochs(2).verbose(0))?;
//! assert!(history.last("loss").unwrap().is_finite());
//! # Ok::<(), phalanx::Error>(())
//! ```
//!
//! # Order of updates
//!
//! Each call of [`minimize`](StepContext::minimize) is a phase. Phases run in order: what is computed after one sees the
//! weights that it has updated, and what was computed before keeps its value. So a GAN whose generator is trained after its
//! discriminator reads as in Keras' tutorials:
//!
//! 1. call the generator and the discriminator, `minimize` the discriminator's loss;
//! 2. call both again, `minimize` the generator's loss: it sees the new discriminator.
//!
//! A loss is differentiated by the weights that it has read. An update itself is not differentiated: later losses take the
//! updated weights as given. A loss may contain the derivative of a value by another
//! ([`gradient`](StepContext::gradient)), such as a gradient penalty.
//!
//! # Losses that layers add
//!
//! A phase minimizes its loss, the penalties of the weights that it trains, and what layers of the models that it trains have
//! added to the loss since the phase before (`add_loss`, `activity_regularizer`). It reports their sum under its name. What
//! the layers of other models have added is left out: a generator is not trained by the penalties of its discriminator.
//!
//! # Several replicas
//!
//! Each replica has its own rows of the batch. A loss is the mean over the samples of the global batch, whichever replica
//! has them, also if they do not divide evenly; gradients are those of one device. Random numbers belong to a sample, not to
//! a replica. A value has one entry per sample. A loss of pairs takes both samples of a pair as inputs of one row; a loss that
//! compares every sample of a batch with every other takes the values of all samples from [`crate::custom::all_rows`].
//!
//! # What a step reports
//!
//! `fit`, `evaluate` and callbacks see the losses and metrics of the step under the names that it gives. In `evaluate` and
//! for validation data the function runs with [`training`](StepContext::training) false: models are in inference mode, and
//! `minimize` only reports its loss. It must report the same losses and metrics then;
//! [`TrainStep::test_step`] gives evaluation a function of its own, which may report others. The weights stay with the models, so `predict` and `save` of a model use what the step has trained.
//! `BackupAndRestore` saves the whole run, `ModelCheckpoint` one model of the step, which
//! [`ModelCheckpoint::model`](crate::callbacks::ModelCheckpoint::model) names.
//!
//! # Optimizers
//!
//! Every optimizer has its own options, learning rate or schedule, step count, moving averages, accumulated gradients and
//! loss scale. An optimizer that is used twice in a step makes two steps. With `mixed_float16` each optimizer scales the losses
//! that it minimizes, and skips its own updates only. `fit` leaves the moving averages of all optimizers that keep them in
//! the weights.
//!
//! The last phase is applied by the executor's own update, which is fused with the reduction of its gradients, if nothing
//! else in the step updates its weights or uses its optimizer. Other phases are updated inside the graph. Callbacks that set
//! the learning rate set that of the optimizer of the last phase; [`Trainer::set_learning_rate_of`] sets that of any.
//! [`Fit::accumulate`](crate::model::Fit::accumulate) is refused for a step with updates inside the graph:
//! `gradient_accumulation_steps` of an optimizer says the same for each.

mod context;
mod step;
mod trainer;
mod update;

pub use context::StepContext;
pub(crate) use step::{BuiltCustomStep, CustomStep, Update};
pub use trainer::{TrainStep, Trainer};
