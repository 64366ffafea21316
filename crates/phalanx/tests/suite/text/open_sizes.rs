//! Texts without a fixed length: sequences are as long as the longest one of each batch.

use super::behaviour::message;
use phalanx::data::{Arrays, Text};
use phalanx::prelude::*;

const TEXTS: [&str; 10] =
    ["a b c d e", "a", "b c", "", "c b a d", "e e", "a b c d e f g", "f", "g", "a c"];

fn vectorize() -> TextVectorization {
    TextVectorization::new().vocabulary(["a", "b", "c", "d", "e", "f"])
}

/// A model whose output depends on the length of the batch.
fn classifier(vectorize: TextVectorization) -> Model {
    let x = Input::new([1]).strings().named("text").symbol();
    let y = Embedding::new(8, 3).apply(vectorize.named("vectorize").apply(&x));
    let y = Conv1D::new(4, 3).padding("same").apply(&y);
    let y = GlobalAveragePooling1D::new().apply(&y);
    let model = Model::new(&x, Dense::new(2).apply(&y)).unwrap();
    model.initialize(7).unwrap();
    model
}

fn targets() -> Tensor {
    Tensor::new([10, 2], (0..20).map(|i| (i * 7 % 11) as f32 / 11.0).collect::<Vec<_>>()).unwrap()
}

#[test]
fn sequences_are_as_long_as_the_longest_one_of_a_batch() {
    let model = classifier(vectorize());
    let summary = model.summary().to_string();
    assert!(summary.contains("(None, None)") && summary.contains("(None, None, 4)"), "{summary}");
    let all = Text::new([10, 1], TEXTS).unwrap();
    let outputs = model.predict(Arrays::new(&all, ()).unwrap().batch(4).unwrap()).unwrap();
    for (start, longest) in [(0, 5), (4, 7), (8, 2)] {
        let rows = start..10.min(start + 4);
        let part = Text::new([rows.len(), 1], TEXTS[rows.clone()].to_vec()).unwrap();
        assert_eq!(model.predict_on_batch(&part).unwrap(), outputs.slice_rows(rows));
        let mut fixed = classifier(vectorize().output_sequence_length(longest));
        fixed
            .set_weights(&model.weights().unwrap().into_iter().map(|(_, w)| w).collect::<Vec<_>>())
            .unwrap();
        assert_eq!(fixed.predict(&part).unwrap(), model.predict(&part).unwrap());
    }
    let pipeline = Pipeline::from_tensor_slices(&all).unwrap().batch(4, false).unwrap();
    assert_eq!(model.predict(pipeline).unwrap(), outputs);
}

#[test]
fn replicas_agree_on_the_length_of_a_batch() {
    let (x, y) = (Text::new([10, 1], TEXTS).unwrap(), targets());
    let run = |replicas, batch| {
        let mut model = classifier(vectorize());
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        model.compile(Compile::new(SGD::new(0.1)).loss("mse").strategy(strategy).seed(3)).unwrap();
        let fit = Fit::new().epochs(2).batch_size(batch).validation_split(0.2).verbose(0);
        let history = model.fit((&x, &y), fit).unwrap();
        let mut losses = history.get("loss").unwrap().to_vec();
        losses.extend(history.get("val_loss").unwrap());
        let data = Arrays::new(&x, &y).unwrap().batch(batch).unwrap();
        losses.push(model.evaluate_with(&data, Inference::new()).unwrap().get("loss").unwrap());
        losses.push(model.train_on_batch(&x, &y).unwrap().get("loss").unwrap());
        losses.push(model.test_on_batch(&x, &y).unwrap().get("loss").unwrap());
        losses
    };
    // Every remainder of a division by two and three, and fewer rows than replicas.
    for batch in [2, 3, 4, 5, 8] {
        let one = run(1, batch);
        for replicas in [2, 3] {
            for (a, b) in one.iter().zip(run(replicas, batch)) {
                assert!((a - b).abs() < 1e-6, "batch {batch}, {replicas} replicas: {one:?}");
            }
        }
    }
}

#[test]
fn a_batch_without_any_token_is_refused() {
    let model = classifier(vectorize());
    let error = message(model.predict(Text::from(["", "..."])));
    assert!(error.contains("input 'vectorize': expected (None, None), received [2, 0]"), "{error}");
    assert!(error.contains("at least one token"), "{error}");
    let error = message(model.program(StepKind::Predict, 4));
    assert!(error.contains("expected known sizes"), "{error}");
}

/// An encoding of an open axis keeps the axis if a batch has one element on it.
#[test]
fn an_open_axis_of_one_element_stays_an_axis() {
    let x = Input::new([None]).strings().symbol();
    let one_hot = StringLookup::new().vocabulary(["a", "b"]).output_mode(OutputMode::OneHot);
    let hashed = Hashing::new(3).output_mode(OutputMode::OneHot).apply(&x);
    let y = Concatenate::new().apply([&one_hot.apply(&x), &hashed]);
    let model = Model::new(&x, &y).unwrap();
    assert_eq!(model.output_shapes()[0], Shape::from([None, Some(6)]));
    for words in [1, 2, 3] {
        let text = Text::new([2, words], vec!["a"; 2 * words]).unwrap();
        assert_eq!(model.predict(&text).unwrap().dims(), [2, words, 6]);
    }
    // Samples without the axis cannot tell its size.
    let error = message(model.predict(Text::new([2, 1, 2], vec!["a"; 4]).unwrap()));
    assert!(error.contains("expected strings (None, None)"), "{error}");
    let split = message(Model::new(&x, vectorize().named("split").apply(&x)));
    assert!(split.contains("layer 'split': input: expected one string per sample"), "{split}");
    // Unsplit strings keep their open number.
    let unsplit = Model::new(&x, vectorize().split(None).apply(&x)).unwrap();
    assert_eq!(unsplit.output_shapes()[0], Shape::from([None]));
    let ngrams = vectorize().split(None).ngrams([2]);
    let unsplit = Model::new(&x, ngrams.apply(&x)).unwrap();
    let text = Text::new([1, 3], ["a", "b", "c"]).unwrap();
    assert_eq!(unsplit.predict(&text).unwrap().dims(), [1, 2]);
}
