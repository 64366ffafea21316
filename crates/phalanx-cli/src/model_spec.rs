//! The model of a command: a network by name or a model file, and the origin of its weights.

use crate::args::{BatchArgs, ShapeArgs};
use crate::data::{InputNames, LoadedData};
use crate::model_file::{LossSource, ModelFile, Purpose};
use crate::network::{DEFAULT_BATCH_SIZE, ModelArg, Network};
use crate::preprocessing::Preprocessing;
use crate::targets::{Output, Targets, class_numbers};
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;
use phalanx::saving::{describe, read_metadata};
use phalanx::text::shown;
use std::path::{Path, PathBuf};

/// A network by name or a model file, with a common interface.
pub struct ModelSpec {
    /// The network or file.
    pub kind: ModelKind,
    /// A weights file to start from, if any.
    weights: Option<PathBuf>,
    /// The preprocessing recorded in the file of the weights, if any.
    pub preprocessing: Option<Preprocessing>,
    /// Whether weights for other classes may be loaded without their top layer.
    new_top: bool,
}

/// A network or a model file.
pub enum ModelKind {
    /// A network that comes with Phalanx.
    Network(Network),
    /// A model of the user.
    File(Box<ModelFile>),
}

impl ModelKind {
    /// The network of `keras.applications`, if it is one.
    fn application(&self) -> Option<applications::Application> {
        match self {
            ModelKind::Network(network) => network.application(),
            ModelKind::File(_) => None,
        }
    }
}

/// Whether a `--weights` argument names the official weights rather than a file.
pub fn is_imagenet(weights: &Path) -> bool {
    weights.as_os_str() == "imagenet"
}

/// The options for compiling a model.
pub struct CompileOptions {
    /// Replaces the model's own optimizer.
    pub optimizer: Option<Box<dyn Optimizer>>,
    /// The devices.
    pub strategy: MultiWorkerMirroredStrategy,
    /// Seed for weights, shuffling and dropout.
    pub seed: u64,
}

impl<S: Into<MultiWorkerMirroredStrategy>> From<S> for CompileOptions {
    fn from(strategy: S) -> CompileOptions {
        CompileOptions { optimizer: None, strategy: strategy.into(), seed: 0 }
    }
}

impl ModelSpec {
    /// The model of a MODEL argument, with weights from another file if one is given.
    pub fn from_arg(arg: &ModelArg, weights: Option<&Path>) -> Result<ModelSpec> {
        let (kind, model_path) = match arg {
            ModelArg::Network(network) => (ModelKind::Network(*network), None),
            ModelArg::File(path) => {
                (ModelKind::File(Box::new(ModelFile::open(path)?)), Some(path.as_path()))
            }
        };
        if weights.is_some_and(is_imagenet) && kind.application().is_none() {
            bail!("--weights imagenet: expected a network of keras.applications, such as resnet50");
        }
        let preprocessing = match weights.or(model_path) {
            Some(path) if is_imagenet(path) => None,
            Some(path) => Preprocessing::read(path)?,
            None => None,
        };
        let weights = weights.map(Path::to_path_buf);
        let spec = ModelSpec { kind, weights, preprocessing, new_top: true };
        spec.check_preprocessing()?;
        Ok(spec)
    }

    /// The model that a weights or model file belongs to: `requested` if given, otherwise as recorded in the file.
    pub fn from_file(path: &Path, requested: Option<&ModelArg>) -> Result<ModelSpec> {
        if let Some(arg) = requested {
            let spec = ModelSpec::from_arg(arg, Some(path))?;
            spec.check_network(path)?;
            return Ok(ModelSpec { new_top: false, ..spec });
        }
        let preprocessing = Preprocessing::read(path)?;
        let has_layers = !describe(path)?.layers.is_empty();
        let is_model_format =
            path.extension().is_some_and(|e| !e.eq_ignore_ascii_case("safetensors"));
        let name = || read_metadata(path).ok()?.get("model").cloned();
        let named = match &preprocessing {
            Some(preprocessing) => preprocessing.network(),
            None => name().and_then(|name| Network::by_name(&name)),
        };
        let (kind, weights) = match named {
            _ if has_layers && (preprocessing.is_some() || is_model_format) => {
                (ModelKind::File(Box::new(ModelFile::open(path)?)), None)
            }
            Some(network) => (ModelKind::Network(network), Some(path.into())),
            None => bail!(
                "{}: the file does not record its network; add --model",
                shown(path.display())
            ),
        };
        let spec = ModelSpec { kind, weights, preprocessing, new_top: false };
        spec.check_preprocessing()?;
        Ok(spec)
    }

    /// Checks that the network recorded in a file, if any, is the requested one.
    fn check_network(&self, path: &Path) -> Result<()> {
        let recorded = self.preprocessing.as_ref().and_then(Preprocessing::network);
        if let (ModelKind::Network(requested), Some(recorded)) = (&self.kind, recorded)
            && *requested != recorded
        {
            let (recorded, requested) = (recorded.name(), requested.name());
            bail!(
                "--model: expected {recorded}, as {} says, received {requested}",
                shown(path.display())
            );
        }
        Ok(())
    }

    /// Checks the recorded input and classes against the model.
    fn check_preprocessing(&self) -> Result<()> {
        match (&self.kind, &self.preprocessing) {
            (ModelKind::File(file), Some(preprocessing)) => {
                file.check_preprocessing(preprocessing, self.weights.as_deref())
            }
            _ => Ok(()),
        }
    }

    /// Gives sizes to a model file that leaves some open: those of `--input-shape`, or those of the data it was trained on.
    /// Fails if they are not known.
    pub fn give_sizes(&self, shapes: &ShapeArgs) -> Result<()> {
        let given = shapes.dims();
        let ModelKind::File(file) = &self.kind else {
            if !given.is_empty() {
                bail!("--input-shape: expected a model file, received {}", self.name());
            }
            return Ok(());
        };
        if !file.has_open_sizes() {
            if !given.is_empty() {
                bail!("--input-shape: expected a model file with open sizes");
            }
            return Ok(());
        }
        if !given.is_empty() {
            return file.give_sizes(&given).context("--input-shape");
        }
        let recorded = self.preprocessing.as_ref().map(|p| &p.input).filter(|i| !i.is_empty());
        match recorded {
            Some(input) => file.give_sizes(std::slice::from_ref(input)),
            None => bail!(
                "the model leaves sizes open, {}: give them with --input-shape",
                file.declared_shapes()
            ),
        }
    }

    /// The model's name.
    pub fn name(&self) -> String {
        match &self.kind {
            ModelKind::Network(network) => network.name(),
            ModelKind::File(file) => file.name.clone(),
        }
    }

    /// The network, if it is one by name.
    pub fn network(&self) -> Option<Network> {
        match self.kind {
            ModelKind::Network(network) => Some(network),
            ModelKind::File(_) => None,
        }
    }

    /// Whether the weights are ImageNet weights, which need their own preprocessing.
    pub fn has_imagenet_weights(&self) -> bool {
        let application = self.kind.application().is_some();
        application && self.weights.is_some() && self.preprocessing.is_none()
    }

    /// The default number of samples per replica.
    pub fn default_batch_size(&self) -> usize {
        self.network().map_or(DEFAULT_BATCH_SIZE, Network::default_batch_size)
    }

    /// The number of samples of every batch, if layers of the model have states that outlive a batch.
    pub fn stateful_batch_size(&self) -> Option<usize> {
        match &self.kind {
            ModelKind::Network(_) => None,
            ModelKind::File(file) => file.stateful_batch_size,
        }
    }

    /// Samples per step over all replicas: those of the flags, or `default` per replica. States that outlive a batch fix
    /// the number.
    pub fn batch_size(&self, flags: BatchArgs, default: usize, replicas: usize) -> Result<usize> {
        let given = flags.batch_size.or(flags.global_batch_size).is_some();
        let Some(fixed) = self.stateful_batch_size() else {
            return flags.global(default, replicas);
        };
        match given.then(|| flags.global(default, replicas)).transpose()? {
            Some(batch) if batch != fixed => {
                let flag =
                    flags.global_batch_size.map_or("--batch-size", |_| "--global-batch-size");
                bail!(
                    "{flag}: expected {fixed} samples over all replicas, as the states of the model \
                     have, received {batch}"
                )
            }
            _ => Ok(fixed),
        }
    }

    /// The default fraction of the training data to validate on.
    pub fn default_validation_split(&self) -> Option<f64> {
        self.network().and_then(Network::default_validation_split)
    }

    /// Whether samples are images (height, width, channels).
    pub fn takes_images(&self) -> bool {
        match &self.kind {
            ModelKind::Network(network) => network.min_side().is_some(),
            ModelKind::File(file) => file.input().len() == 3,
        }
    }

    /// The names of the inputs and outputs. A network by name has one unnamed input and output.
    pub fn io_names(&self) -> (Vec<String>, Vec<String>) {
        let names = |columns: &[(String, Vec<usize>)]| {
            columns.iter().map(|(name, _)| name.clone()).collect::<Vec<String>>()
        };
        match &self.kind {
            ModelKind::Network(_) => (vec![String::new()], vec![String::new()]),
            ModelKind::File(file) => (names(file.inputs()), names(file.outputs())),
        }
    }

    /// The keys or paths of the inputs, if the model takes a dict or nested structure.
    pub fn input_paths(&self) -> Option<&[String]> {
        match &self.kind {
            ModelKind::Network(_) => None,
            ModelKind::File(file) => file.input_paths.as_deref(),
        }
    }

    /// The names under which tables have the inputs.
    pub fn table_inputs(&self) -> InputNames {
        let (layers, _) = self.io_names();
        let paths = self.input_paths().map(<[String]>::to_vec);
        InputNames { layers, paths, text: self.text_inputs() }
    }

    /// The names of the inputs that take strings.
    pub fn text_inputs(&self) -> Vec<String> {
        match &self.kind {
            ModelKind::Network(_) => vec![],
            ModelKind::File(file) => file.text_inputs.clone(),
        }
    }

    /// The source of the loss, and Keras' class name of the loss of each output.
    pub fn loss_source(
        &self,
        requested: Option<&str>,
        data: &LoadedData,
    ) -> Result<(LossSource, Vec<&'static str>)> {
        match &self.kind {
            ModelKind::Network(network) if requested.is_some() => {
                bail!(
                    "--loss: expected a model file, received {}, which has its own",
                    network.name()
                )
            }
            ModelKind::Network(_) => {
                Ok((LossSource::Stored, vec!["SparseCategoricalCrossentropy"]))
            }
            ModelKind::File(file) => {
                let was_classifier = self
                    .preprocessing
                    .as_ref()
                    .is_some_and(|preprocessing| !preprocessing.classes.is_empty());
                file.loss_source(requested, data, was_classifier || data.classes.is_some())
            }
        }
    }

    /// A loss for measuring or planning without data, and the outputs it applies to.
    pub fn default_loss(&self) -> (LossSource, Vec<Output>) {
        match &self.kind {
            ModelKind::Network(network) => {
                let dims = network.output_dims(self.default_preprocessing().classes.len());
                let loss = "SparseCategoricalCrossentropy";
                (LossSource::Stored, vec![Output { name: "output".into(), dims, loss }])
            }
            ModelKind::File(file) => file.default_loss(),
        }
    }

    /// The model's own optimizer.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>> {
        match &self.kind {
            ModelKind::Network(network) => Ok(network.optimizer()),
            ModelKind::File(file) => file.optimizer(),
        }
    }

    /// The recorded preprocessing, or the default one for the model's classes, or for ten.
    pub fn default_preprocessing(&self) -> Preprocessing {
        match (&self.preprocessing, &self.kind) {
            (Some(preprocessing), _) => preprocessing.clone(),
            (None, ModelKind::Network(network)) => {
                Preprocessing::default_for(*network, self.has_imagenet_weights())
            }
            (None, ModelKind::File(file)) => file.default_preprocessing(),
        }
    }

    /// The dimensions of a sample for each input. A single input receives samples of dimensions `input`.
    pub fn dims(&self, input: &[usize]) -> Vec<Vec<usize>> {
        match &self.kind {
            ModelKind::Network(network) => vec![network.dims(input)],
            ModelKind::File(file) => file.inputs().iter().map(|(_, dims)| dims.clone()).collect(),
        }
    }

    /// The names of the outputs that a loss or metrics compare with targets.
    pub fn target_names(&self, source: &LossSource) -> Vec<String> {
        match &self.kind {
            ModelKind::Network(_) => self.io_names().1,
            ModelKind::File(file) => file.target_names(source),
        }
    }

    /// Converts the targets of the outputs of these names to the form that their losses take.
    pub fn targets(
        &self,
        losses: &[&'static str],
        names: &[String],
        given: &[Tensor],
        classes: Option<usize>,
    ) -> Result<Vec<Targets>> {
        match (&self.kind, given) {
            (ModelKind::Network(_), [y]) => Ok(vec![class_numbers(y)?]),
            (ModelKind::Network(_), _) => bail!("expected one target, received {}", given.len()),
            (ModelKind::File(file), _) => {
                let mut outputs = file.with_losses(losses);
                outputs.retain(|output| names.contains(&output.name));
                outputs.iter().zip(given).map(|(output, y)| output.targets(y, classes)).collect()
            }
        }
    }

    /// The class probabilities for the outputs of one sample.
    pub fn probabilities(&self, outputs: &[f32]) -> Vec<f64> {
        let logits = match &self.kind {
            ModelKind::Network(network) => network.logits(),
            ModelKind::File(file) => file.logits(),
        };
        let outputs = outputs.iter().map(|output| f64::from(*output));
        match (logits, outputs.clone().next()) {
            (false, Some(one)) if outputs.len() == 1 => vec![1.0 - one, one],
            (true, Some(one)) if outputs.len() == 1 => {
                let one = 1.0 / (1.0 + (-one).exp());
                vec![1.0 - one, one]
            }
            (false, _) => outputs.collect(),
            (true, _) if matches!(&self.kind, ModelKind::File(file) if file.is_multi_label()) => {
                outputs.map(|output| 1.0 / (1.0 + (-output).exp())).collect()
            }
            (true, _) => {
                let max = outputs.clone().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = outputs.clone().map(|output| (output - max).exp()).sum();
                outputs.map(|output| (output - max).exp() / total).collect()
            }
        }
    }

    /// Builds and compiles the model for a purpose, with its weights. Its files will record `preprocessing`.
    pub fn compiled_model(
        &self,
        preprocessing: &Preprocessing,
        loss_source: &LossSource,
        purpose: Purpose,
        options: CompileOptions,
    ) -> Result<Model> {
        let model = match &self.kind {
            ModelKind::Network(network) => {
                let mut model = self.build(*network, preprocessing)?;
                if purpose == Purpose::Predict {
                    model.predict_on(options.strategy)?;
                } else {
                    let optimizer = options.optimizer.unwrap_or_else(|| network.optimizer());
                    model.compile(
                        network.compile_with(optimizer, options.strategy).seed(options.seed),
                    )?;
                }
                model
            }
            ModelKind::File(file) => {
                let mut model = file.compiled_model(loss_source, purpose, options)?;
                if let Some(weights) = &self.weights {
                    model.load_weights(weights)?;
                }
                model
            }
        };
        preprocessing.store_in(&model)?;
        Ok(model)
    }

    /// The model compiled for training, with the default loss and preprocessing.
    pub fn compiled_with_defaults(&self, options: impl Into<CompileOptions>) -> Result<Model> {
        let (loss_source, _) = self.default_loss();
        self.compiled_model(
            &self.default_preprocessing(),
            &loss_source,
            Purpose::Train,
            options.into(),
        )
    }

    /// Builds a network, with its weights, if any.
    fn build(&self, network: Network, preprocessing: &Preprocessing) -> Result<Model> {
        let classes = preprocessing.classes.len();
        let Some(weights) = &self.weights else {
            return network.build(&preprocessing.input, classes);
        };
        match (network.application(), &preprocessing.input[..]) {
            (Some(app), &[height, width, channels]) => {
                let app = app.input_shape([height, width, channels]).classes(classes);
                pretrained(app.weights(weights), is_imagenet(weights), self.new_top)
            }
            _ => {
                let mut model = network.build(&preprocessing.input, classes)?;
                model.load_weights(weights)?;
                Ok(model)
            }
        }
    }
}

/// A network with pretrained weights. If they are for other classes or another size, and `new_top` is set, the top is
/// new.
fn pretrained(app: applications::Application, official: bool, new_top: bool) -> Result<Model> {
    let mismatch = match app.clone().build() {
        Ok(model) => return Ok(model),
        // An I/O error, or a file that is missing, does not mean that the classes differ.
        Err(error @ (phalanx::Error::Io { .. } | phalanx::Error::Download { .. })) => {
            return Err(error.into());
        }
        Err(error) => error,
    };
    match new_top.then(|| app.new_top(true).build()) {
        Some(Ok(model)) => Ok(model),
        // The checks of the official weights with top do not apply to those without.
        Some(Err(error)) if official => Err(error.into()),
        _ => Err(mismatch.into()),
    }
}

/// Saves the model or only its weights, depending on the extension.
pub fn save(model: &Model, preprocessing: &Preprocessing, path: &Path) -> Result<()> {
    let name = path.to_string_lossy().to_lowercase();
    if name.ends_with(".weights.h5") || name.ends_with(".safetensors") {
        return Ok(model.save_weights(path)?);
    }
    if !name.ends_with(".keras") && preprocessing.is_scaled() {
        let shown = shown(path.display());
        tracing::warn!(
            "{shown}: .h5 files do not record how inputs are scaled; specify it again when you use the model, or save a .keras file"
        );
    }
    Ok(model.save(path)?)
}
