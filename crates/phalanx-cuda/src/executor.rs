//! The GPU executor: replicas on GPUs, their memory, and prepared steps.

mod multi_step;
mod prepare;
mod profiling;
mod run_step;
mod state;

use crate::collectives::{DeviceReplicas, PeerGroup, ThreadPool, run_all};
use crate::device::{GpuDevice, Plan, StepId};
use crate::launch::Block;
use crate::lower::{FusionFacts, Replica};
use crate::lowering_context::Layout;
use crate::plan::{self, ALIGN, Allocation};
use crate::resident_dataset::Table;
use phalanx_exec::{Cluster, ExecError, ProgramId, ProgramTable, StepTimes, TableId};
use phalanx_graph::ParamSpec;
use phalanx_graph::program::{Mesh, Program};
use profiling::Measured;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What a prepared step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StepKey {
    /// Rows of the batch.
    rows: usize,
    /// With gradient accumulation, whether the sum is applied.
    accumulate: Option<bool>,
    /// The resident dataset that the rows come from, if any.
    table: Option<TableId>,
}

/// A prepared step, with all that is needed to prepare it again.
struct PreparedStep {
    plans: Vec<Plan>,
    /// Scratch memory of its work items.
    blocks: Vec<Allocation>,
    ids: Vec<StepId>,
    /// Value of [`Counts::relocations`] when it was prepared.
    relocations: u64,
    /// Value of [`Counts::uses`] when it was last used.
    used: u64,
}

struct LoadedProgram {
    program: Arc<Program>,
    layout: Layout,
    facts: FusionFacts,
    /// Blocks that are independent of the number of rows.
    blocks: Vec<Allocation>,
    /// Bytes of a replica's inputs.
    inputs: usize,
    /// Offset of each fetch, in bytes, and their total size.
    fetches: Vec<usize>,
    fetch_bytes: usize,
    steps: HashMap<StepKey, PreparedStep>,
    measured: Option<Measured>,
}

/// Runs programs on GPUs.
pub(crate) struct GpuExecutor<M: GpuDevice> {
    mesh: Mesh,
    devices: Vec<DeviceReplicas<M>>,
    threads: ThreadPool,
    /// Whether work items reduce across GPUs.
    joined: bool,
    /// The other processes, if any.
    peers: Option<PeerGroup>,
    /// Names of the local replicas.
    names: Vec<String>,
    state: StateLayout,
    programs: ProgramTable<LoadedProgram>,
    counts: Counts,
    in_flight: InFlight,
    tables: Vec<Option<Table>>,
    timing: Timing,
}

/// What happened so far.
#[derive(Default)]
struct Counts {
    /// How often a block of memory was relocated.
    relocations: u64,
    /// How often a prepared step was used.
    uses: u64,
}

/// What is measured.
#[derive(Default)]
struct Timing {
    /// The time of all training steps.
    steps: StepTimes,
    /// Whether every instruction is timed.
    profiling: bool,
}

/// The state that outlives a step, and where each replica has it.
struct StateLayout {
    params: Vec<ParamSpec>,
    /// Byte offset of each parameter, and their total size.
    offsets: Vec<usize>,
    bytes: usize,
    /// Number of optimizer slots.
    slots: usize,
    /// Whether there is a block of accumulated gradients.
    accumulates: bool,
}

impl StateLayout {
    fn new(params: &[ParamSpec]) -> StateLayout {
        let (offsets, bytes) = plan::param_offsets(params);
        StateLayout { params: params.to_vec(), offsets, bytes, slots: 0, accumulates: false }
    }

    /// The blocks in use.
    fn blocks(&self) -> Vec<Block> {
        let accumulated = self.accumulates.then_some(Block::Accumulated);
        let slots = (0..self.slots).map(Block::Slot);
        [Block::Params].into_iter().chain(accumulated).chain(slots).collect()
    }
}

/// What was started and not yet finished.
struct InFlight {
    /// The program whose next feeds were staged.
    staged: Option<ProgramId>,
    /// The program that was started, and its rows.
    step: Option<(ProgramId, usize)>,
    /// The program of the steps started on a resident dataset, and their number.
    table_steps: Option<(ProgramId, usize)>,
    since: Instant,
}

impl InFlight {
    fn new() -> InFlight {
        InFlight { staged: None, step: None, table_steps: None, since: Instant::now() }
    }
}

impl<M: GpuDevice> GpuExecutor<M> {
    /// Creates an executor for a list of parameters. Each GPU comes with the names of its replicas.
    /// In a cluster, these are the local part of all replicas.
    pub fn new(
        gpus: Vec<(M, Vec<String>)>,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<GpuExecutor<M>, ExecError> {
        let names: Vec<String> = gpus.iter().flat_map(|(_, names)| names.clone()).collect();
        let first = match &cluster {
            Some(cluster) => cluster.check(names.len())?.start,
            None => 0,
        };
        let devices = DeviceReplicas::all(gpus, first);
        let failed = |e: std::io::Error| ExecError::Device {
            device: names.join(", "),
            message: format!("a thread cannot be started: {e}"),
        };
        let threads = ThreadPool::new(devices.len()).map_err(failed)?;
        let state = StateLayout::new(params);
        let bytes = state.bytes;
        let mut executor = GpuExecutor {
            mesh: Mesh::new(cluster.as_ref().map_or(names.len(), Cluster::all_replicas), 1),
            peers: cluster.map(PeerGroup::new),
            joined: devices.iter().any(|s| s.gpu.joined()),
            devices,
            threads,
            names,
            state,
            programs: ProgramTable::default(),
            counts: Counts::default(),
            in_flight: InFlight::new(),
            tables: vec![],
            timing: Timing::default(),
        };
        executor.reserve(Block::Params, bytes, "weights")?;
        Ok(executor)
    }

    /// The replicas of this process.
    fn local_replicas(&self) -> std::ops::Range<usize> {
        let first = self.devices.first().map_or(0, |s| s.replicas.start);
        first..first + self.names.len()
    }

    /// Runs `work` on all GPUs in parallel. A GPU may wait for another, also for one of another
    /// process.
    fn run_all<R: Send>(
        &mut self,
        work: impl Fn(usize, &mut DeviceReplicas<M>) -> Result<R, ExecError> + Sync,
    ) -> Result<Vec<R>, ExecError> {
        let done = run_all(&self.threads, &mut self.devices, work);
        done.map_err(|error| match &self.peers {
            Some(peers) => peers.explain(error),
            None => error,
        })
    }

    /// Aborts the GPUs after a failed exchange with other processes, so that none waits for a lost
    /// process.
    fn abort_on_error<T>(&mut self, done: Result<T, ExecError>) -> Result<T, ExecError> {
        if done.is_err() {
            self.devices.iter_mut().for_each(|s| s.gpu.abort());
        }
        done
    }

    /// Grows a block of every replica to at least `bytes`.
    fn reserve(&mut self, block: Block, bytes: usize, purpose: &str) -> Result<(), ExecError> {
        let bytes = bytes.max(ALIGN);
        let relocations =
            self.threads.each(&mut self.devices, |_, s| s.reserve(block, bytes, purpose));
        for relocations in &relocations {
            // After a failure, other blocks may have been relocated.
            self.counts.relocations += relocations.as_ref().map_or(1, |relocations| *relocations);
        }
        relocations.into_iter().try_for_each(|relocations| relocations.map(|_| ()))
    }

    fn reserve_all(&mut self, blocks: &[Allocation]) -> Result<(), ExecError> {
        blocks.iter().try_for_each(|a| self.reserve(a.block, a.bytes, a.purpose))
    }

    /// The rows of every replica on a GPU.
    fn replicas_on(&self, device: usize, rows: usize) -> Vec<Replica> {
        let replicas = self.devices[device].replicas.clone();
        let each = replicas.enumerate().map(|(local, device)| {
            let range = self.mesh.replica_rows(rows, device);
            Replica { local, rows: range.len(), first_row: range.start }
        });
        each.collect()
    }

    fn loaded(&self, id: ProgramId) -> Result<&LoadedProgram, ExecError> {
        self.programs.get(id).ok_or_else(|| ExecError::Program {
            name: format!("#{}", id.0),
            reason: "it was not loaded here".into(),
        })
    }
}

impl<M: GpuDevice> Drop for GpuExecutor<M> {
    fn drop(&mut self) {
        if self.peers.is_some() && self.in_flight.step.is_some() {
            // The step was interrupted: GPUs of other processes may wait for it forever.
            self.devices.iter_mut().for_each(|s| s.gpu.abort());
        }
    }
}
