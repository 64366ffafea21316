//! Inference of the types of a model's values, by lowering it. If sizes of the inputs are open, it is lowered for two sizes.

use super::definition::{Definition, Member};
use super::shape::ValueType;
use super::symbol::Callee;
use crate::error::{Error, Result};
use crate::layer::{InputSizes, Lowering};
use phalanx_graph::Type;

/// The types of a model's values for inputs of some sizes.
struct Inferred {
    calls: Vec<Vec<Type>>,
    outputs: Vec<Type>,
}

/// Pairs of sizes that stand for the open ones while types are inferred. An axis whose size differs between them is open.
/// The first sizes survive many poolings, the next ones have many divisors, and the others are for layers that refuse
/// large ones.
const PROBES: [[usize; 2]; 6] = [[256, 384], [240, 360], [420, 840], [64, 96], [16, 24], [4, 6]];

/// The types of the outputs of each call, and of the model.
type ValueTypes = (Vec<Vec<ValueType>>, Vec<ValueType>);

impl Definition {
    /// Returns whether sizes of what a step is fed with are open.
    pub(crate) fn is_open(&self) -> bool {
        self.fed.iter().any(|fed| fed.shape.is_open())
    }

    /// Returns the size of every batch, if an input of this model or of a nested one fixes it.
    pub(crate) fn batch_size(&self) -> Option<usize> {
        let of_member = |member: &Member| match &member.callee {
            Callee::Input(input) => input.batch_size,
            Callee::Model(inner) => inner.batch_size(),
            Callee::Layer(_) => None,
        };
        self.members.iter().find_map(of_member)
    }

    /// Returns the shapes of what a step is fed with, with examples of open sizes.
    pub(crate) fn example_shapes(&self) -> Vec<Vec<usize>> {
        self.shapes_with(self.fed.example)
    }

    fn shapes_with(&self, open: usize) -> Vec<Vec<usize>> {
        self.fed.iter().map(|fed| fed.shape.with_open(open)).collect()
    }

    /// Lowers the model in inference mode to infer types, declare weights and report errors: once, or for two sizes if
    /// sizes of the inputs are open.
    pub(super) fn infer_types(&mut self) -> Result<()> {
        let (mut calls, outputs) = match self.is_open() {
            false => {
                let Inferred { calls, outputs } = self.infer(&self.example_shapes(), false)?;
                let known = |types: Vec<Type>| types.into_iter().map(ValueType::known).collect();
                (calls.into_iter().map(known).collect(), known(outputs))
            }
            true => self.infer_open()?,
        };
        self.output_types = outputs;
        if let Some(ty) = self.output_types.iter().find(|ty| !ty.is_rows()) {
            let (owner, received) = (format!("model '{}'", self.name), ty.shape_text());
            return Err(Error::argument(owner, "outputs", "one value per sample", received));
        }
        if let Some(stage) = &self.host {
            stage.set_host_types(&mut calls);
        }
        for (model_call, types) in self.calls.iter_mut().zip(calls) {
            model_call.types = types;
        }
        Ok(())
    }

    /// Infers types with the first sizes that all layers accept. If there are none, the error is that of the first
    /// sizes, or of a weight that depends on them.
    fn infer_open(&mut self) -> Result<ValueTypes> {
        let layers = self.layers();
        let declared: Vec<usize> = layers.iter().map(|(_, layer)| layer.weights().len()).collect();
        let mut error = None;
        for probe in PROBES {
            match self.infer_pair(probe) {
                Ok(types) => {
                    self.fed.example = probe[0];
                    return Ok(types);
                }
                Err(failed) => {
                    // The weights of this attempt may have other shapes than those of the next.
                    for ((_, layer), declared) in layers.iter().zip(&declared) {
                        layer.weights().truncate(*declared);
                    }
                    let dependent = matches!(failed, Error::OpenWeight { .. });
                    if dependent || error.is_none() {
                        error = Some(failed);
                    }
                    if dependent {
                        break;
                    }
                }
            }
        }
        Err(error.expect("there are sizes to try"))
    }

    fn infer_pair(&self, sizes: [usize; 2]) -> Result<ValueTypes> {
        let [first, second] = sizes.map(|size| self.infer(&self.shapes_with(size), true));
        let (first, second) = (first?, second?);
        let merge = |name: &str, first: Vec<Type>, second: &[Type]| -> Result<Vec<ValueType>> {
            let same_count = first.len() == second.len();
            let pairs = first.into_iter().zip(second);
            let merged: Option<Vec<ValueType>> =
                pairs.map(|(a, b)| ValueType::of_two(a, b)).collect();
            merged.filter(|_| same_count).ok_or_else(|| {
                let expected = "as many outputs and axes for all sizes of its inputs";
                let owner = format!("layer '{name}'");
                Error::argument(owner, "open sizes", expected, "others for other sizes")
            })
        };
        let mut calls = vec![];
        for ((call, first), second) in self.calls.iter().zip(first.calls).zip(&second.calls) {
            calls.push(merge(&self.members[call.member].name, first, second)?);
        }
        Ok((calls, merge(&self.name, first.outputs, &second.outputs)?))
    }

    /// Infers the types for inputs of these shapes. `open` says that other shapes follow.
    fn infer(&self, shapes: &[Vec<usize>], open: bool) -> Result<Inferred> {
        let mut low = Lowering::new(false);
        low.sizes = InputSizes { open, batch: self.batch_size() };
        let mut calls = vec![];
        let outputs = self.lower_on_feeds_with(&mut low, shapes, |types| calls.push(types))?;
        let outputs = outputs.iter().map(|o| low.graph.ty(o.node).clone()).collect();
        Ok(Inferred { calls, outputs })
    }

    /// Returns the types of the outputs for inputs of these shapes.
    pub(crate) fn output_types_for(&self, shapes: &[Vec<usize>]) -> Result<Vec<Type>> {
        Ok(self.infer(shapes, self.is_open())?.outputs)
    }
}
