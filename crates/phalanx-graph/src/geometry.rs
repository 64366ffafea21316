//! Window geometry shared by convolution and pooling: sizes, strides and resolved padding.

use crate::error::{GraphError, Result};
use crate::types::{MAX_ELEMENTS, count};
use std::fmt;
use std::ops::Range;

/// Padding mode of a window op, as in Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// No padding: every window lies inside the input.
    Valid,
    /// Zero padding so that the output has `ceil(input / stride)` positions; an odd zero goes to the end.
    Same,
    /// Zero padding before the input, so that no window reaches beyond its own position.
    Causal,
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

/// The depth axis of a 3-D convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Depth {
    /// Slices of the input.
    pub input: usize,
    /// Slices of the output.
    pub output: usize,
    /// Window depth.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Distance between adjacent taps.
    pub dilation: usize,
    /// Zero slices before the input. The padding at the end follows from the sizes.
    pub pad: usize,
}

impl Depth {
    /// The depth of an image: one slice.
    pub const FLAT: Depth =
        Depth { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad: 0 };

    /// Resolves the padding. Returns `None` if the window does not fit or a size is zero.
    pub fn new(
        input: usize,
        [kernel, stride, dilation]: [usize; 3],
        padding: Padding,
    ) -> Option<Depth> {
        let (output, pad) = resolve(input, [kernel, stride, dilation], padding)?;
        Some(Depth { input, output, kernel, stride, dilation, pad })
    }
}

/// The output size and the zeros before the input along one axis. Returns `None` if the window does not fit, or if
/// its size, stride or dilation is zero.
fn resolve(
    input: usize,
    [kernel, stride, dilation]: [usize; 3],
    padding: Padding,
) -> Option<(usize, usize)> {
    if stride == 0 || dilation == 0 {
        return None;
    }
    let span = kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    match padding {
        Padding::Valid => Some((input.checked_sub(span)? / stride + 1, 0)),
        Padding::Same => {
            let output = input.div_ceil(stride);
            let last = output.saturating_sub(1).checked_mul(stride)?;
            Some((output, last.checked_add(span)?.saturating_sub(input) / 2))
        }
        Padding::Causal => Some((input.div_ceil(stride), span - 1)),
    }
}

/// The positions along an axis that the outputs `outputs` read, and the zeros before them.
fn read_by(
    outputs: Range<usize>,
    input: usize,
    [kernel, stride, dilation]: [usize; 3],
    pad: usize,
) -> (Range<usize>, usize) {
    let span = (kernel - 1) * dilation + 1;
    let first = outputs.start * stride;
    let last = outputs.end.saturating_sub(1) * stride + span;
    let start = first.saturating_sub(pad).min(input);
    let end = last.saturating_sub(pad).clamp(start, input);
    (start..end, pad.saturating_sub(first))
}

/// The geometry of a window op, without the number of rows. The layout is NHWC. A volume is stored as an image with
/// the lines of all its slices, one slice after the other; the fields without a depth describe one slice.
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
    /// The depth axis; [`Depth::FLAT`] for images.
    pub depth: Depth,
}

impl ConvGeom {
    /// Resolves padding and output size along both axes. Returns `None` if the window does not fit, or if
    /// a kernel size, stride, dilation or `groups` is zero.
    pub fn new(input: [usize; 3], filters: usize, window: Window) -> Option<ConvGeom> {
        let Window { kernel, stride, dilation, padding, groups } = window;
        let mut output = [0, 0, filters];
        let mut pad = [0, 0];
        if groups == 0 {
            return None;
        }
        for a in 0..2 {
            (output[a], pad[a]) = resolve(input[a], [kernel[a], stride[a], dilation[a]], padding)?;
        }
        let depth = Depth::FLAT;
        Some(ConvGeom { input, output, kernel, stride, dilation, pad, groups, depth })
    }

    /// Fails for sizes that kernels cannot handle: a zero kernel size, stride, dilation or group count,
    /// channels that are not divisible by the groups, or a number of pixels, weights or taps above
    /// [`MAX_ELEMENTS`]. The fields are public, so callers check a geometry before they rely on it.
    pub fn check(&self) -> Result<()> {
        let fail =
            |expected: &str| Err(GraphError::mismatch("window", expected, format!("{self:?}")));
        let d = self.depth;
        let nonzero = [self.kernel, self.stride, self.dilation];
        let deep = [d.kernel, d.stride, d.dilation];
        if self.groups == 0 || nonzero.iter().flatten().chain(&deep).any(|n| *n == 0) {
            return fail("a kernel, strides, dilations and groups of at least one");
        }
        if [self.input[2], self.output[2]].iter().any(|c| !c.is_multiple_of(self.groups)) {
            return fail("channels that divide into the groups");
        }
        let in_range = |depth: usize, sizes: &[usize]| {
            let all = sizes.iter().try_fold(depth.max(1), |n, size| n.checked_mul((*size).max(1)));
            all.is_some_and(|n| n <= MAX_ELEMENTS)
        };
        // Upper bound of the coordinates that windows reach, counted from the start of the padding.
        let reach = |[input, output, kernel, stride, dilation, pad]: [usize; 6]| {
            let last = output.checked_mul(stride)?;
            let taps = kernel.checked_mul(dilation)?;
            last.checked_add(taps)?.checked_add(pad)?.checked_add(input)
        };
        let axis = |a: usize| {
            [
                self.input[a],
                self.output[a],
                self.kernel[a],
                self.stride[a],
                self.dilation[a],
                self.pad[a],
            ]
        };
        let axes = [axis(0), axis(1), [d.input, d.output, d.kernel, d.stride, d.dilation, d.pad]];
        let reachable = axes.iter().all(|a| reach(*a).is_some_and(|n| n <= MAX_ELEMENTS));
        let [height, width] = self.kernel;
        let weights = [height, width, self.input[2] / self.groups, self.output[2]];
        let sizes = in_range(d.input, &self.input)
            && in_range(d.output, &self.output)
            && in_range(d.kernel, &weights);
        if !sizes || !in_range(d.stride, &self.stride) || !reachable {
            return fail("sizes that can be nonzero");
        }
        Ok(())
    }

    /// Whether it is the geometry of images.
    pub fn is_flat(&self) -> bool {
        self.depth == Depth::FLAT
    }

    /// The dimensions of one input row: the lines of all slices, width and channels.
    pub fn input_dims(&self) -> [usize; 3] {
        let [height, width, channels] = self.input;
        [height.saturating_mul(self.depth.input), width, channels]
    }

    /// The dimensions of one output row: the lines of all slices, width and channels.
    pub fn output_dims(&self) -> [usize; 3] {
        let [height, width, channels] = self.output;
        [height.saturating_mul(self.depth.output), width, channels]
    }

    /// Floats in one input row (image).
    pub fn input_len(&self) -> usize {
        count(&self.input_dims())
    }

    /// Floats in one output row (image).
    pub fn output_len(&self) -> usize {
        count(&self.output_dims())
    }

    /// Kernel shape `[h, w, in/groups, out]`, as Keras stores it. The lines of all slices of a 3-D kernel count as
    /// its height.
    pub fn kernel_dims(&self) -> [usize; 4] {
        let [height, width] = self.kernel;
        let channels = self.input[2] / self.groups;
        [height.saturating_mul(self.depth.kernel), width, channels, self.output[2]]
    }

    /// The geometry of images restricted to the output lines `lines`, and the first input line that they read.
    pub fn lines(&self, lines: Range<usize>) -> (ConvGeom, usize) {
        let window = [self.kernel[0], self.stride[0], self.dilation[0]];
        let (inputs, pad) = read_by(lines.clone(), self.input[0], window, self.pad[0]);
        let mut part = *self;
        (part.input[0], part.output[0], part.pad[0]) = (inputs.len(), lines.len(), pad);
        (part, inputs.start)
    }

    /// The geometry restricted to the output slices `slices`, and the first input slice that they read.
    pub fn slices(&self, slices: Range<usize>) -> (ConvGeom, usize) {
        let d = self.depth;
        let window = [d.kernel, d.stride, d.dilation];
        let (inputs, pad) = read_by(slices.clone(), d.input, window, d.pad);
        let depth = Depth { input: inputs.len(), output: slices.len(), pad, ..d };
        (ConvGeom { depth, ..*self }, inputs.start)
    }

    /// Multiply-adds per row of the forward pass.
    pub fn macs(&self) -> usize {
        let [h, w, cin, cout] = self.kernel_dims();
        let [lines, width, _] = self.output_dims();
        count(&[lines, width, h, w, cin, cout])
    }
}

impl fmt::Display for ConvGeom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.depth;
        let flat = self.is_flat();
        // The number of the depth axis precedes the others, if there is such an axis.
        let sizes = |name: &str, deep: usize, [height, width]: [usize; 2], between: &str| {
            let deep = if flat { String::new() } else { format!("{deep}{between}") };
            format!("{name}{deep}{height}{between}{width}")
        };
        f.write_str(&sizes("", d.kernel, self.kernel, "x"))?;
        if self.stride != [1, 1] || d.stride != 1 {
            f.write_str(&sizes(" stride=", d.stride, self.stride, "x"))?;
        }
        if self.dilation != [1, 1] || d.dilation != 1 {
            f.write_str(&sizes(" dilation=", d.dilation, self.dilation, "x"))?;
        }
        if self.pad != [0, 0] || d.pad != 0 {
            f.write_str(&sizes(" pad=", d.pad, self.pad, ","))?;
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
        let bad: [fn(&mut ConvGeom, usize); 12] = [
            |g, _| g.groups = 0,
            |g, _| g.groups = 3,
            |g, _| g.kernel[0] = 0,
            |g, _| g.stride[1] = 0,
            |g, n| (g.kernel, g.input[2]) = ([n, 2], 0),
            |g, n| g.stride = [n, 2],
            |g, n| g.dilation[0] = n,
            |g, n| g.pad[1] = n,
            |g, n| g.output = [n, 2, 8],
            |g, n| g.depth.input = n,
            |g, n| g.depth.pad = n,
            |g, _| g.depth.stride = 0,
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
                    // Slices are restricted in the same way.
                    let sizes = [kernel, stride, dilation];
                    let depth = Depth::new(height, sizes, padding).unwrap();
                    let (slices, first_slice) = ConvGeom { depth, ..full }.slices(start..end);
                    assert_eq!(first_slice, first);
                    let Depth { input, output, pad, .. } = slices.depth;
                    assert_eq!([input, output, pad], [part.input[0], part.output[0], part.pad[0]]);
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

    #[test]
    fn causal_windows_end_at_their_own_position() {
        let window = Window::new([1, 3], [1, 1], Padding::Causal);
        let window = Window { dilation: [1, 2], ..window };
        let geom = ConvGeom::new([1, 7, 2], 4, window).unwrap();
        assert_eq!((geom.output, geom.pad), ([1, 7, 4], [0, 4]));
        let strided = ConvGeom::new([1, 7, 2], 4, Window { stride: [1, 3], ..window }).unwrap();
        assert_eq!(strided.output, [1, 3, 4]);
    }

    #[test]
    fn volumes_are_images_with_the_lines_of_all_slices() {
        let window = Window::new([3, 2], [2, 1], Padding::Same);
        let flat = ConvGeom::new([6, 5, 4], 8, window).unwrap();
        let depth = Depth::new(7, [3, 2, 1], Padding::Valid).unwrap();
        let geom = ConvGeom { depth, ..flat };
        geom.check().unwrap();
        assert_eq!(geom.input_dims(), [42, 5, 4]);
        assert_eq!(geom.output_dims(), [9, 5, 8]);
        assert_eq!(geom.kernel_dims(), [9, 2, 4, 8]);
        assert_eq!(geom.macs(), 3 * 3 * 5 * 18 * 32);
        assert_eq!(flat.to_string(), "3x2 stride=2x1");
        assert_eq!(geom.to_string(), "3x3x2 stride=2x2x1");
        assert_eq!(
            ConvGeom { depth: Depth { pad: 1, ..depth }, ..flat }.to_string(),
            "3x3x2 stride=2x2x1 pad=1,0,0"
        );
    }
}
