//! A layer applied to every step of a sequence, with the same weights.

use super::options::{at_step, stack};
use crate::custom::short_class;
use crate::error::Result;
use crate::layer::{Argument, Arguments, Layer, LayerContext, MaskRule, Operand, Outputs};
use crate::layers::activated;
use crate::layers::nested::NestedLayer;
use crate::layers::nested_model::NestedModel;
use crate::layers::support::{shape_text, single};
use crate::model::{Model, snake_case};
use crate::registry::Config;
use phalanx_graph::NodeId;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use std::sync::Arc;

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
    inner: Inner,
    name: String,
    trainable: bool,
}

/// What is applied to every step.
#[derive(Debug)]
enum Inner {
    Layer(Box<dyn Layer>),
    Model(NestedModel),
}

impl Inner {
    fn layer(&self) -> &dyn Layer {
        match self {
            Inner::Layer(layer) => &**layer,
            Inner::Model(model) => model,
        }
    }
}

/// Layers that treat all axes but the last alike, so that one call covers all steps.
const POINTWISE: [&str; 3] = ["Dense", "Activation", "Dropout"];

impl TimeDistributed {
    /// Applies `layer` to every step.
    pub fn new(layer: impl Layer) -> TimeDistributed {
        let name = snake_case(short_class(layer.class_name()));
        TimeDistributed { inner: Inner::Layer(Box::new(layer)), name, trainable: true }
    }

    /// Applies a whole model to every step. The wrapper gets copies of the model's weights.
    pub fn model(model: &Model) -> TimeDistributed {
        let definition = model.shared_definition();
        let name = definition.name.clone();
        TimeDistributed { inner: Inner::Model(NestedModel(definition)), name, trainable: true }
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, mask: Option<NodeId>) -> Result<NodeId> {
        let arguments = Arguments {
            positional: vec![Argument::Tensor(Operand { node: x, mask })],
            named: vec![],
        };
        match cx.call_sublayer_inside("layer", self.inner.layer(), self.trainable, &arguments)?[..]
        {
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
        let layer = match &self.inner {
            Inner::Layer(layer) => {
                NestedLayer::new(&**layer, &self.name, self.trainable).to_value()
            }
            Inner::Model(model) => model.to_value(),
        };
        Config::from_iter([("layer".to_string(), layer)])
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
        let inner = self.inner.layer();
        if POINTWISE.contains(&inner.class_name()) && !activated::has_layer(inner) {
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
        let class = keys.layer.get("class_name").and_then(Value::as_str).unwrap_or_default();
        if NestedModel::CLASSES.contains(&class) {
            let model = crate::saving::nested_model(&keys.layer).map_err(de::Error::custom)?;
            let trainable = keys.layer.pointer("/config/trainable") != Some(&Value::Bool(false));
            let name = model.name.clone();
            let inner = Inner::Model(NestedModel(Arc::new(model)));
            return Ok(TimeDistributed { inner, name, trainable });
        }
        let nested = NestedLayer::parse(&keys.layer);
        let NestedLayer { class, name, trainable, config } =
            nested.map_err(|e| de::Error::custom(format!("layer: {e}")))?;
        let layer = crate::layers::from_config(&class, config).map_err(de::Error::custom)?;
        Ok(TimeDistributed { inner: Inner::Layer(layer), name, trainable })
    }
}
