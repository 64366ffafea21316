//! Printed steps and programs, compared with stored texts.

use crate::networks::{adam, attention, cnn, mlp, momentum, recurrent, wide};
use crate::{TWO, compile};
use phalanx_graph::{Mesh, Scope};
use std::path::Path;

/// Compares with a stored text, or stores it if `UPDATE_SNAPSHOTS` is set.
fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("writable");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(stored, text, "{name} changed; UPDATE_SNAPSHOTS=1 accepts it");
}

#[test]
fn printed_mlp() {
    let step = mlp(&[8, 16, 16, 5], momentum(None), (0.0, 1e-4));
    snapshot("mlp_step.txt", &step.to_string());
    snapshot("mlp_program.txt", &compile(step, TWO, 4).to_string());
}

#[test]
fn printed_wide() {
    let step = wide(momentum(None), (0.0, 0.0));
    snapshot("wide_program.txt", &compile(step, TWO, 4).to_string());
}

#[test]
fn printed_attention() {
    let step = attention(momentum(None), (0.0, 0.0));
    snapshot("attention_program.txt", &compile(step, TWO, 4).to_string());
}

#[test]
fn printed_recurrent() {
    let step = recurrent(momentum(None), (0.0, 0.0));
    snapshot("recurrent_program.txt", &compile(step, TWO, 4).to_string());
}

#[test]
fn printed_cnn() {
    let step = cnn(Scope::Device, true, adam(None), (0.0, 0.0));
    snapshot("cnn_step.txt", &step.to_string());
    snapshot("cnn_program.txt", &compile(step, Mesh::new(2, 2), 8).to_string());
}
