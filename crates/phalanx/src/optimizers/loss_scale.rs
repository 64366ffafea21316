//! Dynamic loss scaling around another optimizer, for gradients in 16-bit floats.
//!
//! The derivative starts from `scale · loss`, and the update divides by the scale again. If a gradient is not
//! finite, the update is skipped (weights, slots and the update count stay unchanged) and the scale is halved.
//! After `dynamic_growth_steps` finite steps in a row the scale is doubled. The policy `mixed_float16` wraps
//! its optimizer in a [`LossScaleOptimizer`].

use super::{Common, Optimizer, TrainedWeight, from_config};
use crate::error::{Error, Result};
use crate::saving;
use phalanx_graph::update::{Reg, RuleBuilder, Slot, UpdateRule};
use serde_json::{Map, Value};

/// The largest number of steps that a 32-bit float can count one by one on the devices.
const MAX_GROWTH_STEPS: u32 = 1 << 24;

/// The loss scaling parameters of a compiled step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The initial scale.
    pub initial_scale: f64,
    /// The number of successive finite steps after which the scale is doubled.
    pub growth_steps: u32,
}

impl Default for Scaling {
    fn default() -> Scaling {
        Scaling { initial_scale: 32768.0, growth_steps: 2000 }
    }
}

/// An optimizer whose loss is scaled.
///
/// ```
/// use phalanx::optimizers::{Adam, LossScaleOptimizer, Optimizer};
///
/// let optimizer = LossScaleOptimizer::new(Adam::new(1e-3)).initial_scale(1024.0);
/// assert_eq!(optimizer.config()["inner_optimizer"]["class_name"], "Adam");
/// assert!(optimizer.validate().is_ok());
/// ```
#[derive(Debug)]
pub struct LossScaleOptimizer {
    name: String,
    inner: Box<dyn Optimizer>,
    scaling: Scaling,
}

impl LossScaleOptimizer {
    /// Wraps an optimizer.
    pub fn new(inner_optimizer: impl Optimizer + 'static) -> LossScaleOptimizer {
        LossScaleOptimizer::wrap(Box::new(inner_optimizer))
    }

    /// Wraps a boxed optimizer.
    pub(crate) fn wrap(mut inner: Box<dyn Optimizer>) -> LossScaleOptimizer {
        // As in Keras, the loss is scaled only once.
        inner.common_mut().loss_scale_factor = None;
        let name = "loss_scale_optimizer".into();
        LossScaleOptimizer { name, inner, scaling: Scaling::default() }
    }

    /// The initial scale, 2¹⁵ by default.
    pub fn initial_scale(mut self, scale: f64) -> LossScaleOptimizer {
        self.scaling.initial_scale = scale;
        self
    }

    /// The number of successive finite steps after which the scale is doubled, 2000 by default.
    pub fn dynamic_growth_steps(mut self, steps: u32) -> LossScaleOptimizer {
        self.scaling.growth_steps = steps;
        self
    }

    /// Reads a Keras config.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Optimizer>> {
        let wrong = |key: &str, expected: &str| {
            let received = config.get(key).map_or("nothing".into(), Value::to_string);
            Error::argument(CLASS, key, expected, received)
        };
        let inner = config.get("inner_optimizer");
        let class = inner.and_then(|o| o.get("class_name")?.as_str());
        let options = inner.and_then(|o| o.get("config")?.as_object());
        let (Some(class), Some(options)) = (class, options) else {
            return Err(wrong("inner_optimizer", "an optimizer"));
        };
        if class.eq_ignore_ascii_case(CLASS) {
            return Err(wrong("inner_optimizer", "an optimizer that does not scale itself"));
        }
        let mut optimizer = LossScaleOptimizer::wrap(from_config(class, options)?);
        if let Some(name) = config.get("name").and_then(Value::as_str) {
            optimizer.name = name.into();
        }
        if let Some(scale) = config.get("initial_scale") {
            let scale = scale.as_f64().ok_or_else(|| wrong("initial_scale", "a number"))?;
            optimizer.scaling.initial_scale = scale;
        }
        if let Some(steps) = config.get("dynamic_growth_steps") {
            let steps = steps.as_u64().and_then(|steps| u32::try_from(steps).ok());
            let steps = steps.ok_or_else(|| wrong("dynamic_growth_steps", "a number of steps"))?;
            optimizer.scaling.growth_steps = steps;
        }
        optimizer.validate()?;
        Ok(Box::new(optimizer))
    }
}

const CLASS: &str = "LossScaleOptimizer";

impl Optimizer for LossScaleOptimizer {
    fn class_name(&self) -> &'static str {
        CLASS
    }

    fn config(&self) -> Map<String, Value> {
        let inner = &self.inner;
        let inner = saving::object("keras.optimizers", inner.class_name(), inner.config());
        let entries = [
            ("name", self.name.clone().into()),
            ("inner_optimizer", inner),
            ("initial_scale", self.scaling.initial_scale.into()),
            ("dynamic_growth_steps", self.scaling.growth_steps.into()),
        ];
        entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
    }

    fn common(&self) -> &Common {
        self.inner.common()
    }

    fn common_mut(&mut self) -> &mut Common {
        self.inner.common_mut()
    }

    fn slots(&self) -> Vec<Slot> {
        self.inner.slots()
    }

    fn slots_per_weight(&self) -> usize {
        self.inner.slots_per_weight()
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        self.inner.step(b, weight, gradient)
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.inner.step_scalars(learning_rate, step)
    }

    fn state_scalars(&self, updates: u64) -> Vec<f64> {
        self.inner.state_scalars(updates)
    }

    fn inner(&self) -> Option<(&dyn Optimizer, Scaling)> {
        Some((&*self.inner, self.scaling))
    }

    fn validate(&self) -> Result<()> {
        let scale = self.scaling.initial_scale as f32;
        if !scale.is_normal() || scale < 0.0 {
            let received = self.scaling.initial_scale;
            let expected = "a positive number that a 32-bit float can represent";
            return Err(Error::argument(CLASS, "initial_scale", expected, received));
        }
        if !(1..=MAX_GROWTH_STEPS).contains(&self.scaling.growth_steps) {
            let (expected, received) =
                (format!("1 to {MAX_GROWTH_STEPS}"), self.scaling.growth_steps);
            return Err(Error::argument(CLASS, "dynamic_growth_steps", expected, received));
        }
        self.inner.validate()
    }

    fn rule(&self) -> UpdateRule {
        UpdateRule { name: self.rule_name(), ..self.inner.rule() }
    }

    fn rule_name(&self) -> String {
        format!("{CLASS}({})", self.inner.rule_name())
    }

    fn updates_whole_weights(&self) -> bool {
        self.inner.updates_whole_weights()
    }

    fn optimizers(&self) -> Vec<&dyn Optimizer> {
        self.inner.optimizers()
    }

    fn file_order(&self) -> Vec<usize> {
        self.inner.file_order()
    }

    fn optimizer_of(&self, of: &TrainedWeight) -> Result<usize> {
        self.inner.optimizer_of(of)
    }
}
