//! Arguments that select devices, workers, precision, batch size and memory.

use crate::mesh_args::MeshArg;
use clap::builder::RangedU64ValueParser;
use clap::{Args as ClapArgs, ValueEnum};
use phalanx::prelude::{DeviceKind, Recompute};
use std::path::PathBuf;

/// The devices to run on, and how.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct DeviceArgs {
    /// Devices to mirror the model on, such as cpu:0,cpu:1
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["replicas", "gpus"])]
    pub devices: Vec<String>,
    /// Number of GPUs to mirror the model on
    #[arg(long, short = 'g', conflicts_with = "replicas")]
    pub gpus: Option<usize>,
    /// Number of logical CPU devices to mirror the model on
    #[arg(long)]
    pub replicas: Option<usize>,
    /// Threads per CPU device (default: the cores, divided evenly)
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
    /// Seconds a worker waits for the others, if mpirun or another launcher started several
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub collective_timeout: u64,
    /// How GPUs store activations (default: as the model file says, else float32); CPU devices always use 32-bit floats
    #[arg(long)]
    pub precision: Option<PrecisionArg>,
    /// Divide the training state among the workers of several processes, so that larger models fit. The CPU devices of one
    /// process share one copy. Not on GPUs
    #[arg(long)]
    pub shard: Option<ShardArg>,
    /// Whether the backward pass computes activations again instead of keeping them: auto (if a step does not fit in memory
    /// otherwise), never, or a number of segments
    #[arg(long, value_parser = recompute, default_value = "auto")]
    pub recompute: Recompute,
    /// Replicas, and the CPU devices that divide the work of each, such as data=2,model=4; data=* takes the devices there are
    #[arg(long, conflicts_with_all = ["replicas", "gpus"])]
    pub mesh: Option<MeshArg>,
    /// What the second axis of --mesh divides: TOML such as ".*/ffn_up/kernel" = ["-", "model"]
    #[arg(long, requires = "mesh")]
    pub layout: Option<PathBuf>,
}

/// What is divided among memories instead of being copied to every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShardArg {
    /// The optimizer's slots and accumulated gradients
    Optimizer,
    /// Also the gradients
    Gradients,
    /// Also the weights, which are gathered before they are used
    Weights,
}

/// How activations are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// 32-bit floats; products may be rounded for the tensor cores
    Float32,
    /// Keras' policy: 16 bits with the range of 32-bit floats; weights stay 32-bit
    #[value(name = "mixed_bfloat16", alias = "bf16")]
    MixedBfloat16,
    /// Keras' policy: 16-bit floats with more digits and less range; the loss is scaled, on any device
    #[value(name = "mixed_float16", alias = "f16")]
    MixedFloat16,
}

/// The number of samples in a step.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct BatchArgs {
    /// Samples per replica and step (default: the network's own)
    #[arg(long, conflicts_with = "global_batch_size")]
    pub batch_size: Option<usize>,
    /// Samples per step over all replicas
    #[arg(long)]
    pub global_batch_size: Option<usize>,
}

/// A number of bytes, as in `16GiB` or `24GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        const MAX_BYTES: f64 = (1u64 << 50) as f64;
        let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_lowercase();
        let (letter, base) = match unit.strip_suffix("ib") {
            Some(letter) => (letter, 1024.0f64),
            None => (unit.strip_suffix('b').unwrap_or(&unit), 1000.0),
        };
        let power = ["", "k", "m", "g", "t"].iter().position(|l| *l == letter && !unit.is_empty());
        let scale = power.filter(|p| *p > 0 || base == 1000.0).map(|p| base.powi(p as i32));
        let bytes = number.parse::<f64>().ok().zip(scale).map(|(n, scale)| n * scale);
        match bytes.filter(|b| (1.0..=MAX_BYTES).contains(b)) {
            Some(bytes) => Ok(Bytes(bytes as usize)),
            None => Err("expected a unit and up to 1024TiB, as in 16GiB or 24GB".into()),
        }
    }
}

/// A number of operations, bytes or bits per second, as in `400T`, `200GB/s` or `100Gbit/s`; bits count as eighths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl std::str::FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().trim_end_matches("/s");
        let (prefix, divisor) = match unit.strip_suffix("bit") {
            Some(prefix) => (prefix, 8.0),
            None => (unit.trim_end_matches("FLOPS").trim_end_matches('B'), 1.0),
        };
        let power = ["", "k", "M", "G", "T", "P"].iter().position(|p| *p == prefix);
        let value = number.parse::<f64>().ok().zip(power);
        let value = value.map(|(n, power)| n * 1000f64.powi(power as i32) / divisor);
        match value.filter(|v| (1.0..=1e20).contains(v)) {
            Some(value) => Ok(Rate(value)),
            None => Err("expected a number and a unit, as in 400T, 200GB/s or 100Gbit/s".into()),
        }
    }
}

/// Parses `auto`, `never` or a number of segments.
fn recompute(text: &str) -> Result<Recompute, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Recompute::Auto),
        ("never", _) => Ok(Recompute::Never),
        (_, Ok(segments @ 2..=1024)) => Ok(Recompute::Segments(segments)),
        _ => Err("expected auto, never or 2 to 1024 segments".into()),
    }
}

/// Parses `cpu` or `gpu`.
pub fn device_kind(text: &str) -> Result<DeviceKind, String> {
    text.parse().map_err(|_| "expected cpu or gpu".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_prefixes() {
        let rate = |text: &str| text.parse::<Rate>().ok().map(|r| r.0);
        assert_eq!(rate("400T"), Some(400e12));
        assert_eq!(rate("200GB/s"), Some(200e9));
        assert_eq!(rate("100Gbit/s"), Some(12.5e9));
        assert_eq!(rate("1.5TFLOPS"), Some(1.5e12));
        for bad in ["", "T", "0", "-1T", "4X", "nan", "1e99T"] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }

    #[test]
    fn bytes_have_units() {
        let bytes = |text: &str| text.parse::<Bytes>().ok().map(|b| b.0);
        assert_eq!(bytes("16GiB"), Some(16 << 30));
        assert_eq!(bytes("24GB"), Some(24_000_000_000));
        assert_eq!(bytes("1.5 mib"), Some(3 << 19));
        assert_eq!(bytes("100B"), Some(100));
        // A number without a unit is ambiguous.
        for bad in ["16", "", "GiB", "0", "0.1B", "-1GiB", "16XB", "1ib", "1e99", "99999TiB", "nan"]
        {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }
}
