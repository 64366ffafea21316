//! What the commands work on: a network by name or the model of a file, and where its weights come from.

use crate::data::Loaded;
use crate::model_file::{Goal, ModelFile, Purpose};
use crate::network::{Choice, Network, USUAL_BATCH};
use crate::origin::Origin;
use crate::targets::{Output, Targets, class_numbers};
use anyhow::{Result, bail};
use phalanx::prelude::*;
use phalanx::saving::{describe, read_metadata};
use phalanx::text::shown;
use std::path::{Path, PathBuf};

/// A network or model, with what the commands ask of either.
pub struct Subject {
    /// Which of both.
    pub kind: Kind,
    /// A file of weights to start from.
    weights: Option<PathBuf>,
    /// What the file says that the weights come from.
    pub origin: Option<Origin>,
    /// Whether weights of other classes may serve below a new top.
    new_top: bool,
}

/// A network or a model.
pub enum Kind {
    /// One that comes with Phalanx.
    Network(Network),
    /// One of the user's own.
    File(ModelFile),
}

/// How a model is compiled.
pub struct How {
    /// In the place of the model's own.
    pub optimizer: Option<Box<dyn Optimizer>>,
    /// The devices.
    pub strategy: MultiWorkerMirroredStrategy,
    /// Seed of weights, shuffling and dropout.
    pub seed: u64,
}

impl<S: Into<MultiWorkerMirroredStrategy>> From<S> for How {
    fn from(strategy: S) -> How {
        How { optimizer: None, strategy: strategy.into(), seed: 0 }
    }
}

impl Subject {
    /// What MODEL says, with weights of another file where one is given.
    pub fn chosen(choice: &Choice, weights: Option<&Path>) -> Result<Subject> {
        let (kind, own) = match choice {
            Choice::Network(network) => (Kind::Network(*network), None),
            Choice::File(path) => (Kind::File(ModelFile::open(path)?), Some(path.as_path())),
        };
        let origin = match weights.or(own) {
            Some(path) => Origin::read(path)?,
            None => None,
        };
        let weights = weights.map(Path::to_path_buf);
        let subject = Subject { kind, weights, origin, new_top: true };
        subject.check_origin()?;
        Ok(subject)
    }

    /// What a file of weights or of a whole model belongs to: what `wanted` says, or the file itself.
    pub fn saved(path: &Path, wanted: Option<&Choice>) -> Result<Subject> {
        if let Some(choice) = wanted {
            let subject = Subject::chosen(choice, Some(path))?;
            subject.check_wanted(path)?;
            return Ok(Subject { new_top: false, ..subject });
        }
        let origin = Origin::read(path)?;
        let described = !describe(path)?.layers.is_empty();
        let whole = path.extension().is_some_and(|e| !e.eq_ignore_ascii_case("safetensors"));
        let name = || read_metadata(path).ok()?.get("model").cloned();
        let named = match &origin {
            Some(origin) => origin.network(),
            None => name().and_then(|name| Network::by_name(&name)),
        };
        let (kind, weights) = match named {
            _ if described && (origin.is_some() || whole) => {
                (Kind::File(ModelFile::open(path)?), None)
            }
            Some(network) => (Kind::Network(network), Some(path.into())),
            None => bail!("{}: does not say its network; add --model", shown(path.display())),
        };
        let subject = Subject { kind, weights, origin, new_top: false };
        subject.check_origin()?;
        Ok(subject)
    }

    /// A file that says its network must say the one that is wanted.
    fn check_wanted(&self, path: &Path) -> Result<()> {
        let said = self.origin.as_ref().and_then(Origin::network);
        if let (Kind::Network(wanted), Some(said)) = (&self.kind, said)
            && *wanted != said
        {
            let (said, wanted) = (said.name(), wanted.name());
            bail!("--model: expected {said}, as {} says, received {wanted}", shown(path.display()));
        }
        Ok(())
    }

    /// What a file says of its model's input and classes must be so.
    fn check_origin(&self) -> Result<()> {
        match (&self.kind, &self.origin) {
            (Kind::File(file), Some(origin)) => file.check_origin(origin, self.weights.as_deref()),
            _ => Ok(()),
        }
    }

    /// Its name.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Network(network) => network.name(),
            Kind::File(file) => file.name.clone(),
        }
    }

    /// The network, where it is one by name.
    pub fn network(&self) -> Option<Network> {
        match self.kind {
            Kind::Network(network) => Some(network),
            Kind::File(_) => None,
        }
    }

    /// Whether its weights are those of ImageNet's ResNet50, which want images in their own way.
    pub fn of_imagenet(&self) -> bool {
        let resnet = self.network() == Some(Network::Resnet50);
        resnet && self.weights.is_some() && self.origin.is_none()
    }

    /// Samples per replica it is usually run with.
    pub fn usual_batch(&self) -> usize {
        self.network().map_or(USUAL_BATCH, Network::usual_batch)
    }

    /// The share of the training data held back to validate on.
    pub fn validation_share(&self) -> Option<f64> {
        self.network().and_then(Network::validation_share)
    }

    /// Whether samples are images to it, in height, width and channels.
    pub fn takes_images(&self) -> bool {
        match &self.kind {
            Kind::Network(network) => network.least_side().is_some(),
            Kind::File(file) => file.input().len() == 3,
        }
    }

    /// The names of its inputs and outputs; a network by name has one of each, which need none.
    pub fn names(&self) -> (Vec<String>, Vec<String>) {
        let names = |columns: &[(String, Vec<usize>)]| {
            columns.iter().map(|(name, _)| name.clone()).collect::<Vec<String>>()
        };
        match &self.kind {
            Kind::Network(_) => (vec![String::new()], vec![String::new()]),
            Kind::File(file) => (names(&file.inputs), names(&file.outputs)),
        }
    }

    /// What it is trained for, with Keras' names of the losses of its outputs.
    pub fn goal(&self, asked: Option<&str>, data: &Loaded) -> Result<(Goal, Vec<&'static str>)> {
        match &self.kind {
            Kind::Network(network) if asked.is_some() => {
                bail!(
                    "--loss: expected a model file, received {}, which has its own",
                    network.name()
                )
            }
            Kind::Network(_) => Ok((Goal::Stored, vec!["SparseCategoricalCrossentropy"])),
            Kind::File(file) => {
                let before = self.origin.as_ref().is_some_and(|origin| !origin.classes.is_empty());
                file.goal(asked, data, before || data.classes.is_some())
            }
        }
    }

    /// A goal to measure or plan with, and the outputs it is for.
    pub fn usual_goal(&self) -> (Goal, Vec<Output>) {
        match &self.kind {
            Kind::Network(_) => {
                let dims = vec![self.usual().classes.len()];
                let loss = "SparseCategoricalCrossentropy";
                (Goal::Stored, vec![Output { name: "output".into(), dims, loss }])
            }
            Kind::File(file) => file.usual_goal(),
        }
    }

    /// Its own optimizer.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>> {
        match &self.kind {
            Kind::Network(network) => Ok(network.optimizer()),
            Kind::File(file) => file.optimizer(),
        }
    }

    /// As it was trained; else as it usually is, for as many classes as it has, or ten.
    pub fn usual(&self) -> Origin {
        match (&self.origin, &self.kind) {
            (Some(origin), _) => origin.clone(),
            (None, Kind::Network(network)) => Origin::usual(*network, self.of_imagenet()),
            (None, Kind::File(file)) => file.usual(),
        }
    }

    /// The dimensions that the model's inputs take samples in, where a sample of its only one is `input`.
    pub fn dims(&self, input: &[usize]) -> Vec<Vec<usize>> {
        match &self.kind {
            Kind::Network(network) => vec![network.dims(input)],
            Kind::File(file) => file.inputs.iter().map(|(_, dims)| dims.clone()).collect(),
        }
    }

    /// The targets of each output as its loss takes them.
    pub fn targets(
        &self,
        losses: &[&'static str],
        given: &[Tensor],
        classes: Option<usize>,
    ) -> Result<Vec<Targets>> {
        match (&self.kind, given) {
            (Kind::Network(_), [y]) => Ok(vec![class_numbers(y)?]),
            (Kind::Network(_), _) => bail!("expected one target, received {}", given.len()),
            (Kind::File(file), _) => {
                let outputs = file.with_losses(losses);
                outputs.iter().zip(given).map(|(output, y)| output.targets(y, classes)).collect()
            }
        }
    }

    /// The probability of each class, from the outputs for one sample.
    pub fn probabilities(&self, outputs: &[f32]) -> Vec<f64> {
        let logits = match &self.kind {
            Kind::Network(network) => network.logits(),
            Kind::File(file) => file.logits(),
        };
        let outputs = outputs.iter().map(|output| f64::from(*output));
        match (logits, outputs.clone().next()) {
            (false, Some(one)) if outputs.len() == 1 => vec![1.0 - one, one],
            (true, Some(one)) if outputs.len() == 1 => {
                let one = 1.0 / (1.0 + (-one).exp());
                vec![1.0 - one, one]
            }
            (false, _) => outputs.collect(),
            (true, _) if matches!(&self.kind, Kind::File(file) if file.several_labels()) => {
                outputs.map(|output| 1.0 / (1.0 + (-output).exp())).collect()
            }
            (true, _) => {
                let most = outputs.clone().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = outputs.clone().map(|output| (output - most).exp()).sum();
                outputs.map(|output| (output - most).exp() / total).collect()
            }
        }
    }

    /// The model with its weights, compiled for a purpose; its files will say what the origin says.
    pub fn compiled(
        &self,
        origin: &Origin,
        goal: &Goal,
        purpose: Purpose,
        how: How,
    ) -> Result<Model> {
        let model = match &self.kind {
            Kind::Network(network) => {
                let mut model = self.build(*network, origin)?;
                if purpose == Purpose::Predict {
                    model.predict_on(how.strategy)?;
                } else {
                    let optimizer = how.optimizer.unwrap_or_else(|| network.optimizer());
                    model.compile(network.compile_with(optimizer, how.strategy).seed(how.seed))?;
                }
                model
            }
            Kind::File(file) => {
                let mut model = file.compiled(goal, purpose, how)?;
                if let Some(weights) = &self.weights {
                    model.load_weights(weights)?;
                }
                model
            }
        };
        origin.note(&model)?;
        Ok(model)
    }

    /// The model compiled to train, for no data in particular.
    pub fn usually_compiled(&self, how: impl Into<How>) -> Result<Model> {
        let (goal, _) = self.usual_goal();
        self.compiled(&self.usual(), &goal, Purpose::Train, how.into())
    }

    /// A network, with the weights of a file where there is one.
    fn build(&self, network: Network, origin: &Origin) -> Result<Model> {
        let classes = origin.classes.len();
        match (&self.weights, &origin.input[..]) {
            (Some(path), &[height, width, channels]) if network == Network::Resnet50 => {
                resnet50_from(path, [height, width, channels], classes, self.new_top)
            }
            (Some(path), _) => {
                let mut model = network.build(&origin.input, classes)?;
                model.load_weights(path)?;
                Ok(model)
            }
            (None, _) => network.build(&origin.input, classes),
        }
    }
}

/// ResNet50 with weights from a file; where it has those of other classes, and a new top may be, with that.
fn resnet50_from(path: &Path, input: [usize; 3], classes: usize, new_top: bool) -> Result<Model> {
    let misfit = match applications::resnet50_from(path, input, Some(classes)) {
        Ok(model) => return Ok(model),
        // A file that cannot be read now is no file of other classes.
        Err(error @ phalanx::Error::Io { .. }) => return Err(error.into()),
        Err(error) => error,
    };
    let base = applications::resnet50_from(path, input, None);
    let Some(base) = base.ok().filter(|_| new_top) else { return Err(misfit.into()) };
    let pooled = GlobalAveragePooling2D::new().named("avg_pool").apply(&base.outputs()[0]);
    let top = Dense::new(classes).activation("softmax").named("predictions").apply(&pooled);
    Ok(Model::with_name("resnet50", &base.inputs()[0], &top)?)
}

/// Writes a whole model or its weights, as the name asks.
pub fn save(model: &Model, origin: &Origin, path: &Path) -> Result<()> {
    let name = path.to_string_lossy().to_lowercase();
    if name.ends_with(".weights.h5") || name.ends_with(".safetensors") {
        return Ok(model.save_weights(path)?);
    }
    if !name.ends_with(".keras") && origin.is_scaled() {
        let shown = shown(path.display());
        tracing::warn!(
            "{shown}: .h5 files do not keep how inputs are scaled: it has to be said again, or save a .keras file"
        );
    }
    Ok(model.save(path)?)
}
