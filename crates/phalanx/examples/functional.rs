//! A model with two inputs, a shared branch, and two outputs with a loss each.
//!
//! The input is two digits. The network names the left one and adds them.
//!
//! `cargo run --release -p phalanx --example functional`

pub mod arguments;

use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    println!("{}", run()?.1);
    Ok(())
}

pub fn run() -> Result<(Model, Logs)> {
    let left = Input::new([28, 28, 1]).named("left_image").symbol();
    let right = Input::new([28, 28, 1]).named("right_image").symbol();

    // One layer applied twice: the weights are shared.
    let encoder = Dense::new(96).activation("relu").named("encoder");
    let a = encoder.apply(Flatten::new().apply(&left));
    let b = encoder.apply(Flatten::new().apply(&right));

    let digit = Dense::new(10).activation("softmax").named("digit").apply(&a);
    let both = Concatenate::new().apply([&a, &b]);
    let both = Dense::new(64).activation("relu").apply(&both);
    let total = Dense::new(1).named("total").apply(&both);

    let mut model = Model::with_name("two_digits", [&left, &right], [&digit, &total])?;
    model.compile(
        Compile::new(Adam::new(2e-3))
            .loss("sparse_categorical_crossentropy")
            .loss("mse")
            .loss_weights([1.0, 0.1])
            .metrics(["accuracy"])
            .metrics(["mae"]),
    )?;
    println!("{}", model.summary());

    let (train, test) = pairs()?.split(0.2)?;
    model.fit(train, Fit::new().epochs(12).batch_size(64).verbose(2))?;
    let logs = model.evaluate_with(test, Inference::new())?;
    Ok((model, logs))
}

/// Pairs the first half of the images (left) with the second half (right).
fn pairs() -> Result<Arrays> {
    let (images, labels) = datasets::load("glyphs")?.train;
    let images = images.to_tensor();
    let half = images.rows() / 2;
    let part = |t: &Tensor| (t.slice_rows(0..half), t.slice_rows(half..2 * half));
    let (left, right) = part(&images);
    let (digit, other) = part(&labels);
    let digits = digit.i32().into_iter().zip(other.i32()).flat_map(|(a, b)| a.iter().zip(b));
    let total: Vec<f32> = digits.map(|(a, b)| (a + b) as f32).collect();
    let total = Tensor::new([half, 1], total).expect("a sum for every pair");
    Arrays::new(vec![left, right], vec![digit, total])
}
