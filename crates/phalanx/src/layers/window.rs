//! The windows of convolution and pooling layers.

use super::spatial::{Padding, Sizes, Spatial, check_all_at_least_one, sizes_text};
use crate::by_name::ByName;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{ConvGeom, Depth, NodeId, Op};

/// The maximum window size: more than any image has pixels along an axis, and small enough that no product
/// overflows.
const MAX_WINDOW: usize = 1 << 24;

/// The window of a convolution or pooling layer, from its config.
pub(crate) struct Window<'a, const N: usize> {
    /// The config key of the size.
    pub key: &'a str,
    pub size: Sizes<N>,
    pub strides: Sizes<N>,
    pub dilation: Sizes<N>,
    pub padding: &'a ByName<Padding>,
    pub groups: usize,
}

impl<const N: usize> Window<'_, N> {
    /// Fails if a size is zero or too large.
    pub fn check(&self, cx: &LayerContext<'_>) -> Result<()> {
        let sizes =
            [(self.key, self.size), ("strides", self.strides), ("dilation_rate", self.dilation)];
        for (argument, size) in sizes {
            check_all_at_least_one(cx, argument, size)?;
            if size.0.iter().any(|n| *n > MAX_WINDOW) {
                let expected = format!("{MAX_WINDOW} or less");
                return Err(cx.argument(argument, &expected, size));
            }
        }
        Ok(())
    }

    /// Checks the window against an input and resolves its padding.
    pub fn geometry(
        &self,
        cx: &LayerContext<'_>,
        input: &Spatial<N>,
        channels: usize,
    ) -> Result<ConvGeom> {
        self.check(cx)?;
        let padding = match self.padding.get()? {
            Padding::Valid => phalanx_graph::Padding::Valid,
            Padding::Same => phalanx_graph::Padding::Same,
            Padding::Causal => phalanx_graph::Padding::Causal,
        };
        let [kernel, stride, dilation] = [self.size, self.strides, self.dilation].map(last_two);
        let [height, width] = last_two(Sizes(input.sizes));
        let window =
            phalanx_graph::Window { kernel, stride, dilation, padding, groups: self.groups };
        let flat = ConvGeom::new([height, width, input.channels], channels, window);
        let (sizes, [kernel, stride, dilation]) =
            (depth(Sizes(input.sizes)), [self.size, self.strides, self.dilation].map(depth));
        let depth = Depth::new(sizes, [kernel, stride, dilation], padding);
        let geom = flat.zip(depth).map(|(flat, depth)| ConvGeom { depth, ..flat });
        geom.ok_or_else(|| {
            let expected = format!("a window inside the input's {}", sizes_text(&input.sizes));
            let dilated = if self.dilation == 1.into() {
                String::new()
            } else {
                format!(" with dilation_rate {}", self.dilation)
            };
            cx.argument(self.key, &expected, format!("{}{dilated}", self.size))
        })
    }

    /// The geometry of a convolution with `multiplier` filters for each channel.
    pub fn depthwise(
        &self,
        cx: &LayerContext<'_>,
        input: &Spatial<N>,
        multiplier: usize,
    ) -> Result<ConvGeom> {
        let Some(filters) = input.channels.checked_mul(multiplier) else {
            return Err(cx.argument("depth_multiplier", "a size that fits in memory", multiplier));
        };
        self.geometry(cx, input, filters)
    }

    /// Fails for strides together with a dilation. The kernels support both, but Keras rejects it, and saved models must
    /// load there too.
    pub fn check_strides(&self, cx: &LayerContext<'_>) -> Result<()> {
        if self.strides == 1.into() || self.dilation == 1.into() {
            return Ok(());
        }
        let received = format!("{} with dilation_rate {}", self.strides, self.dilation);
        Err(cx.argument("strides", "1 if dilation_rate is not 1", received))
    }

    /// Fails for causal padding.
    pub fn check_not_causal(&self, cx: &LayerContext<'_>) -> Result<()> {
        match self.padding.get()? {
            Padding::Causal => Err(cx.argument("padding", "valid or same", "causal")),
            _ => Ok(()),
        }
    }
}

/// The sizes of an image's height and width; a sequence is an image of height one.
pub(crate) fn last_two<const N: usize>(sizes: Sizes<N>) -> [usize; 2] {
    match sizes.0[..] {
        [width] => [1, width],
        [.., height, width] => [height, width],
        [] => [1, 1],
    }
}

/// The size of a volume's depth; images and sequences are one slice.
pub(crate) fn depth<const N: usize>(sizes: Sizes<N>) -> usize {
    if N == 3 { sizes.0[0] } else { 1 }
}

/// The sizes of a geometry's output along `N` axes.
pub(crate) fn output_sizes<const N: usize>(geom: &ConvGeom) -> [usize; N] {
    let [height, width, _] = geom.output;
    std::array::from_fn(|axis| [geom.depth.output, height, width][axis + 3 - N])
}

/// Appends a convolution. The kernel has the weights of the geometry in any shape.
pub(crate) fn convolve<const N: usize>(
    cx: &mut LayerContext<'_>,
    geom: ConvGeom,
    x: NodeId,
    kernel: NodeId,
    bias: Option<NodeId>,
) -> Result<Spatial<N>> {
    let g = cx.graph();
    let x = g.reshape(x, &geom.input_dims())?;
    let kernel = g.reshape(kernel, &geom.kernel_dims())?;
    let operands: Vec<NodeId> = [x, kernel].into_iter().chain(bias).collect();
    let epilogue = Epilogue { bias: bias.is_some(), relu: false };
    let x = g.push(Op::Conv(geom, epilogue), &operands)?;
    Ok(Spatial { x, sizes: output_sizes(&geom), channels: geom.output[2] })
}
