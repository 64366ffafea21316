//! A whole model inside a wrapper. Its weights belong to the wrapper, in the order and at the paths that Keras gives them.

use crate::error::Result;
use crate::layer::{Arguments, Layer, LayerContext, LayerHandle, Lowering, Operand, Outputs};
use crate::model::{Caller, Definition, ModelKind};
use crate::registry::Config;
use crate::saving;
use phalanx_graph::NodeId;
use serde_json::Value;
use std::sync::Arc;

/// A model as a sublayer.
#[derive(Clone, Debug)]
pub(crate) struct NestedModel(pub Arc<Definition>);

impl NestedModel {
    /// The classes of models.
    pub const CLASSES: [&'static str; 3] = ["Functional", "Sequential", "Model"];

    /// The object that a config holds.
    pub fn to_value(&self) -> Value {
        saving::nested_config(&self.0)
    }
}

/// A layer of the model: its path, its first weight in the wrapper, and the layer.
struct PlacedLayer {
    path: String,
    first: usize,
    layer: LayerHandle,
}

/// Calls the layers of the model as sublayers.
struct InWrapper<'a, 'b> {
    cx: &'a mut LayerContext<'b>,
    places: Vec<PlacedLayer>,
}

impl Caller for InWrapper<'_, '_> {
    fn lowering(&mut self) -> &mut Lowering {
        self.cx.lowering()
    }

    fn call(
        &mut self,
        layer: &LayerHandle,
        _: &str,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        let place = self.places.iter().find(|place| place.layer.same(layer));
        let (path, first) = match place {
            Some(place) => (place.path.as_str(), place.first),
            // Ops have no place in files and no weights.
            None => ("ops", 0),
        };
        self.cx.call_sublayer_at((path, first), layer, arguments)
    }
}

impl Layer for NestedModel {
    fn class_name(&self) -> &'static str {
        match self.0.kind() {
            ModelKind::Sequential => "Sequential",
            ModelKind::Functional => "Functional",
        }
    }

    fn config(&self) -> Config {
        self.to_value().get("config").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    fn signature(&self) -> &'static [&'static str] {
        &["inputs"]
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        let inputs: Vec<Operand> =
            cx.arguments().positional_tensors().into_iter().copied().collect();
        let mut places: Vec<PlacedLayer> = vec![];
        for (path, layer) in saving::layer_paths(&self.0) {
            if !places.iter().any(|place| place.layer.same(&layer)) {
                let first = cx.declare_weights_of(&path, &layer)?;
                places.push(PlacedLayer { path, first, layer });
            }
        }
        let outputs = self.0.lower(&mut InWrapper { cx, places }, &inputs, "")?;
        let masks = outputs.iter().map(|output| output.mask).collect();
        let nodes: Vec<NodeId> = outputs.iter().map(|output| output.node).collect();
        Ok(Outputs::from(nodes).with_masks(masks))
    }
}
