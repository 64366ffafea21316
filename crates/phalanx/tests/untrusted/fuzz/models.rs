//! Model files: `.keras`, `.weights.h5`, legacy `.h5`, and the tools for inspecting and converting them.

use super::targets::{Seed, Target, of_file, written};
use super::{mutate, tree};
use phalanx::feature_space::{Feature, FeatureSpace};
use phalanx::prelude::*;
use phalanx::saving::{convert, describe};
use std::io::{Cursor, Read, Write};
use std::path::Path;

/// Files of h5py, with structures of newer versions and compressed arrays.
const NEWER: &[u8] = include_bytes!("../../../../phalanx-hdf5/tests/fixtures/h5py_latest.h5");
const CHUNKED: &[u8] = include_bytes!("../../../../phalanx-hdf5/tests/fixtures/h5py_v108.h5");

pub fn targets() -> Vec<Target> {
    let packed = || {
        let models = networks().into_iter().chain([texts()]);
        let files = models.map(|model| saved(&model, "a.keras")).chain([feature_space()]);
        files.flat_map(keras_seeds).collect::<Vec<Seed>>()
    };
    let whole = || networks().iter().map(|m| saved(m, "a.h5").into()).collect::<Vec<Seed>>();
    let weights = networks().iter().map(weights_of).map(Seed::from).collect();
    let foreign = whole().into_iter().chain([NEWER.to_vec().into(), CHUNKED.to_vec().into()]);
    vec![
        of_file("keras", "a.keras", packed(), |path| load_model(path).is_ok()),
        of_file("legacy h5", "a.h5", whole(), |path| load_model(path).is_ok()),
        weights_h5(weights),
        of_file("describe keras", "a.keras", packed(), shown),
        of_file("describe h5", "a.h5", foreign.collect(), shown),
        of_file("convert keras", "a.keras", packed(), |path| {
            convert(path, path.with_extension("h5")).is_ok()
        }),
        of_file("convert h5", "a.h5", whole(), |path| {
            convert(path, path.with_extension("safetensors")).is_ok()
        }),
    ]
}

fn shown(path: &Path) -> bool {
    describe(path).map(|description| description.to_string()).is_ok()
}

fn weights_h5(seeds: Vec<Seed>) -> Target {
    of_file("weights.h5", "a.weights.h5", seeds, |path| {
        networks().iter_mut().any(|model| model.load_weights(path).is_ok())
    })
}

/// Small models that cover everything files describe.
fn networks() -> Vec<Model> {
    vec![dense(), convolution(), nested()]
}

fn dense() -> Model {
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(Dense::new(3).activation("relu").kernel_regularizer("l2"))
        .add(Dense::new(2))
        .build()
        .unwrap();
    model.compile(Compile::new("adam").loss("mse").metrics(["mae"])).unwrap();
    model
}

fn convolution() -> Model {
    Sequential::new()
        .add(Input::new([6, 6, 1]))
        .add(Conv2D::new(2, 3).padding("same"))
        .add(BatchNormalization::new())
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(2))
        .build()
        .unwrap()
}

/// A shared layer, a nested chain, two outputs.
fn nested() -> Model {
    let inner = Sequential::new().named("inner").add(Input::new([4])).add(Dense::new(4));
    let inner = inner.add(BatchNormalization::new()).build().unwrap();
    let x = Input::new([4]).named("x").symbol();
    let shared = Dense::new(4).named("shared");
    let a = shared.apply(&x);
    let b = shared.apply(inner.apply(&a));
    let sum = Add::new().apply([&a, &b]);
    Model::with_name("graph", &x, [&sum, &b]).unwrap()
}

/// Strings of an open length, whose vocabulary is in the config.
fn texts() -> Model {
    let x = Input::new([1]).strings().symbol();
    let vectorize = TextVectorization::new().vocabulary(["a", "b"]).ngrams([1, 2]);
    let y = Embedding::new(4, 2).apply(vectorize.apply(&x));
    Model::new(&x, GlobalAveragePooling1D::new().apply(&y)).unwrap()
}

/// The file of a feature space.
fn feature_space() -> Vec<u8> {
    let lookup = StringLookup::new().vocabulary(["a", "b"]);
    let space = FeatureSpace::new()
        .feature("city", Feature::of_strings(lookup))
        .feature("number", Feature::integer_hashed(3))
        .feature("weight", Feature::float_normalized())
        .cross(["city", "number"]);
    let (city, number) = (Text::from(["a", "b"]), Tensor::new([2], vec![1, 2]).unwrap());
    let weight = Tensor::new([2], vec![1.0f32, 3.0]).unwrap();
    let table: [(&str, Samples); 3] =
        [("city", city.into()), ("number", number.into()), ("weight", weight.into())];
    let space = space.adapt(table).unwrap();
    written("a.keras", |path| space.save(path).unwrap())
}

fn saved(model: &Model, file: &str) -> Vec<u8> {
    written(file, |path| model.save(path).unwrap())
}

fn weights_of(model: &Model) -> Vec<u8> {
    written("a.weights.h5", |path| model.save_weights(path).unwrap())
}

/// A complete file, and archives in which the config (as text, as values) or the weights are mutated.
fn keras_seeds(file: Vec<u8>) -> Vec<Seed> {
    let (config, weights) = (member(&file, "config.json"), member(&file, "model.weights.h5"));
    let with_config = |weights: Vec<u8>| move |part: &[u8]| archive([b"{}", part, &weights]);
    let with_weights = |config: Vec<u8>| move |part: &[u8]| archive([b"{}", &config, part]);
    let inside = |mutate| Seed::inside(config.clone(), mutate, with_config(weights.clone()));
    vec![
        file.into(),
        inside(mutate::mutated),
        inside(tree::mutated),
        Seed::inside(weights.clone(), mutate::mutated, with_weights(config.clone())),
    ]
}

fn member(file: &[u8], name: &str) -> Vec<u8> {
    let mut zip = zip::ZipArchive::new(Cursor::new(file)).unwrap();
    let mut bytes = vec![];
    zip.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// An archive of metadata, config and weights.
fn archive(parts: [&[u8]; 3]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in ["metadata.json", "config.json", "model.weights.h5"].iter().zip(parts) {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
