//! Layers that Keras' applications define for themselves: the residual scales of ConvNeXt and Inception-ResNet.

use super::dropout::{check_rate, drop};
use super::support::{check_finite, shape_text, single};
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs, WeightSpec};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// ConvNeXt's scale of a residual branch: `y = x · gamma`, with a trained `gamma` for every channel.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::LayerScale;
///
/// assert_eq!(LayerScale::new(1e-6, 96).config()["projection_dim"], 96);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerScale {
    init_values: f64,
    projection_dim: usize,
}

impl LayerScale {
    /// A scale for inputs of `channels` channels that starts at `init_values`.
    pub fn new(init_values: f64, channels: usize) -> LayerScale {
        LayerScale { init_values, projection_dim: channels }
    }
}

impl Layer for LayerScale {
    keras_class!("LayerScale");

    fn module(&self) -> &str {
        "keras.src.applications.convnext"
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "init_values", self.init_values)?;
        let x = single(cx, inputs)?;
        if cx.dims(x).last() != Some(&self.projection_dim) {
            let received = shape_text(cx, x);
            let expected = format!("{} channels", self.projection_dim);
            return Err(cx.argument("input", &expected, received));
        }
        let start = Initializer::Constant { value: self.init_values };
        let gamma = cx.weight(WeightSpec::new("gamma", &[self.projection_dim], start))?;
        Ok(cx.graph().mul(x, gamma)?.into())
    }
}

/// ConvNeXt's stochastic depth: in training, drops a sample's whole residual branch.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::StochasticDepth;
///
/// assert_eq!(StochasticDepth::new(0.1).config()["drop_path_rate"], 0.1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StochasticDepth {
    drop_path_rate: f64,
}

impl StochasticDepth {
    /// Drops with this probability.
    pub fn new(drop_path_rate: f64) -> StochasticDepth {
        StochasticDepth { drop_path_rate }
    }
}

impl Layer for StochasticDepth {
    keras_class!("StochasticDepth");

    fn module(&self) -> &str {
        "keras.src.applications.convnext"
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "drop_path_rate", self.drop_path_rate)?;
        let x = single(cx, inputs)?;
        let noise = vec![1; cx.dims(x).len()];
        Ok(drop(cx, x, self.drop_path_rate, noise)?.into())
    }
}

/// Inception-ResNet's residual: `y = x₀ + scale · x₁`.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::CustomScaleLayer;
///
/// assert_eq!(CustomScaleLayer::new(0.2).config()["scale"], 0.2);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomScaleLayer {
    scale: f64,
}

impl CustomScaleLayer {
    /// Scales the second input.
    pub fn new(scale: f64) -> CustomScaleLayer {
        CustomScaleLayer { scale }
    }
}

impl Layer for CustomScaleLayer {
    keras_class!("CustomScaleLayer");

    fn module(&self) -> &str {
        "keras.src.applications.inception_resnet_v2"
    }

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "scale", self.scale)?;
        let [x, residual] = *inputs else {
            return Err(cx.argument("inputs", "2", inputs.len()));
        };
        let residual = cx.graph().scale(residual, self.scale)?;
        Ok(cx.graph().add(x, residual)?.into())
    }
}
