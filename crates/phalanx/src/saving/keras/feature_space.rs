//! Files of a `FeatureSpace`: `.keras` archives whose object is a feature space instead of a model. What features have
//! learned lies under `preprocessors/<class>[_k]`, numbered by class in the order of the features.

use super::archive::{self, Archive};
use super::assets::{self, Assets, read_idf_weights, set_vocabulary, write_idf_weights};
use super::config::layer_object;
use super::optimizer_order::Keys;
use super::read::{self, Object, brief, input_type, is_plain_name};
use super::{ByLayer, FileArrays, PLAIN_NAME, Style, content, fault, whole_config};
use crate::error::{Error, Result};
use crate::feature_space::{Cross, Feature, FeatureSpace, Preprocessor};
use crate::layer::{Elements, Layer, LayerHandle};
use crate::layers::Normalization;
use crate::model::snake_case;
use crate::saving::with_path;
use phalanx_graph::DType;
use phalanx_hdf5::{File, GroupBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

/// The module of the objects inside the config.
const MODULE: &str = "keras.src.layers.preprocessing.feature_space";
const CLASS: &str = "FeatureSpace";
/// Maximum number of features and of crosses.
const MAX_FEATURES: usize = 5000;

/// Whether the object of an archive is a feature space.
pub(super) fn is_space(config: &Value) -> bool {
    config.get("class_name").and_then(Value::as_str) == Some(CLASS)
}

#[derive(Deserialize)]
struct Stored {
    config: SpaceKeys,
}

#[derive(Deserialize)]
struct SpaceKeys {
    features: Keys,
}

/// Gives the parts of a class its paths: `hashing`, `hashing_1` and so on.
#[derive(Default)]
struct Paths(HashMap<String, usize>);

impl Paths {
    fn next(&mut self, class: &str) -> String {
        let base = snake_case(class);
        let count = self.0.entry(base.clone()).or_default();
        let path = if *count == 0 { base } else { format!("{base}_{count}") };
        *count += 1;
        format!("preprocessors/{path}/")
    }
}

/// An archive of a feature space.
pub(super) struct SpaceFile<'a> {
    pub path: &'a Path,
    pub config: &'a Value,
    pub file: &'a File,
    pub assets: &'a Assets,
}

impl SpaceFile<'_> {
    /// Reads the space. `text` is that of the config, whose order counts.
    pub fn read(&self, text: &[u8]) -> Result<FeatureSpace> {
        let object = Object::parse("model", self.config)?;
        let known = [
            "features",
            "output_mode",
            "crosses",
            "crossing_dim",
            "hashing_dim",
            "num_discretization_bins",
            "name",
            "trainable",
            "dtype",
        ];
        if let Some(key) = object.config.keys().find(|key| !known.contains(&key.as_str())) {
            let expected = format!("one of {}", known.join(", "));
            return Err(Error::argument(CLASS, "config", expected, brief(&json!(key))));
        }
        let wrong = |argument: &str, expected: &str| {
            let received = object.config.get(argument).unwrap_or(&Value::Null);
            Error::argument(CLASS, argument, expected, brief(received))
        };
        let order = serde_json::from_slice::<Stored>(text);
        let Keys(names) = order.map_err(|_| wrong("features", "features by name"))?.config.features;
        let crosses = match object.config.get("crosses") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(list)) => &list[..],
            Some(_) => return Err(wrong("crosses", "a list")),
        };
        if names.len().max(crosses.len()) > MAX_FEATURES {
            let expected = format!("{MAX_FEATURES} at most");
            return Err(Error::argument(CLASS, "features and crosses", expected, names.len()));
        }
        let mut space = FeatureSpace::new();
        let mut paths = Paths::default();
        for name in names {
            if !is_plain_name(&name) {
                return Err(Error::argument(CLASS, "features", PLAIN_NAME, format!("{name:?}")));
            }
            let value = object.config.get("features").and_then(|features| features.get(&name));
            let feature = self.feature(&name, value.unwrap_or(&Value::Null), &mut paths)?;
            space = space.feature(name, feature);
        }
        space.crosses = crosses.iter().map(cross).collect::<Result<_>>()?;
        if let Some(output) = object.config.get("output_mode") {
            let output = serde_json::from_value(output.clone());
            space = space.output_mode(output.map_err(|_| wrong("output_mode", "concat or dict"))?);
        }
        space.adapted()
    }

    fn feature(&self, name: &str, value: &Value, paths: &mut Paths) -> Result<Feature> {
        let owner = format!("feature '{name}'");
        let config = part(&owner, "Feature", value)?;
        let get = |key: &str| config.get(key).unwrap_or(&Value::Null);
        let wrong =
            |key: &str, expected: &str| Error::argument(&owner, key, expected, brief(get(key)));
        let elements = match get("dtype").as_str() {
            Some("string") => Some(Elements::Strings),
            Some(dtype) => input_type(dtype).map(|dtype| match dtype {
                DType::I32 => Elements::Integers,
                _ => Elements::Floats,
            }),
            None => None,
        };
        let elements = elements.ok_or_else(|| wrong("dtype", "string, integers or floats"))?;
        let output = serde_json::from_value(get("output_mode").clone())
            .map_err(|_| wrong("output_mode", "int, one_hot or float"))?;
        let object = Object::parse("layer", get("preprocessor"))?;
        let layer = read::layer(&object)?;
        let at = paths.next(layer.layer().class_name());
        let preprocessor = self.preprocessor(name, layer, &at)?;
        Ok(Feature { elements, preprocessor, output })
    }

    /// A preprocessor with what it has learned.
    fn preprocessor(&self, name: &str, layer: LayerHandle, at: &str) -> Result<Preprocessor> {
        fn typed<L: DeserializeOwned>(name: &str, config: Map<String, Value>) -> Result<L> {
            let wrong =
                |e: serde_json::Error| Error::config(format!("feature '{name}'"), e.to_string());
            serde_json::from_value(config.into()).map_err(wrong)
        }
        let config = layer.layer().config();
        let bins = config.get("num_bins").and_then(Value::as_u64).map(|bins| bins as usize);
        Ok(match layer.layer().class_name() {
            "TFDIdentity" => Preprocessor::Identity,
            "Rescaling" => Preprocessor::Rescaling(typed(name, config)?),
            "Normalization" => {
                Preprocessor::Normalization(self.normalization(typed(name, config)?, at)?)
            }
            "Discretization" => Preprocessor::Discretization(typed(name, config)?, bins),
            "Hashing" => Preprocessor::Hashing(typed(name, config)?, bins.unwrap_or_default()),
            "IntegerLookup" => {
                Preprocessor::IntegerLookup(self.learned(name, typed(name, config)?, at)?)
            }
            "StringLookup" => {
                Preprocessor::StringLookup(self.learned(name, typed(name, config)?, at)?)
            }
            "TextVectorization" => {
                Preprocessor::TextVectorization(self.learned(name, typed(name, config)?, at)?)
            }
            _ => Preprocessor::Layer(layer),
        })
    }

    /// A layer with the vocabulary of the file.
    fn learned<L: Layer>(&self, name: &str, layer: L, at: &str) -> Result<L> {
        set_vocabulary(self.path, self.assets, &layer, (name, at))?;
        let stored = FileArrays { path: self.path, file: self.file };
        let weights = read_idf_weights(&stored, &layer, at)?;
        if let (Some(vocabulary), Some(weights)) = (layer.vocabulary(), weights) {
            vocabulary.set_idf_weights(weights);
        }
        Ok(layer)
    }

    /// A normalization with the statistics of the file, unless its config has them.
    fn normalization(&self, layer: Normalization, at: &str) -> Result<Normalization> {
        if layer.config().get("mean").is_some_and(|mean| !mean.is_null()) {
            return Ok(layer);
        }
        let numbers = |i: usize| -> Result<Vec<f64>> {
            let dataset = self.file.root().dataset(&format!("{at}vars/{i}"));
            let values = dataset.and_then(|dataset| dataset.read_f32());
            let values = values.map_err(|e| fault(self.path, e))?;
            Ok(values.into_iter().map(f64::from).collect())
        };
        Ok(layer.mean(numbers(0)?).variance(numbers(1)?))
    }
}

/// The config of a part of a space.
fn part<'a>(owner: &str, class: &str, value: &'a Value) -> Result<&'a Map<String, Value>> {
    let object = Object::parse(owner, value)?;
    match object.class == class && object.module == MODULE {
        true => Ok(object.config),
        false => Err(Error::argument(owner, "class_name", class, brief(&json!(object.class)))),
    }
}

fn cross(value: &Value) -> Result<Cross> {
    let config = part("cross", "Cross", value)?;
    serde_json::from_value(config.clone().into())
        .map_err(|e| Error::config("cross", brief(&json!(e.to_string()))))
}

/// The same archive with the functional model of the space in its place.
pub(super) fn as_functional(space: &FeatureSpace) -> Result<(Value, Vec<u8>, Assets)> {
    let model = space.model()?;
    let def = model.definition();
    let weights = content(def, &ByLayer::new(def, &[]), None).to_bytes();
    let weights = weights.map_err(|e| Error::config(CLASS, e.to_string()))?;
    let files = assets::files(def).into_iter();
    let files = files.map(|(path, content)| (path, content.into_bytes())).collect();
    Ok((whole_config(def, Style::Archive, None), weights, files))
}

/// Loads a feature space.
pub(in crate::saving) fn load(path: &Path) -> Result<FeatureSpace> {
    let Archive { config: text, weights, assets, .. } = archive::read(path)?;
    let config = super::parse_config(path, &text)?;
    if !is_space(&config) {
        let received = config.get("class_name").map_or("another object".into(), brief);
        return Err(Error::file(path, "a FeatureSpace (load_model loads models)", received));
    }
    let file = File::from_bytes(weights).map_err(|e| fault(path, e))?;
    let space = SpaceFile { path, config: &config, file: &file, assets: &assets }.read(&text);
    space.map_err(|error| with_path(path, error))
}

/// Writes a feature space. JSON objects are sorted, so the features are in the order of the alphabet.
pub(in crate::saving) fn write(out: &mut dyn Write, space: &FeatureSpace) -> io::Result<()> {
    let mut features: Vec<&(String, Feature)> = space.features.iter().collect();
    features.sort_by(|a, b| a.0.cmp(&b.0));
    let object = |class: &str, config: Value| json!({ "module": MODULE, "class_name": class, "config": config, "registered_name": class });
    let (mut objects, mut build, mut files) = (Map::new(), Map::new(), vec![]);
    let (mut root, mut paths) = (GroupBuilder::new(), Paths::default());
    root.group("vars").attribute("name", "feature_space");
    for (name, feature) in features {
        let (layer, _) = feature.layer(name);
        let at = paths.next(layer.layer().class_name());
        let layer_name = format!("{name}_preprocessor");
        root.group(&format!("{at}vars")).attribute("name", layer_name.clone());
        write_idf_weights(layer.layer(), &at, &mut root);
        files.extend(assets::layer_files(layer.layer(), &at));
        let dtype = match feature.elements {
            Elements::Floats => "float32",
            Elements::Integers => "int32",
            Elements::Strings => "string",
        };
        let preprocessor = layer_object(&layer_name, &layer);
        let config = json!({
            "dtype": dtype, "preprocessor": preprocessor, "output_mode": feature.output,
        });
        objects.insert(name.clone(), object("Feature", config));
        // Layers with a vocabulary are built without a shape.
        let shape = match layer.layer().vocabulary() {
            Some(_) => json!({}),
            None => json!({ "input_shape": [null, 1] }),
        };
        build.insert(name.clone(), shape);
    }
    let mut crosses = vec![];
    for (i, cross) in space.crosses.iter().enumerate() {
        let number = if i == 0 { String::new() } else { format!("_{i}") };
        let vars = format!("crossers/hashed_crossing{number}/vars");
        root.group(&vars).attribute("name", cross.name());
        crosses.push(object("Cross", json!(cross)));
    }
    let config = json!({
        "module": "keras.utils", "class_name": CLASS, "registered_name": null, "build_config": build,
        "config": {
            "features": objects, "output_mode": space.output, "crosses": crosses, "crossing_dim": 32,
            "hashing_dim": 32, "num_discretization_bins": 32,
        },
    });
    let weights = root.to_bytes().map_err(io::Error::other)?;
    archive::write(out, &BTreeMap::new(), &config.to_string(), &weights, &files)
}
