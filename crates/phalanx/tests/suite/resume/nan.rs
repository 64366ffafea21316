//! NaN in weights, losses and data.

use super::{BATCHES, RunConfig, compiled, images, states};
use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::prelude::*;

#[test]
fn nan_weights_never_replace_good_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let set_nan = LambdaCallback::new().batch_end(|view| {
        let name = view.weights.names().remove(0);
        let bad = view.weights.get(&name).map(|values| vec![f32::NAN; values.len()]);
        Ok(match bad {
            Ok(values) if view.step == 4 => Action::RestoreWeights(vec![(name, values)]),
            _ => Action::Continue,
        })
    });
    let backup = BackupAndRestore::new(&path).save_freq(1);
    let fit = Fit::new().batch_size(15).epochs(2).verbose(0).callback(set_nan).callback(backup);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 5, .. }), "{error}");
    let newest = states(directory.path()).pop().unwrap();
    assert!(newest.ends_with("step-0000000003.safetensors"), "{}", newest.display());
}

#[test]
fn a_run_that_ended_in_nan_keeps_its_good_states() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    let mut values = x.f32().unwrap().to_vec();
    values[20 * 64] = f32::NAN;
    let bad = Tensor::new(x.dims(), values).unwrap();
    let backup = BackupAndRestore::new(directory.path().join("backup")).save_freq(1);
    let fit = Fit::new().batch_size(15).shuffle(false).verbose(0);
    let fit = fit.callback(backup).callback(TerminateOnNaN);
    compiled(RunConfig::default()).fit((bad, y), fit).unwrap();
    let newest = states(directory.path()).pop().expect("the states before the NaN");
    assert!(newest.ends_with("step-0000000001.safetensors"), "{}", newest.display());
}

#[test]
fn weights_broken_by_the_last_step_are_an_error() {
    let set_nan = LambdaCallback::new().batch_end(|view| {
        let name = view.weights.names().remove(0);
        let bad = view.weights.get(&name).map(|values| vec![f32::NAN; values.len()]);
        Ok(match bad {
            Ok(values) if view.step == BATCHES => Action::RestoreWeights(vec![(name, values)]),
            _ => Action::Continue,
        })
    });
    let fit = Fit::new().batch_size(15).verbose(0).callback(set_nan);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
}
