//! A small DCGAN: two models with an optimizer each, trained by turns in one compiled step.
//!
//! `cargo run --release -p phalanx --example gan`
//!
//! The images are generated: a bright disc at a random place. After training, the generator's images have about the
//! brightness of the real ones.

pub mod arguments;

use phalanx::custom::{Binary, NodeId};
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep};

const SIDE: usize = 8;
const LATENT: usize = 16;

fn main() -> Result<()> {
    arguments::read("")?;
    let (real, fake, history) = run(2048, 12, MirroredStrategy::new())?;
    println!("{:?}", history.get("d_loss"));
    println!("mean brightness: real {real:.3}, generated {fake:.3}");
    Ok(())
}

/// Images of a disc.
fn discs(count: usize) -> Result<Tensor> {
    let mut rng = phalanx::Stream::new(7, 0, 0, 0);
    let mut pixels = vec![];
    for _ in 0..count {
        let centre = [2.0 + 3.0 * rng.unit(), 2.0 + 3.0 * rng.unit()];
        for (row, column) in (0..SIDE * SIDE).map(|i| (i / SIDE, i % SIDE)) {
            let distance = (row as f64 - centre[0]).hypot(column as f64 - centre[1]);
            pixels.push(if distance < 2.0 { 0.9 } else { -0.9 });
        }
    }
    Ok(Tensor::new([count, SIDE, SIDE, 1], pixels)?)
}

fn generator() -> Result<Model> {
    Sequential::new()
        .named("generator")
        .add(Input::new([LATENT]))
        .add(Dense::new(2 * 2 * 16).use_bias(false))
        .add(BatchNormalization::new())
        .add(LeakyReLU::new().negative_slope(0.2))
        .add(Reshape::new([2, 2, 16]))
        .add(Conv2DTranspose::new(8, 4).strides(2).padding("same").activation("relu"))
        .add(Conv2DTranspose::new(1, 4).strides(2).padding("same").activation("tanh"))
        .build()
}

fn discriminator() -> Result<Model> {
    Sequential::new()
        .named("discriminator")
        .add(Input::new([SIDE, SIDE, 1]))
        .add(Conv2D::new(8, 4).strides(2).padding("same").activation("leaky_relu"))
        .add(Dropout::new(0.3))
        .add(Conv2D::new(16, 4).strides(2).padding("same").activation("leaky_relu"))
        .add(Flatten::new())
        .add(Dense::new(1))
        .build()
}

/// The crossentropy of logits with 1 (real) or 0 (generated) for every sample.
fn judge(cx: &mut StepContext<'_>, logits: NodeId, real: bool) -> Result<NodeId> {
    let ones = cx.graph().binary(Binary::Eq, logits, logits)?;
    let target = cx.graph().scale(ones, f64::from(u8::from(real)))?;
    cx.loss(&BinaryCrossentropy::default().from_logits(true), target, logits)
}

/// Trains; returns the mean brightness of real and of generated images.
pub fn run(
    samples: usize,
    epochs: usize,
    strategy: MirroredStrategy,
) -> Result<(f64, f64, History)> {
    let (generator, discriminator) = (generator()?, discriminator()?);
    let mut gan = TrainStep::new("gan")
        .input("images", Input::new([SIDE, SIDE, 1]))
        .model("generator", &generator)
        .model("discriminator", &discriminator)
        .optimizer("discriminator", Adam::new(1e-3).beta_1(0.5))
        .optimizer("generator", Adam::new(2e-3).beta_1(0.5))
        .strategy(strategy)
        .compile(|cx| {
            // First the discriminator learns to tell real images from generated ones.
            let real = cx.input("images")?;
            let z = cx.random_normal(&[LATENT])?;
            let fake = cx.call("generator", &[z])?;
            let of_real = cx.call("discriminator", &[real])?;
            let of_fake = cx.call("discriminator", &[fake])?;
            let (of_real, of_fake) = (judge(cx, of_real, true)?, judge(cx, of_fake, false)?);
            let loss = cx.graph().add(of_real, of_fake)?;
            cx.minimize("d_loss", loss, &["discriminator"], "discriminator")?;
            // Then the generator learns to deceive the new discriminator.
            let z = cx.random_normal(&[LATENT])?;
            let fake = cx.call("generator", &[z])?;
            let logits = cx.call("discriminator", &[fake])?;
            let loss = judge(cx, logits, true)?;
            cx.minimize("g_loss", loss, &["generator"], "generator")
        })?;
    let images = discs(samples)?;
    let history = gan.fit(&images, Fit::new().epochs(epochs).batch_size(32).verbose(0))?;

    let mut rng = phalanx::Stream::new(3, 0, 0, 0);
    let z: Vec<f32> = (0..64 * LATENT).map(|_| rng.normal() as f32).collect();
    let generated = generator.predict(Tensor::new([64, LATENT], z)?)?;
    let mean = |t: &Tensor| {
        let values = t.f32().unwrap_or_default();
        values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64
    };
    Ok((mean(&images), mean(&generated), history))
}
