//! Layers that merge several inputs element by element, with broadcasting: axes of size one are repeated, and
//! inputs with fewer axes get axes of size one after the batch.
//!
//! As in Keras, [`Multiply`], [`Maximum`] and [`Minimum`] leave masked entries out; the other layers combine them too.

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

/// The masks of inputs with an axis for the features. Keras drops the mask of an input that gets further axes.
fn entry_masks(cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Vec<Option<NodeId>>> {
    let rank = inputs.iter().map(|x| cx.dims(*x).len()).max().unwrap_or(0);
    let mut masks = vec![];
    for (i, x) in inputs.iter().enumerate() {
        let mask = cx.mask(i).filter(|_| cx.dims(*x).len() == rank);
        masks.push(match mask {
            Some(mask) => {
                let dims = [&cx.dims(mask)[..], &[1]].concat();
                Some(cx.graph().reshape(mask, &dims)?)
            }
            None => None,
        });
    }
    Ok(masks)
}

/// Folds inputs of an operation without identity: a masked entry is replaced by that of the other operand.
fn fold_unmasked(cx: &mut LayerContext<'_>, op: Binary, inputs: &[NodeId]) -> Result<NodeId> {
    let masks = entry_masks(cx, inputs)?;
    let mut operands = inputs.iter().copied().zip(masks);
    let Some((mut folded, mut valid)) = operands.next() else {
        return Err(cx.argument("inputs", "1 or more", 0));
    };
    for (mut x, mask) in operands {
        let g = cx.graph();
        if let Some(mask) = mask {
            x = g.select(mask, x, folded)?;
        }
        if let Some(valid) = valid {
            folded = g.select(valid, folded, x)?;
        }
        valid = match (valid, mask) {
            (Some(valid), Some(mask)) => Some(g.binary(Binary::Max, valid, mask)?),
            _ => None,
        };
        folded = g.binary(op, folded, x)?;
    }
    Ok(folded)
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
    masks.map(|masks| fold(cx, Binary::Max, &masks)).transpose()
}

merge_layer!(Add, "The sum of its inputs.", |cx, inputs| fold(cx, Binary::Add, inputs));
merge_layer!(Subtract, "The first of two inputs less the second.", |cx, inputs| match inputs {
    [_, _] => fold(cx, Binary::Sub, inputs),
    _ => Err(cx.argument("inputs", "2", inputs.len())),
});
merge_layer!(Multiply, "The product of its inputs. Masked entries count as 1.", |cx, inputs| {
    let masks = entry_masks(cx, inputs)?;
    let (one, zero) = (cx.graph().scalar(1.0), cx.graph().scalar(0.0));
    let mut factors = vec![];
    for (x, mask) in inputs.iter().zip(&masks) {
        factors.push(match mask {
            Some(mask) => cx.graph().select(*mask, *x, one)?,
            None => *x,
        });
    }
    let product = fold(cx, Binary::Mul, &factors)?;
    // What is masked in all inputs is 0.
    let Some(masks) = masks.into_iter().collect::<Option<Vec<NodeId>>>() else {
        return Ok(product);
    };
    let any = fold(cx, Binary::Max, &masks)?;
    Ok(cx.graph().select(any, product, zero)?)
});
merge_layer!(Average, "The mean of its inputs.", |cx, inputs| {
    let sum = fold(cx, Binary::Add, inputs)?;
    Ok(cx.graph().scale(sum, 1.0 / inputs.len() as f64)?)
});
merge_layer!(Maximum, "The largest of its inputs, without masked entries.", |cx, inputs| {
    fold_unmasked(cx, Binary::Max, inputs)
});
merge_layer!(Minimum, "The smallest of its inputs, without masked entries.", |cx, inputs| {
    fold_unmasked(cx, Binary::Min, inputs)
});
