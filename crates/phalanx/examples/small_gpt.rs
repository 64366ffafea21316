//! A small GPT that learns to continue text, letter by letter. The text is made here: sentences of a few words, with a
//! rule that the network has to find: who walks goes to the park, who swims goes to the sea.
//!
//! `cargo run --release -p phalanx --example small_gpt -- --epochs 8 --prompt "anna swims to the "`

pub mod arguments;

use phalanx::Stream;
use phalanx::applications::Gpt2;
use phalanx::prelude::*;

/// The letters that occur. The position in this text is the token.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz .";
const LENGTH: usize = 32;

fn main() -> Result<()> {
    let flags = arguments::read("[--epochs N] [--prompt TEXT]")?;
    let prompt = flags.text("--prompt").unwrap_or("anna swims to the ");
    let (loss, text) = run(flags.number("--epochs", 8)?, 400_000, prompt, 2)?;
    println!("loss {loss:.3}\n{text}");
    Ok(())
}

fn token(letter: char) -> Option<i32> {
    LETTERS.chars().position(|known| known == letter).map(|token| token as i32)
}

/// Sentences such as "otto walks to the park. ".
fn text(letters: usize) -> String {
    let mut rng = Stream::new(1, 0, 0, 0);
    let mut text = String::new();
    while text.len() < letters {
        let name = ["anna", "otto", "ida", "max"][rng.below(4) as usize];
        let ways = [("walks", "park"), ("swims", "sea"), ("flies", "moon"), ("rides", "farm")];
        let (verb, place) = ways[rng.below(4) as usize];
        text += &format!("{name} {verb} to the {place}. ");
    }
    text
}

/// Continues a prompt by the most probable letter, up to the end of a sentence.
fn continued(model: &Model, prompt: &str) -> Result<String> {
    let mut tokens: Vec<i32> = prompt.chars().filter_map(token).collect();
    let mut out = prompt.to_string();
    for _ in 0..LENGTH {
        // The network reads LENGTH letters. What follows the last one does not matter: attention looks back only.
        let start = tokens.len().saturating_sub(LENGTH);
        let mut window = tokens[start..].to_vec();
        let last = window.len().max(1) - 1;
        window.resize(LENGTH, 0);
        let logits = model.predict(Tensor::new([1, LENGTH], window)?)?;
        let row = &logits.f32().unwrap_or_default()[last * LETTERS.len()..][..LETTERS.len()];
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
        tokens.push(best as i32);
        out.extend(LETTERS.chars().nth(best));
        if out.ends_with('.') {
            break;
        }
    }
    Ok(out)
}

/// Trains on `letters` letters; returns the last loss and a continuation of `prompt`.
pub fn run(epochs: usize, letters: usize, prompt: &str, verbose: u8) -> Result<(f64, String)> {
    let tokens: Vec<i32> = text(letters).chars().filter_map(token).collect();
    // Each sample predicts the letter after each of its letters.
    let rows = (tokens.len() - 1) / LENGTH;
    let part =
        |from: usize| Tensor::new([rows, LENGTH], tokens[from..from + rows * LENGTH].to_vec());
    let (x, y) = (part(0)?, part(1)?);
    let sizes = Gpt2 {
        vocabulary: LETTERS.len(),
        length: LENGTH,
        width: 48,
        heads: 4,
        layers: 2,
        dropout: 0.0,
    };
    let mut model = sizes.build()?;
    model.compile(
        Compile::new(AdamW::new(3e-3))
            .loss(SparseCategoricalCrossentropy::default().from_logits(true))
            .metrics(["accuracy"]),
    )?;
    let fit = Fit::new().epochs(epochs).batch_size(32).verbose(verbose);
    let history = model.fit((&x, &y), fit)?;
    let loss = history.last("loss").unwrap_or(f64::NAN);
    Ok((loss, continued(&model, prompt)?))
}
