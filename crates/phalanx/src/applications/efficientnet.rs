//! EfficientNet (Tan and Le 2019) and EfficientNetV2 (Tan and Le 2021): inverted residual blocks with squeeze and
//! excitation, scaled in width and depth.

use super::application::{Application, Features, Top, rounded};
use crate::initializers::{Distribution, FanMode, Initializer};
use crate::layer::LayerExt;
use crate::layers::{
    Activation, Add, BatchNormalization, Conv2D, DepthwiseConv2D, Dropout, GlobalAveragePooling2D,
    Multiply, Normalization, Rescaling, Reshape,
};
use crate::model::{Apply, Symbol};

/// The rate at which the last block's branch is dropped; earlier blocks have less.
const DROP_RATE: f64 = 0.2;
const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STDDEV: [f64; 3] = [0.229, 0.224, 0.225];

/// The scale of a member of the first family: width, depth, and the dropout before the classifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct V1 {
    pub width: f64,
    pub depth: f64,
    pub dropout: f64,
}

/// The stages of a member of the second family, its scale, and whether it normalises by ImageNet's mean.
#[derive(Clone, Copy, Debug)]
pub(super) struct V2 {
    pub stages: &'static [Stage],
    pub width: f64,
    pub depth: f64,
    pub normalizes: bool,
}

/// A stage: equal blocks, of which the first has the stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    /// Whether expansion and depthwise convolution are one convolution.
    fused: bool,
    kernel: usize,
    repeats: usize,
    filters: [usize; 2],
    expansion: usize,
    stride: usize,
}

const fn mb(kernel: usize, repeats: usize, filters: [usize; 2], by: [usize; 2]) -> Stage {
    Stage { fused: false, kernel, repeats, filters, expansion: by[0], stride: by[1] }
}

const fn fused(repeats: usize, filters: [usize; 2], by: [usize; 2]) -> Stage {
    Stage { fused: true, kernel: 3, repeats, filters, expansion: by[0], stride: by[1] }
}

static STAGES: [Stage; 7] = [
    mb(3, 1, [32, 16], [1, 1]),
    mb(3, 2, [16, 24], [6, 2]),
    mb(5, 2, [24, 40], [6, 2]),
    mb(3, 3, [40, 80], [6, 2]),
    mb(5, 3, [80, 112], [6, 1]),
    mb(5, 4, [112, 192], [6, 2]),
    mb(3, 1, [192, 320], [6, 1]),
];

pub(super) static STAGES_B: [Stage; 6] = [
    fused(1, [32, 16], [1, 1]),
    fused(2, [16, 32], [4, 2]),
    fused(2, [32, 48], [4, 2]),
    mb(3, 3, [48, 96], [4, 2]),
    mb(3, 5, [96, 112], [6, 1]),
    mb(3, 8, [112, 192], [6, 2]),
];

pub(super) static STAGES_S: [Stage; 6] = [
    fused(2, [24, 24], [1, 1]),
    fused(4, [24, 48], [4, 2]),
    fused(4, [48, 64], [4, 2]),
    mb(3, 6, [64, 128], [4, 2]),
    mb(3, 9, [128, 160], [6, 1]),
    mb(3, 15, [160, 256], [6, 2]),
];

pub(super) static STAGES_M: [Stage; 7] = [
    fused(3, [24, 24], [1, 1]),
    fused(5, [24, 48], [4, 2]),
    fused(5, [48, 80], [4, 2]),
    mb(3, 7, [80, 160], [4, 2]),
    mb(3, 14, [160, 176], [6, 1]),
    mb(3, 18, [176, 304], [6, 2]),
    mb(3, 5, [304, 512], [6, 1]),
];

pub(super) static STAGES_L: [Stage; 7] = [
    fused(4, [32, 32], [1, 1]),
    fused(7, [32, 64], [4, 2]),
    fused(7, [64, 96], [4, 2]),
    mb(3, 10, [96, 192], [4, 2]),
    mb(3, 19, [192, 224], [6, 1]),
    mb(3, 25, [224, 384], [6, 2]),
    mb(3, 7, [384, 640], [6, 1]),
];

fn conv_init() -> Initializer {
    Initializer::VarianceScaling {
        scale: 2.0,
        mode: FanMode::FanOut,
        distribution: Distribution::TruncatedNormal,
        seed: None,
    }
}

fn dense_init() -> Initializer {
    Initializer::VarianceScaling {
        scale: 1.0 / 3.0,
        mode: FanMode::FanOut,
        distribution: Distribution::Uniform,
        seed: None,
    }
}

/// What the two families do differently.
#[derive(Clone, Copy)]
struct Style {
    momentum: f64,
    /// Whether strided convolutions are padded by a layer of their own.
    pads: bool,
    depthwise: &'static str,
}

const STYLE_V1: Style = Style { momentum: 0.99, pads: true, depthwise: "dwconv" };
const STYLE_V2: Style = Style { momentum: 0.9, pads: false, depthwise: "dwconv2" };

impl Style {
    fn norm(self, x: &Symbol, name: &str) -> Symbol {
        BatchNormalization::new().axis(3).momentum(self.momentum).named(name).apply(x)
    }

    fn norm_swish(self, x: &Symbol, bn: &str, activation: &str) -> Symbol {
        Activation::new("swish").named(activation).apply(self.norm(x, bn))
    }
}

fn conv(filters: usize, kernel: usize) -> Conv2D {
    Conv2D::new(filters, kernel).padding("same").use_bias(false).kernel_initializer(conv_init())
}

/// A block: its stage with scaled filters, its stride, and the rate at which its branch is dropped.
struct Block<'a> {
    stage: &'a Stage,
    filters: [usize; 2],
    stride: usize,
    drop_rate: f64,
    name: String,
}

impl Block<'_> {
    fn part(&self, part: &str) -> String {
        format!("{}{part}", self.name)
    }

    fn build(&self, style: Style, f: &mut Features) {
        let [from, to] = self.filters;
        let shortcut = f.x.clone();
        let expanded = from * self.stage.expansion;
        let expands = self.stage.expansion != 1;
        if expands {
            let expand = match self.stage.fused {
                true => conv(expanded, self.stage.kernel).strides(self.stride),
                false => conv(expanded, 1),
            };
            let x = expand.named(&self.part("expand_conv")).apply(&f.x);
            f.x = style.norm_swish(&x, &self.part("expand_bn"), &self.part("expand_activation"));
        }
        if !self.stage.fused {
            self.depthwise(style, f);
            f.x = self.excite(&f.x, expanded);
        }
        let project = match self.stage.fused && !expands {
            true => conv(to, self.stage.kernel).strides(self.stride),
            false => conv(to, 1),
        };
        let x = project.named(&self.part("project_conv")).apply(&f.x);
        f.x = style.norm(&x, &self.part("project_bn"));
        if self.stage.fused && !expands {
            f.x = Activation::new("swish").named(&self.part("project_activation")).apply(&f.x);
        }
        if self.stride == 1 && from == to {
            if self.drop_rate > 0.0 {
                let drop =
                    Dropout::new(self.drop_rate).noise_shape([None, Some(1), Some(1), Some(1)]);
                f.x = drop.named(&self.part("drop")).apply(&f.x);
            }
            f.x = Add::new().named(&self.part("add")).apply([&f.x, &shortcut]);
        }
        f.channels = to;
    }

    fn depthwise(&self, style: Style, f: &mut Features) {
        let (kernel, stride) = (self.stage.kernel, self.stride);
        let mut layer = DepthwiseConv2D::new(kernel).strides(stride).use_bias(false);
        layer = layer.depthwise_initializer(conv_init());
        match style.pads && stride == 2 {
            true => f.pad_for(kernel, &self.part("dwconv_pad")),
            false => layer = layer.padding("same"),
        }
        let x = layer.named(&self.part(style.depthwise)).apply(&f.x);
        f.x = style.norm_swish(&x, &self.part("bn"), &self.part("activation"));
    }

    /// Squeeze and excitation: channels are scaled by a function of their means.
    fn excite(&self, x: &Symbol, channels: usize) -> Symbol {
        let squeezed = (self.filters[0] / 4).max(1);
        let conv = |filters, activation: &str| {
            let layer = Conv2D::new(filters, 1).padding("same").activation(activation);
            layer.kernel_initializer(conv_init())
        };
        let y = GlobalAveragePooling2D::new().named(&self.part("se_squeeze")).apply(x);
        let y = Reshape::new([1, 1, channels as i64]).named(&self.part("se_reshape")).apply(&y);
        let y = conv(squeezed, "swish").named(&self.part("se_reduce")).apply(&y);
        let y = conv(channels, "sigmoid").named(&self.part("se_expand")).apply(&y);
        Multiply::new().named(&self.part("se_excite")).apply([x, &y])
    }
}

/// The stages of a network with scaled filters and repeats. `blocks` counts them for the drop rates.
fn stages(
    stages: &[Stage],
    filters: impl Fn(usize) -> usize,
    depth: f64,
    blocks: usize,
    style: Style,
    f: &mut Features,
) {
    let mut index = 0;
    for (number, stage) in stages.iter().enumerate() {
        let [from, to] = stage.filters.map(&filters);
        for (letter, block) in ('a'..).zip(0..repeats(stage, depth)) {
            let first = block == 0;
            let block = Block {
                stage,
                filters: [if first { from } else { to }, to],
                stride: if first { stage.stride } else { 1 },
                drop_rate: DROP_RATE * index as f64 / blocks as f64,
                name: format!("block{}{letter}_", number + 1),
            };
            block.build(style, f);
            index += 1;
        }
    }
}

fn repeats(stage: &Stage, depth: f64) -> usize {
    (stage.repeats as f64 * depth).ceil() as usize
}

fn head(style: Style, filters: usize, x: &Symbol) -> Symbol {
    let x = conv(filters, 1).named("top_conv").apply(x);
    style.norm_swish(&x, "top_bn", "top_activation")
}

pub(super) fn build_v1(scale: V1, app: &Application, mut f: Features) -> Symbol {
    let style = STYLE_V1;
    let filters = |filters: usize| rounded(filters as f64 * scale.width);
    f.x = Rescaling::new(1.0 / 255.0).apply(&f.x);
    f.x = Normalization::new().axis([3]).apply(&f.x);
    if app.has_imagenet_weights() {
        f.x = Rescaling::new(IMAGENET_STDDEV.map(|s| 1.0 / s.sqrt()).to_vec()).apply(&f.x);
    }
    f.pad_for(3, "stem_conv_pad");
    let stem = conv(filters(32), 3).strides(2).padding("valid").named("stem_conv").apply(&f.x);
    f.x = style.norm_swish(&stem, "stem_bn", "stem_activation");
    let blocks = STAGES.iter().map(|stage| repeats(stage, scale.depth)).sum();
    stages(&STAGES, filters, scale.depth, blocks, style, &mut f);
    let x = head(style, filters(1280), &f.x);
    let top = Top { dropout: Some(scale.dropout), dense: Some(dense_init()), ..Top::NAMED };
    app.finish(&x, &top)
}

pub(super) fn build_v2(scale: V2, app: &Application, mut f: Features) -> Symbol {
    let style = STYLE_V2;
    // Unlike the first family, this one may round down by more than a tenth.
    let filters = |filters: usize| ((filters as f64 * scale.width + 4.0) as usize / 8 * 8).max(8);
    if scale.normalizes && f.channels == 3 {
        f.x = Rescaling::new(1.0 / 255.0).apply(&f.x);
        let norm = Normalization::new().axis([3]).mean(IMAGENET_MEAN.to_vec());
        f.x = norm.variance(IMAGENET_STDDEV.map(|s| s * s).to_vec()).apply(&f.x);
    } else {
        f.x = Rescaling::new(1.0 / 128.0).offset(-1.0).apply(&f.x);
    }
    let stem = filters(scale.stages[0].filters[0]);
    let stem = conv(stem, 3).strides(2).named("stem_conv").apply(&f.x);
    f.x = style.norm_swish(&stem, "stem_bn", "stem_activation");
    let blocks = scale.stages.iter().map(|stage| stage.repeats).sum();
    stages(scale.stages, filters, scale.depth, blocks, style, &mut f);
    let x = head(style, filters(1280), &f.x);
    let top = Top {
        dropout: Some(0.2),
        dense: Some(dense_init()),
        bias: Some(Initializer::Constant { value: 0.0 }),
        ..Top::NAMED
    };
    app.finish(&x, &top)
}
