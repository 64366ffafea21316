//! The perceptron of `mnist_mlp` on two devices: one changed line, the same losses.
//!
//! `cargo run --release -p phalanx --example two_replicas`

use phalanx::datasets::Split;
use phalanx::prelude::*;

#[path = "mnist_mlp.rs"]
#[allow(dead_code)] // its `main`
pub mod mlp;

fn main() -> Result<()> {
    mlp::arguments::read("")?;
    for (one, two) in run(&datasets::load("glyphs")?)? {
        println!("loss on one device {one:.6}, on two {two:.6}");
    }
    Ok(())
}

/// The training and validation losses of every epoch, on one device and on two.
pub fn run(digits: &Split) -> Result<Vec<(f64, f64)>> {
    let (one, _) = mlp::run(digits, MirroredStrategy::with_devices(["cpu:0"])?, None, 2)?;
    let (two, _) = mlp::run(digits, MirroredStrategy::with_devices(["cpu:0", "cpu:1"])?, None, 2)?;
    let losses = |history: &History| {
        ["loss", "val_loss"].map(|name| history.get(name).unwrap_or_default().to_vec()).concat()
    };
    Ok(losses(&one).into_iter().zip(losses(&two)).collect())
}
