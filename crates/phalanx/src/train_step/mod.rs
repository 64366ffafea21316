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
//! updated weights as given. Derivatives are not values of a step, so a loss cannot contain one (a gradient penalty).
//!
//! # Several replicas
//!
//! Each replica has its own rows of the batch. A loss is the mean over the samples of the global batch, whichever replica
//! has them, also if they do not divide evenly; gradients are those of one device. Random numbers belong to a sample, not to
//! a replica. A value has one entry per sample, and nothing combines the entries of two samples except sums over the batch.
//! A loss of pairs therefore takes both samples of a pair as inputs of one row; a loss that compares every sample of a batch
//! with every other cannot be written.
//!
//! # What a step reports
//!
//! `fit`, `evaluate` and callbacks see the losses and metrics of the step under the names that it gives. In `evaluate` and
//! for validation data the function runs with [`training`](StepContext::training) false: models are in inference mode, and
//! `minimize` only reports its loss. The weights stay with the models, so `predict` and `save` of a model use what the step
//! has trained. `BackupAndRestore` saves the whole run; `ModelCheckpoint` is for single models and is refused.
//!
//! # Optimizers
//!
//! The last phase is applied by the executor's own update, which is fused with the reduction of its gradients, if nothing
//! else in the step updates its weights or uses its optimizer. Other phases are updated inside the graph. They have no
//! moving averages, gradient accumulation or loss scaling; asking for one is an error, as is `mixed_float16` for a step
//! with such phases. Callbacks that set the learning rate set that of the optimizer of the last phase.

mod context;
mod step;
mod trainer;
mod update;

pub use context::StepContext;
pub(crate) use step::{BuiltCustomStep, CustomStep, Update};
pub use trainer::{TrainStep, Trainer};
