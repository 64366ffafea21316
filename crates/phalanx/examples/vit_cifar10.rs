//! A vision transformer on CIFAR-10, as in Keras' example: images become 144 patches, eight blocks of attention relate
//! them, and a perceptron classifies. Without CIFAR-10's files it trains on generated digits.
//!
//! `cargo run --release -p phalanx --example vit_cifar10 -- --epochs 10`

pub mod arguments;

use phalanx::applications::VisionTransformer;
use phalanx::datasets::Split;
use phalanx::prelude::*;

fn main() -> Result<()> {
    let flags = arguments::read("[--epochs N]")?;
    let epochs = flags.number("--epochs", 10)?;
    let found = datasets::find("cifar-10")?.is_some();
    if !found {
        println!(
            "CIFAR-10 is not here (`phalanx data fetch cifar-10`): training on generated digits"
        );
    }
    let data = datasets::load(if found { "cifar-10" } else { "glyphs" })?;
    let logs = run(data, VisionTransformer::small(), epochs)?;
    println!("test: {logs}");
    Ok(())
}

/// Trains a transformer of these sizes; returns its results on the test images.
pub fn run(data: Split, sizes: VisionTransformer, epochs: usize) -> Result<Logs> {
    let [height, width, _] = sizes.image;
    let prepare = |(x, y): (Samples, Tensor)| -> Result<(Samples, Tensor)> {
        Ok((x.resize(height, width)?, y))
    };
    let (train, test) = (prepare(data.train)?, prepare(data.test)?);
    let channels = *train.0.dims().last().unwrap_or(&3);
    let sizes = VisionTransformer { image: [height, width, channels], dropout: 0.1, ..sizes };
    let mut model = sizes.build()?;
    println!("{} parameters", model.count_params());
    model.compile(
        Compile::new(AdamW::new(1e-3).weight_decay(1e-4))
            .loss(SparseCategoricalCrossentropy::default().from_logits(true))
            .metrics(["accuracy"]),
    )?;
    let aug = ImageDataGenerator::new()
        .width_shift_range(0.1)
        .height_shift_range(0.1)
        .fill_mode("nearest");
    let flow = aug.flow(train.0, train.1, 64)?;
    model.fit(flow, Fit::new().epochs(epochs).verbose(2))?;
    model.evaluate(test)
}
