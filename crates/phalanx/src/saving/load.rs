//! Loading of whole models.

use super::keras::{Assets, FileArrays, Variables};
use super::{Format, keras, legacy, open_file, safetensors};
use crate::error::{Error, Result};
use crate::memory;
use crate::model::{Compile, Model};
use crate::strategy::MirroredStrategy;
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_distributed::warnings::warning;
use phalanx_hdf5::File;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// An HDF5 file, and the data stored next to it.
#[derive(Debug)]
pub(super) struct Stored {
    pub config: Option<Value>,
    pub metadata: Option<Value>,
    pub file: File,
    /// Files of the archive besides config and weights.
    pub assets: Assets,
}

/// Opens `.keras` and `.h5` files.
pub(super) fn open_stored(path: &Path, format: Format) -> Result<Stored> {
    if format == Format::Keras {
        return keras::open(path);
    }
    let io = |source| Error::io(path, source);
    let mut bytes = vec![];
    let mut file = open_file(path, "an HDF5 file")?;
    memory::check_file(path, file.metadata().map_err(io)?.len())?;
    file.read_to_end(&mut bytes).map_err(io)?;
    let file = File::from_bytes(bytes).map_err(|e| keras::fault(path, e))?;
    let config = match legacy::weights_group(&file) {
        None => None,
        Some(_) => {
            let (model, training) = legacy::configs(path, &file)?;
            model.map(|mut model| {
                if let (Some(object), Some(training)) = (model.as_object_mut(), training) {
                    object.insert("compile_config".into(), training);
                }
                model
            })
        }
    };
    Ok(Stored { config, metadata: None, file, assets: Assets::default() })
}

/// Options for loading a model. By default it is compiled as in its file, on one CPU device.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn main() -> Result<()> {
/// let devices = MirroredStrategy::with_devices(["cpu:0", "cpu:1"])?;
/// let mut model = Load::new().strategy(devices).model("model.keras")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Load {
    compile: bool,
    strategy: MultiWorkerMirroredStrategy,
    seed: u64,
    input_shapes: Vec<Vec<usize>>,
}

impl Default for Load {
    fn default() -> Load {
        let strategy = MirroredStrategy::new().into();
        Load { compile: true, strategy, seed: 0, input_shapes: vec![] }
    }
}

impl Load {
    /// The default options: compiled as in the file.
    pub fn new() -> Load {
        Load::default()
    }

    /// Whether to compile the model as in its file. Otherwise only structure and weights are loaded.
    pub fn compile(mut self, compile: bool) -> Load {
        self.compile = compile;
        self
    }

    /// Sets the training devices: a [`MirroredStrategy`], or a [`MultiWorkerMirroredStrategy`].
    pub fn strategy(mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Load {
        self.strategy = strategy.into();
        self
    }

    /// Sets the seed of shuffling and dropout.
    pub fn seed(mut self, seed: u64) -> Load {
        self.seed = seed;
        self
    }

    /// Sets the shapes of the inputs, without the batch, for a file that leaves sizes open, such as `(None, None, 3)`; see
    /// [`Model::with_input_shapes`].
    pub fn input_shapes<S: Into<Vec<usize>>>(
        mut self,
        shapes: impl IntoIterator<Item = S>,
    ) -> Load {
        self.input_shapes = shapes.into_iter().map(Into::into).collect();
        self
    }

    /// The structure of a model, with the shapes of its inputs.
    pub(super) fn structure(&self, path: &Path, config: &Value) -> Result<Model> {
        let model = structure(path, config)?;
        if self.input_shapes.is_empty() {
            return Ok(model);
        }
        let shapes = self.input_shapes.iter().cloned();
        model.with_input_shapes(shapes).map_err(|error| with_path(path, error))
    }

    /// Loads a model from a `.keras`, `.h5` or `.safetensors` file.
    ///
    /// # Errors
    /// A damaged file, a file without structure, or an unsupported object, which the error names.
    pub fn model(self, path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        let format = Format::of(path)?;
        if format == Format::SafeTensors {
            let config = stored_config(path)?;
            let mut model = self.structure(path, &config)?;
            set_metadata(&model, safetensors::open(path)?.notes());
            model.load_weights(path)?;
            self.compile_model(path, &mut model, &config, None)?;
            return Ok(model);
        }
        let stored = open_stored(path, format)?;
        let config = stored.config.as_ref().ok_or_else(|| weights_only(path))?;
        let mut model = self.structure(path, config)?;
        set_metadata(&model, keras::user_metadata(&stored));
        stored.set_weights(path, &mut model)?;
        keras::set_vocabularies(path, &stored.assets, model.definition())
            .map_err(|error| with_path(path, error))?;
        let variables = if self.compile { stored.variables(path)? } else { None };
        self.compile_model(path, &mut model, config, variables)?;
        Ok(model)
    }

    /// Compiles the model and restores the state of the optimizer.
    pub(super) fn compile_model(
        self,
        path: &Path,
        model: &mut Model,
        config: &Value,
        variables: Variables,
    ) -> Result<()> {
        let empty = Map::new();
        let config = config.get("compile_config").and_then(Value::as_object).unwrap_or(&empty);
        if !self.compile || config.is_empty() {
            return Ok(());
        }
        let in_file = |error| with_path(path, error);
        let compile = keras::compile(config, &keras::Outputs::of(model)).map_err(in_file)?;
        let Some(mut compile) = compile else { return Ok(()) };
        // Keras also compiles models that can neither be trained nor evaluated.
        let compares = compile.compared_outputs().contains(&true);
        if !compares && !model.has_penalties().map_err(in_file)? {
            return Ok(());
        }
        compile.strategy = self.strategy;
        compile.seed = self.seed;
        model.compile(compile).map_err(in_file)?;
        // Keras versions before 3 stored different variables in legacy files. The optimizer state is
        // then reset.
        let keras_2 = config.contains_key("optimizer_config");
        let (Some(session), Some((iteration, variables))) =
            (model.compiled_session_mut(), variables)
        else {
            return Ok(());
        };
        match session.set_training_state(iteration, &variables) {
            Err(_) if keras_2 => {
                let path = path.display();
                warning!("{path}: the optimizer state is from Keras 2 and is reset");
                Ok(())
            }
            done => done.map_err(in_file),
        }
    }
}

impl Stored {
    /// Reads the variables of the optimizer.
    fn variables(&self, path: &Path) -> Result<Variables> {
        match legacy::weights_group(&self.file) {
            Some(_) => legacy::read_variables(path, &self.file),
            None => keras::read_variables(path, &self.file),
        }
    }

    /// Sets all weights of a model, or none on error.
    pub fn set_weights(&self, path: &Path, model: &mut Model) -> Result<()> {
        let def = model.definition();
        let staged = match legacy::weights_group(&self.file) {
            Some(_) => legacy::read(path, &self.file, def, legacy::Match::Exactly)?.0,
            None => keras::read_weights(path, &FileArrays { path, file: &self.file }, def)?,
        };
        for (layer, values) in staged {
            layer.set_values(values.into_iter());
        }
        Ok(())
    }
}

/// The compile arguments of the model in a file; `None` if it was not compiled.
///
/// # Errors
/// A damaged file, a file without structure, or an unsupported object, which the error names.
pub fn read_compile(path: impl AsRef<Path>) -> Result<Option<Compile>> {
    let path = path.as_ref();
    let config = stored_config(path)?;
    let outputs = keras::Outputs::of(&structure(path, &config)?);
    match config.get("compile_config").and_then(Value::as_object) {
        Some(config) => keras::compile(config, &outputs).map_err(|error| with_path(path, error)),
        None => Ok(None),
    }
}

/// The compile arguments for evaluating the model in a file: its losses and the supported metrics. Also
/// returns a message for each metric that is left out. The optimizer is ignored. `None` if the file has
/// neither losses nor metrics.
///
/// # Errors
/// A damaged file, a file without structure, or an unsupported loss.
pub fn read_compile_for_evaluation(
    path: impl AsRef<Path>,
) -> Result<Option<(Compile, Vec<String>)>> {
    let path = path.as_ref();
    let config = stored_config(path)?;
    let outputs = keras::Outputs::of(&structure(path, &config)?);
    match config.get("compile_config").and_then(Value::as_object) {
        Some(config) => {
            keras::compile_for_evaluation(config, &outputs).map_err(|error| with_path(path, error))
        }
        None => Ok(None),
    }
}

/// Number of steps of the optimizer in a file; 0 if there is none.
pub(super) fn stored_iterations(path: &Path) -> Result<u64> {
    let format = Format::of(path)?;
    if format == Format::SafeTensors {
        return Ok(0);
    }
    let variables = open_stored(path, format)?.variables(path)?;
    Ok(variables.map_or(0, |(iteration, _)| iteration))
}

/// The config of the model in a file.
fn stored_config(path: &Path) -> Result<Value> {
    let config = match Format::of(path)? {
        Format::SafeTensors => safetensors::open(path)?.config()?,
        format => open_stored(path, format)?.config,
    };
    config.ok_or_else(|| weights_only(path))
}

fn structure(path: &Path, config: &Value) -> Result<Model> {
    keras::read_structure(config).map(Model::of).map_err(|error| with_path(path, error))
}

/// Copies the metadata of the file to the model, so that it is saved again.
fn set_metadata(model: &Model, notes: BTreeMap<String, String>) {
    notes.into_iter().for_each(|(key, value)| model.set_metadata(&key, value));
}

fn weights_only(path: &Path) -> Error {
    let received = "weights only (build the model, then load_weights)";
    Error::file(path, "a file with a model's structure", received)
}

/// Adds the path to an error.
pub(super) fn with_path(path: &Path, error: Error) -> Error {
    Error::config(path.display().to_string(), super::truncate(&error.to_string()))
}

/// Loads a model from a `.keras`, `.h5` or `.safetensors` file, compiled as in the file and ready for
/// `fit`. [`Load`] has more options.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn main() -> Result<()> {
/// let mut model = load_model("model.keras")?;
/// println!("{}", model.summary());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A damaged file, a file without structure, or an unsupported object, which the error names.
pub fn load_model(path: impl AsRef<Path>) -> Result<Model> {
    Load::new().model(path)
}
