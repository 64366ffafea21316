//! Texts to classes, from strings: a 1-D convolution, then a bidirectional LSTM.
//!
//! The texts are generated reviews. A negation turns the meaning of a word around, so single words do not suffice.
//!
//! `cargo run --release -p phalanx --example text_classification`

pub mod arguments;

use phalanx::Stream;
use phalanx::layers::TextVectorization;
use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    let (convolution, recurrent) = run(2000, 12)?;
    println!("accuracy: convolution {convolution:.3}, LSTM {recurrent:.3}");
    Ok(())
}

/// Trains both networks. Returns their accuracies on texts that they have not seen.
pub fn run(samples: usize, epochs: usize) -> Result<(f64, f64)> {
    let (texts, labels) = reviews(samples);
    let (train, test) = Arrays::new(&texts, &labels)?.split(0.2)?;
    let vectorize =
        TextVectorization::new().max_tokens(100).output_sequence_length(12).adapt(&texts)?;
    println!("vocabulary: {:?}", &vectorize.get_vocabulary()[..8]);

    let convolution = |x: &Symbol| {
        let x = Conv1D::new(16, 3).activation("relu").apply(x);
        GlobalMaxPooling1D::new().apply(&x)
    };
    let recurrent = |x: &Symbol| Bidirectional::new(LSTM::new(8)).apply(x);
    let mut accuracies = vec![];
    for network in [&convolution as &dyn Fn(&Symbol) -> Symbol, &recurrent] {
        // The model takes strings: a saved file needs no other preprocessing.
        let inputs = Input::new([1]).strings().symbol();
        let indices = vectorize.clone().apply(&inputs);
        let x = Embedding::new(100, 8).mask_zero(true).apply(&indices);
        let outputs = Dense::new(1).activation("sigmoid").apply(network(&x));
        let mut model = Model::new(&inputs, &outputs)?;
        let compile = Compile::new(Adam::new(1e-2)).loss("binary_crossentropy");
        model.compile(compile.metrics(["accuracy"]))?;
        model.fit(&train, Fit::new().epochs(epochs).batch_size(64).verbose(2))?;
        let logs = model.evaluate_with(&test, Inference::new())?;
        accuracies.push(logs.get("accuracy").unwrap_or_default());
        let unseen = Text::from(["not bad at all", "what a boring film"]);
        println!("{:?}", model.predict(unseen)?.f32());
    }
    Ok((accuracies[0], accuracies[1]))
}

/// Reviews, and whether they are good.
fn reviews(samples: usize) -> (Text, Tensor) {
    let subjects = ["The film", "this book", "Her latest song", "the play", "That story"];
    let verbs = ["is", "was", "seems", "felt"];
    let good = ["great", "lovely", "exciting", "wonderful"];
    let bad = ["bad", "boring", "awful", "dull"];
    let ends = ["!", ".", " at all...", ", I think.", " from start to end"];
    let mut random = Stream::new(7, 0, 1, 0);
    let mut pick = |count: u64| random.below(count) as usize;
    let (mut texts, mut labels) = (vec![], vec![]);
    for _ in 0..samples {
        let (likes, negates) = (pick(2) == 1, pick(3) == 0);
        let word = if likes { good[pick(4)] } else { bad[pick(4)] };
        let not = if negates { " not" } else { "" };
        let (subject, verb, end) = (subjects[pick(5)], verbs[pick(4)], ends[pick(5)]);
        texts.push(format!("{subject} {verb}{not} {word}{end}"));
        labels.push(f32::from(likes != negates));
    }
    let labels = Tensor::new([samples, 1], labels).expect("a label for every text");
    (Text::from(texts), labels)
}
