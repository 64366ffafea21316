//! What a step takes of a device's memory, and the largest batch that fits: known without running it.

use super::engine::{Engine, StepKind};
use super::{Model, thousands};
use crate::error::{Error, Result};
use crate::strategy::{Device, DeviceKind, MOST_THREADS};
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
    /// Worker threads of each CPU device; 0 shares out the cores.
    pub threads: usize,
}

impl PlannedDevices {
    /// One replica on each device, all of one kind.
    ///
    /// # Errors
    /// No device, one named twice, or CPU devices and GPUs together.
    pub fn new(devices: &[Device]) -> Result<PlannedDevices> {
        let fail = |expected: &str, received: String| {
            Err(Error::argument("memory_plan", "devices", expected, received))
        };
        let Some(first) = devices.first() else {
            return fail("at least one device", "none".into());
        };
        let twice = (1..devices.len()).find(|i| devices[..*i].contains(&devices[*i]));
        if let Some(i) = twice {
            return fail("each device once", devices[i].to_string());
        }
        if let Some(other) = devices.iter().find(|d| d.kind != first.kind) {
            return fail("CPU devices alone or GPUs alone", format!("{first}, {other}"));
        }
        Ok(PlannedDevices { kind: first.kind, replicas: devices.len(), threads: 0 })
    }

    fn mesh(self) -> Result<Mesh> {
        let all = self.threads.max(1).saturating_mul(self.replicas);
        if all == 0 || all > MOST_THREADS {
            let expected = format!("1 to {MOST_THREADS} over all devices");
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

/// What a step takes of one device's memory. On a GPU, `library workspaces` are the most that products and
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
        let arenas = program.options.mesh.workers;
        MemoryPlan { parts, without_reuse: program.memory.unplanned * arenas }
    }

    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Model {
    /// What a step for a global batch of this size takes of each device.
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
        self.planner(kind)?.memory_plan(kind, batch_size, devices.kind, devices.mesh()?)
    }

    /// The largest global batch, a multiple of the replicas, whose step takes no more than so many bytes
    /// of each device; nothing where not even one sample for each replica fits.
    ///
    /// # Errors
    /// A model that was not compiled.
    pub fn largest_batch(
        &self,
        kind: StepKind,
        memory: usize,
        devices: PlannedDevices,
    ) -> Result<Option<usize>> {
        let engine = self.planner(kind)?;
        engine.largest_batch(kind, memory, MOST_ROWS, devices.kind, devices.mesh()?)
    }

    /// A model that was never compiled can only predict.
    fn planner(&self, kind: StepKind) -> Result<&Engine> {
        let fits = |e: &&Engine| e.compiled() || kind == StepKind::Predict;
        let model = self.def.name.clone();
        self.engine.as_ref().filter(fits).ok_or(Error::NotCompiled { model, call: "memory_plan" })
    }
}

impl Engine {
    fn memory_plan(
        &self,
        kind: StepKind,
        batch: usize,
        on: DeviceKind,
        mesh: Mesh,
    ) -> Result<MemoryPlan> {
        let program = self.program_on(kind, batch, mesh, on)?;
        Ok(MemoryPlan::of(&program, on, self.gather_steps().is_some()))
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

    /// Says of memory that was lacking how much was planned and what would have fitted.
    pub(super) fn explain(&self, error: ExecError, kind: StepKind, batch: usize) -> Error {
        let ExecError::Memory { available: Some(available), .. } = error else {
            return error.into();
        };
        let (on, mesh) = (self.device_kind, self.mesh());
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
        PlannedDevices { kind, replicas, threads: 2 }
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
        let model = model();
        let engine = model.engine.as_ref().unwrap();
        let lacking = |available| ExecError::Memory {
            wanted: 1 << 20,
            purpose: "activations on gpu:0".into(),
            available,
        };
        let text = engine.explain(lacking(Some(4 << 20)), StepKind::Train, 4096).to_string();
        let found = text.split("the largest batch that fits is ").nth(1).expect(&text);
        let found: usize = found.parse().expect(&text);
        assert!((1..4096).contains(&found), "{text}");
        assert!(
            text.starts_with("out of memory: 1048576 bytes for activations on gpu:0"),
            "{text}"
        );
        assert!(text.contains("a batch of 4096") && text.contains("4,194,304 bytes"), "{text}");
        let none = engine.explain(lacking(Some(10)), StepKind::Train, 64).to_string();
        assert!(none.ends_with("not even a batch of one sample for each replica fits"), "{none}");
        let unknown = engine.explain(lacking(None), StepKind::Train, 64).to_string();
        assert_eq!(unknown, lacking(None).to_string());
    }

    #[test]
    fn devices_of_two_kinds_or_none_are_refused() {
        let devices = |names: &[&str]| {
            let devices: Vec<Device> = names.iter().map(|n| n.parse().unwrap()).collect();
            PlannedDevices::new(&devices)
        };
        assert_eq!(devices(&["gpu:0", "gpu:7"]).unwrap().replicas, 2);
        assert!(devices(&["gpu:0", "cpu:0"]).unwrap_err().to_string().contains("GPUs alone"));
        assert!(devices(&["gpu:0", "gpu:0"]).is_err() && devices(&[]).is_err());
    }
}
