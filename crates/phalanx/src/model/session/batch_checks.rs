//! Validation of batches against the model before a step runs.

use super::Objective;
use super::indices::{self, Lookup};
use super::run_step::feed;
use super::shapes::BatchShape;
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::losses;
use crate::model::definition::Definition;
use phalanx_graph::{DType, Data, Graph, Space, Tensor, Type};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The origin of a batch, for errors about its contents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum BatchOrigin {
    /// A batch passed directly.
    #[default]
    Batch,
    /// A batch of a dataset: the dataset's name and the batch number, counted from 1.
    Data(&'static str, usize),
}

impl fmt::Display for BatchOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchOrigin::Batch => write!(f, " of the batch"),
            BatchOrigin::Data(name, batch) => write!(f, " of batch {batch} of the {name}"),
        }
    }
}

/// The requirements that a batch must meet.
pub(crate) struct BatchChecks {
    pub(super) def: Arc<Definition>,
    /// The element type of each target.
    pub(super) target_dtypes: Vec<DType>,
    /// The number of classes that the labels of each target of a custom step are from, if it is known.
    pub(super) custom_classes: Option<Vec<Option<usize>>>,
    /// The class that the loss of each target ignores, if any. Its labels need not be numbers of classes.
    pub(super) ignored_classes: Vec<Option<i64>>,
    /// The output that each target belongs to. The lists above and below are by target.
    pub(super) compared: Vec<usize>,
    /// The length to which targets are padded with zeros, if they are.
    pub(super) padded_lengths: Vec<Option<usize>>,
    pub(super) output_names: Vec<String>,
    /// The layers that look up rows of an embedding table.
    pub(super) lookups: Vec<Lookup>,
    /// The origin of the next batch.
    pub(crate) origin: BatchOrigin,
    /// A layer whose states outlive a batch, if any.
    pub(super) stateful_layer: Option<String>,
}

/// Fails unless the number of inputs or targets of a model is `expected`.
pub(crate) fn check_count(
    def: &Definition,
    what: &str,
    expected: usize,
    received: usize,
) -> Result<()> {
    if expected == received {
        return Ok(());
    }
    let owner = format!("model '{}'", def.name);
    Err(Error::argument(owner, what, expected.to_string(), received))
}

impl BatchChecks {
    /// The requirements of a model and its objective. `output_names` and `types` are those of its outputs.
    pub(super) fn new(
        def: &Arc<Definition>,
        (objective, output_names): (&Objective, Vec<String>),
        types: &[Type],
        graph: &Graph,
    ) -> Result<BatchChecks> {
        let compared = objective.compared();
        // Targets for open sizes are as long as their batch.
        let pads = !def.is_open();
        let (mut dtypes, mut ignored_classes, mut padded_lengths) = (vec![], vec![], vec![]);
        for output in &compared {
            let target = objective.target_type(*output, &types[*output])?;
            let loss = objective.loss_of(*output);
            let padding = loss.filter(|loss| pads && loss.pads_targets());
            dtypes.push(target.dtype);
            ignored_classes.push(match loss {
                Some(loss) => loss.ignored_class(),
                None => {
                    let metrics = objective.metrics[*output].iter();
                    metrics.map(|tracked| &tracked.metric).find_map(|m| m.ignored_class())
                }
            });
            padded_lengths.push(padding.and_then(|_| target.dims.first().copied()));
        }
        Ok(BatchChecks {
            def: def.clone(),
            target_dtypes: dtypes,
            custom_classes: None,
            ignored_classes,
            compared,
            padded_lengths,
            output_names,
            lookups: indices::lookups(graph, def.fed.len()),
            origin: BatchOrigin::default(),
            stateful_layer: None,
        })
    }

    /// Returns the element types of what a step is fed with.
    pub(crate) fn input_dtypes(&self) -> Vec<DType> {
        self.def.fed.iter().map(|fed| fed.dtype).collect()
    }

    /// Returns the element types of the targets.
    pub(crate) fn target_dtypes(&self) -> Vec<DType> {
        self.target_dtypes.clone()
    }

    /// Targets padded with zeros to the length that the loss takes; `None` if they need no padding.
    pub(crate) fn padded_target(&self, output: usize, target: &Tensor) -> Option<Tensor> {
        let (Some(length), [rows, given]) = (self.padded_lengths[output], target.dims()) else {
            return None;
        };
        let (rows, given) = (*rows, *given);
        if given >= length || rows.checked_mul(length).is_none() {
            return None;
        }
        let padded = |i: usize| (i % length < given).then_some(i / length * given + i % length);
        let total = 0..rows * length;
        match target.data() {
            Data::I32(v) => {
                let values: Vec<i32> = total.map(|i| padded(i).map_or(0, |at| v[at])).collect();
                Tensor::new([rows, length], values).ok()
            }
            Data::F32(v) => {
                let values: Vec<f32> = total.map(|i| padded(i).map_or(0.0, |at| v[at])).collect();
                Tensor::new([rows, length], values).ok()
            }
        }
    }

    /// Fails unless a tensor holds `rows` rows of type `ty`. Axes of size one are optional.
    fn check_rows(&self, what: String, ty: &Type, t: &Tensor, rows: usize) -> Result<()> {
        let sizes =
            |dims: &[usize]| -> Vec<usize> { dims.iter().copied().filter(|d| *d != 1).collect() };
        let row = t.dims().get(1..).unwrap_or_default();
        // The tensors of a batch may have more rows than the batch.
        if sizes(row) == sizes(&ty.dims) && t.rows() >= rows && t.dtype() == ty.dtype {
            return Ok(());
        }
        let received = Type::new(t.dtype(), Space::Rows, row);
        let text = |ty: &Type, rows: usize| format!("{rows} rows of {}", losses::describe(ty));
        let owner = format!("model '{}'", self.def.name);
        Err(Error::argument(owner, what, text(ty, rows), text(&received, t.rows())))
    }

    /// Fails if a layer needs batches of another size.
    pub(super) fn check_batch_size(&self, rows: usize) -> Result<()> {
        match (&self.stateful_layer, self.def.batch_size()) {
            (Some(layer), Some(size)) if size != rows => {
                let expected = format!("{size} samples, as its states have");
                let batch = format!("size{}", self.origin);
                Err(Error::argument(format!("layer '{layer}'"), batch, expected, rows))
            }
            _ => Ok(()),
        }
    }

    /// Checks a batch of a shape against the model.
    pub(super) fn check(&self, batch: &HostBatch, shape: &BatchShape, targets: bool) -> Result<()> {
        self.check_batch_size(batch.rows)?;
        let rows = batch.local_len();
        check_count(&self.def, "inputs", self.def.fed.len(), batch.inputs.len())?;
        for (i, (t, fed)) in batch.inputs.iter().zip(self.def.fed.iter()).enumerate() {
            let what = format!("input '{}'", fed.name);
            if batch.strings.get(i).is_some_and(Option::is_some) {
                let owner = format!("model '{}'", self.def.name);
                return Err(Error::argument(owner, what, "numbers", "strings"));
            }
            self.check_rows(what, &fed.ty(&shape.inputs[i]), t, rows)?;
        }
        // Row numbers count over all workers.
        let first = batch.local.as_ref().map_or(0, |own| own.start);
        if !self.lookups.is_empty() {
            let origin = self.origin.to_string();
            for (i, t) in batch.inputs.iter().enumerate() {
                self.check_indices(i, (feed(t, &(0..rows)), t.row_len()), first, &origin)?;
            }
        }
        if !targets {
            return Ok(());
        }
        let fed = self.fed(&batch.targets);
        check_count(&self.def, "targets", shape.targets.len(), fed.len())?;
        for (i, t) in fed.into_iter().enumerate() {
            let what = format!("target of '{}'", self.target_name(i));
            self.check_rows(what, &shape.targets[i], t, rows)?;
            let classes = match &self.custom_classes {
                Some(classes) => classes[i],
                None => Some(shape.outputs[self.compared[i]].last()),
            };
            self.check_labels((i, classes), t, 0..rows, first, &self.origin)?;
        }
        self.check_weights(batch, rows)
    }

    /// Fails unless a batch has sample weights for `rows` rows.
    fn check_weights(&self, batch: &HostBatch, rows: usize) -> Result<()> {
        let owner = || format!("model '{}'", self.def.name);
        let weights = match &batch.output_weights[..] {
            [] if batch.sample_weight.len() < rows => {
                let received = batch.sample_weight.len();
                return Err(Error::argument(owner(), "sample weights", rows.to_string(), received));
            }
            [] => return Ok(()),
            _ if self.custom_classes.is_some() => {
                let expected = "one for each sample, as a custom step takes them";
                let received = "weights of each output";
                return Err(Error::argument(owner(), "sample weights", expected, received));
            }
            weights => self.fed(weights),
        };
        check_count(&self.def, "lists of sample weights", self.compared.len(), weights.len())?;
        for (i, t) in weights.into_iter().enumerate() {
            if t.dtype() != DType::F32 || t.dims().is_empty() || t.rows() < rows {
                let what = format!("sample weights of '{}'", self.target_name(i));
                let received = format!("{} {:?}", t.dtype(), t.dims());
                let expected = format!("{rows} rows of f32");
                return Err(Error::argument(owner(), what, expected, received));
            }
        }
        Ok(())
    }

    /// The name of the output that a target belongs to.
    fn target_name(&self, target: usize) -> &str {
        &self.output_names[self.compared[target]]
    }

    /// Returns the number of classes of a target, unless it is an open size.
    pub(crate) fn classes(&self, target: usize) -> Option<usize> {
        if let Some(classes) = &self.custom_classes {
            return classes[target];
        }
        self.def.output_types[self.compared[target]]
            .shape()
            .sizes()
            .last()
            .copied()
            .unwrap_or(Some(1))
    }

    /// Fails if a label is not the number of a class. A target comes by its index, with the number of its classes, if known.
    /// `first` is the number of the first row, for errors.
    pub(crate) fn check_labels(
        &self,
        (index, classes): (usize, Option<usize>),
        target: &Tensor,
        rows: Range<usize>,
        first: usize,
        origin: &dyn fmt::Display,
    ) -> Result<()> {
        let (Data::I32(labels), Some(classes)) = (target.data(), classes) else { return Ok(()) };
        let width = target.row_len();
        let labels = &labels[rows.start * width..rows.end * width];
        let ignored = self.ignored_classes[index];
        let bad = |l: &i32| {
            usize::try_from(*l).map_or(true, |l| l >= classes) && Some(i64::from(*l)) != ignored
        };
        match labels.iter().position(bad) {
            None => Ok(()),
            Some(at) => Err(Error::argument(
                format!("model '{}'", self.def.name),
                format!("labels of '{}'", self.target_name(index)),
                format!("0 to {}", classes.saturating_sub(1)),
                format!("{} in row {}{origin}", labels[at], first + at / width),
            )),
        }
    }
}
