//! Elements at computed positions along an axis, and the derivative.

use phalanx_graph::ops::take::TakeLoops;

/// A position below `n`; those below zero count from the end.
#[inline(always)]
fn resolve(index: i32, n: usize) -> Option<usize> {
    let index = index as isize;
    let at = if index < 0 { index.wrapping_add(n as isize) } else { index };
    usize::try_from(at).ok().filter(|at| *at < n)
}

/// Runs of elements that share a position: a run of `inner` elements, or single elements.
struct Runs<'a>(&'a TakeLoops);

impl Runs<'_> {
    /// Elements per run.
    fn len(&self) -> usize {
        if self.0.along { 1 } else { self.0.inner }
    }

    /// Calls `f(place in the operand, if any; place in the result)` for every run, in order.
    ///
    /// # Safety
    /// `index` is valid for the positions of all rows.
    unsafe fn each(&self, index: *const i32, mut f: impl FnMut(Option<usize>, usize)) {
        let TakeLoops { rows, outer, size, count, inner, x_rows, index_rows, along } = *self.0;
        let own = if along { outer * count * inner } else { count };
        for row in 0..rows {
            let positions = if index_rows { row * own } else { 0 };
            let lead = if x_rows { row * outer } else { 0 };
            for o in 0..outer {
                for j in 0..count {
                    let y = ((row * outer + o) * count + j) * inner;
                    for i in (0..inner).step_by(self.len().max(1)) {
                        let at = if along { (o * count + j) * inner + i } else { j };
                        // SAFETY: the position exists.
                        let k = resolve(unsafe { *index.add(positions + at) }, size);
                        f(k.map(|k| ((lead + o) * size + k) * inner + i), y + i);
                    }
                }
            }
        }
    }
}

/// Copies elements; `outside` where there is none.
///
/// # Safety
/// The pointers are valid for all elements of the loops, and `y` overlaps no operand.
pub unsafe fn take(loops: &TakeLoops, outside: f32, x: *const f32, index: *const i32, y: *mut f32) {
    let runs = Runs(loops);
    let len = runs.len();
    // SAFETY: the runs lie inside the operand and the result.
    unsafe {
        runs.each(index, |from, to| match from {
            Some(from) => std::ptr::copy_nonoverlapping(x.add(from), y.add(to), len),
            None => std::slice::from_raw_parts_mut(y.add(to), len).fill(outside),
        });
    }
}

/// Zeroes `dx` and adds every `dy` to the element that it was read from, in order.
///
/// # Safety
/// The pointers are valid for all elements of the loops, and `dx` overlaps no operand.
pub unsafe fn take_grad(loops: &TakeLoops, index: *const i32, dy: *const f32, dx: *mut f32) {
    let runs = Runs(loops);
    let len = runs.len();
    let rows = if loops.x_rows { loops.rows } else { 1 };
    // SAFETY: the runs lie inside `dy` and `dx`.
    unsafe {
        std::ptr::write_bytes(dx, 0, rows * loops.outer * loops.size * loops.inner);
        runs.each(index, |to, from| {
            let Some(to) = to else { return };
            for i in 0..len {
                *dx.add(to + i) += *dy.add(from + i);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_once_and_nothing_is_read_outside() {
        let x = [1.0, 2.0, 3.0];
        let index = [2, -1, -3, -4, 3, i32::MIN, i32::MAX, 0];
        let loops = TakeLoops {
            rows: 1,
            outer: 1,
            size: 3,
            count: 8,
            inner: 1,
            x_rows: false,
            index_rows: false,
            along: false,
        };
        let (mut y, mut dx) = ([9.0; 8], [9.0; 3]);
        let dy = [1.0, 10.0, 100.0, 5.0, 5.0, 5.0, 5.0, 1000.0];
        // SAFETY: eight positions on an axis of three.
        unsafe {
            take(&loops, -7.0, x.as_ptr(), index.as_ptr(), y.as_mut_ptr());
            take_grad(&loops, index.as_ptr(), dy.as_ptr(), dx.as_mut_ptr());
        }
        assert_eq!(y, [3.0, 3.0, 1.0, -7.0, -7.0, -7.0, -7.0, 1.0]);
        assert_eq!(dx, [1100.0, 0.0, 11.0]);
    }
}
