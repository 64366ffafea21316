//! A Keras model on the devices of a strategy.

use crate::array::{self, Array};
use crate::data::{ArrayData, BatchData, ModelTypes, Weights};
use crate::errors::{to_python, unsupported};
use crate::hooks::{Pending, PythonHooks, optimizer_variables, result_of_run};
use crate::logs::pairs;
use crate::shared::SharedModel;
use crate::warnings;
use phalanx::callbacks::BackupAndRestore;
use phalanx::model::{
    BatchWeights, Fit, Inference, Interrupt, Logs, Model, OnNan, Source, StepKind, ValidationFreq,
};
use phalanx::saving::{Load, ModelParts};
use phalanx::strategy::MirroredStrategy;
use phalanx::{Error, Result};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Loss and metrics by name.
type LogPairs<'py> = Vec<(String, Bound<'py, PyAny>)>;

/// A Keras model on the devices of a strategy.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct Engine {
    shared: Arc<SharedModel>,
    /// The path of each weight in Keras' files.
    weight_paths: Vec<String>,
    /// The name of each weight.
    names: Arc<Vec<String>>,
    /// Whether the model has a loss and an optimizer.
    compiled: bool,
}

/// The arguments of `fit` besides the data.
#[derive(FromPyObject)]
struct FitArguments {
    #[pyo3(item)]
    epochs: usize,
    #[pyo3(item)]
    initial_epoch: usize,
    #[pyo3(item)]
    shuffle: bool,
    #[pyo3(item)]
    validation_freq: Frequencies,
    #[pyo3(item)]
    on_nan: String,
    #[pyo3(item)]
    backup: Option<Backup>,
}

/// `validation_freq`: a number of epochs, or a list of epochs.
#[derive(FromPyObject)]
enum Frequencies {
    Every(usize),
    Epochs(Vec<usize>),
}

/// The arguments of `BackupAndRestore`.
#[derive(FromPyObject)]
struct Backup {
    #[pyo3(item)]
    backup_dir: String,
    #[pyo3(item)]
    save_freq: SaveFrequency,
    #[pyo3(item)]
    delete_checkpoint: bool,
}

/// `save_freq`: a number of batches, or `"epoch"`.
#[derive(FromPyObject)]
enum SaveFrequency {
    Batches(u64),
    Word(String),
}

impl Backup {
    fn callback(self) -> BackupAndRestore {
        let callback = BackupAndRestore::new(self.backup_dir);
        let callback = match self.save_freq {
            SaveFrequency::Batches(batches) => callback.save_freq(batches),
            SaveFrequency::Word(word) => callback.save_freq(word.as_str()),
        };
        callback.delete_checkpoint(self.delete_checkpoint)
    }
}

#[pymethods]
impl Engine {
    /// Puts a model on devices. `weights` are pairs of path and array, `optimizer` is the optimizer's variables in order.
    #[new]
    #[pyo3(signature = (config, weights, assets, optimizer, *, devices, threads=None, deterministic=false, seed=0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        config: String,
        weights: Vec<(String, Bound<'_, PyAny>)>,
        assets: HashMap<String, Vec<u8>>,
        optimizer: Option<Bound<'_, PyAny>>,
        devices: Vec<String>,
        threads: Option<usize>,
        deterministic: bool,
        seed: u64,
    ) -> PyResult<Engine> {
        warnings::install();
        let read = |(path, array): (String, Bound<'_, PyAny>)| Ok((path, array::floats(&array)?));
        let weights = weights.into_iter().map(read).collect::<PyResult<_>>()?;
        let optimizer = optimizer.map(|variables| optimizer_variables(&variables)).transpose()?;
        let compiled = optimizer.is_some();
        let parts = ModelParts { config, weights, assets, optimizer };
        let model = py
            .detach(|| {
                let strategy = MirroredStrategy::with_devices(&devices)?
                    .threads(threads.unwrap_or(0))
                    .deterministic(deterministic);
                let mut model = Load::new().strategy(strategy.clone()).seed(seed).parts(parts)?;
                if !compiled {
                    model.predict_on(strategy)?;
                }
                Ok(model)
            })
            .map_err(|error: Error| match error {
                Error::Unknown { .. } | Error::Config { .. } => {
                    unsupported(py, vec![error.to_string()])
                }
                other => to_python(other),
            })?;
        let mut seen = HashSet::new();
        let (weight_paths, names) =
            model.weight_paths().into_iter().filter(|(_, name)| seen.insert(name.clone())).unzip();
        Ok(Engine {
            shared: Arc::new(SharedModel::new(model)),
            weight_paths,
            names: Arc::new(names),
            compiled,
        })
    }

    /// The path of each weight in Keras' files.
    #[getter]
    fn weight_paths(&self) -> Vec<String> {
        self.weight_paths.clone()
    }

    /// The outputs whose targets a step takes; `None` if there is nothing to train or evaluate.
    #[getter]
    fn target_outputs(&self) -> PyResult<Option<Vec<usize>>> {
        match self.shared.lock()?.target_outputs() {
            Err(Error::NotCompiled { .. }) => Ok(None),
            outputs => outputs.map(Some).map_err(to_python),
        }
    }

    /// Reads a weight into a writable array of 32-bit floats.
    fn read_weight(&self, py: Python<'_>, index: usize, out: PyBuffer<f32>) -> PyResult<()> {
        let name = self.name(index)?;
        let values = self
            .shared
            .with(|view| view.weights.get(name), |model| py.detach(|| model.read_weight(name)))?;
        out.copy_from_slice(py, &values)
    }

    /// Replaces a weight.
    fn write_weight(&self, py: Python<'_>, index: usize, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = array::floats(value)?.f32().unwrap_or_default().to_vec();
        let weights = [(self.name(index)?.clone(), values)];
        let mut model = self.shared.lock()?;
        let model = &mut *model;
        py.detach(|| model.write_weights(&weights)).map_err(to_python)
    }

    /// Reads all variables of the optimizer, in Keras' order.
    fn read_optimizer(&self, py: Python<'_>) -> PyResult<Vec<Array>> {
        let training = self.shared.with(
            |view| view.weights.training(),
            |model| py.detach(|| model.optimizer_state().map(Some)),
        )?;
        let variables = training.map(|training| training.variables()).unwrap_or_default();
        Ok(variables.into_iter().map(Array::from).collect())
    }

    /// Replaces all variables of the optimizer, in Keras' order.
    fn write_optimizer(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (iteration, variables) = optimizer_variables(values)?;
        let mut model = self.shared.lock()?;
        let model = &mut *model;
        py.detach(|| model.set_optimizer_state(iteration, &variables)).map_err(to_python)
    }

    /// The optimizer's number of steps.
    #[getter]
    fn iterations(&self) -> PyResult<u64> {
        self.shared
            .with(|view| Ok(view.iterations), |model| Ok(model.iterations().unwrap_or_default()))
    }

    /// The learning rate of the next step.
    #[getter]
    fn learning_rate(&self) -> PyResult<f64> {
        self.shared.with(|view| Ok(view.learning_rate), |model| model.learning_rate())
    }

    #[setter]
    fn set_learning_rate(&self, rate: f64) -> PyResult<()> {
        self.shared.lock()?.set_learning_rate(rate).map_err(to_python)
    }

    /// The bytes that a training step (a prediction, for a model that is not compiled) takes on each device, by purpose.
    fn memory_plan(
        &self,
        py: Python<'_>,
        batch_size: usize,
    ) -> PyResult<Vec<(&'static str, usize)>> {
        let kind = if self.compiled { StepKind::Train } else { StepKind::Predict };
        let model = self.shared.lock()?;
        let model = &*model;
        let plan = py.detach(|| model.own_memory_plan(kind, batch_size)).map_err(to_python)?;
        Ok(plan.parts)
    }

    /// Trains the model. Results arrive at the hooks.
    fn fit(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        validation: Option<Bound<'_, PyAny>>,
        hooks: &Bound<'_, PyAny>,
        arguments: FitArguments,
    ) -> PyResult<()> {
        let (interrupt, pending) = (Interrupt::new(), Pending::default());
        let hooks = self.hooks(hooks, Some((interrupt.clone(), pending.clone())))?;
        let mut model = self.shared.lock()?;
        let model = &mut *model;
        let source = source(data, model, true, arguments.shuffle)?;
        let mut fit = Fit::new()
            .verbose(0)
            .epochs(arguments.epochs)
            .initial_epoch(arguments.initial_epoch)
            .shuffle(arguments.shuffle)
            .validation_freq(match arguments.validation_freq {
                Frequencies::Every(epochs) => ValidationFreq::Every(epochs),
                Frequencies::Epochs(epochs) => ValidationFreq::Epochs(epochs),
            })
            .on_nan(on_nan(&arguments.on_nan)?)
            .interrupt(&interrupt)
            .callback(hooks);
        if let Some(validation) = validation {
            // The source has its own batch size: that of training must not replace it.
            fit = fit.validation_data(source_in_order(&validation, model)?);
        }
        if let Some(backup) = arguments.backup {
            fit = fit.callback(backup.callback());
        }
        result_of_run(py.detach(|| model.fit(source, fit).map(drop)), &pending)
    }

    /// Returns loss and metrics over some data.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'_, PyAny>,
        hooks: &Bound<'_, PyAny>,
    ) -> PyResult<LogPairs<'py>> {
        let hooks = self.hooks(hooks, None)?;
        let mut model = self.shared.lock()?;
        let model = &mut *model;
        let source = source_in_order(data, model)?;
        let arguments = Inference::new().callback(hooks);
        let logs = py.detach(|| model.evaluate_with(source, arguments)).map_err(to_python)?;
        pairs(py, &logs)
    }

    /// Returns the outputs for every sample.
    fn predict(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        hooks: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Array>> {
        let hooks = self.hooks(hooks, None)?;
        let model = self.shared.lock()?;
        let model = &*model;
        let source = source(data, model, false, false)?;
        let arguments = Inference::new().callback(hooks);
        let outputs = py.detach(|| model.predict_with(source, arguments)).map_err(to_python)?;
        Ok(outputs.into_iter().map(Array::from).collect())
    }

    /// Trains on one batch and returns its loss and metrics.
    fn train_on_batch<'py>(&self, py: Python<'py>, data: &ArrayData) -> PyResult<LogPairs<'py>> {
        self.on_batch(py, data, Model::train_on_batch_with)
    }

    /// Returns loss and metrics of one batch.
    fn test_on_batch<'py>(&self, py: Python<'py>, data: &ArrayData) -> PyResult<LogPairs<'py>> {
        self.on_batch(py, data, Model::test_on_batch_with)
    }

    /// Returns loss and metrics of all batches of `train_on_batch` and `test_on_batch` since `reset_metrics`.
    fn metrics_result<'py>(&self, py: Python<'py>) -> PyResult<LogPairs<'py>> {
        pairs(py, &self.shared.lock()?.get_metrics_result().map_err(to_python)?)
    }

    /// Resets the results of `metrics_result`.
    fn reset_metrics(&self) -> PyResult<()> {
        self.shared.lock()?.reset_metrics().map_err(to_python)
    }
}

/// `train_on_batch_with` or `test_on_batch_with`.
type OnBatch = fn(
    &mut Model,
    Vec<phalanx::data::Samples>,
    Vec<phalanx::data::Samples>,
    &BatchWeights,
) -> Result<Logs>;

impl Engine {
    /// The name of a weight.
    fn name(&self, index: usize) -> PyResult<&String> {
        let missing =
            || PyIndexError::new_err(format!("expected one of {} weights", self.names.len()));
        self.names.get(index).ok_or_else(missing)
    }

    fn hooks(
        &self,
        hooks: &Bound<'_, PyAny>,
        interrupt: Option<(Interrupt, Pending)>,
    ) -> PyResult<PythonHooks> {
        PythonHooks::new(hooks, &self.shared, &self.names, interrupt)
    }

    fn on_batch<'py>(
        &self,
        py: Python<'py>,
        data: &ArrayData,
        run: OnBatch,
    ) -> PyResult<LogPairs<'py>> {
        let mut model = self.shared.lock()?;
        let model = &mut *model;
        let logs = py.detach(|| {
            let arrays = data.arrays()?;
            let weights = BatchWeights::new();
            let weights = match data.weights() {
                Some(Weights::Common(values)) => weights.sample_weight(&values[..]),
                Some(Weights::Targets(values)) => weights.output_weights(values.iter().cloned()),
                None => weights,
            };
            let targets = arrays.targets().iter().cloned().map(Into::into).collect();
            run(model, arrays.inputs().to_vec(), targets, &weights)
        });
        pairs(py, &logs.map_err(to_python)?)
    }
}

/// The data of a run in the order in which it comes.
fn source_in_order(data: &Bound<'_, PyAny>, model: &Model) -> PyResult<Source> {
    source(data, model, true, false)
}

/// The data of a run.
fn source(
    data: &Bound<'_, PyAny>,
    model: &Model,
    with_targets: bool,
    shuffle: bool,
) -> PyResult<Source> {
    if let Ok(arrays) = data.cast::<ArrayData>() {
        return arrays.get().source(shuffle).map_err(to_python);
    }
    let Ok(batches) = data.cast::<BatchData>() else {
        return Err(PyTypeError::new_err("data: expected ArrayData or BatchData"));
    };
    let targets = match with_targets {
        true => model.target_dtypes().map_err(to_python)?,
        false => vec![],
    };
    let types = ModelTypes { inputs: model.input_dtypes(), targets };
    Ok(batches.get().source(data.py(), types))
}

fn on_nan(word: &str) -> PyResult<OnNan> {
    match word {
        "warn" => Ok(OnNan::Warn),
        "stop" => Ok(OnNan::Stop),
        "raise" => Ok(OnNan::Raise),
        _ => Err(PyValueError::new_err(format!(
            "on_nan: expected warn, stop or raise, received {word}"
        ))),
    }
}
