//! Every unsupported part of a config at once. Reading a config ends at the first.

use super::compile;
use super::read::{self, Object};
use crate::error::{Error, Result};
use serde_json::Value;

/// Describes every part of a config that cannot be read by itself.
pub(in crate::saving) fn unsupported_parts(config: &Value) -> Vec<String> {
    let mut found = vec![];
    model(config, 0, &mut found);
    if let Some(arguments) = config.get("compile_config") {
        if let Some(optimizer) = arguments.get("optimizer").filter(|value| !value.is_null()) {
            note(compile::read_optimizer(optimizer).err(), &mut found);
        }
        each_object(&arguments["loss"], &mut |value| note(compile::loss(value).err(), &mut found));
        for key in ["metrics", "weighted_metrics"] {
            let mut metric = |value: &Value| note(compile::metric(value).err(), &mut found);
            each_object(&arguments[key], &mut metric);
        }
    }
    found
}

/// Checks the layers of a model and of the models in it.
fn model(config: &Value, depth: usize, found: &mut Vec<String>) {
    if depth > read::MAX_DEPTH {
        return;
    }
    let Some(layers) = config["config"]["layers"].as_array() else {
        let class = config["class_name"].as_str().unwrap_or("of no class");
        found.push(format!("model ({class}) is not a Sequential or functional model"));
        return;
    };
    for layer in layers {
        match layer["class_name"].as_str() {
            Some("Sequential" | "Functional" | "Model") => model(layer, depth + 1, found),
            _ => found.extend(layer_fault(layer)),
        }
    }
}

/// Describes what is wrong with a layer, if anything.
fn layer_fault(value: &Value) -> Option<String> {
    let read = || -> Result<()> {
        let object = Object::parse("layer", value)?;
        match object.class {
            "InputLayer" => read::input(&object).map(drop),
            _ => read::layer_or_op(&object).map(drop),
        }
    };
    let error = read().err()?;
    let name = value["config"]["name"].as_str().or(value["name"].as_str());
    let class = value["class_name"].as_str().unwrap_or("no class");
    let is_unknown = match &error {
        Error::Unknown { kind, .. } => kind.contains("layer"),
        Error::Argument { owner, argument, .. } => owner == "layer" && argument == "class",
        _ => false,
    };
    let text = match (name, is_unknown) {
        (Some(name), true) => format!("layer '{name}' ({class}) is unknown"),
        _ => error.to_string(),
    };
    Some(crate::saving::truncate(&text))
}

/// Calls `f` with every object or name in the lists and maps of a compile argument.
fn each_object(value: &Value, f: &mut dyn FnMut(&Value)) {
    match value {
        Value::Null => {}
        Value::Array(list) => list.iter().for_each(|value| each_object(value, f)),
        Value::Object(map) if !map.contains_key("class_name") => {
            map.values().for_each(|value| each_object(value, f));
        }
        object => f(object),
    }
}

/// Adds the text of an error, once.
fn note(error: Option<Error>, found: &mut Vec<String>) {
    let Some(error) = error else { return };
    let text = match error {
        Error::Unknown { kind, name, .. } => format!("{kind} '{name}' is unknown"),
        other => other.to_string(),
    };
    let text = crate::saving::truncate(&text);
    if !found.contains(&text) {
        found.push(text);
    }
}
