//! Custom training steps with masks, against Keras: the mask of a model's output counts in losses and metrics and reaches the
//! next model, on several replicas and workers too. The fixture is made by tests/python/train_steps.py.

use crate::common::{Case, Fixture, difference_to_scale, emulated_gpu};
use crate::train_steps::cpus;
use crate::train_steps_keras::optimizer;
use crate::workers::job;
use phalanx::data::Arrays;
use phalanx::metrics::LossMetric;
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep, Trainer};
use phalanx_needs::needs;
use std::sync::Arc;

struct Masked {
    encoder: Model,
    reader: Model,
    trainer: Trainer,
}

/// The losses of the encoder alone, and of both models.
fn body(cx: &mut StepContext<'_>) -> Result<()> {
    let (tokens, target, y) = (cx.input("tokens")?, cx.input("target")?, cx.input("y")?);
    let mse = MeanSquaredError::default();
    let coded = cx.call("encoder", &[tokens])?;
    cx.track(LossMetric::new(MeanAbsoluteError::default()), target, coded)?;
    let loss = cx.loss(&mse, target, coded)?;
    cx.minimize("sequence", loss, &["encoder"], "first")?;
    let coded = cx.call("encoder", &[tokens])?;
    let out = cx.call("reader", &[coded])?;
    let (loss, other) = (cx.loss(&mse, y, out)?, cx.loss(&mse, target, coded)?);
    let loss = cx.graph().add(loss, other)?;
    cx.minimize("both", loss, &["encoder", "reader"], "second")
}

impl Masked {
    fn new(case: &Case<'_>, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Masked {
        let tokens = Input::new([5]).integers().symbol();
        let x = Embedding::new(9, 4).mask_zero(true).apply(&tokens);
        let mut encoder =
            Model::new(&tokens, LSTM::new(3).return_sequences(true).apply(x)).unwrap();
        let reader = Sequential::new().add(Input::new([5, 3])).add(GRU::new(4)).add(Dense::new(2));
        let mut reader = reader.build().unwrap();
        let start: Vec<Tensor> = case.list("start").into_iter().cloned().collect();
        let of_encoder = encoder.get_weights().unwrap().len();
        encoder.set_weights(&start[..of_encoder]).unwrap();
        reader.set_weights(&start[of_encoder..]).unwrap();
        let trainer = TrainStep::new("masked")
            .input("tokens", Input::new([5]).integers())
            .target("target", Input::new([5, 3]))
            .target("y", Input::new([2]))
            .model("encoder", &encoder)
            .model("reader", &reader)
            .optimizer("first", optimizer(case, 0))
            .optimizer("second", optimizer(case, 1))
            .strategy(strategy)
            .compile(body)
            .unwrap();
        Masked { encoder, reader, trainer }
    }

    /// Compares every step with Keras.
    fn check(&mut self, case: &Case<'_>, what: &str) {
        for step in 0..case.json["steps"].as_u64().unwrap() as usize {
            let column = |name: &str| case.tensor(&format!("{name}/{step}")).clone();
            let batch = || Arrays::new(column("tokens"), vec![column("target"), column("y")]);
            let held = self.trainer.evaluate(batch().unwrap(), Inference::new()).unwrap();
            let logs = self.trainer.train_on_batch(batch().unwrap()).unwrap();
            let losses = &case.f32("losses")[2 * step..2 * step + 2];
            let expected = [losses[0], losses[1], case.f32("metrics")[step]];
            let names = ["sequence", "both", "mean_absolute_error"];
            let received = names.map(|name| logs.get(name).unwrap());
            let apart = difference_to_scale(&received, &expected);
            assert!(apart < 1e-5, "{what}: step {step}: {received:?} {expected:?}");
            // The first phase has not seen an update: evaluation reports the same.
            for name in ["sequence", "mean_absolute_error"] {
                let (held, trained) = (held.get(name).unwrap(), logs.get(name).unwrap());
                assert!((held - trained).abs() < 1e-6, "{what}: {name}: {held} {trained}");
            }
        }
        let weights = [&self.encoder, &self.reader].map(|model| model.get_weights().unwrap());
        for (i, (w, e)) in weights.concat().iter().zip(case.list("after")).enumerate() {
            let apart = difference_to_scale(w.f32().unwrap(), e.f32().unwrap());
            assert!(apart < 5e-5, "{what}: weight {i}: {apart:.1e}");
        }
        self.trainer.check_consistency().unwrap();
    }
}

#[test]
fn masks_in_custom_steps_match_keras() {
    for case in Fixture::load("train_steps_masks").cases() {
        for replicas in [1, 2, 3] {
            Masked::new(&case, cpus(replicas)).check(&case, &format!("on {replicas}"));
        }
        let deterministic = cpus(2).deterministic(true);
        Masked::new(&case, deterministic).check(&case, "in deterministic mode");
    }
}

#[test]
fn masks_in_custom_steps_of_several_workers_match_keras() {
    let fixture = Fixture::load("train_steps_masks");
    for workers in [2, 4] {
        let results = job(workers, |rank, strategy| {
            for case in fixture.cases() {
                let what = format!("worker {rank} of {workers}");
                Masked::new(&case, strategy.clone()).check(&case, &what);
            }
            Ok(())
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

#[needs(gxx)]
#[test]
fn masks_in_custom_steps_match_keras_on_an_emulated_gpu() {
    let gpu = || MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    for case in Fixture::load("train_steps_masks").cases() {
        Masked::new(&case, gpu()).check(&case, "on an emulated GPU");
    }
}
