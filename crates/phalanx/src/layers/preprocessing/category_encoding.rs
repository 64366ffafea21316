//! Integers to one-hot or multi-hot rows, or to counts. Integers outside of the categories are left out.
//!
//! Input `(batch, n)`, output `(batch, num_tokens)`; one-hot `(batch, .., num_tokens)`.

use super::encode::OutputMode;
use super::integers;
use crate::config::setters;
use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{
    Argument, Elements, HostLayer, Layer, LayerContext, Outputs, RowType, one_input,
};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, ReduceKind};
use phalanx_graph::{DType, NodeId, Op};
use serde::{Deserialize, Serialize};

const SIGNATURE: &[&str] = &["inputs", "count_weights"];

/// Encodes integers.
///
/// ```
/// use phalanx::prelude::*;
///
/// let layer = CategoryEncoding::new(4);
/// let rows = layer.preprocess(Tensor::new([2, 2], vec![0, 1, 3, 3])?)?;
/// assert_eq!(rows.to_tensor().f32().unwrap(), [1., 1., 0., 0., 0., 0., 0., 1.]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct CategoryEncoding {
    num_tokens: usize,
    output_mode: OutputMode,
}

fn defaults() -> CategoryEncoding {
    CategoryEncoding::new(0)
}

impl CategoryEncoding {
    /// Encodes integers below `num_tokens` as multi-hot rows.
    pub fn new(num_tokens: usize) -> CategoryEncoding {
        CategoryEncoding { num_tokens, output_mode: OutputMode::MultiHot }
    }

    setters! {
        /// The form of the output: one-hot, multi-hot or counts; defaults to multi-hot.
        output_mode: OutputMode,
    }
}

/// Encodes indices in a graph. `ty` is the type of the result; `x` are integers, or floats of which only whole ones count.
pub(super) fn encode(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    mode: OutputMode,
    ty: &RowType,
    weights: Option<NodeId>,
) -> Result<NodeId> {
    let out = ty.dims();
    let depth = out.last().copied().unwrap_or(1);
    let dims = cx.dims(x);
    let mut hot = match cx.ty(x).dtype {
        DType::I32 => cx.graph().push(Op::OneHot { depth }, &[x])?,
        _ => {
            let categories = (0..depth).map(|i| i as f32).collect();
            let categories = cx.constant("categories", &[depth], categories);
            let g = cx.graph();
            let x = g.reshape(x, &[&dims[..], &[1]].concat())?;
            g.binary(Binary::Eq, x, categories)?
        }
    };
    let g = cx.graph();
    if let Some(weights) = weights {
        let weights = g.cast(weights, DType::F32)?;
        let weights = g.reshape(weights, &[&dims[..], &[1]].concat())?;
        hot = g.mul(hot, weights)?;
    }
    let reduced = match mode {
        OutputMode::MultiHot => {
            g.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![0] }, &[hot])?
        }
        OutputMode::Count => g.sum_axes(hot, &[0])?,
        _ => hot,
    };
    Ok(g.reshape(reduced, &out)?)
}

/// The type of a value in a graph.
pub(super) fn row_type(cx: &LayerContext<'_>, x: NodeId) -> RowType {
    let ty = cx.ty(x);
    let elements = if ty.dtype == DType::I32 { Elements::Integers } else { Elements::Floats };
    RowType::new(elements, ty.dims.clone())
}

impl Layer for CategoryEncoding {
    keras_class!("CategoryEncoding");

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let weights = match cx.passed(SIGNATURE, "count_weights") {
            Some(Argument::Tensor(weights)) => Some(weights.node),
            Some(_) => return Err(cx.argument("count_weights", "a tensor", "another value")),
            None => None,
        };
        if weights.is_some() && self.output_mode != OutputMode::Count {
            let expected = "none for this output_mode";
            return Err(cx.argument("count_weights", expected, self.output_mode.name()));
        }
        let [x, ..] = inputs else { return Err(cx.argument("inputs", "1", inputs.len())) };
        if let Some(weights) = weights.filter(|w| cx.dims(*w) != cx.dims(*x)) {
            let (expected, received) = (format!("{:?}", cx.dims(*x)), cx.dims(weights));
            return Err(cx.argument("count_weights", &expected, format!("{received:?}")));
        }
        let owner = format!("layer '{}'", cx.name());
        let ty = self.output_type(&owner, &[row_type(cx, *x)])?;
        Ok(encode(cx, *x, self.output_mode, &ty, weights)?.into())
    }

    fn host(&self) -> Option<&dyn HostLayer> {
        Some(self)
    }
}

impl HostLayer for CategoryEncoding {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let input = one_input(owner, inputs)?;
        let known = [OutputMode::OneHot, OutputMode::MultiHot, OutputMode::Count];
        self.output_mode.check(owner, &known)?;
        if self.num_tokens == 0 {
            return Err(Error::argument(owner, "num_tokens", "1 or more", 0));
        }
        if input.elements == Elements::Strings {
            return Err(Error::argument(owner, "input", "integers", input));
        }
        self.output_mode.output_type(owner, input.sizes(), || Ok(self.num_tokens))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let ty = self.output_type(owner, &[RowType::of(samples)])?;
        let each = integers(owner, samples)?;
        let rows = each.chunks_exact(samples.row_len().max(1)).map(|row| Ok(row.iter().copied()));
        Ok(self.output_mode.encode(owner, &ty, rows)?.into())
    }

    fn runs_on_devices(&self) -> bool {
        true
    }
}
