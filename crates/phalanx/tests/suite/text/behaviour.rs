//! Models with strings: where layers run, and what they refuse.

use phalanx::data::{Arrays, Text};
use phalanx::layers::Split;
use phalanx::prelude::*;
use phalanx::saving::load_model;

pub fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

/// A classifier of colours.
fn colours() -> Model {
    let x = Input::new([1]).strings().named("colour").symbol();
    let lookup = StringLookup::new().vocabulary(["red", "green", "blue"]);
    let y = Embedding::new(4, 3).apply(lookup.named("lookup").apply(&x));
    let y = Dense::new(2).apply(Flatten::new().apply(&y));
    Model::new(&x, &y).unwrap()
}

#[test]
fn a_model_learns_from_strings() {
    let mut model = colours();
    let compile = Compile::new(Adam::new(0.1))
        .loss(SparseCategoricalCrossentropy::default().from_logits(true));
    model.compile(compile.metrics(["accuracy"])).unwrap();
    let x: Text = (0..60).map(|i| ["red", "blue", "green"][i % 3]).collect();
    let y = Tensor::new([60], (0..60).map(|i| i32::from(i % 3 == 1)).collect::<Vec<_>>()).unwrap();
    let data = Arrays::new(&x, &y).unwrap();
    let fit = Fit::new().epochs(8).batch_size(16).validation_split(0.2).verbose(0);
    let history = model.fit(&data, fit).unwrap();
    assert_eq!(history.last("val_accuracy"), Some(1.0));
    assert_eq!(model.evaluate_with(&data, Inference::new()).unwrap().get("accuracy"), Some(1.0));
    // An unknown colour is the index 0; the pipeline gives the same as the arrays.
    let all = Text::from(["red", "blue", "pink"]);
    let outputs = model.predict(&all).unwrap();
    let pipeline = Pipeline::from_tensor_slices(&all).unwrap().batch(2, false).unwrap();
    assert_eq!(model.predict(pipeline).unwrap(), outputs);
    let path = tempfile::tempdir().unwrap().path().join("m.keras");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    model.save(&path).unwrap();
    assert_eq!(load_model(&path).unwrap().predict(&all).unwrap(), outputs);
}

#[test]
fn replicas_see_the_same_strings() {
    let x: Text = (0..10).map(|i| ["red", "blue", "green", "pink"][i % 4]).collect();
    let y = Tensor::new([10, 2], (0..20).map(|i| i as f32 / 9.0).collect::<Vec<_>>()).unwrap();
    let run = |replicas| {
        let mut model = colours();
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        model.compile(Compile::new(SGD::new(0.1)).loss("mse").strategy(strategy).seed(3)).unwrap();
        let fit = Fit::new().epochs(3).batch_size(4).verbose(0);
        model.fit((&x, &y), fit).unwrap().get("loss").unwrap().to_vec()
    };
    let one = run(1);
    for (a, b) in one.iter().zip(run(3)) {
        assert!((a - b).abs() < 1e-6, "{one:?}");
    }
}

#[test]
fn strings_and_numbers_are_not_mixed_up() {
    let model = colours();
    let error = message(model.predict(Tensor::zeros([2, 1])));
    assert!(error.contains("input 'colour': expected strings, received numbers"), "{error}");
    let error = message(model.predict(Text::new([2, 2], ["a", "b", "c", "d"]).unwrap()));
    assert!(error.contains("expected strings (None, 1), received strings (None, 2)"), "{error}");
    let x = Input::new([1]).symbol();
    let numbers = Model::new(&x, Dense::new(1).apply(&x)).unwrap();
    let error = message(numbers.predict(Text::from(["a"])));
    assert!(error.contains("expected numbers, received strings"), "{error}");
    let error = message(Arrays::new(Tensor::zeros([1, 1]), Text::from(["a"])));
    assert!(error.contains("y[0]: expected numbers"), "{error}");
}

#[test]
fn a_layer_of_the_host_after_a_device_value_is_refused() {
    let x = Input::new([4]).symbol();
    let hidden = Dense::new(1).named("hidden").apply(&x);
    let error = message(Model::new(&x, Hashing::new(3).named("bins").apply(&hidden)));
    let expected = "layer 'bins': input: expected values that reach it from the model's inputs through preprocessing \
                    layers only, as it runs on the host, received the output of 'hidden', which runs on the devices";
    assert_eq!(error, expected);
    let text = Input::new([1]).strings().symbol();
    let error = message(Model::new(&text, Dense::new(1).named("dense").apply(&text)));
    assert!(error.contains("layer 'dense': input: expected numbers, received strings"), "{error}");
    let lookup = StringLookup::new().vocabulary(["a"]).invert(true);
    let index = Input::new([1]).integers().symbol();
    let error = message(Model::new(&index, lookup.apply(&index)));
    assert!(error.contains("expected numbers, received strings from 'string_lookup'"), "{error}");
}

/// Bins that a crossing needs are computed on the host, and fed to the devices as well.
#[test]
fn layers_between_inputs_and_host_layers_run_on_the_host() {
    let (x, city) = (Input::new([1]).symbol(), Input::new([1]).strings().symbol());
    let bins = Discretization::new([0.0, 1.0]).apply(&x);
    let crossed = HashedCrossing::new(4).output_mode(OutputMode::OneHot).apply([&bins, &city]);
    let encoded = CategoryEncoding::new(3).apply(&bins);
    let y = Concatenate::new().apply([&crossed, &encoded]);
    let model = Model::new([&x, &city], &y).unwrap();
    let x = Tensor::new([3, 1], vec![-1.0f32, 0.5, 7.0]).unwrap();
    let data = Arrays::new((x, Text::from(["a", "b", "c"])), ()).unwrap();
    let output = model.predict(&data).unwrap();
    let rows: Vec<&[f32]> = output.f32().unwrap().chunks(7).collect();
    assert_eq!(rows[0][4..], [1.0, 0.0, 0.0]);
    assert_eq!(rows[1][4..], [0.0, 1.0, 0.0]);
    assert_eq!(rows[2][4..], [0.0, 0.0, 1.0]);
    assert!(rows.iter().all(|row| row[..4].iter().sum::<f32>() == 1.0));
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let text = || Text::from(["a b"]);
    let lookup = || StringLookup::new().vocabulary(["a", "b"]);
    let refused = [
        (message(lookup().max_tokens(1).preprocess(text())), "max_tokens: expected 2 or more"),
        (message(lookup().max_tokens(2).preprocess(text())), "at most 2 terms"),
        (message(lookup().pad_to_max_tokens(true).preprocess(text())), "max_tokens: expected"),
        (message(lookup().num_oov_indices(0).preprocess(text())), "received 'a b'"),
        (message(lookup().mask_token("a").preprocess(text())), "reserved token 'a'"),
        (message(lookup().idf_weights([1.0, 2.0]).preprocess(text())), "expected tf_idf"),
        (message(lookup().output_mode(OutputMode::TfIdf).preprocess(text())), "idf_weights"),
        (message(lookup().adapt(["a"])), "received a vocabulary that was given"),
        (message(lookup().output_mode(OutputMode::Count).preprocess(text())), "samples of (n)"),
        (message(StringLookup::new().preprocess(text())), "given or learned by adapt()"),
        (message(StringLookup::new().vocabulary(["a", "a"]).preprocess(text())), "'a' twice"),
        (message(Hashing::new(0).preprocess(text())), "num_bins"),
        (message(HashedCrossing::new(2).preprocess(text())), "two or more"),
        (message(TextVectorization::new().ngrams([0]).adapt(["a"])), "lengths from 1"),
        (message(Discretization::new([1.0, 0.0]).preprocess(Tensor::zeros([1]))), "ascending"),
        (message(Dense::new(1).preprocess(text())), "a layer that runs on the host"),
    ];
    for (message, part) in refused {
        assert!(message.contains(part), "{message}");
    }
    let salted = IntegerLookup::new().vocabulary([1]).salt(3).preprocess(Tensor::zeros([1]));
    assert!(message(salted).contains("expected farmhash"));
}

#[test]
fn a_path_as_vocabulary_is_refused() {
    let config = serde_json::json!({ "vocabulary": "/etc/passwd" });
    for class in ["StringLookup", "IntegerLookup", "TextVectorization"] {
        let config = config.as_object().unwrap().clone();
        let error = message(phalanx::layers::from_config(class, config));
        assert!(error.contains("vocabulary: a path to a file is refused"), "{error}");
    }
}

#[test]
fn functions_of_python_and_ragged_outputs_are_refused() {
    let refused = |config: serde_json::Value| {
        let config = config.as_object().unwrap().clone();
        message(phalanx::layers::from_config("TextVectorization", config))
    };
    let function = serde_json::json!({ "class_name": "function", "config": "own>dashes" });
    for key in ["standardize", "split"] {
        let error = refused(serde_json::json!({ key: function }));
        assert!(error.contains("received a function of Python"), "{error}");
    }
    assert!(refused(serde_json::json!({ "split": "commas" })).contains("unknown variant `commas`"));
    assert!(refused(serde_json::json!({ "ragged": true })).contains("expected false"));
}

/// Terms that no line of a file can hold are written into the config.
#[test]
fn terms_with_line_breaks_survive_a_file() {
    let x = Input::new([1]).strings().symbol();
    let texts = ["a\nb", "c\u{2028}", "a\nb", ""];
    let vectorize = TextVectorization::new().standardize(None).split(None);
    let vectorize = vectorize.adapt(Text::new([4, 1], texts).unwrap()).unwrap();
    let y = Embedding::new(5, 2).apply(vectorize.apply(&x));
    let model = Model::new(&x, &y).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.keras");
    model.save(&path).unwrap();
    let all = Text::from(texts);
    assert_eq!(load_model(&path).unwrap().predict(&all).unwrap(), model.predict(&all).unwrap());
}

#[test]
fn a_pipeline_maps_strings_with_a_layer() {
    let vectorize = TextVectorization::new().split(Split::Character).output_sequence_length(3);
    let vectorize = vectorize.adapt(["abc", "aab"]).unwrap();
    let texts = Text::from(["cab", "b", "zz"]);
    let labels = Tensor::new([3], vec![0, 1, 1]).unwrap();
    let pipeline = Pipeline::from_tensor_slices((&texts, &labels)).unwrap();
    let pipeline = pipeline.map_layer(vectorize.clone());
    let elements = pipeline.elements(0, 0).unwrap().collect::<Result<Vec<_>>>().unwrap();
    let expected = vectorize.preprocess(&texts).unwrap().to_tensor();
    let rows: Vec<i32> = elements.iter().flat_map(|e| e[0].i32().unwrap().to_vec()).collect();
    assert_eq!(rows, expected.i32().unwrap());
    assert_eq!(elements[1][1].i32(), Some(&[1][..]));
    // Texts of their own lengths are padded after they are indices; strings are not padded.
    let open = TextVectorization::new().split(Split::Character).adapt(["abc", "aab"]).unwrap();
    let strings = || Pipeline::from_tensor_slices(&texts).unwrap();
    let batch = strings().map_layer(open).padded_batch(2).unwrap().elements(0, 0).unwrap().next();
    assert_eq!(batch.unwrap().unwrap()[0].dims(), [2, 3]);
    let error = message(strings().padded_batch(2).unwrap().elements(0, 0).map(|_| ()));
    assert!(error.contains("padded_batch: expected numbers, received strings"), "{error}");
    // A layer of numbers, and strings that were not mapped.
    let bins = Pipeline::from_tensor_slices(Tensor::new([2], vec![0.5f32, 3.0]).unwrap()).unwrap();
    let bins = bins.map_layer(Discretization::new([1.0]));
    let bins: Vec<_> =
        bins.elements(0, 0).unwrap().map(|e| e.unwrap()[0].i32().unwrap()[0]).collect();
    assert_eq!(bins, [0, 1]);
    let refused =
        Pipeline::from_tensor_slices(&texts).unwrap().map_layer(Discretization::new([1.0]));
    let error = message(refused.elements(0, 0).unwrap().collect::<Result<Vec<_>>>());
    assert!(error.contains("expected numbers, received strings"), "{error}");
}
