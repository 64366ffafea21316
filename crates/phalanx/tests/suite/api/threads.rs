//! One model used by several threads.

use super::{classifier, clouds, compiled};
use phalanx::prelude::*;
use std::sync::Arc;

fn shared<T: Send + Sync>(value: T) -> T {
    value
}

#[test]
fn predictions_from_several_threads_are_those_of_one() {
    let (x, _) = clouds(50);
    for model in [classifier(), compiled(SGD::default())] {
        let model = shared(model);
        // Also before the first prediction, with batches of other sizes in between.
        let found: Vec<Tensor> = std::thread::scope(|scope| {
            let ask = |n: usize| {
                let (model, x) = (&model, &x);
                scope.spawn(move || {
                    let batches = || Inference::new().batch_size(1 + n);
                    (0..5).map(|_| model.predict_with(x, batches()).unwrap().remove(0)).last()
                })
            };
            let threads: Vec<_> = (0..8).map(ask).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        let alone = model.predict(&x).unwrap();
        assert_eq!(found.len(), 8);
        for prediction in &found {
            assert_eq!(prediction.dims(), alone.dims());
            let pairs = prediction.f32().unwrap().iter().zip(alone.f32().unwrap());
            assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-6);
        }
    }
}

/// Samples that use the model itself, made on threads other than the one that predicts.
#[test]
fn data_may_ask_the_model_that_predicts_them() {
    let model = Arc::new(classifier());
    let (x, _) = clouds(9);
    let shared_model = model.clone();
    let data = Pipeline::from_tensor_slices(&x).unwrap().map(move |sample| {
        let one = sample[0].clone().reshape([1, 4])?;
        let first = shared_model.predict(&one)?.f32().map(|y| y[0]).unwrap_or_default();
        Ok(vec![Tensor::new([4], vec![first; 4])?])
    });
    let data = data.batch(2, false).unwrap().prefetch(2);
    assert_eq!(model.predict(data).unwrap().dims(), [9, 3]);
}

#[test]
fn a_trained_model_is_asked_by_threads_while_another_over_its_layers_trains() {
    let mut model = compiled(Adam::new(0.01));
    let shared_model = Model::new(model.inputs(), model.outputs()).unwrap();
    let (x, _) = clouds(12);
    std::thread::scope(|scope| {
        let (shared_model, x) = (&shared_model, &x);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || (0..20).try_for_each(|_| shared_model.predict(x).map(|_| ())))
            })
            .collect();
        model.fit(clouds(30), Fit::new().epochs(10).verbose(0)).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    assert_eq!(shared_model.predict(&x).unwrap(), model.predict(&x).unwrap());
}
