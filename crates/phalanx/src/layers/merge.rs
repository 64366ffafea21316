//! Layers that merge several inputs element by element, with broadcasting: axes of size one are repeated, and
//! inputs with fewer axes get axes of size one after the batch.

use crate::error::Result;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Binary;
use serde::{Deserialize, Serialize};

fn fold(cx: &mut LayerContext<'_>, op: Binary, inputs: &[NodeId]) -> Result<NodeId> {
    let Some((first, rest)) = inputs.split_first() else {
        return Err(cx.argument("inputs", "1 or more", 0));
    };
    rest.iter().try_fold(*first, |sum, x| Ok(cx.graph().binary(op, sum, *x)?))
}

/// None of these layers has a config.
macro_rules! merge_layer {
    ($name:ident, $doc:literal, $call:expr) => {
        #[doc = $doc]
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($name), ";")]
        ///
        #[doc = concat!("assert!(", stringify!($name), "::new().config().is_empty());")]
        /// ```
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {}

        impl $name {
            /// Creates the layer.
            pub fn new() -> $name {
                $name::default()
            }
        }

        impl Layer for $name {
            keras_class!(stringify!($name));

            fn inputs_form(&self) -> InputsForm {
                InputsForm::List
            }

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                let call: fn(&mut LayerContext<'_>, &[NodeId]) -> Result<NodeId> = $call;
                let y = Outputs::from(call(cx, inputs)?);
                Ok(y.masked(any_mask(cx, inputs.len())?))
            }
        }
    };
}

/// The steps that are valid in some input; `None` if an input has no mask.
fn any_mask(cx: &mut LayerContext<'_>, inputs: usize) -> Result<Option<NodeId>> {
    let masks: Option<Vec<NodeId>> = (0..inputs).map(|i| cx.mask(i)).collect();
    let Some(masks) = masks else { return Ok(None) };
    let mut masks = masks.into_iter();
    let Some(mut any) = masks.next() else { return Ok(None) };
    for mask in masks {
        any = cx.graph().binary(Binary::Max, any, mask)?;
    }
    Ok(Some(any))
}

merge_layer!(Add, "The sum of its inputs.", |cx, inputs| fold(cx, Binary::Add, inputs));
merge_layer!(Subtract, "The first of two inputs less the second.", |cx, inputs| match inputs {
    [_, _] => fold(cx, Binary::Sub, inputs),
    _ => Err(cx.argument("inputs", "2", inputs.len())),
});
merge_layer!(Multiply, "The product of its inputs.", |cx, inputs| fold(cx, Binary::Mul, inputs));
merge_layer!(Average, "The mean of its inputs.", |cx, inputs| {
    let sum = fold(cx, Binary::Add, inputs)?;
    Ok(cx.graph().scale(sum, 1.0 / inputs.len() as f64)?)
});
merge_layer!(Maximum, "The largest of its inputs.", |cx, inputs| fold(cx, Binary::Max, inputs));
merge_layer!(Minimum, "The smallest of its inputs.", |cx, inputs| fold(cx, Binary::Min, inputs));
