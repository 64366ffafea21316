//! Pretrained weights: Keras' official files, in the cache or downloaded, and their loading.

use super::application::Application;
use crate::datasets::{self, Checksum, Remote};
use crate::error::Result;
use crate::model::Model;
use crate::saving::{self, Top};
use std::path::{Path, PathBuf};

const TENSORFLOW: &str = "https://storage.googleapis.com/tensorflow/keras-applications/";
pub(super) const EFFICIENTNET: &str = "https://storage.googleapis.com/keras-applications/";
pub(super) const EFFICIENTNET_V2: &str =
    "https://storage.googleapis.com/tensorflow/keras-applications/efficientnet_v2/";
pub(super) const CONVNEXT: &str =
    "https://storage.googleapis.com/tensorflow/keras-applications/convnext/";
/// The sides for which MobileNetV2 was trained.
const MOBILENET_SIDES: [usize; 5] = [96, 128, 160, 192, 224];
/// The epsilon of the batch normalisations that ResNet50's older weights belong to.
const OLD_RESNET_EPSILON: f64 = 1e-3;

/// How the official files of a network are called.
#[derive(Clone, Copy, Debug)]
enum Naming {
    /// `{name}_weights_tf_dim_ordering_tf_kernels[_notop].h5`
    TfKernels,
    /// `{name}[_notop].h5`
    Plain,
    /// `weights_mobilenet_v3_{name}_224_1.0_float[_no_top_v2].h5`
    MobileNetV3,
    /// `mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_{side}[_no_top].h5`
    MobileNetV2,
}

/// The official files of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files {
    naming: Naming,
    /// The address up to the file name, or what follows [`TENSORFLOW`].
    base: &'static str,
    name: &'static str,
    /// The checksums with and without top; empty if Keras' source has none.
    sums: [&'static str; 2],
}

impl Files {
    /// MobileNetV2's, for which Keras' source has no checksums.
    pub const MOBILENET_V2: Files =
        Files { naming: Naming::MobileNetV2, base: "mobilenet_v2/", name: "", sums: ["", ""] };

    pub const fn tf_kernels(
        base: &'static str,
        name: &'static str,
        sums: [&'static str; 2],
    ) -> Files {
        Files { naming: Naming::TfKernels, base, name, sums }
    }

    pub const fn plain(base: &'static str, name: &'static str, sums: [&'static str; 2]) -> Files {
        Files { naming: Naming::Plain, base, name, sums }
    }

    pub const fn mobilenet_v3(name: &'static str, sums: [&'static str; 2]) -> Files {
        Files { naming: Naming::MobileNetV3, base: "mobilenet_v3/", name, sums }
    }
}

/// An official weights file: its name, address and checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The network.
    network: &'static str,
    /// The name of the file.
    pub file: String,
    /// The official address.
    pub url: String,
    /// MD5 or SHA-256 in hexadecimal, as in Keras' source; `None` if that has none.
    pub checksum: Option<&'static str>,
    /// The side of the images that the weights were trained on.
    pub(super) side: usize,
}

impl Preset {
    pub(super) fn new(
        files: &Files,
        network: &'static str,
        include_top: bool,
        [height, width, _]: [usize; 3],
        default_side: usize,
    ) -> Preset {
        let Files { naming, base, name, sums } = *files;
        let mut side = default_side;
        let file = match (naming, include_top) {
            (Naming::TfKernels, true) => format!("{name}_weights_tf_dim_ordering_tf_kernels.h5"),
            (Naming::TfKernels, false) => {
                format!("{name}_weights_tf_dim_ordering_tf_kernels_notop.h5")
            }
            (Naming::Plain, true) => format!("{name}.h5"),
            (Naming::Plain, false) => format!("{name}_notop.h5"),
            (Naming::MobileNetV3, top) => {
                let end = if top { "" } else { "_no_top_v2" };
                format!("weights_mobilenet_v3_{name}_224_1.0_float{end}.h5")
            }
            (Naming::MobileNetV2, top) => {
                let trained = height == width && MOBILENET_SIDES.contains(&height);
                side = if trained { height } else { 224 };
                let end = if top { "" } else { "_no_top" };
                format!("mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_{side}{end}.h5")
            }
        };
        let base = match base.starts_with("https:") {
            true => base.to_string(),
            false => format!("{TENSORFLOW}{base}"),
        };
        let sum = sums[usize::from(!include_top)];
        let checksum = (!sum.is_empty()).then_some(sum);
        Preset { network, url: format!("{base}{file}"), file, checksum, side }
    }

    fn sum(&self) -> Checksum<'_> {
        match self.checksum {
            None => Checksum::Unknown,
            Some(sum) if sum.len() == 64 => Checksum::Sha256(sum),
            Some(sum) => Checksum::Md5(sum),
        }
    }

    /// The directories that hold weights: Phalanx' own, into which files are downloaded, and Keras'.
    fn directories() -> Vec<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let keras = set("KERAS_HOME").or_else(|| set("HOME").map(|home| home.join(".keras")));
        let own = datasets::directory().join("models");
        std::iter::once(own).chain(keras.map(|keras| keras.join("models"))).collect()
    }

    /// The path of the file, which is downloaded if it is not in the cache.
    ///
    /// # Errors
    /// A file in the cache with another checksum; [`Error::Download`](crate::Error::Download), which tells what to place where.
    pub fn find_or_fetch(&self) -> Result<PathBuf> {
        self.find_or_fetch_in(&Preset::directories())
    }

    fn find_or_fetch_in(&self, directories: &[PathBuf]) -> Result<PathBuf> {
        let candidates = directories.iter().map(|directory| directory.join(&self.file));
        if let Some(path) = candidates.into_iter().find(|path| path.exists()) {
            datasets::verify_file(&path, self.sum())?;
            return Ok(path);
        }
        let remote = Remote { file: &self.file, urls: &[self.url.as_str()], checksum: self.sum() };
        let name = format!("ImageNet's weights for {}", self.network);
        datasets::fetch_file(&remote, &name, &directories[0], &mut datasets::terminal())
    }
}

/// The network with weights from a file of the user.
pub(super) fn load(app: Application, path: &Path) -> Result<Model> {
    let Some(names) = saving::legacy_names(path)? else {
        let mut model = app.model()?;
        model.load_weights(path)?;
        return Ok(model);
    };
    let mut app = app;
    if names.iter().any(|name| saving::resnet::is_old_name(name)) {
        app.resnet_epsilon = Some(OLD_RESNET_EPSILON);
    }
    let model = app.model()?;
    let top =
        Top { layers: top_layers(&app, &model)?, load: !app.include_top || app.pretrained_top() };
    saving::load_with_top(&model, path, top)?;
    Ok(model)
}

/// The number of layers with weights that only the network with top has.
fn top_layers(app: &Application, model: &Model) -> Result<usize> {
    let count = |model: &Model| {
        model.layers().iter().filter(|(_, layer)| !layer.weights().is_empty()).count()
    };
    let other = app.clone().include_top(!app.include_top).model()?;
    Ok(count(model).abs_diff(count(&other)))
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
