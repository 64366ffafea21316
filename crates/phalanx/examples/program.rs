//! The result of `compile`: the layers of a network, then its step as one static program with every byte of
//! memory planned.
//!
//! `cargo run --release -p phalanx --example program`

pub mod arguments;

use phalanx::Program;
use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    let (summary, program) = run()?;
    println!("{summary}\n\n{program}");
    println!("{} bytes of activations on a device", program.device_bytes());
    Ok(())
}

pub fn run() -> Result<(String, Program)> {
    let mut model = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Conv2D::new(8, 3).use_bias(false))
        .add(BatchNormalization::new())
        .add(ReLU::new())
        .add(GlobalAveragePooling2D::new())
        .add(Dense::new(10).activation("softmax"))
        .build()?;
    model.compile(
        Compile::new(SGD::new(0.1).momentum(0.9))
            .loss("sparse_categorical_crossentropy")
            .metrics(["accuracy"])
            .strategy(MirroredStrategy::with_devices(["cpu:0", "cpu:1"])?.threads(1)),
    )?;
    // The program for a global batch of 64: 32 rows for each replica.
    Ok((model.summary().to_string(), model.program(StepKind::Train, 64)?))
}
