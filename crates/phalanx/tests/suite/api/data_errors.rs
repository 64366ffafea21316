//! Errors in the data given to a model.

use super::errors::check;
use super::{classifier, clouds, compiled, tensor};
use phalanx::data::{Epoch, HostBatch, LocalShard};
use phalanx::prelude::*;
use std::sync::Arc;

fn fit(x: Tensor, y: Tensor, fit: Fit) -> Result<()> {
    compiled(SGD::default()).fit((x, y), fit.verbose(0)).map(|_| ())
}

fn labelled(labels: Vec<i32>) -> Result<()> {
    let (x, _) = clouds(labels.len());
    fit(x, tensor(&[labels.len()], labels), Fit::new().batch_size(2))
}

#[test]
fn labels_are_checked_before_anything_runs_on_them() {
    check(&[
        (
            || labelled(vec![0, 1, 2, 0, 3]),
            "model 'sequential': labels of 'dense_1': expected 0 to 2, received 3 in row 4 of the training data",
        ),
        (
            || {
                let labels = tensor(&[3], vec![0i32, 7, 0]);
                let fit_on = Fit::new().validation_data((clouds(3).0, labels));
                fit(clouds(4).0, clouds(4).1, fit_on)
            },
            "received 7 in row 1 of the validation data",
        ),
        (|| labelled(vec![0, -1]), "received -1 in row 1"),
        (
            || fit(clouds(2).0, tensor(&[2], vec![0.5f32, 1.0]), Fit::new()),
            "data: targets: expected class numbers, received fractions",
        ),
        (
            || fit(clouds(2).0, tensor(&[2], vec![f32::NAN, 1.0]), Fit::new()),
            "data: targets: expected class numbers",
        ),
    ]);
}

#[test]
fn validation_and_weights_are_checked() {
    check(&[
        (
            || fit(clouds(4).0, clouds(4).1, Fit::new().validation_split(1.0)),
            "Arrays: split: expected a fraction in (0, 1), received 1",
        ),
        (|| fit(clouds(4).0, clouds(4).1, Fit::new().validation_split(f64::NAN)), "received NaN"),
        (
            || fit(clouds(1).0, clouds(1).1, Fit::new().validation_split(0.5)),
            "leaves samples on both sides",
        ),
        (
            || {
                fit(
                    clouds(4).0,
                    clouds(4).1,
                    Fit::new().validation_split(0.5).validation_data(clouds(3)),
                )
            },
            "fit: validation_split: expected none beside validation_data, received both",
        ),
        (
            || {
                fit(
                    clouds(4).0,
                    clouds(4).1,
                    Fit::new().validation_data((clouds(3).0, clouds(2).1)),
                )
            },
            "expected 3 rows",
        ),
        (
            || fit(clouds(4).0, clouds(4).1, Fit::new().sample_weight([1.0])),
            "Arrays: sample_weight: expected 4 weights, one per sample, received 1",
        ),
        (
            || fit(clouds(2).0, clouds(2).1, Fit::new().sample_weight([1.0, f32::NAN])),
            "Arrays: sample_weight: expected finite numbers, received NaN",
        ),
        (
            || fit(clouds(2).0, clouds(2).1, Fit::new().class_weight([(0, -1.0)])),
            "Arrays: class_weight: expected finite weights, not negative, received -1 for class 0",
        ),
    ]);
}

#[test]
fn evaluation_and_prediction_check_their_data() {
    check(&[
        (
            || {
                compiled(SGD::default())
                    .evaluate_with(clouds(4).0, Inference::new().batch_size(2))
                    .map(|_| ())
            },
            "model 'sequential': targets: expected 1, received 0",
        ),
        (
            || {
                compiled(SGD::default())
                    .evaluate_with(clouds(4), Inference::new().batch_size(0))
                    .map(|_| ())
            },
            "Arrays: batch: expected at least 1, received 0",
        ),
        (
            || classifier().predict(Tensor::zeros([2, 3])).map(|_| ()),
            "model 'sequential': input 'input_0': expected 2 rows of f32 (None, 4), received 2 rows of f32 (None, 3)",
        ),
        (
            || classifier().predict(tensor(&[], vec![1.0f32])).map(|_| ()),
            "Arrays: x[0]: expected samples in rows, received a scalar",
        ),
    ]);
}

#[test]
fn arguments_of_fit_are_checked() {
    check(&[
        (
            || fit(clouds(4).0, clouds(4).1, Fit::new().batch_size(0)),
            "fit: batch_size: expected 1 or more, received 0",
        ),
        (
            || fit(clouds(4).0, clouds(4).1, Fit::new().steps_per_epoch(0)),
            "fit: steps_per_epoch: expected 1 or more, received 0",
        ),
        (
            || fit(clouds(4).0, clouds(4).1, Fit::new().accumulate(0)),
            "fit: accumulate: expected 1 or more, received 0",
        ),
        (
            || compiled(SGD::default()).fit(clouds(4), Fit::new().verbose(3)).map(|_| ()),
            "fit: verbose: expected 0, 1 or 2, received 3",
        ),
    ]);
}

#[test]
fn data_are_checked_before_anything_runs_on_them() {
    check(&[
        (
            || fit(clouds(4).0, clouds(3).1, Fit::new()),
            "Arrays: y[0]: expected 4 rows as in x[0], received 3 rows",
        ),
        (
            || fit(Tensor::zeros([4, 5]), clouds(4).1, Fit::new()),
            "model 'sequential': input 'input_0': expected 4 rows of f32 (None, 4), received 4 rows of f32 (None, 5)",
        ),
        (
            || fit(Tensor::zeros([4, 2, 2]), clouds(4).1, Fit::new()),
            "received 4 rows of f32 (None, 2, 2)",
        ),
        (
            || fit(clouds(4).0, Tensor::zeros([4, 3]), Fit::new()),
            "model 'sequential': target of 'dense_1': expected 4 rows of i32 (None,), received 4 rows of i32 (None, 3)",
        ),
        (
            || fit(Tensor::zeros([0, 4]), tensor(&[0], Vec::<i32>::new()), Fit::new()),
            "Arrays: x: expected at least one sample, received none",
        ),
        (
            || {
                let two = Arrays::new(vec![clouds(4).0, clouds(4).0], clouds(4).1)?;
                compiled(SGD::default()).fit(two, Fit::new().verbose(0)).map(|_| ())
            },
            "model 'sequential': inputs: expected 1, received 2",
        ),
        (
            || {
                let two = Arrays::new(clouds(4).0, vec![clouds(4).1, clouds(4).1])?;
                compiled(SGD::default()).fit(two, Fit::new().verbose(0)).map(|_| ())
            },
            "model 'sequential': targets: expected 1, received 2",
        ),
        (
            || compiled(SGD::default()).train_on_batch(&clouds(3).0, &clouds(2).1).map(|_| ()),
            "expected 3 rows",
        ),
    ]);
}

#[test]
fn a_nan_loss_is_reported_with_its_step() {
    let mut x = clouds(12).0;
    x.f32_mut().unwrap()[4 * 9] = f32::NAN;
    let mut model = compiled(SGD::default());
    let fit = || Fit::new().batch_size(4).shuffle(false).verbose(0);
    let error = model.fit((x.clone(), clouds(12).1), fit()).unwrap_err();
    let expected = "the weights now hold NaN or infinities, and there is no file to resume from";
    assert!(error.to_string().ends_with(expected), "{error}");
    let Error::NotFinite { loss, step, epoch, .. } = error else { panic!("{error}") };
    assert!(loss.is_nan());
    assert_eq!((step, epoch), (3, 1));
    let mut model = compiled(SGD::default());
    let history = model.fit((x, clouds(12).1), fit().callback(TerminateOnNaN)).unwrap();
    assert!(history.get("loss").unwrap()[0].is_nan());
}

/// A dataset of one given batch.
struct Given(Option<HostBatch>);

impl Dataset for Given {
    fn len(&self) -> Option<usize> {
        None
    }

    fn batches(&self) -> Option<usize> {
        None
    }

    fn batch_size(&self) -> usize {
        3
    }

    fn epoch_of(
        &self,
        _: u64,
        _: u64,
        _: usize,
        _: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        Ok(Box::new(Once(self.0.as_ref())))
    }
}

struct Once<'a>(Option<&'a HostBatch>);

impl Epoch for Once<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        let Some(given) = self.0.take() else { return Ok(false) };
        batch.clone_from(given);
        Ok(true)
    }
}

fn given(change: fn(&mut HostBatch)) -> Arc<dyn Dataset> {
    let (x, y) = clouds(3);
    let sample_weight = vec![1.0; 3];
    let mut batch = HostBatch {
        rows: 3,
        inputs: vec![x],
        targets: vec![y],
        sample_weight,
        ..HostBatch::default()
    };
    change(&mut batch);
    Arc::new(Given(Some(batch)))
}

#[test]
fn a_dataset_of_the_users_own_is_not_trusted() {
    fn with(data: Arc<dyn Dataset>, fit: Fit) -> Result<()> {
        compiled(SGD::default()).fit(data, fit.verbose(0)).map(|_| ())
    }
    with(given(|_| {}), Fit::new().epochs(2)).unwrap();
    check(&[
        (
            || with(given(|b| b.rows = 4), Fit::new()),
            "expected 4 rows of f32 (None, 4), received 3 rows",
        ),
        (|| with(given(|b| b.rows = usize::MAX), Fit::new()), "received 3 rows of f32 (None, 4)"),
        (
            || with(given(|b| b.sample_weight.clear()), Fit::new()),
            "model 'sequential': sample weights: expected 3, received 0",
        ),
        (
            || with(given(|b| b.targets[0] = tensor(&[3], vec![0i32, 1, 9])), Fit::new()),
            "received 9 in row 2 of batch 1 of the training data",
        ),
        (|| with(given(|b| b.targets.clear()), Fit::new()), "targets: expected 1, received 0"),
        (
            || with(given(|b| b.inputs[0] = tensor(&[], vec![1.0f32])), Fit::new()),
            "input 'input_0'",
        ),
        (
            || with(given(|_| {}), Fit::new().batch_size(8)),
            "fit: batch_size: expected arrays, received a dataset",
        ),
        (
            || with(given(|_| {}), Fit::new().sample_weight([1.0])),
            "fit: sample_weight: expected arrays, received a dataset",
        ),
        (
            || with(Arc::new(Given(None)), Fit::new()),
            "fit: data: expected at least one batch, received an empty dataset",
        ),
        (
            || {
                compiled(SGD::default())
                    .evaluate(Arc::new(Given(None)) as Arc<dyn Dataset>)
                    .map(|_| ())
            },
            "evaluate: data: expected at least one sample, received none",
        ),
    ]);
    // A batch without rows is legal, because the share of a replica may be empty.
    with(given(|b| b.rows = 0), Fit::new()).unwrap();
}

#[test]
fn a_fit_of_no_epochs_after_nan_does_not_repeat_the_error() {
    let mut x = clouds(12).0;
    x.f32_mut().unwrap()[0] = f32::NAN;
    let mut model = compiled(SGD::default());
    let fit = |epochs: usize| Fit::new().epochs(epochs).verbose(0);
    model.fit((x, clouds(12).1), fit(1)).unwrap_err();
    let history = model.fit(clouds(12), fit(0)).unwrap();
    assert_eq!(history.epochs, [] as [usize; 0]);
    model.fit(clouds(12), fit(3).initial_epoch(3)).unwrap();
    // Weights that already hold NaN are still an error once a step is made with them.
    model.fit(clouds(12), fit(1)).unwrap_err();
}

#[test]
fn nan_weights_are_reported_with_the_file_to_resume_from() {
    let directory = tempfile::tempdir().unwrap();
    let mut x = clouds(12).0;
    x.f32_mut().unwrap()[4 * 9] = f32::NAN;
    let train = |fit: Fit| {
        let fit = fit.batch_size(4).shuffle(false).verbose(0);
        compiled(SGD::default()).fit((x.clone(), clouds(12).1), fit).unwrap_err().to_string()
    };
    let backup = BackupAndRestore::new(directory.path().join("run")).save_freq(1);
    let error = train(Fit::new().callback(backup));
    let file = directory.path().join("run/step-0000000002.safetensors");
    let expected =
        format!("the weights now hold NaN or infinities: resume from {}", file.display());
    assert!(error.ends_with(&expected), "{error}");
    let path = directory.path().join("{batch}.keras");
    let error = train(Fit::new().callback(ModelCheckpoint::new(path).save_freq(1)));
    assert!(
        error.ends_with(&format!("resume from {}/2.keras", directory.path().display())),
        "{error}"
    );
    // A step that was skipped because of its NaN gradients has not changed the weights.
    let mut model = compiled(LossScaleOptimizer::new(SGD::default()));
    let fit = Fit::new().batch_size(4).shuffle(false).verbose(0);
    let error = model.fit((x.clone(), clouds(12).1), fit).unwrap_err().to_string();
    assert!(error.ends_with("the weights are still finite"), "{error}");
}
