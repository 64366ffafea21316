//! DenseNet (Huang et al. 2016): every layer of a block reads the outputs of all layers before it.

use super::application::{Application, EPSILON, Features, Top};
use crate::layer::LayerExt;
use crate::layers::{
    Activation, AveragePooling2D, BatchNormalization, Concatenate, Conv2D, MaxPooling2D,
    ZeroPadding2D,
};
use crate::model::{Apply, Symbol};

/// Channels that a layer adds.
const GROWTH: usize = 32;

/// Batch normalisation and ReLU, with these suffixes after `name`.
fn normalized(x: &Symbol, name: &str, bn: &str, relu: &str) -> Symbol {
    let bn = BatchNormalization::new().axis(3).epsilon(EPSILON).named(&format!("{name}{bn}"));
    Activation::new("relu").named(&format!("{name}{relu}")).apply(bn.apply(x))
}

fn conv(x: &Symbol, layer: Conv2D, name: &str) -> Symbol {
    layer.use_bias(false).named(name).apply(x)
}

/// Four dense blocks with these numbers of layers, and a transition that halves size and channels after the first three.
pub(super) fn build(blocks: [usize; 4], app: &Application, f: Features) -> Symbol {
    let x = ZeroPadding2D::new(3).apply(&f.x);
    let x = conv(&x, Conv2D::new(64, 7).strides(2), "conv1_conv");
    let x = normalized(&x, "conv1", "_bn", "_relu");
    let x = ZeroPadding2D::new(1).apply(&x);
    let mut x = MaxPooling2D::new(3).strides(2).named("pool1").apply(&x);
    let mut channels = 64;
    for (block, layers) in blocks.into_iter().enumerate() {
        for layer in 1..=layers {
            let name = format!("conv{}_block{layer}", block + 2);
            let y = normalized(&x, &name, "_0_bn", "_0_relu");
            let y = conv(&y, Conv2D::new(4 * GROWTH, 1), &format!("{name}_1_conv"));
            let y = normalized(&y, &name, "_1_bn", "_1_relu");
            let y = conv(&y, Conv2D::new(GROWTH, 3).padding("same"), &format!("{name}_2_conv"));
            x = Concatenate::new().axis(3).named(&format!("{name}_concat")).apply([&x, &y]);
            channels += GROWTH;
        }
        if block < 3 {
            let name = format!("pool{}", block + 2);
            channels /= 2;
            let y = normalized(&x, &name, "_bn", "_relu");
            let y = conv(&y, Conv2D::new(channels, 1), &format!("{name}_conv"));
            x = AveragePooling2D::new(2).strides(2).named(&format!("{name}_pool")).apply(&y);
        }
    }
    app.finish(&normalized(&x, "", "bn", "relu"), &Top::NAMED)
}
