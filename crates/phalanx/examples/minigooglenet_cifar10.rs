//! The multi-GPU tutorial: MiniGoogLeNet on CIFAR-10 with shifted and flipped images, a learning rate that
//! decays to zero, several GPUs, and a plot of the training. Without CIFAR-10's files it trains on generated
//! digits.
//!
//! `cargo run --release -p phalanx --example minigooglenet_cifar10 -- --output plot.png --gpus 2 --epochs 5`
//! (with CPU replicas if there are fewer GPUs)

pub mod arguments;

use phalanx::datasets::Split;
use phalanx::plots;
use phalanx::prelude::*;
use std::path::Path;

const INIT_LR: f64 = 5e-3;

fn main() -> Result<()> {
    let flags = arguments::read("[--output FILE] [--gpus N] [--epochs N]")?;
    let (gpus, epochs) = (flags.number("--gpus", 1)?, flags.number("--epochs", 70)?);
    let output = Path::new(flags.text("--output").unwrap_or("plot.png"));
    run(data()?, gpus, epochs, output).map(|_| ())
}

/// CIFAR-10 if available, else generated digits of the same size.
fn data() -> Result<Split> {
    if datasets::find("cifar-10")?.is_some() {
        return datasets::load("cifar-10");
    }
    let Split { train, test } = datasets::load("glyphs")?;
    Ok(Split { train: (train.0.resize(32, 32)?, train.1), test: (test.0.resize(32, 32)?, test.1) })
}

pub fn run(data: Split, devices: usize, epochs: usize, output: &Path) -> Result<History> {
    // Images with the mean subtracted, and one-hot labels.
    let mean = data.train.0.clone().raw().mean();
    let prepare = |(x, y): (Samples, Tensor)| -> Result<(Samples, Tensor)> {
        Ok((x.raw().subtract(&mean)?, to_categorical(&y, Some(10))?))
    };
    let (train_x, train_y) = prepare(data.train)?;
    let aug = ImageDataGenerator::new()
        .width_shift_range(0.1)
        .height_shift_range(0.1)
        .horizontal_flip(true)
        .fill_mode("nearest");

    let gpus = list_physical_devices(DeviceKind::Gpu).len() >= devices;
    let strategy = match gpus {
        true => MirroredStrategy::with_devices((0..devices).map(|i| format!("gpu:{i}")))?,
        false => MirroredStrategy::cpus(devices)?,
    };
    println!("[INFO] training with {devices} devices...");
    let input = [32, 32, *train_x.dims().last().unwrap_or(&3)];
    let mut model = applications::mini_googlenet(input, Some(10))?;
    model.compile(
        Compile::new(SGD::new(INIT_LR).momentum(0.9))
            .loss("categorical_crossentropy")
            .metrics(["accuracy"])
            .strategy(strategy),
    )?;
    let poly_decay = move |epoch: usize| INIT_LR * (1.0 - epoch as f64 / epochs as f64);
    let history = model.fit(
        aug.flow(train_x, train_y, 64 * devices)?,
        Fit::new()
            .validation_data(prepare(data.test)?)
            .epochs(epochs)
            .callback(LearningRateScheduler::new(poly_decay))
            .verbose(2),
    )?;
    plots::curves(&history, "MiniGoogLeNet on CIFAR-10", output)?;
    Ok(history)
}
