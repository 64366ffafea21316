//! A layer whose activation is a layer too, as Keras' `Dense(3, activation=PReLU())`.
//!
//! Weights: those of the layer, then those of its activation, which files have under `activation`.

use super::nested::NestedLayer;
use crate::error::{Error, Result};
use crate::layer::{
    Argument, Arguments, InputsForm, Layer, LayerContext, MaskRule, Operand, Outputs,
};
use crate::model::snake_case;
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde_json::Value;
use std::sync::OnceLock;

/// The key of the config.
const KEY: &str = "activation";
/// The classes that apply their activation to their result.
const CLASSES: [&str; 13] = [
    "Activation",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "EinsumDense",
    "SeparableConv1D",
    "SeparableConv2D",
];
/// The layers that are functions of [`ActivationFn`](crate::activations::ActivationFn).
const FUNCTIONS: [&str; 6] = ["LeakyReLU", "ReLU", "ELU", "Softmax", "Activation", "function"];

/// A layer and the layer that is its activation.
///
/// ```
/// use phalanx::layers::Activated;
/// use phalanx::prelude::*;
///
/// let x = Input::new([4]).symbol();
/// let model = Model::new(&x, Activated::new(Dense::new(3), PReLU::new()).apply(&x))?;
/// assert_eq!(model.count_params(), 4 * 3 + 3 + 3);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct Activated {
    layer: Box<dyn Layer>,
    activation: Box<dyn Layer>,
    name: String,
    trainable: bool,
    /// The dimensions of a sample of the activation's input, once known. Keras makes its weights from them when it loads.
    dims: OnceLock<Vec<usize>>,
}

/// The layer in a config that is an activation, other than functions.
fn nested(config: &Config) -> Option<&Value> {
    let activation = config.get(KEY)?;
    let class = activation.get("class_name")?.as_str()?;
    (!FUNCTIONS.contains(&class)).then_some(activation)
}

/// Whether the activation of a layer is a layer with a shape of its own, so that it cannot take other axes.
pub(crate) fn has_layer(layer: &dyn Layer) -> bool {
    nested(&layer.config()).is_some()
}

/// Reads a layer whose activation is a layer; `None` for others.
pub(super) fn read(class: &str, config: &Config) -> Option<Result<Box<dyn Layer>>> {
    let activation = nested(config).filter(|_| CLASSES.contains(&class))?;
    let read = || {
        let wrong = |e: String| Error::config(class, format!("{KEY}: {e}"));
        let NestedLayer { class: inner, name, trainable, config: options } =
            NestedLayer::parse(activation).map_err(|e| wrong(e.to_string()))?;
        let activation = super::from_config(&inner, options).map_err(|e| wrong(e.to_string()))?;
        let mut config = config.clone();
        config.insert(KEY.into(), "linear".into());
        let layer = super::from_config(class, config)?;
        let dims = OnceLock::new();
        Ok(Box::new(Activated { layer, activation, name, trainable, dims }) as Box<dyn Layer>)
    };
    Some(read())
}

impl Activated {
    /// A layer such as [`Dense`](super::Dense), without an activation of its own, and one that is called with its result.
    pub fn new(layer: impl Layer, activation: impl Layer) -> Activated {
        let name = snake_case(activation.class_name());
        let (layer, activation) = (Box::new(layer), Box::new(activation));
        Activated { layer, activation, name, trainable: true, dims: OnceLock::new() }
    }
}

impl Layer for Activated {
    fn class_name(&self) -> &'static str {
        self.layer.class_name()
    }

    fn config(&self) -> Config {
        let mut config = self.layer.config();
        let activation = NestedLayer::new(&*self.activation, &self.name, self.trainable);
        let mut activation = activation.to_value();
        if let Some(dims) = self.dims.get() {
            let axes = dims.iter().map(|size| Value::from(*size));
            let shape: Value = std::iter::once(Value::Null).chain(axes).collect();
            activation["build_config"] = serde_json::json!({ "input_shape": shape });
        }
        config.insert(KEY.into(), activation);
        config
    }

    fn module(&self) -> &str {
        self.layer.module()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let own = self.layer.config();
        if !CLASSES.contains(&self.class_name()) {
            return Err(cx.argument(KEY, "a layer such as Dense or Conv2D", self.class_name()));
        }
        if let Some(own) = own.get(KEY).filter(|own| *own != "linear") {
            return Err(cx.argument(KEY, "one activation", format!("two, one of them {own}")));
        }
        // Keras' results of other layers have no mask when the activation is called.
        let mask = cx.mask(0).filter(|_| self.class_name() == "Activation");
        let result = self.layer.call(cx, inputs)?;
        let [node] = result.nodes()[..] else {
            return Err(cx.argument("layer", "one output", result.nodes().len()));
        };
        self.dims.get_or_init(|| cx.dims(node));
        let positional = vec![Argument::Tensor(Operand { node, mask })];
        let arguments = Arguments { positional, named: vec![] };
        match cx.call_sublayer(KEY, &*self.activation, self.trainable, &arguments)?[..] {
            [Operand { node, .. }] => Ok(result.with_nodes(vec![node])),
            ref outputs => Err(cx.argument(KEY, "a layer with one output", outputs.len())),
        }
    }

    fn mask_rule(&self) -> MaskRule {
        self.layer.mask_rule()
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        self.layer.activity_penalty()
    }

    fn inputs_form(&self) -> InputsForm {
        self.layer.inputs_form()
    }

    fn signature(&self) -> &'static [&'static str] {
        self.layer.signature()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    fn refused(layer: Activated, dims: &[usize]) -> String {
        let x = Input::new(dims).symbol();
        Model::new(&x, layer.apply(&x)).err().unwrap().to_string()
    }

    #[test]
    fn configs_are_those_of_the_layer_with_the_activation_inside() {
        let layer = Activated::new(Dense::new(3), PReLU::new());
        let config = layer.config();
        assert_eq!(config["activation"]["class_name"], "PReLU");
        assert_eq!(config["activation"]["config"]["name"], "p_re_lu");
        let again = super::super::from_config("Dense", config.clone()).unwrap();
        assert_eq!(again.config(), config);
        // Keras needs the shape of the input to load the weights.
        let x = Input::new([4]).symbol();
        let model = Model::new(&x, layer.apply(&x)).unwrap();
        let json: Value = serde_json::from_str(&model.to_json()).unwrap();
        let at = "/config/layers/1/config/activation/build_config/input_shape";
        assert_eq!(json.pointer(at), Some(&serde_json::json!([null, 3])));
        // Layers without weights stay functions.
        let mut config = Dense::new(3).config();
        config["activation"] = serde_json::json!({"class_name": "ReLU", "config": {}});
        assert!(!has_layer(&*super::super::from_config("Dense", config.clone()).unwrap()));
        config["activation"] = serde_json::json!({"class_name": "Nothing", "config": {}});
        let text = super::super::from_config("Dense", config).unwrap_err().to_string();
        assert!(text.contains("Nothing"), "{text}");
    }

    #[test]
    fn what_has_no_activation_or_two_is_refused() {
        let text = refused(Activated::new(Dense::new(3).activation("relu"), PReLU::new()), &[2]);
        assert!(text.contains("activation: expected one activation, received two"), "{text}");
        let text = refused(Activated::new(Flatten::new(), PReLU::new()), &[2]);
        assert!(
            text.contains("expected a layer such as Dense or Conv2D, received Flatten"),
            "{text}"
        );
    }
}
