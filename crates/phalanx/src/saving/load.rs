//! Whole models from files.

use super::hdf5::File;
use super::keras::Variables;
use super::{Format, keras, legacy, open_file, safetensors};
use crate::error::{Error, Result};
use crate::memory;
use crate::model::{Compile, Model};
use crate::strategy::MirroredStrategy;
use crate::warnings::warning;
use crate::workers::MultiWorkerMirroredStrategy;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// An HDF5 file and what stands beside it.
#[derive(Debug)]
pub(super) struct Stored {
    pub config: Option<Value>,
    pub metadata: Option<Value>,
    pub file: File,
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
    let file = File::new(bytes).map_err(|f| keras::fault(path, f))?;
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
    Ok(Stored { config, metadata: None, file })
}

/// How a model is loaded: compiled as its file says, on one CPU device, unless told otherwise.
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
}

impl Default for Load {
    fn default() -> Load {
        Load { compile: true, strategy: MirroredStrategy::new().into(), seed: 0 }
    }
}

impl Load {
    /// Compiled as the file says.
    pub fn new() -> Load {
        Load::default()
    }

    /// Whether to compile the model as its file says; else only structure and weights are read.
    pub fn compile(mut self, compile: bool) -> Load {
        self.compile = compile;
        self
    }

    /// The devices that train: a [`MirroredStrategy`], or a [`MultiWorkerMirroredStrategy`].
    pub fn strategy(mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Load {
        self.strategy = strategy.into();
        self
    }

    /// Seed of shuffling and dropout.
    pub fn seed(mut self, seed: u64) -> Load {
        self.seed = seed;
        self
    }

    /// Reads a model from a `.keras`, `.h5` or `.safetensors` file.
    ///
    /// # Errors
    /// A broken file, one without a structure, and whatever in it Phalanx does not have, by name.
    pub fn model(self, path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        let format = Format::of(path)?;
        if format == Format::SafeTensors {
            let config = stored_config(path)?;
            let mut model = structure(path, &config)?;
            note(&model, safetensors::open(path)?.notes());
            model.load_weights(path)?;
            self.train(path, &mut model, &config, None)?;
            return Ok(model);
        }
        let stored = open_stored(path, format)?;
        let config = stored.config.as_ref().ok_or_else(|| weights_only(path))?;
        let mut model = structure(path, config)?;
        note(&model, keras::own_notes(&stored));
        stored.set_weights(path, &mut model)?;
        let variables = if self.compile { stored.variables(path)? } else { None };
        self.train(path, &mut model, config, variables)?;
        Ok(model)
    }

    /// Compiles the model and hands the optimizer what it had gathered.
    fn train(
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
        let in_file = |error| within(path, error);
        let compile = keras::compile(config, &model.output_names()).map_err(in_file)?;
        let Some(mut compile) = compile else { return Ok(()) };
        compile.strategy = self.strategy;
        compile.seed = self.seed;
        model.compile(compile).map_err(in_file)?;
        // Versions before 3 kept other variables in legacy files; then the optimizer starts anew.
        let old = config.contains_key("optimizer_config");
        let (Some(engine), Some((iteration, variables))) =
            (model.compiled_session_mut(), variables)
        else {
            return Ok(());
        };
        match engine.set_training_state(iteration, &variables) {
            Err(_) if old => {
                let path = path.display();
                warning!("{path}: the optimizer's state is of Keras 2: it starts anew");
                Ok(())
            }
            done => done.map_err(in_file),
        }
    }
}

impl Stored {
    /// The optimizer's variables.
    fn variables(&self, path: &Path) -> Result<Variables> {
        match legacy::weights_group(&self.file) {
            Some(_) => legacy::read_variables(path, &self.file),
            None => keras::read_variables(path, &self.file),
        }
    }

    /// Sets every weight of a model, or none.
    pub fn set_weights(&self, path: &Path, model: &mut Model) -> Result<()> {
        let def = model.definition();
        let staged = match legacy::weights_group(&self.file) {
            Some(_) => legacy::read(path, &self.file, def, legacy::Match::Exactly)?.0,
            None => keras::read_weights(path, &self.file, def)?,
        };
        for (layer, values) in staged {
            layer.set_values(values.into_iter());
        }
        Ok(())
    }
}

/// How a file's model was compiled, to compile another with; `None` where it was not.
///
/// # Errors
/// A broken file, one without a structure, and whatever in it Phalanx does not have, by name.
pub fn read_compile(path: impl AsRef<Path>) -> Result<Option<Compile>> {
    let path = path.as_ref();
    let config = stored_config(path)?;
    let outputs = structure(path, &config)?.output_names();
    match config.get("compile_config").and_then(Value::as_object) {
        Some(config) => keras::compile(config, &outputs).map_err(|error| within(path, error)),
        None => Ok(None),
    }
}

/// How to compile a file's model to evaluate it: its losses, the metrics that Phalanx has, and for each other metric a
/// line that says what is left out. The optimizer is not looked at. `None` where the file has no loss.
///
/// # Errors
/// A broken file, one without a structure, and a loss that Phalanx does not have.
pub fn read_compile_for_evaluation(
    path: impl AsRef<Path>,
) -> Result<Option<(Compile, Vec<String>)>> {
    let path = path.as_ref();
    let config = stored_config(path)?;
    let outputs = structure(path, &config)?.output_names();
    match config.get("compile_config").and_then(Value::as_object) {
        Some(config) => {
            keras::compile_for_evaluation(config, &outputs).map_err(|error| within(path, error))
        }
        None => Ok(None),
    }
}

/// The steps that the optimizer in a file has made; 0 where there is none.
pub(super) fn stored_iterations(path: &Path) -> Result<u64> {
    let format = Format::of(path)?;
    if format == Format::SafeTensors {
        return Ok(0);
    }
    let variables = open_stored(path, format)?.variables(path)?;
    Ok(variables.map_or(0, |(iteration, _)| iteration))
}

/// The config of a file's model.
fn stored_config(path: &Path) -> Result<Value> {
    let config = match Format::of(path)? {
        Format::SafeTensors => safetensors::open(path)?.config()?,
        format => open_stored(path, format)?.config,
    };
    config.ok_or_else(|| weights_only(path))
}

fn structure(path: &Path, config: &Value) -> Result<Model> {
    keras::read_structure(config).map(Model::of).map_err(|error| within(path, error))
}

/// A model's files say what the file it comes from says.
fn note(model: &Model, notes: BTreeMap<String, String>) {
    notes.into_iter().for_each(|(key, value)| model.set_metadata(&key, value));
}

fn weights_only(path: &Path) -> Error {
    let received = "weights only (build the model, then load_weights)";
    Error::file(path, "a file with a model's structure", received)
}

/// An error with the file it is about.
fn within(path: &Path, error: Error) -> Error {
    Error::config(path.display().to_string(), super::cut(&error.to_string()))
}

/// Reads a model from a `.keras`, `.h5` or `.safetensors` file, compiled as the file says and ready
/// for `fit`; [`Load`] has more to choose.
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
/// A broken file, one without a structure, and whatever in it Phalanx does not have, by name.
pub fn load_model(path: impl AsRef<Path>) -> Result<Model> {
    Load::new().model(path)
}
