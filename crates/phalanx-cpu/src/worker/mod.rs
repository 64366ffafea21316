//! Execution of a program by one worker: the loop over its instructions, and the worker's view of the step.
//! `compute/` holds the ops.

mod address;
mod copies;
pub(crate) mod sharded_dense;
pub(crate) mod spatial_split;

use crate::collectives::process_collectives::ProcessCollectives;
use crate::collectives::{self, reduction, update};
use crate::compute;
use crate::executor::{
    DeviceMemory, ExecutorMemory, FetchPtr, LoadedProgram, StateMemory, WorkerMemory,
};
use crate::simd::Isa;
use crate::threads::{Barrier, FlushToZeroGuard};
use phalanx_distributed::PeerError;
use phalanx_exec::{Batch, ExecError, StepTimes};
use phalanx_graph::program::{Instr, Mesh, Program, Split, Value, ValueId, split_range};
use phalanx_graph::{Op, Scope};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

/// Maximum number of workers per device. Fixed tables on the stack have this size.
pub const MAX_WORKERS_PER_DEVICE: usize = 256;

/// One step, shared by all workers.
pub(crate) struct StepRun<'a> {
    pub loaded: &'a LoadedProgram,
    pub batch: &'a Batch<'a>,
    pub mesh: Mesh,
    /// The first replica of this process, by its index in the mesh.
    pub first_replica: usize,
    /// The first row of this process in the global batch.
    pub first_row: usize,
    pub isa: Isa,
    pub memory: &'a ExecutorMemory,
    pub barrier: &'a Barrier,
    /// `None` in a single-process run.
    pub collectives: Option<&'a ProcessCollectives>,
    pub fetches: &'a [FetchPtr],
    /// Whether each worker records the time of every instruction.
    pub profiling: bool,
    pub outcome: Outcome,
}

/// What the workers report about a step.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Why a worker aborted the step.
    pub failure: Mutex<Option<ExecError>>,
    pub times: Mutex<StepTimes>,
}

/// One worker's view of a step.
pub(crate) struct WorkerCtx<'a> {
    pub run: &'a StepRun<'a>,
    /// Its replica, by its index in the mesh.
    pub replica: usize,
    /// Its device among those of the replica.
    pub part: usize,
    pub worker: usize,
    /// Its rows of the global batch; all rows of the replica under `Split::Spatial`.
    pub rows: Range<usize>,
}

impl StepRun<'_> {
    /// The rows of the global batch that a worker processes.
    pub fn rows(&self, replica: usize, worker: usize) -> Range<usize> {
        match self.loaded.program.split() {
            Split::Rows => self.mesh.rows(self.batch.rows, replica, worker),
            Split::Spatial => self.mesh.replica_rows(self.batch.rows, replica),
        }
    }

    /// The replicas of this process, by their indices in the mesh.
    pub fn replicas(&self) -> Range<usize> {
        let count = self.memory.devices.len() / self.mesh.devices_per_replica;
        self.first_replica..self.first_replica + count
    }

    /// The index of a device of this process: that of a replica with part `part` of it.
    fn device_index(&self, replica: usize, part: usize) -> usize {
        (replica - self.first_replica) * self.mesh.devices_per_replica + part
    }

    /// The memory of the device with part `part` of a replica.
    pub fn device_memory(&self, replica: usize, part: usize) -> &DeviceMemory {
        &self.memory.devices[self.device_index(replica, part)]
    }

    /// The copy of the training state that the device with part `part` of a replica uses.
    pub fn state(&self, replica: usize, part: usize) -> &StateMemory {
        let states = &self.memory.states;
        let one_each = states.len() == self.memory.devices.len();
        &states[if one_each { self.device_index(replica, part) } else { part }]
    }

    /// The memory of worker `worker` of the device with part `part` of a replica.
    pub fn worker_memory(&self, replica: usize, part: usize, worker: usize) -> &WorkerMemory {
        &self.memory.workers[self.device_index(replica, part) * self.mesh.workers + worker]
    }

    /// Unwraps a result of the process group. On an error it records the reason for the executor and
    /// unwinds; barriers then release the other workers.
    pub fn unwrap_or_abort<T>(&self, result: Result<T, PeerError>) -> T {
        result.unwrap_or_else(|peer| {
            let text = peer.to_string();
            let failure = ExecError::Peer { step: self.batch.step, peer };
            let mut first = self.outcome.failure.lock().unwrap_or_else(|e| e.into_inner());
            first.get_or_insert(failure);
            drop(first);
            // Not `panic!`: its hook would print this as a panic of the worker.
            std::panic::resume_unwind(Box::new(text))
        })
    }
}

/// Runs the program on worker `index` of this process.
pub(crate) fn run(run: &StepRun<'_>, index: usize) {
    let Mesh { workers, devices_per_replica, .. } = run.mesh;
    let (device, worker) = (index / workers, index % workers);
    let replica = run.first_replica + device / devices_per_replica;
    let part = device % devices_per_replica;
    let rows = run.rows(replica, worker);
    let ctx = WorkerCtx { run, replica, part, worker, rows };
    let _guard = FlushToZeroGuard::new();
    let begin = Instant::now();
    let mut update_begin = None;
    for (at, instr) in run.loaded.program.instrs().iter().enumerate() {
        if index == 0 && update_begin.is_none() && matches!(instr, Instr::Barrier(Scope::All)) {
            // Everything after the last barrier over all devices is reduction and update.
            let rest = &run.loaded.program.instrs()[at..];
            if rest.iter().any(|i| matches!(i, Instr::Update)) && !has_compute(rest) {
                update_begin = Some(Instant::now());
            }
        }
        if run.profiling {
            run_timed(&ctx, at, instr);
        } else {
            run_instr(&ctx, at, instr);
        }
        reduction::submit_finished_buckets(&ctx, at);
    }
    if index == 0 {
        let end = Instant::now();
        let split = update_begin.unwrap_or(end);
        if let Ok(mut times) = run.outcome.times.lock() {
            times.compute = (split - begin).as_secs_f64();
            times.reduce = (end - split).as_secs_f64();
        }
    }
}

/// Whether the instructions contain a gradient of a dense or convolution layer.
pub(crate) fn has_compute(instrs: &[Instr]) -> bool {
    instrs.iter().any(|i| match i {
        Instr::Compute { op, .. } => matches!(
            op,
            Op::ConvGradKernel(_) | Op::ConvGradInput(_) | Op::DotGradInput | Op::DotGradKernel
        ),
        _ => false,
    })
}

impl<'a> WorkerCtx<'a> {
    pub fn program(&self) -> &'a Program {
        &self.run.loaded.program
    }

    pub fn value(&self, id: ValueId) -> &'a Value {
        self.program().value(id)
    }

    /// Whether this is the first worker of the process.
    pub fn is_leader(&self) -> bool {
        self.replica == self.run.first_replica && self.part == 0 && self.worker == 0
    }

    /// This worker's index among those of the process that have the same part of a replica, and their number.
    pub fn process_worker(&self) -> (usize, usize) {
        let Mesh { workers, devices_per_replica, .. } = self.run.mesh;
        let replica = self.replica - self.run.first_replica;
        (replica * workers + self.worker, self.run.memory.workers.len() / devices_per_replica)
    }

    /// This worker's index among those that share its copy of the training state, and their number.
    pub fn state_worker(&self) -> (usize, usize) {
        match self.run.memory.states.len() == self.run.memory.devices.len() {
            true => (self.worker, self.run.mesh.workers),
            false => self.process_worker(),
        }
    }

    /// The workers that share this worker's copy of the training state, or more.
    pub fn state_scope(&self) -> Scope {
        let shared = self.run.memory.states.len() != self.run.memory.devices.len();
        if shared { Scope::All } else { Scope::Device }
    }

    /// Waits for the workers that share this worker's copy of the training state.
    pub fn state_barrier(&self) {
        self.barrier(self.state_scope());
    }

    /// Number of rows of a value on this worker; 1 if the value has no row axis.
    pub fn row_count(&self, id: ValueId) -> usize {
        if self.value(id).ty.is_rows() { self.rows.len() } else { 1 }
    }

    /// Number of elements of a value on this worker.
    pub fn elements(&self, id: ValueId) -> usize {
        self.row_count(id) * self.value(id).ty.len()
    }

    /// Number of pixels (vectors along the last axis) of a value on this worker.
    pub fn pixels(&self, id: ValueId) -> usize {
        let last = self.value(id).ty.last().max(1);
        self.elements(id) / last
    }

    /// Number of rows in a scope.
    pub fn scope_rows(&self, scope: Scope) -> usize {
        match scope {
            Scope::Device => self.run.mesh.replica_rows(self.run.batch.rows, self.replica).len(),
            Scope::All => self.run.batch.rows,
        }
    }

    /// This worker's part of `0..pieces`: everything under `Split::Rows`, an equal share under
    /// `Split::Spatial`.
    pub fn my_range(&self, pieces: usize) -> Range<usize> {
        match self.program().split() {
            Split::Rows => 0..pieces,
            Split::Spatial => split_range(0..pieces, self.run.mesh.workers, self.worker),
        }
    }

    pub fn barrier(&self, scope: Scope) {
        match scope {
            Scope::Device => self.device_memory().barrier.wait(),
            Scope::All => self.run.barrier.wait(),
        }
    }
}

/// Runs an instruction and records its time.
fn run_timed(ctx: &WorkerCtx<'_>, at: usize, instr: &Instr) {
    let begin = Instant::now();
    run_instr(ctx, at, instr);
    // SAFETY: only this worker uses its table, which has one number per instruction.
    unsafe { *ctx.memory().seconds.ptr().cast::<f64>().add(at) = begin.elapsed().as_secs_f64() };
}

fn run_instr(ctx: &WorkerCtx<'_>, at: usize, instr: &Instr) {
    match instr {
        Instr::Compute { op, inputs, output, sharded: true, .. } => {
            sharded_dense::compute(ctx, op, inputs, *output);
        }
        Instr::Compute { op, inputs, output, .. } => match ctx.program().split() {
            Split::Rows => compute::compute(ctx, at, op, inputs, *output),
            Split::Spatial => spatial_split::compute(ctx, at, op, inputs, *output),
        },
        Instr::Copy { input, output } => copies::copy(ctx, *input, *output),
        Instr::Barrier(scope) => {
            ctx.barrier(*scope);
            collectives::exchange_collectives(ctx, at);
        }
        Instr::AllReduce { .. } | Instr::ReplicaMean { .. }
            if collectives::take_reduced(ctx, at, instr) => {}
        Instr::AllReduce { scope, input, output } => {
            collectives::all_reduce(ctx, *scope, *input, *output)
        }
        Instr::ReplicaMean { input, output } => collectives::replica_mean(ctx, *input, *output),
        Instr::ExchangeParts { op, input, output, .. } => {
            collectives::parts::exchange(ctx, *op, *input, *output)
        }
        Instr::ReduceScatter { input, bias, relu, output, .. } => {
            sharded_dense::reduce_scatter(ctx, *input, *bias, *relu, *output);
        }
        Instr::ShardedGradKernel { param, x, dy } => {
            sharded_dense::grad_kernel(ctx, *param, *x, *dy)
        }
        Instr::GatherWeights { group } => collectives::gather_weights(ctx, *group),
        Instr::ReduceGradients { bucket } => reduction::reduce_bucket(ctx, *bucket),
        Instr::Update => update::update(ctx),
        Instr::Assign { param, value } => copies::assign(ctx, *param, *value),
        Instr::Fetch { index, value } => copies::fetch(ctx, *index, *value),
    }
}
