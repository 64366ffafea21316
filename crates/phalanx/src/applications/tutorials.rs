//! The networks of the tutorials Phalanx grew from, and two small ones for images of 32x32.

use crate::error::{Error, Result};
use crate::layers::{
    Activation, Add, AveragePooling2D, BatchNormalization, Concatenate, Conv2D, Dense, Dropout,
    Flatten, GlobalAveragePooling2D, MaxPooling2D,
};
use crate::model::{Apply, Input, Model, Sequential, Symbol};
use crate::regularizers::Regularizer;

/// The multilayer perceptron of the guide: two hidden layers of 256 units on `pixels` inputs (784 for MNIST),
/// with logits as output.
pub fn mnist_mlp(pixels: usize, classes: usize) -> Result<Model> {
    let inputs = Input::new([pixels]).symbol();
    let x = Dense::new(256).activation("relu").apply(&inputs);
    let x = Dense::new(256).activation("relu").apply(&x);
    let outputs = Dense::new(classes).apply(&x);
    Model::with_name("mnist_mlp", &inputs, &outputs)
}

/// The convolutional network of the MirroredStrategy tutorial, for images such as MNIST's `[28, 28, 1]`.
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

/// A 1x1 and a 3x3 convolution in parallel.
fn inception(x: &Symbol, ones: usize, threes: usize) -> Symbol {
    let a = conv_module(x, ones, 1, 1, "same");
    let b = conv_module(x, threes, 3, 1, "same");
    Concatenate::new().apply([&a, &b])
}

/// A strided convolution and a pooling in parallel, which halve the size.
fn downsample(x: &Symbol, filters: usize) -> Symbol {
    let a = conv_module(x, filters, 3, 2, "valid");
    let b = MaxPooling2D::new(3).strides(2).apply(x);
    Concatenate::new().apply([&a, &b])
}

/// MiniGoogLeNet (Zhang et al. 2017) for images of 32x32 or slightly more, with a classification top for
/// `classes`. Without a top (`None`) the output is the last feature map, for a new head.
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

/// A convolution of ResNet20, initialised and regularised as by the authors of the network.
fn regularized_conv(filters: usize, size: usize, stride: usize) -> Conv2D {
    Conv2D::new(filters, size)
        .strides(stride)
        .padding("same")
        .kernel_initializer("he_normal")
        .kernel_regularizer(Regularizer::l2(1e-4))
}

/// Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the size changes.
fn basic_block(x: &Symbol, filters: usize, stride: usize) -> Symbol {
    let y = BatchNormalization::new().apply(regularized_conv(filters, 3, stride).apply(x));
    let y = Activation::new("relu").apply(&y);
    let y = BatchNormalization::new().apply(regularized_conv(filters, 3, 1).apply(&y));
    let shortcut =
        if stride == 1 { x.clone() } else { regularized_conv(filters, 1, stride).apply(x) };
    Activation::new("relu").apply(Add::new().apply([&shortcut, &y]))
}

/// ResNet20 for small images (He et al. 2015, version 1, as in Keras' CIFAR-10 example), with a classification
/// top for `classes`. Without a top (`None`) the output is the last feature map.
pub fn resnet20(input: [usize; 3], classes: Option<usize>) -> Result<Model> {
    let inputs = Input::new(input).symbol();
    let x = BatchNormalization::new().apply(regularized_conv(16, 3, 1).apply(&inputs));
    let mut x = Activation::new("relu").apply(&x);
    for (filters, stride) in [(16, 1), (32, 2), (64, 2)] {
        x = basic_block(&x, filters, stride);
        x = basic_block(&x, filters, 1);
        x = basic_block(&x, filters, 1);
    }
    if let Some(classes) = classes {
        x = GlobalAveragePooling2D::new().apply(&x);
        x = Dense::new(classes).activation("softmax").kernel_initializer("he_normal").apply(&x);
    }
    Model::with_name("resnet20", &inputs, &x)
}

/// VGG-11 with batch normalisation (Simonyan and Zisserman 2014) for images of 32x32 or more. The top is one
/// dense layer for `classes` on the mean of the last feature map. Without a top (`None`) the output is that
/// map.
pub fn vgg11(input: [usize; 3], classes: Option<usize>) -> Result<Model> {
    if input[0] < 32 || input[1] < 32 {
        let received = format!("{}x{}", input[0], input[1]);
        return Err(Error::argument("vgg11", "input", "32x32 or more", received));
    }
    let inputs = Input::new(input).symbol();
    let mut x = inputs.clone();
    for stage in [&[64][..], &[128], &[256, 256], &[512, 512], &[512, 512]] {
        for filters in stage {
            x = conv_module(&x, *filters, 3, 1, "same");
        }
        x = MaxPooling2D::new(2).apply(&x);
    }
    if let Some(classes) = classes {
        x = GlobalAveragePooling2D::new().apply(&x);
        x = Dense::new(classes).activation("softmax").apply(&x);
    }
    Model::with_name("vgg11", &inputs, &x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::applications::resnet50;

    /// The numbers are from the summaries of Keras and PyTorch. PyTorch does not count moving statistics.
    #[test]
    fn parameter_counts_match_keras_and_pytorch() {
        let counts = |model: Model| (model.count_params(), model.summary().trainable);
        assert_eq!(counts(resnet20([32, 32, 3], Some(10)).unwrap()), (274_442, 273_066));
        assert_eq!(counts(vgg11([32, 32, 3], Some(10)).unwrap()), (9_236_618, 9_231_114));
        let resnet50 = resnet50([224, 224, 3], Some(1000)).unwrap();
        assert_eq!(counts(resnet50), (25_636_712, 25_583_592));
        assert_eq!(mnist_mlp(784, 10).unwrap().count_params(), 269_322);
        assert_eq!(mnist_cnn([28, 28, 1], 10).unwrap().count_params(), 347_146);
        assert!(mini_googlenet([64, 64, 1], Some(3)).is_ok());
    }

    #[test]
    fn feature_maps_shrink_with_the_input() {
        let map = |model: Model| {
            let summary = model.summary();
            summary.rows.last().map(|row| row.shape.clone()).unwrap_or_default()
        };
        assert_eq!(map(resnet20([32, 32, 3], None).unwrap()), "(None, 8, 8, 64)");
        assert_eq!(map(resnet20([20, 33, 1], None).unwrap()), "(None, 5, 9, 64)");
        assert_eq!(map(vgg11([32, 32, 3], None).unwrap()), "(None, 1, 1, 512)");
        assert_eq!(map(vgg11([64, 100, 1], None).unwrap()), "(None, 2, 3, 512)");
        let text = vgg11([31, 64, 3], Some(10)).err().map(|e| e.to_string());
        let text = text.unwrap_or_default();
        assert_eq!(text, "vgg11: input: expected 32x32 or more, received 31x64");
    }
}
