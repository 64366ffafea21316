//! Circle loss of embeddings: every sample is compared with all others of the global batch. For a sample with the cosine
//! distances `d` to the others,
//!
//! ```text
//! p = logsumexp(gamma · max(margin + d, 0) · (d - margin))            over samples of its class
//! n = logsumexp(gamma · max(1 + margin - d, 0) · (1 - margin - d))    over samples of other classes
//! loss = softplus(p + n)
//! ```
//!
//! A sample without others of its class, or of other classes, has no loss. As in Keras, values of zero do not count in
//! the mean of a batch.

use super::{Common, Loss, mismatch, sum_last};
use crate::activations::ActivationFn;
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::functions::batch::all_rows;
use phalanx_graph::functions::index::max_axes;
use phalanx_graph::functions::layout::{concat, iota};
use phalanx_graph::functions::math::{less, logical_and, logical_not, trunc};
use phalanx_graph::ops::{Binary, Epilogue, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Space, Type};

options! {
    /// Circle loss between integer labels and embeddings of length one. It compares all pairs of the global batch.
    pub struct Circle {
        common: Common::named("circle");
        /// The scale of the similarities.
        gamma: f64 = 80.0,
        /// The distance above which samples of a class attract each other more, and others repel each other less.
        margin: f64 = 0.4,
        /// Whether a sample is not compared with itself.
        remove_diagonal: bool = true,
    }
}

/// The logarithm of the sum of exponentials of the elements that a mask selects, and whether there are any.
fn masked_log_sum_exp(g: &mut Graph, x: NodeId, mask: NodeId) -> Result<[NodeId; 2]> {
    let (zero, one, low) = (g.scalar(0.0), g.scalar(1.0), g.scalar(-1e30));
    let count = g.sum_axes(mask, &[0])?;
    let any = less(g, zero, count)?;
    let selected = g.select(mask, x, low)?;
    let largest = max_axes(g, selected, &[0])?;
    let largest = g.select(any, largest, zero)?;
    let largest = g.stop_gradient(largest)?;
    let below = g.sub(x, largest)?;
    let below = g.select(mask, below, low)?;
    let terms = g.unary(Unary::Exp, below)?;
    let sum = g.sum_axes(terms, &[0])?;
    let sum = g.select(any, sum, one)?;
    let log = g.unary(Unary::Log, sum)?;
    Ok([g.add(log, largest)?, any])
}

/// The other samples of the batch, for each sample: their distances, and which are of its class and of other classes.
struct Pairs {
    distances: NodeId,
    positive: NodeId,
    negative: NodeId,
}

impl Circle {
    fn pairs(&self, g: &mut Graph, labels: NodeId, x: NodeId) -> Result<Pairs> {
        let width = g.ty(x).len();
        let labels = trunc(g, labels)?;
        let label = g.reshape(labels, &[1])?;
        let present = g.fill(1.0, &[1]);
        let joined = concat(g, &[x, label, present], 0)?;
        let table = all_rows(g, joined)?;
        let rows = g.ty(table).dims[0];
        let mut part =
            |start: usize, len: usize| g.push(Op::Slice { axis: 1, start, len }, &[table]);
        let (others, classes, present) = (part(0, width)?, part(width, 1)?, part(width + 1, 1)?);
        let classes = g.reshape(classes, &[rows])?;
        let present = g.reshape(present, &[rows])?;
        let columns = g.push(Op::Transpose { perm: vec![1, 0] }, &[others])?;
        let products = g.push(Op::Dot(Epilogue::default()), &[x, columns])?;
        let distances = g.neg(products)?;
        let distances = g.offset(distances, 1.0)?;
        let distances = g.relu(distances)?;
        let same = g.binary(Binary::Eq, label, classes)?;
        let other = logical_not(g, same)?;
        let negative = logical_and(g, other, present)?;
        let mut positive = logical_and(g, same, present)?;
        if self.remove_diagonal {
            let index = g.push(Op::RowIndex, &[])?;
            let index = g.cast(index, DType::F32)?;
            let index = g.reshape(index, &[1])?;
            let places = iota(g, rows)?;
            let itself = g.binary(Binary::Eq, index, places)?;
            let another = logical_not(g, itself)?;
            positive = logical_and(g, positive, another)?;
        }
        Ok(Pairs { distances, positive, negative })
    }
}

impl Loss for Circle {
    keras_class!("Circle", common);

    fn validate(&self) -> Result<()> {
        for (name, value) in [("gamma", self.gamma), ("margin", self.margin)] {
            if !value.is_finite() {
                return Err(Error::argument(self.owner(), name, "a finite number", value));
            }
        }
        Ok(())
    }

    /// One label per sample. Labels are any integers, fed as floats: they are not numbers of outputs.
    fn target(&self, prediction: &Type) -> Result<Type> {
        let floats = prediction.is_rows() && prediction.dtype == DType::F32;
        match prediction.dims[..] {
            [width] if width > 0 && floats => Ok(Type::new(DType::F32, Space::Rows, [])),
            _ => Err(mismatch(self.name(), "y_pred", "a float vector per sample", prediction)),
        }
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let Pairs { distances, positive, negative } = self.pairs(g, y_true, y_pred)?;
        let to_class = g.offset(distances, self.margin)?;
        let to_class = g.relu(to_class)?;
        let beyond = g.offset(distances, -self.margin)?;
        let to_class = g.mul(to_class, beyond)?;
        let to_class = g.scale(to_class, self.gamma)?;
        let closeness = g.neg(distances)?;
        let to_others = g.offset(closeness, 1.0 + self.margin)?;
        let to_others = g.relu(to_others)?;
        let within = g.offset(closeness, 1.0 - self.margin)?;
        let to_others = g.mul(to_others, within)?;
        let to_others = g.scale(to_others, self.gamma)?;
        let [p, some] = masked_log_sum_exp(g, to_class, positive)?;
        let [n, others] = masked_log_sum_exp(g, to_others, negative)?;
        let sum = g.add(p, n)?;
        let values = ActivationFn::Softplus.apply(g, sum)?;
        let both = logical_and(g, some, others)?;
        let zero = g.scalar(0.0);
        let values = g.select(both, values, zero)?;
        sum_last(g, values)
    }

    fn value_mask(&self, g: &mut Graph, _y_true: NodeId, values: NodeId) -> Result<Option<NodeId>> {
        let zero = g.scalar(0.0);
        Ok(Some(less(g, zero, values)?))
    }
}
