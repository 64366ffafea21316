//! Ready-made models: the networks of `keras.applications`, a vision transformer, GPT-2, and the networks of the tutorials.

mod application;
mod convnext;
mod densenet;
mod efficientnet;
mod mobilenet;
mod resnet;
mod sequence;
mod transformer;
mod tutorials;
mod vgg;
mod weights;

pub use application::{Application, InputMode, names};
pub use sequence::{text_cnn, text_lstm};
pub use transformer::{Gpt2, VisionTransformer, text_transformer};
pub use tutorials::{mini_googlenet, mnist_cnn, mnist_mlp, resnet20, vgg11};
pub use weights::Preset;

use crate::error::{Error, Result};
use crate::model::Model;
use phalanx_graph::Tensor;
use std::path::Path;

/// ResNet50 as in `keras.applications`, with a classification top for `classes`. Without a top (`None`) the
/// output is the last feature map, for a new head.
pub fn resnet50(input: [usize; 3], classes: Option<usize>) -> Result<Model> {
    resnet50_application(input, classes)?.build()
}

/// ResNet50 with weights from a file: one of the official ImageNet `.h5` files, in the current version or the
/// older one (with layers such as `res2a_branch2a`), with or without a top, or any weights file of the same
/// network.
///
/// If `classes` is `None`, the top in the file is ignored. If the file has no top, a new top is initialised.
///
/// # Errors
/// A file that is damaged, or that belongs to another network or another number of classes.
pub fn resnet50_from(
    path: impl AsRef<Path>,
    input: [usize; 3],
    classes: Option<usize>,
) -> Result<Model> {
    resnet50_application(input, classes)?.weights(path.as_ref()).build()
}

fn resnet50_application(input: [usize; 3], classes: Option<usize>) -> Result<Application> {
    let app = Application::new("resnet50")?.input_shape(input).include_top(classes.is_some());
    Ok(app.classes(classes.unwrap_or(application::IMAGENET_CLASSES)))
}

/// Converts images (red, green, blue from 0 to 255) to the input of ResNet50's ImageNet weights: channels in
/// the order blue, green, red, with the mean of each channel subtracted.
///
/// # Errors
/// Images without a last axis of three floats.
pub fn resnet50_preprocess(images: &Tensor) -> Result<Tensor> {
    InputMode::Caffe.apply(images)
}

impl InputMode {
    /// The factor and offset of each channel in the network's order, and whether that order is blue, green, red.
    pub fn channels(self) -> ([(f32, f32); 3], bool) {
        match self {
            InputMode::Caffe => ([103.939f32, 116.779, 123.68].map(|mean| (1.0, -mean)), true),
            InputMode::Tf => ([(1.0 / 127.5, -1.0); 3], false),
            InputMode::Torch => {
                let means = [(0.485f32, 0.229f32), (0.456, 0.224), (0.406, 0.225)];
                (means.map(|(mean, dev)| (1.0 / (255.0 * dev), -mean / dev)), false)
            }
            InputMode::Raw => ([(1.0, 0.0); 3], false),
        }
    }

    /// Converts images (red, green, blue from 0 to 255) to the input of a network's ImageNet weights.
    ///
    /// # Errors
    /// Images without a last axis of three floats.
    pub fn apply(self, images: &Tensor) -> Result<Tensor> {
        let dims = images.dims();
        let Some(values) = images.f32().filter(|_| dims.last() == Some(&3)) else {
            let received = format!("{} {dims:?}", images.dtype());
            let expected = "floats with a last axis of 3";
            return Err(Error::argument("preprocessing", "images", expected, received));
        };
        let (channels, reversed) = self.channels();
        let pixel = |p: &[f32; 3]| {
            let p = if reversed { [p[2], p[1], p[0]] } else { *p };
            [0, 1, 2].map(|i| p[i] * channels[i].0 + channels[i].1)
        };
        let values: Vec<f32> = values.as_chunks().0.iter().flat_map(pixel).collect();
        Ok(Tensor::new(dims, values)?)
    }
}

#[cfg(test)]
mod tests;
