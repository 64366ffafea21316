//! The networks of `keras.applications` against Python Keras.

use crate::keras_files::{compare_within, files, tensors};
use std::path::{Path, PathBuf};

/// A network of `keras.applications`: predicts, is saved again, and trains one step per entry of `losses`.
fn check_application(path: &Path) -> std::result::Result<(), String> {
    /// Maximum deviation of a logit or a loss, relative to the largest.
    const TOLERANCE: f32 = 1e-4;
    let said = |e: phalanx::Error| e.to_string();
    let tensors = tensors(&path.with_extension("safetensors"));
    let (x, y) = (&tensors["x0"], &tensors["y0"]);
    let mut model = phalanx::saving::load_model(path).map_err(said)?;
    let steps = tensors["losses"].len();
    let size = x.rows() / steps;
    let rows = |step: usize| step * size..(step + 1) * size;
    let batch = |step: usize| (x.slice_rows(rows(step)), y.slice_rows(rows(step)));
    let output = model.predict(x).map_err(said)?;
    // Rounding alone moves the logits of some networks by more than the tolerance.
    let [logits, nudged] = ["p0", "p0_nudged"].map(|name| tensors[name].f32().unwrap());
    let largest = logits.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let moved = logits.iter().zip(nudged).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    let tolerance = TOLERANCE.max(4.0 * moved / largest);
    compare_within(tolerance, "logits", &tensors["p0"], &output)?;
    model.save(path.with_extension("back.keras")).map_err(said)?;
    let losses = [&tensors["losses"], &tensors["losses_nudged"]].map(|t| t.f32().unwrap());
    for (step, (expected, nudged)) in losses[0].iter().zip(losses[1]).enumerate() {
        let (x, y) = batch(step);
        let loss = model.train_on_batch(&x, &y).map_err(said)?[0].1 as f32;
        let slack = TOLERANCE * expected.abs().max(1.0) + 4.0 * (expected - nudged).abs();
        if (loss - expected).abs() > slack {
            return Err(format!("loss of step {step}: {loss} for {expected}"));
        }
    }
    model.save(path.with_extension("trained.keras")).map_err(said)
}

#[ignore = "needs files of Python Keras: tests/python/applications.py runs it"]
#[test]
fn networks_of_keras() {
    let check = |path: PathBuf| check_application(&path).map_err(|fault| (path, fault));
    let faults: Vec<_> = files(".keras").into_iter().filter_map(|path| check(path).err()).collect();
    assert!(faults.is_empty(), "{faults:?}");
}
