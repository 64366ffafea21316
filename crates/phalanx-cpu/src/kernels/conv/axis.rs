//! One axis of a grid of destination pixels: its points, and the taps that they read.

use std::ops::Range;

use phalanx_graph::{ConvGeom, Depth};

/// One axis of a [`Grid`](super::grid::Grid).
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub points: usize,
    pub start: usize,
    pub step: usize,
    pub size: usize,
    pub source_step: usize,
    pub source_size: usize,
    pub offset: isize,
    pub tap_step: isize,
    pub taps: usize,
    /// Size of the kernel.
    pub kernel: usize,
    /// Position of tap `i` in the kernel: `kernel_first + i * kernel_step`.
    pub kernel_first: usize,
    pub kernel_step: usize,
}

/// One axis of a convolution.
pub(super) struct Side {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl Side {
    /// Depth, height or width.
    pub fn new(geom: &ConvGeom, axis: usize) -> Side {
        let Depth { input, output, kernel, stride, dilation, pad } = geom.depth;
        match axis {
            0 => Side { input, output, kernel, stride, dilation, pad },
            _ => Side {
                input: geom.input[axis - 1],
                output: geom.output[axis - 1],
                kernel: geom.kernel[axis - 1],
                stride: geom.stride[axis - 1],
                dilation: geom.dilation[axis - 1],
                pad: geom.pad[axis - 1],
            },
        }
    }
}

impl Axis {
    pub fn forward(geom: &ConvGeom, axis: usize) -> Axis {
        let side = Side::new(geom, axis);
        Axis {
            points: side.output,
            start: 0,
            step: 1,
            size: side.output,
            source_step: side.stride,
            source_size: side.input,
            offset: -(side.pad as isize),
            tap_step: side.dilation as isize,
            taps: side.kernel,
            kernel: side.kernel,
            kernel_first: 0,
            kernel_step: 1,
        }
    }

    /// Input pixels `phase, phase + stride, ...`. Output `o` reaches input `o * stride - pad + k *
    /// dilation` through tap `k`; so of the taps, those with `k * dilation = phase + pad (mod stride)`
    /// reach this phase, and they repeat every `stride / gcd(stride, dilation)`.
    pub fn backward(geom: &ConvGeom, axis: usize, phase: usize) -> Axis {
        let Side { input, output, kernel, stride, dilation, pad } = Side::new(geom, axis);
        let moved = phase + pad;
        let first = (0..kernel).find(|k| (k * dilation) % stride == moved % stride);
        let kernel_first = first.unwrap_or(kernel);
        let kernel_step = stride / gcd(stride, dilation);
        Axis {
            points: input.saturating_sub(phase).div_ceil(stride),
            start: phase,
            step: stride,
            size: input,
            source_step: 1,
            source_size: output,
            offset: (moved as isize - (kernel_first * dilation) as isize) / stride as isize,
            tap_step: -((kernel_step * dilation / stride) as isize),
            taps: (kernel - kernel_first).div_ceil(kernel_step),
            kernel,
            kernel_first,
            kernel_step,
        }
    }

    /// The source pixel of point `g` and tap `i`, if it exists.
    #[inline(always)]
    pub fn source(&self, g: usize, i: usize) -> Option<usize> {
        let at = (g * self.source_step) as isize + self.offset + i as isize * self.tap_step;
        if (at as usize) < self.source_size { Some(at as usize) } else { None }
    }

    /// The points whose taps all lie inside the source, if adjacent taps read adjacent pixels.
    #[inline(always)]
    pub fn interior(&self) -> Range<usize> {
        let step = self.source_step;
        let start = (-self.offset).max(0) as usize;
        let room = self.source_size as isize - self.taps as isize - self.offset;
        let end = if room < 0 { 0 } else { room as usize / step + 1 };
        start.div_ceil(step)..end.min(self.points)
    }

    /// The taps of point `g` that read inside the source. They form a range because sources are monotone in
    /// `i`.
    #[inline(always)]
    pub fn inside(&self, g: usize) -> Range<usize> {
        let mut start = 0;
        while start < self.taps && self.source(g, start).is_none() {
            start += 1;
        }
        let mut end = start;
        while end < self.taps && self.source(g, end).is_some() {
            end += 1;
        }
        start..end
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
