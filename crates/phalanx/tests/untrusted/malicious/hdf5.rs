//! `.weights.h5` files with links to elsewhere, excessive claims or content other than weights.

use super::Case;
use super::build::{network, weights, written};
use phalanx::prelude::*;
use std::path::Path;

/// A file created by tests/python/make_bad_h5.py.
pub fn fixture(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/bad");
    std::fs::read(root.join(name)).unwrap()
}

pub fn cases() -> Vec<Case> {
    let of = |units: usize, more: bool| {
        let mut model = Sequential::new().add(Input::new([4])).add(Dense::new(units));
        if more {
            model = model.add(Dense::new(3));
        }
        let model = model.build().unwrap();
        written("a.weights.h5", |path| model.save_weights(path).unwrap())
    };
    let good = weights();
    let case = |n: &str, bytes: Vec<u8>, cause| Case::new(n, "bad.weights.h5", bytes, cause);
    let mut all = vec![
        case("h5 nothing", vec![], "start as HDF5"),
        case("h5 text", b"no file of that kind".to_vec(), "start as HDF5"),
        case("h5 a start alone", good[..8].to_vec(), "an end after 8 bytes"),
        case("h5 other shapes", of(5, false), "[4, 5] for [4, 3]"),
        case("h5 no weights", h5_without_weights(), "where 2 belong"),
    ];
    for (name, cause) in [
        ("soft_link", "a link to elsewhere"),
        ("external_link", "a link to elsewhere"),
        ("external_data", "never written"),
        ("virtual_data", "layout"),
        ("huge_shape", "[1099511627776, 1048576] for [4, 3]"),
        ("never_written", "never written"),
        ("strings", "where numbers belong"),
        ("records", "where numbers belong"),
        ("group_for_dataset", "a group where the dataset"),
        ("cycle", "two links to the object"),
        ("unknown_filter", "filter 32000"),
        ("named_type", "neither a group nor a dataset"),
    ] {
        all.push(case(name, fixture(&format!("{name}.weights.h5")), cause));
    }
    for part in 1..8 {
        let cut = good[..good.len() * part / 8].to_vec();
        all.push(case(&format!("h5 cut at {part}/8"), cut, "HDF5"));
    }
    all
}

fn h5_without_weights() -> Vec<u8> {
    let model = Sequential::new().add(Input::new([4])).add(ReLU::new()).build().unwrap();
    written("a.weights.h5", |path| model.save_weights(path).unwrap())
}

/// Half-precision and big-endian numbers are supported.
pub fn numbers_of_other_kinds_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.weights.h5");
    std::fs::write(&path, fixture("other_numbers.weights.h5")).unwrap();
    let mut model = network();
    model.load_weights(&path).unwrap();
    let weights = model.get_weights().unwrap();
    let kernel: Vec<f32> = (0..12u8).map(f32::from).collect();
    assert_eq!(weights[0].f32().unwrap(), kernel);
    assert_eq!(weights[1].f32().unwrap(), [1.5, -2.0, 0.25]);
}
