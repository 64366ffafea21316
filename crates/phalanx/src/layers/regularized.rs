//! A layer whose config has an `activity_regularizer`, which Keras accepts for every layer.

use crate::by_name::OptionalByName;
use crate::error::Result;
use crate::layer::{InputsForm, Layer, LayerContext, MaskRule, Outputs};
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde_json::Value;

/// The key of the config.
pub(super) const KEY: &str = "activity_regularizer";

/// A layer that has no such argument of its own, and the regularizer of its outputs.
#[derive(Debug)]
pub(super) struct Regularized {
    layer: Box<dyn Layer>,
    regularizer: OptionalByName<Regularizer>,
}

impl Regularized {
    pub fn new(layer: Box<dyn Layer>, regularizer: OptionalByName<Regularizer>) -> Regularized {
        Regularized { layer, regularizer }
    }
}

impl Layer for Regularized {
    fn class_name(&self) -> &'static str {
        self.layer.class_name()
    }

    fn config(&self) -> Config {
        let mut config = self.layer.config();
        let value = serde_json::to_value(&self.regularizer).unwrap_or(Value::Null);
        config.insert(KEY.into(), value);
        config
    }

    fn module(&self) -> &str {
        self.layer.module()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        self.layer.call(cx, inputs)
    }

    fn mask_rule(&self) -> MaskRule {
        self.layer.mask_rule()
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        self.regularizer.get()
    }

    fn inputs_form(&self) -> InputsForm {
        self.layer.inputs_form()
    }

    fn signature(&self) -> &'static [&'static str] {
        self.layer.signature()
    }
}
