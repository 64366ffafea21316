//! Weight initializers.
//!
//! The variance-scaling family (Glorot, He, LeCun) draws with variance `scale / fan`, where a kernel
//! `[.., in, out]` has `fan_in = in · receptive field` and `fan_out = out · receptive field`.

use crate::by_name::{keras_object, named, without_case};
use crate::custom::{CustomInitializer, CustomValue};
use crate::error::Result;
use crate::signal::spectrum_kernel;
pub use crate::signal::{SignalWindow, SpectrumScaling, SpectrumSide};
use phalanx_graph::rng::Stream;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Standard deviation of the standard normal distribution truncated at ±2.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

/// The fan that [`Initializer::VarianceScaling`] divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FanMode {
    /// Inputs of a unit.
    FanIn,
    /// Outputs of a unit.
    FanOut,
    /// Their mean.
    FanAvg,
}

/// The distribution that [`Initializer::VarianceScaling`] draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Normal, truncated at two standard deviations and rescaled to keep its variance.
    #[serde(alias = "normal")]
    TruncatedNormal,
    /// Normal.
    UntruncatedNormal,
    /// Uniform.
    Uniform,
}

/// The initial values of a weight. Serialised as in Keras.
///
/// A `seed` makes the values independent of the model's seed.
///
/// ```
/// use phalanx::initializers::Initializer;
/// use phalanx::layers::Dense;
///
/// let by_name = Dense::new(10).kernel_initializer("he_normal");
/// let by_value = Dense::new(10).kernel_initializer(Initializer::random_normal(0.0, 0.01));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "class_name", content = "config", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum Initializer {
    /// 0
    Zeros {},
    /// 1
    Ones {},
    /// One number
    Constant { value: f64 },
    /// Normal distribution
    RandomNormal {
        mean: f64,
        stddev: f64,
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Uniform between two numbers
    RandomUniform {
        minval: f64,
        maxval: f64,
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Normal distribution truncated at two standard deviations.
    TruncatedNormal {
        mean: f64,
        stddev: f64,
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Variance `scale / fan`
    VarianceScaling {
        scale: f64,
        mode: FanMode,
        distribution: Distribution,
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Uniform with variance `1 / fan_avg`
    GlorotUniform {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Truncated normal with variance `1 / fan_avg`
    GlorotNormal {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Uniform with variance `2 / fan_in`
    HeUniform {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Truncated normal with variance `2 / fan_in`
    HeNormal {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Uniform with variance `1 / fan_in`
    LecunUniform {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Truncated normal with variance `1 / fan_in`
    LecunNormal {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// Orthogonal rows or columns, times `gain`
    #[serde(rename = "Orthogonal", alias = "OrthogonalInitializer")]
    Orthogonal {
        gain: f64,
        #[serde(default, deserialize_with = "seed")]
        seed: Option<i64>,
    },
    /// The waves of a short-time Fourier transform, `[frame length, 1, frequencies]`
    STFT {
        side: SpectrumSide,
        #[serde(default = "hann")]
        window: Option<SignalWindow>,
        scaling: Option<SpectrumScaling>,
        #[serde(default)]
        periodic: bool,
    },
    /// `gain` on the diagonal of a matrix
    #[serde(rename = "Identity", alias = "IdentityInitializer")]
    Identity {
        #[serde(default = "one")]
        gain: f64,
    },
    /// A custom class
    #[serde(skip)]
    Custom(CustomValue<dyn CustomInitializer>),
}

fn one() -> f64 {
    1.0
}

fn hann() -> Option<SignalWindow> {
    Some(SignalWindow::Hann)
}

/// Reads an integer seed; a seed generator counts as no seed.
fn seed<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    Ok(Value::deserialize(d)?.as_i64())
}

impl Initializer {
    /// The same number everywhere.
    pub fn constant(value: f64) -> Initializer {
        Initializer::Constant { value }
    }

    /// Normal distribution.
    pub fn random_normal(mean: f64, stddev: f64) -> Initializer {
        Initializer::RandomNormal { mean, stddev, seed: None }
    }

    /// Uniform between two numbers.
    pub fn random_uniform(minval: f64, maxval: f64) -> Initializer {
        Initializer::RandomUniform { minval, maxval, seed: None }
    }

    /// Normal distribution truncated at two standard deviations.
    pub fn truncated_normal(mean: f64, stddev: f64) -> Initializer {
        Initializer::TruncatedNormal { mean, stddev, seed: None }
    }

    /// Variance `scale / fan`.
    pub fn variance_scaling(scale: f64, mode: FanMode, distribution: Distribution) -> Initializer {
        Initializer::VarianceScaling { scale, mode, distribution, seed: None }
    }

    /// Orthogonal rows or columns, times `gain`.
    pub fn orthogonal(gain: f64) -> Initializer {
        Initializer::Orthogonal { gain, seed: None }
    }

    /// Checks that the initializer supports a weight of these dimensions; otherwise returns what it expects.
    pub fn fits(&self, dims: &[usize]) -> Result<(), &'static str> {
        match self {
            Initializer::Orthogonal { .. } if dims.len() < 2 => Err("two dimensions or more"),
            Initializer::Identity { .. } if dims.len() != 2 => Err("two dimensions"),
            Initializer::STFT { .. } if dims.len() != 3 || dims[1] != 1 => {
                Err("three dimensions, the second of which is 1")
            }
            _ => Ok(()),
        }
    }

    fn seed(&self) -> Option<i64> {
        match *self {
            Initializer::Zeros {}
            | Initializer::Ones {}
            | Initializer::Constant { .. }
            | Initializer::STFT { .. }
            | Initializer::Identity { .. }
            | Initializer::Custom(_) => None,
            Initializer::RandomNormal { seed, .. }
            | Initializer::RandomUniform { seed, .. }
            | Initializer::TruncatedNormal { seed, .. }
            | Initializer::VarianceScaling { seed, .. }
            | Initializer::GlorotUniform { seed }
            | Initializer::GlorotNormal { seed }
            | Initializer::HeUniform { seed }
            | Initializer::HeNormal { seed }
            | Initializer::LecunUniform { seed }
            | Initializer::LecunNormal { seed }
            | Initializer::Orthogonal { seed, .. } => seed,
        }
    }

    /// Values for a weight of these dimensions, drawn from `rng` or from the initializer's own seed.
    pub fn sample(&self, dims: &[usize], rng: &mut Stream) -> Vec<f32> {
        let mut own = self.seed().map(|seed| Stream::new(seed as u64, 0, 0, 0));
        let rng = own.as_mut().unwrap_or(rng);
        let len = dims.iter().product();
        if let Initializer::Custom(custom) = self {
            let mut values = vec![0.0; len];
            custom.fill(&mut values, dims, rng);
            return values;
        }
        let mut draw = |f: &mut dyn FnMut(&mut Stream) -> f64| -> Vec<f32> {
            (0..len).map(|_| f(rng) as f32).collect()
        };
        use Distribution::{TruncatedNormal, Uniform};
        use FanMode::{FanAvg, FanIn};
        match *self {
            Initializer::Zeros {} | Initializer::Custom(_) => vec![0.0; len],
            Initializer::Ones {} => vec![1.0; len],
            Initializer::Constant { value } => vec![value as f32; len],
            Initializer::RandomNormal { mean, stddev, .. } => {
                draw(&mut |r| mean + stddev * r.normal())
            }
            Initializer::RandomUniform { minval, maxval, .. } => {
                draw(&mut |r| minval + (maxval - minval) * r.unit())
            }
            Initializer::TruncatedNormal { mean, stddev, .. } => {
                draw(&mut |r| mean + stddev * sample_truncated_normal(r))
            }
            Initializer::VarianceScaling { scale, mode, distribution, .. } => {
                scaled(scale, mode, distribution, dims, &mut draw)
            }
            Initializer::GlorotUniform { .. } => scaled(1.0, FanAvg, Uniform, dims, &mut draw),
            Initializer::GlorotNormal { .. } => {
                scaled(1.0, FanAvg, TruncatedNormal, dims, &mut draw)
            }
            Initializer::HeUniform { .. } => scaled(2.0, FanIn, Uniform, dims, &mut draw),
            Initializer::HeNormal { .. } => scaled(2.0, FanIn, TruncatedNormal, dims, &mut draw),
            Initializer::LecunUniform { .. } => scaled(1.0, FanIn, Uniform, dims, &mut draw),
            Initializer::LecunNormal { .. } => scaled(1.0, FanIn, TruncatedNormal, dims, &mut draw),
            Initializer::Orthogonal { gain, .. } => orthogonal(gain, dims, rng),
            Initializer::Identity { gain } => identity(gain, dims),
            Initializer::STFT { side, window, scaling, periodic } => {
                let sizes = [dims[0], dims[dims.len() - 1]];
                spectrum_kernel(side, window, scaling, periodic, sizes)
            }
        }
    }
}

/// The fan-in and fan-out of a weight.
fn fans(dims: &[usize]) -> (f64, f64) {
    match dims {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [field @ .., fan_in, fan_out] => {
            let field = field.iter().product::<usize>() as f64;
            (*fan_in as f64 * field, *fan_out as f64 * field)
        }
    }
}

type Draw<'a> = dyn FnMut(&mut dyn FnMut(&mut Stream) -> f64) -> Vec<f32> + 'a;

fn scaled(
    scale: f64,
    mode: FanMode,
    distribution: Distribution,
    dims: &[usize],
    draw: &mut Draw<'_>,
) -> Vec<f32> {
    let (fan_in, fan_out) = fans(dims);
    let fan = match mode {
        FanMode::FanIn => fan_in,
        FanMode::FanOut => fan_out,
        FanMode::FanAvg => (fan_in + fan_out) / 2.0,
    };
    let variance = scale / fan.max(1.0);
    match distribution {
        Distribution::TruncatedNormal => {
            let stddev = variance.sqrt() / TRUNCATED_STDDEV;
            draw(&mut |r| stddev * sample_truncated_normal(r))
        }
        Distribution::UntruncatedNormal => {
            let stddev = variance.sqrt();
            draw(&mut |r| stddev * r.normal())
        }
        Distribution::Uniform => {
            let limit = (3.0 * variance).sqrt();
            draw(&mut |r| limit * (2.0 * r.unit() - 1.0))
        }
    }
}

/// Draws from the standard normal distribution truncated at ±2.
fn sample_truncated_normal(rng: &mut Stream) -> f64 {
    loop {
        let x = rng.normal();
        if x.abs() <= 2.0 {
            return x;
        }
    }
}

/// The product of all leading dimensions, and the last dimension.
fn flattened(dims: &[usize]) -> (usize, usize) {
    match dims {
        [lead @ .., last] => (lead.iter().product(), *last),
        [] => (1, 1),
    }
}

/// Orthonormalises random vectors (Gram-Schmidt, twice for accuracy): the columns of a tall weight,
/// the rows of a wide one.
fn orthogonal(gain: f64, dims: &[usize], rng: &mut Stream) -> Vec<f32> {
    let (rows, columns) = flattened(dims);
    let (long, short) = (rows.max(columns), rows.min(columns));
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(short);
    while basis.len() < short {
        let mut v: Vec<f64> = (0..long).map(|_| rng.normal()).collect();
        for _ in 0..2 {
            for b in &basis {
                let dot: f64 = v.iter().zip(b).map(|(x, y)| x * y).sum();
                v.iter_mut().zip(b).for_each(|(x, y)| *x -= dot * y);
            }
        }
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm > 1e-6 {
            v.iter_mut().for_each(|x| *x /= norm);
            basis.push(v);
        }
    }
    (0..rows * columns)
        .map(|i| {
            let (r, c) = (i / columns, i % columns);
            let q = if rows >= columns { basis[c][r] } else { basis[r][c] };
            (gain * q) as f32
        })
        .collect()
}

fn identity(gain: f64, dims: &[usize]) -> Vec<f32> {
    let (rows, columns) = flattened(dims);
    let at = |i: usize| if i / columns == i % columns { gain as f32 } else { 0.0 };
    (0..rows * columns).map(at).collect()
}

named! {
    Initializer, "initializer", without_case, or Initializer::custom_by_name;
    "zeros" => Initializer::Zeros {},
    "ones" => Initializer::Ones {},
    "constant" => Initializer::constant(0.0),
    "random_normal" | "normal" => Initializer::random_normal(0.0, 0.05),
    "random_uniform" | "uniform" => Initializer::random_uniform(-0.05, 0.05),
    "truncated_normal" => Initializer::truncated_normal(0.0, 0.05),
    "variance_scaling" => {
        Initializer::variance_scaling(1.0, FanMode::FanIn, Distribution::TruncatedNormal)
    },
    "glorot_uniform" => Initializer::GlorotUniform { seed: None },
    "glorot_normal" => Initializer::GlorotNormal { seed: None },
    "he_uniform" => Initializer::HeUniform { seed: None },
    "he_normal" => Initializer::HeNormal { seed: None },
    "lecun_uniform" => Initializer::LecunUniform { seed: None },
    "lecun_normal" => Initializer::LecunNormal { seed: None },
    "orthogonal" => Initializer::orthogonal(1.0),
    "identity" => Initializer::Identity { gain: 1.0 },
    "stft" => Initializer::STFT {
        side: SpectrumSide::Real,
        window: hann(),
        scaling: Some(SpectrumScaling::Density),
        periodic: false,
    },
}

keras_object!(Initializer, "keras.initializers", ignores ["input_axes", "output_axes"]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_name::Named;

    #[test]
    fn every_name_is_known() {
        for name in Initializer::NAMES {
            assert!(Initializer::from_name(name).is_some(), "{name}");
        }
        assert_eq!(
            Initializer::from_name("GlorotUniform"),
            Initializer::from_name("glorot_uniform")
        );
    }

    #[test]
    fn is_saved_as_keras_saves_it_and_read_back() {
        let saved = serde_json::json!({
            "module": "keras.initializers",
            "class_name": "GlorotUniform",
            "config": { "seed": null },
            "registered_name": null,
        });
        let glorot = Initializer::GlorotUniform { seed: None };
        assert_eq!(serde_json::to_value(&glorot).unwrap(), saved);
        assert_eq!(serde_json::from_value::<Initializer>(saved).unwrap(), glorot);
        let short = serde_json::from_value::<Initializer>("glorot_uniform".into());
        assert_eq!(short.unwrap(), glorot);
    }

    #[test]
    fn a_foreign_module_or_class_is_refused() {
        let read = |v| serde_json::from_value::<Initializer>(v).unwrap_err().to_string();
        let text = read(serde_json::json!({ "module": "mine", "class_name": "Zeros" }));
        assert!(text.contains("received 'Zeros' of the module 'mine'"), "{text}");
        let text = read(serde_json::json!({ "module": "keras", "class_name": "Nought" }));
        assert!(text.starts_with("unknown variant `Nought`, expected one of `Zeros`"), "{text}");
    }

    #[test]
    fn own_seed_fixes_the_values() {
        let seeded = Initializer::HeNormal { seed: Some(7) };
        let a = seeded.sample(&[3, 4], &mut Stream::new(1, 0, 0, 0));
        assert_eq!(a, seeded.sample(&[3, 4], &mut Stream::new(2, 0, 0, 0)));
    }

    #[test]
    fn orthogonal_has_orthonormal_columns_or_rows() {
        for dims in [[5, 3], [3, 5]] {
            let w = Initializer::orthogonal(1.0).sample(&dims, &mut Stream::new(1, 0, 0, 0));
            let at = |v: usize, k: usize| {
                f64::from(if dims[0] == 5 { w[k * 3 + v] } else { w[v * 5 + k] })
            };
            for a in 0..3 {
                for b in 0..3 {
                    let dot: f64 = (0..5).map(|k| at(a, k) * at(b, k)).sum();
                    assert!((dot - f64::from(a == b)).abs() < 1e-6);
                }
            }
        }
    }
}
