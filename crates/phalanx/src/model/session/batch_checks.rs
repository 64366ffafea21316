//! Batches checked against the model before anything runs on them.

use super::indices::Lookup;
use super::run_step::feed;
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::losses;
use crate::model::definition::Definition;
use phalanx_graph::{DType, Data, Space, Tensor, Type};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Where a batch comes from, for errors about its contents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum BatchOrigin {
    /// A batch by itself.
    #[default]
    Batch,
    /// A batch, counted from 1, of a dataset with this name.
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

/// What a batch must look like.
pub(crate) struct BatchChecks {
    pub(super) def: Arc<Definition>,
    /// What each loss expects of its target.
    pub(super) targets: Vec<Type>,
    pub(super) output_names: Vec<String>,
    /// The layers that look up rows of a table.
    pub(super) lookups: Vec<Lookup>,
    /// Where the next batch comes from.
    pub(crate) origin: BatchOrigin,
}

impl BatchChecks {
    /// Element types of the inputs.
    pub(crate) fn input_dtypes(&self) -> Vec<DType> {
        self.def.input_dtypes()
    }

    /// Element types of the targets.
    pub(crate) fn target_dtypes(&self) -> Vec<DType> {
        self.targets.iter().map(|t| t.dtype).collect()
    }

    /// Fails unless there are as many inputs or targets as the model has.
    pub(crate) fn check_count(&self, what: &str, expected: usize, received: usize) -> Result<()> {
        if expected == received {
            return Ok(());
        }
        let owner = format!("model '{}'", self.def.name);
        Err(Error::argument(owner, what, expected.to_string(), received))
    }

    /// Fails unless a tensor holds rows of this type. Axes of size one may be there or not.
    fn check_rows(&self, what: String, ty: &Type, t: &Tensor, rows: usize) -> Result<()> {
        let sizes =
            |dims: &[usize]| -> Vec<usize> { dims.iter().copied().filter(|d| *d != 1).collect() };
        let row = t.dims().get(1..).unwrap_or_default();
        // Batches may have room for more rows than they hold.
        if sizes(row) == sizes(&ty.dims) && t.rows() >= rows && t.dtype() == ty.dtype {
            return Ok(());
        }
        let received = Type::new(t.dtype(), Space::Rows, row);
        let text = |ty: &Type, rows: usize| format!("{rows} rows of {}", losses::describe(ty));
        let owner = format!("model '{}'", self.def.name);
        Err(Error::argument(owner, what, text(ty, rows), text(&received, t.rows())))
    }

    /// Checks a batch against the model before anything runs on it.
    pub(super) fn check(&self, batch: &HostBatch, targets: bool) -> Result<()> {
        let rows = batch.local_len();
        self.check_count("inputs", self.def.inputs.len(), batch.inputs.len())?;
        for (i, t) in batch.inputs.iter().enumerate() {
            let ty = self.def.input(i).ty();
            self.check_rows(format!("input '{}'", self.def.input_name(i)), &ty, t, rows)?;
        }
        // Rows are counted over all workers.
        let first = batch.local.as_ref().map_or(0, |own| own.start);
        if !self.lookups.is_empty() {
            let place = self.origin.to_string();
            for (i, t) in batch.inputs.iter().enumerate() {
                self.check_indices(i, feed(t, &(0..rows)), first, &place)?;
            }
        }
        if !targets {
            return Ok(());
        }
        self.check_count("targets", self.targets.len(), batch.targets.len())?;
        for (i, t) in batch.targets.iter().enumerate() {
            let what = format!("target of '{}'", self.output_names[i]);
            self.check_rows(what, &self.targets[i], t, rows)?;
            self.check_labels(i, t, 0..rows, first, &self.origin)?;
        }
        if batch.sample_weight.len() < rows {
            let owner = format!("model '{}'", self.def.name);
            let received = batch.sample_weight.len();
            return Err(Error::argument(owner, "sample weights", rows.to_string(), received));
        }
        Ok(())
    }

    /// Fails unless class numbers name a class; `first` is the number of the first of these rows.
    pub(crate) fn check_labels(
        &self,
        output: usize,
        target: &Tensor,
        rows: Range<usize>,
        first: usize,
        place: &dyn fmt::Display,
    ) -> Result<()> {
        let Data::I32(labels) = target.data() else { return Ok(()) };
        let width = target.row_len();
        let labels = &labels[rows.start * width..rows.end * width];
        let classes = self.def.output_types[output].last();
        let bad = |l: &i32| usize::try_from(*l).map_or(true, |l| l >= classes);
        match labels.iter().position(bad) {
            None => Ok(()),
            Some(at) => Err(Error::argument(
                format!("model '{}'", self.def.name),
                format!("labels of '{}'", self.output_names[output]),
                format!("0 to {}", classes.saturating_sub(1)),
                format!("{} in row {}{place}", labels[at], first + at / width),
            )),
        }
    }
}
