//! Contrastive learning with a Siamese network: one encoder sees both images of a pair, and learns to place images of the
//! same digit close together.
//!
//! `cargo run --release -p phalanx --example contrastive`
//!
//! A pair is one sample, so the step is the same on any number of replicas.

pub mod arguments;

use phalanx::custom::Unary;
use phalanx::data::Arrays;
use phalanx::prelude::*;
use phalanx::train_step::TrainStep;

/// Images of different digits should be at least this far apart.
const MARGIN: f64 = 1.0;

fn main() -> Result<()> {
    arguments::read("")?;
    let digits = datasets::load("glyphs")?;
    let accuracy = run(&digits, 8, MirroredStrategy::new())?;
    println!("pairs told apart: {accuracy:.4}");
    Ok(())
}

/// Pairs of images, and 1 for those of the same digit.
fn pairs(images: &Tensor, labels: &Tensor) -> Result<Arrays> {
    let (rows, width) = (images.rows(), images.row_len());
    let (pixels, labels) = (images.f32().unwrap_or_default(), labels.i32().unwrap_or_default());
    let image = |row: usize| &pixels[row * width..(row + 1) * width];
    let (mut left, mut right, mut same) = (vec![], vec![], vec![]);
    // Every sample is paired with the next one of its digit, and with the next one of another.
    for (row, wanted) in (0..rows).flat_map(|row| [(row, true), (row, false)]) {
        let mut others = (1..rows).map(|offset| (row + offset) % rows);
        let Some(other) = others.find(|o| (labels[*o] == labels[row]) == wanted) else { continue };
        left.extend_from_slice(image(row));
        right.extend_from_slice(image(other));
        same.push(f32::from(u8::from(wanted)));
    }
    let count = same.len();
    let dims = [&[count], &images.dims()[1..]].concat();
    let images = vec![Tensor::new(dims.clone(), left)?, Tensor::new(dims, right)?];
    Arrays::new(images, Tensor::new([count, 1], same)?)
}

/// Trains an encoder; returns the fraction of test pairs on the right side of half the margin.
pub fn run(digits: &datasets::Split, epochs: usize, strategy: MirroredStrategy) -> Result<f64> {
    let encoder = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Flatten::new())
        .add(Dense::new(64).activation("relu"))
        .add(Dense::new(8))
        .build()?;
    let mut siamese = TrainStep::new("siamese")
        .input("left", Input::new([28, 28, 1]))
        .input("right", Input::new([28, 28, 1]))
        .target("same", Input::new([1]))
        .model("encoder", &encoder)
        .optimizer("adam", Adam::default())
        .strategy(strategy)
        .compile(|cx| {
            let (left, right, same) = (cx.input("left")?, cx.input("right")?, cx.input("same")?);
            let (left, right) = (cx.call("encoder", &[left])?, cx.call("encoder", &[right])?);
            let g = cx.graph();
            let apart = g.sub(left, right)?;
            let squares = g.unary(Unary::Square, apart)?;
            let square = g.sum_axes(squares, &[0])?; // (batch, 1)
            let square = g.offset(square, 1e-9)?; // the root has no derivative at 0
            let distance = g.unary(Unary::Sqrt, square)?;
            // same · d² + (1 - same) · max(margin - d, 0)²
            let minus = g.neg(distance)?;
            let missing = g.offset(minus, MARGIN)?;
            let missing = g.relu(missing)?;
            let missing = g.unary(Unary::Square, missing)?;
            let loss = g.select(same, square, missing)?;
            let score = g.offset(minus, MARGIN / 2.0 + 0.5)?; // above 0.5 if closer than half the margin
            cx.track(BinaryAccuracy::default(), same, score)?;
            cx.minimize("loss", loss, &["encoder"], "adam")
        })?;
    let train = pairs(&digits.train.0.to_tensor(), &digits.train.1)?;
    let test = pairs(&digits.test.0.to_tensor(), &digits.test.1)?;
    siamese.fit(train, Fit::new().epochs(epochs).verbose(0))?;
    let logs = siamese.evaluate(test, Inference::new())?;
    Ok(logs.get("binary_accuracy").unwrap_or_default())
}
