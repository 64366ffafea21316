//! Optimizers, losses and metrics of training, and `evaluate`, `predict` and `train_on_batch`.

use super::{classifier, clouds, compiled, difference, one_thread, one_weight, tensor};
use phalanx::activations::ActivationFn;
use phalanx::by_name::Named;
use phalanx::constraints::Axes;
use phalanx::optimizers;
use phalanx::prelude::*;

#[test]
fn every_optimizer_trains() {
    for name in ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "lion", "Adam", "SGD"] {
        let mut optimizer = optimizers::get(name).unwrap();
        optimizer.common_mut().learning_rate = 0.05.into();
        let mut model = classifier();
        let compile = Compile::new(optimizer).loss("sparse_categorical_crossentropy");
        model.compile(compile.strategy(one_thread())).unwrap();
        let fit = Fit::new().epochs(25).batch_size(30).verbose(0);
        let history = model.fit(clouds(90), fit).unwrap();
        let losses = history.get("loss").unwrap();
        assert!(losses[24] < 0.7 * losses[0], "{name}: {losses:?}");
    }
}

#[test]
fn every_name_is_accepted() {
    let (x, _) = clouds(5);
    let predict = |layer: Dense| -> Result<Tensor> {
        let model = Sequential::new().add(Input::new([4])).add(layer).build();
        let y = model?.predict(&x)?;
        assert!(y.f32().unwrap().iter().all(|v| v.is_finite()));
        Ok(y)
    };
    for name in ActivationFn::NAMES {
        predict(Dense::new(4).activation(*name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    // One initializer is for the kernels of spectrograms only.
    for name in Initializer::NAMES.iter().filter(|name| **name != "stft") {
        predict(Dense::new(4).kernel_initializer(*name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for name in Regularizer::NAMES {
        predict(Dense::new(4).kernel_regularizer(*name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for name in Constraint::NAMES {
        predict(Dense::new(4).kernel_constraint(*name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn constraints_hold_after_training() {
    let train = |constraint: Constraint| {
        let mut model = Sequential::new()
            .add(Input::new([4]))
            .add(Dense::new(3).kernel_constraint(constraint).activation("softmax"))
            .build()
            .unwrap();
        let compile = Compile::new(Adam::new(0.3)).loss("sparse_categorical_crossentropy");
        model.compile(compile.strategy(MirroredStrategy::cpus(2).unwrap())).unwrap();
        model.fit(clouds(30), Fit::new().epochs(4).verbose(0)).unwrap();
        model.check_consistency().unwrap();
        let kernel = model.get_weights().unwrap().remove(0);
        kernel.f32().unwrap().to_vec()
    };
    let norms = |kernel: &[f32]| -> Vec<f32> {
        (0..3).map(|j| (0..4).map(|i| kernel[i * 3 + j].powi(2)).sum::<f32>().sqrt()).collect()
    };
    let free = norms(&train(Constraint::max_norm(100.0, 0)));
    assert!(free.iter().all(|n| *n > 0.8), "{free:?}");
    let limited = norms(&train(Constraint::max_norm(0.7, 0)));
    assert!(limited.iter().all(|n| *n < 0.7001), "{limited:?}");
    let unit = norms(&train(Constraint::unit_norm(Axes::One(0))));
    assert!(unit.iter().all(|n| (n - 1.0).abs() < 1e-4), "{unit:?}");
    assert!(train(Constraint::non_neg()).iter().all(|w| *w >= 0.0));
}

#[test]
fn regularizers_count_once_whatever_the_replicas() {
    let run = |replicas: usize| {
        let mut model = Sequential::new()
            .add(Input::new([1]))
            .add(one_weight().kernel_regularizer(Regularizer::l1_l2(0.25, 0.5)))
            .build()
            .unwrap();
        let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(1);
        model.compile(Compile::new(SGD::new(0.1)).loss("mse").strategy(strategy)).unwrap();
        let x = tensor(&[5, 1], vec![1.0f32; 5]);
        let logs = model.train_on_batch(&x, &x).unwrap();
        (logs.get("loss").unwrap(), model.get_weights().unwrap()[0].f32().unwrap()[0])
    };
    // (2 - 1)² + 0.25·2 + 0.5·2², and a gradient of 2 + 0.25 + 0.5·2·2.
    for replicas in 1..=4 {
        let (loss, weight) = run(replicas);
        assert!((loss - 3.5).abs() < 1e-6, "{replicas} replicas: {loss}");
        assert!((weight - (2.0 - 0.1 * 4.25)).abs() < 1e-6, "{replicas} replicas: {weight}");
    }
}

#[test]
fn evaluate_gives_the_means_over_all_samples_and_changes_nothing() {
    let mut model = compiled(Adam::new(0.05));
    model.fit(clouds(90), Fit::new().epochs(20).verbose(0)).unwrap();
    let before = model.get_weights().unwrap();
    let whole = model.evaluate_with(clouds(50), Inference::new().batch_size(50)).unwrap();
    assert!(whole.get("accuracy").unwrap() > 0.9, "{whole}");
    for batch in [1, 7, 32, usize::MAX] {
        let parts = model.evaluate_with(clouds(50), Inference::new().batch_size(batch)).unwrap();
        let near =
            |(a, b): (&(String, f64), &(String, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6;
        assert!(parts.iter().zip(whole.iter()).all(near), "{parts}, {whole}");
    }
    assert_eq!(difference(&before, &model.get_weights().unwrap()), 0.0);
    // Float labels are accepted too.
    let (x, y) = clouds(50);
    let y: Vec<f32> = y.i32().unwrap().iter().map(|class| *class as f32).collect();
    assert_eq!(
        model.evaluate_with((x, tensor(&[50, 1], y)), Inference::new().batch_size(50)).unwrap(),
        whole
    );
}

#[test]
fn predict_needs_no_compile_and_keeps_every_row_in_order() {
    let mut model = Sequential::new().add(Input::new([1])).add(one_weight()).build().unwrap();
    let numbers: Vec<f32> = (0..71).map(|i| i as f32).collect();
    let doubled: Vec<f32> = numbers.iter().map(|x| 2.0 * x).collect();
    let y = model.predict(tensor(&[71, 1], numbers.clone())).unwrap();
    assert_eq!((y.dims(), y.f32().unwrap()), (&[71, 1][..], &doubled[..]));
    // On more replicas than rows, and with shuffled data in their original order.
    let strategy = MirroredStrategy::cpus(3).unwrap().threads(1);
    model.compile(Compile::new("sgd").loss("mse").strategy(strategy)).unwrap();
    for batch in [1, 2, 64] {
        let data = Arrays::new(tensor(&[71, 1], numbers.clone()), ()).unwrap().shuffle(true);
        let y = model.predict_with(data, Inference::new().batch_size(batch)).unwrap().remove(0);
        assert_eq!((y.dims(), y.f32().unwrap()), (&[71, 1][..], &doubled[..]));
    }
    // Integers are converted to the floats that the model expects.
    let y = model.predict(tensor(&[2, 1], vec![3i32, -4])).unwrap();
    assert_eq!(y.f32().unwrap(), [6.0, -8.0]);
}

#[test]
fn train_on_batch_is_one_update() {
    let mut model = Sequential::new().add(Input::new([1])).add(one_weight()).build().unwrap();
    model.compile(Compile::new(SGD::new(0.25)).loss("mse").strategy(one_thread())).unwrap();
    let x = tensor(&[2, 1], vec![1.0f32, 1.0]);
    let losses = [4.0, 1.0, 0.25].map(|expected| {
        let logs = model.train_on_batch(&x, Tensor::zeros([2, 1])).unwrap();
        assert_eq!(logs.len(), 1);
        (logs.get("loss").unwrap(), expected)
    });
    assert!(losses.iter().all(|(loss, expected)| loss == expected), "{losses:?}");
    assert_eq!(model.get_weights().unwrap()[0].f32().unwrap(), [0.25]);
    let gradients = model.gradients(&x, Tensor::zeros([2, 1])).unwrap();
    assert_eq!(gradients[0].0, "dense/kernel");
    assert_eq!(gradients[0].1.f32().unwrap(), [0.5]);
    assert_eq!(model.get_weights().unwrap()[0].f32().unwrap(), [0.25], "gradients change nothing");
}

#[test]
fn several_outputs_have_a_loss_and_metrics_each() {
    let x = Input::new([4]).symbol();
    let class = Dense::new(3).activation("softmax").named("class").apply(&x);
    let size = Dense::new(1).named("size").apply(&x);
    let mut model = Model::new(&x, [&class, &size]).unwrap();
    let compile = Compile::new(Adam::new(0.05))
        .loss("sparse_categorical_crossentropy")
        .loss("mse")
        .loss_weights([2.0, 0.5])
        .metrics(["accuracy"])
        .metrics(["mae", "mse"]);
    model.compile(compile.strategy(one_thread())).unwrap();
    let (x, y) = clouds(60);
    let sizes: Vec<f32> = x.f32().unwrap().chunks(4).map(|c| c.iter().sum()).collect();
    let data = Arrays::new(x.clone(), vec![y, tensor(&[60], sizes)]).unwrap();
    let history = model.fit(&data, Fit::new().epochs(30).verbose(0).validation_split(0.1)).unwrap();
    let names: Vec<&str> = history.names().filter(|name| !name.starts_with("val_")).collect();
    let expected =
        ["class_accuracy", "class_loss", "loss", "lr", "size_loss", "size_mae", "size_mse"];
    assert_eq!(names, expected);
    assert_eq!(history.names().filter(|name| name.starts_with("val_")).count(), 6);
    let logs = model.evaluate_with(&data, Inference::new().batch_size(60)).unwrap();
    let get = |name: &str| logs.get(name).unwrap();
    assert!((get("loss") - 2.0 * get("class_loss") - 0.5 * get("size_loss")).abs() < 1e-6);
    assert!((get("size_loss") - get("size_mse")).abs() < 1e-6);
    assert!(get("class_accuracy") > 0.9 && get("size_mae") < 0.3, "{logs}");
    let outputs = model.predict_all(x).unwrap();
    assert_eq!((outputs[0].dims(), outputs[1].dims()), (&[60, 3][..], &[60, 1][..]));
}

#[test]
fn more_replicas_than_rows_train_as_one() {
    let run = |replicas: usize| {
        let mut model = classifier();
        let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(1);
        let compile = Compile::new(SGD::new(0.5)).loss("sparse_categorical_crossentropy");
        model.compile(compile.metrics(["accuracy"]).strategy(strategy)).unwrap();
        let history = model.fit(clouds(7), Fit::new().epochs(3).batch_size(3).verbose(0)).unwrap();
        model.check_consistency().unwrap();
        (model.get_weights().unwrap(), history.get("accuracy").unwrap().to_vec())
    };
    let (one, accuracy) = run(1);
    for replicas in [2, 5, 8] {
        let (weights, same) = run(replicas);
        assert!(difference(&one, &weights) < 1e-6);
        assert_eq!(accuracy, same);
    }
}

#[test]
fn metrics_count_every_sample_and_weighted_metrics_their_weights() {
    // Identity: the prediction is the input, so three of four samples are correct.
    let mut model = Sequential::new().add(Input::new([2])).add(Activation::new("linear")).build();
    let model = model.as_mut().unwrap();
    let loss = SparseCategoricalCrossentropy::default().from_logits(true);
    let compile = Compile::new("sgd")
        .loss(loss)
        .metrics(["accuracy"])
        .weighted_metrics([SparseCategoricalAccuracy::default()]);
    model.compile(compile.strategy(one_thread())).unwrap();
    let x = tensor(&[4, 2], vec![1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let y = Tensor::new([4], vec![0, 0, 0, 1]).unwrap();
    let data = Arrays::new(x, y).unwrap().sample_weight(&[0.0, 0.0, 0.0, 1.0]).unwrap();
    let logs = model.evaluate_with(data, Inference::new().batch_size(4)).unwrap();
    assert_eq!(logs.get("accuracy"), Some(0.75));
    assert_eq!(logs.get("sparse_categorical_accuracy"), Some(0.0));
}

#[test]
fn a_shared_batch_normalization_updates_its_statistics_at_every_call() {
    let norm = BatchNormalization::new().momentum(0.5).named("norm");
    let (a, b) = (Input::new([1]).symbol(), Input::new([1]).symbol());
    let sum = Add::new().apply([&norm.apply(&a), &norm.apply(&b)]);
    let mut model = Model::new([&a, &b], Dense::new(1).apply(&sum)).unwrap();
    model.compile(Compile::new(SGD::new(0.0)).loss("mse").strategy(one_thread())).unwrap();
    let inputs = vec![tensor(&[2, 1], vec![8.0, 8.0]), tensor(&[2, 1], vec![2.0, 2.0])];
    let data = Arrays::new(inputs, tensor(&[2, 1], vec![0.0, 0.0])).unwrap();
    model.fit(data, Fit::new().batch_size(2).verbose(0)).unwrap();
    let weights = model.weights().unwrap();
    let mean = weights.iter().find(|(name, _)| name == "norm/moving_mean").unwrap();
    // (0 · 0.5 + 8 · 0.5) · 0.5 + 2 · 0.5
    assert_eq!(mean.1.f32().unwrap(), [3.0]);
}

#[test]
fn gradients_accumulated_for_an_update_that_never_came_are_discarded() {
    let sgd = SGD::new(0.1).gradient_accumulation_steps(4);
    let mut model = classifier();
    let compile = Compile::new(sgd).loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(one_thread())).unwrap();
    let (x, y) = clouds(12);
    for _ in 0..3 {
        model.train_on_batch(&x, &y).unwrap();
    }
    let before = model.get_weights().unwrap();
    // Two batches make an update of these two alone, whatever was pending before.
    let fit = || Fit::new().batch_size(6).accumulate(2).shuffle(false).verbose(0);
    model.fit((&x, &y), fit()).unwrap();
    let after = model.get_weights().unwrap();
    let mut fresh = classifier();
    let compile = Compile::new(SGD::new(0.1)).loss("sparse_categorical_crossentropy");
    fresh.compile(compile.strategy(one_thread())).unwrap();
    fresh.set_weights(&before).unwrap();
    fresh.fit((&x, &y), fit()).unwrap();
    assert!(difference(&after, &fresh.get_weights().unwrap()) < 1e-6);
    assert!(difference(&after, &before) > 1e-4);
}
