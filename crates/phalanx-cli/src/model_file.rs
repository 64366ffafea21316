//! Model files: the inputs, outputs and loss of a stored model.

use crate::data::{LoadedData, numbered_classes};
use crate::model_spec::CompileOptions;
use crate::preprocessing::{Preprocessing, check_sample_size};
use crate::targets::{NO_LOSS, Output};
use anyhow::{Context, Result, bail};
use phalanx::losses;
use phalanx::prelude::*;
use phalanx::saving::{read_compile, read_compile_for_evaluation};
use phalanx::text::shown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The structure of a stored model, read before its data.
pub struct ModelFile {
    path: PathBuf,
    /// The model's name.
    pub name: String,
    /// Names and shapes of the inputs as the file declares them.
    declared: Vec<(String, Shape)>,
    /// The keys or paths of the inputs, if the model takes a dict or nested structure.
    pub input_paths: Option<Vec<String>>,
    /// The names of the inputs that take strings.
    pub text_inputs: Vec<String>,
    /// The number of samples of every batch, if layers have states that outlive a batch.
    pub stateful_batch_size: Option<usize>,
    /// Inputs and outputs as declared; open sizes are 0.
    columns: Columns,
    /// The same for the sizes of the data, if the file leaves sizes open and they are known.
    sized: OnceLock<Columns>,
    /// The activation of the last layer.
    activation: Activation,
    losses: Losses,
    /// The names of the outputs that have a loss or metrics.
    compared: Vec<String>,
    /// Whether the loss of the only output takes logits, if recorded.
    from_logits: Option<bool>,
}

/// Names, and dimensions of a sample, of inputs and outputs.
struct Columns {
    inputs: Vec<(String, Vec<usize>)>,
    outputs: Vec<(String, Vec<usize>)>,
}

impl Columns {
    /// Those of a model; open sizes are 0.
    fn of(model: &Model) -> Columns {
        let named = |names: Vec<String>, shapes: Vec<Shape>| {
            let sizes = |shape: Shape| shape.sizes().iter().map(|n| n.unwrap_or(0)).collect();
            names.into_iter().zip(shapes.into_iter().map(sizes)).collect()
        };
        Columns {
            inputs: named(model.input_names(), model.input_shapes()),
            outputs: named(model.output_names(), model.output_shapes()),
        }
    }
}

/// The activation of the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Softmax,
    Sigmoid,
    Other,
}

/// The losses that the model was compiled with.
enum Losses {
    /// Keras' class names, one for each output, or [`NO_LOSS`].
    Known(Vec<&'static str>),
    /// A loss that Phalanx does not have, with the error message.
    Unknown(String),
    /// The model was never compiled.
    None,
}

/// Where the loss of a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossSource {
    /// The model file or network defines it.
    Stored,
    /// The user gave a name; it applies to every output.
    Named(String),
    /// The file has none; inferred from the only output and the data.
    Inferred { loss: &'static str, from_logits: bool },
}

/// What a model is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training, with the stored optimizer state.
    Train,
    /// Evaluation; the optimizer and unknown metrics are ignored.
    Evaluate,
    /// Prediction; the compile configuration is ignored.
    Predict,
}

impl ModelFile {
    /// Reads the structure of a model file.
    pub fn open(path: &Path) -> Result<ModelFile> {
        let model = Load::new().compile(false).model(path)?;
        let columns = Columns::of(&model);
        let is_text = model.input_names().into_iter().zip(model.text_inputs());
        let text_inputs = is_text.filter(|(_, text)| *text).map(|(name, _)| name).collect();
        let declared = model.input_names().into_iter().zip(model.input_shapes()).collect();
        for (_, input) in &columns.inputs {
            check_sample_size(input).with_context(|| shown(path.display()).to_string())?;
        }
        let mut from_logits = None;
        let mut compared = model.output_names();
        let losses = match read_compile_for_evaluation(path) {
            Ok(None) => Losses::None,
            Ok(Some((compile, _))) => match compile.loss_classes() {
                Ok(classes) => {
                    from_logits = compile.losses_from_logits().first().copied().flatten();
                    let mut is_compared = compile.compared_outputs().into_iter();
                    compared.retain(|_| is_compared.next().unwrap_or(true));
                    Losses::Known(classes.into_iter().map(|c| c.unwrap_or(NO_LOSS)).collect())
                }
                Err(error) => Losses::Unknown(error.to_string()),
            },
            Err(error) => Losses::Unknown(error.to_string()),
        };
        let (name, activation) = (model.name().into(), last_activation(&model));
        let path = path.into();
        let sized = OnceLock::new();
        Ok(ModelFile {
            path,
            name,
            declared,
            input_paths: model.input_paths(),
            text_inputs,
            stateful_batch_size: model.stateful_batch_size(),
            columns,
            sized,
            activation,
            losses,
            compared,
            from_logits,
        })
    }

    fn columns(&self) -> &Columns {
        self.sized.get().unwrap_or(&self.columns)
    }

    /// Names of the inputs, and dimensions of a sample of each. Open sizes are 0 until they are given.
    pub fn inputs(&self) -> &[(String, Vec<usize>)] {
        &self.columns().inputs
    }

    /// Names of the outputs, and dimensions of a sample of each.
    pub fn outputs(&self) -> &[(String, Vec<usize>)] {
        &self.columns().outputs
    }

    /// Whether the file leaves sizes open that were not given.
    pub fn has_open_sizes(&self) -> bool {
        self.sized.get().is_none() && self.declared.iter().any(|(_, shape)| shape.is_open())
    }

    /// The shapes of the inputs as the file declares them.
    pub fn declared_shapes(&self) -> String {
        let shapes: Vec<String> = self.declared.iter().map(|(_, s)| s.to_string()).collect();
        shapes.join(", ")
    }

    /// Gives sizes to the inputs of a file that leaves some open: `dims` has the dimensions of a sample of each. Does
    /// nothing if all sizes are known.
    pub fn give_sizes(&self, dims: &[Vec<usize>]) -> Result<()> {
        if !self.has_open_sizes() {
            return Ok(());
        }
        let sizes = |(shape, dims): (&(String, Shape), &Vec<usize>)| shape.1.sizes_of(dims);
        let sizes: Option<Vec<Vec<usize>>> = self.declared.iter().zip(dims).map(sizes).collect();
        let same_count = self.declared.len() == dims.len();
        let Some(sizes) = sizes.filter(|_| same_count) else {
            bail!("expected samples of {}, received {dims:?}", self.declared_shapes());
        };
        for sizes in &sizes {
            check_sample_size(sizes)?;
        }
        let model = Load::new().compile(false).input_shapes(sizes).model(&self.path)?;
        self.sized.get_or_init(|| Columns::of(&model));
        Ok(())
    }

    /// The options to load the model, with the sizes that were given.
    fn load(&self) -> Load {
        match self.sized.get() {
            Some(columns) => {
                Load::new().input_shapes(columns.inputs.iter().map(|(_, dims)| dims.clone()))
            }
            None => Load::new(),
        }
    }

    /// The dimensions of the only input.
    pub fn input(&self) -> &[usize] {
        match self.inputs() {
            [(_, dims)] => dims,
            _ => &[],
        }
    }

    /// The number of classes of the only output, if it can be a classifier.
    pub fn classes(&self) -> Option<usize> {
        match self.outputs() {
            [(_, dims)] => match dims[..] {
                [1] => Some(2),
                [n] => Some(n),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the outputs are logits rather than probabilities.
    pub fn logits(&self) -> bool {
        self.from_logits.unwrap_or(self.activation == Activation::Other)
    }

    /// Whether each output is an independent probability (multi-label classification).
    pub fn is_multi_label(&self) -> bool {
        match self.known_losses() {
            Some(losses) => losses.contains(&"BinaryCrossentropy"),
            None => self.activation == Activation::Sigmoid,
        }
    }

    /// The preprocessing of a model whose file records none.
    pub fn default_preprocessing(&self) -> Preprocessing {
        let classes =
            self.classes().filter(|_| self.is_classifier()).map_or(vec![], numbered_classes);
        Preprocessing::for_model_file("glyphs", self.image_dims(), classes)
    }

    /// Whether the file describes a classifier.
    fn is_classifier(&self) -> bool {
        match self.known_losses() {
            Some(losses) => losses.iter().all(|loss| loss.ends_with("Crossentropy")),
            None => self.activation != Activation::Other,
        }
    }

    /// The losses of the outputs, if any output has one.
    fn known_losses(&self) -> Option<&[&'static str]> {
        match &self.losses {
            Losses::Known(losses) if losses.iter().any(|loss| *loss != NO_LOSS) => Some(losses),
            _ => None,
        }
    }

    /// The dimensions of a sample as an image, if possible. A flat sample may be a square grayscale image.
    pub fn image_dims(&self) -> Vec<usize> {
        match *self.input() {
            [elements] if elements.isqrt().pow(2) == elements => {
                vec![elements.isqrt(), elements.isqrt(), 1]
            }
            [height, width] => vec![height, width, 1],
            ref other => other.to_vec(),
        }
    }

    /// The dimensions that samples of `dims` are converted to: their own if only the shape differs, and the model's size
    /// for images.
    pub fn input_for(&self, dims: &[usize], images: bool) -> Vec<usize> {
        let input = self.input();
        let same_len = dims.iter().product::<usize>() == input.iter().product::<usize>();
        match *dims {
            [height, width] if same_len && images && input.len() == 1 => vec![height, width, 1],
            _ if same_len && input.len() == 1 => dims.to_vec(),
            _ if images => self.image_dims(),
            _ => input.to_vec(),
        }
    }

    /// The class names of the model: from the data, and indices for classes that the data do not have. Empty if the
    /// model is not a classifier.
    pub fn class_names(&self, losses: &[&str], names: Option<&Vec<String>>) -> Vec<String> {
        let is_classifier =
            matches!(losses, [loss] if loss.ends_with("Crossentropy")) || names.is_some();
        let Some(classes) = self.classes().filter(|_| is_classifier) else { return vec![] };
        let mut all = names.cloned().unwrap_or_default();
        all.truncate(classes);
        all.extend(numbered_classes(classes).split_off(all.len()));
        all
    }

    /// Checks the input and classes recorded in this file, or in that of its weights, against the model.
    pub fn check_preprocessing(
        &self,
        preprocessing: &Preprocessing,
        weights: Option<&Path>,
    ) -> Result<()> {
        let elements = |dims: &[usize]| dims.iter().product::<usize>();
        let (classes, input) = (preprocessing.classes.len(), &preprocessing.input);
        let fits = classes == 0 || Some(classes) == self.classes();
        let several = self.inputs().len() != 1 && input.is_empty();
        let open = matches!(&self.declared[..], [(_, shape)] if shape.sizes_of(input).is_some());
        if fits && (several || open || elements(input) == elements(self.input())) {
            return Ok(());
        }
        bail!(
            "{}: expected {} classes of {:?} in its origin, received {classes} of {input:?}",
            weights.unwrap_or(&self.path).display(),
            self.classes().unwrap_or(0),
            self.input(),
        )
    }

    /// The source of the loss, and Keras' class name of the loss of each output.
    /// `has_classes` tells whether the data, or the data the model was trained on, define classes.
    pub fn loss_source(
        &self,
        requested: Option<&str>,
        data: &LoadedData,
        has_classes: bool,
    ) -> Result<(LossSource, Vec<&'static str>)> {
        if let Some(name) = requested {
            let class = losses::get(name).context("--loss")?.class_name();
            return Ok((LossSource::Named(name.into()), vec![class; self.outputs().len()]));
        }
        let path = self.path.display();
        let hint = "add --loss mse, binary_crossentropy or another";
        match &self.losses {
            Losses::Known(classes) => return Ok((LossSource::Stored, classes.clone())),
            Losses::Unknown(error) => bail!("{error}; {hint}"),
            Losses::None => {}
        }
        let ([(_, dims)], [(_, y), ..]) = (self.outputs(), &data.train.targets[..]) else {
            bail!("{path}: was saved without compile, and has several outputs; {hint}");
        };
        let from_logits = self.logits();
        let softmax = self.activation == Activation::Softmax || has_classes;
        let loss = match dims[..] {
            [1] if self.activation == Activation::Sigmoid || has_classes => "BinaryCrossentropy",
            [_] if self.activation == Activation::Sigmoid && y.row_len() > 1 => {
                "BinaryCrossentropy"
            }
            [_] if softmax && y.row_len() == 1 => "SparseCategoricalCrossentropy",
            [n] if softmax && y.row_len() == n => "CategoricalCrossentropy",
            _ => {
                bail!("{path}: was saved without compile, and its loss cannot be inferred; {hint}")
            }
        };
        Ok((LossSource::Inferred { loss, from_logits }, vec![loss]))
    }

    /// The names of the outputs that a loss or metrics compare with targets.
    pub fn target_names(&self, source: &LossSource) -> Vec<String> {
        match source {
            LossSource::Stored => self.compared.clone(),
            _ => self.outputs().iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The outputs with their losses.
    pub fn with_losses(&self, losses: &[&'static str]) -> Vec<Output> {
        let outputs = self.outputs().iter().zip(losses);
        outputs
            .map(|((name, dims), loss)| Output { name: name.clone(), dims: dims.clone(), loss })
            .collect()
    }

    /// A loss and outputs for measuring or planning without data: a classifier if the output is a vector, otherwise a
    /// regression.
    pub fn default_loss(&self) -> (LossSource, Vec<Output>) {
        let loss = match &self.losses {
            Losses::Known(classes) => return (LossSource::Stored, self.with_losses(classes)),
            _ if matches!(self.outputs(), [(_, dims)] if matches!(dims[..], [n] if n > 1)) => {
                "SparseCategoricalCrossentropy"
            }
            _ => "MeanSquaredError",
        };
        let source = match loss {
            "MeanSquaredError" => LossSource::Named("mse".into()),
            _ => LossSource::Inferred { loss, from_logits: self.logits() },
        };
        (source, self.with_losses(&vec![loss; self.outputs().len()]))
    }

    /// The optimizer it was compiled with, or Adam.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>> {
        match read_compile(&self.path)? {
            Some(compile) => Ok(compile.into_optimizer()?),
            None => Ok(Box::new(Adam::default())),
        }
    }

    /// Loads and compiles the model for a purpose. For training, it keeps the stored optimizer state unless the optimizer
    /// is replaced.
    pub fn compiled_model(
        &self,
        loss_source: &LossSource,
        purpose: Purpose,
        options: CompileOptions,
    ) -> Result<Model> {
        let CompileOptions { optimizer, strategy, seed } = options;
        let stored = *loss_source == LossSource::Stored;
        if stored && purpose == Purpose::Train && self.known_losses().is_none() {
            let path = self.path.display();
            let hint = "only penalties of its layers, if any, change weights; add --loss";
            tracing::warn!("{path}: was compiled without a loss: {hint}");
        }
        if stored && purpose == Purpose::Train && optimizer.is_none() {
            return Ok(self.load().strategy(strategy).seed(seed).model(&self.path)?);
        }
        let mut model = self.load().compile(false).model(&self.path)?;
        if purpose == Purpose::Predict {
            model.predict_on(strategy)?;
            return Ok(model);
        }
        let mut compile = match (loss_source, self.stored_for_evaluation()?) {
            (LossSource::Stored, Some(compile)) => compile,
            (LossSource::Named(name), Some(compile)) => {
                compile.replace_losses(name, self.outputs().len())
            }
            (LossSource::Named(name), None) => {
                Compile::new("adam").replace_losses(name, self.outputs().len())
            }
            (LossSource::Inferred { loss, from_logits }, _) => inferred_compile(loss, *from_logits),
            (LossSource::Stored, None) => {
                bail!("{}: was saved without compile", self.path.display())
            }
        };
        if purpose == Purpose::Train {
            compile = compile.optimizer(match optimizer {
                Some(optimizer) => optimizer,
                None => self.optimizer()?,
            });
        }
        model.compile(compile.strategy(strategy).seed(seed))?;
        Ok(model)
    }

    /// The stored losses and metrics, without the optimizer. Warns about metrics that are left out.
    fn stored_for_evaluation(&self) -> Result<Option<Compile>> {
        // An unknown loss is replaced together with the rest of the compile configuration.
        if matches!(self.losses, Losses::Unknown(_)) {
            return Ok(None);
        }
        let Some((compile, left_out)) = read_compile_for_evaluation(&self.path)? else {
            return Ok(None);
        };
        for metric in left_out {
            tracing::warn!("{}: a metric is left out: {metric}", self.path.display());
        }
        Ok(Some(compile))
    }
}

/// The compile configuration of a model that was never compiled.
fn inferred_compile(loss: &str, from_logits: bool) -> Compile {
    let compile = Compile::new("adam").metrics(["accuracy"]);
    match loss {
        "BinaryCrossentropy" => {
            compile.loss(BinaryCrossentropy::default().from_logits(from_logits))
        }
        "CategoricalCrossentropy" => {
            compile.loss(CategoricalCrossentropy::default().from_logits(from_logits))
        }
        _ => compile.loss(SparseCategoricalCrossentropy::default().from_logits(from_logits)),
    }
}

/// The activation of a model's last layer.
fn last_activation(model: &Model) -> Activation {
    // Skips trailing layers that are the identity at inference or change only the shape.
    let is_passthrough = |handle: &LayerHandle| {
        let config = handle.layer().config();
        let linear = config.get("activation").and_then(|value| value.as_str()) == Some("linear");
        match handle.layer().class_name() {
            "Dropout" | "SpatialDropout2D" | "Flatten" | "Reshape" => true,
            "Activation" => linear,
            _ => false,
        }
    };
    let mut layers: Vec<LayerHandle> = model.layers().into_iter().map(|(_, layer)| layer).collect();
    while layers.last().is_some_and(is_passthrough) {
        layers.pop();
    }
    let Some(handle) = layers.pop() else { return Activation::Other };
    let config = handle.layer().config();
    match config.get("activation").and_then(|value| value.as_str()) {
        _ if handle.layer().class_name() == "Softmax" => Activation::Softmax,
        Some("softmax") => Activation::Softmax,
        Some("sigmoid") => Activation::Sigmoid,
        _ => Activation::Other,
    }
}
