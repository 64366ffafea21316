//! Keras' guide to distributed training: a perceptron written as a graph, with validation data.
//!
//! `cargo run --release -p phalanx --example 02_mlp`

use phalanx::datasets::Split;
use phalanx::prelude::*;

fn main() -> Result<()> {
    let digits = datasets::load("mnist").or_else(|_| datasets::load("glyphs"))?;
    let (_, test) = run(digits, MirroredStrategy::new())?;
    println!("test - {test}");
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

pub fn run(digits: Split, strategy: MirroredStrategy) -> Result<(History, Logs)> {
    println!("Number of devices: {}", strategy.num_replicas_in_sync());
    let mut model = compiled_model(strategy)?;
    // A batch is global: each replica takes its share of the 32 rows.
    let flat = |(x, y): (Samples, Tensor)| {
        let n = x.rows();
        Arrays::new(x.reshape([n, 784]).expect("28 x 28 pixels"), y)?.batch(32)
    };
    let (train, val) = flat(digits.train)?.split(1.0 / 6.0)?;
    let history = model.fit(train, Fit::new().epochs(2).validation_data(val))?;
    let test = model.evaluate(flat(digits.test)?, 32)?;
    Ok((history, test))
}
