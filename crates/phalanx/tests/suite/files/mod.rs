//! Model files: round trips, resumed training, and rejection of bad files.

mod bad;
mod round_trip;
mod tools;

use phalanx::prelude::*;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

/// A graph with a shared layer, a nested chain and two outputs.
fn graph() -> Model {
    let inner = Sequential::new()
        .named("inner")
        .add(Input::new([4]))
        .add(Dense::new(4).activation("relu"))
        .add(BatchNormalization::new())
        .build()
        .unwrap();
    let x = Input::new([4]).named("x").symbol();
    let shared = Dense::new(4).kernel_regularizer("l2").named("shared");
    let a = shared.apply(&x);
    let b = shared.apply(inner.apply(&a));
    let sum = Add::new().apply([&a, &b]);
    let head = Dense::new(2).named("head").apply(&sum);
    let other = Dense::new(1).named("other").apply(Concatenate::new().apply([&b, &x]));
    Model::with_name("graph", &x, [&head, &other]).unwrap()
}

/// A small chain, compiled.
fn chain() -> Model {
    let mut model = Sequential::new()
        .named("chain")
        .add(Input::new([4]))
        .add(Dense::new(3).activation("tanh"))
        .add(Dense::new(2))
        .build()
        .unwrap();
    model.compile(Compile::new(Adam::new(0.0078125)).loss("mse").metrics(["mae"])).unwrap();
    model
}

/// Pseudo-random numbers.
fn numbers(seed: u64, dims: [usize; 2]) -> Tensor {
    let mut stream = phalanx::Stream::new(seed, 0, 0, 0);
    let values = (0..dims[0] * dims[1]).map(|_| stream.normal() as f32).collect::<Vec<_>>();
    Tensor::new(dims, values).unwrap()
}

/// A temporary directory, removed on drop.
struct TempDir(tempfile::TempDir);

impl TempDir {
    fn new() -> TempDir {
        TempDir(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The members of a zip.
fn unzip(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let member = |i: usize| {
        let mut member = zip.by_index(i).unwrap();
        let mut bytes = vec![];
        member.read_to_end(&mut bytes).unwrap();
        (member.name().to_string(), bytes)
    };
    (0..3).map(member).collect()
}

/// A zip of these members.
fn zip_of(members: &[(&str, &[u8])], packed: bool) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
    let method =
        if packed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
