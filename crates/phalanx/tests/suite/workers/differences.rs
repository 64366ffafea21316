//! Workers that differ are refused, and the difference is named.

use super::{compiled, job, samples};
use phalanx::prelude::*;

#[test]
fn workers_that_differ_are_named() {
    let (x, y) = samples(20);
    let messages = |change: &(dyn Fn(usize) -> (u64, f64, usize, f32) + Sync)| {
        let errors = job(3, |rank, strategy| {
            let (seed, rate, batch, first) = change(rank);
            let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(3)).build()?;
            let loss = SparseCategoricalCrossentropy::default().from_logits(true);
            let compile = Compile::new(SGD::new(rate)).loss(loss).strategy(strategy).seed(seed);
            model.compile(compile)?;
            let mut x = x.clone();
            x.f32_mut().unwrap()[0] = first;
            let fit = Fit::new().batch_size(batch).verbose(0);
            Ok(model.fit((&x, &y), fit).map(|_| ()).unwrap_err().to_string())
        });
        let errors: Vec<String> = errors.into_iter().map(Result::unwrap).collect();
        assert!(errors.iter().all(|e| *e == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    let odd = |rank: usize, usual: f64, other: f64| if rank == 2 { other } else { usual };
    for (message, expected) in [
        (
            messages(&|r| (odd(r, 0.0, 7.0) as u64, 0.1, 5, 0.0)),
            "workers: seed: expected 0 on rank 0 (a thread), received 7 on rank 2 (a thread)",
        ),
        (
            messages(&|r| (0, odd(r, 0.1, 0.2), 5, 0.0)),
            "workers: optimizer's learning_rate: expected 0.1 on rank 0 (a thread), received 0.2 on",
        ),
        (
            messages(&|r| (0, 0.1, odd(r, 5.0, 6.0) as usize, 0.0)),
            "workers: global batch size: expected 5 on",
        ),
        (messages(&|r| (0, 0.1, 5, odd(r, 0.0, 1.0) as f32)), "workers: data: expected "),
    ] {
        assert!(message.starts_with(expected), "{message}");
    }
}

/// Data affect the model: notes about them, and statistics that a layer was adapted to.
#[test]
fn workers_with_other_data_differ_in_data_not_in_the_model() {
    let (x, y) = samples(20);
    let message = message_of(|odd, model| {
        let mut x = x.clone();
        x.f32_mut().unwrap()[0] += f32::from(u8::from(odd));
        model.set_metadata("origin", format!("mean {}", x.f32().unwrap()[0]));
        let mut weights = model.get_weights()?;
        weights[1].f32_mut().unwrap()[0] = x.f32().unwrap()[0];
        model.set_weights(&weights)?;
        model.fit((&x, &y), Fit::new().batch_size(5).verbose(0)).map(|_| ())
    });
    assert!(message.starts_with("workers: data: expected 1-"), "{message}");
    let message = message_of(|odd, model| {
        let (x, mut labels) = samples(20);
        labels.i32_mut().unwrap()[7] = if odd { 0 } else { 1 };
        let held = (&x, &labels);
        let fit = Fit::new().batch_size(5).verbose(0).validation_data(held);
        model.fit((&x, &y), fit).map(|_| ())
    });
    assert!(message.starts_with("workers: validation data: expected 1-"), "{message}");
    // Other differences are reported as before.
    let message = message_of(|odd, model| {
        model.set_metadata("who", if odd { "another" } else { "one" });
        model.fit((&x, &y), Fit::new().batch_size(5).verbose(0)).map(|_| ())
    });
    assert!(message.starts_with("workers: notes of the model: expected "), "{message}");
}

/// The error of three workers of which the last differs; all get the same error.
fn message_of(work: impl Fn(bool, &mut Model) -> Result<()> + Sync) -> String {
    let errors = job(3, |rank, strategy| {
        let mut model = compiled(strategy)?;
        Ok(work(rank == 2, &mut model).unwrap_err().to_string())
    });
    let errors: Vec<String> = errors.into_iter().map(Result::unwrap).collect();
    assert!(errors.iter().all(|e| *e == errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn callbacks_that_differ_are_named() {
    let (x, y) = samples(20);
    let fit = || Fit::new().epochs(2).batch_size(5).verbose(0);
    let message = message_of(|odd, model| {
        let stop = EarlyStopping::new("loss").patience(if odd { 3 } else { 2 });
        model.fit((&x, &y), fit().callback(stop)).map(|_| ())
    });
    assert!(message.starts_with("workers: callbacks: expected EarlyStopping"), "{message}");
    assert!(message.contains("patience: 2") && message.contains("patience: 3"), "{message}");
    // Functions cannot be compared, but their results can.
    let message = message_of(|odd, model| {
        let rate = move |epoch| if odd && epoch == 1 { 0.02 } else { 0.01 };
        model.fit((&x, &y), fit().callback(LearningRateScheduler::new(rate))).map(|_| ())
    });
    let expected =
        "workers: learning rate of epoch 2: expected 0.01 on rank 0 (a thread), received 0.02 on";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn epochs_over_other_data_are_refused() {
    let (x, y) = samples(20);
    let (fewer, labels) = samples(19);
    let message = message_of(|odd, model| {
        let data = if odd { (&fewer, &labels) } else { (&x, &y) };
        model.evaluate_with(data, Inference::new().batch_size(8)).map(|_| ())
    });
    assert!(message.starts_with("workers: samples: expected 20 on rank 0"), "{message}");
    let message = message_of(|odd, model| {
        let arguments = Inference::new().batch_size(if odd { 4 } else { 8 });
        model.predict_with(&x, arguments).map(|_| ())
    });
    assert!(message.starts_with("workers: global batch size: expected 8 on rank 0"), "{message}");
    let message = message_of(|odd, model| {
        let mut x = x.clone();
        x.f32_mut().unwrap()[3] += f32::from(u8::from(odd));
        model.predict_with(&x, Inference::new()).map(|_| ())
    });
    assert!(message.starts_with("workers: data: expected "), "{message}");
}
