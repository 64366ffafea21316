//! The CPU executor: devices with mirrored parameters, workers with their memory, loaded programs.

mod consistency;
mod fetches;
mod memory;
mod memory_requirements;
mod state;

use self::fetches::Fetches;
use self::memory_requirements::{MemoryRequirements, tape_plans, unsupported_reason};
use crate::collectives::exchange_layout::{self, GradientLayout, GroupLayout};
use crate::collectives::process_collectives::{self, FusedCollective, ProcessCollectives};
use crate::collectives::update::{MAX_SCALARS, MAX_SLOTS};
use crate::kernels::elementwise::TapePlan;
use crate::simd::Isa;
use crate::threads::{Barrier, Pool, Team, pinning_enabled, usable_cores};
use crate::worker::{self, Outcome, StepRun};
use phalanx_exec::{
    Batch, Cluster, ExecError, Executor, LocalShard, ProcessFlags, Profiling, ProgramId,
    ProgramTable, ResidentData, Staging, StateId, StepTimes, check_own_batch, check_program,
    check_slots,
};
use phalanx_graph::ParamSpec;
use phalanx_graph::profile::Profile;
use phalanx_graph::program::{Mesh, Policy, Program, SHARDS, ShardLevel, Sharding};
use phalanx_graph::update::UpdateRule;
use std::sync::Arc;

pub(crate) use self::fetches::FetchPtr;
pub(crate) use self::memory::{
    DeviceMemory, ExecutorMemory, FlatLayout, StateMemory, WorkerMemory, grow, parts_of,
};
pub(crate) use self::memory_requirements::ProcessBytes;
pub use self::memory_requirements::memory_plan;

/// Maximum number of workers of an executor: more threads than any machine has cores.
const MAX_WORKERS: usize = 1 << 14;

/// Options of a CPU executor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Number of replicas.
    pub replicas: usize,
    /// Devices of each replica, which divide its work; 0 counts as 1.
    pub devices_per_replica: usize,
    /// Workers per device; 0 divides the machine's cores among the devices.
    pub workers: usize,
    /// Whether results must not depend on `replicas` and `workers` ([`Mesh::fixed`]).
    pub fixed: bool,
    /// Instruction set; `None` selects the best available.
    pub isa: Option<Isa>,
    /// What the processes divide among themselves. Within a process the devices then share one copy of the
    /// training state.
    pub shard: ShardLevel,
}

/// Workers of each of `devices` devices: as requested, or for 0 the device's share of the cores.
pub(crate) fn workers_per_device(devices: usize, requested: usize) -> usize {
    let workers = if requested == 0 { usable_cores() / devices.max(1) } else { requested };
    workers.clamp(1, worker::MAX_WORKERS_PER_DEVICE)
}

/// A program and the data that `load` derives from it.
pub(crate) struct LoadedProgram {
    pub program: Arc<Program>,
    /// The tape of each instruction, if any.
    pub tapes: Vec<Option<TapePlan>>,
    pub update: Option<TapePlan>,
    /// The collectives between processes.
    pub fused_collectives: Vec<FusedCollective>,
    /// Where `ProcessCollectives::gradients` holds the gradients.
    pub gradients: GradientLayout,
    /// The groups of weights that are gathered.
    pub weight_groups: Vec<Arc<GroupLayout>>,
    /// The instruction after which each bucket of gradients is submitted; `None` for the update.
    pub send_points: Vec<Option<usize>>,
    memory: MemoryRequirements,
    timings: Timings,
}

/// The times that profiling measured for a program.
#[derive(Default)]
struct Timings {
    steps: u64,
    rows: usize,
    /// Seconds of each instruction, summed over workers and steps.
    seconds: Vec<f64>,
}

/// Runs programs on the cores of this machine.
pub struct CpuExecutor {
    mesh: Mesh,
    isa: Isa,
    pool: Pool,
    barrier: Barrier,
    params: Vec<ParamSpec>,
    /// The parameters with the dimensions of what each device holds.
    parts: Vec<ParamSpec>,
    memory: ExecutorMemory,
    programs: ProgramTable<LoadedProgram>,
    /// `None` in a single-process run.
    collectives: Option<ProcessCollectives>,
    /// The fetches of the last step.
    fetches: Fetches,
    times: StepTimes,
    profiling: bool,
}

impl CpuExecutor {
    /// Creates an executor for the given parameters.
    pub fn new(options: CpuOptions, params: &[ParamSpec]) -> Result<CpuExecutor, ExecError> {
        CpuExecutor::with_cluster(options, params, None)
    }

    /// Creates an executor for the replicas of this process in a cluster.
    pub fn with_cluster(
        options: CpuOptions,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<CpuExecutor, ExecError> {
        let isa = options.isa.map_or_else(Isa::detect, Ok)?;
        let replicas = options.replicas.max(1);
        let own = cluster.as_ref().map_or(Ok(0..replicas), |c| c.check(replicas))?;
        let mesh = mesh(&options, cluster.as_ref())?;
        let local_workers = replicas * mesh.devices_per_replica * mesh.workers;
        let team = Team::new(local_workers);
        let domain = cluster.as_ref().map_or(0, |cluster| cluster.peers.rank());
        let memory = ExecutorMemory::new(params, mesh, (replicas, domain), &team)?;
        let no_thread = |e: std::io::Error| ExecError::Worker {
            worker: local_workers - 1,
            message: format!("the system starts no more threads: {e}"),
        };
        let collectives =
            cluster.map(|cluster| ProcessCollectives::new(cluster, mesh, own)).transpose();
        let pool = Pool::new(local_workers, pinning_enabled(), team.clone()).map_err(no_thread)?;
        Ok(CpuExecutor {
            mesh,
            isa,
            pool,
            barrier: Barrier::new(local_workers, team),
            params: params.to_vec(),
            parts: parts_of(params, mesh.devices_per_replica),
            memory,
            programs: ProgramTable::default(),
            collectives: collectives.map_err(no_thread)?,
            fetches: Fetches::default(),
            times: StepTimes::default(),
            profiling: false,
        })
    }

    /// Reserves the memory of a program. Buffers that are large enough stay as they are.
    fn reserve(&mut self, memory: MemoryRequirements) -> Result<(), ExecError> {
        if let Some(collectives) = &mut self.collectives {
            collectives.reserve(&mut self.memory.heap, memory.process)?;
        }
        self.memory.reserve(&memory)
    }

    /// Adds the workers' times of the last step to the program's timings.
    fn record_timings(&mut self, id: ProgramId, rows: usize) {
        let loaded = &mut self.programs[id];
        let count = loaded.program.instrs().len();
        let timings = &mut loaded.timings;
        if timings.rows != rows {
            *timings = Timings { rows, ..Timings::default() };
        }
        timings.steps += 1;
        timings.seconds.resize(count, 0.0);
        for w in &self.memory.workers {
            // SAFETY: the workers have finished, and each wrote one number per instruction.
            let seconds = unsafe { std::slice::from_raw_parts(w.seconds.ptr().cast(), count) };
            timings.seconds.iter_mut().zip(seconds).for_each(|(sum, s): (_, &f64)| *sum += s);
        }
    }
}

/// The mesh of an executor. In a cluster it includes the replicas of the other processes.
fn mesh(options: &CpuOptions, cluster: Option<&Cluster>) -> Result<Mesh, ExecError> {
    let replicas = options.replicas.max(1);
    let all = cluster.map_or(replicas, Cluster::all_replicas);
    let even = cluster.is_none_or(|c| c.replicas.iter().all(|n| *n == replicas));
    let devices_per_replica = options.devices_per_replica.max(1);
    let workers = workers_per_device(replicas * devices_per_replica, options.workers);
    let mesh = match options.fixed {
        true => Mesh::fixed(all).filter(|_| even).ok_or_else(|| ExecError::Program {
            name: "any".into(),
            reason: format!("{all} replicas do not divide {SHARDS} shards evenly"),
        })?,
        false => Mesh::new(all, workers),
    };
    let domains = cluster.map_or(1, |cluster| cluster.replicas.len());
    let mesh = mesh.sharded(Sharding::new(options.shard, domains));
    let mesh = mesh.with_devices_per_replica(devices_per_replica);
    if devices_per_replica > 1 && cluster.is_some() {
        let reason = "expected replicas of one device, since there are several processes".into();
        return Err(ExecError::Program { name: "any".into(), reason });
    }
    let local_workers = replicas.saturating_mul(mesh.workers).saturating_mul(devices_per_replica);
    if local_workers > MAX_WORKERS || all.checked_mul(mesh.workers).is_none() {
        let reason = format!("expected at most {MAX_WORKERS} workers, received {local_workers}");
        return Err(ExecError::Program { name: "any".into(), reason });
    }
    Ok(mesh)
}

impl Executor for CpuExecutor {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn shard(&self) -> LocalShard {
        let whole = LocalShard { mesh: self.mesh, replicas: 0..self.mesh.replicas };
        self.collectives.as_ref().map_or(whole, ProcessCollectives::shard)
    }

    fn load(&mut self, program: Arc<Program>) -> Result<ProgramId, ExecError> {
        check_program(&program, self.mesh, &self.parts)?;
        check_slots(&program, self.programs.iter().map(|p| &*p.program))?;
        if program.options().policy != Policy::Float32 {
            let reason = "CPU devices store 32-bit floats".into();
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let rule = program.update().map(|u| &u.rule);
        if rule.is_some_and(|r| r.slots.len() > MAX_SLOTS || r.scalars > MAX_SCALARS) {
            let reason = "its optimizer has too many slots or scalars".into();
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        if let Some(reason) = unsupported_reason(&program) {
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let (tapes, update) = tape_plans(&program);
        let (mut fused_collectives, mut send_points) = (vec![], vec![]);
        let (mut gradients, mut weight_groups) = (GradientLayout::default(), vec![]);
        if let Some(collectives) = &self.collectives {
            fused_collectives = process_collectives::fused_collectives(&program);
            let peers = &collectives.cluster.peers;
            let of = (peers.rank(), peers.size());
            gradients = GradientLayout::new(&program, of, &self.memory.owned);
            weight_groups = GroupLayout::of(&program, of.0, &self.memory.weights);
            send_points = exchange_layout::bucket_send_points(&program);
        }
        let mut memory = MemoryRequirements::of(&program, &tapes, update.as_ref());
        memory.process = ProcessBytes {
            collective_results: process_collectives::result_bytes(&fused_collectives),
            gradients: gradients.len * 4,
            gathered: program.memory().gathered,
        };
        self.reserve(memory)?;
        if let Some(plan) = program.update() {
            self.memory.create_slots(&plan.rule)?;
        }
        Ok(self.programs.insert(LoadedProgram {
            program,
            tapes,
            update,
            fused_collectives,
            gradients,
            weight_groups,
            send_points,
            memory,
            timings: Timings::default(),
        }))
    }

    fn unload(&mut self, id: ProgramId) {
        self.programs.remove(id);
    }

    fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        self.memory.create_slots(rule)
    }

    /// Runs the whole step before it returns.
    fn start(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let unknown = || ExecError::Program {
            name: format!("#{}", id.0),
            reason: "it was not loaded here".into(),
        };
        let shard = self.shard();
        let own = shard.rows(batch.rows);
        let loaded = self.programs.get(id).ok_or_else(unknown)?;
        check_own_batch(&loaded.program, batch, own.len())?;
        // A `load` that ran out of memory may have freed buffers that this program needs.
        self.reserve(loaded.memory)?;
        let loaded = &self.programs[id];
        if loaded.program.update().is_some() && batch.accumulate.is_some() {
            self.memory.reserve_accumulated()?;
        }
        if self.profiling {
            self.memory.reserve_seconds(loaded.program.instrs().len())?;
        }
        self.fetches.prepare(&loaded.program, batch.rows);
        let run = StepRun {
            loaded,
            batch,
            mesh: self.mesh,
            first_replica: shard.replicas.start,
            first_row: own.start,
            isa: self.isa,
            memory: &self.memory,
            barrier: &self.barrier,
            collectives: self.collectives.as_ref(),
            fetches: &self.fetches.destinations,
            profiling: self.profiling,
            outcome: Outcome::default(),
        };
        if let Some(collectives) = &self.collectives {
            collectives.cluster.peers.set_step(batch.step);
        }
        let done = self.pool.run(&|index| worker::run(&run, index));
        if let Err((worker, message)) = done {
            let failure = run.outcome.failure.into_inner().unwrap_or_default();
            return Err(failure.unwrap_or(ExecError::Worker { worker, message }));
        }
        if loaded.program.update().is_some() {
            let times = run.outcome.times.into_inner().unwrap_or_default();
            self.times.compute += times.compute;
            self.times.reduce += times.reduce;
        }
        if let Some(collectives) = &self.collectives {
            for (plan, out) in loaded.program.fetches().iter().zip(&mut self.fetches.values) {
                if plan.ty.is_rows() {
                    let done = collectives.gather_rows(batch.rows, plan.ty.len(), out);
                    done.map_err(|peer| ExecError::Peer { step: batch.step, peer })?;
                }
            }
        }
        if self.profiling {
            self.record_timings(id, batch.rows);
        }
        Ok(())
    }

    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError> {
        std::mem::swap(fetched, &mut self.fetches.values);
        Ok(())
    }

    /// Steps run to completion in `start`.
    fn in_flight(&self) -> bool {
        false
    }

    fn slots(&self) -> usize {
        self.memory.states[0].slots.len()
    }

    fn read(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError> {
        self.read_state(id)
    }

    fn write(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError> {
        self.write_state(id, values)
    }

    fn check_consistency(&self) -> Result<(), ExecError> {
        self.check_devices()?;
        self.check_processes()
    }

    fn times(&self) -> StepTimes {
        self.times
    }

    fn staging(&mut self) -> Option<&mut dyn Staging> {
        None
    }

    fn resident_data(&mut self) -> Option<&mut dyn ResidentData> {
        None
    }

    fn profiling(&mut self) -> Option<&mut dyn Profiling> {
        Some(self)
    }

    fn process_flags(&mut self) -> Option<&mut dyn ProcessFlags> {
        self.collectives.as_mut().map(|collectives| collectives as &mut dyn ProcessFlags)
    }
}

impl Profiling for CpuExecutor {
    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        if on {
            self.programs.iter_mut().for_each(|p| p.timings = Timings::default());
        }
    }

    fn profile(&self, id: ProgramId) -> Option<Profile> {
        let LoadedProgram { program, timings, .. } = self.programs.get(id)?;
        let workers = self.memory.workers.len() as f64;
        let seconds: Vec<f64> = timings.seconds.iter().map(|s| s / workers).collect();
        let Timings { steps, rows, .. } = *timings;
        (steps > 0).then(|| Profile::new(program, rows, steps, &seconds))
    }
}
