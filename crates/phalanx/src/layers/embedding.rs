//! A table of vectors, looked up by index: `y[..] = embeddings[x[..]]`.
//!
//! Input `(batch, ..)` of integers below `input_dim`, output `(batch, .., output_dim)`. Weight: `embeddings`
//! `[input_dim, output_dim]`.

use super::support::{WeightOptions, activity_penalty, check_at_least_one, single};
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::functions::math::not_equal;
use phalanx_graph::{DType, NodeId, Op};
use serde::{Deserialize, Serialize};

/// A table of vectors.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Embedding;
///
/// let table = Embedding::new(1000, 64).embeddings_regularizer("l2");
/// assert_eq!(table.config()["output_dim"], 64);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct Embedding {
    input_dim: usize,
    output_dim: usize,
    embeddings_initializer: ByName<Initializer>,
    embeddings_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    embeddings_constraint: OptionalByName<Constraint>,
    mask_zero: bool,
}

fn defaults() -> Embedding {
    Embedding::new(0, 0)
}

impl Embedding {
    /// `input_dim` vectors of `output_dim` numbers.
    pub fn new(input_dim: usize, output_dim: usize) -> Embedding {
        Embedding {
            input_dim,
            output_dim,
            embeddings_initializer: Initializer::random_uniform(-0.05, 0.05).into(),
            embeddings_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            embeddings_constraint: OptionalByName::default(),
            mask_zero: false,
        }
    }

    setters! {
        /// Initializer of the table; defaults to uniform within ±0.05.
        embeddings_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the table.
        embeddings_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on the table.
        embeddings_constraint: impl Into<OptionalByName<Constraint>>,
        /// Whether the index 0 is padding, which later layers mask.
        mask_zero: bool,
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl Embedding {
    /// The numbers of rows and columns of the table.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.input_dim, self.output_dim]
    }

    /// The initializer of the table.
    pub(super) fn initializer(&self) -> &ByName<Initializer> {
        &self.embeddings_initializer
    }

    /// Checks the sizes and declares the table.
    pub(super) fn declare(&self, cx: &mut LayerContext<'_>) -> Result<NodeId> {
        check_at_least_one(cx, "input_dim", self.input_dim)?;
        check_at_least_one(cx, "output_dim", self.output_dim)?;
        let table = WeightOptions {
            initializer: &self.embeddings_initializer,
            regularizer: &self.embeddings_regularizer,
            constraint: &self.embeddings_constraint,
        };
        table.weight(cx, "embeddings", &[self.input_dim, self.output_dim])
    }

    /// The rows of a table at the indices `x`, and their mask if zero is padding.
    pub(super) fn look_up(
        &self,
        cx: &mut LayerContext<'_>,
        table: NodeId,
        x: NodeId,
    ) -> Result<Outputs> {
        let index = cx.graph().cast(x, DType::I32)?;
        let y = Outputs::from(cx.graph().push(Op::Gather, &[table, index])?);
        if !self.mask_zero {
            return Ok(y);
        }
        let zero = cx.graph().scalar(0.0);
        let index = cx.graph().cast(x, DType::F32)?;
        Ok(y.masked(Some(not_equal(cx.graph(), index, zero)?)))
    }
}

impl Layer for Embedding {
    keras_class!("Embedding");
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let table = self.declare(cx)?;
        self.look_up(cx, table, x)
    }
}
