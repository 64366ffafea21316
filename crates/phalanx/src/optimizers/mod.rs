//! Optimizers.
//!
//! An optimizer is one file: its config with Keras' keys and its formula, written once as a tape
//! ([`Optimizer::step`]) that every executor runs over the flat weight buffers. The parts that all optimizers
//! share (clipping, weight decay, moving average of the weights) are added to that formula here.
//!
//! ```
//! use phalanx::optimizers::{Adam, Optimizer, OptimizerExt};
//! use phalanx::schedules::CosineDecay;
//!
//! let adam = Adam::new(CosineDecay::new(1e-3, 10_000).warmup(2e-3, 500)).clipnorm(1.0);
//! assert!(adam.validate().is_ok());
//! assert_eq!(adam.common().learning_rate.at(500), 2e-3);
//! ```

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod ftrl;
mod lamb;
mod lion;
mod loss_scale;
mod multi_optimizer;
mod muon;
mod nadam;
mod patterns;
mod rmsprop;
mod schedule_free_adamw;
mod sgd;
mod weight_update;

pub use loss_scale::Scaling;
pub use multi_optimizer::OptimizerMap;
pub use weight_update::{TrainedWeight, WeightSlot, WeightUpdate};
pub(crate) use weight_update::{sum, sum_of_squares};

use crate::config;
use crate::error::{Error, Result};
use crate::registry::{Class, Config, Registry, registry};
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::NodeId;
use phalanx_graph::update::{Clip, Reg, RuleBuilder, Slot, SlotInit, UpdateRule};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Debug;

registry! {
    /// Every optimizer, for one import.
    pub mod classes;
    const OPTIMIZERS: dyn Optimizer = read;

    sgd { SGD }
    adam { Adam }
    adamw { AdamW }
    rmsprop { RMSprop }
    adagrad { Adagrad }
    adadelta { Adadelta }
    adamax { Adamax }
    nadam { Nadam }
    ftrl { Ftrl }
    lion { Lion }
    schedule_free_adamw { ScheduleFreeAdamW }
    lamb { Lamb }
    adafactor { Adafactor }
    muon { Muon }
    multi_optimizer { MultiOptimizer = read_multi }
    loss_scale { LossScaleOptimizer = read_loss_scale }
}

const REGISTRY: Registry<dyn Optimizer> = Registry { kind: "optimizer", tables: &[OPTIMIZERS] };

/// The options that all optimizers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Common {
    /// The optimizer's name.
    pub name: String,
    /// The learning rate.
    pub learning_rate: LearningRate,
    /// The weight decay: before each update, this fraction of the weight times the learning rate is subtracted.
    pub weight_decay: Option<f64>,
    /// The maximum L2 norm of the gradient of each weight.
    pub clipnorm: Option<f64>,
    /// The maximum L2 norm of all gradients together.
    pub global_clipnorm: Option<f64>,
    /// The maximum absolute value of each gradient element.
    pub clipvalue: Option<f64>,
    /// Whether to maintain a moving average of the weights, which replaces them when training ends.
    pub use_ema: bool,
    /// The fraction of the average that is kept at each update.
    pub ema_momentum: f64,
    /// The number of updates after which the weights are replaced by their average.
    pub ema_overwrite_frequency: Option<u64>,
    /// Read and written for Keras only: scaling the loss up and the gradients down again has no effect in f32.
    pub loss_scale_factor: Option<f64>,
    /// The number of batches whose mean gradient makes one update.
    pub gradient_accumulation_steps: Option<u64>,
}

impl Common {
    fn new(name: &str, learning_rate: f64) -> Common {
        Common {
            name: name.into(),
            learning_rate: learning_rate.into(),
            weight_decay: None,
            clipnorm: None,
            global_clipnorm: None,
            clipvalue: None,
            use_ema: false,
            ema_momentum: 0.99,
            ema_overwrite_frequency: None,
            loss_scale_factor: None,
            gradient_accumulation_steps: None,
        }
    }

    /// The requested gradient clipping. As in Keras, a limit of 0 means none.
    pub(crate) fn clip(&self) -> Option<Clip> {
        let limit = |v: Option<f64>| v.filter(|v| *v > 0.0).map(|v| v as f32);
        limit(self.clipnorm)
            .map(Clip::Norm)
            .or(limit(self.global_clipnorm).map(Clip::GlobalNorm))
            .or(limit(self.clipvalue).map(Clip::Value))
    }

    /// The scalars of the shared parts, in the order in which `rule` reads them.
    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let decay = self.weight_decay.map(|decay| decay * learning_rate);
        decay.into_iter().chain(self.average_scalars(step)).collect()
    }

    /// How much of the average of the weights is kept, and whether it replaces them.
    pub(crate) fn average_scalars(&self, step: u64) -> Vec<f64> {
        // The average starts as the first weight.
        let keep = self.use_ema.then_some(if step <= 1 { 0.0 } else { self.ema_momentum });
        let due = |every: u64| f64::from(u8::from(step.is_multiple_of(every)));
        let overwrite = self.ema_overwrite_frequency.filter(|_| self.use_ema).map(due);
        [keep, overwrite].into_iter().flatten().collect()
    }

    fn validate(&self, owner: &str) -> Result<()> {
        match &self.learning_rate {
            LearningRate::Constant(rate) => check_non_negative(owner, "learning_rate", *rate)?,
            LearningRate::Schedule(schedule) => schedule.validate()?,
            rate @ LearningRate::Custom(_) => {
                check_non_negative(owner, "learning_rate", rate.at(0))?
            }
        }
        let limits = [
            ("clipnorm", self.clipnorm),
            ("global_clipnorm", self.global_clipnorm),
            ("clipvalue", self.clipvalue),
        ];
        let given: Vec<&str> = limits.iter().filter(|l| l.1.is_some()).map(|l| l.0).collect();
        if given.len() > 1 {
            let expected = "one of clipnorm, global_clipnorm and clipvalue";
            return Err(Error::argument(owner, "gradient limits", expected, given.join(", ")));
        }
        for (argument, value) in limits.into_iter().chain([("weight_decay", self.weight_decay)]) {
            check_non_negative(owner, argument, value.unwrap_or(0.0))?;
        }
        check_fraction(owner, "ema_momentum", self.ema_momentum)?;
        if self.ema_overwrite_frequency == Some(0) {
            return Err(Error::argument(owner, "ema_overwrite_frequency", "1 update or more", 0));
        }
        if let Some(steps @ (0 | 1)) = self.gradient_accumulation_steps {
            let argument = "gradient_accumulation_steps";
            return Err(Error::argument(owner, argument, "2 steps or more", steps));
        }
        Ok(())
    }
}

/// An optimizer and its options.
pub trait Optimizer: Debug + Send + Sync {
    /// Keras' class name, such as `Adam`.
    fn class_name(&self) -> &'static str;

    /// The config under Keras' keys.
    fn config(&self) -> Map<String, Value>;

    /// The options that all optimizers share.
    fn common(&self) -> &Common;

    /// Mutable access to the options that all optimizers share.
    fn common_mut(&mut self) -> &mut Common;

    /// The slots of a formula that is a tape, with Keras' names and in Keras' order.
    fn slots(&self) -> Vec<Slot> {
        vec![]
    }

    /// The number of first slots that Keras stores together, weight by weight. Each of the others is stored for all
    /// weights at once.
    fn slots_per_weight(&self) -> usize {
        1
    }

    /// The formula as a tape: from weight and gradient (and its slots and scalars, in the builder) to the
    /// new weight and the new slots. Not called if the optimizer [updates whole
    /// weights](Self::updates_whole_weights).
    fn step(&self, _: &mut RuleBuilder, _: Reg, _: Reg) -> (Reg, Vec<Reg>) {
        unreachable!("{}: `updates_whole_weights` must be true without a `step`", self.class_name())
    }

    /// Whether the formula needs more than the elements of a weight one by one: it is [`update`](Self::update).
    fn updates_whole_weights(&self) -> bool {
        false
    }

    /// The slots of a weight, in Keras' order.
    fn weight_slots(&self, of: &TrainedWeight) -> Vec<WeightSlot> {
        let slot = |s: Slot| WeightSlot {
            name: s.name,
            dims: of.dims.clone(),
            init: s.init,
            unused: false,
        };
        self.slots().into_iter().map(slot).collect()
    }

    /// The formula of a whole weight: its new value and those of its slots.
    fn update(&self, _: &TrainedWeight, u: &mut WeightUpdate<'_>) -> Result<(NodeId, Vec<NodeId>)> {
        u.run_tape(self)
    }

    /// The weight decay of a weight.
    fn decay_of(&self, _: &TrainedWeight) -> Option<f64> {
        self.common().weight_decay
    }

    /// The optimizers that this one joins, if it joins several.
    fn optimizers(&self) -> Vec<&dyn Optimizer> {
        vec![]
    }

    /// The indices of these optimizers in the order of the file that this one was read from.
    fn file_order(&self) -> Vec<usize> {
        (0..self.optimizers().len()).collect()
    }

    /// The index of the optimizer of a weight.
    fn optimizer_of(&self, _: &TrainedWeight) -> Result<usize> {
        Ok(0)
    }

    /// What the state of a run is a state of.
    fn rule_name(&self) -> String {
        self.class_name().into()
    }

    /// The scalars that the formula takes from the host for update `step` (1 for the first). Their number is
    /// constant.
    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64>;

    /// Further numbers that Keras saves after `updates` updates. Here they follow from the step.
    fn state_scalars(&self, _updates: u64) -> Vec<f64> {
        vec![]
    }

    /// The wrapped optimizer and its loss scaling, if this optimizer only scales the loss.
    fn inner(&self) -> Option<(&dyn Optimizer, Scaling)> {
        None
    }

    /// Checks the optimizer's own options.
    fn validate_step(&self) -> Result<()> {
        Ok(())
    }

    /// Checks all options.
    fn validate(&self) -> Result<()> {
        self.common().validate(self.class_name())?;
        self.validate_step()
    }

    /// The complete update rule: weight decay, then the formula, then the average of the weights (a last slot,
    /// `average`).
    fn rule(&self) -> UpdateRule {
        let common = self.common();
        let mut slots = self.slots();
        let own_slots = slots.len();
        if common.use_ema {
            slots.push(Slot { name: "average".into(), init: SlotInit::Weight });
        }
        let own = self.step_scalars(0.0, 1).len();
        let count = own + common.scalars(0.0, 1).len();
        let mut b = RuleBuilder::new(slots, count);
        let mut scalars: Vec<Reg> = (own..count).rev().map(|i| b.scalar(i)).collect();

        let mut weight = b.weight();
        if let (Some(_), Some(decay)) = (common.weight_decay, scalars.last().copied()) {
            scalars.pop();
            let loss = b.mul(weight, decay);
            weight = b.sub(weight, loss);
        }
        let gradient = b.gradient();
        let (mut weight, mut slots) = self.step(&mut b, weight, gradient);
        if let Some(keep) = scalars.pop() {
            let one = b.constant(1.0);
            let share = b.sub(one, keep);
            let old = b.slot(own_slots);
            let (old, new) = (b.mul(old, keep), b.mul(weight, share));
            let average = b.add(old, new);
            if let Some(overwrite) = scalars.pop() {
                weight = b.select(overwrite, average, weight);
            }
            slots.push(average);
        }
        b.finish(&self.rule_name(), common.clip(), weight, &slots)
    }

    /// The scalars of update `step` (1 for the first), in the order in which the rule reads them.
    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f32> {
        let mut scalars = self.step_scalars(learning_rate, step);
        scalars.extend(self.common().scalars(learning_rate, step));
        scalars.into_iter().map(|s| s as f32).collect()
    }
}

/// Builder methods for all optimizers.
pub trait OptimizerExt: Optimizer + Sized {
    /// The optimizer under another name.
    fn named(mut self, name: &str) -> Self {
        self.common_mut().name = name.into();
        self
    }

    /// A number or a schedule.
    fn learning_rate(mut self, learning_rate: impl Into<LearningRate>) -> Self {
        self.common_mut().learning_rate = learning_rate.into();
        self
    }

    /// The weight decay: before each update, this fraction of the weight times the learning rate is subtracted.
    fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.common_mut().weight_decay = Some(weight_decay);
        self
    }

    /// The maximum L2 norm of the gradient of each weight.
    fn clipnorm(mut self, clipnorm: f64) -> Self {
        self.common_mut().clipnorm = Some(clipnorm);
        self
    }

    /// The maximum L2 norm of all gradients together.
    fn global_clipnorm(mut self, global_clipnorm: f64) -> Self {
        self.common_mut().global_clipnorm = Some(global_clipnorm);
        self
    }

    /// The maximum absolute value of each gradient element.
    fn clipvalue(mut self, clipvalue: f64) -> Self {
        self.common_mut().clipvalue = Some(clipvalue);
        self
    }

    /// Maintains a moving average of the weights with this momentum (0.99 in Keras).
    fn use_ema(mut self, ema_momentum: f64) -> Self {
        self.common_mut().use_ema = true;
        self.common_mut().ema_momentum = ema_momentum;
        self
    }

    /// Replaces the weights by their average after every `updates` updates.
    fn ema_overwrite_frequency(mut self, updates: u64) -> Self {
        self.common_mut().ema_overwrite_frequency = Some(updates);
        self
    }

    /// Makes one update from the mean gradient of `steps` batches.
    fn gradient_accumulation_steps(mut self, steps: u64) -> Self {
        self.common_mut().gradient_accumulation_steps = Some(steps);
        self
    }
}

impl<O: Optimizer> OptimizerExt for O {}

/// A slot that starts at zero.
fn zeros(name: &str) -> Slot {
    Slot { name: name.into(), init: SlotInit::Value(0.0) }
}

/// Fails unless an option lies in `0..=1`.
fn check_fraction(owner: &str, argument: &str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(owner, argument, "a number from 0 to 1", value))
}

/// Fails unless a decay rate of moments lies in `0..1`. At 1 its bias correction would divide by zero.
fn check_beta(owner: &str, argument: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(owner, argument, "a number from 0 to below 1", value))
}

fn read<O>(class: &Class<dyn Optimizer>, config: &Config) -> Result<Box<dyn Optimizer>>
where
    O: Optimizer + Default + Serialize + DeserializeOwned + 'static,
{
    let optimizer: O = config::read(class.name, config)?;
    optimizer.validate()?;
    Ok(Box::new(optimizer))
}

fn read_multi(_: &Class<dyn Optimizer>, config: &Config) -> Result<Box<dyn Optimizer>> {
    MultiOptimizer::read(config)
}

fn read_loss_scale(_: &Class<dyn Optimizer>, config: &Config) -> Result<Box<dyn Optimizer>> {
    LossScaleOptimizer::read(config)
}

/// The class names that [`from_config`] knows.
pub fn class_names() -> Vec<&'static str> {
    REGISTRY.class_names()
}

/// Creates an optimizer by its Keras name, in any case: `"adam"`, `"SGD"`, ….
pub fn get(name: &str) -> Result<Box<dyn Optimizer>> {
    from_config(name, &Map::new())
}

/// Creates an optimizer from its class name and config.
pub fn from_config(class_name: &str, config: &Map<String, Value>) -> Result<Box<dyn Optimizer>> {
    let known = || class_names().into_iter().map(str::to_lowercase).collect();
    let named = |class: &Class<_>| class.name.eq_ignore_ascii_case(class_name);
    let class = REGISTRY.find(class_name, named, known)?;
    (class.read)(class, config)
}
