//! Data that Python hands over: whole arrays, or an object that yields batches.

use crate::array;
use crate::errors::foreign;
use phalanx::data::{Arrays, Dataset, Epoch, External, HostBatch, LocalShard, Prefetch, Samples};
use phalanx::model::Source;
use phalanx::{DType, Error, Result, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Batches that a thread reads ahead of the step.
const BATCHES_AHEAD: usize = 2;

/// The element types that a model takes.
#[derive(Clone)]
pub struct ModelTypes {
    pub inputs: Vec<DType>,
    /// Empty for a prediction.
    pub targets: Vec<DType>,
}

/// Sample weights.
pub enum Weights {
    /// A number for each sample, for all targets.
    Common(Vec<f32>),
    /// Those of each target: a number for each sample or position. `None` stands for ones.
    Targets(Vec<Option<Tensor>>),
}

/// Sample weights from Python: an array for all targets, or a list with an array or `None` for each.
#[derive(FromPyObject)]
enum PythonWeights<'py> {
    Targets(Vec<Option<Bound<'py, PyAny>>>),
    Common(Bound<'py, PyAny>),
}

/// Inputs, targets and sample weights as arrays that Python owns.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct ArrayData {
    inputs: Vec<External>,
    targets: Vec<External>,
    weights: Option<Weights>,
    batch_size: usize,
}

#[pymethods]
impl ArrayData {
    #[new]
    fn new(
        x: Vec<Bound<'_, PyAny>>,
        y: Vec<Bound<'_, PyAny>>,
        sample_weight: Option<PythonWeights<'_>>,
        batch_size: usize,
    ) -> PyResult<ArrayData> {
        let wrap = |arrays: Vec<Bound<'_, PyAny>>| arrays.iter().map(array::wrap).collect();
        let (inputs, targets): (Vec<External>, Vec<External>) = match (wrap(x), wrap(y)) {
            (Ok(inputs), Ok(targets)) => (inputs, targets),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let rows = inputs.first().map_or(0, |input| input.dims()[0]);
        let weights = sample_weight.map(|weights| read_weights(&weights, rows)).transpose()?;
        Ok(ArrayData { inputs, targets, weights, batch_size })
    }
}

impl ArrayData {
    /// The arrays as a source of batches.
    pub fn source(&self, shuffle: bool) -> Result<Source> {
        Ok(Source::Arrays(self.arrays()?.shuffle(shuffle).batch(self.batch_size)?))
    }

    /// The arrays as a dataset.
    pub fn arrays(&self) -> Result<Arrays> {
        let columns = |arrays: &[External]| -> Vec<Samples> {
            arrays.iter().cloned().map(Samples::External).collect()
        };
        let arrays = Arrays::new(columns(&self.inputs), columns(&self.targets))?;
        match &self.weights {
            Some(Weights::Common(weights)) => arrays.sample_weight(weights),
            Some(Weights::Targets(weights)) => arrays.output_weights(weights.iter().cloned()),
            None => Ok(arrays),
        }
    }

    /// The sample weights, if any.
    pub fn weights(&self) -> Option<&Weights> {
        self.weights.as_ref()
    }
}

/// A Python object that yields batches: `begin(epoch, start)` starts a pass, `next()` returns the arrays of a batch.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct BatchData {
    source: Py<PyAny>,
    batches: Option<usize>,
    batch_size: usize,
}

#[pymethods]
impl BatchData {
    #[new]
    fn new(source: Py<PyAny>, batches: Option<usize>, batch_size: usize) -> BatchData {
        BatchData { source, batches, batch_size }
    }
}

impl BatchData {
    /// The batches as a source, read ahead by a thread.
    pub fn source(&self, py: Python<'_>, types: ModelTypes) -> Source {
        let dataset = PythonBatches {
            source: self.source.clone_ref(py),
            batches: self.batches,
            batch_size: self.batch_size,
            types,
        };
        Source::Dataset(Arc::new(Prefetch::new(Arc::new(dataset)).ahead(BATCHES_AHEAD)))
    }
}

/// The batches of a Python object as a dataset.
struct PythonBatches {
    source: Py<PyAny>,
    batches: Option<usize>,
    batch_size: usize,
    types: ModelTypes,
}

impl Dataset for PythonBatches {
    fn len(&self) -> Option<usize> {
        None
    }

    fn batches(&self) -> Option<usize> {
        self.batches
    }

    fn batch_size(&self) -> usize {
        self.batch_size
    }

    fn epoch_of(
        &self,
        _seed: u64,
        epoch: u64,
        start: usize,
        _shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        Python::attach(|py| self.source.call_method1(py, "begin", (epoch, start)).map(drop))
            .map_err(foreign)?;
        Ok(Box::new(PythonEpoch { source: &self.source, types: &self.types }))
    }
}

/// A pass over the batches.
struct PythonEpoch<'a> {
    source: &'a Py<PyAny>,
    types: &'a ModelTypes,
}

/// The arrays of a batch: inputs, targets, sample weights.
type PythonBatch<'py> = (Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>, Option<PythonWeights<'py>>);

impl Epoch for PythonEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        Python::attach(|py| {
            let read = || -> PyResult<Option<PythonBatch<'_>>> {
                self.source.bind(py).call_method0(pyo3::intern!(py, "next"))?.extract()
            };
            match read().map_err(foreign)? {
                None => Ok(false),
                Some(arrays) => fill(batch, &arrays, self.types).map(|()| true),
            }
        })
    }
}

/// Copies the arrays of a batch.
fn fill(batch: &mut HostBatch, arrays: &PythonBatch<'_>, types: &ModelTypes) -> Result<()> {
    let (inputs, targets, weights) = arrays;
    copy(inputs, &types.inputs, "inputs", &mut batch.inputs)?;
    match types.targets.is_empty() {
        true => batch.targets.clear(),
        false => copy(targets, &types.targets, "targets", &mut batch.targets)?,
    }
    batch.rows = batch.inputs.first().map_or(0, Tensor::rows);
    batch.weighted = weights.is_some();
    batch.sample_weight.clear();
    batch.output_weights.clear();
    let rows = batch.rows;
    let weights = weights.as_ref().map(|weights| read_weights(weights, rows)).transpose();
    match weights.map_err(foreign)? {
        Some(Weights::Common(weights)) => batch.sample_weight = weights,
        Some(Weights::Targets(weights)) => {
            let ones = || Tensor::new([rows], vec![1.0; rows]).expect("as many numbers as rows");
            let weights = weights.into_iter().map(|given| given.unwrap_or_else(ones));
            batch.output_weights.extend(weights);
        }
        None => {}
    }
    batch.sample_weight.resize(rows, 1.0);
    Ok(())
}

/// Copies arrays to tensors of the types that the model takes.
fn copy(
    arrays: &[Bound<'_, PyAny>],
    types: &[DType],
    what: &str,
    to: &mut Vec<Tensor>,
) -> Result<()> {
    if arrays.len() != types.len() {
        return Err(Error::argument("data", what, types.len().to_string(), arrays.len()));
    }
    to.resize_with(types.len(), || Tensor::zeros([0]));
    let rows = arrays.first().map(|array| array.len().unwrap_or(0));
    for ((array, dtype), tensor) in arrays.iter().zip(types).zip(to) {
        let array = array::wrap(array).map_err(foreign)?;
        let fractions = || Error::argument("data", what, "whole numbers", "fractions");
        let array = array.with_dtype(*dtype).ok_or_else(fractions)?;
        if Some(array.dims()[0]) != rows {
            let expected = format!("{} rows as in the first array", rows.unwrap_or(0));
            return Err(Error::argument("data", what, expected, array.dims()[0]));
        }
        array.copy_to(tensor);
    }
    Ok(())
}

/// The weights of `rows` samples.
fn read_weights(weights: &PythonWeights<'_>, rows: usize) -> PyResult<Weights> {
    let weights = match weights {
        PythonWeights::Common(weights) => return Ok(Weights::Common(row_weights(weights, rows)?)),
        PythonWeights::Targets(weights) => weights,
    };
    let read = |given: &Option<Bound<'_, PyAny>>| {
        let weights = given.as_ref().map(array::floats).transpose()?;
        match weights.as_ref().map(Tensor::dims) {
            Some(dims) if dims.first() != Some(&rows) => Err(PyValueError::new_err(format!(
                "sample_weight: expected weights of {rows} samples, received an array of shape {dims:?}"
            ))),
            _ => Ok(weights),
        }
    };
    Ok(Weights::Targets(weights.iter().map(read).collect::<PyResult<_>>()?))
}

/// The weight of each of `rows` samples.
fn row_weights(weights: &Bound<'_, PyAny>, rows: usize) -> PyResult<Vec<f32>> {
    let weights = array::floats(weights)?;
    let values = weights.f32().unwrap_or_default();
    if values.len() != rows {
        let received = weights.dims();
        return Err(PyValueError::new_err(format!(
            "sample_weight: expected one weight for each of {rows} samples, received an array of shape {received:?}"
        )));
    }
    Ok(values.to_vec())
}
