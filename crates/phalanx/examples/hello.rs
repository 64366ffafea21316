//! The smallest program: define a network, compile it, train it.
//!
//! `cargo run --release -p phalanx --example hello`

pub mod arguments;

use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    run().map(|accuracy| println!("accuracy: {accuracy:.4}"))
}

pub fn run() -> Result<f64> {
    let digits = datasets::load("glyphs")?; // drawn on the spot: no files, no network
    let mut model = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Flatten::new())
        .add(Dense::new(64).activation("relu"))
        .add(Dense::new(10).activation("softmax"))
        .build()?;
    model.compile(
        Compile::new("adam").loss("sparse_categorical_crossentropy").metrics(["accuracy"]),
    )?;
    let history = model.fit(digits.train, Fit::new().epochs(3))?;
    Ok(history.last("accuracy").unwrap_or_default())
}
