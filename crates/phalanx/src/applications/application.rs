//! A network of `keras.applications`: its table of configurations, its arguments, and the parts that all families share.

use super::convnext::ConvNeXt;
use super::efficientnet::{STAGES_B, STAGES_L, STAGES_M, STAGES_S, V1, V2};
use super::weights::{self, Files, Preset};
use super::{convnext, densenet, efficientnet, mobilenet, resnet, vgg};
use crate::activations::ActivationFn;
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::LayerExt;
use crate::layers::{Dense, Dropout, GlobalAveragePooling2D, GlobalMaxPooling2D, ZeroPadding2D};
use crate::model::{Apply, Input, Model, Symbol};
use std::path::PathBuf;

/// The epsilon of the batch normalisations of ResNet and DenseNet.
pub(super) const EPSILON: f64 = 1.001e-5;
/// The smallest side of an image.
const MIN_SIDE: usize = 32;
/// The number of ImageNet's classes.
pub(super) const IMAGENET_CLASSES: usize = 1000;

/// The configuration of a network within its family.
#[derive(Clone, Copy, Debug)]
enum Family {
    ResNet { blocks: [usize; 4], v2: bool },
    Vgg([usize; 5]),
    DenseNet([usize; 4]),
    MobileNetV2,
    MobileNetV3 { large: bool },
    EfficientNet(V1),
    EfficientNetV2(V2),
    ConvNeXt(ConvNeXt),
}

/// One network.
#[derive(Debug)]
pub(super) struct Architecture {
    /// The name that users write.
    pub name: &'static str,
    /// The name that Keras gives the model.
    keras_name: &'static str,
    /// The side of the images that it was designed for.
    side: usize,
    family: Family,
    /// The official weights.
    pub files: Files,
}

const fn entry(
    name: &'static str,
    keras_name: &'static str,
    side: usize,
    family: Family,
    files: Files,
) -> Architecture {
    Architecture { name, keras_name, side, family, files }
}

const fn resnet(
    name: &'static str,
    blocks: [usize; 4],
    v2: bool,
    sums: [&'static str; 2],
) -> Architecture {
    entry(name, name, 224, Family::ResNet { blocks, v2 }, Files::tf_kernels("resnet/", name, sums))
}

const fn densenet(name: &'static str, blocks: [usize; 4], sums: [&'static str; 2]) -> Architecture {
    entry(name, name, 224, Family::DenseNet(blocks), Files::tf_kernels("densenet/", name, sums))
}

const fn efficientnet(
    names: [&'static str; 2],
    side: usize,
    [width, depth, dropout]: [f64; 3],
    sums: [&'static str; 2],
) -> Architecture {
    let family = Family::EfficientNet(V1 { width, depth, dropout });
    entry(names[0], names[1], side, family, Files::plain(weights::EFFICIENTNET, names[1], sums))
}

const fn efficientnet_v2(
    names: [&'static str; 2],
    side: usize,
    scale: V2,
    sums: [&'static str; 2],
) -> Architecture {
    let files = Files::plain(weights::EFFICIENTNET_V2, names[1], sums);
    entry(names[0], names[1], side, Family::EfficientNetV2(scale), files)
}

/// The scale of a B member of EfficientNetV2.
const fn v2_b(width: f64, depth: f64) -> V2 {
    V2 { stages: &STAGES_B, width, depth, normalizes: true }
}

const fn v2_l(stages: &'static [efficientnet::Stage]) -> V2 {
    V2 { stages, width: 1.0, depth: 1.0, normalizes: false }
}

const fn convnext(
    names: [&'static str; 2],
    third: usize,
    width: usize,
    sums: [&'static str; 2],
) -> Architecture {
    let widths = [width, 2 * width, 4 * width, 8 * width];
    let family = Family::ConvNeXt(ConvNeXt { depths: [3, 3, third, 3], widths });
    entry(names[0], names[1], 224, family, Files::plain(weights::CONVNEXT, names[1], sums))
}

/// All networks. The checksums are those in Keras' source: MD5, for ConvNeXt SHA-256.
#[rustfmt::skip]
static ARCHITECTURES: [Architecture; 34] = [
    resnet("resnet50", [3, 4, 6, 3], false, ["2cb95161c43110f7111970584f804107", "4d473c1dd8becc155b73f8504c6f6626"]),
    resnet("resnet101", [3, 4, 23, 3], false, ["f1aeb4b969a6efcfb50fad2f0c20cfc5", "88cf7a10940856eca736dc7b7e228a21"]),
    resnet("resnet152", [3, 8, 36, 3], false, ["100835be76be38e30d865e96f2aaae62", "ee4c566cf9a93f14d82f913c2dc6dd0c"]),
    resnet("resnet50v2", [3, 4, 6, 3], true, ["3ef43a0b657b3be2300d5770ece849e0", "fac2f116257151a9d068a22e544a4917"]),
    resnet("resnet101v2", [3, 4, 23, 3], true, ["6343647c601c52e1368623803854d971", "c0ed64b8031c3730f411d2eb4eea35b5"]),
    resnet("resnet152v2", [3, 8, 36, 3], true, ["a49b44d1979771252814e80f8ec446f9", "ed17cf2e0169df9d443503ef94b23b33"]),
    entry("vgg16", "vgg16", 224, Family::Vgg([2, 2, 3, 3, 3]),
        Files::tf_kernels("vgg16/", "vgg16", ["64373286793e3c8b2b4e3219cbf3544b", "6d6bbae143d832006294945121d1f1fc"])),
    entry("vgg19", "vgg19", 224, Family::Vgg([2, 2, 4, 4, 4]),
        Files::tf_kernels("vgg19/", "vgg19", ["cbe5617147190e668d6c5d5026f83318", "253f8cb515780f3b799900260a226db6"])),
    densenet("densenet121", [6, 12, 24, 16], ["9d60b8095a5708f2dcce2bca79d332c7", "30ee3e1110167f948a6b9946edeeb738"]),
    densenet("densenet169", [6, 12, 32, 32], ["d699b8f76981ab1b30698df4c175e90b", "b8c4d4c20dd625c148057b9ff1c1176b"]),
    densenet("densenet201", [6, 12, 48, 32], ["1ceb130c1ea1b78c3bf6114dbdfd8807", "c13680b51ded0fb44dff2d8f86ac8bb1"]),
    entry("mobilenet-v2", "mobilenetv2_1.00", 224, Family::MobileNetV2, Files::MOBILENET_V2),
    entry("mobilenet-v3-small", "MobileNetV3Small", 224, Family::MobileNetV3 { large: false },
        Files::mobilenet_v3("small", ["8768d4c2e7dee89b9d02b2d03d65d862", "d3e8ec802a04aa4fc771ee12a9a9b836"])),
    entry("mobilenet-v3-large", "MobileNetV3Large", 224, Family::MobileNetV3 { large: true },
        Files::mobilenet_v3("large", ["59e551e166be033d707958cf9e29a6a7", "07fb09a5933dd0c8eaafa16978110389"])),
    efficientnet(["efficientnet-b0", "efficientnetb0"], 224, [1.0, 1.0, 0.2], ["902e53a9f72be733fc0bcb005b3ebbac", "50bc09e76180e00e4465e1a485ddc09d"]),
    efficientnet(["efficientnet-b1", "efficientnetb1"], 240, [1.0, 1.1, 0.2], ["1d254153d4ab51201f1646940f018540", "74c4e6b3e1f6a1eea24c589628592432"]),
    efficientnet(["efficientnet-b2", "efficientnetb2"], 260, [1.1, 1.2, 0.3], ["b15cce36ff4dcbd00b6dd88e7857a6ad", "111f8e2ac8aa800a7a99e3239f7bfb39"]),
    efficientnet(["efficientnet-b3", "efficientnetb3"], 300, [1.2, 1.4, 0.3], ["ffd1fdc53d0ce67064dc6a9c7960ede0", "af6d107764bb5b1abb91932881670226"]),
    efficientnet(["efficientnet-b4", "efficientnetb4"], 380, [1.4, 1.8, 0.4], ["18c95ad55216b8f92d7e70b3a046e2fc", "ebc24e6d6c33eaebbd558eafbeedf1ba"]),
    efficientnet(["efficientnet-b5", "efficientnetb5"], 456, [1.6, 2.2, 0.4], ["ace28f2a6363774853a83a0b21b9421a", "38879255a25d3c92d5e44e04ae6cec6f"]),
    efficientnet(["efficientnet-b6", "efficientnetb6"], 528, [1.8, 2.6, 0.5], ["165f6e37dce68623721b423839de8be5", "9ecce42647a20130c1f39a5d4cb75743"]),
    efficientnet(["efficientnet-b7", "efficientnetb7"], 600, [2.0, 3.1, 0.5], ["8c03f828fec3ef71311cd463b6759d99", "cbcfe4450ddf6f3ad90b1b398090fe4a"]),
    efficientnet_v2(["efficientnet-v2-b0", "efficientnetv2-b0"], 224, v2_b(1.0, 1.0), ["21ecbf6da12460d5c40bb2f29ceb2188", "893217f2bb855e2983157299931e43ff"]),
    efficientnet_v2(["efficientnet-v2-b1", "efficientnetv2-b1"], 240, v2_b(1.0, 1.1), ["069f0534ff22adf035c89e2d9547a9dc", "0e80663031ca32d657f9caa404b6ec37"]),
    efficientnet_v2(["efficientnet-v2-b2", "efficientnetv2-b2"], 260, v2_b(1.1, 1.2), ["424e49f28180edbde1e94797771950a7", "1dfe2e7a5d45b6632553a8961ea609eb"]),
    efficientnet_v2(["efficientnet-v2-b3", "efficientnetv2-b3"], 300, v2_b(1.2, 1.4), ["1f1fc43bd98a6e4fd8fdfd551e02c7a0", "f6abf7b5849ac99a89b50dd3fd532856"]),
    efficientnet_v2(["efficientnet-v2-s", "efficientnetv2-s"], 384, v2_l(&STAGES_S), ["e1d88a8495beba45748fedd0cecbe016", "af0682fb74e8c54910f2d4393339c070"]),
    efficientnet_v2(["efficientnet-v2-m", "efficientnetv2-m"], 480, v2_l(&STAGES_M), ["a3bf6aa3276309f4fc6a34aa114c95cd", "1b8dc055df72dde80d614482840fe342"]),
    efficientnet_v2(["efficientnet-v2-l", "efficientnetv2-l"], 480, v2_l(&STAGES_L), ["27e6d408b53c7ebc868fefa357689935", "b0b66b5c863aef5b46e8608fe1711615"]),
    convnext(["convnext-tiny", "convnext_tiny"], 9, 96, ["8ae6e78ce2933352b1ef4008e6dd2f17bc40771563877d156bc6426c7cf503ff", "d547c096cabd03329d7be5562c5e14798aa39ed24b474157cef5e85ab9e49ef1"]),
    convnext(["convnext-small", "convnext_small"], 27, 96, ["ce1277d8f1ee5a0ef0e171469089c18f5233860ceaf9b168049cb9263fd7483c", "6fc8009faa2f00c1c1dfce59feea9b0745eb260a7dd11bee65c8e20843da6eab"]),
    convnext(["convnext-base", "convnext_base"], 27, 128, ["52cbb006d3dadd03f6e095a8ca1aca47aecdd75acb4bc74bce1f5c695d0086e6", "40a20c5548a5e9202f69735ecc06c990e6b7c9d2de39f0361e27baeb24cb7c45"]),
    convnext(["convnext-large", "convnext_large"], 27, 192, ["070c5ed9ed289581e477741d3b34beffa920db8cf590899d6d2c67fba2a198a6", "96f02b6f0753d4f543261bc9d09bed650f24dd6bc02ddde3066135b63d23a1cd"]),
    convnext(["convnext-xlarge", "convnext_xlarge"], 27, 256, ["c1f5ccab661354fc3a79a10fa99af82f0fbf10ec65cb894a3ae0815f17a889ee", "de3f8a54174130e0cecdc71583354753d557fcf1f4487331558e2a16ba0cfe05"]),
];

/// The names of the networks of `keras.applications` that [`Application::new`] builds.
pub fn names() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|architecture| architecture.name)
}

/// How images (red, green, blue from 0 to 255) become the input of a network's ImageNet weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputMode {
    /// Blue first, less the mean of each channel.
    Caffe,
    /// From -1 to 1.
    Tf,
    /// From 0 to 1, less the mean and divided by the standard deviation of each channel.
    Torch,
    /// As they are: the network has its own preprocessing.
    Raw,
}

/// The weights that a network starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    ImageNet,
    File(PathBuf),
}

/// A network of `keras.applications` with its arguments.
///
/// The model has Keras' layers, names and weights, so that files are exchanged with Python.
///
/// ```
/// use phalanx::prelude::*;
///
/// let base = applications::Application::new("mobilenet-v2")?
///     .include_top(false)
///     .input_shape([64, 64, 3])
///     .pooling("avg")
///     .build()?;
/// assert_eq!(base.output_shapes(), [[1280]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Application {
    architecture: &'static Architecture,
    input_shape: Option<[usize; 3]>,
    pub(super) include_top: bool,
    pub(super) classes: usize,
    pooling: Option<String>,
    pub(super) classifier_activation: ByName<ActivationFn>,
    weights: Option<Start>,
    new_top: bool,
    /// Replaces the epsilon of ResNet's batch normalisations, for an older weights file.
    pub(super) resnet_epsilon: Option<f64>,
}

impl Application {
    /// The network with this name, such as `resnet50`. Case, `-` and `_` do not matter, so Keras' names are known too.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn new(name: &str) -> Result<Application> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
        let same = |a: &&Architecture| plain(a.name) == plain(name);
        let Some(architecture) = ARCHITECTURES.iter().find(same) else {
            let known = names().map(String::from).collect();
            return Err(Error::Unknown { kind: "network", name: name.into(), known });
        };
        Ok(Application {
            architecture,
            input_shape: None,
            include_top: true,
            classes: IMAGENET_CLASSES,
            pooling: None,
            classifier_activation: ActivationFn::Softmax.into(),
            weights: None,
            new_top: false,
            resnet_epsilon: None,
        })
    }

    setters! {
        /// Whether the network has its classifier. Without it, the output is the last feature map.
        include_top: bool,
        /// The number of classes of the top; 1000 by default.
        classes: usize,
        /// Whether only the layers below the top are pretrained. The top then has initial weights, for any number of
        /// classes and images of any size.
        new_top: bool,
        /// The activation of the top; `softmax` by default, `linear` for logits.
        classifier_activation: impl Into<ByName<ActivationFn>>,
    }

    /// Height, width and channels of the images. Sides of 32 or more; the default is the network's own size.
    #[must_use]
    pub fn input_shape(mut self, shape: [usize; 3]) -> Application {
        self.input_shape = Some(shape);
        self
    }

    /// The pooling of a network without top: `avg` or `max`.
    #[must_use]
    pub fn pooling(mut self, pooling: &str) -> Application {
        self.pooling = Some(pooling.into());
        self
    }

    /// Pretrained weights: `imagenet`, or the path of a weights file.
    ///
    /// The official file is read from `models` in [`datasets::directory`](crate::datasets::directory) or from Keras'
    /// cache, `~/.keras/models`, and downloaded if it is in neither. As in Keras, a network with top then has 1000
    /// classes and images of its own size. A file may be of the network with or without top: a top that the network
    /// does not have is ignored, and a top that the file does not have keeps its initial weights.
    #[must_use]
    pub fn weights(mut self, weights: impl Into<PathBuf>) -> Application {
        let path = weights.into();
        let named = path.as_os_str() == "imagenet";
        self.weights = Some(if named { Start::ImageNet } else { Start::File(path) });
        self
    }

    /// The name that users write.
    pub fn name(&self) -> &'static str {
        self.architecture.name
    }

    /// The dimensions of the images.
    pub fn input(&self) -> [usize; 3] {
        let side = self.architecture.side;
        self.input_shape.unwrap_or([side, side, 3])
    }

    /// The smallest side of an image.
    pub fn min_side(&self) -> usize {
        MIN_SIDE
    }

    /// How images become the input of the ImageNet weights.
    pub fn input_mode(&self) -> InputMode {
        match self.architecture.family {
            Family::ResNet { v2: false, .. } | Family::Vgg(_) => InputMode::Caffe,
            Family::ResNet { v2: true, .. } | Family::MobileNetV2 => InputMode::Tf,
            Family::DenseNet(_) => InputMode::Torch,
            Family::MobileNetV3 { .. }
            | Family::EfficientNet(_)
            | Family::EfficientNetV2(_)
            | Family::ConvNeXt(_) => InputMode::Raw,
        }
    }

    /// Builds the model, with its weights if any.
    ///
    /// # Errors
    /// Arguments that do not fit together, or weights that cannot be found, downloaded or read.
    pub fn build(self) -> Result<Model> {
        self.check()?;
        match self.weights.clone() {
            None => self.model(),
            Some(Start::ImageNet) => {
                let path = self.preset().find_or_fetch()?;
                weights::load(self, &path)
            }
            Some(Start::File(path)) => weights::load(self, &path),
        }
    }

    /// The official weights file for these arguments.
    pub fn weights_file(&self) -> Preset {
        self.preset()
    }

    fn preset(&self) -> Preset {
        let Architecture { name, side, files, .. } = self.architecture;
        Preset::new(files, name, self.pretrained_top(), self.input(), *side)
    }

    /// Whether the top is pretrained, if the network starts with pretrained weights.
    pub(super) fn pretrained_top(&self) -> bool {
        self.include_top && !self.new_top
    }

    pub(super) fn has_imagenet_weights(&self) -> bool {
        self.weights == Some(Start::ImageNet)
    }

    /// Keras' name of the model.
    pub(super) fn keras_name(&self) -> String {
        match self.architecture.family {
            Family::MobileNetV2 => {
                let side = self.preset().side;
                let rows = if self.has_imagenet_weights() { side } else { self.input()[0] };
                format!("{}_{rows}", self.architecture.keras_name)
            }
            _ => self.architecture.keras_name.into(),
        }
    }

    fn fault(&self, argument: &str, expected: &str, received: impl std::fmt::Display) -> Error {
        Error::argument(self.architecture.name, argument, expected, received)
    }

    pub(super) fn check(&self) -> Result<()> {
        let [height, width, channels] = self.input();
        let shown = format!("{:?}", self.input());
        if height < MIN_SIDE || width < MIN_SIDE {
            return Err(self.fault("input_shape", "sides of 32 or more", shown));
        }
        if self.include_top && self.classes == 0 {
            return Err(self.fault("classes", "1 or more", 0));
        }
        match self.pooling.as_deref() {
            None | Some("avg" | "max") => {}
            Some(other) => return Err(self.fault("pooling", "avg or max", other)),
        }
        if !self.has_imagenet_weights() {
            return Ok(());
        }
        if channels != 3 {
            return Err(self.fault("input_shape", "3 channels for ImageNet's weights", shown));
        }
        if self.pretrained_top() && self.classes != IMAGENET_CLASSES {
            let expected = "1000 for ImageNet's weights with their top";
            return Err(self.fault("classes", expected, self.classes));
        }
        let side = self.preset().side;
        if self.pretrained_top() && [height, width] != [side; 2] {
            let expected = format!("{side}x{side} for ImageNet's weights with their top");
            return Err(self.fault("input_shape", &expected, shown));
        }
        Ok(())
    }

    /// The model without pretrained weights.
    pub(super) fn model(&self) -> Result<Model> {
        let [height, width, channels] = self.input();
        let inputs = Input::new([height, width, channels]).named("input_layer").symbol();
        let f = Features { x: inputs.clone(), channels, sides: [height, width] };
        let outputs = match self.architecture.family {
            Family::ResNet { blocks, v2 } => resnet::build(blocks, v2, self, f),
            Family::Vgg(convolutions) => vgg::build(convolutions, self, f),
            Family::DenseNet(blocks) => densenet::build(blocks, self, f),
            Family::MobileNetV2 => mobilenet::build_v2(self, f),
            Family::MobileNetV3 { large } => mobilenet::build_v3(large, self, f),
            Family::EfficientNet(scale) => efficientnet::build_v1(scale, self, f),
            Family::EfficientNetV2(scale) => efficientnet::build_v2(scale, self, f),
            Family::ConvNeXt(sizes) => convnext::build(sizes, self, f)?,
        };
        Model::with_name(&self.keras_name(), &inputs, &outputs)
    }

    /// Pooling and classifier, or the pooling of a network without top.
    pub(super) fn finish(&self, x: &Symbol, top: &Top) -> Symbol {
        let avg = || match top.named {
            true => GlobalAveragePooling2D::new().named("avg_pool").apply(x),
            false => GlobalAveragePooling2D::new().apply(x),
        };
        match (self.include_top, self.pooling.as_deref()) {
            (true, _) => {
                let mut x = avg();
                if let Some(rate) = top.dropout {
                    x = Dropout::new(rate).named("top_dropout").apply(&x);
                }
                self.predictions(&x, Some(top))
            }
            (false, Some("avg")) => avg(),
            (false, Some(_)) if top.named => GlobalMaxPooling2D::new().named("max_pool").apply(x),
            (false, Some(_)) => GlobalMaxPooling2D::new().apply(x),
            (false, None) => x.clone(),
        }
    }

    /// The classifier.
    pub(super) fn predictions(&self, x: &Symbol, top: Option<&Top>) -> Symbol {
        let mut dense = Dense::new(self.classes).activation(self.classifier_activation.clone());
        if let Some(kernel) = top.and_then(|top| top.dense.clone()) {
            dense = dense.kernel_initializer(kernel);
        }
        if let Some(bias) = top.and_then(|top| top.bias.clone()) {
            dense = dense.bias_initializer(bias);
        }
        dense.named("predictions").apply(x)
    }
}

/// The form of a top.
#[derive(Clone, Debug, Default)]
pub(super) struct Top {
    /// Whether the poolings are called `avg_pool` and `max_pool`.
    pub named: bool,
    /// The dropout before the classifier.
    pub dropout: Option<f64>,
    /// The initializer of the classifier's kernel.
    pub dense: Option<Initializer>,
    /// The initializer of the classifier's bias.
    pub bias: Option<Initializer>,
}

impl Top {
    pub const NAMED: Top = Top { named: true, dropout: None, dense: None, bias: None };
}

/// Feature maps of a network under construction.
#[derive(Clone, Debug)]
pub(super) struct Features {
    pub x: Symbol,
    pub channels: usize,
    /// Height and width.
    pub sides: [usize; 2],
}

impl Features {
    /// Pads for a convolution with stride 2 and halves the sides, as Keras' `correct_pad` does.
    pub fn pad_for(&mut self, kernel: usize, name: &str) {
        let side = |side: usize| (kernel / 2 - (1 - side % 2), kernel / 2);
        let [height, width] = self.sides.map(side);
        self.x = ZeroPadding2D::new((height, width)).named(name).apply(&self.x);
        self.halve();
    }

    /// Notes a stride of 2.
    pub fn halve(&mut self) {
        self.sides = self.sides.map(|side| side.div_ceil(2));
    }
}

/// The multiple of 8 nearest to a number of filters, but not less than nine tenths of it.
pub(super) fn rounded(filters: f64) -> usize {
    let nearest = ((filters + 4.0) as usize / 8 * 8).max(8);
    if (nearest as f64) < 0.9 * filters { nearest + 8 } else { nearest }
}
