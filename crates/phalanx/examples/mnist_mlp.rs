//! Keras' guide to distributed training: a perceptron written as a graph, data held back to validate on,
//! a checkpoint after every epoch, and a second call that goes on where the first one ended.
//!
//! `cargo run --release -p phalanx --example mnist_mlp`

use phalanx::datasets::Split;
use phalanx::prelude::*;
use std::path::Path;

fn main() -> Result<()> {
    let mnist = datasets::find("mnist")?.is_some();
    let digits = datasets::load(if mnist { "mnist" } else { "glyphs" })?;
    let directory = Path::new("ckpt");
    // The first call creates the model, the second one continues with its last checkpoint.
    for epochs in [1, 2] {
        let (_, test) = run(&digits, MirroredStrategy::new(), Some(directory), epochs)?;
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

/// Sets the weights of the last checkpoint; returns how many epochs they have seen.
fn restore(model: &mut Model, directory: &Path) -> Result<usize> {
    let Some(path) = latest_checkpoint(directory)? else { return Ok(0) };
    println!("Restoring from {}", path.display());
    model.load_weights(&path)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(name.rsplit('-').next().and_then(|epoch| epoch.parse().ok()).unwrap_or(0))
}

pub fn run(
    digits: &Split,
    strategy: MirroredStrategy,
    checkpoints: Option<&Path>,
    epochs: usize,
) -> Result<(History, Logs)> {
    println!("Number of devices: {}", strategy.num_replicas_in_sync());
    let mut model = compiled_model(strategy)?;
    // A batch is global: each replica takes its share of the 32 rows.
    let flat = |(x, y): &(Samples, Tensor)| {
        let n = x.rows();
        Arrays::new(x.clone().reshape([n, 784]).expect("28 x 28 pixels"), y)?.batch(32)
    };
    let (train, val) = flat(&digits.train)?.split(1.0 / 6.0)?;
    let mut fit = Fit::new().epochs(epochs).validation_data(val).verbose(2);
    if let Some(directory) = checkpoints {
        fit = fit
            .initial_epoch(restore(&mut model, directory)?)
            .callback(ModelCheckpoint::new(directory.join("ckpt-{epoch}.safetensors")));
    }
    let history = model.fit(train, fit)?;
    let test = model.evaluate_with(flat(&digits.test)?, Inference::new())?;
    Ok((history, test))
}
