//! Projections of attention: a dense product over the last axes, whose kernel keeps the heads apart.

use crate::by_name::{ByName, OptionalByName};
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{LayerContext, WeightSpec};
use crate::layers::support::WeightOptions;
use crate::regularizers::Regularizer;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{NodeId, Op};

/// The options of kernels and biases that all projections of a layer share.
pub(super) struct ProjectionOptions<'a> {
    pub use_bias: bool,
    pub kernel_initializer: &'a ByName<Initializer>,
    pub bias_initializer: &'a ByName<Initializer>,
    pub kernel_regularizer: &'a OptionalByName<Regularizer>,
    pub bias_regularizer: &'a OptionalByName<Regularizer>,
    pub kernel_constraint: &'a OptionalByName<Constraint>,
    pub bias_constraint: &'a OptionalByName<Constraint>,
    pub activity_regularizer: &'a OptionalByName<Regularizer>,
}

impl ProjectionOptions<'_> {
    /// Contracts the last `bound` axes of `x` with a kernel and gives it the axes `output` instead. The weights belong to
    /// the sublayer `attribute`.
    pub fn apply(
        &self,
        cx: &mut LayerContext<'_>,
        attribute: &str,
        x: NodeId,
        bound: usize,
        output: &[usize],
    ) -> Result<NodeId> {
        let dims = cx.dims(x);
        let (lead, inner) = dims.split_at(dims.len() - bound);
        let count = |dims: &[usize]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let (Some(rows), Some(columns)) = (count(inner), count(output)) else {
            return Err(cx.argument(attribute, "a kernel that fits in memory", "more"));
        };
        let shape = [inner, output].concat();
        let (kernel, bias) = cx.in_sublayer(attribute, true, |cx| {
            let kernel = WeightOptions {
                initializer: self.kernel_initializer,
                regularizer: self.kernel_regularizer,
                constraint: self.kernel_constraint,
            };
            let spec = kernel.spec(cx, "kernel", &shape)?;
            // The initializer sees a matrix.
            let initial_dims = Some(vec![rows, columns]);
            let kernel = cx.weight(WeightSpec { initial_dims, ..spec })?;
            let bias = WeightOptions {
                initializer: self.bias_initializer,
                regularizer: self.bias_regularizer,
                constraint: self.bias_constraint,
            };
            let bias = self.use_bias.then(|| bias.weight(cx, "bias", output)).transpose()?;
            Ok((kernel, bias))
        })?;
        let g = cx.graph();
        let mut operands = vec![g.reshape(x, &[lead, &[rows]].concat())?];
        operands.push(g.reshape(kernel, &[rows, columns])?);
        if let Some(bias) = bias {
            operands.push(g.reshape(bias, &[columns])?);
        }
        let epilogue = Epilogue { bias: bias.is_some(), relu: false };
        let y = g.push(Op::Dot(epilogue), &operands)?;
        let y = g.reshape(y, &[lead, output].concat())?;
        if let Some(regularizer) = self.activity_regularizer.get()? {
            cx.regularize_activity(&regularizer, y)?;
        }
        Ok(y)
    }
}
