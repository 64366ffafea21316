//! TensorFlow's `MirroredStrategy` tutorial: a convolutional network with TensorBoard logs, checkpoints, a
//! learning rate schedule and a custom callback. At the end the last checkpoint is evaluated.
//!
//! `cargo run --release -p phalanx --example mnist_cnn`

pub mod arguments;

use phalanx::datasets::Split;
use phalanx::prelude::*;
use std::path::Path;

fn main() -> Result<()> {
    arguments::read("")?;
    let mnist = datasets::find("mnist")?.is_some();
    let digits = datasets::load(if mnist { "mnist" } else { "glyphs" })?;
    let (_, eval) = run(digits, 12, Path::new("."))?;
    println!("Eval {eval}");
    Ok(())
}

fn decay(epoch: usize) -> f64 {
    match epoch {
        0..3 => 1e-3,
        3..7 => 1e-4,
        _ => 1e-5,
    }
}

struct PrintLR;

impl Callback for PrintLR {
    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        println!("learning rate for epoch {} is {}", view.epoch + 1, view.learning_rate);
        Ok(Action::Continue)
    }
}

pub fn run(digits: Split, epochs: usize, directory: &Path) -> Result<(History, Logs)> {
    let strategy = MirroredStrategy::new();
    let batch_size = 64 * strategy.num_replicas_in_sync();
    let mut model = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Conv2D::new(32, 3).activation("relu"))
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(64).activation("relu"))
        .add(Dense::new(10).activation("softmax"))
        .build()?;
    model.compile(
        Compile::new(Adam::default())
            .loss("sparse_categorical_crossentropy")
            .metrics(["accuracy"])
            .strategy(strategy),
    )?;
    let checkpoints = directory.join("training_checkpoints");
    let history = model.fit(
        digits.train,
        Fit::new()
            .epochs(epochs)
            .batch_size(batch_size)
            .callback(TensorBoard::new(directory.join("logs")))
            .callback(ModelCheckpoint::new(checkpoints.join("ckpt_{epoch}.keras")))
            .callback(LearningRateScheduler::new(decay))
            .callback(PrintLR),
    )?;
    if let Some(latest) = latest_checkpoint(&checkpoints)? {
        model.load_weights(latest)?;
    }
    let eval = model.evaluate_with(digits.test, Inference::new().batch_size(batch_size))?;
    Ok((history, eval))
}
