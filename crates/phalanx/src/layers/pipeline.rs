//! Layers that are applied one after the other. Input and output are those of the first and the last layer.

use super::nested::NestedLayer;
use super::support::single;
use crate::error::Result;
use crate::layer::{Argument, Arguments, Layer, LayerContext, Operand, Outputs};
use crate::model::snake_case;
use crate::registry::Config;
use phalanx_graph::NodeId;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use std::collections::HashMap;

/// A layer of a pipeline.
#[derive(Debug)]
struct Stage {
    layer: Box<dyn Layer>,
    name: String,
    trainable: bool,
}

/// Applies layers one after the other.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::{Pipeline, RandomFlip, Rescaling};
///
/// let pipeline = Pipeline::new().add(Rescaling::new(1.0 / 255.0)).add(RandomFlip::default());
/// assert_eq!(pipeline.config()["layers"][1]["class_name"], "RandomFlip");
/// ```
#[derive(Debug, Default)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

impl Pipeline {
    /// A pipeline without layers.
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// Appends a layer.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, layer: impl Layer) -> Pipeline {
        let class = layer.class_name();
        let count = self.stages.iter().filter(|stage| stage.layer.class_name() == class).count();
        let number = if count == 0 { String::new() } else { format!("_{count}") };
        let name = format!("{}{number}", snake_case(class));
        self.stages.push(Stage { layer: Box::new(layer), name, trainable: true });
        self
    }
}

impl Layer for Pipeline {
    fn class_name(&self) -> &'static str {
        "Pipeline"
    }

    fn config(&self) -> Config {
        let nested = |stage: &Stage| {
            NestedLayer::new(&*stage.layer, &stage.name, stage.trainable).to_value()
        };
        let layers: Vec<Value> = self.stages.iter().map(nested).collect();
        Config::from_iter([("layers".to_string(), layers.into())])
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let mut x = Operand { node: single(cx, inputs)?, mask: cx.mask(0) };
        if self.stages.is_empty() {
            return Err(cx.argument("layers", "1 or more", 0));
        }
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for stage in &self.stages {
            let class = stage.layer.class_name();
            let count = counts.entry(class).or_default();
            let number = if *count == 0 { String::new() } else { format!("_{count}") };
            *count += 1;
            let attribute = format!("layers/{}{number}", snake_case(class));
            let arguments = Arguments { positional: vec![Argument::Tensor(x)], named: vec![] };
            let outputs =
                cx.call_sublayer(&attribute, &*stage.layer, stage.trainable, &arguments)?;
            match outputs[..] {
                [output] => x = output,
                _ => return Err(cx.argument("layers", "layers with one output", outputs.len())),
            }
        }
        Ok(x.node.into())
    }
}

impl<'de> Deserialize<'de> for Pipeline {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Pipeline, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            layers: Vec<Value>,
        }
        let mut stages = vec![];
        for value in Keys::deserialize(d)?.layers {
            let nested = NestedLayer::parse(&value);
            let NestedLayer { class, name, trainable, config } =
                nested.map_err(|e| de::Error::custom(format!("layers: {e}")))?;
            let layer = super::from_config(&class, config).map_err(de::Error::custom)?;
            stages.push(Stage { layer, name, trainable });
        }
        Ok(Pipeline { stages })
    }
}
