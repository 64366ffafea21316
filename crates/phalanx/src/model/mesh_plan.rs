//! Plans for meshes of devices: memory, what the devices send each other, how long a step takes; and the choice of a mesh.

use super::Model;
use super::session::{Session, StepKind};
use crate::error::{Error, Result};
use crate::strategy::{DeviceKind, LayoutMap, MAX_THREADS, Shard};
use phalanx_exec::{Backend, MemoryPlan};
use phalanx_graph::program::{
    CollectiveKind, Instr, Location, MeshAxis, Program, Sharding, Transfer,
};
use phalanx_graph::{Mesh, ParamSpec, Scope};

/// A mesh to plan for. This machine need not have its devices.
#[derive(Clone, Debug)]
pub struct PlannedMesh {
    /// The kind of all devices.
    pub kind: DeviceKind,
    /// Number of replicas.
    pub replicas: usize,
    /// Devices of each replica.
    pub devices_per_replica: usize,
    /// What the memories divide: those of GPUs, or of processes with CPU devices.
    pub shard: Shard,
    /// Processes that have the CPU devices; a GPU counts as one by itself.
    pub processes: usize,
    /// Worker threads of each CPU device; 0 divides the cores among the devices of a process.
    pub threads: usize,
    /// What the devices of a replica divide.
    pub layout: Option<LayoutMap>,
}

/// How fast devices and the links between them are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeshSpeed {
    /// Operations per second of a device.
    pub flops: f64,
    /// Bytes per second that a device sends along the model axis and along the batch axis.
    pub links: [f64; 2],
    /// Seconds that every exchange takes at least.
    pub latency: f64,
}

impl MeshSpeed {
    /// The latency assumed for every exchange, in seconds.
    pub const LATENCY: f64 = 20e-6;
}

/// What a step on a mesh needs.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// The mesh.
    pub mesh: PlannedMesh,
    /// The memory of each device, and of each memory that devices share.
    pub memory: MemoryPlan,
    /// Bytes of the weights that one memory holds between steps, and of all weights.
    pub weights: (usize, usize),
    /// The weights that the layout partitions and all weights: their number and elements.
    pub partitioned: [(usize, usize); 2],
    /// Bytes of the two buffers of gathered weights in each memory.
    pub gathered: usize,
    /// Exchanges along the model axis: their number, and bytes that each device sends.
    pub over_model: (usize, f64),
    /// Exchanges along the batch axis: their number, and bytes that each member sends.
    pub over_data: (usize, f64),
    /// Seconds of a step, if speeds are given.
    pub time: Option<StepTime>,
}

/// The predicted time of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The whole step.
    pub total: f64,
    /// Arithmetic.
    pub compute: f64,
    /// Exchanges that the arithmetic does not hide.
    pub exposed: f64,
}

impl PlannedMesh {
    /// The members of the batch axis that have a memory of their own: the processes, or the GPUs with a part of a replica.
    fn members(&self, backend: &dyn Backend) -> usize {
        if backend.traits().on_host {
            self.processes.max(1).min(self.replicas)
        } else {
            self.replicas
        }
    }

    /// Devices that share a memory.
    pub fn sharing(&self, backend: &dyn Backend) -> usize {
        match backend.traits().on_host {
            true => (self.replicas * self.devices_per_replica).div_ceil(self.processes.max(1)),
            false => 1,
        }
    }

    fn compiled_for(&self, backend: &dyn Backend) -> Result<Mesh> {
        let devices = self.replicas.saturating_mul(self.devices_per_replica);
        if devices == 0 || devices.saturating_mul(self.threads.max(1)) > MAX_THREADS {
            let expected = format!("1 to {MAX_THREADS} devices and threads");
            return Err(Error::argument("mesh_plan", "mesh", expected, devices));
        }
        if backend.traits().on_host && !self.replicas.is_multiple_of(self.processes.max(1)) {
            let expected = format!("a multiple of the {} processes", self.processes);
            return Err(Error::argument("mesh_plan", "replicas", expected, self.replicas));
        }
        let of_process = devices.div_ceil(self.processes.max(1));
        let workers = backend.mesh(of_process, self.threads).workers;
        let sharding = Sharding::new(self.shard, self.members(backend));
        Ok(Mesh::new(self.replicas, workers)
            .with_devices_per_replica(self.devices_per_replica)
            .sharded(sharding))
    }

    /// A short name, `data=2,model=4` and what is sharded.
    pub fn name(&self) -> String {
        let model = if self.devices_per_replica > 1 {
            format!(",model={}", self.devices_per_replica)
        } else {
            String::new()
        };
        let shard = match self.shard {
            Shard::None => String::new(),
            level => format!(" --shard {}", level.name()),
        };
        format!("data={}{model}{shard}", self.replicas)
    }
}

impl Model {
    /// Plans a training step for a global batch of `batch` samples on a mesh.
    ///
    /// # Errors
    /// A model that is not compiled, a layout that does not fit it, or devices that cannot run it.
    pub fn mesh_plan(
        &self,
        batch: usize,
        mesh: &PlannedMesh,
        speed: Option<MeshSpeed>,
    ) -> Result<MeshPlan> {
        let backend = mesh.kind.backend()?;
        let compiled_for = mesh.compiled_for(&*backend)?;
        let program = self.with_planner("mesh_plan", StepKind::Train, |session, step| {
            let axes = session.weights.partition_axes(&session.def, mesh.layout.as_ref())?;
            let devices = (compiled_for, &*backend);
            let Session { programs, objective, .. } = session;
            programs.partitioned_program(objective, step, batch, (devices, &axes))
        })?;
        let memory = backend.memory_plan(&program, false);
        let rows = compiled_for.max_replica_rows(batch);
        let members = mesh.members(&*backend);
        let transfers = program.transfers(rows);
        let sums = |axis: MeshAxis, members: usize| {
            let of_axis = transfers.iter().filter(|t| t.axis == axis && members > 1);
            of_axis.fold((0, 0.0), |(n, bytes), t| (n + 1, bytes + t.sent(members)))
        };
        let parts = program.params();
        let whole = |spec: &ParamSpec| {
            spec.len() * if spec.partition_axis.is_some() { mesh.devices_per_replica } else { 1 }
        };
        let held = |(i, spec): (usize, &ParamSpec)| {
            let id = phalanx_graph::ParamId(i as u32);
            compiled_for.sharding.held(id, spec, 0).len() * 4
        };
        let count = |partitioned: bool| {
            let chosen = parts.iter().filter(|spec| !partitioned || spec.partition_axis.is_some());
            chosen.fold((0, 0), |(n, elements), spec| (n + 1, elements + whole(spec)))
        };
        Ok(MeshPlan {
            memory,
            weights: (
                parts.iter().enumerate().map(held).sum(),
                parts.iter().map(|spec| whole(spec) * 4).sum(),
            ),
            partitioned: [count(true), count(false)],
            gathered: 2 * program.memory().gathered,
            over_model: sums(MeshAxis::Model, mesh.devices_per_replica),
            over_data: sums(MeshAxis::Batch, members),
            time: speed.map(|speed| step_time(&program, batch, &transfers, (members, speed))),
            mesh: mesh.clone(),
        })
    }

    /// Plans every mesh of `devices` devices, with every kind of sharding, that the layout allows; the best first: those
    /// that fit in `memory` bytes of each memory before others, faster ones before slower ones. Of equally fast ones the one
    /// that divides less is better.
    ///
    /// # Errors
    /// As for [`Model::mesh_plan`], if no mesh can be planned.
    pub fn best_meshes(
        &self,
        batch: usize,
        devices: &PlannedMesh,
        (memory, speed): (usize, MeshSpeed),
    ) -> Result<Vec<MeshPlan>> {
        let count = devices.replicas * devices.devices_per_replica;
        let backend = devices.kind.backend()?;
        let (mut plans, mut refused) = (vec![], None);
        let largest = if devices.layout.is_some() { count } else { 1 };
        for model in (1..=largest).filter(|model| count.is_multiple_of(*model)) {
            for shard in Shard::ALL {
                let layout =
                    devices.layout.as_ref().map(|layout| layout.resized(count / model, model));
                let layout = layout.transpose()?.filter(|_| model > 1);
                let replicas = count / model;
                let mesh = PlannedMesh {
                    replicas,
                    devices_per_replica: model,
                    shard,
                    layout,
                    ..devices.clone()
                };
                match self.mesh_plan(batch, &mesh, Some(speed)) {
                    Ok(plan) => plans.push(plan),
                    Err(error) => refused = Some(error),
                }
            }
        }
        // A tenth of the memory stays free.
        let limit = memory - memory / 10;
        let rank = |plan: &MeshPlan| {
            let bytes = plan.memory.total(plan.mesh.sharing(&*backend));
            let time = plan.time.map_or(0.0, |t| t.total);
            // Times within a percent are equal.
            let step = (time.max(1e-9).ln() / 1.01f64.ln()).round() as i64;
            (
                bytes > limit,
                if bytes > limit { bytes as i64 } else { step },
                plan.mesh.devices_per_replica,
                plan.mesh.shard,
            )
        };
        plans.sort_by_key(rank);
        match (plans.is_empty(), refused) {
            (true, Some(error)) => Err(error),
            _ => Ok(plans),
        }
    }
}

/// The time of a step: instructions one after the other, while exchanges along the batch axis run beside them from where
/// their operands are complete to where their results are needed. Exchanges along the model axis are waited for.
fn step_time(
    program: &Program,
    rows: usize,
    transfers: &[Transfer],
    (members, speed): (usize, MeshSpeed),
) -> StepTime {
    let mesh = program.options().mesh;
    let devices = (mesh.replicas * mesh.devices_per_replica) as f64;
    let seconds = |instr: &Instr| program.cost(instr, rows).flops / devices / speed.flops;
    let at: Vec<f64> = program
        .instrs()
        .iter()
        .scan(0.0, |now, instr| {
            *now += seconds(instr);
            Some(*now)
        })
        .collect();
    let compute = at.last().copied().unwrap_or(0.0);
    let [model_link, data_link] = speed.links;
    let mut exposed = 0.0;
    let mut link_free = 0.0;
    for transfer in transfers {
        let (members, link) = match transfer.axis {
            MeshAxis::Model => (mesh.devices_per_replica, model_link),
            MeshAxis::Batch => (members, data_link),
        };
        if members < 2 {
            continue;
        }
        let takes = transfer.sent(members) / link + speed.latency;
        if transfer.axis == MeshAxis::Model {
            exposed += takes;
            continue;
        }
        let (ready, needed) = window(program, transfer, &at);
        link_free = f64::max(link_free, ready + exposed) + takes;
        exposed += f64::max(0.0, link_free - (needed + exposed));
    }
    StepTime { total: compute + exposed, compute, exposed }
}

/// When the operands of an exchange are complete, and when its result is needed, without any waiting.
fn window(program: &Program, transfer: &Transfer, at: &[f64]) -> (f64, f64) {
    let instrs = program.instrs();
    let end = at.last().copied().unwrap_or(0.0);
    let before = |i: usize| if i == 0 { 0.0 } else { at[i - 1] };
    match &instrs[transfer.at] {
        // Gathered one group ahead.
        Instr::GatherWeights { .. } => {
            let earlier = instrs[..transfer.at]
                .iter()
                .rposition(|i| matches!(i, Instr::GatherWeights { .. }));
            (earlier.map_or(0.0, before), before(transfer.at))
        }
        Instr::ReduceGradients { .. } => (before(transfer.at), end),
        // New weights travel after the update.
        Instr::Update if transfer.kind == CollectiveKind::AllGather => (end, end),
        // The backward pass completes gradients evenly.
        Instr::Update => {
            let backward = instrs.iter().position(|i| {
                i.output()
                    .is_some_and(|o| matches!(program.value(o).location, Location::Gradient(_)))
            });
            (backward.map_or(end, before), before(transfer.at))
        }
        Instr::AllReduce { scope: Scope::All, .. } | Instr::ReplicaMean { .. } => {
            (before(transfer.at), before(transfer.at))
        }
        _ => (before(transfer.at), before(transfer.at)),
    }
}
