//! A layer applied to every step of a sequence, with the same weights.

use super::options::{at_step, stack};
use crate::custom::short_class;
use crate::error::Result;
use crate::layer::{Argument, Arguments, Layer, LayerContext, MaskRule, Operand, Outputs};
use crate::layers::nested::NestedLayer;
use crate::layers::support::{shape_text, single};
use crate::model::snake_case;
use crate::registry::Config;
use phalanx_graph::NodeId;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// Applies a layer to every step of a sequence.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::{Dense, TimeDistributed};
///
/// let layer = TimeDistributed::new(Dense::new(3));
/// assert_eq!(layer.config()["layer"]["class_name"], "Dense");
/// ```
#[derive(Debug)]
pub struct TimeDistributed {
    layer: Box<dyn Layer>,
    name: String,
    trainable: bool,
}

/// Layers that treat all axes but the last alike, so that one call covers all steps.
const POINTWISE: [&str; 3] = ["Dense", "Activation", "Dropout"];

impl TimeDistributed {
    /// Applies `layer` to every step.
    pub fn new(layer: impl Layer) -> TimeDistributed {
        let name = snake_case(short_class(layer.class_name()));
        TimeDistributed { layer: Box::new(layer), name, trainable: true }
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, mask: Option<NodeId>) -> Result<NodeId> {
        let arguments = Arguments {
            positional: vec![Argument::Tensor(Operand { node: x, mask })],
            named: vec![],
        };
        match cx.call_sublayer("layer", &*self.layer, self.trainable, &arguments)?[..] {
            [Operand { node, .. }] => Ok(node),
            ref outputs => Err(cx.argument("layer", "one output", outputs.len())),
        }
    }
}

impl Layer for TimeDistributed {
    fn class_name(&self) -> &'static str {
        "TimeDistributed"
    }

    fn config(&self) -> Config {
        let layer = NestedLayer::new(&*self.layer, &self.name, self.trainable);
        Config::from_iter([("layer".to_string(), layer.to_value())])
    }

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let steps = match cx.dims(x)[..] {
            [steps, _, ..] if steps > 0 => steps,
            _ => {
                let received = shape_text(cx, x);
                return Err(cx.argument("input", "shape (batch, steps, ..)", received));
            }
        };
        if POINTWISE.contains(&self.layer.class_name()) {
            return Ok(self.apply(cx, x, None)?.into());
        }
        let mask = cx.mask(0);
        let mut outputs = vec![];
        for t in 0..steps {
            let mask = mask.map(|mask| at_step(cx, mask, t)).transpose()?;
            let x = at_step(cx, x, t)?;
            cx.reuse_weights();
            outputs.push(self.apply(cx, x, mask)?);
        }
        Ok(stack(cx, &outputs)?.into())
    }
}

impl<'de> Deserialize<'de> for TimeDistributed {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<TimeDistributed, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            layer: Value,
        }
        let keys = Keys::deserialize(d)?;
        let nested = NestedLayer::parse(&keys.layer);
        let NestedLayer { class, name, trainable, config } =
            nested.map_err(|e| de::Error::custom(format!("layer: {e}")))?;
        let layer = crate::layers::from_config(&class, config).map_err(de::Error::custom)?;
        Ok(TimeDistributed { layer, name, trainable })
    }
}
