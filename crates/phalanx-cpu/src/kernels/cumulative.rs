//! Sums and products of the elements up to each one.

/// Columns that are accumulated at once.
const COLUMNS: usize = 16;

/// `y[o, k, i]` is the sum (or product) of `x[o, ..=k, i]`, or of `x[o, k.., i]` if reversed, for values
/// `[outer, len, inner]`. Accumulates in f64.
///
/// # Safety
/// `x` and `y` are valid for that shape and do not overlap.
pub unsafe fn cumulative(
    product: bool,
    reverse: bool,
    [outer, len, inner]: [usize; 3],
    x: *const f32,
    y: *mut f32,
) {
    for o in 0..outer {
        for first in (0..inner).step_by(COLUMNS) {
            let columns = COLUMNS.min(inner - first);
            let mut total = [if product { 1.0f64 } else { 0.0 }; COLUMNS];
            for k in 0..len {
                let k = if reverse { len - 1 - k } else { k };
                let at = (o * len + k) * inner + first;
                for (i, total) in total[..columns].iter_mut().enumerate() {
                    // SAFETY: the element exists.
                    unsafe {
                        let v = f64::from(*x.add(at + i));
                        *total = if product { *total * v } else { *total + v };
                        *y.add(at + i) = *total as f32;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let run = |product, reverse, shape| {
            let mut y = [9.0; 6];
            // SAFETY: six elements.
            unsafe { cumulative(product, reverse, shape, x.as_ptr(), y.as_mut_ptr()) };
            y
        };
        assert_eq!(run(false, false, [2, 3, 1]), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
        assert_eq!(run(false, true, [2, 3, 1]), [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]);
        assert_eq!(run(false, false, [1, 3, 2]), [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
        assert_eq!(run(true, true, [1, 3, 2]), [15.0, 48.0, 15.0, 24.0, 5.0, 6.0]);
        assert_eq!(run(false, false, [0, 3, 2]), [9.0; 6]);
    }
}
