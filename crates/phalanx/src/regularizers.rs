//! Regularizers of weights and of a layer's outputs, which add `l1 Σ|w| + l2 Σw²` to the loss; and custom ones of weights.

use crate::by_name::{keras_object, named};
use crate::custom::{CustomRegularizer, CustomValue};
use crate::error::Result;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

const DEFAULT: f64 = 0.01;

fn default_factor() -> f64 {
    DEFAULT
}

/// A regularizer. Serialised as in Keras.
///
/// ```
/// use phalanx::layers::Dense;
/// use phalanx::regularizers::Regularizer;
///
/// let by_value = Dense::new(10).kernel_regularizer(Regularizer::l2(1e-4));
/// let by_name = Dense::new(10).kernel_regularizer("l2"); // factor 0.01
/// assert_eq!(Regularizer::l2(1e-4).coefficients(), (0.0, 1e-4));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Regularizer {
    /// `l1 Σ|w|`
    L1 {
        /// Factor.
        #[serde(default = "default_factor")]
        l1: f64,
    },
    /// `l2 Σw²`
    L2 {
        /// Factor.
        #[serde(default = "default_factor")]
        l2: f64,
    },
    /// `l1 Σ|w| + l2 Σw²`
    L1L2 {
        /// Factor of the absolute values.
        #[serde(default)]
        l1: f64,
        /// Factor of the squares.
        #[serde(default)]
        l2: f64,
    },
    /// A custom class, for weights only
    #[serde(skip)]
    Custom(CustomValue<dyn CustomRegularizer>),
}

impl Regularizer {
    /// `l1 Σ|w|`
    pub fn l1(l1: f64) -> Regularizer {
        Regularizer::L1 { l1 }
    }

    /// `l2 Σw²`
    pub fn l2(l2: f64) -> Regularizer {
        Regularizer::L2 { l2 }
    }

    /// `l1 Σ|w| + l2 Σw²`
    pub fn l1_l2(l1: f64, l2: f64) -> Regularizer {
        Regularizer::L1L2 { l1, l2 }
    }

    /// The factors of `Σ|w|` and of `Σw²`; both are 0 for a custom class.
    pub fn coefficients(&self) -> (f64, f64) {
        match *self {
            Regularizer::L1 { l1 } => (l1, 0.0),
            Regularizer::L2 { l2 } => (0.0, l2),
            Regularizer::L1L2 { l1, l2 } => (l1, l2),
            Regularizer::Custom(_) => (0.0, 0.0),
        }
    }

    /// Appends the penalty of a value over these axes, which disappear; `None` if it is zero.
    pub(crate) fn penalty(
        &self,
        g: &mut Graph,
        value: NodeId,
        axes: &[usize],
    ) -> Result<Option<NodeId>> {
        let (l1, l2) = self.coefficients();
        let mut total = None;
        for (coefficient, size) in [(l1, Unary::Abs), (l2, Unary::Square)] {
            if coefficient == 0.0 {
                continue;
            }
            let sizes = g.unary(size, value)?;
            let sum = g.sum_axes(sizes, axes)?;
            let sum = g.reshape(sum, &[])?;
            let sum = g.scale(sum, coefficient)?;
            total = Some(match total {
                None => sum,
                Some(other) => g.add(other, sum)?,
            });
        }
        Ok(total)
    }
}

named! {
    Regularizer, "regularizer", str::to_lowercase, or Regularizer::custom_by_name;
    "l1" => Regularizer::l1(DEFAULT),
    "l2" => Regularizer::l2(DEFAULT),
    "l1_l2" | "l1l2" => Regularizer::l1_l2(0.0, 0.0),
}

keras_object!(Regularizer, "keras.regularizers");
