//! TensorFlow's tutorial for `MirroredStrategy`: a convolutional network, a learning rate that
//! falls with the epochs, and a callback of one's own.
//!
//! `cargo run --release -p phalanx --example 03_cnn`

use phalanx::datasets::Split;
use phalanx::prelude::*;

fn main() -> Result<()> {
    let digits = datasets::load("mnist").or_else(|_| datasets::load("glyphs"))?;
    let (_, eval) = run(digits, 12)?;
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

pub fn run(digits: Split, epochs: usize) -> Result<(History, Logs)> {
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
    let history = model.fit(
        digits.train,
        Fit::new()
            .epochs(epochs)
            .batch_size(batch_size)
            .callback(LearningRateScheduler::new(decay))
            .callback(PrintLR),
    )?;
    let eval = model.evaluate(digits.test, batch_size)?;
    Ok((history, eval))
}
