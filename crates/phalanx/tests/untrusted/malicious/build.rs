//! Builders of the files under test.

use phalanx::prelude::*;
use serde_json::{Value, json};
use std::io::{Cursor, Write};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// The path that archive entries try to write.
pub const ESCAPED: &str = "/phalanx-escaped";

/// The model whose weights the weights files hold.
pub fn network() -> Model {
    Sequential::new().add(Input::new([4])).add(Dense::new(3)).build().unwrap()
}

/// The content that a function writes to a file of this name.
pub fn written(file: &str, write: impl FnOnce(&std::path::Path)) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(file);
    write(&path);
    std::fs::read(path).unwrap()
}

/// The weights of the network as `.weights.h5`.
pub fn weights() -> Vec<u8> {
    written("a.weights.h5", |path| network().save_weights(path).unwrap())
}

/// An archive of these members.
pub fn zip_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    packed(members, CompressionMethod::Stored)
}

/// The same with a given compression method.
pub fn packed(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A `.keras` file with this config and the weights of the network.
pub fn with_config(config: &[u8]) -> Vec<u8> {
    zip_of(&[("metadata.json", b"{}"), ("config.json", config), ("model.weights.h5", &weights())])
}

/// A serialized Keras object.
pub fn layer(class: &str, config: Value) -> Value {
    json!({ "module": "keras.layers", "class_name": class, "config": config,
        "registered_name": null })
}

/// An input of four numbers.
pub fn input() -> Value {
    layer("InputLayer", json!({ "name": "x", "batch_shape": [null, 4] }))
}

/// The layer of the network.
pub fn dense() -> Value {
    layer("Dense", json!({ "name": "dense", "units": 3 }))
}

/// A chain of layers.
pub fn sequential(name: &str, layers: impl IntoIterator<Item = Value>) -> Value {
    let layers: Vec<Value> = layers.into_iter().collect();
    json!({ "module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": { "name": name, "layers": layers } })
}

/// The config of the network with another layer.
pub fn chain(layer: Value) -> Value {
    sequential("net", [input(), layer])
}

/// A layer that takes the outputs of others, each once.
pub fn call(mut layer: Value, operands: &[(&str, u64)]) -> Value {
    let tensor = |(name, number): &(&str, u64)| json!({ "class_name": "__keras_tensor__", "config": { "keras_history": [name, number, 0] } });
    let node = |operand| json!({ "args": [tensor(operand)], "kwargs": {} });
    layer["name"] = layer["config"]["name"].clone();
    layer["inbound_nodes"] = operands.iter().map(node).collect();
    layer
}

/// A graph from `x` to the call of a layer.
pub fn graph(name: &str, layers: Vec<Value>, output: (&str, u64)) -> Value {
    let mut all = vec![call(input(), &[])];
    all.extend(layers);
    json!({ "module": "keras", "class_name": "Functional", "registered_name": "Functional",
        "config": { "name": name, "layers": all, "input_layers": [["x", 0, 0]],
            "output_layers": [[output.0, output.1, 0]] } })
}
