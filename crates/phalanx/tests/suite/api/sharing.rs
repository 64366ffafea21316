//! Shared layers, nested models, models over the same layers, and frozen layers.

use super::{clouds, compiled, difference, one_thread, one_weight, tensor};
use phalanx::prelude::*;

fn ones(n: usize) -> Tensor {
    tensor(&[n, 1], vec![1.0f32; n])
}

fn weight(model: &Model) -> f32 {
    model.get_weights().unwrap()[0].f32().unwrap()[0]
}

#[test]
fn a_layer_applied_twice_learns_from_both_uses() {
    let x = Input::new([1]).symbol();
    let layer = one_weight().named("shared");
    let y = layer.apply(layer.apply(&x));
    let mut model = Model::new(&x, &y).unwrap();
    assert_eq!((model.count_params(), model.layers().len()), (1, 1));
    model.compile(Compile::new(SGD::new(0.01)).loss("mse").strategy(one_thread())).unwrap();
    model.train_on_batch(ones(3), Tensor::zeros([3, 1])).unwrap();
    // y = w², dloss/dw = 2·w²·2·w = 32.
    assert!((weight(&model) - (2.0 - 0.32)).abs() < 1e-6);
}

#[test]
fn a_nested_model_shares_its_weights() {
    let inner = Sequential::new().named("inner").add(Input::new([4])).add(Dense::new(4)).build();
    let inner = inner.unwrap();
    let x = Input::new([4]).symbol();
    let y = inner.apply(inner.apply(&x));
    let outer = Model::new(&x, Dense::new(3).activation("softmax").apply(&y));
    let mut outer = outer.unwrap();
    let names: Vec<String> = outer.layers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["inner/dense", "dense"]);
    assert_eq!(outer.count_params(), 20 + 15);
    let compile = Compile::new(Adam::new(0.05)).loss("sparse_categorical_crossentropy");
    outer.compile(compile.strategy(one_thread())).unwrap();
    let before = inner.get_weights().unwrap();
    outer.fit(clouds(30), Fit::new().epochs(3).verbose(0)).unwrap();
    let after = inner.get_weights().unwrap();
    assert!(difference(&before, &after) > 1e-3);
    assert_eq!(after[..], outer.get_weights().unwrap()[..2]);
}

#[test]
fn a_nested_model_gives_all_its_outputs() {
    let x = Input::new([2]).symbol();
    let doubled = Add::new().apply([&x, &x]);
    let squared = Multiply::new().apply([&x, &x]);
    let inner = Model::with_name("inner", &x, [&doubled, &squared]).unwrap();
    let z = Input::new([2]).symbol();
    let parts = inner.apply_all(&z);
    let outer = Model::new(&z, [&parts[1], &parts[0]]).unwrap();
    assert_eq!(outer.output_names(), ["inner", "inner_1"]);
    let y = outer.predict_all(tensor(&[1, 2], vec![3.0f32, 5.0])).unwrap();
    assert_eq!(y[0].f32().unwrap(), [9.0, 25.0]);
    assert_eq!(y[1].f32().unwrap(), [6.0, 10.0]);
}

/// An autoencoder and its encoder, the pattern of Keras' guide.
#[test]
fn models_over_the_same_layers_see_each_others_training() {
    let x = Input::new([1]).symbol();
    let code = one_weight().named("encode").apply(&x);
    let decoded = one_weight().named("decode").apply(&code);
    let mut encoder = Model::with_name("encoder", &x, &code).unwrap();
    let mut both = Model::with_name("autoencoder", &x, &decoded).unwrap();
    let compile = || Compile::new(SGD::new(0.01)).loss("mse").strategy(one_thread());
    assert_eq!(encoder.predict(ones(1)).unwrap().f32().unwrap(), [2.0]);

    both.compile(compile()).unwrap();
    both.fit((ones(8), ones(8)), Fit::new().epochs(2).verbose(0)).unwrap();
    let trained = encoder.predict(ones(1)).unwrap().f32().unwrap()[0];
    assert!(trained < 2.0 && trained == weight(&encoder) && trained == weight(&both));

    // Both train the shared layer in turn, as the two halves of a GAN do.
    encoder.compile(compile()).unwrap();
    for _ in 0..3 {
        let before = weight(&encoder);
        encoder.train_on_batch(ones(2), Tensor::zeros([2, 1])).unwrap();
        let between = weight(&both);
        assert!(between < before, "{between} {before}");
        both.train_on_batch(ones(2), Tensor::zeros([2, 1])).unwrap();
        assert!(weight(&encoder) < between);
        let by_both = both.predict(ones(1)).unwrap().f32().unwrap()[0];
        let decode = both.get_weights().unwrap()[1].f32().unwrap()[0];
        assert!((by_both - weight(&encoder) * decode).abs() < 1e-6);
    }

    // Setting weights and dropping a model lose nothing.
    encoder.set_weights(&[tensor(&[1, 1], vec![7.0f32])]).unwrap();
    assert_eq!(weight(&both), 7.0);
    both.train_on_batch(ones(2), Tensor::zeros([2, 1])).unwrap();
    let last = weight(&both);
    drop(both);
    assert!(last < 7.0);
    assert_eq!(weight(&encoder), last);
    assert_eq!(encoder.predict(ones(1)).unwrap().f32().unwrap(), [last]);
}

/// A callback that uses another model, as in the guides to generative models.
#[test]
fn a_callback_may_ask_another_model_over_the_same_layers() {
    let x = Input::new([1]).symbol();
    let y = one_weight().apply(&x);
    let monitor = Model::new(&x, &y).unwrap();
    let mut model = Model::new(&x, &y).unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse").strategy(one_thread())).unwrap();
    let mut last = 2.0;
    let look = LambdaCallback::new().epoch_end(move |view| {
        let now = monitor.predict(ones(1))?.f32().unwrap()[0];
        assert!(now < last && view.weights.get("dense/kernel").unwrap() == [now]);
        last = now;
        Ok(Action::Continue)
    });
    let fit = Fit::new().epochs(4).verbose(0).callback(look);
    model.fit((ones(4), Tensor::zeros([4, 1])), fit).unwrap();
    let trained = weight(&model);
    assert!((trained - 2.0 * 0.8f32.powi(4)).abs() < 1e-5, "{trained}");
    let loss = model
        .evaluate_with((ones(4), Tensor::zeros([4, 1])), Inference::new())
        .unwrap()
        .get("loss")
        .unwrap();
    assert!(
        (loss - f64::from(trained * trained)).abs() < 1e-6,
        "the last weights, not the monitor's"
    );
}

#[test]
fn weights_travel_between_models() {
    let mut a = compiled(Adam::new(0.05));
    a.fit(clouds(60), Fit::new().epochs(5).verbose(0)).unwrap();
    let mut b = super::classifier();
    let (x, _) = clouds(10);
    assert_ne!(a.predict(&x).unwrap(), b.predict(&x).unwrap());
    b.set_weights(&a.get_weights().unwrap()).unwrap();
    assert_eq!(a.get_weights().unwrap(), b.get_weights().unwrap());
    assert_eq!(a.predict(&x).unwrap(), b.predict(&x).unwrap());
    // A model compiled again keeps its weights.
    let trained = a.get_weights().unwrap();
    a.compile(Compile::new("sgd").loss("sparse_categorical_crossentropy").seed(9)).unwrap();
    assert_eq!(a.get_weights().unwrap(), trained);
    let names: Vec<String> = a.weights().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]);
}

#[test]
fn frozen_layers_stay_until_thawed_and_compiled_again() {
    let mut model = super::classifier();
    let compile = || Compile::new(Adam::new(0.05)).loss("sparse_categorical_crossentropy");
    let mut changes = |freeze: bool| {
        model.layer("dense").unwrap().set_trainable(!freeze);
        assert_eq!(model.summary().non_trainable, if freeze { 40 } else { 0 });
        model.compile(compile().strategy(one_thread())).unwrap();
        let before = model.get_weights().unwrap();
        model.fit(clouds(30), Fit::new().epochs(2).verbose(0)).unwrap();
        let after = model.get_weights().unwrap();
        [0, 2].map(|i| difference(&before[i..i + 2], &after[i..i + 2]) > 0.0)
    };
    assert_eq!(changes(true), [false, true]);
    assert_eq!(changes(false), [true, true]);
}

#[test]
fn a_frozen_batch_norm_uses_its_moving_statistics() {
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(BatchNormalization::new().momentum(0.5).named("norm"))
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    let compile = || Compile::new(SGD::new(0.0)).loss("sparse_categorical_crossentropy");
    model.compile(compile().strategy(one_thread())).unwrap();
    model.fit(clouds(30), Fit::new().verbose(0)).unwrap();
    let moved = model.get_weights().unwrap();
    assert!(moved[2].f32().unwrap().iter().all(|mean| *mean != 0.0), "the moving mean follows");
    let (x, y) = clouds(12);
    let by_batch = model.train_on_batch(&x, &y).unwrap().get("loss").unwrap();
    let by_moving = model.evaluate_with((&x, &y), Inference::new()).unwrap().get("loss").unwrap();
    assert!((by_batch - by_moving).abs() > 1e-4);

    model.layer("norm").unwrap().set_trainable(false);
    model.compile(compile().strategy(one_thread())).unwrap();
    let before = model.get_weights().unwrap();
    let trained = model.train_on_batch(&x, &y).unwrap().get("loss").unwrap();
    let evaluated = model.evaluate_with((&x, &y), Inference::new()).unwrap().get("loss").unwrap();
    assert!((trained - evaluated).abs() < 1e-6, "{trained} {evaluated}");
    assert_eq!(before, model.get_weights().unwrap());
}

#[test]
fn a_head_on_a_models_outputs_reuses_its_layers() {
    let base = super::classifier();
    base.set_trainable(false);
    let y = Dense::new(2).activation("softmax").named("head").apply(base.outputs());
    let head = Model::new(base.inputs(), &y).unwrap();
    assert_eq!((head.summary().trainable, head.summary().non_trainable), (8, 40 + 27));
    assert!(head.layer("dense_1").unwrap().same(&base.layer("dense_1").unwrap()));
}
