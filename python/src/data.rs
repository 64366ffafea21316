//! Data that Python hands over: whole arrays, or an object that yields batches.

use crate::array;
use crate::errors::foreign;
use phalanx::data::{Arrays, Dataset, Epoch, External, HostBatch, LocalShard, Prefetch, Samples};
use phalanx::model::Source;
use phalanx::{DType, Error, Result, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::VecDeque;
use std::sync::Arc;

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
        sample_weight: Option<Bound<'_, PyAny>>,
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

/// A Python object that yields batches: `start(epoch, batch)` starts a pass, `take()` returns the arrays of the next
/// batches, or an empty list.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct BatchData {
    source: Py<PyAny>,
    batches: Option<usize>,
    batch_size: usize,
    ahead: usize,
}

#[pymethods]
impl BatchData {
    #[new]
    fn new(
        source: Py<PyAny>,
        batches: Option<usize>,
        batch_size: usize,
        ahead: usize,
    ) -> BatchData {
        BatchData { source, batches, batch_size, ahead }
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
        Source::Dataset(Arc::new(Prefetch::new(Arc::new(dataset)).ahead(self.ahead)))
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

    fn is_repeatable(&self) -> bool {
        false
    }

    fn epoch_of(
        &self,
        _seed: u64,
        epoch: u64,
        start: usize,
        _shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        Python::attach(|py| self.source.call_method1(py, "start", (epoch, start)).map(drop))
            .map_err(foreign)?;
        let (ready, read) = (VecDeque::new(), vec![]);
        Ok(Box::new(PythonEpoch { source: &self.source, types: &self.types, ready, read }))
    }
}

/// A pass over the batches.
struct PythonEpoch<'a> {
    source: &'a Py<PyAny>,
    types: &'a ModelTypes,
    /// Batches that Python has returned.
    ready: VecDeque<BatchArrays>,
    /// Batches that were copied. They are released together with the next call of Python.
    read: Vec<BatchArrays>,
}

/// A batch in Python's memory.
struct BatchArrays {
    inputs: Vec<External>,
    targets: Vec<External>,
    weights: Option<Weights>,
}

/// A batch from Python: inputs, targets, sample weights.
type PythonBatch<'py> = (Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

impl Epoch for PythonEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        if self.ready.is_empty() {
            Python::attach(|py| self.take(py)).map_err(foreign)?;
        }
        let Some(arrays) = self.ready.pop_front() else { return Ok(false) };
        let done = fill(batch, &arrays, self.types);
        self.read.push(arrays);
        done.map(|()| true)
    }
}

impl PythonEpoch<'_> {
    /// Asks Python for the next batches.
    fn take(&mut self, py: Python<'_>) -> PyResult<()> {
        self.read.clear();
        let batches = self.source.bind(py).call_method0(pyo3::intern!(py, "take"))?;
        for batch in batches.try_iter()? {
            let (inputs, targets, weights): PythonBatch<'_> = batch?.extract()?;
            let wrap = |arrays: &[Bound<'_, PyAny>]| -> PyResult<Vec<External>> {
                arrays.iter().map(array::wrap).collect()
            };
            let inputs = wrap(&inputs)?;
            let rows = inputs.first().map_or(0, |input| input.dims()[0]);
            let weights = weights.map(|weights| read_weights(&weights, rows)).transpose()?;
            self.ready.push_back(BatchArrays { inputs, targets: wrap(&targets)?, weights });
        }
        Ok(())
    }
}

/// Copies the arrays of a batch.
fn fill(batch: &mut HostBatch, arrays: &BatchArrays, types: &ModelTypes) -> Result<()> {
    copy(&arrays.inputs, &types.inputs, "inputs", &mut batch.inputs)?;
    match types.targets.is_empty() {
        true => batch.targets.clear(),
        false => copy(&arrays.targets, &types.targets, "targets", &mut batch.targets)?,
    }
    batch.rows = batch.inputs.first().map_or(0, Tensor::rows);
    batch.weighted = arrays.weights.is_some();
    batch.sample_weight.clear();
    batch.output_weights.clear();
    let rows = batch.rows;
    match &arrays.weights {
        Some(Weights::Common(weights)) => batch.sample_weight.extend(weights),
        Some(Weights::Targets(weights)) => {
            let ones = || Tensor::new([rows], vec![1.0; rows]).expect("as many numbers as rows");
            let weights = weights.iter().map(|given| given.clone().unwrap_or_else(ones));
            batch.output_weights.extend(weights);
        }
        None => {}
    }
    batch.sample_weight.resize(rows, 1.0);
    Ok(())
}

/// Copies arrays to tensors of the types that the model takes.
fn copy(arrays: &[External], types: &[DType], what: &str, to: &mut Vec<Tensor>) -> Result<()> {
    if arrays.len() != types.len() {
        return Err(Error::argument("data", what, types.len().to_string(), arrays.len()));
    }
    to.resize_with(types.len(), || Tensor::zeros([0]));
    let rows = arrays.first().map_or(0, |array| array.dims()[0]);
    for ((array, dtype), tensor) in arrays.iter().zip(types).zip(to) {
        let fractions = || Error::argument("data", what, "whole numbers", "fractions");
        let array = array.with_dtype(*dtype).ok_or_else(fractions)?;
        if array.dims()[0] != rows {
            let expected = format!("{rows} rows as in the first array");
            return Err(Error::argument("data", what, expected, array.dims()[0]));
        }
        array.copy_to(tensor);
    }
    Ok(())
}

/// The weights of `rows` samples: an array for all targets, or a list with an array or `None` for each.
fn read_weights(weights: &Bound<'_, PyAny>, rows: usize) -> PyResult<Weights> {
    let Ok(list) = weights.cast::<PyList>() else {
        return Ok(Weights::Common(row_weights(weights, rows)?));
    };
    let weights: Vec<Option<Bound<'_, PyAny>>> = list.extract()?;
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
