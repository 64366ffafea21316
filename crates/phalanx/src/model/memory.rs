//! Memory planning: the device memory a step needs and the largest batch that fits, without running the step.

use super::session::{Objective, Placement, Programs, Session, ShapedStep, StepKind};
use super::{Model, thousands};
use crate::error::{Error, Result};
use crate::layer::lock;
use crate::strategy::{Backend, Device, DeviceKind, MAX_THREADS, Recompute, check_compatible};
use phalanx_distributed::warnings::warning;
use phalanx_exec::ExecError;
pub use phalanx_exec::MemoryPlan;
use phalanx_graph::program::{Mesh, Program};
use std::sync::Arc;

/// Upper limit of the search for the largest batch, in samples per replica.
const MAX_ROWS_PER_REPLICA: usize = 1 << 30;

/// The devices of a memory plan. This machine need not have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedDevices {
    /// The kind of all devices.
    pub kind: DeviceKind,
    /// Number of replicas.
    pub replicas: usize,
    /// Largest number of replicas that share the memory of one GPU. All CPU devices share the machine's memory.
    pub sharing: usize,
    /// Worker threads of each CPU device; 0 divides the cores among the devices.
    pub threads: usize,
}

impl PlannedDevices {
    /// Plans one replica on each device or part of a device. All must be of one kind.
    ///
    /// # Errors
    /// If there is no device, or if no machine could train on these devices together.
    pub fn new(devices: &[Device]) -> Result<PlannedDevices> {
        let owner = "memory_plan";
        let Some(Device { kind, .. }) = devices.first().copied() else {
            return Err(Error::argument(owner, "devices", "at least one device", "none"));
        };
        check_compatible(owner, devices)?;
        let replicas = devices.len();
        let of_device = |d: &Device| devices.iter().filter(|o| o.index == d.index).count();
        let sharing = match kind.backend()?.traits().on_host {
            true => replicas,
            false => devices.iter().map(of_device).max().unwrap_or(1),
        };
        Ok(PlannedDevices { kind, replicas, sharing, threads: 0 })
    }

    fn mesh(self) -> Result<Mesh> {
        let total = self.threads.max(1).saturating_mul(self.replicas);
        if total == 0 || total > MAX_THREADS {
            let expected = format!("1 to {MAX_THREADS} over all devices");
            return Err(Error::argument("memory_plan", "threads", expected, total));
        }
        Ok(self.kind.backend()?.mesh(self.replicas, self.threads))
    }
}

impl Model {
    /// Returns the memory that a step for a global batch of `batch_size` needs for each replica.
    ///
    /// # Errors
    /// If the model is not compiled, no program can be compiled for the batch size, or there are too many
    /// threads.
    pub fn memory_plan(
        &self,
        kind: StepKind,
        batch_size: usize,
        devices: PlannedDevices,
    ) -> Result<MemoryPlan> {
        if batch_size == 0 {
            return Err(Error::argument("memory_plan", "batch_size", "1 or more", batch_size));
        }
        let mesh = devices.mesh()?;
        self.with_planner("memory_plan", kind, |session, step| {
            let devices = (mesh, &*devices.kind.backend()?);
            session.programs.memory_plan(&session.objective, step, batch_size, devices)
        })
    }

    /// Returns the memory that a step needs for each replica on the devices the model was compiled for.
    ///
    /// # Errors
    /// As for [`Model::memory_plan`].
    pub fn own_memory_plan(&self, kind: StepKind, batch_size: usize) -> Result<MemoryPlan> {
        self.with_planner("memory_plan", kind, |session, step| {
            let (programs, objective) = (&session.programs, &session.objective);
            let program = programs.program(objective, step, batch_size)?;
            Ok(programs.placement.backend.memory_plan(&program, objective.accumulates()))
        })
    }

    /// Returns the largest global batch, a multiple of the number of replicas, whose step fits into `memory`
    /// bytes of each GPU, or of the machine for CPU devices. Returns `None` if not even one sample per replica
    /// fits.
    ///
    /// # Errors
    /// If the model is not compiled.
    pub fn largest_batch(
        &self,
        kind: StepKind,
        memory: usize,
        devices: PlannedDevices,
    ) -> Result<Option<usize>> {
        let mesh = devices.mesh()?;
        self.with_planner("memory_plan", kind, |session, step| {
            let limits =
                Limits { memory, max_rows: MAX_ROWS_PER_REPLICA, sharing: devices.sharing.max(1) };
            let devices = (mesh, &*devices.kind.backend()?);
            session.programs.largest_batch(&session.objective, step, devices, limits)
        })
    }

    /// Calls `f` with a session that can compile the programs of a step, and with that step. A model without `compile` can
    /// only predict. If sizes are open, the step has the largest ones of the batches so far.
    pub(super) fn with_planner<T>(
        &self,
        call: &'static str,
        kind: StepKind,
        f: impl FnOnce(&Session, ShapedStep) -> Result<T>,
    ) -> Result<T> {
        let session = lock(&self.session);
        let can_plan = |s: &&Session| s.objective.compiled || kind == StepKind::Predict;
        let model = || self.name().to_string();
        let session = session.as_ref().filter(can_plan);
        let session = session.ok_or_else(|| Error::NotCompiled { model: model(), call })?;
        f(session, session.programs.planned(kind)?)
    }
}

/// Limits of the search for the largest batch.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes.
    memory: usize,
    /// Samples per replica.
    max_rows: usize,
    /// Replicas that share the memory.
    sharing: usize,
}

impl Placement {
    /// Replicas whose memory a plan counts together.
    fn memory_sharing(&self) -> usize {
        if self.backend.traits().on_host { self.names.len() } else { 1 }
    }
}

impl Programs {
    fn memory_plan(
        &self,
        objective: &Objective,
        step: ShapedStep,
        batch: usize,
        devices: (Mesh, &dyn Backend),
    ) -> Result<MemoryPlan> {
        let program = self.program_on(objective, step, batch, devices)?;
        Ok(devices.1.memory_plan(&program, objective.accumulates()))
    }

    fn largest_batch(
        &self,
        objective: &Objective,
        step: ShapedStep,
        (mesh, backend): (Mesh, &dyn Backend),
        Limits { memory, max_rows, sharing }: Limits,
    ) -> Result<Option<usize>> {
        let fits = |rows: usize| {
            let plan = self.memory_plan(objective, step, rows * mesh.replicas, (mesh, backend));
            match plan {
                Ok(plan) => Ok(plan.total(sharing) <= memory),
                // The program's size overflows.
                Err(Error::Graph(_)) if rows > 1 => Ok(false),
                Err(error) => Err(error),
            }
        };
        let rows = largest(max_rows, fits)?;
        Ok((rows > 0).then_some(rows * mesh.replicas))
    }

    /// If a program does not fit in `available` bytes, a program that computes activations again and does, unless the
    /// strategy forbids it. Later programs do the same, and a notice says so.
    pub(super) fn recompute_to_fit(
        &mut self,
        objective: &Objective,
        program: &Program,
        (step, batch): (ShapedStep, usize),
        available: usize,
    ) -> Result<Option<Arc<Program>>> {
        let (backend, accumulates) = (self.placement.backend.clone(), objective.accumulates());
        let sharing = self.placement.memory_sharing();
        let wanted = |program: &Program| backend.memory_plan(program, accumulates).total(sharing);
        let (allowed, before) = self.placement.recompute;
        if allowed != Recompute::Auto || program.update().is_none() || wanted(program) <= available
        {
            return Ok(None);
        }
        let needed = wanted(program);
        for segments in [2, 3, 4, 6, 8, 12, 16, 24, 32].into_iter().filter(|n| *n > before) {
            self.placement.recompute.1 = segments;
            let smaller = self.program(objective, step, batch)?;
            if wanted(&smaller) <= available {
                let (needed, available) = (gibibytes(needed), gibibytes(available));
                warning!(
                    "a batch of {batch} takes {needed} of {available}: the backward pass computes \
                     activations again, in {segments} segments"
                );
                return Ok(Some(smaller));
            }
        }
        self.placement.recompute.1 = before;
        Ok(None)
    }

    /// Fails if a step needs more memory than its replicas share. Warns once if memory is short.
    pub(super) fn check_memory(
        &mut self,
        objective: &Objective,
        program: &Program,
        step: ShapedStep,
        batch: usize,
    ) -> Result<()> {
        let Some(limit) = self.placement.backend.memory_limit() else { return Ok(()) };
        let plan = self.placement.backend.memory_plan(program, objective.accumulates());
        let wanted = plan.total(self.placement.names.len());
        if wanted > limit.total {
            let (purpose, available) = ("a step".into(), Some(limit.total));
            let error = ExecError::Memory { wanted, purpose, available };
            return Err(self.explain_out_of_memory(objective, error, step, batch));
        }
        let available = limit.available;
        if is_short(wanted, available)
            && !std::mem::replace(&mut self.placement.memory_warned, true)
        {
            let (wanted, available) = (gibibytes(wanted), gibibytes(available));
            warning!("a batch of {batch} takes {wanted} of memory, {available} are available");
        }
        Ok(())
    }

    /// Adds the planned memory and the largest batch that fits to an out-of-memory error.
    pub(super) fn explain_out_of_memory(
        &self,
        objective: &Objective,
        error: ExecError,
        step: ShapedStep,
        batch: usize,
    ) -> Error {
        let ExecError::Memory { available: Some(available), .. } = error else {
            return error.into();
        };
        let devices = (self.mesh(), &*self.placement.backend);
        let Ok(plan) = self.memory_plan(objective, step, batch, devices) else {
            return error.into();
        };
        let max_rows = (batch.div_ceil(devices.0.replicas) - 1).min(MAX_ROWS_PER_REPLICA);
        let sharing = self.placement.memory_sharing();
        let limits = Limits { memory: available, max_rows, sharing };
        let largest = self.largest_batch(objective, step, devices, limits);
        let Ok(largest) = largest else { return error.into() };
        let (planned, source) = (plan.total(sharing), Box::new(error));
        Error::Memory { batch, planned, available, largest, source }
    }
}

/// Returns the largest number up to `max` that fits, or 0 if not even 1 fits. `fits` must be monotonic.
fn largest(max: usize, mut fits: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let (mut good, mut bad) = (0, max.saturating_add(1));
    let mut next = 1;
    while bad - good > 1 {
        let tried = next.min(good + (bad - good).div_ceil(2)).max(good + 1);
        if fits(tried)? {
            good = tried;
            next = tried.saturating_mul(2);
        } else {
            bad = tried;
            next = bad;
        }
    }
    Ok(good)
}

/// Returns whether `planned` bytes leave less than a fifth of the available memory free.
fn is_short(planned: usize, available: usize) -> bool {
    planned > available - available / 5
}

/// Formats a number of bytes for error messages.
pub(crate) fn gibibytes(bytes: usize) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    match gib >= 0.01 {
        true => format!("{gib:.2} GiB"),
        false => format!("{} bytes", thousands(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn the_search_finds_the_largest_size_in_few_trials() {
        for max in [0, 1, 2, 3, 100, MAX_ROWS_PER_REPLICA] {
            for limit in [0, 1, 2, 3, 5, 64, 99, 100, 1000, 12_345_678] {
                let mut tried = vec![];
                let found = largest(max, |n| {
                    tried.push(n);
                    Ok(n <= limit)
                });
                assert_eq!(found.unwrap(), limit.min(max), "{limit} of {max}: {tried:?}");
                let bits = usize::BITS - limit.min(max).leading_zeros();
                assert!(tried.len() <= 2 * bits as usize + 1, "{limit} of {max}: {tried:?}");
            }
        }
        let failed = largest(8, |n| match n {
            4 => Err(Error::config("a test", "fails")),
            _ => Ok(true),
        });
        assert!(failed.is_err());
    }

    fn model() -> Model {
        let mut model = Sequential::new()
            .add(Input::new([12, 12, 3]))
            .add(Conv2D::new(8, 3).activation("relu"))
            .add(BatchNormalization::new())
            .add(Flatten::new())
            .add(Dense::new(10).activation("softmax"))
            .build()
            .unwrap();
        model.compile(Compile::new("adam").loss("sparse_categorical_crossentropy")).unwrap();
        model
    }

    fn on(kind: DeviceKind, replicas: usize) -> PlannedDevices {
        PlannedDevices { kind, replicas, sharing: 1, threads: 2 }
    }

    fn planned(names: &[&str]) -> Result<PlannedDevices> {
        let devices: Result<Vec<Device>> = names.iter().map(|n| n.parse()).collect();
        PlannedDevices::new(&devices?)
    }

    #[test]
    fn replicas_on_one_gpu_share_its_memory() {
        let sharing = |names: &[&str]| planned(names).unwrap().sharing;
        assert_eq!(sharing(&["gpu:0", "gpu:1"]), 1);
        assert_eq!(sharing(&["gpu:0/0", "gpu:0/1", "gpu:1"]), 2);
        assert_eq!(sharing(&["cpu:0", "cpu:1", "cpu:2"]), 3);
        let model = model();
        let largest = |names: &[&str], memory| {
            model.largest_batch(StepKind::Train, memory, planned(names).unwrap()).unwrap().unwrap()
        };
        let (separate, shared) = (["gpu:0", "gpu:1"], ["gpu:0/0", "gpu:0/1"]);
        assert_eq!(largest(&shared, 4 << 30), largest(&separate, 2 << 30));
        assert!(largest(&shared, 4 << 30) < largest(&separate, 4 << 30));
    }

    #[test]
    fn mixed_policies_are_planned_for_gpus_without_one() {
        let total = |policy, kind| {
            let mut model = model();
            let strategy = MirroredStrategy::cpus(1).unwrap().policy(policy);
            let compile = Compile::new("adam").loss("sparse_categorical_crossentropy");
            model.compile(compile.strategy(strategy)).unwrap();
            let plan = model.memory_plan(StepKind::Train, 256, on(kind, 1)).unwrap();
            plan.parts.iter().find(|(name, _)| *name == "activations").unwrap().1
        };
        let single = total(Policy::Float32, DeviceKind::Gpu);
        for policy in [Policy::MixedBfloat16, Policy::MixedFloat16] {
            assert!(total(policy, DeviceKind::Gpu) < single * 3 / 4, "{policy:?}");
            assert_eq!(total(policy, DeviceKind::Cpu), total(Policy::Float32, DeviceKind::Cpu));
        }
    }

    /// A model that turns a sample of four bytes into more than four million.
    fn memory_hungry(replicas: usize) -> Model {
        let mut model = Sequential::new()
            .add(Input::new([1, 1, 1]))
            .add(UpSampling2D::new(1024))
            .add(GlobalAveragePooling2D::new())
            .add(Dense::new(1))
            .build()
            .unwrap();
        let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(1);
        model.compile(Compile::new("sgd").loss("mse").strategy(strategy)).unwrap();
        model
    }

    #[test]
    fn a_step_that_exceeds_memory_fails_and_names_the_largest_batch_that_fits() {
        let rows = phalanx_cpu::physical_memory() / (4 << 20) * 2;
        for replicas in [1, 2] {
            let mut model = memory_hungry(replicas);
            let x = Tensor::new([rows, 1, 1, 1], vec![0f32; rows]).unwrap();
            let y = Tensor::new([rows, 1], vec![0f32; rows]).unwrap();
            let error = model.train_on_batch(&x, &y).unwrap_err();
            let Error::Memory { batch, planned, available, largest, .. } = error else {
                panic!("{error}");
            };
            assert!(batch == rows && planned > available, "{batch} {planned} {available}");
            assert_eq!(available, phalanx_cpu::physical_memory());
            assert!(largest.is_some_and(|n| (replicas..rows).contains(&n)), "{largest:?}");
            let one_batch = Inference::new().batch_size(rows);
            assert!(matches!(model.predict_with(&x, one_batch), Err(Error::Memory { .. })));
        }
    }

    #[test]
    fn a_step_that_leaves_little_memory_warns_once() {
        let mut model = memory_hungry(1);
        let devices = PlannedDevices { threads: 1, ..planned(&["cpu:0"]).unwrap() };
        let physical = phalanx_cpu::physical_memory();
        let rows = model.largest_batch(StepKind::Train, physical, devices).unwrap().unwrap();
        let Session { programs, objective, .. } = model.session_slot().as_mut().unwrap();
        for (rows, warned) in [(1, false), (rows, true), (rows, true)] {
            let step = programs.planned(StepKind::Train).unwrap();
            let program = programs.program(objective, step, rows).unwrap();
            programs.check_memory(objective, &program, step, rows).unwrap();
            assert_eq!(programs.placement.memory_warned, warned);
        }
    }

    #[test]
    fn activations_are_computed_again_only_if_memory_does_not_suffice() {
        let deep = |recompute| {
            let mut model = Sequential::new().add(Input::new([16]));
            for _ in 0..24 {
                model = model.add(Dense::new(16).activation("tanh"));
            }
            let mut model = model.build().unwrap();
            let strategy = MirroredStrategy::cpus(1).unwrap().threads(1).recompute(recompute);
            model.compile(Compile::new("sgd").loss("mse").strategy(strategy)).unwrap();
            model
        };
        let segments = |recompute, share: usize| {
            let mut model = deep(recompute);
            let Session { programs, objective, .. } = model.session_slot().as_mut().unwrap();
            let step = programs.planned(StepKind::Train).unwrap();
            let program = programs.program(objective, step, 4096).unwrap();
            let bytes = |program: &Program, programs: &Programs| {
                programs.placement.backend.memory_plan(program, false).total(1)
            };
            let available = bytes(&program, programs) * share / 100;
            let smaller = programs.recompute_to_fit(objective, &program, (step, 4096), available);
            let smaller = smaller.unwrap().map(|p| bytes(&p, programs));
            assert!(smaller.is_none_or(|bytes| bytes <= available));
            (smaller.is_some(), programs.placement.recompute.1)
        };
        assert_eq!(segments(Recompute::Auto, 100), (false, 0));
        let (some, few) = segments(Recompute::Auto, 90);
        let (more, many) = segments(Recompute::Auto, 60);
        assert!(some && more && few >= 2 && many > few, "{few} and {many} segments");
        assert_eq!(segments(Recompute::Auto, 1), (false, 0));
        assert_eq!(segments(Recompute::Never, 60), (false, 0));
    }

    #[test]
    fn memory_is_short_above_four_fifths() {
        assert!(!is_short(80, 100) && is_short(81, 100));
        assert!(!is_short(usize::MAX / 2, usize::MAX) && is_short(usize::MAX, usize::MAX));
    }

    #[test]
    fn a_plan_counts_weights_gradients_and_slots() {
        let model = model();
        for kind in [DeviceKind::Cpu, DeviceKind::Gpu] {
            let plan = model.memory_plan(StepKind::Train, 32, on(kind, 1)).unwrap();
            let part = |name: &str| plan.parts.iter().find(|(p, _)| *p == name).unwrap().1;
            let weights = part("weights");
            assert!(weights >= 4 * model.count_params(), "{plan:?}");
            assert_eq!(part("optimizer slots"), 2 * weights, "{plan:?}");
            assert!(part("gradients") >= weights && part("inputs") >= 32 * 12 * 12 * 3 * 4);
            assert!(part("activations") <= plan.without_reuse, "{plan:?}");
            assert_eq!(plan.total(1), plan.parts.iter().map(|(_, b)| b).sum::<usize>());
            let predicted = model.memory_plan(StepKind::Predict, 32, on(kind, 1)).unwrap();
            assert!(predicted.total(1) < plan.total(1));
        }
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let model = model();
        for devices in [on(DeviceKind::Gpu, 1), on(DeviceKind::Gpu, 2), on(DeviceKind::Cpu, 1)] {
            let total =
                |batch| model.memory_plan(StepKind::Train, batch, devices).unwrap().total(1);
            let memory = if devices.kind == DeviceKind::Gpu { 1 << 30 } else { 4 << 20 };
            let found = model.largest_batch(StepKind::Train, memory, devices).unwrap().unwrap();
            assert!(total(found) <= memory && found.is_multiple_of(devices.replicas));
            assert!(total(found + devices.replicas) > memory, "{found}");
            assert_eq!(model.largest_batch(StepKind::Train, 1000, devices).unwrap(), None);
        }
    }

    #[test]
    fn an_out_of_memory_error_names_plan_and_largest_batch() {
        let mut model = model();
        let Session { programs, objective, .. } = model.session_slot().as_ref().unwrap();
        let lacking = |available| ExecError::Memory {
            wanted: 1 << 20,
            purpose: "activations on gpu:0".into(),
            available,
        };
        let train = programs.planned(StepKind::Train).unwrap();
        let explain = |available, batch| {
            programs.explain_out_of_memory(objective, lacking(available), train, batch).to_string()
        };
        let text = explain(Some(4 << 20), 4096);
        let found = text.split("the largest batch that fits is ").nth(1).expect(&text);
        let found: usize = found.parse().expect(&text);
        assert!((1..4096).contains(&found), "{text}");
        assert!(
            text.starts_with("out of memory: 1048576 bytes for activations on gpu:0"),
            "{text}"
        );
        assert!(text.contains("a batch of 4096") && text.contains("4,194,304 bytes"), "{text}");
        let none = explain(Some(10), 64);
        assert!(none.ends_with("not even a batch of one sample for each replica fits"), "{none}");
        let unknown = explain(None, 64);
        assert_eq!(unknown, lacking(None).to_string());
    }

    #[test]
    fn devices_of_two_kinds_or_none_are_refused() {
        assert_eq!(planned(&["gpu:0", "gpu:7"]).unwrap().replicas, 2);
        let error = |names: &[&str]| planned(names).unwrap_err().to_string();
        assert!(error(&["gpu:0", "cpu:0"]).contains("either CPU devices or GPUs"));
        assert!(error(&["gpu:0", "gpu:0/1"]).contains("whole or in parts"));
        assert!(error(&["gpu:1", "gpu:0"]).contains("GPUs in ascending order"));
        assert!(planned(&["gpu:0", "gpu:0"]).is_err() && planned(&[]).is_err());
    }
}
