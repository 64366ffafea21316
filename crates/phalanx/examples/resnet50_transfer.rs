//! Transfer learning: ResNet50 as a base with a new head, on the given devices. With pretrained weights the
//! base is frozen and only the head is trained; without them everything is trained. Without CIFAR-10's files it
//! trains on generated digits.
//!
//! `cargo run --release -p phalanx --example resnet50_transfer -- --devices cpu:0,cpu:1 --steps 20`

pub mod arguments;

use phalanx::datasets::Split;
use phalanx::prelude::*;

fn main() -> Result<()> {
    let flags = arguments::read("[--devices NAMES] [--steps N] [--weights FILE]")?;
    let steps = flags.number("--steps", 50)?;
    let cifar = datasets::find("cifar-10")?.is_some();
    let data = datasets::load(if cifar { "cifar-10" } else { "glyphs" })?;
    let strategy = match flags.text("--devices") {
        Some(names) => MirroredStrategy::with_devices(names.split(','))?,
        None => {
            // As in TensorFlow: up to two GPUs, else the CPU.
            let gpus: Vec<_> = list_physical_devices(DeviceKind::Gpu).into_iter().take(2).collect();
            set_visible_devices(&gpus, DeviceKind::Gpu)?;
            MirroredStrategy::new()
        }
    };
    let (base, mut model) = build(data.train.0.dims(), flags.text("--weights"))?;
    println!("{} parameters, {} of them in the base", model.count_params(), base.count_params());
    train(&mut model, data, strategy, steps)?;
    Ok(())
}

/// The base, and the model with the new head.
pub fn build(images: &[usize], weights: Option<&str>) -> Result<(Model, Model)> {
    let mut base = applications::resnet50([32, 32, images[3]], None)?;
    if let Some(path) = weights {
        base.load_weights(path)?;
        base.set_trainable(false);
    }
    let x = GlobalAveragePooling2D::new().apply(base.outputs());
    let x = Dense::new(256).activation("relu").apply(&x);
    let x = Dense::new(128).activation("relu").apply(&x);
    let predictions = Dense::new(10).activation("softmax").apply(&x);
    let model = Model::new(base.inputs(), &predictions)?;
    Ok((base, model))
}

pub fn train(
    model: &mut Model,
    data: Split,
    strategy: MirroredStrategy,
    steps: usize,
) -> Result<History> {
    let batch_size = 16 * strategy.num_replicas_in_sync();
    model.compile(
        Compile::new("adam")
            .loss("categorical_crossentropy")
            .metrics(["accuracy"])
            .strategy(strategy),
    )?;
    let images = data.train.0.resize(32, 32)?;
    let labels = to_categorical(&data.train.1, Some(10))?;
    let fit = Fit::new().epochs(2).steps_per_epoch(steps).batch_size(batch_size).verbose(2);
    model.fit((images, labels), fit)
}
