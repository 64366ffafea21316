//! Model and weights files: written atomically, and validated completely before anything changes.
//!
//! The extension selects the format: `.keras` (whole models, as in Keras 3), `.h5` (legacy files of
//! Keras), `.weights.h5` and `.safetensors` (weights). Nothing in a file runs code, opens another file
//! or uses the network.

mod atomic;
mod checkpoints;
mod convert;
mod describe;
mod diff;
mod format;
mod hash;
mod json;
mod keras;
mod legacy;
mod load;
mod model;
mod parts;
pub(crate) mod resnet;
mod run_checkpoints;
mod safe_open;
mod safetensors;
mod training;

pub use atomic::write_atomic;
pub(crate) use atomic::{AtomicFile, create_directory};
pub use checkpoints::{latest_checkpoint, latest_intact_checkpoint};
pub use convert::convert;
pub use describe::{Description, LayerEntry, TensorEntry, describe};
pub use diff::{Difference, diff};
pub(crate) use format::Format;
pub(crate) use keras::{in_structure, layers_in_order, object, optimizer_object};
pub(crate) use legacy::Top;
pub use load::{Load, load_model, read_compile, read_compile_for_evaluation};
use load::{Stored, open_stored, with_path};
pub use parts::{ModelParts, OptimizerValues, OptimizerVariable, unsupported};
pub(crate) use run_checkpoints::RunDirectory;
pub(crate) use safe_open::{open_file, open_no_follow};
pub use training::Training;
pub(crate) use training::{TrainingState, Variable};

use crate::callbacks::WeightSource;
use crate::error::{Error, Result};
use crate::feature_space::FeatureSpace;
use crate::layer::LayerHandle;
use crate::model::{Callee, Definition, Model};
use phalanx_distributed::warnings::warning;
use phalanx_graph::text::shown;
use phalanx_graph::{Tensor, text};
use safetensors::SafeTensors;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of arrays and groups in a file. A model with the maximum number of layers, trained
/// with Adam, has half as many.
const MAX_ARRAYS: usize = phalanx_hdf5::MAX_OBJECTS;

/// Named weights, in the order of the model.
pub(crate) type Weights = [(String, Tensor)];

/// The layer names of a legacy `.h5` file; `None` for other files.
pub(crate) fn legacy_names(path: &Path) -> Result<Option<Vec<String>>> {
    let format = Format::of(path)?;
    if !matches!(format, Format::LegacyH5 | Format::WeightsH5) {
        return Ok(None);
    }
    let stored = open_stored(path, format)?;
    match legacy::weights_group(&stored.file) {
        None => Ok(None),
        Some(_) => legacy::layer_names(path, &stored.file).map(Some),
    }
}

/// Sets the weights of a network from a legacy `.h5` file of the network with or without its top.
pub(crate) fn load_with_top(model: &Model, path: &Path, top: Top) -> Result<()> {
    let stored = open_stored(path, Format::of(path)?)?;
    let how = legacy::Match::Top(top);
    let (staged, _) = legacy::read(path, &stored.file, model.definition(), how)?;
    for (layer, values) in staged {
        layer.set_values(values.into_iter());
    }
    Ok(())
}

/// Loads the feature space of a `.keras` file.
pub(crate) fn load_feature_space(path: &Path) -> Result<FeatureSpace> {
    check_space_format(path)?;
    keras::load_feature_space(path)
}

/// Writes a feature space to a `.keras` file.
pub(crate) fn save_feature_space(space: &FeatureSpace, path: &Path) -> Result<()> {
    check_space_format(path)?;
    write_atomic(path, |out| keras::write_feature_space(out, space))
}

fn check_space_format(path: &Path) -> Result<()> {
    match Format::of(path)? {
        Format::Keras => Ok(()),
        _ => Err(Error::file(path, "a .keras file, which can hold a FeatureSpace", "another one")),
    }
}

/// Which parts of a model to save, if the format can store them.
#[derive(Default)]
pub(crate) struct SaveOptions {
    /// Whether to save the structure.
    pub structure: bool,
    /// Compile arguments and optimizer state.
    pub training: Option<Training>,
}

/// A weight as a file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Element type, for example `f32`.
    dtype: String,
    dims: Vec<usize>,
}

/// Warns about parts of a model that a file cannot store.
pub(crate) fn warn_not_saved(path: &Path, not_saved: &[String]) {
    if !not_saved.is_empty() {
        warning!("{}: not saved: {}", shown(path.display()), not_saved.join("; "));
    }
}

/// Describes the parts of a model that a format cannot store.
fn not_saved(format: Format, def: &Definition, training: Option<&Training>) -> Vec<String> {
    let mut not_saved = match (training, format) {
        (Some(training), Format::SafeTensors) => {
            optimizer_state(training.state.iterations).into_iter().collect()
        }
        (Some(training), _) => training.not_saved.clone(),
        (None, _) => vec![],
    };
    let notes: Vec<String> = def.notes().keys().map(|key| format!("'{key}'")).collect();
    if matches!(format, Format::WeightsH5 | Format::LegacyH5) && !notes.is_empty() {
        let hint = ".keras and .safetensors files store it";
        not_saved.push(format!("the metadata {} ({hint})", notes.join(", ")));
    }
    not_saved
}

/// Describes the state of an optimizer; `None` if it has made no step.
pub(crate) fn optimizer_state(iterations: u64) -> Option<String> {
    let description =
        format!("the optimizer's state after {iterations} steps (.keras files store it)");
    (iterations > 0).then_some(description)
}

/// Saves a model or its weights in the format of the extension. Returns descriptions of what could not
/// be stored.
pub(crate) fn save(
    path: &Path,
    def: &Definition,
    weights: &Weights,
    options: SaveOptions,
) -> Result<Vec<String>> {
    let format = Format::of(path)?;
    if def.outputs.is_empty() {
        let expected = "a model: save each model of the step, or the run with BackupAndRestore";
        return Err(Error::argument(
            format!("training step '{}'", def.name),
            "save",
            expected,
            "a training step",
        ));
    }
    let mut names = HashSet::new();
    if let Some((name, _)) = weights.iter().find(|(name, _)| !names.insert(name)) {
        let owner = format!("model '{}'", def.name);
        return Err(Error::argument(owner, "weight names", "each once", name));
    }
    if format != Format::SafeTensors {
        check_names(def)?;
    }
    if format == Format::LegacyH5 && options.structure {
        legacy::check_has_no_ops(def)?;
    }
    let training = options.training.as_ref();
    write_atomic(path, |out| match format {
        Format::Keras => keras::write(out, def, weights, training),
        Format::WeightsH5 => {
            let weights = keras::ByLayer::new(def, weights);
            let content = keras::content(def, &weights, training);
            out.write_all(&content.to_bytes().map_err(io::Error::other)?)
        }
        Format::LegacyH5 => {
            out.write_all(&legacy::write(def, weights, options.structure, training)?)
        }
        Format::SafeTensors => {
            safetensors::write(out, &def.name, notes(def, training.map(|t| &t.config)), weights)
        }
    })?;
    Ok(not_saved(format, def, training))
}

/// The metadata of a `.safetensors` file: the metadata of the model, its structure and its compile
/// arguments.
pub(crate) fn notes(
    def: &Definition,
    compiled: Option<&Map<String, Value>>,
) -> BTreeMap<String, String> {
    let mut notes = def.notes().clone();
    notes.insert(
        safetensors::CONFIG.into(),
        keras::whole_config(def, keras::Style::Version3, compiled).to_string(),
    );
    notes
}

/// The object of a model inside the config of a layer.
pub(crate) fn nested_config(def: &Definition) -> Value {
    keras::model_config(def, keras::Style::Version3)
}

/// Reads a model inside the config of a layer.
///
/// # Errors
/// If it is not a model of known classes.
pub(crate) fn nested_model(object: &Value) -> Result<Definition> {
    keras::read_structure(object)
}

/// The layers of a model with their paths in Keras' files.
pub(crate) fn layer_paths(def: &Definition) -> Vec<(String, LayerHandle)> {
    keras::layer_paths(def)
}

/// The structure of a model as stored in files.
pub(crate) fn structure(def: &Definition) -> String {
    keras::whole_config(def, keras::Style::Version3, None).to_string()
}

/// Reads the metadata of a file: `model`, the name of the saved model, and the entries set by
/// [`Model::set_metadata`](crate::model::Model::set_metadata).
///
/// # Errors
/// A damaged file, which the error names.
pub fn read_metadata(path: impl AsRef<Path>) -> Result<BTreeMap<String, String>> {
    let path = path.as_ref();
    match Format::of(path)? {
        Format::SafeTensors => Ok(safetensors::open(path)?.metadata()),
        Format::Keras => Ok(keras::notes(&open_stored(path, Format::Keras)?)),
        Format::WeightsH5 | Format::LegacyH5 => Ok(BTreeMap::new()),
    }
}

/// Rejects names that cannot be part of a path in a file.
fn check_names(def: &Definition) -> Result<()> {
    for member in &def.members {
        if !keras::is_plain_name(&member.name) {
            let owner = format!("model '{}'", def.name);
            let received = format!("{:?}", member.name);
            return Err(Error::argument(owner, "layer names", keras::PLAIN_NAME, received));
        }
        if let Callee::Model(inner) = &member.callee {
            check_names(inner)?;
        }
    }
    Ok(())
}

/// The layers that have weights, each listed once. A layer shared by several models has the name under
/// which it occurs first.
fn owners(model: &Definition) -> Vec<(String, LayerHandle)> {
    let mut owners: Vec<(String, LayerHandle)> = vec![];
    for (name, layer) in model.layers() {
        if !owners.iter().any(|(_, known)| known.same(&layer)) {
            owners.push((name, layer));
        }
    }
    owners
}

/// The names and dimensions of the weights.
fn expected_weights(model: &Definition) -> Vec<(String, Vec<usize>)> {
    let of = |(name, layer): (String, LayerHandle)| {
        let weights = layer.weights();
        let one =
            |w: &crate::layer::Weight| (format!("{name}/{}", w.spec.name), w.spec.dims.clone());
        weights.iter().map(one).collect::<Vec<_>>()
    };
    owners(model).into_iter().flat_map(of).collect()
}

/// The current weights of a model whose layers are trained by another.
pub(crate) fn current_weights(model: &Arc<Definition>) -> Result<Vec<(String, Tensor)>> {
    Model::sharing(model).unique_weights()
}

/// The current weights of a run.
pub(crate) fn snapshot(
    model: &Definition,
    source: &dyn WeightSource,
) -> Result<Vec<(String, Tensor)>> {
    let tensor = |(name, dims): (String, Vec<usize>)| {
        let values = source.get(&name)?;
        Ok((name, Tensor::new(dims, values)?))
    };
    expected_weights(model).into_iter().map(tensor).collect()
}

/// Opens a file and checks that it holds exactly these weights.
fn open_checked(path: &Path, expected: &[(String, Vec<usize>)]) -> Result<SafeTensors> {
    let reader = safetensors::open(path)?;
    reader.check_version()?;
    let mut entries = reader.entries();
    let mut faults = vec![];
    for (name, dims) in expected {
        match entries.remove(name) {
            None => faults.push(format!("'{name}' missing")),
            Some(e) if e.dtype == "f32" && e.dims == *dims => {}
            Some(e) => {
                let received = format!("{} {:?}", e.dtype, e.dims);
                faults.push(format!("'{name}' {received} for f32 {dims:?}"));
            }
        }
    }
    let mut more: Vec<String> = entries.into_keys().collect();
    more.sort();
    faults.extend(more.into_iter().map(|name| format!("'{name}' unexpected")));
    if faults.is_empty() {
        return Ok(reader);
    }
    let expected = format!("the {} weights of the model", expected.len());
    Err(Error::file(path, expected, join_faults(&faults)))
}

/// Truncates a message, or a path of names from a file.
fn truncate(text: &str) -> String {
    const MAX_SHOWN: usize = 600;
    text::truncate(text, MAX_SHOWN).into_owned()
}

/// Joins a list of faults, truncated if it is long.
fn join_faults(faults: &[String]) -> String {
    const MAX_SHOWN: usize = 20;
    let mut text = faults[..faults.len().min(MAX_SHOWN)].join(", ");
    if faults.len() > MAX_SHOWN {
        text += &format!(" and {} more", faults.len() - MAX_SHOWN);
    }
    truncate(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{BatchNormalization, Dense};
    use crate::model::{Apply, Input, Sequential};
    use serde_json::json;
    use std::path::PathBuf;

    fn model(units: usize) -> Model {
        Sequential::new()
            .named("net")
            .add(Input::new([3]))
            .add(Dense::new(units))
            .add(BatchNormalization::new())
            .build()
            .unwrap()
    }

    /// A file with this header, followed by `data` bytes.
    fn file(directory: &Path, header: &[u8], length: u64, data: usize) -> PathBuf {
        let path = directory.join("broken.safetensors");
        let bytes = [&length.to_le_bytes()[..], header, &vec![0; data]].concat();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn weights_round_trip_bit_for_bit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.SafeTensors");
        let mut saved = model(2);
        saved.initialize(7).unwrap();
        let mut weights = saved.get_weights().unwrap();
        weights[1] = Tensor::new([2], vec![f32::NAN, -0.0]).unwrap();
        saved.set_weights(&weights).unwrap();
        saved.save_weights(&path).unwrap();
        let mut loaded = model(2);
        loaded.load_weights(&path).unwrap();
        let bits = |model: &mut Model| -> Vec<(String, Vec<u32>)> {
            let bits = |t: Tensor| t.f32().unwrap().iter().map(|v| v.to_bits()).collect();
            model.weights().unwrap().into_iter().map(|(n, t)| (n, bits(t))).collect()
        };
        assert_eq!(bits(&mut saved), bits(&mut loaded));
        // Equal weights make equal files, which other programs can read.
        let bytes = std::fs::read(&path).unwrap();
        loaded.save_weights(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let (_, header) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().as_ref().unwrap();
        assert_eq!((metadata["model"].as_str(), metadata["format_version"].as_str()), ("net", "1"));
        assert_eq!(header.info("dense/kernel").unwrap().shape, [3, 2]);
        assert_eq!(header.tensors().len(), 6);
    }

    #[test]
    fn metadata_is_saved_with_the_weights() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("noted.safetensors");
        let saved = model(2);
        saved.set_metadata("origin", "{\"classes\": [\"cat\"]}");
        saved.set_metadata("model", "our own keys stay ours");
        saved.save_weights(&path).unwrap();
        let notes = read_metadata(&path).unwrap();
        assert_eq!(notes["origin"], "{\"classes\": [\"cat\"]}");
        assert_eq!(notes["model"], "net");
        model(2).load_weights(&path).unwrap();
    }

    #[test]
    fn a_shared_layer_is_saved_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shared.safetensors");
        let build = || {
            let shared = LayerHandle::from(Dense::new(3));
            let x = Input::new([3]).symbol();
            let inner = Model::with_name("inner", &x, (&shared).apply(&x)).unwrap();
            let x = Input::new([3]).symbol();
            Model::new(&x, shared.apply(inner.apply(&x))).unwrap()
        };
        let saved = build();
        saved.initialize(3).unwrap();
        saved.save_weights(&path).unwrap();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).to_string();
        assert!(text.contains("inner/dense/kernel") && !text.contains("\"dense/kernel"), "{text}");
        let mut loaded = build();
        loaded.load_weights(&path).unwrap();
        assert_eq!(loaded.get_weights().unwrap(), saved.get_weights().unwrap());
    }

    #[test]
    fn a_file_of_another_model_changes_nothing_and_every_fault_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.safetensors");
        let x = Input::new([3]).symbol();
        let dense = Dense::new(4).use_bias(false).apply(&x);
        Model::new(&x, Dense::new(1).apply(dense)).unwrap().save_weights(&path).unwrap();
        let mut model = model(2);
        let before = model.get_weights().unwrap();
        let error = model.load_weights(&path).unwrap_err().to_string();
        for fault in [
            "other.safetensors: expected the 6 weights of the model",
            "'dense/kernel' f32 [3, 4] for f32 [3, 2]",
            "'dense/bias' missing",
            "'batch_normalization/gamma' missing",
            "'dense_1/bias' unexpected, 'dense_1/kernel' unexpected",
        ] {
            assert!(error.contains(fault), "{error}");
        }
        assert_eq!(model.get_weights().unwrap(), before);
        assert!(join_faults(&vec!["x".to_string(); 25]).ends_with("x and 5 more"));
    }

    #[test]
    fn broken_files_are_refused_without_a_panic() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let mut model = model(2);
        let good = directory.join("good.safetensors");
        model.save_weights(&good).unwrap();
        let good = std::fs::read(good).unwrap();
        let before = model.get_weights().unwrap();
        let mut refuse = |path: &Path| {
            let error = model.load_weights(path).unwrap_err().to_string();
            assert!(error.contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
            assert_eq!(model.get_weights().unwrap(), before);
            error
        };
        let path = directory.join("cut.safetensors");
        for length in (0..good.len()).step_by(3).chain([7, 8, 9, good.len() - 1]) {
            std::fs::write(&path, &good[..length]).unwrap();
            refuse(&path);
        }
        std::fs::write(&path, [&good[..], &[0]].concat()).unwrap();
        assert!(refuse(&path).contains("bytes of tensors"));
        for length in [0, 7, 99, 1 << 40, 1 << 63, u64::MAX] {
            let error = refuse(&file(directory, b"{}      ", length, 8));
            assert!(!error.contains("system"), "{error}");
        }
        let tensor = |dtype: &str, shape: &[u64], from: u64, to: u64| json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]});
        let huge = (1u64 << 61) - 1;
        let pile: serde_json::Map<String, serde_json::Value> = (0..8)
            .map(|i| (i.to_string(), tensor("U8", &[huge], i * huge, (i + 1) * huge)))
            .collect();
        let deep = "[".repeat(100_000);
        for header in [
            json!({"dense/kernel": tensor("F32", &[3, 2], 0, 24)}).to_string(),
            json!({"a": tensor("F32", &[2], 0, 8), "b": tensor("F32", &[2], 4, 12)}).to_string(),
            json!({"a": tensor("F32", &[1], 0, 4), "b": tensor("F32", &[1], 8, 12)}).to_string(),
            json!({"a": tensor("F32", &[4194305, 4194305, 211106198978564], 0, 12)}).to_string(),
            json!({"a": tensor("F99", &[3], 0, 12)}).to_string(),
            json!({"a": tensor("F4", &[3], 0, 1)}).to_string(),
            json!({"a": tensor("F32", &[3], 12, 0)}).to_string(),
            json!({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}).to_string(),
            json!({"__metadata__": {"format_version": "2"}}).to_string(),
            serde_json::Value::from(pile).to_string(),
            format!("{{\"a\":{deep}"),
            "[]".into(),
            "{\"a\": \u{0}}".into(),
            String::new(),
        ] {
            refuse(&file(directory, header.as_bytes(), header.len() as u64, 12));
        }
        assert!(refuse(&file(directory, b"{\"\xff\xfe\": 1}", 9, 0)).contains("does not parse"));
        let double = json!({
            "dense/kernel": tensor("F64", &[3, 2], 0, 48),
            "dense/bias": tensor("I32", &[2], 48, 56),
        })
        .to_string();
        let error = refuse(&file(directory, double.as_bytes(), double.len() as u64, 56));
        assert!(error.contains("'dense/kernel' f64 [3, 2] for f32 [3, 2]"), "{error}");
        assert!(error.contains("'dense/bias' i32 [2] for f32 [2]"), "{error}");
        std::fs::create_dir(directory.join("directory.safetensors")).unwrap();
        assert!(refuse(&directory.join("directory.safetensors")).contains("a directory"));
        assert!(refuse(&directory.join("missing.safetensors")).contains("No such file"));
    }

    #[test]
    fn unknown_extensions_are_rejected_and_the_supported_ones_listed() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["model.onnx", ".h5", "model"] {
            let path = directory.path().join(name);
            let error = model(1).save_weights(&path).unwrap_err().to_string();
            assert!(error.contains(".safetensors"), "{error}");
            assert!(!path.exists());
            let error = model(1).load_weights(&path).unwrap_err().to_string();
            assert!(error.contains("expected a name ending in .weights.h5, .keras"), "{error}");
        }
        let error = model(1).save_weights(directory.path().join("model.keras")).unwrap_err();
        assert!(error.to_string().contains("one of a whole model (see save)"), "{error}");
        let error = model(1).save(directory.path().join("model.weights.h5")).unwrap_err();
        assert!(
            error.to_string().contains("one of a file of weights (see save_weights)"),
            "{error}"
        );
    }
}
