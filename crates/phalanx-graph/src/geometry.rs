//! Window geometry shared by convolution and pooling: sizes, strides and resolved padding.

use crate::error::{GraphError, Result};
use crate::types::{MAX_ELEMENTS, count};
use std::fmt;

/// Padding mode of a window op, as in Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// No padding: every window lies inside the input.
    Valid,
    /// Zero padding so that the output has `ceil(input / stride)` positions; an odd zero goes to the end.
    Same,
}

/// The window of a 2-D window op, before its padding is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Height and width.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Distance between adjacent taps.
    pub dilation: [usize; 2],
    /// Padding mode.
    pub padding: Padding,
    /// Channel groups.
    pub groups: usize,
}

impl Window {
    /// A window without dilation and groups.
    pub fn new(kernel: [usize; 2], stride: [usize; 2], padding: Padding) -> Window {
        Window { kernel, stride, dilation: [1, 1], padding, groups: 1 }
    }
}

/// The geometry of a 2-D window op, without the number of rows. The layout is NHWC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGeom {
    /// Input height, width and channels.
    pub input: [usize; 3],
    /// Output height, width and channels.
    pub output: [usize; 3],
    /// Window height and width.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Distance between adjacent taps of a window.
    pub dilation: [usize; 2],
    /// Zeros before the input: top and left. The padding at the end follows from the sizes.
    pub pad: [usize; 2],
    /// Channel groups: input channels `g*c/groups..` feed output channels `g*o/groups..`.
    pub groups: usize,
}

impl ConvGeom {
    /// Resolves padding and output size along both axes. Returns `None` if the window does not fit, or if
    /// a kernel size, stride, dilation or `groups` is zero.
    pub fn new(input: [usize; 3], filters: usize, window: Window) -> Option<ConvGeom> {
        let Window { kernel, stride, dilation, padding, groups } = window;
        let mut output = [0, 0, filters];
        let mut pad = [0, 0];
        if groups == 0 || [kernel, stride, dilation].iter().flatten().any(|n| *n == 0) {
            return None;
        }
        for a in 0..2 {
            let span = (kernel[a] - 1).checked_mul(dilation[a])?.checked_add(1)?;
            match padding {
                Padding::Valid => {
                    output[a] = input[a].checked_sub(span)? / stride[a] + 1;
                }
                Padding::Same => {
                    output[a] = input[a].div_ceil(stride[a]);
                    let last = output[a].saturating_sub(1).checked_mul(stride[a])?;
                    pad[a] = last.checked_add(span)?.saturating_sub(input[a]) / 2;
                }
            }
        }
        Some(ConvGeom { input, output, kernel, stride, dilation, pad, groups })
    }

    /// Fails for sizes that kernels cannot handle: a zero kernel size, stride, dilation or group count,
    /// channels that are not divisible by the groups, or a number of pixels, weights or taps above
    /// [`MAX_ELEMENTS`]. The fields are public, so callers check a geometry before they rely on it.
    pub fn check(&self) -> Result<()> {
        let fail =
            |expected: &str| Err(GraphError::mismatch("window", expected, format!("{self:?}")));
        let nonzero = [self.kernel, self.stride, self.dilation];
        if self.groups == 0 || nonzero.iter().flatten().any(|n| *n == 0) {
            return fail("a kernel, strides, dilations and groups of at least one");
        }
        if [self.input[2], self.output[2]].iter().any(|c| !c.is_multiple_of(self.groups)) {
            return fail("channels that divide into the groups");
        }
        let in_range = |sizes: &[usize]| {
            let all = sizes.iter().try_fold(1usize, |n, size| n.checked_mul((*size).max(1)));
            all.is_some_and(|n| n <= MAX_ELEMENTS)
        };
        // Upper bound of the coordinates that windows reach, counted from the start of the padding.
        let reach = |axis: usize| {
            let last = self.output[axis].checked_mul(self.stride[axis])?;
            let taps = self.kernel[axis].checked_mul(self.dilation[axis])?;
            last.checked_add(taps)?.checked_add(self.pad[axis])?.checked_add(self.input[axis])
        };
        let reachable = |axis: usize| reach(axis).is_some_and(|n| n <= MAX_ELEMENTS);
        let sizes =
            in_range(&self.input) && in_range(&self.output) && in_range(&self.kernel_dims());
        if !sizes || !in_range(&self.stride) || !reachable(0) || !reachable(1) {
            return fail("sizes that can be nonzero");
        }
        Ok(())
    }

    /// Floats in one input row (image).
    pub fn input_len(&self) -> usize {
        count(&self.input)
    }

    /// Floats in one output row (image).
    pub fn output_len(&self) -> usize {
        count(&self.output)
    }

    /// Kernel shape `[h, w, in/groups, out]`, as Keras stores it.
    pub fn kernel_dims(&self) -> [usize; 4] {
        [self.kernel[0], self.kernel[1], self.input[2] / self.groups, self.output[2]]
    }

    /// The geometry restricted to the output lines `lines`, and the first input line that they read.
    pub fn lines(&self, lines: std::ops::Range<usize>) -> (ConvGeom, usize) {
        let span = (self.kernel[0] - 1) * self.dilation[0] + 1;
        let first = lines.start * self.stride[0];
        let last = lines.end.saturating_sub(1) * self.stride[0] + span;
        let start = first.saturating_sub(self.pad[0]).min(self.input[0]);
        let end = last.saturating_sub(self.pad[0]).clamp(start, self.input[0]);
        let mut part = *self;
        part.input[0] = end - start;
        part.output[0] = lines.len();
        part.pad[0] = self.pad[0].saturating_sub(first);
        (part, start)
    }

    /// Multiply-adds per row of the forward pass.
    pub fn macs(&self) -> usize {
        let [h, w, cin, cout] = self.kernel_dims();
        count(&[self.output[0], self.output[1], h, w, cin, cout])
    }
}

impl fmt::Display for ConvGeom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.kernel[0], self.kernel[1])?;
        if self.stride != [1, 1] {
            write!(f, " stride={}x{}", self.stride[0], self.stride[1])?;
        }
        if self.dilation != [1, 1] {
            write!(f, " dilation={}x{}", self.dilation[0], self.dilation[1])?;
        }
        if self.pad != [0, 0] {
            write!(f, " pad={},{}", self.pad[0], self.pad[1])?;
        }
        if self.groups != 1 {
            write!(f, " groups={}", self.groups)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometries_with_invalid_sizes_are_rejected() {
        let window = Window::new([3, 3], [1, 1], Padding::Same);
        let good = ConvGeom::new([6, 6, 4], 8, Window { groups: 2, ..window }).unwrap();
        good.check().unwrap();
        let half = usize::MAX / 2 + 1;
        let bad: [fn(&mut ConvGeom, usize); 9] = [
            |g, _| g.groups = 0,
            |g, _| g.groups = 3,
            |g, _| g.kernel[0] = 0,
            |g, _| g.stride[1] = 0,
            |g, n| (g.kernel, g.input[2]) = ([n, 2], 0),
            |g, n| g.stride = [n, 2],
            |g, n| g.dilation[0] = n,
            |g, n| g.pad[1] = n,
            |g, n| g.output = [n, 2, 8],
        ];
        for change in bad {
            let mut geom = good;
            change(&mut geom, half);
            assert!(geom.check().is_err(), "{geom:?}");
        }
        for window in [
            Window { kernel: [0, 3], ..window },
            Window { stride: [1, 0], ..window },
            Window { groups: 0, ..window },
        ] {
            assert_eq!(ConvGeom::new([6, 6, 4], 8, window), None);
        }
        let reach = ConvGeom::new([half, 6, 4], 8, Window { stride: [3, 1], ..window });
        assert!(reach.is_none_or(|g| g.check().is_err()));
    }

    #[test]
    fn a_range_of_lines_reads_the_same_windows() {
        for (height, kernel, stride, dilation, padding) in [
            (7, 3, 1, 1, Padding::Same),
            (7, 3, 1, 1, Padding::Valid),
            (15, 3, 2, 1, Padding::Same),
            (9, 5, 1, 2, Padding::Same),
            (8, 1, 2, 1, Padding::Valid),
            (6, 2, 2, 1, Padding::Same),
        ] {
            let window = Window::new([kernel; 2], [stride; 2], padding);
            let window = Window { dilation: [dilation; 2], ..window };
            let full = ConvGeom::new([height, height, 4], 8, window).unwrap();
            // The input line that a tap of an output line reads; `None` in the padding.
            let tap = |g: &ConvGeom, line: usize, k: usize| {
                (line * g.stride[0] + k * g.dilation[0])
                    .checked_sub(g.pad[0])
                    .filter(|i| *i < g.input[0])
            };
            for start in 0..full.output[0] {
                for end in start + 1..=full.output[0] {
                    let (part, first) = full.lines(start..end);
                    for line in start..end {
                        for k in 0..kernel {
                            let shifted = tap(&part, line - start, k).map(|i| i + first);
                            assert_eq!(shifted, tap(&full, line, k), "{full:?} {start}..{end}");
                        }
                    }
                }
            }
        }
    }
}
