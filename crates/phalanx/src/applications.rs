//! The networks of the tutorials Phalanx grew from, and ResNet50, ready to compile.

use crate::error::Result;
use crate::layer::LayerExt;
use crate::layers::{
    Activation, Add, AveragePooling2D, BatchNormalization, Concatenate, Conv2D, Dense, Dropout,
    Flatten, GlobalAveragePooling2D, MaxPooling2D, ZeroPadding2D,
};
use crate::model::{Apply, Input, Model, Sequential, Symbol};
use crate::regularizers::Regularizer;

/// The guide's perceptron: two hidden layers of 256 on so many pixels (784 of MNIST), logits out.
pub fn mnist_mlp(pixels: usize, classes: usize) -> Result<Model> {
    let inputs = Input::new([pixels]).symbol();
    let x = Dense::new(256).activation("relu").apply(&inputs);
    let x = Dense::new(256).activation("relu").apply(&x);
    let outputs = Dense::new(classes).apply(&x);
    Model::with_name("mnist_mlp", &inputs, &outputs)
}

/// The MirroredStrategy tutorial's convolutional network on images such as MNIST's `[28, 28, 1]`.
pub fn mnist_cnn(input: [usize; 3], classes: usize) -> Result<Model> {
    Sequential::new()
        .named("mnist_cnn")
        .add(Input::new(input))
        .add(Conv2D::new(32, 3).activation("relu"))
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(64).activation("relu"))
        .add(Dense::new(classes).activation("softmax"))
        .build()
}

/// Convolution, batch normalisation, ReLU.
fn conv_module(x: &Symbol, filters: usize, size: usize, stride: usize, padding: &str) -> Symbol {
    let x = Conv2D::new(filters, size).strides(stride).padding(padding).apply(x);
    let x = BatchNormalization::new().apply(&x);
    Activation::new("relu").apply(&x)
}

/// A 1x1 and a 3x3 convolution side by side.
fn inception(x: &Symbol, ones: usize, threes: usize) -> Symbol {
    let a = conv_module(x, ones, 1, 1, "same");
    let b = conv_module(x, threes, 3, 1, "same");
    Concatenate::new().apply([&a, &b])
}

/// A strided convolution and a pooling side by side: half the size.
fn downsample(x: &Symbol, filters: usize) -> Symbol {
    let a = conv_module(x, filters, 3, 2, "valid");
    let b = MaxPooling2D::new(3).strides(2).apply(x);
    Concatenate::new().apply([&a, &b])
}

/// MiniGoogLeNet for images of 32x32 or a bit more (Zhang et al. 2017), with `classes` for the top or without one
/// (`None`): then the output is the last feature map, to build a new head on.
pub fn mini_googlenet(input: [usize; 3], classes: Option<usize>) -> Result<Model> {
    let inputs = Input::new(input).symbol();
    let mut x = conv_module(&inputs, 96, 3, 1, "same");
    for (ones, threes) in [(32, 32), (32, 48)] {
        x = inception(&x, ones, threes);
    }
    x = downsample(&x, 80);
    for (ones, threes) in [(112, 48), (96, 64), (80, 80), (48, 96)] {
        x = inception(&x, ones, threes);
    }
    x = downsample(&x, 96);
    for (ones, threes) in [(176, 160), (176, 160)] {
        x = inception(&x, ones, threes);
    }
    if let Some(classes) = classes {
        x = AveragePooling2D::new(7).apply(&x);
        x = Dropout::new(0.5).apply(&x);
        x = Flatten::new().apply(&x);
        x = Dense::new(classes).activation("softmax").apply(&x);
    }
    Model::with_name("mini_googlenet", &inputs, &x)
}

/// A 3x3 convolution of ResNet20.
fn conv_he(x: &Symbol, filters: usize, size: usize, stride: usize) -> Symbol {
    let conv = Conv2D::new(filters, size).strides(stride).padding("same");
    conv.kernel_initializer("he_normal").kernel_regularizer(Regularizer::l2(1e-4)).apply(x)
}

/// ResNet20 for small images (He et al. 2015), as Keras' CIFAR-10 example has it.
pub fn resnet20(input: [usize; 3], classes: usize) -> Result<Model> {
    let normed = |x: &Symbol| BatchNormalization::new().apply(x);
    let relu = |x: &Symbol| Activation::new("relu").apply(x);
    let inputs = Input::new(input).symbol();
    let mut x = relu(&normed(&conv_he(&inputs, 16, 3, 1)));
    for (stage, filters) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..3 {
            let shrinks = stage > 0 && block == 0;
            let stride = if shrinks { 2 } else { 1 };
            let y = relu(&normed(&conv_he(&x, filters, 3, stride)));
            let y = normed(&conv_he(&y, filters, 3, 1));
            let shortcut = if shrinks { conv_he(&x, filters, 1, stride) } else { x };
            x = relu(&Add::new().apply([&shortcut, &y]));
        }
    }
    let x = GlobalAveragePooling2D::new().apply(&x);
    let x = Dense::new(classes).activation("softmax").kernel_initializer("he_normal").apply(&x);
    Model::with_name("resnet20", &inputs, &x)
}

/// VGG11 (Simonyan and Zisserman 2014) for images of 32x32 and more, with batch normalisation and one
/// dense layer, as is usual for CIFAR.
pub fn vgg11(input: [usize; 3], classes: usize) -> Result<Model> {
    let inputs = Input::new(input).symbol();
    let mut x = inputs.clone();
    for (filters, convolutions) in [(64, 1), (128, 1), (256, 2), (512, 2), (512, 2)] {
        for _ in 0..convolutions {
            x = conv_module(&x, filters, 3, 1, "same");
        }
        x = MaxPooling2D::new(2).apply(&x);
    }
    let x = Flatten::new().apply(&x);
    let x = Dense::new(classes).activation("softmax").apply(&x);
    Model::with_name("vgg11", &inputs, &x)
}

/// A convolution of ResNet50 with its batch normalisation, under Keras' names.
fn named_conv(x: &Symbol, conv: Conv2D, name: &str) -> Symbol {
    let x = conv.named(&format!("{name}_conv")).apply(x);
    BatchNormalization::new().epsilon(1.001e-5).named(&format!("{name}_bn")).apply(&x)
}

fn bottleneck(x: &Symbol, filters: usize, stride: usize, project: bool, name: &str) -> Symbol {
    let relu =
        |x: &Symbol, part: &str| Activation::new("relu").named(&format!("{name}_{part}")).apply(x);
    let shortcut = if project {
        named_conv(x, Conv2D::new(4 * filters, 1).strides(stride), &format!("{name}_0"))
    } else {
        x.clone()
    };
    let y = named_conv(x, Conv2D::new(filters, 1).strides(stride), &format!("{name}_1"));
    let y = relu(&y, "1_relu");
    let y = named_conv(&y, Conv2D::new(filters, 3).padding("same"), &format!("{name}_2"));
    let y = relu(&y, "2_relu");
    let y = named_conv(&y, Conv2D::new(4 * filters, 1), &format!("{name}_3"));
    let y = Add::new().named(&format!("{name}_add")).apply([&shortcut, &y]);
    relu(&y, "out")
}

/// ResNet50 as Keras' applications have it, with `classes` for the top or without one (`None`):
/// then the output is the last feature map, to build a new head on.
pub fn resnet50(input: [usize; 3], classes: Option<usize>) -> Result<Model> {
    let inputs = Input::new(input).symbol();
    let x = ZeroPadding2D::new(3).named("conv1_pad").apply(&inputs);
    let x = named_conv(&x, Conv2D::new(64, 7).strides(2), "conv1");
    let x = Activation::new("relu").named("conv1_relu").apply(&x);
    let x = ZeroPadding2D::new(1).named("pool1_pad").apply(&x);
    let mut x = MaxPooling2D::new(3).strides(2).named("pool1_pool").apply(&x);
    for (stage, (filters, blocks, stride)) in
        [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)].into_iter().enumerate()
    {
        for block in 1..=blocks {
            let first = block == 1;
            let name = format!("conv{}_block{block}", stage + 2);
            x = bottleneck(&x, filters, if first { stride } else { 1 }, first, &name);
        }
    }
    if let Some(classes) = classes {
        x = GlobalAveragePooling2D::new().named("avg_pool").apply(&x);
        x = Dense::new(classes).activation("softmax").named("predictions").apply(&x);
    }
    Model::with_name("resnet50", &inputs, &x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters as the originals count them.
    #[test]
    fn networks_have_the_parameters_of_their_originals() {
        let small = [32, 32, 3];
        assert_eq!(resnet20(small, 10).unwrap().count_params(), 274_442);
        let vgg = vgg11(small, 10).unwrap().summary();
        assert_eq!((vgg.trainable, vgg.non_trainable), (9_231_114, 5_504));
        assert_eq!(mnist_mlp(784, 10).unwrap().count_params(), 269_322);
        assert_eq!(mnist_cnn([28, 28, 1], 10).unwrap().count_params(), 347_146);
        assert!(mini_googlenet([64, 64, 1], Some(3)).is_ok());
    }
}
