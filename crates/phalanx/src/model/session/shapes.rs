//! The shapes of a session's batches. A model with open sizes has steps and programs of its own for each shape. All of
//! them use the same parameters on the devices.

use super::batch_checks::check_count;
use super::programs::Programs;
use super::step_cache::{LoadedPrograms, StepCache};
use super::{Objective, StepKind};
use crate::data::{HostBatch, Samples};
use crate::error::{Error, Result};
use crate::layer::lock;
use phalanx_distributed::warnings::warning;
use phalanx_graph::{Tensor, Type};

/// Number of shapes whose programs are kept. The least recently used ones are dropped.
const MAX_SHAPES: usize = 32;

/// Number of shapes above which a warning advises buckets.
const MANY_SHAPES: usize = 16;

/// Batches of one shape: their types, steps and programs.
pub(crate) struct BatchShape {
    /// Dimensions of one sample of each input.
    pub inputs: Vec<Vec<usize>>,
    /// Dimensions of the sample weights of each target, without the samples; none if all targets have one weight for each
    /// sample.
    pub weights: Vec<Vec<usize>>,
    pub outputs: Vec<Type>,
    /// The types of the targets.
    pub targets: Vec<Type>,
    pub steps: StepCache,
    pub loaded: LoadedPrograms,
    /// When it was last used.
    used: u64,
}

impl BatchShape {
    /// A shape without programs.
    pub fn new(
        objective: &Objective,
        inputs: Vec<Vec<usize>>,
        weights: Vec<Vec<usize>>,
        outputs: Vec<Type>,
    ) -> Result<BatchShape> {
        let compared = objective.compared();
        let target = |output: &usize| objective.target_type(*output, &outputs[*output]);
        let targets = match &objective.custom {
            Some(custom) => custom.targets.iter().map(|(_, ty)| ty.clone()).collect(),
            None => compared.iter().map(target).collect::<Result<_>>()?,
        };
        objective.check_state_sizes(&outputs)?;
        let (steps, loaded) = (StepCache::default(), LoadedPrograms::default());
        Ok(BatchShape { inputs, weights, outputs, targets, steps, loaded, used: 0 })
    }
}

/// A step for batches of a shape, which is an index that is valid until the next shape is added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapedStep {
    pub kind: StepKind,
    pub shape: usize,
}

/// The shapes of a session's batches. A model without open sizes has one.
#[derive(Default)]
pub(crate) struct ShapeCache {
    shapes: Vec<BatchShape>,
    uses: u64,
    /// Whether a warning said that there are many shapes.
    warned: bool,
}

impl ShapeCache {
    pub fn get(&self, shape: usize) -> &BatchShape {
        &self.shapes[shape]
    }

    pub fn get_mut(&mut self, shape: usize) -> &mut BatchShape {
        &mut self.shapes[shape]
    }

    /// The shapes, the most recently used one first.
    pub fn by_use(&self) -> Vec<&BatchShape> {
        let mut shapes: Vec<&BatchShape> = self.shapes.iter().collect();
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.used));
        shapes
    }

    /// Finds a shape and marks it as used.
    fn find(&mut self, inputs: &[Vec<usize>], weights: &[Vec<usize>]) -> Option<usize> {
        let same = |shape: &BatchShape| shape.inputs == inputs && shape.weights == weights;
        let at = self.shapes.iter().position(same)?;
        self.uses += 1;
        self.shapes[at].used = self.uses;
        Some(at)
    }

    /// Adds a shape; returns the one that was dropped for it, if any.
    fn add(&mut self, mut shape: BatchShape) -> (usize, Option<BatchShape>) {
        self.uses += 1;
        shape.used = self.uses;
        let mut dropped = None;
        if self.shapes.len() >= MAX_SHAPES {
            let oldest = (0..self.shapes.len()).min_by_key(|at| self.shapes[*at].used);
            dropped = oldest.map(|at| self.shapes.swap_remove(at));
        }
        self.shapes.push(shape);
        (self.shapes.len() - 1, dropped)
    }

    /// The shape with the most elements.
    fn largest(&self) -> Option<usize> {
        let elements = |at: &usize| -> usize {
            let of_input = |dims: &Vec<usize>| dims.iter().product::<usize>();
            self.shapes[*at].inputs.iter().map(of_input).sum()
        };
        (0..self.shapes.len()).max_by_key(elements)
    }
}

impl Programs {
    /// The shape of a batch, given the sizes of the weights of its targets. A new one is added, for which no step may be in
    /// flight.
    pub(super) fn shape_of(
        &mut self,
        objective: &Objective,
        batch: &HostBatch,
        weights: &[Vec<usize>],
    ) -> Result<usize> {
        if self.is_only_shape(weights) {
            return Ok(0);
        }
        let inputs = self.input_sizes(&batch.inputs)?;
        self.shape_for(objective, &inputs, weights)
    }

    /// Whether batches with these sizes of weights have the only shape.
    fn is_only_shape(&self, weights: &[Vec<usize>]) -> bool {
        !self.def.is_open() && weights.is_empty() && self.shapes.shapes.len() == 1
    }

    /// The shape of a batch, if a batch has had it before.
    pub(super) fn known_shape_of(
        &mut self,
        batch: &HostBatch,
        weights: &[Vec<usize>],
    ) -> Result<Option<usize>> {
        if self.is_only_shape(weights) {
            return Ok(Some(0));
        }
        let inputs = self.input_sizes(&batch.inputs)?;
        Ok(self.shapes.find(&inputs, weights))
    }

    /// The shape of batches of these samples.
    pub(super) fn shape_of_samples(
        &mut self,
        objective: &Objective,
        inputs: &[Samples],
        weights: &[Vec<usize>],
    ) -> Result<usize> {
        if self.is_only_shape(weights) {
            return Ok(0);
        }
        check_count(&self.def, "inputs", self.def.fed.len(), inputs.len())?;
        let sizes = |(i, samples): (usize, &Samples)| self.sizes_of(i, samples.dims());
        let sizes = inputs.iter().enumerate().map(sizes).collect::<Result<Vec<_>>>()?;
        self.shape_for(objective, &sizes, weights)
    }

    /// The shape that plans are made for: the largest so far.
    ///
    /// # Errors
    /// If sizes are open and no batch has been seen.
    pub(crate) fn planned(&self, kind: StepKind) -> Result<ShapedStep> {
        let shape = self.shapes.largest().ok_or_else(|| {
            let owner = format!("model '{}'", self.def.name);
            let shapes = self.def.fed.iter().map(|fed| format!("{} of '{}'", fed.shape, fed.name));
            let received = shapes.collect::<Vec<_>>().join(", ");
            let expected = match self.def.host {
                Some(_) => "known sizes (output_sequence_length fixes those of texts)",
                None => "known sizes (give them with Model::with_input_shapes)",
            };
            Error::argument(owner, "inputs", expected, received)
        })?;
        Ok(ShapedStep { kind, shape })
    }

    /// The shape of batches with samples of these sizes.
    pub(super) fn shape_for(
        &mut self,
        objective: &Objective,
        inputs: &[Vec<usize>],
        weights: &[Vec<usize>],
    ) -> Result<usize> {
        if let Some(known) = self.shapes.find(inputs, weights) {
            return Ok(known);
        }
        let outputs = self.def.output_types_for(inputs)?;
        let shape = BatchShape::new(objective, inputs.to_vec(), weights.to_vec(), outputs)?;
        let (at, dropped) = self.shapes.add(shape);
        for program in dropped.iter().flat_map(|shape| shape.loaded.all()) {
            lock(&self.executor).unload(program.id);
        }
        let many = self.shapes.shapes.len() > MANY_SHAPES;
        if many && !std::mem::replace(&mut self.shapes.warned, true) {
            let advice = match self.def.host {
                Some(_) => "output_sequence_length gives texts one length",
                None => {
                    "pad them to fewer, for example with bucket_by_sequence_length and \
                     pad_to_bucket_boundary"
                }
            };
            warning!(
                "the batches have more than {MANY_SHAPES} shapes, and each is compiled for itself: {advice}"
            );
        }
        Ok(at)
    }

    /// Adds the only shape of a model without open sizes.
    pub(super) fn add_only_shape(&mut self, shape: BatchShape) {
        self.shapes.add(shape);
    }

    /// Drops the programs of all shapes, whose metrics have changed.
    pub(super) fn rebuild_shapes(&mut self, objective: &Objective) -> Result<()> {
        for shape in std::mem::take(&mut self.shapes.shapes) {
            shape.loaded.all().for_each(|program| lock(&self.executor).unload(program.id));
            let BatchShape { inputs, weights, outputs, .. } = shape;
            self.shapes.add(BatchShape::new(objective, inputs, weights, outputs)?);
        }
        Ok(())
    }

    /// The sizes of the samples of a batch.
    fn input_sizes(&self, inputs: &[Tensor]) -> Result<Vec<Vec<usize>>> {
        check_count(&self.def, "inputs", self.def.fed.len(), inputs.len())?;
        inputs.iter().enumerate().map(|(i, t)| self.sizes_of(i, t.dims())).collect()
    }

    /// The sizes of the samples of an input, from the dimensions of a batch.
    fn sizes_of(&self, input: usize, dims: &[usize]) -> Result<Vec<usize>> {
        let fed = &self.def.fed[input];
        let (name, shape) = (&fed.name, &fed.shape);
        let sizes = shape.sizes_of(dims.get(1..).unwrap_or_default());
        sizes.filter(|sizes| !sizes.contains(&0)).ok_or_else(|| {
            let owner = format!("model '{}'", self.def.name);
            let argument = format!("input '{name}'");
            let empty = if self.def.host.is_some() && dims.contains(&0) {
                " (a batch of texts needs at least one token)"
            } else {
                ""
            };
            Error::argument(owner, argument, shape.to_string(), format!("{dims:?}{empty}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: usize) -> BatchShape {
        BatchShape {
            inputs: vec![vec![size, 2]],
            weights: vec![],
            outputs: vec![],
            targets: vec![],
            steps: StepCache::default(),
            loaded: LoadedPrograms::default(),
            used: 0,
        }
    }

    #[test]
    fn the_least_recently_used_shape_is_dropped() {
        let mut cache = ShapeCache::default();
        for size in 1..=MAX_SHAPES {
            assert!(cache.add(shape(size)).1.is_none());
        }
        cache.find(&[vec![1, 2]], &[]).unwrap();
        let (at, dropped) = cache.add(shape(100));
        assert_eq!(dropped.unwrap().inputs, [[2, 2]]);
        assert_eq!(cache.get(at).inputs, [[100, 2]]);
        assert!(cache.find(&[vec![2, 2]], &[]).is_none());
        assert!(cache.find(&[vec![1, 2]], &[]).is_some());
        // Sample weights of each output need programs of their own.
        assert!(cache.find(&[vec![1, 2]], &[vec![]]).is_none());
        assert_eq!(cache.get(cache.largest().unwrap()).inputs, [[100, 2]]);
        assert_eq!(cache.by_use()[0].inputs, [[1, 2]]);
        assert_eq!(cache.shapes.len(), MAX_SHAPES);
    }
}
