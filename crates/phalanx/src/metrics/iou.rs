//! Intersection over union, `tp / (tp + fp + fn)`, averaged over classes.
//!
//! The state holds for each class the total weights of true positives, of targets and of predictions. Pairs of which
//! one is not a class, or whose target is the ignored class, do not count. As in Keras, weights are truncated to
//! integers unless `dtype` is a float type.

use super::{Metric, mismatch, owner};
use crate::config::options;
use crate::error::{Error, Result};
use crate::losses::describe;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};

/// Keras' epsilon, which prevents a division by zero.
const EPSILON: f64 = 1e-7;
/// The largest number of classes; a larger one is a typo.
const MAX_CLASSES: usize = 1 << 20;

/// What the metrics of this family have in common.
struct Counting<'a> {
    classes: usize,
    /// The classes of the mean; `None` for all.
    target_class_ids: Option<&'a [usize]>,
    ignore_class: Option<i64>,
    sparse_y_true: bool,
    sparse_y_pred: bool,
    /// Predictions from it up are class 1, others class 0.
    threshold: Option<f64>,
    axis: i64,
    dtype: &'a str,
}

/// Class numbers: given, or the highest-scoring classes on the last axis.
fn class_ids(
    metric: &dyn Metric,
    g: &mut Graph,
    argument: &str,
    x: NodeId,
    sparse: bool,
) -> Result<NodeId> {
    if sparse {
        return Ok(g.cast(x, DType::I32)?);
    }
    if g.ty(x).dims.is_empty() || g.ty(x).dtype != DType::F32 {
        return Err(mismatch(metric, argument, "a last axis of classes".into(), g.ty(x)));
    }
    Ok(g.push(Op::ArgMax, &[x])?)
}

/// 1 where `0 <= id < classes`.
fn in_range(g: &mut Graph, id: NodeId, classes: usize) -> Result<NodeId> {
    let (zero, classes) = (g.scalar(0.0), g.scalar(classes as f64));
    let (low, high) = (g.binary(Binary::Ge, id, zero)?, g.binary(Binary::Gt, classes, id)?);
    Ok(g.mul(low, high)?)
}

impl<'a> Counting<'a> {
    fn new(classes: usize, dtype: &'a str) -> Counting<'a> {
        Counting {
            classes,
            target_class_ids: None,
            ignore_class: None,
            sparse_y_true: true,
            sparse_y_pred: true,
            threshold: None,
            axis: -1,
            dtype,
        }
    }

    fn validate(&self, metric: &dyn Metric) -> Result<()> {
        if !(1..=MAX_CLASSES).contains(&self.classes) {
            let expected = format!("1 to {MAX_CLASSES}");
            return Err(Error::argument(owner(metric), "num_classes", expected, self.classes));
        }
        if self.axis != -1 {
            return Err(Error::argument(owner(metric), "axis", "-1", self.axis));
        }
        let Some(ids) = self.target_class_ids else { return Ok(()) };
        if ids.is_empty() || ids.iter().any(|id| *id >= self.classes) {
            let (expected, received) =
                (format!("classes below {}", self.classes), format!("{ids:?}"));
            return Err(Error::argument(owner(metric), "target_class_ids", expected, received));
        }
        Ok(())
    }

    /// The sums of a batch, from class numbers.
    fn counts(
        &self,
        metric: &dyn Metric,
        g: &mut Graph,
        [y_true, y_pred, weight]: [NodeId; 3],
    ) -> Result<NodeId> {
        let target = class_ids(metric, g, "y_true", y_true, self.sparse_y_true)?;
        let mut scores = y_pred;
        if let Some(threshold) = self.threshold {
            let threshold = g.scalar(f64::from(threshold as f32));
            scores = g.binary(Binary::Ge, y_pred, threshold)?;
        }
        let predicted = class_ids(metric, g, "y_pred", scores, self.sparse_y_pred)?;
        let positions = g.ty(predicted).len();
        if g.ty(target).len() != positions || !g.ty(target).is_rows() {
            let expected = describe(&g.ty(predicted).clone());
            return Err(mismatch(metric, "y_true", expected, g.ty(y_true)));
        }
        let (target, predicted) =
            (g.reshape(target, &[positions])?, g.reshape(predicted, &[positions])?);
        let mut weight = self.weights(metric, g, weight, positions)?;
        for ids in [target, predicted] {
            let ids = g.cast(ids, DType::F32)?;
            let valid = in_range(g, ids, self.classes)?;
            weight = g.mul(weight, valid)?;
        }
        if let Some(ignored) = self.ignore_class {
            let (one, ignored) = (g.scalar(1.0), g.scalar(ignored as f64));
            let ids = g.cast(target, DType::F32)?;
            let hit = g.binary(Binary::Eq, ids, ignored)?;
            let valid = g.sub(one, hit)?;
            weight = g.mul(weight, valid)?;
        }
        self.sums(g, [target, predicted], weight)
    }

    /// The weights of the positions.
    fn weights(
        &self,
        metric: &dyn Metric,
        g: &mut Graph,
        weight: NodeId,
        positions: usize,
    ) -> Result<NodeId> {
        let mut weight = weight;
        if !self.dtype.starts_with("float") {
            weight = g.cast(weight, DType::I32)?;
            weight = g.cast(weight, DType::F32)?;
        }
        if g.ty(weight).dims.is_empty() {
            return Ok(g.reshape(weight, &[1])?);
        }
        if g.ty(weight).len() != positions {
            let expected = describe(&Type::rows([positions]));
            return Err(mismatch(metric, "sample_weight", expected, g.ty(weight)));
        }
        Ok(g.reshape(weight, &[positions])?)
    }

    fn sums(&self, g: &mut Graph, ids: [NodeId; 2], weight: NodeId) -> Result<NodeId> {
        let column = [g.ty(weight).len(), 1];
        let weight = g.reshape(weight, &column)?;
        let op = Op::OneHot { depth: self.classes };
        let target = g.push(op.clone(), &[ids[0]])?;
        let predicted = g.push(op, &[ids[1]])?;
        let (target, weighted) = (g.mul(target, weight)?, g.mul(predicted, weight)?);
        let hits = g.mul(target, predicted)?;
        let mut lines = vec![];
        for count in [hits, target, weighted] {
            let sum = g.sum_axes(count, &[0])?;
            lines.push(g.reshape(sum, &[self.classes])?);
        }
        let joined = g.push(Op::Concat { axis: 0 }, &lines)?;
        Ok(g.push(Op::SumRows, &[joined])?)
    }
}

/// The mean over classes, without those that occur neither in targets nor in predictions.
fn mean_iou(state: &[f64], target_class_ids: Option<&[usize]>) -> f64 {
    let n = state.len() / 3;
    let (mut sum, mut count) = (0.0, 0.0);
    let wanted = |class: &usize| target_class_ids.is_none_or(|ids| ids.contains(class));
    for class in (0..n).filter(wanted) {
        let [hits, targets, predictions] = [0, 1, 2].map(|line| state[line * n + class]);
        let union = targets + predictions - hits;
        if union > 1e-9 {
            sum += hits / (union + EPSILON);
            count += 1.0;
        }
    }
    sum / (count + EPSILON)
}

options! {
    /// The mean intersection over union of some classes.
    pub struct IoU {
        name: "io_u";
        /// The number of classes.
        num_classes: usize = 2,
        /// The classes of the mean.
        target_class_ids: Vec<usize> = vec![0],
        /// A class whose targets do not count.
        ignore_class: Option<i64> = None,
        /// Whether targets are class numbers rather than scores.
        sparse_y_true: bool = true,
        /// Whether predictions are class numbers rather than scores.
        sparse_y_pred: bool = true,
        /// The axis of the classes in scores: only the last.
        axis: i64 = -1,
        /// The type of the weights: integers, to which they are truncated, or floats.
        dtype: String = "int32".into(),
    }
}

options! {
    /// The mean intersection over union of predictions on the two sides of a threshold.
    pub struct BinaryIoU {
        name: "binary_io_u";
        /// The classes of the mean.
        target_class_ids: Vec<usize> = vec![0, 1],
        /// Predictions from it up count as class 1.
        threshold: f64 = 0.5,
        /// The type of the weights: integers, to which they are truncated, or floats.
        dtype: String = "int32".into(),
    }
}

options! {
    /// The mean intersection over union of all classes.
    pub struct MeanIoU {
        name: "mean_io_u";
        /// The number of classes.
        num_classes: usize = 2,
        /// A class whose targets do not count.
        ignore_class: Option<i64> = None,
        /// Whether targets are class numbers rather than scores.
        sparse_y_true: bool = true,
        /// Whether predictions are class numbers rather than scores.
        sparse_y_pred: bool = true,
        /// The axis of the classes in scores: only the last.
        axis: i64 = -1,
        /// The type of the weights: integers, to which they are truncated, or floats.
        dtype: String = "int32".into(),
    }
}

options! {
    /// The mean intersection over union of some classes, for one-hot targets.
    pub struct OneHotIoU {
        name: "one_hot_io_u";
        /// The number of classes.
        num_classes: usize = 2,
        /// The classes of the mean.
        target_class_ids: Vec<usize> = vec![0],
        /// A class whose targets do not count.
        ignore_class: Option<i64> = None,
        /// Whether predictions are class numbers rather than scores.
        sparse_y_pred: bool = false,
        /// The axis of the classes in scores: only the last.
        axis: i64 = -1,
        /// The type of the weights: integers, to which they are truncated, or floats.
        dtype: String = "int32".into(),
    }
}

options! {
    /// The mean intersection over union of all classes, for one-hot targets.
    pub struct OneHotMeanIoU {
        name: "one_hot_mean_io_u";
        /// The number of classes.
        num_classes: usize = 2,
        /// A class whose targets do not count.
        ignore_class: Option<i64> = None,
        /// Whether predictions are class numbers rather than scores.
        sparse_y_pred: bool = false,
        /// The axis of the classes in scores: only the last.
        axis: i64 = -1,
        /// The type of the weights: integers, to which they are truncated, or floats.
        dtype: String = "int32".into(),
    }
}

/// Implements `Metric` by the method `counting`.
macro_rules! iou_metric {
    ($class:ident) => {
        impl Metric for $class {
            keras_class!(stringify!($class));

            fn name(&self) -> &str {
                &self.name
            }

            fn set_name(&mut self, name: &str) {
                self.name = name.into();
            }

            fn validate(&self) -> Result<()> {
                self.counting().validate(self)
            }

            fn update(
                &self,
                g: &mut Graph,
                y_true: NodeId,
                y_pred: NodeId,
                weight: NodeId,
            ) -> Result<NodeId> {
                self.counting().counts(self, g, [y_true, y_pred, weight])
            }

            fn state_len(&self, _: &Type) -> usize {
                self.counting().classes.saturating_mul(3)
            }

            fn result(&self, state: &[f64]) -> f64 {
                mean_iou(state, self.counting().target_class_ids)
            }
        }
    };
}

iou_metric!(IoU);
iou_metric!(BinaryIoU);
iou_metric!(MeanIoU);
iou_metric!(OneHotIoU);
iou_metric!(OneHotMeanIoU);

impl IoU {
    /// The metric of `target_class_ids` among `num_classes` classes.
    pub fn new(num_classes: usize, target_class_ids: impl Into<Vec<usize>>) -> IoU {
        let ids = target_class_ids.into();
        IoU::default().num_classes(num_classes).target_class_ids(ids)
    }

    fn counting(&self) -> Counting<'_> {
        Counting {
            target_class_ids: Some(&self.target_class_ids),
            ignore_class: self.ignore_class,
            axis: self.axis,
            sparse_y_true: self.sparse_y_true,
            sparse_y_pred: self.sparse_y_pred,
            ..Counting::new(self.num_classes, &self.dtype)
        }
    }
}

impl BinaryIoU {
    fn counting(&self) -> Counting<'_> {
        Counting {
            target_class_ids: Some(&self.target_class_ids),
            threshold: Some(self.threshold),
            ..Counting::new(2, &self.dtype)
        }
    }
}

impl MeanIoU {
    /// The metric of `num_classes` classes.
    pub fn new(num_classes: usize) -> MeanIoU {
        MeanIoU::default().num_classes(num_classes)
    }

    fn counting(&self) -> Counting<'_> {
        Counting {
            ignore_class: self.ignore_class,
            axis: self.axis,
            sparse_y_true: self.sparse_y_true,
            sparse_y_pred: self.sparse_y_pred,
            ..Counting::new(self.num_classes, &self.dtype)
        }
    }
}

impl OneHotIoU {
    /// The metric of `target_class_ids` among `num_classes` classes.
    pub fn new(num_classes: usize, target_class_ids: impl Into<Vec<usize>>) -> OneHotIoU {
        let ids = target_class_ids.into();
        OneHotIoU::default().num_classes(num_classes).target_class_ids(ids)
    }

    fn counting(&self) -> Counting<'_> {
        Counting {
            target_class_ids: Some(&self.target_class_ids),
            ignore_class: self.ignore_class,
            axis: self.axis,
            sparse_y_true: false,
            sparse_y_pred: self.sparse_y_pred,
            ..Counting::new(self.num_classes, &self.dtype)
        }
    }
}

impl OneHotMeanIoU {
    /// The metric of `num_classes` classes.
    pub fn new(num_classes: usize) -> OneHotMeanIoU {
        OneHotMeanIoU::default().num_classes(num_classes)
    }

    fn counting(&self) -> Counting<'_> {
        Counting {
            ignore_class: self.ignore_class,
            axis: self.axis,
            sparse_y_true: false,
            sparse_y_pred: self.sparse_y_pred,
            ..Counting::new(self.num_classes, &self.dtype)
        }
    }
}
