//! The model of a file: its inputs and outputs, and what it is trained for.

use crate::data::{Loaded, numbered};
use crate::origin::{Origin, check_sample};
use crate::subject::How;
use crate::targets::Output;
use anyhow::{Context, Result, bail};
use phalanx::losses;
use phalanx::prelude::*;
use phalanx::saving::{read_compile, read_compile_for_evaluation};
use phalanx::text::shown;
use std::path::{Path, PathBuf};

/// What is to be known of a file's model before its data are.
pub struct ModelFile {
    path: PathBuf,
    /// The model's name.
    pub name: String,
    /// Names of the inputs, and dimensions of a sample of each.
    pub inputs: Vec<(String, Vec<usize>)>,
    /// Names of the outputs, and dimensions of a sample of each.
    pub outputs: Vec<(String, Vec<usize>)>,
    /// What the last layer makes of its sums.
    activation: Activation,
    losses: Losses,
    /// Whether the only output's loss takes logits, where it says so.
    from_logits: Option<bool>,
}

/// What the last layer makes of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    Softmax,
    Sigmoid,
    Other,
}

/// The losses that a file's model was compiled with.
enum Losses {
    /// Keras' class names, one for each output.
    Known(Vec<&'static str>),
    /// One that Phalanx does not have: what was said of it.
    Unknown(String),
    /// It was never compiled.
    None,
}

/// What a model is trained for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// What the file, or the network, says.
    Stored,
    /// A loss by name, for every output.
    Named(String),
    /// A loss that fits the only output and the data, where the file has none.
    Chosen { loss: &'static str, from_logits: bool },
}

/// What a model is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To train, with what the optimizer has gathered.
    Train,
    /// To evaluate: neither the optimizer nor unknown metrics matter.
    Evaluate,
    /// To predict: nothing of `compile` matters.
    Predict,
}

impl ModelFile {
    /// Reads a file's structure.
    pub fn open(path: &Path) -> Result<ModelFile> {
        let model = Load::new().compile(false).model(path)?;
        let inputs: Vec<(String, Vec<usize>)> =
            model.input_names().into_iter().zip(model.input_shapes()).collect();
        let outputs = model.output_names().into_iter().zip(model.output_shapes()).collect();
        for (_, input) in &inputs {
            check_sample(input).with_context(|| shown(path.display()).to_string())?;
        }
        let mut from_logits = None;
        let losses = match read_compile_for_evaluation(path) {
            Ok(None) => Losses::None,
            Ok(Some((compile, _))) => match compile.loss_classes() {
                Ok(classes) => {
                    from_logits = compile.losses_from_logits().first().copied().flatten();
                    Losses::Known(classes)
                }
                Err(error) => Losses::Unknown(error.to_string()),
            },
            Err(error) => Losses::Unknown(error.to_string()),
        };
        let (name, activation) = (model.name().into(), activation(&model));
        let path = path.into();
        Ok(ModelFile { path, name, inputs, outputs, activation, losses, from_logits })
    }

    /// The dimensions of the only input.
    pub fn input(&self) -> &[usize] {
        match &self.inputs[..] {
            [(_, dims)] => dims,
            _ => &[],
        }
    }

    /// How many classes the only output tells apart, if it may do so.
    pub fn classes(&self) -> Option<usize> {
        match &self.outputs[..] {
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

    /// Whether each output is a probability of its own, as of several labels.
    pub fn several_labels(&self) -> bool {
        match &self.losses {
            Losses::Known(losses) => losses.contains(&"BinaryCrossentropy"),
            Losses::Unknown(_) | Losses::None => self.activation == Activation::Sigmoid,
        }
    }

    /// As nothing else is known of it.
    pub fn usual(&self) -> Origin {
        let classes = self.classes().filter(|_| self.is_classifier()).map_or(vec![], numbered);
        Origin::unnamed("glyphs", self.image(), classes)
    }

    /// Whether it was made to tell classes apart, as far as the file says.
    fn is_classifier(&self) -> bool {
        match &self.losses {
            Losses::Known(losses) => losses[..].iter().all(|loss| loss.ends_with("Crossentropy")),
            Losses::Unknown(_) | Losses::None => self.activation != Activation::Other,
        }
    }

    /// A sample as an image, where its dimensions are those of one; a flat one may be square and grey.
    pub fn image(&self) -> Vec<usize> {
        match *self.input() {
            [cells] if cells.isqrt().pow(2) == cells => vec![cells.isqrt(), cells.isqrt(), 1],
            [height, width] => vec![height, width, 1],
            ref other => other.to_vec(),
        }
    }

    /// The dimensions that samples of these are brought to: their own where only the shape differs, and for images the
    /// model's size.
    pub fn input_for(&self, own: &[usize], images: bool) -> Vec<usize> {
        let input = self.input();
        let same = own.iter().product::<usize>() == input.iter().product::<usize>();
        match *own {
            [height, width] if same && images && input.len() == 1 => vec![height, width, 1],
            _ if same && input.len() == 1 => own.to_vec(),
            _ if images => self.image(),
            _ => input.to_vec(),
        }
    }

    /// The names of the classes that the model tells apart: those of the data, and numbers for those that the data do not
    /// have. Empty where it does not tell any apart.
    pub fn class_names(&self, losses: &[&str], names: Option<&Vec<String>>) -> Vec<String> {
        let tells = matches!(losses, [loss] if loss.ends_with("Crossentropy")) || names.is_some();
        let Some(classes) = self.classes().filter(|_| tells) else { return vec![] };
        let mut all = names.cloned().unwrap_or_default();
        all.truncate(classes);
        all.extend(numbered(classes).split_off(all.len()));
        all
    }

    /// What this file, or that of its weights, says of input and classes must be so.
    pub fn check_origin(&self, origin: &Origin, weights: Option<&Path>) -> Result<()> {
        let cells = |dims: &[usize]| dims.iter().product::<usize>();
        let (classes, input) = (origin.classes.len(), &origin.input);
        let fits = classes == 0 || Some(classes) == self.classes();
        let several = self.inputs.len() != 1 && input.is_empty();
        if fits && (several || cells(input) == cells(self.input())) {
            return Ok(());
        }
        bail!(
            "{}: expected {} classes of {:?} in its origin, received {classes} of {input:?}",
            weights.unwrap_or(&self.path).display(),
            self.classes().unwrap_or(0),
            self.input(),
        )
    }

    /// What the model is trained or evaluated for, with Keras' names of the losses of its outputs.
    /// `of_classes` says whether the data, or what the model was trained on, are made of classes.
    pub fn goal(
        &self,
        asked: Option<&str>,
        data: &Loaded,
        of_classes: bool,
    ) -> Result<(Goal, Vec<&'static str>)> {
        if let Some(name) = asked {
            let class = losses::get(name).context("--loss")?.class_name();
            return Ok((Goal::Named(name.into()), vec![class; self.outputs.len()]));
        }
        let path = self.path.display();
        let named = "add --loss mse, binary_crossentropy or another";
        match &self.losses {
            Losses::Known(classes) => return Ok((Goal::Stored, classes.clone())),
            Losses::Unknown(error) => bail!("{error}; {named}"),
            Losses::None => {}
        }
        let ([(_, dims)], [(_, y), ..]) = (&self.outputs[..], &data.train.targets[..]) else {
            bail!("{path}: was saved without compile, and has several outputs; {named}");
        };
        let from_logits = self.logits();
        let softmax = self.activation == Activation::Softmax || of_classes;
        let loss = match dims[..] {
            [1] if self.activation == Activation::Sigmoid || of_classes => "BinaryCrossentropy",
            [_] if self.activation == Activation::Sigmoid && y.row_len() > 1 => {
                "BinaryCrossentropy"
            }
            [_] if softmax && y.row_len() == 1 => "SparseCategoricalCrossentropy",
            [n] if softmax && y.row_len() == n => "CategoricalCrossentropy",
            _ => bail!(
                "{path}: was saved without compile: which loss it is for is not clear; {named}"
            ),
        };
        Ok((Goal::Chosen { loss, from_logits }, vec![loss]))
    }

    /// The outputs with their losses.
    pub fn with_losses(&self, losses: &[&'static str]) -> Vec<Output> {
        let outputs = self.outputs.iter().zip(losses);
        outputs
            .map(|((name, dims), loss)| Output { name: name.clone(), dims: dims.clone(), loss })
            .collect()
    }

    /// A goal and outputs that fit no data, to measure or plan with: classes for a vector, else numbers.
    pub fn usual_goal(&self) -> (Goal, Vec<Output>) {
        let loss = match &self.losses {
            Losses::Known(classes) => return (Goal::Stored, self.with_losses(classes)),
            _ if matches!(&self.outputs[..], [(_, dims)] if matches!(dims[..], [n] if n > 1)) => {
                "SparseCategoricalCrossentropy"
            }
            _ => "MeanSquaredError",
        };
        let name = match loss {
            "MeanSquaredError" => Goal::Named("mse".into()),
            _ => Goal::Chosen { loss, from_logits: self.logits() },
        };
        (name, self.with_losses(&vec![loss; self.outputs.len()]))
    }

    /// The optimizer it was compiled with, or Adam.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>> {
        match read_compile(&self.path)? {
            Some(compile) => Ok(compile.into_optimizer()?),
            None => Ok(Box::new(Adam::default())),
        }
    }

    /// The model, compiled for a purpose. To train, it has what its optimizer has gathered, unless another takes its
    /// place.
    pub fn compiled(&self, goal: &Goal, purpose: Purpose, how: How) -> Result<Model> {
        let How { optimizer, strategy, seed } = how;
        if *goal == Goal::Stored && purpose == Purpose::Train && optimizer.is_none() {
            return Ok(Load::new().strategy(strategy).seed(seed).model(&self.path)?);
        }
        let mut model = Load::new().compile(false).model(&self.path)?;
        if purpose == Purpose::Predict {
            model.predict_on(strategy)?;
            return Ok(model);
        }
        let mut compile = match (goal, self.stored_for_evaluation()?) {
            (Goal::Stored, Some(compile)) => compile,
            (Goal::Named(name), Some(compile)) => compile.replace_losses(name, self.outputs.len()),
            (Goal::Named(name), None) => {
                Compile::new("adam").replace_losses(name, self.outputs.len())
            }
            (Goal::Chosen { loss, from_logits }, _) => chosen(loss, *from_logits),
            (Goal::Stored, None) => bail!("{}: was saved without compile", self.path.display()),
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

    /// The stored losses and metrics, without the optimizer; says which metrics are left out.
    fn stored_for_evaluation(&self) -> Result<Option<Compile>> {
        // A loss that is not known is replaced, and everything else of the call with it.
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

/// How a model that was never compiled is trained.
fn chosen(loss: &str, from_logits: bool) -> Compile {
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

/// What a model's last layer makes of its sums.
fn activation(model: &Model) -> Activation {
    // Layers behind it that change nothing when the model predicts, or only the shape.
    let passes = |handle: &LayerHandle| {
        let config = handle.layer().config();
        let linear = config.get("activation").and_then(|value| value.as_str()) == Some("linear");
        match handle.layer().class_name() {
            "Dropout" | "SpatialDropout2D" | "Flatten" | "Reshape" => true,
            "Activation" => linear,
            _ => false,
        }
    };
    let mut layers: Vec<LayerHandle> = model.layers().into_iter().map(|(_, layer)| layer).collect();
    while layers.last().is_some_and(passes) {
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
