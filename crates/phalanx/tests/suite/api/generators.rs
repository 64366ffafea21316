//! Datasets from generators, of known or unknown size.

use super::{clouds, compiled, difference, tensor};
use phalanx::callbacks::BackupAndRestore;
use phalanx::data::{Cardinality, Element, Epoch, HostBatch, LocalShard};
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The samples of [`clouds`], one after the other.
fn samples(n: usize) -> impl Iterator<Item = Result<Element>> + Send {
    let (x, y) = clouds(n);
    (0..n).map(move |i| {
        let class = y.i32().unwrap()[i];
        Ok(vec![
            tensor(&[4], x.f32().unwrap()[4 * i..4 * i + 4].to_vec()),
            tensor(&[], vec![class]),
        ])
    })
}

fn generated(n: usize) -> Pipeline {
    Pipeline::from_generator(move || Ok(samples(n)))
}

/// A complete run: the weights and the losses.
fn run(data: impl phalanx::model::IntoDataset) -> (Vec<Tensor>, Vec<f64>) {
    let mut model = compiled(Adam::new(0.05));
    let history = model.fit(data, Fit::new().epochs(3).verbose(0)).unwrap();
    (model.get_weights().unwrap(), history.get("loss").unwrap().to_vec())
}

#[test]
fn a_generator_trains_as_the_arrays_with_its_samples() {
    let (x, y) = clouds(22);
    let slices = || Pipeline::from_tensor_slices((&x, &y)).unwrap();
    let arranged = |data: Pipeline| data.shuffle(7).unwrap().batch(5, false).unwrap().prefetch(2);
    let expected = run(arranged(slices()));
    assert_eq!(run(arranged(generated(22))), expected);
    let known = generated(22).assert_cardinality(22);
    assert_eq!(known.cardinality(), Cardinality::Known(22));
    assert_eq!(run(arranged(known.clone())), expected);
    let batched = known.batch(5, false).unwrap();
    assert_eq!((batched.len(), batched.batches()), (Some(22), Some(5)));
    let mapped = generated(22).map_parallel(3, Ok);
    assert_eq!(run(arranged(mapped)), expected);
}

#[test]
fn a_generator_is_evaluated_and_predicted_on() {
    let mut model = compiled(SGD::default());
    let arrays = model.evaluate_with(clouds(10), Inference::new().batch_size(4)).unwrap();
    let data = || generated(10).batch(4, false).unwrap();
    assert_eq!(model.evaluate_with(data(), Inference::new()).unwrap(), arrays);
    let predicted = model.predict(data()).unwrap();
    let expected = model.predict_with(clouds(10).0, Inference::new().batch_size(4)).unwrap();
    assert!(difference(&[predicted], &expected) < 1e-6);
    let fit = Fit::new().epochs(2).validation_data(data()).verbose(0);
    let history = model.fit(data(), fit).unwrap();
    assert_eq!(history.get("val_loss").unwrap().len(), 2);
}

/// An epoch of a million samples of which a run takes a few: the generator makes only those and the prefetched
/// ones.
#[test]
fn a_generator_makes_no_more_samples_than_requested() {
    let (opened, made) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (opens, makes) = (opened.clone(), made.clone());
    let endless = Pipeline::from_generator(move || {
        opens.fetch_add(1, Ordering::Relaxed);
        let makes = makes.clone();
        let one = samples(1).next();
        let one = move || one.as_ref().and_then(|one| one.as_ref().ok()).cloned();
        Ok(std::iter::from_fn(move || {
            makes.fetch_add(1, Ordering::Relaxed);
            one().map(Ok)
        }))
    });
    let data = endless.shuffle(10).unwrap().batch(4, false).unwrap().prefetch(2);
    let mut model = compiled(SGD::default());
    model.fit(data, Fit::new().epochs(2).steps_per_epoch(5).verbose(0)).unwrap();
    let made = made.load(Ordering::Relaxed);
    assert!((40..=10 + 4 * (10 + 4)).contains(&made), "{made}");
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

#[test]
fn a_run_over_a_generator_resumes_in_the_middle_of_an_epoch() {
    let data = || generated(20).shuffle(6).unwrap().batch(4, false).unwrap();
    let expected = run(data());
    let directory = tempfile::tempdir().unwrap();
    let backup = || BackupAndRestore::new(directory.path());
    let interrupt = Interrupt::new();
    let requester = interrupt.clone();
    let kill = LambdaCallback::new().batch_end(move |view| {
        if view.step == 7 {
            requester.request();
        }
        Ok(Action::Continue)
    });
    let fit = Fit::new().epochs(3).verbose(0);
    let fit = fit.callback(backup()).callback(kill).interrupt(&interrupt);
    let error = compiled(Adam::new(0.05)).fit(data(), fit).unwrap_err();
    assert!(matches!(error, Error::Interrupted { step: 7, .. }), "{error}");
    let mut model = compiled(Adam::new(0.05));
    let fit = Fit::new().epochs(3).verbose(0).callback(backup());
    let history = model.fit(data(), fit).unwrap();
    assert_eq!((model.get_weights().unwrap(), history.get("loss").unwrap().to_vec()), expected);
}

#[test]
fn what_a_generator_reports_names_the_sample() {
    let failing = || {
        Pipeline::from_generator(|| {
            let bad = std::io::Error::other("the disk is gone");
            Ok(samples(10).take(6).chain([Err(bad.into())]))
        })
    };
    let fails = |data: Pipeline| {
        let data = data.batch(4, false).unwrap();
        let fitted = compiled(SGD::default()).fit(data.clone(), Fit::new().verbose(0)).map(|_| ());
        let predicted = compiled(SGD::default()).predict(data).map(|_| ());
        let errors = [fitted, predicted].map(|result| result.unwrap_err().to_string());
        assert_eq!(errors[0], errors[1]);
        errors[0].clone()
    };
    let expected = "from_generator: element 6: the disk is gone";
    assert_eq!(fails(failing()), expected);
    assert_eq!(fails(failing().map(Ok).prefetch(2)), expected);
    assert_eq!(fails(failing().shuffle(3).unwrap()), expected);
    let closed = Pipeline::from_generator(|| {
        let file = std::fs::File::open("/nowhere/at/all")?;
        Ok([Ok(vec![tensor(&[1], vec![file.metadata()?.len() as f32])])].into_iter())
    });
    assert_eq!(fails(closed), "from_generator: No such file or directory (os error 2)");
    let count = |n: usize| fails(generated(6).assert_cardinality(n));
    assert_eq!(count(7), "Pipeline: assert_cardinality: expected 7 elements, received 6");
    assert_eq!(count(5), "Pipeline: assert_cardinality: expected 5 elements, received more");
    for empty in [generated(0), generated(0).repeat(None), generated(6).take(0)] {
        let data = empty.batch(4, false).unwrap();
        let fit = Fit::new().steps_per_epoch(2).verbose(0);
        let error = compiled(SGD::default()).fit(data, fit).unwrap_err().to_string();
        assert!(error.contains("at least one batch, received an empty dataset"), "{error}");
    }
    // More samples than can be counted, with an asserted cardinality.
    let data = generated(6).assert_cardinality(usize::MAX).shuffle(3).unwrap();
    assert!(fails(data).ends_with("elements, received 6"));
}

/// Three batches of two samples: no pipeline, no `Arc`.
struct Own;

impl Dataset for Own {
    fn len(&self) -> Option<usize> {
        Some(6)
    }

    fn batches(&self) -> Option<usize> {
        Some(3)
    }

    fn batch_size(&self) -> usize {
        2
    }

    fn epoch_of(
        &self,
        _: u64,
        _: u64,
        start: usize,
        _: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        Ok(Box::new(OwnEpoch(start)))
    }
}

struct OwnEpoch(usize);

impl Epoch for OwnEpoch {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        if self.0 == 3 {
            return Ok(false);
        }
        let (x, y) = clouds(6);
        let rows = 2 * self.0..2 * self.0 + 2;
        self.0 += 1;
        (batch.rows, batch.sample_weight) = (2, vec![1.0; 2]);
        batch.inputs = vec![x.slice_rows(rows.clone())];
        batch.targets = vec![y.slice_rows(rows)];
        Ok(true)
    }
}

#[test]
fn a_custom_dataset_is_used_as_it_is() {
    let mut model = compiled(SGD::default());
    model.fit(Own, Fit::new().epochs(2).validation_data(Own).verbose(0)).unwrap();
    model.fit(Arc::new(Own), Fit::new().verbose(0)).unwrap();
    model.fit(Arc::new(Own) as Arc<dyn Dataset>, Fit::new().verbose(0)).unwrap();
    assert_eq!(model.predict(Own).unwrap().dims(), [6, 3]);
    assert!(model.evaluate_with(Own, Inference::new()).unwrap().get("loss").is_some());
}

#[test]
fn the_systems_errors_pass_through_a_program_that_returns_ours() {
    fn program() -> Result<usize> {
        Ok(std::fs::read("/nowhere/at/all")?.len())
    }
    let error = program().unwrap_err();
    assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    let source = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
}
