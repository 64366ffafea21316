//! The model of a file as something that tells classes apart.

use crate::data::{MOST_CLASSES, numbered};
use crate::origin::{Origin, check_sample};
use crate::subject::How;
use anyhow::{Context, Result, bail};
use phalanx::data::to_categorical;
use phalanx::prelude::*;
use phalanx::saving::read_compile;
use phalanx::text::shown;
use std::path::{Path, PathBuf};

/// What is to be known of a file's model before its data are.
pub struct ModelFile {
    path: PathBuf,
    /// The model's name.
    pub name: String,
    /// Dimensions of a sample.
    pub input: Vec<usize>,
    /// Numbers that come out for a sample: one for each class, or one for two of them.
    outputs: usize,
    /// Whether they are logits rather than probabilities.
    pub logits: bool,
    /// The class of the loss it was compiled with.
    loss: Option<&'static str>,
}

impl ModelFile {
    /// Reads a file's structure.
    pub fn open(path: &Path) -> Result<ModelFile> {
        let model = Load::new().compile(false).model(path)?;
        let (inputs, outputs) = (model.input_shapes(), model.output_shapes());
        let ([input], [output]) = (&inputs[..], &outputs[..]) else {
            let expected = "expected a model with one input and one output";
            bail!(
                "{}: {expected}, received {} and {}",
                shown(path.display()),
                inputs.len(),
                outputs.len()
            );
        };
        let &[outputs @ 1..=MOST_CLASSES] = &output[..] else {
            let expected = "expected a model whose output has a number for each class";
            bail!("{}: {expected}, received {output:?}", shown(path.display()));
        };
        check_sample(input).with_context(|| shown(path.display()).to_string())?;
        let losses = match read_compile(path)? {
            Some(compile) => compile.loss_classes()?,
            None => vec![],
        };
        Ok(ModelFile {
            path: path.into(),
            name: model.name().into(),
            input: input.clone(),
            outputs,
            logits: !gives_probabilities(&model),
            loss: losses.first().copied(),
        })
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.outputs.max(2)
    }

    /// As nothing else is known of it.
    pub fn usual(&self) -> Origin {
        Origin::unnamed("glyphs", self.image(), numbered(self.classes()))
    }

    /// A sample as an image, where its dimensions are those of one; a flat one may be square and grey.
    pub fn image(&self) -> Vec<usize> {
        match self.input[..] {
            [cells] if cells.isqrt().pow(2) == cells => vec![cells.isqrt(), cells.isqrt(), 1],
            [height, width] => vec![height, width, 1],
            _ => self.input.clone(),
        }
    }

    /// The dimensions that samples of these are brought to: their own where only the shape differs.
    pub fn input_for(&self, own: &[usize], images: bool) -> Vec<usize> {
        let same = own.iter().product::<usize>() == self.input.iter().product::<usize>();
        match *own {
            [height, width] if same && images && self.input.len() == 1 => vec![height, width, 1],
            _ if same && self.input.len() == 1 => own.to_vec(),
            _ => self.image(),
        }
    }

    /// The names of the classes of data; numbers for those that the data do not have.
    pub fn class_names(&self, mut names: Vec<String>) -> Result<Vec<String>> {
        let (classes, received) = (self.classes(), names.len());
        if received > classes {
            let path = shown(self.path.display());
            bail!("expected at most the {classes} classes of {path}, received {received}");
        }
        names.extend(numbered(classes).split_off(received));
        Ok(names)
    }

    /// What this file, or that of its weights, says of input and classes must be so.
    pub fn check_origin(&self, origin: &Origin, weights: Option<&Path>) -> Result<()> {
        let cells = |dims: &[usize]| dims.iter().product::<usize>();
        let (classes, input) = (origin.classes.len(), &origin.input);
        if classes == self.classes() && cells(input) == cells(&self.input) {
            return Ok(());
        }
        bail!(
            "{}: expected {} classes of {:?} in its origin, received {classes} of {input:?}",
            shown(weights.unwrap_or(&self.path).display()),
            self.classes(),
            self.input,
        )
    }

    /// Class numbers as the loss takes them: as they are, as a column or as one-hot rows.
    pub fn targets(&self, labels: &Tensor) -> Result<Tensor> {
        match self.loss {
            Some("SparseCategoricalCrossentropy") => Ok(labels.clone()),
            _ if self.outputs == 1 => {
                let values = labels.i32().unwrap_or_default().iter().map(|class| *class as f32);
                Ok(Tensor::new([labels.rows(), 1], values.collect::<Vec<f32>>())?)
            }
            None => Ok(labels.clone()),
            Some(_) => Ok(to_categorical(labels, Some(self.outputs))?),
        }
    }

    /// The optimizer it was compiled with, or Adam.
    pub fn optimizer(&self) -> Result<Box<dyn Optimizer>> {
        match read_compile(&self.path)? {
            Some(compile) => Ok(compile.into_optimizer()?),
            None => Ok(Box::new(Adam::default())),
        }
    }

    /// The model, compiled as its file says, with what its optimizer has gathered unless another takes
    /// its place; else for telling classes apart.
    pub fn compiled(&self, how: How) -> Result<Model> {
        let How { optimizer, strategy, seed } = how;
        if self.loss.is_some() && optimizer.is_none() {
            return Ok(Load::new().strategy(strategy).seed(seed).model(&self.path)?);
        }
        let mut model = Load::new().compile(false).model(&self.path)?;
        let mut compile = match read_compile(&self.path)? {
            Some(compile) => compile,
            None => self.usual_compile(),
        };
        if let Some(optimizer) = optimizer {
            compile = compile.optimizer(optimizer);
        }
        model.compile(compile.strategy(strategy).seed(seed))?;
        Ok(model)
    }

    fn usual_compile(&self) -> Compile {
        let compile = Compile::new("adam").metrics(["accuracy"]);
        match self.outputs {
            1 => compile.loss(BinaryCrossentropy::default().from_logits(self.logits)),
            _ => compile.loss(SparseCategoricalCrossentropy::default().from_logits(self.logits)),
        }
    }
}

/// Whether a model's last layer is one whose outputs are probabilities.
fn gives_probabilities(model: &Model) -> bool {
    let named = model.output_names().first().and_then(|name| model.layer(name).ok());
    let last = || model.layers().pop().map(|(_, layer)| layer);
    let Some(handle) = named.or_else(last) else { return false };
    let config = handle.layer().config();
    let activation = config.get("activation").and_then(|value| value.as_str());
    handle.layer().class_name() == "Softmax" || matches!(activation, Some("softmax" | "sigmoid"))
}
