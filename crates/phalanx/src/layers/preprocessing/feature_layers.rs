//! The layers that Keras' `FeatureSpace` defines for itself.

use crate::data::Samples;
use crate::error::Result;
use crate::layer::{HostLayer, InputsForm, Layer, LayerContext, Outputs, RowType, one_input};
use crate::layers::Concatenate;
use crate::layers::support::single;
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// The module of these classes.
const MODULE: &str = "keras.src.layers.preprocessing.feature_space";

/// `FeatureSpace`'s concatenation of encoded features.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::TFDConcat;
///
/// assert_eq!(TFDConcat::new(-1).config()["axis"], -1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TFDConcat {
    axis: i64,
}

impl TFDConcat {
    /// Concatenates along an axis, where the batch is axis 0.
    pub fn new(axis: i64) -> TFDConcat {
        TFDConcat { axis }
    }
}

impl Layer for TFDConcat {
    keras_class!("TFDConcat");

    fn module(&self) -> &str {
        MODULE
    }

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn signature(&self) -> &'static [&'static str] {
        &["xs"]
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        Concatenate::new().axis(self.axis).call(cx, inputs)
    }
}

/// `FeatureSpace`'s identity.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::TFDIdentity;
///
/// assert!(TFDIdentity::new().config().is_empty());
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TFDIdentity {}

impl TFDIdentity {
    /// Creates the layer.
    pub fn new() -> TFDIdentity {
        TFDIdentity::default()
    }
}

impl Layer for TFDIdentity {
    keras_class!("TFDIdentity");

    fn module(&self) -> &str {
        MODULE
    }

    fn signature(&self) -> &'static [&'static str] {
        &["x"]
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        Ok(single(cx, inputs)?.into())
    }

    fn host(&self) -> Option<&dyn HostLayer> {
        Some(self)
    }
}

impl HostLayer for TFDIdentity {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        one_input(owner, inputs).cloned()
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        one_input(owner, inputs).cloned()
    }

    fn runs_on_devices(&self) -> bool {
        true
    }
}
