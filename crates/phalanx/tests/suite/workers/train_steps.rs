//! Custom training steps on several workers.

use super::job;
use crate::train_steps::{cpus, samples, small_gan};
use phalanx::callbacks::BackupAndRestore;
use phalanx::model::Inference;
use phalanx::prelude::*;
use phalanx::train_step::TrainStep;

/// Histories, an evaluation, and the weights of both models.
type Outcome = (Vec<f64>, Vec<f64>, [String; 2]);

/// A GAN with random inputs, dropout and two optimizers, on batches whose last one is short.
fn train(strategy: impl Into<MultiWorkerMirroredStrategy>, rows: usize) -> Result<Outcome> {
    let (g, d, mut gan) = small_gan(strategy);
    let fit = Fit::new().epochs(3).batch_size(7).verbose(0).validation_data(samples(5));
    let history = gan.fit(samples(rows), fit)?;
    let logs = gan.evaluate(samples(10), Inference::new().batch_size(4))?;
    gan.check_consistency()?;
    let names = ["d_loss", "g_loss", "variance", "val_d_loss", "val_g_loss"];
    let losses = names.iter().flat_map(|name| history.get(name).unwrap().to_vec());
    let logs = logs.iter().map(|(_, value)| *value);
    Ok((losses.collect(), logs.collect(), [g.weights_sha256()?, d.weights_sha256()?]))
}

#[test]
fn custom_steps_of_several_workers_give_the_bits_of_one_in_deterministic_mode() {
    for rows in [21, 16, 1] {
        let one = train(cpus(1).deterministic(true), rows).unwrap();
        for workers in [2, 4] {
            for got in job(workers, |_, s| train(s.deterministic(true), rows)) {
                assert_eq!(got.unwrap(), one, "{rows} rows, {workers} workers");
            }
        }
    }
}

#[test]
fn custom_steps_of_several_workers_give_the_results_of_as_many_replicas() {
    for (workers, rows) in [(2, 21), (3, 16), (5, 3)] {
        let one = train(cpus(workers), rows).unwrap();
        for got in job(workers, |_, s| train(s, rows)) {
            assert_eq!(got.unwrap(), one, "{rows} rows, {workers} workers");
        }
    }
}

#[test]
fn a_run_of_a_custom_step_goes_on_with_another_number_of_workers() {
    let run = |strategy: MultiWorkerMirroredStrategy, epochs, directory: &std::path::Path| {
        let (g, d, mut gan) = small_gan(strategy.deterministic(true));
        let fit = Fit::new().epochs(epochs).batch_size(7).verbose(0);
        gan.fit(samples(16), fit.callback(BackupAndRestore::new(directory)))?;
        Ok([g.weights_sha256()?, d.weights_sha256()?])
    };
    let directory = tempfile::tempdir().unwrap();
    let whole = run(cpus(1).into(), 4, directory.path()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (workers, epochs) in [(2, 1), (4, 3), (2, 4)] {
        for got in job(workers, |_, strategy| run(strategy, epochs, directory.path())) {
            let got = got.unwrap();
            assert!(epochs < 4 || got == whole, "{workers} workers, {epochs} epochs");
        }
    }
}

/// Only the optimizer of the last phase was compared.
#[test]
fn workers_with_another_optimizer_of_an_earlier_phase_are_named() {
    let errors = job(3, |rank, strategy| {
        let model = || Sequential::new().add(Input::new([5])).add(Dense::new(1)).build();
        let rate = if rank == 2 { 0.3 } else { 0.1 };
        let mut trainer = TrainStep::new("step")
            .input("x", Input::new([5]))
            .model("a", &model()?)
            .model("b", &model()?)
            .optimizer("first", SGD::new(rate))
            .optimizer("second", SGD::new(0.1))
            .strategy(strategy)
            .compile(|cx| {
                let x = cx.input("x")?;
                for (name, optimizer) in [("a", "first"), ("b", "second")] {
                    let y = cx.call(name, &[x])?;
                    cx.minimize(name, y, &[name], optimizer)?;
                }
                Ok(())
            })?;
        Ok(trainer.fit(samples(6), Fit::new().verbose(0)).map(|_| ()).unwrap_err().to_string())
    });
    for error in errors {
        let error = error.unwrap();
        let expected = "workers: optimizer's learning_rate of 'first': expected 0.1 on";
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn workers_with_other_custom_steps_are_named() {
    let errors = job(3, |rank, strategy| {
        let model = Sequential::new().add(Input::new([5])).add(Dense::new(1)).build()?;
        let factor = if rank == 2 { 3.0 } else { 1.0 };
        let mut trainer = TrainStep::new("step")
            .input("x", Input::new([5]))
            .model("net", &model)
            .optimizer("sgd", SGD::new(0.1))
            .strategy(strategy)
            .compile(move |cx| {
                let x = cx.input("x")?;
                let y = cx.call("net", &[x])?;
                let loss = cx.graph().scale(y, factor)?;
                cx.minimize("loss", loss, &["net"], "sgd")
            })?;
        Ok(trainer.fit(samples(6), Fit::new().verbose(0)).map(|_| ()).unwrap_err().to_string())
    });
    for error in errors {
        let error = error.unwrap();
        let expected = "workers: training step: expected ";
        assert!(error.starts_with(expected) && error.contains("on rank 2"), "{error}");
    }
}
