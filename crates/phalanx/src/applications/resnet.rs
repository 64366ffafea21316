//! ResNet (He et al. 2015) and its second version, which normalises before the convolutions (He et al. 2016).

use super::application::{Application, EPSILON, Features, Top};
use crate::layer::LayerExt;
use crate::layers::{Activation, Add, BatchNormalization, Conv2D, MaxPooling2D, ZeroPadding2D};
use crate::model::{Apply, Symbol};

/// The filters of the four stages.
const FILTERS: [usize; 4] = [64, 128, 256, 512];

/// The layers of one network, all of whose batch normalisations have the same epsilon.
struct Layers {
    epsilon: f64,
}

impl Layers {
    fn norm(&self, x: &Symbol, name: &str) -> Symbol {
        BatchNormalization::new().axis(3).epsilon(self.epsilon).named(name).apply(x)
    }

    fn norm_relu(&self, x: &Symbol, bn: &str, relu: &str) -> Symbol {
        Activation::new("relu").named(relu).apply(self.norm(x, bn))
    }

    /// A convolution with its batch normalisation.
    fn conv_norm(&self, x: &Symbol, conv: Conv2D, name: &str) -> Symbol {
        self.norm(&conv.named(&format!("{name}_conv")).apply(x), &format!("{name}_bn"))
    }

    /// A block of version 1. Its shortcut is a convolution if `project`.
    fn block_v1(&self, x: &Symbol, block: &Block, name: &str) -> Symbol {
        let &Block { filters, stride, project } = block;
        let relu = |x: &Symbol, part: &str| {
            Activation::new("relu").named(&format!("{name}_{part}")).apply(x)
        };
        let conv = |x: &Symbol, conv, part| self.conv_norm(x, conv, &format!("{name}_{part}"));
        let shortcut = match project {
            true => conv(x, Conv2D::new(4 * filters, 1).strides(stride), 0),
            false => x.clone(),
        };
        let y = relu(&conv(x, Conv2D::new(filters, 1).strides(stride), 1), "1_relu");
        let y = relu(&conv(&y, Conv2D::new(filters, 3).padding("same"), 2), "2_relu");
        let y = conv(&y, Conv2D::new(4 * filters, 1), 3);
        let y = Add::new().named(&format!("{name}_add")).apply([&shortcut, &y]);
        relu(&y, "out")
    }

    /// A block of version 2. Its shortcut is a convolution if `project`, a pooling if the block has a stride.
    fn block_v2(&self, x: &Symbol, block: &Block, name: &str) -> Symbol {
        let &Block { filters, stride, project } = block;
        let part = |part: &str| format!("{name}_{part}");
        let before = self.norm_relu(x, &part("preact_bn"), &part("preact_relu"));
        let shortcut = match (project, stride) {
            (true, _) => {
                Conv2D::new(4 * filters, 1).strides(stride).named(&part("0_conv")).apply(&before)
            }
            (false, 1) => x.clone(),
            (false, _) => MaxPooling2D::new(1).strides(stride).apply(x),
        };
        let y = Conv2D::new(filters, 1).use_bias(false).named(&part("1_conv")).apply(&before);
        let y = self.norm_relu(&y, &part("1_bn"), &part("1_relu"));
        let y = ZeroPadding2D::new(1).named(&part("2_pad")).apply(&y);
        let conv = Conv2D::new(filters, 3).strides(stride).use_bias(false);
        let y = conv.named(&part("2_conv")).apply(&y);
        let y = self.norm_relu(&y, &part("2_bn"), &part("2_relu"));
        let y = Conv2D::new(4 * filters, 1).named(&part("3_conv")).apply(&y);
        Add::new().named(&part("out")).apply([&shortcut, &y])
    }
}

/// The filters of a block, its stride, and whether its shortcut is a convolution.
struct Block {
    filters: usize,
    stride: usize,
    project: bool,
}

/// Four stages of `blocks` each. Version 1 has its stride in the first block of a stage, version 2 in the last.
pub(super) fn build(blocks: [usize; 4], v2: bool, app: &Application, f: Features) -> Symbol {
    let layers = Layers { epsilon: app.resnet_epsilon.unwrap_or(EPSILON) };
    let x = ZeroPadding2D::new(3).named("conv1_pad").apply(&f.x);
    let mut x = Conv2D::new(64, 7).strides(2).named("conv1_conv").apply(&x);
    if !v2 {
        x = layers.norm_relu(&x, "conv1_bn", "conv1_relu");
    }
    let x = ZeroPadding2D::new(1).named("pool1_pad").apply(&x);
    let mut x = MaxPooling2D::new(3).strides(2).named("pool1_pool").apply(&x);
    for (stage, (filters, blocks)) in FILTERS.into_iter().zip(blocks).enumerate() {
        for block in 1..=blocks {
            let name = format!("conv{}_block{block}", stage + 2);
            let project = block == 1;
            let strided = if v2 { block == blocks && stage < 3 } else { project && stage > 0 };
            let block = Block { filters, stride: if strided { 2 } else { 1 }, project };
            x = match v2 {
                true => layers.block_v2(&x, &block, &name),
                false => layers.block_v1(&x, &block, &name),
            };
        }
    }
    if v2 {
        x = layers.norm_relu(&x, "post_bn", "post_relu");
    }
    app.finish(&x, &Top::NAMED)
}
