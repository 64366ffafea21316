//! Regularizers of weights and of a layer's outputs, which add a penalty to the loss; and custom ones of weights.

use crate::by_name::{keras_object, named};
use crate::custom::{CustomRegularizer, CustomValue};
use crate::error::{Error, Result};
use phalanx_graph::functions::{layout, math};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

const DEFAULT: f64 = 0.01;

/// The smallest norm that a vector is divided by.
const EPSILON: f64 = 1e-7;

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
    /// `factor` times the mean absolute cosine of the angles between the rows, or columns, of a matrix.
    OrthogonalRegularizer {
        /// Factor.
        #[serde(default = "default_factor")]
        factor: f64,
        /// What should be orthogonal.
        #[serde(default)]
        mode: OrthogonalMode,
    },
    /// A custom class, for weights only.
    #[serde(skip)]
    Custom(CustomValue<dyn CustomRegularizer>),
}

/// What an orthogonal regularizer compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrthogonalMode {
    /// The rows of the matrix.
    #[default]
    Rows,
    /// Its columns.
    Columns,
}

impl OrthogonalMode {
    /// The number of vectors that are compared; 0 if the weight is not a matrix.
    fn vectors(self, dims: &[usize]) -> usize {
        match (dims, self) {
            ([rows, _], OrthogonalMode::Rows) => *rows,
            ([_, columns], OrthogonalMode::Columns) => *columns,
            _ => 0,
        }
    }
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

    /// `factor` times the mean absolute cosine of the angles between the rows, or columns, of a matrix.
    pub fn orthogonal(factor: f64, mode: OrthogonalMode) -> Regularizer {
        Regularizer::OrthogonalRegularizer { factor, mode }
    }

    /// The factors of `Σ|w|` and of `Σw²`; both are 0 for other penalties.
    pub fn coefficients(&self) -> (f64, f64) {
        match *self {
            Regularizer::L1 { l1 } => (l1, 0.0),
            Regularizer::L2 { l2 } => (0.0, l2),
            Regularizer::L1L2 { l1, l2 } => (l1, l2),
            Regularizer::OrthogonalRegularizer { .. } | Regularizer::Custom(_) => (0.0, 0.0),
        }
    }

    /// Checks the dimensions of a weight.
    ///
    /// # Errors
    /// What was expected and what was received.
    pub(crate) fn check_weight(&self, dims: &[usize]) -> Result<(), (String, String)> {
        let Regularizer::OrthogonalRegularizer { mode, .. } = self else { return Ok(()) };
        if mode.vectors(dims) > 1 {
            return Ok(());
        }
        let expected = "a matrix with several vectors, for an orthogonal regularizer";
        Err((expected.into(), format!("{dims:?}")))
    }

    /// Appends the part of a weight's penalty that [`coefficients`](Self::coefficients) do not describe, if any.
    pub(crate) fn other_penalty(&self, g: &mut Graph, weight: NodeId) -> Result<Option<NodeId>> {
        match self {
            Regularizer::Custom(custom) => custom.checked_penalty(g, weight).map(Some),
            Regularizer::OrthogonalRegularizer { factor, mode } => {
                let size = mode.vectors(&g.ty(weight).dims);
                let sum = cosines(g, weight, *mode, size)?;
                let pairs = size as f64 * (size as f64 - 1.0);
                Ok(Some(g.scale(sum, factor / pairs)?))
            }
            _ => Ok(None),
        }
    }

    /// Appends the penalty of a value over these axes, which disappear; `None` if it is zero.
    pub(crate) fn penalty(
        &self,
        g: &mut Graph,
        value: NodeId,
        axes: &[usize],
    ) -> Result<Option<NodeId>> {
        if let Regularizer::OrthogonalRegularizer { .. } = self {
            // Keras would compare the samples of a batch with each other.
            let (expected, received) = ("l1 or l2", "an orthogonal regularizer");
            return Err(Error::argument("activity_regularizer", "class", expected, received));
        }
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

/// The sum of the absolute cosines of all pairs of different vectors, in both orders.
fn cosines(g: &mut Graph, matrix: NodeId, mode: OrthogonalMode, size: usize) -> Result<NodeId> {
    let (axis, product) = match mode {
        OrthogonalMode::Rows => (1, "ik,jk->ij"),
        OrthogonalMode::Columns => (0, "ki,kj->ij"),
    };
    let squares = g.unary(Unary::Square, matrix)?;
    let sum = g.sum_axes(squares, &[axis])?;
    let min_sum = g.scalar(EPSILON * EPSILON);
    let sum = g.binary(Binary::Max, sum, min_sum)?;
    let inverse = g.unary(Unary::Rsqrt, sum)?;
    let vectors = g.mul(matrix, inverse)?;
    let products = g.einsum(product, &[vectors, vectors])?;
    let apart = layout::offsets(g, size, size)?;
    let zero = g.scalar(0.0);
    let different = math::not_equal(g, apart, zero)?;
    let products = g.mul(products, different)?;
    let cosines = g.unary(Unary::Abs, products)?;
    let sum = g.sum_axes(cosines, &[0, 1])?;
    Ok(g.reshape(sum, &[])?)
}

named! {
    Regularizer, "regularizer", str::to_lowercase, or Regularizer::custom_by_name;
    "l1" => Regularizer::l1(DEFAULT),
    "l2" => Regularizer::l2(DEFAULT),
    "l1_l2" | "l1l2" => Regularizer::l1_l2(0.0, 0.0),
    "orthogonal_regularizer" | "OrthogonalRegularizer" => Regularizer::orthogonal(DEFAULT, OrthogonalMode::Rows),
}

keras_object!(Regularizer, "keras.regularizers");
