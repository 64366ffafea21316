//! In-memory arrays as a dataset.

mod columns;
mod epoch;
mod output_weights;

pub use columns::Columns;

use super::{Dataset, Digest, Epoch, InMemory, IndexBatches, LocalShard, Samples, Table};
use crate::error::{Error, Result};
use crate::model::Source;
use epoch::ArraysEpoch;
use phalanx_graph::rng::permutation;
use phalanx_graph::{Data, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Random stream for the order of samples. Layers number theirs from 1.
pub(super) const SHUFFLE: u32 = 0xFFFF_0001;

/// Default batch size of Keras.
const DEFAULT_BATCH: usize = 32;

/// Inputs, targets and sample weights in memory. Clones and slices share the arrays.
///
/// ```
/// use phalanx::data::{Arrays, Dataset};
/// use phalanx_graph::Tensor;
///
/// let x = Tensor::zeros([100, 28, 28, 1]);
/// let y = Tensor::new([100], vec![0i32; 100]).unwrap();
/// let (train, validation) = Arrays::new(x, y)?.batch(32)?.shuffle(true).split(0.1)?;
/// assert_eq!((train.batches(), validation.len()), (Some(3), Some(10)));
/// # Ok::<(), phalanx::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arrays {
    inputs: Vec<Samples>,
    targets: Vec<Arc<Tensor>>,
    /// One weight per row of the full arrays, regardless of `window`.
    weights: Option<Arc<Vec<f32>>>,
    /// The weights of each target in place of those, with all rows.
    output_weights: Vec<Arc<Tensor>>,
    window: Range<usize>,
    batch: usize,
    shuffle: bool,
    drop_remainder: bool,
}

impl Arrays {
    /// Creates a dataset of inputs and targets: one tensor each, several, or `()` for no targets. By
    /// default it is not shuffled and has batches of 32.
    pub fn new(x: impl Into<Columns>, y: impl Into<Columns>) -> Result<Arrays> {
        let (inputs, targets) = (x.into().into_samples(), y.into().into_samples());
        let Some(first) = inputs.first() else {
            return Err(Error::argument("Arrays", "x", "at least one tensor", "none"));
        };
        let rows = first.rows();
        for (side, columns) in [("x", &inputs), ("y", &targets)] {
            for (i, column) in columns.iter().enumerate() {
                let name = format!("{side}[{i}]");
                if column.dims().is_empty() {
                    return Err(Error::argument("Arrays", name, "samples in rows", "a scalar"));
                }
                if column.rows() != rows {
                    let expected = format!("{rows} rows as in x[0]");
                    let received = format!("{} rows", column.rows());
                    return Err(Error::argument("Arrays", name, expected, received));
                }
            }
        }
        if let Some(i) = targets.iter().position(|target| target.text().is_some()) {
            let expected = "numbers (StringLookup gives the numbers of classes)";
            return Err(Error::argument("Arrays", format!("y[{i}]"), expected, "strings"));
        }
        if u32::try_from(rows).is_err() {
            return Err(Error::argument("Arrays", "x", "fewer than 2³² rows", rows));
        }
        let targets = targets.iter().map(Samples::to_tensor).collect();
        let (batch, window) = (DEFAULT_BATCH, 0..rows);
        let arrays = Arrays {
            inputs,
            targets,
            weights: None,
            output_weights: vec![],
            window: 0..0,
            batch,
            shuffle: false,
            drop_remainder: false,
        };
        arrays.show("x", window)
    }

    /// Sets the global batch size, which is split among all replicas.
    pub fn batch(mut self, samples: usize) -> Result<Arrays> {
        if samples == 0 {
            return Err(Error::argument("Arrays", "batch", "at least 1", samples));
        }
        self.batch = samples;
        Ok(self)
    }

    /// Whether to shuffle in every epoch. `predict` needs the original order.
    pub fn shuffle(mut self, shuffle: bool) -> Arrays {
        self.shuffle = shuffle;
        self
    }

    /// Whether to drop the last batch if it is not full.
    pub fn drop_remainder(mut self, drop_remainder: bool) -> Arrays {
        self.drop_remainder = drop_remainder;
        self
    }

    /// Weights the loss of each sample. Multiplies existing weights.
    pub fn sample_weight(mut self, weights: &[f32]) -> Result<Arrays> {
        if weights.len() != self.window.len() {
            let expected = format!("{} weights, one per sample", self.window.len());
            return Err(Error::argument("Arrays", "sample_weight", expected, weights.len()));
        }
        if let Some(bad) = weights.iter().find(|w| !w.is_finite()) {
            return Err(Error::argument("Arrays", "sample_weight", "finite numbers", bad));
        }
        if !self.output_weights.is_empty() {
            let expected = "weights of each target alone";
            return Err(Error::argument("Arrays", "sample_weight", expected, "others besides"));
        }
        let rows = self.inputs[0].rows();
        let all = Arc::make_mut(self.weights.get_or_insert_with(|| Arc::new(vec![1.0; rows])));
        for (total, w) in all[self.window.clone()].iter_mut().zip(weights) {
            *total *= w;
        }
        Ok(self)
    }

    /// Weights the loss of each sample by its class. Classes that are not listed have weight 1. The
    /// target is a class index or one-hot.
    ///
    /// # Errors
    /// A class without samples: a weight without effect is most likely a mistake.
    pub fn class_weight(self, weights: &BTreeMap<usize, f32>) -> Result<Arrays> {
        let wrong = |expected, received: String| {
            Error::argument("Arrays", "class_weight", expected, received)
        };
        let [target] = &self.targets[..] else {
            return Err(wrong("one target", self.targets.len().to_string()));
        };
        if let Some((class, w)) = weights.iter().find(|(_, w)| !w.is_finite() || **w < 0.0) {
            return Err(wrong("finite weights, not negative", format!("{w} for class {class}")));
        }
        if target.dims().len() > 2 || target.row_len() == 0 {
            return Err(wrong("one class per sample", format!("targets {:?}", target.dims())));
        }
        let all: BTreeSet<usize> =
            (0..target.rows()).filter_map(|row| class_of(target, row)).collect();
        if let Some(class) = weights.keys().find(|class| !all.contains(class)) {
            let most = all.last().copied().unwrap_or_default();
            let received = format!("class {class}; the largest there is {most}");
            return Err(wrong("classes that the targets have", received));
        }
        let mut by_sample = Vec::with_capacity(self.window.len());
        for row in self.window.clone() {
            let class = class_of(target, row).ok_or_else(|| {
                wrong("a class from 0 up", format!("another target in row {row}"))
            })?;
            by_sample.push(weights.get(&class).copied().unwrap_or(1.0));
        }
        self.sample_weight(&by_sample)
    }

    /// Keras' `validation_split`: returns the samples before the last `fraction`, and the last
    /// `fraction`. The second part is not shuffled.
    pub fn split(self, fraction: f64) -> Result<(Arrays, Arrays)> {
        let n = self.window.len();
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::argument("Arrays", "split", "a fraction in (0, 1)", fraction));
        }
        let first = (n as f64 * (1.0 - fraction)).floor() as usize;
        if first == 0 || first == n {
            let expected = "a fraction that leaves samples on both sides";
            let received = format!("{fraction} of {n} samples");
            return Err(Error::argument("Arrays", "split", expected, received));
        }
        let second = self.clone().skip(first)?.shuffle(false).drop_remainder(false);
        Ok((self.take(first)?, second))
    }

    /// The first `samples` samples, or all if there are fewer.
    pub fn take(self, samples: usize) -> Result<Arrays> {
        let Range { start, end } = self.window;
        self.show("take", start..end.min(start.saturating_add(samples)))
    }

    /// All but the first `samples` samples.
    pub fn skip(self, samples: usize) -> Result<Arrays> {
        let Range { start, end } = self.window;
        self.show("skip", end.min(start.saturating_add(samples))..end)
    }

    /// A range of the samples.
    pub fn slice_rows(self, range: Range<usize>) -> Result<Arrays> {
        let n = self.window.len();
        if range.start > range.end || range.end > n {
            let expected = format!("a range within 0..{n}");
            return Err(Error::argument("Arrays", "slice_rows", expected, format!("{range:?}")));
        }
        let at = self.window.start;
        self.show("slice_rows", at + range.start..at + range.end)
    }

    /// The inputs, with all rows of the arrays regardless of slicing.
    pub fn inputs(&self) -> &[Samples] {
        &self.inputs
    }

    /// The targets, with all rows of the arrays regardless of slicing.
    pub fn targets(&self) -> &[Arc<Tensor>] {
        &self.targets
    }

    /// The range of rows that this dataset shows.
    pub(crate) fn window(&self) -> Range<usize> {
        self.window.clone()
    }

    /// Replaces the inputs.
    pub(crate) fn with_inputs(mut self, inputs: Vec<Samples>) -> Arrays {
        debug_assert!(inputs.iter().zip(&self.inputs).all(|(a, b)| a.rows() == b.rows()));
        self.inputs = inputs;
        self
    }

    /// Replaces the targets.
    pub(crate) fn with_targets(mut self, targets: Vec<Arc<Tensor>>) -> Arrays {
        debug_assert!(targets.iter().zip(&self.targets).all(|(a, b)| a.rows() == b.rows()));
        self.targets = targets;
        self
    }

    fn show(mut self, argument: &str, window: Range<usize>) -> Result<Arrays> {
        if window.is_empty() {
            return Err(Error::argument("Arrays", argument, "at least one sample", "none"));
        }
        self.window = window;
        Ok(self)
    }
}

/// The class of a row: an integer, a single float, or a one-hot row.
fn class_of(target: &Tensor, row: usize) -> Option<usize> {
    let width = target.row_len();
    let at = row * width..(row + 1) * width;
    match target.data() {
        Data::I32(v) if width == 1 => usize::try_from(v[row]).ok(),
        Data::F32(v) if width == 1 => {
            let whole = v[row] >= 0.0 && v[row].fract() == 0.0;
            whole.then_some(v[row] as usize)
        }
        Data::I32(v) => largest(&v[at]),
        Data::F32(v) => largest(&v[at]),
    }
}

/// Index of the first largest element.
fn largest<T: PartialOrd>(row: &[T]) -> Option<usize> {
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best })
}

impl Dataset for Arrays {
    fn len(&self) -> Option<usize> {
        Some(self.window.len())
    }

    fn batches(&self) -> Option<usize> {
        let n = self.window.len();
        Some(if self.drop_remainder { n / self.batch } else { n.div_ceil(self.batch) })
    }

    fn batch_size(&self) -> usize {
        self.batch.min(self.window.len())
    }

    fn skips(&self) -> bool {
        true
    }

    fn shuffles(&self) -> Option<bool> {
        Some(self.shuffle)
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        let rows = || self.window.clone();
        self.inputs.iter().for_each(|samples| digest.rows(samples, rows()));
        self.targets.iter().for_each(|target| digest.rows_of_tensor(target, rows()));
        self.weights.iter().for_each(|weights| digest.floats(&weights[rows()]));
        self.output_weights.iter().for_each(|weights| digest.rows_of_tensor(weights, rows()));
        digest.end()
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        // Devices hold no strings.
        self.inputs.iter().all(|column| column.text().is_none()).then_some(self)
    }

    /// The batch size may be set by the call.
    fn source(self) -> Result<Source> {
        Ok(Source::Arrays(self))
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        let epoch = self.begin(seed, epoch, start)?;
        Ok(Box::new(ArraysEpoch { shard: shard.cloned(), ..epoch }))
    }
}

impl InMemory for Arrays {
    fn table(&self) -> Table {
        let (weights, output_weights) = (self.weights.clone(), self.output_weights.clone());
        Table { weights, output_weights, ..Table::new(&self.inputs, &self.targets) }
    }

    fn index_batches(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
    ) -> Result<Box<dyn IndexBatches + '_>> {
        Ok(Box::new(self.begin(seed, epoch, start)?))
    }
}

impl Arrays {
    fn begin(&self, seed: u64, epoch: u64, start: usize) -> Result<ArraysEpoch<'_>> {
        let n = self.window.len();
        let end = if self.drop_remainder { n - n % self.batch } else { n };
        if end == 0 {
            let expected = format!("at least one batch of {}", self.batch);
            let received = format!("{n} samples");
            return Err(Error::argument("Arrays", "drop_remainder", expected, received));
        }
        let order = self.shuffle.then(|| permutation(n, seed, epoch, SHUFFLE));
        let at = start.saturating_mul(self.batch);
        Ok(ArraysEpoch { arrays: self, shard: None, order, at, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::HostBatch;

    /// Row `i` holds `[i, i + 0.5]`, its target `i`.
    fn numbered(n: usize) -> Arrays {
        let x = (0..2 * n).map(|i| i as f32 / 2.0).collect::<Vec<f32>>();
        let y = (0..n as i32).collect::<Vec<i32>>();
        Arrays::new(Tensor::new([n, 2], x).unwrap(), Tensor::new([n], y).unwrap()).unwrap()
    }

    /// Targets of the batches of an epoch. Checks each row against its input.
    fn batches(data: &Arrays, epoch: u64, start: usize) -> Vec<Vec<i32>> {
        let (mut batch, mut out) = (HostBatch::default(), vec![]);
        let mut rows = data.epoch(7, epoch, start).unwrap();
        while rows.next(&mut batch).unwrap() {
            let targets = batch.targets[0].i32().unwrap()[..batch.rows].to_vec();
            let inputs = &batch.inputs[0].f32().unwrap()[..2 * batch.rows];
            for (t, x) in targets.iter().zip(inputs.chunks(2)) {
                assert_eq!(x, [*t as f32, *t as f32 + 0.5]);
            }
            assert_eq!(batch.sample_weight.len(), batch.rows);
            out.push(targets);
        }
        out
    }

    fn weights(data: &Arrays) -> Vec<f32> {
        let mut batch = HostBatch::default();
        assert!(data.epoch(0, 0, 0).unwrap().next(&mut batch).unwrap());
        batch.sample_weight
    }

    fn message<T>(result: Result<T>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn batches_in_order_with_the_remainder() {
        let data = numbered(7).batch(3).unwrap();
        assert_eq!(batches(&data, 0, 0), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        assert_eq!((data.len(), data.batches(), data.batch_size()), (Some(7), Some(3), 3));
        let full = data.drop_remainder(true);
        assert_eq!(batches(&full, 0, 0), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(full.batches(), Some(2));
        assert_eq!(numbered(7).batch(usize::MAX).unwrap().batch_size(), 7);
    }

    #[test]
    fn every_size_gives_every_sample_once_in_any_order() {
        for n in 1..20 {
            for size in 1..8 {
                let data = numbered(n).batch(size).unwrap().shuffle(true);
                let mut seen = batches(&data, 0, 0).concat();
                assert_eq!(data.batches().unwrap(), n.div_ceil(size));
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..n as i32));
            }
        }
    }

    #[test]
    fn order_depends_on_seed_and_epoch_and_resumes_anywhere() {
        let data = numbered(50).batch(8).unwrap().shuffle(true);
        let all = batches(&data, 3, 0);
        assert_eq!(all, batches(&data, 3, 0));
        assert_ne!(all, batches(&data, 4, 0));
        for start in 0..=8 {
            assert_eq!(batches(&data, 3, start), all[start.min(all.len())..]);
        }
    }

    #[test]
    fn floats_are_written_to_the_same_buffers() {
        let data = numbered(10).batch(4).unwrap().shuffle(true);
        let (mut batch, mut buffers) = (HostBatch::default(), vec![]);
        for epoch in 0..2 {
            let mut rows = data.epoch(1, epoch, 0).unwrap();
            while rows.next(&mut batch).unwrap() {
                let at = batch.inputs[0].f32().unwrap().as_ptr();
                buffers.push((at, batch.sample_weight.as_ptr()));
            }
        }
        assert_eq!(buffers.len(), 6);
        assert!(buffers.iter().all(|b| *b == buffers[0]));
    }

    #[test]
    fn a_batch_made_for_another_dataset_is_replaced() {
        let mut batch = HostBatch::default();
        numbered(5).epoch(0, 0, 0).unwrap().next(&mut batch).unwrap();
        let other = Arrays::new(Tensor::zeros([3, 4, 4]), ()).unwrap();
        other.epoch(0, 0, 0).unwrap().next(&mut batch).unwrap();
        assert_eq!((batch.rows, batch.inputs[0].dims()), (3, &[3, 4, 4][..]));
        assert!(batch.targets.is_empty());
    }

    #[test]
    fn split_keeps_the_last_fraction() {
        let (train, validation) =
            numbered(10).batch(10).unwrap().shuffle(true).split(0.25).unwrap();
        let mut first = batches(&train, 0, 0).concat();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(batches(&validation, 0, 0), [[7, 8, 9]]);
        for fraction in [0.0, 1.0, -0.1, f64::NAN, 0.999] {
            assert!(message(numbered(10).split(fraction)).contains("a fraction"));
        }
    }

    #[test]
    fn parts_of_parts() {
        let part = numbered(10).skip(2).unwrap().take(6).unwrap().slice_rows(1..4).unwrap();
        assert_eq!(batches(&part, 0, 0), [[3, 4, 5]]);
        assert_eq!(numbered(3).take(9).unwrap().len(), Some(3));
        assert!(message(numbered(3).skip(3)).contains("at least one sample"));
        assert!(message(numbered(3).slice_rows(1..4)).contains("a range within 0..3"));
    }

    #[test]
    fn class_weights_multiply_sample_weights() {
        let by_class = BTreeMap::from([(1, 10.0), (2, 3.0)]);
        let x = || Tensor::zeros([4, 1]);
        let own = [1.0, 0.5, 1.0, 2.0];
        let labels = Tensor::new([4], vec![0i32, 1, 2, 3]).unwrap();
        let data = Arrays::new(x(), labels).unwrap().sample_weight(&own).unwrap();
        assert_eq!(weights(&data.class_weight(&by_class).unwrap()), [1.0, 5.0, 3.0, 2.0]);

        let none = numbered(4).class_weight(&BTreeMap::from([(3, 1.0), (7, 2.0)]));
        assert!(message(none).contains("received class 7; the largest there is 3"));

        let one_hot = vec![0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let data = Arrays::new(x(), Tensor::new([4, 3], one_hot).unwrap()).unwrap();
        let data = data.class_weight(&by_class).unwrap();
        assert_eq!(weights(&data), [10.0, 1.0, 3.0, 10.0]);
        assert_eq!(weights(&data.skip(2).unwrap()), [3.0, 10.0]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mismatch = Arrays::new(Tensor::zeros([4, 2]), Tensor::zeros([3]));
        let expected = "Arrays: y[0]: expected 4 rows as in x[0], received 3 rows";
        assert_eq!(message(mismatch), expected);
        assert!(message(Arrays::new((), ())).contains("at least one tensor"));
        assert!(message(Arrays::new(Tensor::zeros([0, 2]), ())).contains("at least one sample"));
        assert!(message(Arrays::new(Tensor::zeros([]), ())).contains("a scalar"));
        assert!(message(numbered(3).batch(0)).contains("expected at least 1, received 0"));
        assert!(message(numbered(3).sample_weight(&[1.0])).contains("3 weights"));
        assert!(message(numbered(1).sample_weight(&[f32::NAN])).contains("finite"));
        let few = numbered(3).batch(4).unwrap().drop_remainder(true);
        assert!(message(few.epoch(0, 0, 0)).contains("at least one batch of 4"));
        let labels = Tensor::new([2], vec![0i32, -1]).unwrap();
        let negative = Arrays::new(Tensor::zeros([2, 1]), labels).unwrap();
        assert!(message(negative.class_weight(&BTreeMap::new())).contains("row 1"));
    }
}
