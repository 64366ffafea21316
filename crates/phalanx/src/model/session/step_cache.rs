//! The steps of a model, each built once, and their programs, each compiled once.

use crate::error::Result;
use phalanx_exec::ProgramId;
use phalanx_graph::program::FetchPlan;
use phalanx_graph::{Options, Program, Step};
use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

/// A step of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Forward, backward, update.
    Train,
    /// Losses and metrics.
    Test,
    /// Outputs.
    Predict,
    /// Forward and backward; nothing changes.
    Gradients,
}

/// A step, and the values of the constants that are among its feeds.
pub(super) struct BuiltStep {
    pub step: Step,
    pub constants: Vec<Vec<f32>>,
}

/// Compiled programs that are kept for later calls with the same options.
const MAX_PROGRAMS: usize = 8;

/// The steps of a model for batches of one shape, and their programs. The training step is built by `compile`, if sizes
/// are known, the others on first use. Everyone who needs a program reads it here: the header of a run, the memory plan, `fit`.
#[derive(Default)]
pub(crate) struct StepCache {
    steps: [OnceCell<BuiltStep>; 4],
    programs: RefCell<Vec<(StepKind, Options, Arc<Program>)>>,
}

impl StepCache {
    /// Stores a step that was built already.
    pub(super) fn set(&self, kind: StepKind, step: BuiltStep) {
        // A step is a function of the model: an earlier one is the same.
        let _ = self.steps[kind as usize].set(step);
    }

    /// The constants among the feeds of a step that was built.
    pub fn constants(&self, kind: StepKind) -> &[Vec<f32>] {
        self.steps[kind as usize].get().map_or(&[], |built| &built.constants)
    }

    /// The program of a step, whose parameters are partitioned along `axes`. `build` builds the step for a largest
    /// batch if this is its first use.
    pub(super) fn program(
        &self,
        kind: StepKind,
        (options, axes): (Options, &[Option<usize>]),
        build: impl Fn(usize) -> Result<BuiltStep>,
    ) -> Result<Arc<Program>> {
        let known = |(k, o, _): &&(StepKind, Options, _)| *k == kind && *o == options;
        if let Some((.., program)) = self.programs.borrow().iter().find(known) {
            return Ok(program.clone());
        }
        let program = Arc::new(self.compile(kind, (options, axes), build)?);
        let mut programs = self.programs.borrow_mut();
        if programs.len() == MAX_PROGRAMS {
            programs.remove(0);
        }
        programs.push((kind, options, program.clone()));
        Ok(program)
    }

    /// As [`program`](Self::program), but nothing is kept: for a search over many batch sizes.
    pub(super) fn compile(
        &self,
        kind: StepKind,
        (options, axes): (Options, &[Option<usize>]),
        build: impl Fn(usize) -> Result<BuiltStep>,
    ) -> Result<Program> {
        let cell = &self.steps[kind as usize];
        let built = match cell.get() {
            Some(built) => built,
            None => {
                let built = build(options.max_batch)?;
                cell.get_or_init(|| built)
            }
        };
        let mut step = match built.step.graph.batch_limit() {
            // Its shapes depend on the largest batch.
            Some(rows) if rows != options.max_batch => build(options.max_batch)?.step,
            _ => built.step.clone(),
        };
        step.graph.set_partition_axes(axes);
        Ok(Program::compile(step, options)?)
    }
}

/// A program on the devices.
pub(crate) struct LoadedProgram {
    pub id: ProgramId,
    pub max_batch: usize,
    pub fetches: Vec<FetchPlan>,
}

/// Index of the program for predictions on few rows, after those of each kind.
const FEW_ROWS: usize = 4;

/// The programs on the devices for batches of one shape: one of each kind, which serves smaller batches
/// too and is replaced by one for a larger batch. Predictions on few rows have their own.
#[derive(Default)]
pub(crate) struct LoadedPrograms {
    programs: [Option<LoadedProgram>; 5],
}

impl LoadedPrograms {
    fn index(kind: StepKind, few_rows: bool) -> usize {
        if kind == StepKind::Predict && few_rows { FEW_ROWS } else { kind as usize }
    }

    /// The program for a batch of this size.
    pub fn get(&self, kind: StepKind, few_rows: bool, batch: usize) -> Option<ProgramId> {
        let program = self.programs[Self::index(kind, few_rows)].as_ref();
        program.filter(|p| p.max_batch >= batch).map(|p| p.id)
    }

    /// Replaces a program; returns the old one.
    pub fn set(
        &mut self,
        kind: StepKind,
        few_rows: bool,
        program: LoadedProgram,
    ) -> Option<LoadedProgram> {
        self.programs[Self::index(kind, few_rows)].replace(program)
    }

    /// All programs.
    pub fn all(&self) -> impl Iterator<Item = &LoadedProgram> {
        self.programs.iter().flatten()
    }

    /// The programs of a kind.
    pub fn of(&self, kind: StepKind) -> impl Iterator<Item = &LoadedProgram> {
        let few = self.programs[FEW_ROWS].as_ref().filter(|_| kind == StepKind::Predict);
        [self.programs[kind as usize].as_ref(), few].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::lock;
    use crate::prelude::*;
    use phalanx_graph::{Graph, Mesh};

    #[test]
    fn a_step_is_built_once_and_a_program_compiled_once_for_each_batch_size() {
        let cache = StepCache::default();
        let built = std::cell::Cell::new(0);
        let program = |kind, batch| {
            let build = |_| {
                built.set(built.get() + 1);
                Ok(BuiltStep { step: Step::new("nothing", Graph::new()), constants: vec![] })
            };
            cache.program(kind, (Options::new(Mesh::new(1, 1), batch), &[]), build).unwrap()
        };
        let first = program(StepKind::Train, 8);
        assert!(Arc::ptr_eq(&first, &program(StepKind::Train, 8)));
        assert!(!Arc::ptr_eq(&first, &program(StepKind::Train, 9)));
        assert_eq!(built.get(), 1);
        program(StepKind::Test, 8);
        assert_eq!(built.get(), 2);
        for batch in 10..10 + MAX_PROGRAMS {
            program(StepKind::Train, batch);
        }
        assert_eq!((built.get(), cache.programs.borrow().len()), (2, MAX_PROGRAMS));
    }

    #[test]
    fn a_step_whose_shapes_depend_on_the_batch_is_built_for_each() {
        let cache = StepCache::default();
        let built = std::cell::RefCell::new(vec![]);
        let program = |batch| {
            let build = |max_batch| {
                built.borrow_mut().push(max_batch);
                let mut graph = Graph::new();
                graph.set_max_batch(max_batch);
                graph.max_batch();
                Ok(BuiltStep { step: Step::new("table", graph), constants: vec![] })
            };
            let options = Options::new(Mesh::new(1, 1), batch);
            cache.program(StepKind::Train, (options, &[]), build).unwrap()
        };
        for batch in [8, 3, 8, 9, 3, 9] {
            program(batch);
        }
        assert_eq!(*built.borrow(), [8, 3, 9]);
    }

    #[test]
    fn compile_builds_the_training_step_and_fit_uses_the_program_of_the_memory_plan() {
        let mut model = Sequential::new().add(Input::new([4])).add(Dense::new(2)).build().unwrap();
        model.compile(Compile::new("sgd").loss("mse")).unwrap();
        let program = |model: &Model| {
            let session = lock(&model.session);
            let steps = &session.as_ref().unwrap().programs.shapes.get(0).steps;
            assert!(steps.steps[StepKind::Train as usize].get().is_some());
            steps.programs.borrow().iter().map(|(.., program)| program.clone()).collect::<Vec<_>>()
        };
        assert!(program(&model).is_empty());
        model.own_memory_plan(StepKind::Train, 8).unwrap();
        let planned = program(&model);
        let (x, y) = (Tensor::zeros([8, 4]), Tensor::zeros([8, 2]));
        model.fit((x, y), Fit::new().batch_size(8).verbose(0)).unwrap();
        let used = program(&model);
        assert!(planned.len() == 1 && used.len() == 1 && Arc::ptr_eq(&planned[0], &used[0]));
    }
}
