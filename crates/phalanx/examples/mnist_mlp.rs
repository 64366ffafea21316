//! Keras' guide to distributed training: a multilayer perceptron with the functional API, a validation split, a
//! checkpoint after every epoch, and a second call that resumes from the first.
//!
//! `cargo run --release -p phalanx --example mnist_mlp`

pub mod arguments;

use phalanx::datasets::Split;
use phalanx::prelude::*;
use std::path::Path;

fn main() -> Result<()> {
    arguments::read("")?;
    let mnist = datasets::find("mnist")?.is_some();
    let digits = datasets::load(if mnist { "mnist" } else { "glyphs" })?;
    let directory = Path::new("ckpt");
    // The first call creates the model, the second resumes from its last checkpoint.
    for _ in 0..2 {
        let (_, test) = run(&digits, MirroredStrategy::new(), Some(directory), 1)?;
        println!("test - {test}");
    }
    Ok(())
}

fn compiled_model(strategy: MirroredStrategy) -> Result<Model> {
    let inputs = Input::new([784]).symbol();
    let x = Dense::new(256).activation("relu").apply(&inputs);
    let x = Dense::new(256).activation("relu").apply(&x);
    let outputs = Dense::new(10).apply(&x);
    let mut model = Model::new(&inputs, &outputs)?;
    model.compile(
        Compile::new(Adam::default())
            .loss(SparseCategoricalCrossentropy::default().from_logits(true))
            .metrics([SparseCategoricalAccuracy::default()])
            .strategy(strategy), // no scope to open: the strategy is an argument
    )?;
    Ok(model)
}

/// The model of the last checkpoint, including the optimizer, or a new one.
fn make_or_restore_model(strategy: MirroredStrategy, checkpoints: Option<&Path>) -> Result<Model> {
    match checkpoints.map(latest_checkpoint).transpose()?.flatten() {
        Some(path) => {
            println!("Restoring from {}", path.display());
            Load::new().strategy(strategy).model(path)
        }
        None => {
            println!("Creating a new model");
            compiled_model(strategy)
        }
    }
}

pub fn run(
    digits: &Split,
    strategy: MirroredStrategy,
    checkpoints: Option<&Path>,
    epochs: usize,
) -> Result<(History, Logs)> {
    println!("Number of devices: {}", strategy.num_replicas_in_sync());
    let mut model = make_or_restore_model(strategy, checkpoints)?;
    // The batch size is global: each replica processes its share of the 32 rows.
    let flat = |(x, y): &(Samples, Tensor)| {
        let n = x.rows();
        Arrays::new(x.clone().reshape([n, 784]).expect("28 x 28 pixels"), y)?.batch(32)
    };
    let (train, val) = flat(&digits.train)?.split(1.0 / 6.0)?;
    let mut fit = Fit::new().epochs(epochs).validation_data(val).verbose(2);
    if let Some(directory) = checkpoints {
        fit = fit.callback(ModelCheckpoint::new(directory.join("ckpt-{epoch}.keras")));
    }
    let history = model.fit(train, fit)?;
    let test = model.evaluate_with(flat(&digits.test)?, Inference::new())?;
    Ok((history, test))
}
