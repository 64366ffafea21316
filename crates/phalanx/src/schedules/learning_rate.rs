//! A learning rate: a number, a schedule of Keras or one of the user.

use super::Schedule;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;

/// A learning rate: a constant or a schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRate {
    /// The same at every step unless a callback changes it.
    Constant(f64),
    /// A function of the step.
    Schedule(Schedule),
    /// A function of the step that the user defines.
    Custom(CustomSchedule),
}

/// A learning rate as a function of the step, for schedules of one's own. Its `Debug` output should show its options: a
/// resumed run compares it with that of the saved run.
///
/// ```
/// use phalanx::optimizers::{Optimizer, SGD};
/// use phalanx::schedules::LearningRateSchedule;
///
/// #[derive(Debug)]
/// struct Halved {
///     every: u64,
/// }
///
/// impl LearningRateSchedule for Halved {
///     fn at(&self, step: u64) -> f64 {
///         0.1 * 0.5_f64.powi((step / self.every) as i32)
///     }
/// }
///
/// assert_eq!(SGD::new(Halved { every: 10 }).common().learning_rate.at(10), 0.05);
/// ```
///
/// The rate depends on the step alone, so that a resumed run continues exactly. A file of a model keeps the current rate
/// instead of the schedule; saving warns of it.
pub trait LearningRateSchedule: Debug + Send + Sync {
    /// The rate at a step, finite and not negative; the first step is 0.
    fn at(&self, step: u64) -> f64;
}

/// A [`LearningRateSchedule`] of a user.
#[derive(Clone, Debug)]
pub struct CustomSchedule(Arc<dyn LearningRateSchedule>);

/// Schedules that print alike are alike.
impl PartialEq for CustomSchedule {
    fn eq(&self, other: &CustomSchedule) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || format!("{self:?}") == format!("{other:?}")
    }
}

impl<S: LearningRateSchedule + 'static> From<S> for LearningRate {
    fn from(schedule: S) -> LearningRate {
        LearningRate::Custom(CustomSchedule(Arc::new(schedule)))
    }
}

/// A user's schedule times a factor.
#[derive(Debug)]
struct Scaled {
    // Shown by `Debug`, by which schedules are compared.
    schedule: CustomSchedule,
    factor: f64,
}

impl LearningRateSchedule for Scaled {
    fn at(&self, step: u64) -> f64 {
        self.factor * self.schedule.0.at(step)
    }
}

impl LearningRate {
    /// The rate multiplied by a factor at every step.
    ///
    /// ```
    /// use phalanx::schedules::{LearningRate, PolynomialDecay};
    ///
    /// let rate: LearningRate = PolynomialDecay::new(0.1, 10).into();
    /// assert_eq!(rate.clone().scaled(4.0).at(3), 4.0 * rate.at(3));
    /// ```
    #[must_use]
    pub fn scaled(self, factor: f64) -> LearningRate {
        match self {
            LearningRate::Constant(rate) => LearningRate::Constant(rate * factor),
            LearningRate::Schedule(mut schedule) => {
                schedule.rates().into_iter().for_each(|rate| *rate *= factor);
                LearningRate::Schedule(schedule)
            }
            LearningRate::Custom(schedule) => Scaled { schedule, factor }.into(),
        }
    }

    /// The rate at a step; the first step is 0.
    pub fn at(&self, step: u64) -> f64 {
        match self {
            LearningRate::Constant(rate) => *rate,
            LearningRate::Schedule(schedule) => schedule.at(step),
            LearningRate::Custom(schedule) => schedule.0.at(step),
        }
    }
}

/// Serialised as a Keras object with its module, so that Python finds the class.
impl Serialize for LearningRate {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let schedule = match self {
            LearningRate::Constant(rate) => return s.serialize_f64(*rate),
            LearningRate::Schedule(schedule) => schedule,
            LearningRate::Custom(schedule) => return s.serialize_str(&format!("{:?}", schedule.0)),
        };
        let mut object = serde_json::to_value(schedule).map_err(S::Error::custom)?;
        if let Value::Object(map) = &mut object {
            map.insert("module".into(), "keras.optimizers.schedules".into());
            map.insert("registered_name".into(), Value::Null);
        }
        object.serialize(s)
    }
}

impl<'de> Deserialize<'de> for LearningRate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<LearningRate, D::Error> {
        let value = Value::deserialize(d)?;
        match value.as_f64() {
            Some(rate) => Ok(LearningRate::Constant(rate)),
            None => {
                let schedule = Schedule::deserialize(value).map_err(D::Error::custom)?;
                Ok(LearningRate::Schedule(schedule))
            }
        }
    }
}

impl From<f64> for LearningRate {
    fn from(rate: f64) -> LearningRate {
        LearningRate::Constant(rate)
    }
}

impl From<Schedule> for LearningRate {
    fn from(schedule: Schedule) -> LearningRate {
        LearningRate::Schedule(schedule)
    }
}
