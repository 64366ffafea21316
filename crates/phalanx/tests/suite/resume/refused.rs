//! Runs that do not continue the saved one: another optimizer, batch, order, or other data.

use super::{RunConfig, SAMPLES, compiled, images, train};
use phalanx::callbacks::BackupAndRestore;
use phalanx::model::IntoDataset;
use phalanx::prelude::*;
use std::path::Path;

#[test]
fn a_run_that_does_not_fit_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(3)).unwrap_err();
    let other = RunConfig { optimizer: "sgd", ..RunConfig::default() };
    let error = train(directory.path(), other, None).unwrap_err().to_string();
    assert!(error.contains("expected optimizer Adam, received SGD"), "{error}");
    let mut model = compiled(RunConfig::default());
    let (x, y) = images();
    let again = || BackupAndRestore::new(directory.path().join("backup"));
    let fit = Fit::new().batch_size(10).verbose(0).callback(again());
    let error = model.fit((x.clone(), y.clone()), fit).unwrap_err().to_string();
    assert!(error.contains("global batch size: expected 15 as in the saved run"), "{error}");
    let fit = Fit::new().batch_size(15).verbose(0).callback(again().restore(false));
    let error = model.fit((x, y), fit).unwrap_err().to_string();
    assert!(error.contains("expected no earlier run"), "{error}");
}

#[test]
fn data_in_another_order_is_refused_and_another_learning_rate_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let train = |epochs: usize, rate: f64, shuffle: bool, flow: bool| {
        let mut model = compiled(RunConfig::default());
        model.compile(Compile::new(Adam::new(rate)).loss("sparse_categorical_crossentropy"))?;
        let (x, y) = images();
        let name = if flow { "flow" } else { "arrays" };
        let backup = BackupAndRestore::new(directory.path().join(name)).delete_checkpoint(false);
        let fit = Fit::new().epochs(epochs).verbose(0).callback(backup);
        match flow {
            true => model.fit(ImageDataGenerator::new().flow(x, y, 15)?.shuffle(shuffle), fit),
            false => model.fit((x, y), fit.batch_size(15).shuffle(shuffle)),
        }
    };
    for flow in [false, true] {
        train(1, 0.001, true, flow).unwrap();
        let error = train(2, 0.001, false, flow).unwrap_err().to_string();
        assert_eq!(error, "resume: shuffle: expected true as in the saved run, received false");
        let history = train(2, 0.01, true, flow).unwrap();
        assert_eq!(history.get("lr").unwrap(), [0.001, 0.01]);
    }
}

/// A run on any samples of one shape, with its state in a directory.
fn on_data(
    directory: &Path,
    epochs: usize,
    source: impl IntoDataset,
    fit: fn(Fit) -> Fit,
) -> Result<Vec<f64>> {
    let backup = BackupAndRestore::new(directory).delete_checkpoint(false);
    let fit = fit(Fit::new().epochs(epochs).verbose(0)).callback(backup);
    let history = compiled(RunConfig::default()).fit(source, fit)?;
    Ok(history.get("loss").unwrap().to_vec())
}

fn plainly(fit: Fit) -> Fit {
    fit.batch_size(15)
}

fn reversed(tensor: &Tensor) -> Tensor {
    let labels: Vec<i32> = tensor.i32().unwrap().iter().rev().copied().collect();
    Tensor::new(tensor.dims(), labels).unwrap()
}

#[test]
fn other_data_of_the_same_size_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    on_data(directory.path(), 1, (&x, &y), plainly).unwrap();
    let mut other = x.clone();
    other.f32_mut().unwrap()[64 * 70] += 1.0;
    let mut swapped = x.clone();
    swapped.f32_mut().unwrap().rotate_left(64);
    let weighted: fn(Fit) -> Fit = |fit| plainly(fit).sample_weight(vec![2.0; SAMPLES]);
    let by_class: fn(Fit) -> Fit = |fit| plainly(fit).class_weight([(1, 2.0)]);
    for (what, x, y, fit) in [
        ("labels", &x, &reversed(&y), plainly as fn(Fit) -> Fit),
        ("a pixel", &other, &y, plainly),
        ("the order", &swapped, &y, plainly),
        ("weights of samples", &x, &y, weighted),
        ("weights of classes", &x, &y, by_class),
    ] {
        let error = on_data(directory.path(), 2, (x, y), fit).unwrap_err().to_string();
        let expected = "resume: data: expected the data of the saved run (fingerprint 1-";
        assert!(error.starts_with(expected), "{what}: {error}");
        assert!(
            error.contains("received other samples, labels or weights, or another order (fi"),
            "{what}: {error}"
        );
    }
    assert_eq!(on_data(directory.path(), 2, (&x, &y), plainly).unwrap().len(), 2);
}

#[test]
fn other_data_of_a_flow_or_pipeline_are_refused_and_another_augmentation_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    let flow = |shift: f64, y: &Tensor| {
        let generator = ImageDataGenerator::new().width_shift_range(shift);
        generator.flow(x.clone(), y.clone(), 15).unwrap()
    };
    let pipeline = |buffer: usize, y: &Tensor| {
        let data = Pipeline::from_tensor_slices((x.clone(), y.clone())).unwrap();
        data.shuffle(buffer).unwrap().map(Ok).batch(15, false).unwrap()
    };
    let refused = |result: Result<Vec<f64>>| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("resume: data: expected "), "{error}");
    };
    let none = |fit: Fit| fit;
    let at = directory.path().join("flow");
    on_data(&at, 1, flow(0.2, &y), none).unwrap();
    refused(on_data(&at, 2, flow(0.2, &reversed(&y)), none));
    on_data(&at, 2, flow(0.1, &y), none).unwrap();
    // The same samples without any.
    on_data(&at, 3, (&x, &y), plainly).unwrap();
    let at = directory.path().join("pipeline");
    on_data(&at, 1, pipeline(90, &y), none).unwrap();
    refused(on_data(&at, 2, pipeline(80, &y), none));
    refused(on_data(&at, 2, pipeline(90, &reversed(&y)), none));
    on_data(&at, 2, pipeline(90, &y), none).unwrap();
}
