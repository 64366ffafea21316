//! Learning rate schedules. The rate is fed to the step program, so a schedule never causes a recompilation.

mod learning_rate;

pub use learning_rate::{CustomSchedule, LearningRate, LearningRateSchedule};

use crate::config::setters;
use crate::error::{Error, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::f64::consts::PI;

/// `(initial - end) · (1 - step / decay_steps)^power + end`, with the step limited to
/// `decay_steps` or, with `cycle`, `decay_steps` raised to the next multiple past the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolynomialDecay {
    /// The rate at step 0.
    pub initial_learning_rate: f64,
    /// Steps until the end.
    #[serde(deserialize_with = "read_steps")]
    pub decay_steps: u64,
    /// The rate at the end.
    #[serde(default = "default_end")]
    pub end_learning_rate: f64,
    /// The exponent; 1 for a linear decay.
    #[serde(default = "one")]
    pub power: f64,
    /// Whether to restart after `decay_steps`.
    #[serde(default)]
    pub cycle: bool,
}

/// A cosine decay from the initial rate (or from `warmup_target`, reached linearly over `warmup_steps`) to
/// `alpha` times that rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CosineDecay {
    /// The rate at step 0.
    pub initial_learning_rate: f64,
    /// The number of steps of the decay.
    #[serde(deserialize_with = "read_steps")]
    pub decay_steps: u64,
    /// The fraction of the initial rate that remains at the end.
    #[serde(default)]
    pub alpha: f64,
    /// The rate at the end of the warm-up; `None` for no warm-up.
    #[serde(default)]
    pub warmup_target: Option<f64>,
    /// Steps of the warm-up.
    #[serde(default, deserialize_with = "read_steps")]
    pub warmup_steps: u64,
}

/// Repeated cosine decays, each `t_mul` times as long and `m_mul` times as high as the previous one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CosineDecayRestarts {
    /// The rate at step 0.
    pub initial_learning_rate: f64,
    /// Steps of the first period.
    #[serde(deserialize_with = "read_steps")]
    pub first_decay_steps: u64,
    /// The ratio of the lengths of successive periods.
    #[serde(default = "two")]
    pub t_mul: f64,
    /// The ratio of the initial rates of successive periods.
    #[serde(default = "one")]
    pub m_mul: f64,
    /// The fraction of the initial rate that remains at the end.
    #[serde(default)]
    pub alpha: f64,
}

/// `initial · decay_rate^(step / decay_steps)`, the exponent rounded down with `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExponentialDecay {
    /// The rate at step 0.
    pub initial_learning_rate: f64,
    /// The number of steps in which the rate is multiplied by `decay_rate`.
    #[serde(deserialize_with = "read_steps")]
    pub decay_steps: u64,
    /// The factor.
    pub decay_rate: f64,
    /// Whether the rate decays in discrete steps.
    #[serde(default)]
    pub staircase: bool,
}

/// `initial / (1 + decay_rate · step / decay_steps)`, the quotient rounded down with `staircase`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InverseTimeDecay {
    /// The rate at step 0.
    pub initial_learning_rate: f64,
    /// Steps after which the denominator has grown by `decay_rate`.
    #[serde(deserialize_with = "read_steps")]
    pub decay_steps: u64,
    /// Growth of the denominator.
    pub decay_rate: f64,
    /// Whether the rate decays in discrete steps.
    #[serde(default)]
    pub staircase: bool,
}

/// `values[i]` up to and including step `boundaries[i]`, the last value beyond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PiecewiseConstantDecay {
    /// The last step of each value except the last, ascending.
    pub boundaries: Vec<u64>,
    /// The rates: one more than there are boundaries.
    pub values: Vec<f64>,
}

/// The formula of a schedule.
trait Decay {
    /// The rate at a step; the first step is 0.
    fn at(&self, step: u64) -> f64;

    /// Checks the options.
    fn validate(&self) -> Result<()>;

    /// The options that are learning rates.
    fn rates(&mut self) -> Vec<&mut f64>;
}

/// Declares [`Schedule`] with a variant for each schedule, which is a learning rate by itself too.
macro_rules! schedules {
    ($($class:ident),+ $(,)?) => {
        /// A learning rate as a function of the step.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "class_name", content = "config")]
        #[allow(missing_docs)]
        pub enum Schedule {
            $($class($class),)+
        }

        impl Schedule {
            /// Keras' names of the schedules.
            pub const NAMES: &[&'static str] = &[$(stringify!($class)),+];

            /// The rate at a step; the first step is 0.
            pub fn at(&self, step: u64) -> f64 {
                match self {
                    $(Schedule::$class(schedule) => schedule.at(step),)+
                }
            }

            /// Checks the options.
            pub fn validate(&self) -> Result<()> {
                match self {
                    $(Schedule::$class(schedule) => schedule.validate(),)+
                }
            }

            fn rates(&mut self) -> Vec<&mut f64> {
                match self {
                    $(Schedule::$class(schedule) => schedule.rates(),)+
                }
            }
        }

        $(impl From<$class> for LearningRate {
            fn from(schedule: $class) -> LearningRate {
                LearningRate::Schedule(Schedule::$class(schedule))
            }
        })+
    };
}

schedules! {
    PolynomialDecay,
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
}

impl PolynomialDecay {
    /// Linear decay from `initial_learning_rate` to 0.0001.
    pub fn new(initial_learning_rate: f64, decay_steps: u64) -> Self {
        let (end_learning_rate, power) = (default_end(), one());
        PolynomialDecay {
            initial_learning_rate,
            decay_steps,
            end_learning_rate,
            power,
            cycle: false,
        }
    }

    setters! {
        /// The rate at the end.
        end_learning_rate: f64,
        /// The exponent; 1 for a linear decay.
        power: f64,
        /// Whether to restart after `decay_steps`.
        cycle: bool,
    }
}

impl Decay for PolynomialDecay {
    fn rates(&mut self) -> Vec<&mut f64> {
        vec![&mut self.initial_learning_rate, &mut self.end_learning_rate]
    }

    fn at(&self, step: u64) -> f64 {
        let step = step as f64;
        let steps = self.decay_steps as f64;
        let p = match self.cycle {
            true => step / (steps * (step / steps).ceil().max(1.0)),
            false => step.min(steps) / steps,
        };
        let range = self.initial_learning_rate - self.end_learning_rate;
        range * (1.0 - p).powf(self.power) + self.end_learning_rate
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "PolynomialDecay";
        check_non_negative(CLASS, "initial_learning_rate", self.initial_learning_rate)?;
        check_non_negative(CLASS, "end_learning_rate", self.end_learning_rate)?;
        check_steps(CLASS, "decay_steps", self.decay_steps)
    }
}

impl CosineDecay {
    /// Down to zero over `decay_steps`.
    pub fn new(initial_learning_rate: f64, decay_steps: u64) -> Self {
        CosineDecay {
            initial_learning_rate,
            decay_steps,
            alpha: 0.0,
            warmup_target: None,
            warmup_steps: 0,
        }
    }

    setters! {
        /// The fraction of the initial rate that remains at the end.
        alpha: f64,
    }

    /// A linear warm-up to `target` over `steps` before the decay.
    pub fn warmup(mut self, target: f64, steps: u64) -> Self {
        (self.warmup_target, self.warmup_steps) = (Some(target), steps);
        self
    }
}

impl Decay for CosineDecay {
    fn rates(&mut self) -> Vec<&mut f64> {
        std::iter::once(&mut self.initial_learning_rate).chain(&mut self.warmup_target).collect()
    }

    fn at(&self, step: u64) -> f64 {
        let step = step as f64;
        let (top, warmup) = match self.warmup_target {
            Some(target) => (target, self.warmup_steps as f64),
            None => (self.initial_learning_rate, 0.0),
        };
        if step < warmup {
            return (top - self.initial_learning_rate) * step / warmup + self.initial_learning_rate;
        }
        let steps = self.decay_steps as f64;
        let done = (step - warmup).min(steps) / steps;
        top * ((1.0 - self.alpha) * half_cosine(done) + self.alpha)
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "CosineDecay";
        check_non_negative(CLASS, "initial_learning_rate", self.initial_learning_rate)?;
        check_non_negative(CLASS, "warmup_target", self.warmup_target.unwrap_or(0.0))?;
        check_steps(CLASS, "decay_steps", self.decay_steps)
    }
}

impl CosineDecayRestarts {
    /// Periods of doubling length and equal height.
    pub fn new(initial_learning_rate: f64, first_decay_steps: u64) -> Self {
        let (t_mul, m_mul) = (two(), one());
        CosineDecayRestarts { initial_learning_rate, first_decay_steps, t_mul, m_mul, alpha: 0.0 }
    }

    setters! {
        /// The ratio of the lengths of successive periods.
        t_mul: f64,
        /// The ratio of the initial rates of successive periods.
        m_mul: f64,
        /// The fraction of the initial rate that remains at the end.
        alpha: f64,
    }
}

impl Decay for CosineDecayRestarts {
    fn rates(&mut self) -> Vec<&mut f64> {
        vec![&mut self.initial_learning_rate]
    }

    fn at(&self, step: u64) -> f64 {
        let step = step as f64;
        let periods = step / self.first_decay_steps as f64;
        let (restart, done) = if self.t_mul == 1.0 {
            (periods.floor(), periods - periods.floor())
        } else {
            // Steps before restart i are the geometric sum (1 - tⁱ) / (1 - t) of first periods.
            let i = ((1.0 - periods * (1.0 - self.t_mul)).ln() / self.t_mul.ln() + 1e-9).floor();
            let length = self.t_mul.powf(i);
            let before = (1.0 - length) / (1.0 - self.t_mul);
            (i, (periods - before) / length)
        };
        let height = self.m_mul.powf(restart) * half_cosine(done);
        self.initial_learning_rate * ((1.0 - self.alpha) * height + self.alpha)
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "CosineDecayRestarts";
        check_non_negative(CLASS, "initial_learning_rate", self.initial_learning_rate)?;
        if self.t_mul.is_nan() || self.t_mul < 1.0 {
            return Err(Error::argument(CLASS, "t_mul", "a number from 1", self.t_mul));
        }
        check_steps(CLASS, "first_decay_steps", self.first_decay_steps)
    }
}

impl ExponentialDecay {
    /// Multiplied by `decay_rate` every `decay_steps`.
    pub fn new(initial_learning_rate: f64, decay_steps: u64, decay_rate: f64) -> Self {
        ExponentialDecay { initial_learning_rate, decay_steps, decay_rate, staircase: false }
    }

    setters! {
        /// Whether the rate decays in discrete steps.
        staircase: bool,
    }
}

impl Decay for ExponentialDecay {
    fn rates(&mut self) -> Vec<&mut f64> {
        vec![&mut self.initial_learning_rate]
    }

    fn at(&self, step: u64) -> f64 {
        let step = step as f64;
        let p = quotient(step, self.decay_steps, self.staircase);
        self.initial_learning_rate * self.decay_rate.powf(p)
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "ExponentialDecay";
        check_non_negative(CLASS, "initial_learning_rate", self.initial_learning_rate)?;
        check_steps(CLASS, "decay_steps", self.decay_steps)
    }
}

impl InverseTimeDecay {
    /// Halves once `decay_rate · step / decay_steps` is 1.
    pub fn new(initial_learning_rate: f64, decay_steps: u64, decay_rate: f64) -> Self {
        InverseTimeDecay { initial_learning_rate, decay_steps, decay_rate, staircase: false }
    }

    setters! {
        /// Whether the rate decays in discrete steps.
        staircase: bool,
    }
}

impl Decay for InverseTimeDecay {
    fn rates(&mut self) -> Vec<&mut f64> {
        vec![&mut self.initial_learning_rate]
    }

    fn at(&self, step: u64) -> f64 {
        let step = step as f64;
        let p = quotient(step, self.decay_steps, self.staircase);
        self.initial_learning_rate / (1.0 + self.decay_rate * p)
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "InverseTimeDecay";
        check_non_negative(CLASS, "initial_learning_rate", self.initial_learning_rate)?;
        check_steps(CLASS, "decay_steps", self.decay_steps)
    }
}

impl PiecewiseConstantDecay {
    /// `values[i]` up to and including step `boundaries[i]`, the last value beyond.
    pub fn new(boundaries: impl Into<Vec<u64>>, values: impl Into<Vec<f64>>) -> Self {
        PiecewiseConstantDecay { boundaries: boundaries.into(), values: values.into() }
    }
}

impl Decay for PiecewiseConstantDecay {
    fn rates(&mut self) -> Vec<&mut f64> {
        self.values.iter_mut().collect()
    }

    fn at(&self, step: u64) -> f64 {
        let passed = self.boundaries.iter().take_while(|b| step > **b).count();
        // `validate` has checked that there is one value more than there are boundaries.
        self.values.get(passed).copied().unwrap_or(f64::NAN)
    }

    fn validate(&self) -> Result<()> {
        const CLASS: &str = "PiecewiseConstantDecay";
        if self.values.len() != self.boundaries.len() + 1 {
            let expected = format!("{} values", self.boundaries.len() + 1);
            return Err(Error::argument(CLASS, "values", expected, self.values.len()));
        }
        if self.boundaries.windows(2).any(|w| w[0] >= w[1]) {
            let received = format!("{:?}", self.boundaries);
            return Err(Error::argument(CLASS, "boundaries", "ascending steps", received));
        }
        self.values.iter().try_for_each(|v| check_non_negative(CLASS, "values", *v))
    }
}

/// `(1 + cos πx) / 2`: from 1 down to 0.
fn half_cosine(x: f64) -> f64 {
    0.5 * (1.0 + (PI * x).cos())
}

fn quotient(step: f64, decay_steps: u64, staircase: bool) -> f64 {
    let p = step / decay_steps as f64;
    if staircase { p.floor() } else { p }
}

/// Fails unless a number is finite and not negative.
pub(crate) fn check_non_negative(owner: &str, argument: &str, rate: f64) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(owner, argument, "a number from 0", rate))
}

fn check_steps(owner: &str, argument: &str, steps: u64) -> Result<()> {
    if steps > 0 { Ok(()) } else { Err(Error::argument(owner, argument, "1 step or more", steps)) }
}

fn one() -> f64 {
    1.0
}

fn two() -> f64 {
    2.0
}

fn default_end() -> f64 {
    1e-4
}

/// Reads a number of steps, which Python may have written as `1000.0`.
fn read_steps<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<u64, D::Error> {
    let number = f64::deserialize(d)?;
    if number >= 0.0 && number.fract() == 0.0 && number < u64::MAX as f64 {
        return Ok(number as u64);
    }
    Err(D::Error::custom(format!("expected a whole number of steps, received {number}")))
}
