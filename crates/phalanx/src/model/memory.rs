//! What a step takes of a device's memory, and the largest batch that fits: known without running it.

use super::session::{Session, StepKind};
use super::{Model, thousands};
use crate::error::{Error, Result};
use crate::layer::lock;
use crate::strategy::{Device, DeviceKind, MAX_THREADS, check_compatible};
use crate::warnings::warning;
use phalanx_graph::exec::ExecError;
use phalanx_graph::program::{Mesh, Program};

/// Samples of a replica beyond which no larger batch is looked for.
const MOST_ROWS: usize = 1 << 30;

/// Devices that a plan is made for; this machine need not have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedDevices {
    /// What they are.
    pub kind: DeviceKind,
    /// How many replicas there are.
    pub replicas: usize,
    /// The most replicas that share the memory of one GPU; CPU devices all share the machine's.
    pub sharing: usize,
    /// Worker threads of each CPU device; 0 shares out the cores.
    pub threads: usize,
}

impl PlannedDevices {
    /// One replica on each device or part of one, all of one kind.
    ///
    /// # Errors
    /// No device, or devices on which nothing could be trained together, whatever the machine.
    pub fn new(devices: &[Device]) -> Result<PlannedDevices> {
        let owner = "memory_plan";
        let Some(Device { kind, .. }) = devices.first().copied() else {
            return Err(Error::argument(owner, "devices", "at least one device", "none"));
        };
        check_compatible(owner, devices)?;
        let replicas = devices.len();
        let of_gpu = |d: &Device| devices.iter().filter(|o| o.index == d.index).count();
        let sharing = match kind {
            DeviceKind::Cpu => replicas,
            DeviceKind::Gpu => devices.iter().map(of_gpu).max().unwrap_or(1),
        };
        Ok(PlannedDevices { kind, replicas, sharing, threads: 0 })
    }

    fn mesh(self) -> Result<Mesh> {
        let all = self.threads.max(1).saturating_mul(self.replicas);
        if all == 0 || all > MAX_THREADS {
            let expected = format!("1 to {MAX_THREADS} over all devices");
            return Err(Error::argument("memory_plan", "threads", expected, all));
        }
        let shared = || (phalanx_cpu::usable_cores() / self.replicas).max(1);
        let workers = match (self.kind, self.threads) {
            (DeviceKind::Gpu, _) => 1,
            (DeviceKind::Cpu, 0) => shared(),
            (DeviceKind::Cpu, threads) => threads,
        };
        Ok(Mesh::new(self.replicas, workers))
    }
}

/// What a step takes of memory for one replica. On a GPU, `library workspaces` are the most that products and
/// convolutions are given; what the driver and the vendor's libraries keep for themselves comes on top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes by what they are for.
    pub parts: Vec<(&'static str, usize)>,
    /// Bytes that the activations would take if none were reused.
    pub without_reuse: usize,
}

impl MemoryPlan {
    fn of(program: &Program, kind: DeviceKind, gathers: bool) -> MemoryPlan {
        let parts = match kind {
            DeviceKind::Cpu => phalanx_cpu::memory_plan(program, gathers),
            DeviceKind::Gpu => phalanx_cuda::memory_plan(program, gathers),
        };
        let arenas = program.options().mesh.workers;
        MemoryPlan { parts, without_reuse: program.memory().unplanned.saturating_mul(arenas) }
    }

    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.parts.iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes))
    }
}

impl Model {
    /// What a step for a global batch of this size takes for each replica.
    ///
    /// # Errors
    /// A model that was not compiled, a batch of which no program can be made, or more threads than a
    /// machine can use.
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
        self.with_planner("memory_plan", kind, |session| {
            session.memory_plan(kind, batch_size, devices.kind, mesh)
        })
    }

    /// What a step takes for each replica on the devices that the model was compiled for.
    ///
    /// # Errors
    /// As [`Model::memory_plan`].
    pub fn own_memory_plan(&self, kind: StepKind, batch_size: usize) -> Result<MemoryPlan> {
        self.with_planner("memory_plan", kind, |session| {
            let program = session.program(kind, batch_size)?;
            Ok(MemoryPlan::of(&program, session.placement.kind, session.accumulates()))
        })
    }

    /// The largest global batch, a multiple of the replicas, whose step takes no more than so many bytes
    /// of each GPU, or of the machine with its CPU devices; nothing where not even one sample for each
    /// replica fits.
    ///
    /// # Errors
    /// A model that was not compiled.
    pub fn largest_batch(
        &self,
        kind: StepKind,
        memory: usize,
        devices: PlannedDevices,
    ) -> Result<Option<usize>> {
        let (each, mesh) = (memory / devices.sharing.max(1), devices.mesh()?);
        self.with_planner("memory_plan", kind, |session| {
            session.largest_batch(kind, each, MOST_ROWS, devices.kind, mesh)
        })
    }

    /// Asks what has the programs of a step; a model that was never compiled can only predict.
    pub(super) fn with_planner<T>(
        &self,
        call: &'static str,
        kind: StepKind,
        ask: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<T> {
        let session = lock(&self.session);
        let fits = |s: &&Session| s.objective.is_compiled() || kind == StepKind::Predict;
        let model = || self.name().to_string();
        let session = session.as_ref().filter(fits);
        ask(session.ok_or_else(|| Error::NotCompiled { model: model(), call })?)
    }
}

impl Session {
    /// Whether gradients are accumulated over several batches.
    fn accumulates(&self) -> bool {
        self.objective.accumulation_steps().is_some()
    }

    fn memory_plan(
        &self,
        kind: StepKind,
        batch: usize,
        on: DeviceKind,
        mesh: Mesh,
    ) -> Result<MemoryPlan> {
        let program = self.program_on(kind, batch, mesh, on)?;
        Ok(MemoryPlan::of(&program, on, self.accumulates()))
    }

    fn largest_batch(
        &self,
        kind: StepKind,
        memory: usize,
        most: usize,
        on: DeviceKind,
        mesh: Mesh,
    ) -> Result<Option<usize>> {
        let fits = |rows: usize| {
            let plan = self.memory_plan(kind, rows * mesh.devices, on, mesh);
            match plan {
                Ok(plan) => Ok(plan.total() <= memory),
                // More than can be counted.
                Err(Error::Graph(_)) if rows > 1 => Ok(false),
                Err(error) => Err(error),
            }
        };
        let rows = largest(most, fits)?;
        Ok((rows > 0).then_some(rows * mesh.devices))
    }

    /// Fails where a step on CPU devices takes more than the machine has; says once where little is left.
    pub(super) fn check_memory(
        &mut self,
        program: &Program,
        kind: StepKind,
        batch: usize,
    ) -> Result<()> {
        if self.placement.kind != DeviceKind::Cpu {
            return Ok(());
        }
        let plan = MemoryPlan::of(program, DeviceKind::Cpu, self.accumulates());
        let (wanted, replicas) = (plan.total(), self.placement.names.len());
        let all = wanted.saturating_mul(replicas);
        let most = phalanx_cpu::physical_memory();
        if all > most {
            let (purpose, available) = ("a step".into(), Some(most / replicas));
            return Err(self.explain(
                ExecError::Memory { wanted, purpose, available },
                kind,
                batch,
            ));
        }
        let available = phalanx_cpu::available_memory();
        if is_short(all, available) && !std::mem::replace(&mut self.memory_warned, true) {
            let (all, available) = (gibibytes(all), gibibytes(available));
            warning!("a batch of {batch} takes {all} of memory, {available} are available");
        }
        Ok(())
    }

    /// Says of memory that was lacking how much was planned and what would have fitted.
    pub(super) fn explain(&self, error: ExecError, kind: StepKind, batch: usize) -> Error {
        let ExecError::Memory { available: Some(available), .. } = error else {
            return error.into();
        };
        let (on, mesh) = (self.placement.kind, self.mesh());
        let Ok(plan) = self.memory_plan(kind, batch, on, mesh) else { return error.into() };
        let smaller = (batch.div_ceil(mesh.devices) - 1).min(MOST_ROWS);
        let largest = self.largest_batch(kind, available, smaller, on, mesh);
        let Ok(largest) = largest else { return error.into() };
        let (planned, source) = (plan.total(), Box::new(error));
        Error::Memory { batch, planned, available, largest, source }
    }
}

/// The largest number up to `most` that fits, where everything below it does too; 0 where not even 1
/// does.
fn largest(most: usize, mut fits: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let (mut good, mut bad) = (0, most.saturating_add(1));
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

/// Whether what is planned leaves less than a fifth of what is available to everything else.
fn is_short(planned: usize, available: usize) -> bool {
    planned > available - available / 5
}

/// Bytes in words, for errors.
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
    fn the_largest_that_fits_is_found_with_few_trials() {
        for most in [0, 1, 2, 3, 100, MOST_ROWS] {
            for limit in [0, 1, 2, 3, 5, 64, 99, 100, 1000, 12_345_678] {
                let mut tried = vec![];
                let found = largest(most, |n| {
                    tried.push(n);
                    Ok(n <= limit)
                });
                assert_eq!(found.unwrap(), limit.min(most), "{limit} of {most}: {tried:?}");
                let bits = usize::BITS - limit.min(most).leading_zeros();
                assert!(tried.len() <= 2 * bits as usize + 1, "{limit} of {most}: {tried:?}");
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
        let (apart, together) = (["gpu:0", "gpu:1"], ["gpu:0/0", "gpu:0/1"]);
        assert_eq!(largest(&together, 4 << 30), largest(&apart, 2 << 30));
        assert!(largest(&together, 4 << 30) < largest(&apart, 4 << 30));
    }

    #[test]
    fn mixed_policies_are_planned_for_gpus_without_one() {
        let total = |policy, kind| {
            let mut model = model();
            let strategy = MirroredStrategy::cpus(1).unwrap().policy(policy);
            let how = Compile::new("adam").loss("sparse_categorical_crossentropy");
            model.compile(how.strategy(strategy)).unwrap();
            let plan = model.memory_plan(StepKind::Train, 256, on(kind, 1)).unwrap();
            plan.parts.iter().find(|(name, _)| *name == "activations").unwrap().1
        };
        let single = total(Policy::Float32, DeviceKind::Gpu);
        for policy in [Policy::MixedBfloat16, Policy::MixedFloat16] {
            assert!(total(policy, DeviceKind::Gpu) < single * 3 / 4, "{policy:?}");
            assert_eq!(total(policy, DeviceKind::Cpu), total(Policy::Float32, DeviceKind::Cpu));
        }
    }

    /// A sample of four bytes of which a step makes four million and more.
    fn blown_up(replicas: usize) -> Model {
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
    fn a_step_that_the_machine_has_no_memory_for_is_refused_with_what_would_fit() {
        let rows = phalanx_cpu::physical_memory() / (4 << 20) * 2;
        for replicas in [1, 2] {
            let mut model = blown_up(replicas);
            let x = Tensor::new([rows, 1, 1, 1], vec![0f32; rows]).unwrap();
            let y = Tensor::new([rows, 1], vec![0f32; rows]).unwrap();
            let error = model.train_on_batch(&x, &y).unwrap_err();
            let Error::Memory { batch, planned, available, largest, .. } = error else {
                panic!("{error}");
            };
            assert!(batch == rows && planned > available, "{batch} {planned} {available}");
            assert_eq!(available, phalanx_cpu::physical_memory() / replicas);
            assert!(largest.is_some_and(|n| (replicas..rows).contains(&n)), "{largest:?}");
            let whole = Inference::new().batch_size(rows);
            assert!(matches!(model.predict_with(&x, whole), Err(Error::Memory { .. })));
        }
    }

    #[test]
    fn a_step_that_leaves_little_memory_warns_once() {
        let mut model = blown_up(1);
        let devices = PlannedDevices { threads: 1, ..planned(&["cpu:0"]).unwrap() };
        let most = phalanx_cpu::physical_memory();
        let rows = model.largest_batch(StepKind::Train, most, devices).unwrap().unwrap();
        let session = model.session_slot().as_mut().unwrap();
        for (rows, warned) in [(1, false), (rows, true), (rows, true)] {
            let program = session.program(StepKind::Train, rows).unwrap();
            session.check_memory(&program, StepKind::Train, rows).unwrap();
            assert_eq!(session.memory_warned, warned);
        }
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
            assert_eq!(plan.total(), plan.parts.iter().map(|(_, b)| b).sum::<usize>());
            let predicted = model.memory_plan(StepKind::Predict, 32, on(kind, 1)).unwrap();
            assert!(predicted.total() < plan.total());
        }
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let model = model();
        for devices in [on(DeviceKind::Gpu, 1), on(DeviceKind::Gpu, 2), on(DeviceKind::Cpu, 1)] {
            let total = |batch| model.memory_plan(StepKind::Train, batch, devices).unwrap().total();
            let memory = if devices.kind == DeviceKind::Gpu { 1 << 30 } else { 4 << 20 };
            let found = model.largest_batch(StepKind::Train, memory, devices).unwrap().unwrap();
            assert!(total(found) <= memory && found.is_multiple_of(devices.replicas));
            assert!(total(found + devices.replicas) > memory, "{found}");
            assert_eq!(model.largest_batch(StepKind::Train, 1000, devices).unwrap(), None);
        }
    }

    #[test]
    fn memory_that_lacks_is_explained() {
        let mut model = model();
        let session = model.session_slot().as_ref().unwrap();
        let lacking = |available| ExecError::Memory {
            wanted: 1 << 20,
            purpose: "activations on gpu:0".into(),
            available,
        };
        let text = session.explain(lacking(Some(4 << 20)), StepKind::Train, 4096).to_string();
        let found = text.split("the largest batch that fits is ").nth(1).expect(&text);
        let found: usize = found.parse().expect(&text);
        assert!((1..4096).contains(&found), "{text}");
        assert!(
            text.starts_with("out of memory: 1048576 bytes for activations on gpu:0"),
            "{text}"
        );
        assert!(text.contains("a batch of 4096") && text.contains("4,194,304 bytes"), "{text}");
        let none = session.explain(lacking(Some(10)), StepKind::Train, 64).to_string();
        assert!(none.ends_with("not even a batch of one sample for each replica fits"), "{none}");
        let unknown = session.explain(lacking(None), StepKind::Train, 64).to_string();
        assert_eq!(unknown, lacking(None).to_string());
    }

    #[test]
    fn devices_of_two_kinds_or_none_are_refused() {
        assert_eq!(planned(&["gpu:0", "gpu:7"]).unwrap().replicas, 2);
        let error = |names: &[&str]| planned(names).unwrap_err().to_string();
        assert!(error(&["gpu:0", "cpu:0"]).contains("GPUs alone"));
        assert!(error(&["gpu:0", "gpu:0/1"]).contains("whole or in parts"));
        assert!(error(&["gpu:1", "gpu:0"]).contains("GPUs in ascending order"));
        assert!(planned(&["gpu:0", "gpu:0"]).is_err() && planned(&[]).is_err());
    }
}
