//! MobileNetV2 (Sandler et al. 2018) and MobileNetV3 (Howard et al. 2019), with a width multiplier of 1.

use super::application::{Application, Features, Top, rounded};
use crate::layer::LayerExt;
use crate::layers::{
    Activation, Add, BatchNormalization, Conv2D, DepthwiseConv2D, Dropout, Flatten,
    GlobalAveragePooling2D, Multiply, ReLU, Rescaling,
};
use crate::model::{Apply, Symbol};

/// Filters, blocks and the stride of the first block of the stages of MobileNetV2. All but the first expand six times.
const V2: [(usize, usize, usize); 7] =
    [(16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)];

/// An inverted residual block of MobileNetV3.
struct Block {
    expansion: f64,
    filters: usize,
    kernel: usize,
    stride: usize,
    /// Whether it has a squeeze-and-excitation.
    excited: bool,
    /// Whether it uses hard swish rather than ReLU.
    swish: bool,
}

const fn block(
    expansion: f64,
    filters: usize,
    kernel: usize,
    stride: usize,
    excited: bool,
    swish: bool,
) -> Block {
    Block { expansion, filters, kernel, stride, excited, swish }
}

static SMALL: [Block; 11] = [
    block(1.0, 16, 3, 2, true, false),
    block(72.0 / 16.0, 24, 3, 2, false, false),
    block(88.0 / 24.0, 24, 3, 1, false, false),
    block(4.0, 40, 5, 2, true, true),
    block(6.0, 40, 5, 1, true, true),
    block(6.0, 40, 5, 1, true, true),
    block(3.0, 48, 5, 1, true, true),
    block(3.0, 48, 5, 1, true, true),
    block(6.0, 96, 5, 2, true, true),
    block(6.0, 96, 5, 1, true, true),
    block(6.0, 96, 5, 1, true, true),
];

static LARGE: [Block; 15] = [
    block(1.0, 16, 3, 1, false, false),
    block(4.0, 24, 3, 2, false, false),
    block(3.0, 24, 3, 1, false, false),
    block(3.0, 40, 5, 2, true, false),
    block(3.0, 40, 5, 1, true, false),
    block(3.0, 40, 5, 1, true, false),
    block(6.0, 80, 3, 2, false, true),
    block(2.5, 80, 3, 1, false, true),
    block(2.3, 80, 3, 1, false, true),
    block(2.3, 80, 3, 1, false, true),
    block(6.0, 112, 3, 1, true, true),
    block(6.0, 112, 3, 1, true, true),
    block(6.0, 160, 5, 2, true, true),
    block(6.0, 160, 5, 1, true, true),
    block(6.0, 160, 5, 1, true, true),
];

fn norm(x: &Symbol, name: &str) -> Symbol {
    BatchNormalization::new().momentum(0.999).named(name).apply(x)
}

/// A convolution without bias and its batch normalisation.
fn conv(x: &Symbol, layer: Conv2D, name: &str, bn: &str) -> Symbol {
    norm(&layer.use_bias(false).named(name).apply(x), bn)
}

/// A depthwise convolution, padded by a layer of its own if it has a stride.
fn depthwise(f: &mut Features, kernel: usize, stride: usize, pad: &str, name: &str) {
    let mut layer = DepthwiseConv2D::new(kernel).strides(stride).use_bias(false);
    match stride {
        1 => layer = layer.padding("same"),
        _ => f.pad_for(kernel, pad),
    }
    f.x = layer.named(name).apply(&f.x);
}

pub(super) fn build_v2(app: &Application, mut f: Features) -> Symbol {
    let relu6 = |x: &Symbol, name: &str| ReLU::new().max_value(6.0).named(name).apply(x);
    let stem = Conv2D::new(32, 3).strides(2).padding("same");
    f.x = relu6(&conv(&f.x, stem, "Conv1", "bn_Conv1"), "Conv1_relu");
    f.halve();
    f.channels = 32;
    let mut index = 0;
    for (filters, blocks, stride) in V2 {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let shortcut = (stride == 1 && f.channels == filters).then(|| f.x.clone());
            let prefix = match index {
                0 => "expanded_conv".to_string(),
                _ => format!("block_{index}"),
            };
            let part = |part: &str| format!("{prefix}_{part}");
            if index > 0 {
                let expand = Conv2D::new(6 * f.channels, 1).padding("same");
                let x = conv(&f.x, expand, &part("expand"), &part("expand_BN"));
                f.x = relu6(&x, &part("expand_relu"));
            }
            depthwise(&mut f, 3, stride, &part("pad"), &part("depthwise"));
            let x = norm(&f.x, &part("depthwise_BN"));
            let x = relu6(&x, &part("depthwise_relu"));
            let project = Conv2D::new(filters, 1).padding("same");
            f.x = conv(&x, project, &part("project"), &part("project_BN"));
            f.channels = filters;
            if let Some(shortcut) = shortcut {
                f.x = Add::new().named(&part("add")).apply([&shortcut, &f.x]);
            }
            index += 1;
        }
    }
    let x = conv(&f.x, Conv2D::new(1280, 1), "Conv_1", "Conv_1_bn");
    app.finish(&relu6(&x, "out_relu"), &Top::default())
}

/// ReLU, or hard swish.
fn activation(x: &Symbol, swish: bool) -> Symbol {
    match swish {
        true => Activation::new("hard_swish").apply(x),
        false => ReLU::new().apply(x),
    }
}

/// Squeeze and excitation: channels are scaled by a function of their means.
fn excite(x: &Symbol, channels: usize, part: impl Fn(&str) -> String) -> Symbol {
    let pool = GlobalAveragePooling2D::new().keepdims(true);
    let y = pool.named(&part("squeeze_excite_avg_pool")).apply(x);
    let squeeze = Conv2D::new(rounded(channels as f64 * 0.25), 1).padding("same");
    let y = squeeze.named(&part("squeeze_excite_conv")).apply(&y);
    let y = ReLU::new().named(&part("squeeze_excite_relu")).apply(&y);
    let expand = Conv2D::new(channels, 1).padding("same");
    let y = expand.named(&part("squeeze_excite_conv_1")).apply(&y);
    // Hard sigmoid.
    let y = ReLU::new().max_value(6.0).apply(y + 3.0) * (1.0 / 6.0);
    Multiply::new().named(&part("squeeze_excite_mul")).apply([x, &y])
}

pub(super) fn build_v3(large: bool, app: &Application, mut f: Features) -> Symbol {
    let (blocks, last) = if large { (&LARGE[..], 1280) } else { (&SMALL[..], 1024) };
    f.x = Rescaling::new(1.0 / 127.5).offset(-1.0).apply(&f.x);
    let stem = Conv2D::new(16, 3).strides(2).padding("same");
    f.x = activation(&conv(&f.x, stem, "conv", "conv_bn"), true);
    f.halve();
    f.channels = 16;
    for (index, block) in blocks.iter().enumerate() {
        let prefix = match index {
            0 => "expanded_conv".to_string(),
            _ => format!("expanded_conv_{index}"),
        };
        let part = |part: &str| format!("{prefix}_{part}");
        let shortcut = (block.stride == 1 && f.channels == block.filters).then(|| f.x.clone());
        let expanded = rounded(f.channels as f64 * block.expansion);
        if index > 0 {
            let expand = Conv2D::new(expanded, 1).padding("same");
            let x = conv(&f.x, expand, &part("expand"), &part("expand_bn"));
            f.x = activation(&x, block.swish);
        }
        let (pad, name) = (part("depthwise_pad"), part("depthwise"));
        depthwise(&mut f, block.kernel, block.stride, &pad, &name);
        let mut x = activation(&norm(&f.x, &part("depthwise_bn")), block.swish);
        if block.excited {
            x = excite(&x, expanded, part);
        }
        let project = Conv2D::new(block.filters, 1).padding("same");
        f.x = conv(&x, project, &part("project"), &part("project_bn"));
        f.channels = block.filters;
        if let Some(shortcut) = shortcut {
            f.x = Add::new().named(&part("add")).apply([&shortcut, &f.x]);
        }
    }
    let conv_1 = Conv2D::new(rounded(6.0 * f.channels as f64), 1).padding("same");
    let x = activation(&conv(&f.x, conv_1, "conv_1", "conv_1_bn"), true);
    if !app.include_top {
        return app.finish(&x, &Top::NAMED);
    }
    let x = GlobalAveragePooling2D::new().keepdims(true).apply(&x);
    let x = Conv2D::new(last, 1).padding("same").named("conv_2").apply(&x);
    let x = Dropout::new(0.2).apply(activation(&x, true));
    let x = Conv2D::new(app.classes, 1).padding("same").named("logits").apply(&x);
    let x = Flatten::new().apply(&x);
    Activation::new(app.classifier_activation.clone()).named("predictions").apply(&x)
}
