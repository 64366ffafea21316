//! Sums and products of the elements up to each one.

use super::Value;
use super::value::{offset, position};

/// The sum or product of all elements up to each one along an axis, or from it on if reversed.
pub(super) fn cumulative(axis: usize, product: bool, reverse: bool, x: &Value) -> Value {
    let mut y = Value::fill(x.dims.clone(), 0.0);
    for (i, v) in y.floats_mut().iter_mut().enumerate() {
        let mut at = position(&x.dims, i);
        let own = at[axis];
        let range = if reverse { own..x.dims[axis] } else { 0..own + 1 };
        let elements = range.map(|k| {
            at[axis] = k;
            x.floats()[offset(&x.dims, &at)]
        });
        *v = if product { elements.product() } else { elements.sum() };
    }
    y
}
