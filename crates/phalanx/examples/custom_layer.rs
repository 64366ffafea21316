//! A custom layer, loss and metric: trained, saved and loaded.
//!
//! `cargo run --release -p phalanx --example custom_layer`
//!
//! Python reads the file if it registers classes of the same names in the package `example`, with the same config keys.

pub mod arguments;

use phalanx::custom::*;
use phalanx::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Distances to `units` centres that are learned: `y[i] = e^(-gamma · |x - centre[i]|²)`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RadialBasis {
    /// The number of centres.
    pub units: usize,
    /// How fast the result falls with the distance.
    pub gamma: f64,
}

impl Layer for RadialBasis {
    fn class_name(&self) -> &'static str {
        "example>RadialBasis"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let [features] = cx.dims(inputs[0])[..] else {
            let received = cx.ty(inputs[0]).shape_text();
            return Err(cx.argument("input", "shape (batch, features)", received));
        };
        let initializer = Initializer::random_normal(0.0, 1.0);
        let centres = WeightSpec::new("centres", &[self.units, features], initializer);
        let centres = cx.weight(centres)?;
        let g = cx.graph();
        let x = g.reshape(inputs[0], &[1, features])?;
        let apart = g.sub(x, centres)?; // broadcast: one row of differences for each unit
        let squares = g.unary(Unary::Square, apart)?;
        let distance = g.sum_axes(squares, &[1])?;
        let distance = g.reshape(distance, &[self.units])?;
        let exponent = g.scale(distance, -self.gamma)?;
        Ok(g.unary(Unary::Exp, exponent)?.into())
    }
}

/// The pinball loss of a quantile: errors above it cost `quantile`, errors below `1 - quantile`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pinball {
    #[serde(flatten)]
    /// Name and reduction.
    pub common: LossOptions,
    /// The fraction of the targets that should lie below the prediction.
    pub quantile: f64,
}

impl Default for Pinball {
    fn default() -> Pinball {
        Pinball { common: LossOptions::named("pinball"), quantile: 0.5 }
    }
}

impl Loss for Pinball {
    fn class_name(&self) -> &'static str {
        "example>Pinball"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn common(&self) -> &LossOptions {
        &self.common
    }

    fn common_mut(&mut self) -> &mut LossOptions {
        &mut self.common
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let error = g.sub(y_true, y_pred)?;
        let (above, below) = (g.scale(error, self.quantile)?, g.scale(error, self.quantile - 1.0)?);
        let values = g.binary(Binary::Max, above, below)?;
        Ok(g.mean_row(values)?)
    }
}

/// The fraction of the targets that lie below their predictions: near the quantile, if the model is calibrated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Coverage {
    name: String,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage { name: "coverage".into() }
    }
}

impl Metric for Coverage {
    fn class_name(&self) -> &'static str {
        "example>Coverage"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let below = g.binary(Binary::Gt, y_pred, y_true)?;
        weighted_mean(self, g, below, weight)
    }
}

fn main() -> Result<()> {
    arguments::read("")?;
    let directory = std::env::temp_dir();
    let (before, after) = run(&directory.join("phalanx_custom_layer.keras"))?;
    println!("trained: {before}\nloaded:  {after}");
    Ok(())
}

/// Registers the classes, so that files with them can be loaded.
pub fn register() -> Result<()> {
    register_layer::<RadialBasis>("example>RadialBasis")?;
    register_loss::<Pinball>("example>Pinball")?;
    register_metric::<Coverage>("example>Coverage")
}

/// Trains, saves and loads a model; returns its losses and metrics before and after.
pub fn run(path: &Path) -> Result<(phalanx::model::Logs, phalanx::model::Logs)> {
    register()?;

    // Noise around a curve: 90 % of the samples should lie below the prediction.
    let mut rng = phalanx::Stream::new(1, 0, 0, 0);
    let x: Vec<f32> = (0..1024).map(|_| 4.0 * rng.unit() as f32 - 2.0).collect();
    let y: Vec<f32> = x.iter().map(|x| (2.0 * x).sin() + rng.unit() as f32).collect();
    let data = (Tensor::new([1024, 1], x)?, Tensor::new([1024, 1], y)?);

    let mut model = Sequential::new()
        .add(Input::new([1]))
        .add(RadialBasis { units: 24, gamma: 2.0 })
        .add(Dense::new(1))
        .build()?;
    let loss = Pinball { quantile: 0.9, ..Pinball::default() };
    model.compile(Compile::new(Adam::new(0.02)).loss(loss).metrics([Coverage::default()]))?;
    model.fit((&data.0, &data.1), Fit::new().epochs(40).verbose(0))?;
    let before = model.evaluate_with((&data.0, &data.1), Inference::new())?;
    model.save(path)?;

    let mut loaded = load_model(path)?;
    let after = loaded.evaluate_with((&data.0, &data.1), Inference::new())?;
    Ok((before, after))
}
