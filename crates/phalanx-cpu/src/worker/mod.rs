//! Execution of a program by one worker: the loop over its instructions, and the worker's view of the step.
//! `compute/` holds the ops.

mod address;
mod copies;
pub(crate) mod sharded_dense;
pub(crate) mod spatial_split;

use crate::collectives::process_collectives::ProcessCollectives;
use crate::collectives::{self, update};
use crate::compute;
use crate::executor::{ExecutorMemory, FetchPtr, LoadedProgram};
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
pub(crate) struct Run<'a> {
    pub loaded: &'a LoadedProgram,
    pub batch: &'a Batch<'a>,
    pub mesh: Mesh,
    /// The first device of this process, by its index in the mesh.
    pub first_device: usize,
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
    pub run: &'a Run<'a>,
    pub device: usize,
    pub worker: usize,
    /// Its rows of the global batch; all rows of the device under `Split::Spatial`.
    pub rows: Range<usize>,
}

impl Run<'_> {
    /// The rows of the global batch that a worker processes.
    pub fn rows(&self, device: usize, worker: usize) -> Range<usize> {
        match self.loaded.program.split() {
            Split::Rows => self.mesh.rows(self.batch.rows, device, worker),
            Split::Spatial => self.mesh.device_rows(self.batch.rows, device),
        }
    }
}

/// Runs the program on worker `index` of this process.
pub(crate) fn run(run: &Run<'_>, index: usize) {
    let (device, worker) = (run.first_device + index / run.mesh.workers, index % run.mesh.workers);
    let rows = run.rows(device, worker);
    let ctx = WorkerCtx { run, device, worker, rows };
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
            ctx.run_timed(at, instr);
        } else {
            ctx.run_instr(at, instr);
        }
        update::submit_finished_buckets(&ctx, at);
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

    /// The devices of this process, by their indices in the mesh.
    pub fn devices(&self) -> Range<usize> {
        self.run.first_device..self.run.first_device + self.run.memory.devices.len()
    }

    /// Whether this is the first worker of the process.
    pub fn is_leader(&self) -> bool {
        self.device == self.run.first_device && self.worker == 0
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
            Scope::Device => self.run.mesh.device_rows(self.run.batch.rows, self.device).len(),
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

    /// Unwraps a result of the process group. On an error it records the reason for the executor and
    /// unwinds; barriers then release the other workers.
    pub fn unwrap_or_abort<T>(&self, result: Result<T, PeerError>) -> T {
        result.unwrap_or_else(|peer| {
            let text = peer.to_string();
            let failure = ExecError::Peer { step: self.run.batch.step, peer };
            let mut first = self.run.outcome.failure.lock().unwrap_or_else(|e| e.into_inner());
            first.get_or_insert(failure);
            drop(first);
            // Not `panic!`: its hook would print this as a panic of the worker.
            std::panic::resume_unwind(Box::new(text))
        })
    }

    /// Runs an instruction and records its time.
    fn run_timed(&self, at: usize, instr: &Instr) {
        let begin = Instant::now();
        self.run_instr(at, instr);
        // SAFETY: only this worker uses its table, which has one number per instruction.
        unsafe {
            *self.memory().seconds.ptr().cast::<f64>().add(at) = begin.elapsed().as_secs_f64()
        };
    }

    fn run_instr(&self, at: usize, instr: &Instr) {
        match instr {
            Instr::Compute { op, inputs, output, sharded: true, .. } => {
                sharded_dense::compute(self, op, inputs, *output);
            }
            Instr::Compute { op, inputs, output, .. } => match self.program().split() {
                Split::Rows => compute::compute(self, at, op, inputs, *output),
                Split::Spatial => spatial_split::compute(self, at, op, inputs, *output),
            },
            Instr::Copy { input, output } => copies::copy(self, *input, *output),
            Instr::Barrier(scope) => {
                self.barrier(*scope);
                collectives::exchange_collectives(self, at);
            }
            Instr::AllReduce { .. } | Instr::ReplicaMean { .. }
                if collectives::take_reduced(self, at, instr) => {}
            Instr::AllReduce { scope, input, output } => {
                collectives::all_reduce(self, *scope, *input, *output)
            }
            Instr::ReplicaMean { input, output } => {
                collectives::replica_mean(self, *input, *output)
            }
            Instr::ReduceScatter { input, bias, relu, output, .. } => {
                sharded_dense::reduce_scatter(self, *input, *bias, *relu, *output);
            }
            Instr::ShardedGradKernel { param, x, dy } => {
                sharded_dense::grad_kernel(self, *param, *x, *dy)
            }
            Instr::Update => update::update(self),
            Instr::Assign { param, value } => copies::assign(self, *param, *value),
            Instr::Fetch { index, value } => copies::fetch(self, *index, *value),
        }
    }
}
