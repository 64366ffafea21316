//! A U-Net that finds shapes in noisy images: every pixel is background, disc or square. The network halves the images
//! twice, doubles them again with transposed convolutions, and joins what it saw at each size. Images are generated.
//!
//! `cargo run --release -p phalanx --example unet_segmentation -- --epochs 6`

pub mod arguments;

use phalanx::Stream;
use phalanx::prelude::*;

const SIDE: usize = 32;

fn main() -> Result<()> {
    let flags = arguments::read("[--epochs N] [--images N]")?;
    let logs = run(flags.number("--images", 2000)?, flags.number("--epochs", 6)?, 2)?;
    println!("test: {logs}");
    Ok(())
}

/// Images with a disc and a square each, and the class of every pixel.
fn shapes(images: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let mut rng = Stream::new(seed, 0, 0, 0);
    let (mut pixels, mut classes) = (vec![], vec![]);
    for _ in 0..images {
        let mut place = || 6 + rng.below(SIDE as u64 - 12) as i64;
        let (disc, square) = ([place(), place()], [place(), place()]);
        let size = 3 + rng.below(3) as i64;
        for i in 0..SIDE * SIDE {
            let (row, column) = ((i / SIDE) as i64, (i % SIDE) as i64);
            let [a, b] = [row - disc[0], column - disc[1]];
            let [c, d] = [row - square[0], column - square[1]];
            let class = match () {
                () if a * a + b * b <= size * size => 1,
                () if c.abs() < size && d.abs() < size => 2,
                () => 0,
            };
            let brightness = if class == 0 { 0.3 } else { 0.7 };
            pixels.push((brightness + 0.4 * (rng.unit() - 0.5)) as f32);
            classes.push(class);
        }
    }
    Ok((Tensor::new([images, SIDE, SIDE, 1], pixels)?, Tensor::new([images, SIDE, SIDE], classes)?))
}

/// Two convolutions with batch normalisation.
fn convolutions(x: &Symbol, filters: usize) -> Symbol {
    let mut x = x.clone();
    for _ in 0..2 {
        let y = Conv2D::new(filters, 3).padding("same").use_bias(false).apply(&x);
        x = Activation::new("relu").apply(BatchNormalization::new().momentum(0.9).apply(&y));
    }
    x
}

/// Logits of `classes` for every pixel.
pub fn unet(classes: usize) -> Result<Model> {
    let inputs = Input::new([SIDE, SIDE, 1]).symbol();
    let (mut x, mut skips) = (inputs.clone(), vec![]);
    for filters in [8, 16] {
        x = convolutions(&x, filters);
        skips.push((filters, x.clone()));
        x = MaxPooling2D::new(2).apply(&x);
    }
    x = convolutions(&x, 32);
    for (filters, skip) in skips.into_iter().rev() {
        x = Conv2DTranspose::new(filters, 2).strides(2).apply(&x);
        x = convolutions(&Concatenate::new().apply([&skip, &x]), filters);
    }
    Model::with_name("unet", &inputs, Conv2D::new(classes, 1).apply(&x))
}

/// Trains on generated images; returns the results on others.
pub fn run(images: usize, epochs: usize, verbose: u8) -> Result<Logs> {
    let mut model = unet(3)?;
    model.compile(
        Compile::new(Adam::new(5e-3))
            .loss(SparseCategoricalCrossentropy::default().from_logits(true))
            .metrics(["accuracy"]),
    )?;
    model.fit(shapes(images, 1)?, Fit::new().epochs(epochs).batch_size(16).verbose(verbose))?;
    model.evaluate(shapes(images.div_ceil(5), 2)?)
}
