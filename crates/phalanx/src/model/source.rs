//! The data arguments of `fit`, `evaluate` and `predict`, and their conversion for a model.

use super::session::{Session, check_count};
use super::staged_dataset::staged;
use crate::data::{Arrays, Columns, Dataset, HostBatch, Samples};
use crate::error::{Error, Result};
use phalanx_graph::{DType, Data, Tensor};
use std::sync::Arc;

/// Names of the data in errors about its contents.
pub(super) const DATA: &str = "data";
pub(super) const TRAINING: &str = "training data";
pub(super) const VALIDATION: &str = "validation data";

/// The data accepted by `fit`, `evaluate` and `predict`: arrays or any dataset.
pub enum Source {
    /// Arrays; the call may set their batch size.
    Arrays(Arrays),
    /// A dataset with its own batches.
    Dataset(Arc<dyn Dataset>),
}

/// Conversion into a source of batches.
pub trait IntoDataset {
    /// Converts `self`.
    fn into_source(self) -> Result<Source>;
}

impl IntoDataset for Source {
    fn into_source(self) -> Result<Source> {
        Ok(self)
    }
}

/// Any dataset, unchanged.
impl<D: Dataset + 'static> IntoDataset for D {
    fn into_source(self) -> Result<Source> {
        self.source()
    }
}

impl IntoDataset for &Arrays {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(self.clone()))
    }
}

impl IntoDataset for (Tensor, Tensor) {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self.0, self.1)?))
    }
}

impl IntoDataset for (&Tensor, &Tensor) {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self.0.clone(), self.1.clone())?))
    }
}

impl IntoDataset for Tensor {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self, ())?))
    }
}

impl IntoDataset for &Tensor {
    fn into_source(self) -> Result<Source> {
        self.clone().into_source()
    }
}

impl Source {
    /// Converts the source to a dataset.
    pub(super) fn dataset(self) -> Arc<dyn Dataset> {
        match self {
            Source::Arrays(arrays) => Arc::new(arrays),
            Source::Dataset(dataset) => dataset,
        }
    }

    /// Disables shuffling and keeps the last partial batch of arrays, for evaluation and prediction.
    pub(super) fn in_order(self) -> Source {
        match self {
            Source::Arrays(arrays) => Source::Arrays(arrays.shuffle(false).drop_remainder(false)),
            other => other,
        }
    }

    /// Prepares arrays for the model: sets the batch size, converts inputs (and targets, if requested) to the
    /// model's element types if the conversion is exact, and checks indices and labels. A dataset stays
    /// unchanged. `name` describes the data in errors.
    pub(super) fn prepare(
        self,
        session: &mut Session,
        batch: Option<usize>,
        with_targets: bool,
        name: &str,
    ) -> Result<Source> {
        if with_targets {
            session.decide_metrics(&self)?;
        }
        let mut arrays = match self {
            Source::Arrays(arrays) => arrays,
            Source::Dataset(dataset) if session.def.host.is_some() => {
                return Ok(Source::Dataset(staged(dataset, &session.def)));
            }
            dataset => return Ok(dataset),
        };
        if let Some(batch) = batch {
            arrays = arrays.batch(batch)?;
        }
        if session.def.host.is_some() {
            if with_targets {
                arrays = with_checked_targets(arrays, session, name)?;
            }
            return Ok(Source::Dataset(staged(Arc::new(arrays), &session.def)));
        }
        let inputs = session.checks.input_dtypes();
        if let Some(i) = arrays.inputs().iter().position(|x| x.text().is_some()) {
            let what = format!("input {i}");
            let received = "strings (an Input::strings() takes them)";
            return Err(Error::argument("data", what, "numbers", received));
        }
        if arrays.inputs().iter().zip(&inputs).any(|(x, dtype)| x.dtype() != *dtype) {
            check_count(&session.def, "inputs", inputs.len(), arrays.inputs().len())?;
            let convert = |(x, dtype): (&Samples, &DType)| {
                let whole = "whole numbers, as the input is one of integers";
                let fail = || Error::argument("data", "inputs", whole, "fractions");
                match x {
                    x if x.dtype() == *dtype => Ok(x.clone()),
                    Samples::External(external) => {
                        external.with_dtype(*dtype).map(Samples::External).ok_or_else(fail)
                    }
                    x => as_dtype(&x.to_tensor(), *dtype).map(Into::into).ok_or_else(fail),
                }
            };
            let inputs = arrays.inputs().iter().zip(&inputs).map(convert).collect::<Result<_>>()?;
            arrays = arrays.with_inputs(inputs);
        }
        session.checks.check_samples(&arrays, &format!(" of the {name}"))?;
        if with_targets {
            arrays = with_checked_targets(arrays, session, name)?;
        }
        Ok(Source::Arrays(arrays))
    }
}

/// Converts the targets of arrays to the types that the losses take, and checks labels.
fn with_checked_targets(mut arrays: Arrays, session: &Session, name: &str) -> Result<Arrays> {
    let (window, origin) = (arrays.window(), format!(" of the {name}"));
    let dtypes = session.checks.target_dtypes();
    if arrays.targets().len() != dtypes.len() {
        let fed = session.checks.fed(arrays.targets()).into_iter().cloned().collect();
        arrays = arrays.with_targets(fed);
    }
    check_count(&session.def, "targets", dtypes.len(), arrays.targets().len())?;
    let padded = |(i, t): (usize, &Arc<Tensor>)| {
        session.checks.padded_target(i, t).map_or_else(|| t.clone(), Arc::new)
    };
    let padded: Vec<Arc<Tensor>> = arrays.targets().iter().enumerate().map(padded).collect();
    if padded.iter().zip(arrays.targets()).any(|(new, old)| !Arc::ptr_eq(new, old)) {
        arrays = arrays.with_targets(padded);
    }
    if arrays.targets().iter().zip(&dtypes).any(|(t, dtype)| t.dtype() != *dtype) {
        let convert = |(t, dtype): (&Arc<Tensor>, &DType)| {
            let fail = || Error::argument("data", "targets", "class numbers", "fractions");
            match t.dtype() == *dtype {
                true => Ok(t.clone()),
                false => as_dtype(t, *dtype).map(Arc::new).ok_or_else(fail),
            }
        };
        let targets = arrays.targets().iter().zip(&dtypes).map(convert).collect::<Result<_>>()?;
        arrays = arrays.with_targets(targets);
    }
    for (i, target) in arrays.targets().iter().enumerate() {
        let labels = (i, session.checks.classes(i));
        session.checks.check_labels(labels, target, window.clone(), window.start, &origin)?;
    }
    Ok(arrays)
}

/// Returns all samples as one batch.
pub(super) fn one_batch(session: &mut Session, x: Columns, y: Columns) -> Result<HostBatch> {
    let (x, y) = (x.into_samples(), y.into_samples());
    let matches_model = match (&x[..], &y[..]) {
        ([Samples::Tensor(x)], [Samples::Tensor(y)]) => {
            x.rows() == y.rows()
                && session.def.host.is_none()
                && !session.has_undecided_metrics()
                && session.checks.input_dtypes() == [x.dtype()]
                && session.checks.target_dtypes() == [y.dtype()]
                && session.checks.padded_target(0, y).is_none()
        }
        _ => false,
    };
    if matches_model {
        let tensor = |samples| match samples {
            Samples::Tensor(tensor) => Some(Arc::unwrap_or_clone(tensor)),
            _ => None,
        };
        let rows = x[0].rows();
        return Ok(HostBatch {
            rows,
            local: None,
            inputs: x.into_iter().filter_map(tensor).collect(),
            targets: y.into_iter().filter_map(tensor).collect(),
            sample_weight: vec![1.0; rows],
            ..HostBatch::default()
        });
    }
    as_one_batch(session, Arrays::new(x, y)?)
}

/// Returns all samples of arrays as one batch.
pub(super) fn as_one_batch(session: &mut Session, arrays: Arrays) -> Result<HostBatch> {
    let rows = arrays.len().unwrap_or(1).max(1);
    let source = arrays.into_source()?.in_order().prepare(session, Some(rows), true, "batch")?;
    let mut batch = HostBatch::default();
    source.dataset().epoch(0, 0, 0)?.next(&mut batch)?;
    Ok(batch)
}

/// Converts to another element type, or returns `None` if that would change a value.
pub(super) fn as_dtype(t: &Tensor, dtype: DType) -> Option<Tensor> {
    match (t.data(), dtype) {
        (Data::F32(v), DType::I32) => {
            let exact = v.iter().all(|x| x.fract() == 0.0 && x.abs() < 16_777_216.0);
            let ints: Vec<i32> = v.iter().map(|x| *x as i32).collect();
            exact.then(|| Tensor::new(t.dims(), ints).ok()).flatten()
        }
        (Data::I32(v), DType::F32) => {
            Tensor::new(t.dims(), v.iter().map(|x| *x as f32).collect::<Vec<f32>>()).ok()
        }
        _ => Some(t.clone()),
    }
}
