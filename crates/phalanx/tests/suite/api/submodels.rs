//! Submodels that end at an inner layer, and new heads on them.

use super::{clouds, difference, one_thread, one_weight, tensor};
use phalanx::prelude::*;

fn names(model: &Model) -> Vec<String> {
    model.layers().into_iter().map(|(name, _)| name).collect()
}

fn trained() -> Model {
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(Dense::new(8).activation("relu").named("features"))
        .add(Dense::new(3).activation("softmax").named("head"))
        .build()
        .unwrap();
    let compile = Compile::new(Adam::new(0.05)).loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(one_thread())).unwrap();
    model.fit(clouds(30), Fit::new().epochs(2).verbose(0)).unwrap();
    model
}

#[test]
fn a_chain_is_cut_at_a_layer_and_shares_its_weights() {
    let mut model = trained();
    let features = Model::new(model.inputs(), model.layer_output("features").unwrap()).unwrap();
    assert_eq!(
        (names(&features), features.output_shapes()),
        (vec!["features".into()], vec![Shape::from([8])])
    );
    let x = clouds(6).0;
    let before = features.predict(&x).unwrap();
    // The head on the features gives the output of the model.
    let head = model.layer("head").unwrap();
    let inputs = model.layer_inputs("head").unwrap();
    let both = Model::new(model.inputs(), head.apply(inputs)).unwrap();
    assert_eq!(both.predict(&x).unwrap(), model.predict(&x).unwrap());
    // After more training the features differ.
    model.fit(clouds(30), Fit::new().epochs(2).verbose(0)).unwrap();
    assert!(difference(&[before], &[features.predict(&x).unwrap()]) > 1e-4);
}

#[test]
fn a_loaded_model_takes_a_new_head_and_leaves_its_own_layers_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["model.keras", "model.h5"] {
        let path = directory.path().join(name);
        trained().save(&path).unwrap();
        let base = load_model(&path).unwrap();
        let output = Dense::new(2).activation("softmax").named("two");
        let output = output.apply(base.layer_output("features").unwrap());
        let mut model = Model::new(base.inputs(), &output).unwrap();
        assert_eq!(names(&model), ["features", "two"]);
        model.layer("features").unwrap().set_trainable(false);
        let compile = Compile::new(Adam::new(0.05)).loss("sparse_categorical_crossentropy");
        model.compile(compile.strategy(one_thread())).unwrap();
        let (x, y) = clouds(30);
        let y: Vec<i32> = y.i32().unwrap().iter().map(|class| class % 2).collect();
        let history = model.fit((x, tensor(&[30], y)), Fit::new().epochs(5).verbose(0)).unwrap();
        let loss = history.get("loss").unwrap();
        assert!(loss[4] < loss[0], "{loss:?}");
        let (of_base, of_new) = (base.get_weights().unwrap(), model.get_weights().unwrap());
        assert_eq!(of_base[..2], of_new[..2]);
        assert_eq!(of_base, load_model(&path).unwrap().get_weights().unwrap());
    }
}

#[test]
fn a_cut_inside_a_nested_model_has_that_models_layers() {
    let inner = Sequential::new()
        .named("base")
        .add(Input::new([1]).named("image"))
        .add(one_weight().named("double"))
        .add(Dropout::new(0.5).named("drop"))
        .add(one_weight().named("again"))
        .build()
        .unwrap();
    let x = Input::new([1]).symbol();
    let tripled = one_weight().kernel_initializer(Initializer::constant(3.0)).named("triple");
    let y = inner.apply(tripled.apply(&x));
    let outer = Model::new(&x, &y).unwrap();
    let ones = || tensor(&[1, 1], vec![1.0f32]);
    let at = |name: &str| Model::new(outer.inputs(), outer.layer_output(name).unwrap()).unwrap();
    for (name, value) in [
        ("input_0", 1.0),
        ("triple", 3.0),
        ("base/image", 3.0),
        ("base/double", 6.0),
        ("base", 12.0),
    ] {
        assert_eq!(at(name).predict(ones()).unwrap().f32().unwrap(), [value], "{name}");
    }
    assert_eq!(names(&at("base/again")), ["triple", "double", "drop", "again"]);
    let into = outer.layer_inputs("base/again").unwrap();
    let model = Model::new(outer.inputs(), into).unwrap();
    assert_eq!(names(&model), ["triple", "double", "drop"]);
    // Two submodels of one model share a path: the layers before both are called once.
    let cuts = ["base/double", "base/again"].map(|name| outer.layer_output(name).unwrap());
    let both = Model::new(outer.inputs(), cuts).unwrap();
    assert_eq!(both.layer_calls("double").unwrap().len(), 1);
    inner.layer("double").unwrap().set_trainable(false);
    assert!(!both.layer("double").unwrap().trainable(), "the same layer");
}

#[test]
fn models_in_models_are_cut_too() {
    let x = Input::new([1]).symbol();
    let core = Model::with_name("core", &x, one_weight().named("double").apply(&x)).unwrap();
    let x = Input::new([1]).symbol();
    let middle = Model::with_name("middle", &x, core.apply(core.apply(&x))).unwrap();
    let x = Input::new([1]).symbol();
    let outer = Model::new(&x, middle.apply(&x)).unwrap();
    let calls = outer.layer_calls("middle/core/double").unwrap();
    let values = calls.iter().map(|call| {
        let model = Model::new(outer.inputs(), call.outputs.clone()).unwrap();
        model.predict(tensor(&[1, 1], vec![1.0f32])).unwrap().f32().unwrap()[0]
    });
    assert_eq!(values.collect::<Vec<_>>(), [2.0, 4.0]);
}

#[test]
fn a_layer_called_twice_is_refused_with_how_to_choose() {
    let (left, right) = (Input::new([1]).symbol(), Input::new([1]).symbol());
    let shared = one_weight().named("shared");
    let sum = Add::new().apply([shared.apply(&left), shared.apply(shared.apply(&right))]);
    let model = Model::new([&left, &right], &sum).unwrap();
    for error in
        [model.layer_output("shared").map(|_| ()), model.layer_inputs("shared").map(|_| ())]
    {
        assert_eq!(
            error.unwrap_err().to_string(),
            "model 'functional': layer 'shared': expected a layer that is called once (choose: \
             layer_calls(\"shared\")?[i]), received 3 calls"
        );
    }
    let calls = model.layer_calls("shared").unwrap();
    let last = Model::new([&left, &right], calls[2].outputs.clone()).unwrap();
    let ones = || tensor(&[1, 1], vec![1.0f32]);
    let data = || Arrays::new(vec![ones(), ones()], ()).unwrap();
    assert_eq!(last.predict(data()).unwrap().f32().unwrap(), [4.0]);
}

#[test]
fn a_cut_where_there_is_nothing_says_what_there_is() {
    let model = trained();
    let error = model.layer_output("feature").unwrap_err().to_string();
    assert!(error.contains("unknown layer 'feature'; did you mean 'features'?"), "{error}");
    assert!(model.layer_calls("features/").is_err() && model.layer_calls("").is_err());
    let x = Input::new([2]).symbol();
    let pair = Model::with_name("pair", &x, [&ReLU::new().apply(&x), &x]).unwrap();
    let z = Input::new([2]).symbol();
    let outer = Model::new(&z, pair.apply_all(&z)).unwrap();
    let error = outer.layer_output("pair").unwrap_err().to_string();
    assert!(
        error.ends_with("(choose: layer_calls(\"pair\")?[0].outputs[i]), received 2"),
        "{error}"
    );
    assert_eq!(outer.layer_calls("pair").unwrap()[0].outputs.len(), 2);
}
