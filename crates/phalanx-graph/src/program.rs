//! The step program: plain data that any executor can run, with all values assigned to memory.

mod print;

use crate::error::Result;
use crate::graph::{FeedId, FeedSpec, ParamId, ParamSpec};
use crate::loss_scale::LossScale;
use crate::ops::Op;
use crate::passes;
use crate::step::Step;
use crate::types::{DType, Scope, Type};
use crate::update::UpdateRule;
use crate::{lower, plan, verify};

/// Total workers of a mesh with [`Mesh::fixed`] shards; 1, 2, 4 or 8 devices share them.
pub const SHARDS: usize = 8;

/// The devices and workers that a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Number of devices, that is, replicas.
    pub devices: usize,
    /// Workers per device.
    pub workers: usize,
    /// Whether rows are always split into [`SHARDS`] shards and sums are trees over them, so that
    /// results do not depend on the number of devices.
    pub fixed: bool,
}

impl Mesh {
    /// A mesh of `devices` with `workers` each.
    pub const fn new(devices: usize, workers: usize) -> Mesh {
        Mesh { devices, workers, fixed: false }
    }

    /// A fixed mesh of [`SHARDS`] workers over `devices`; `None` unless `devices` divides them.
    pub fn fixed(devices: usize) -> Option<Mesh> {
        let divides = devices > 0 && SHARDS.is_multiple_of(devices);
        divides.then(|| Mesh { devices, workers: SHARDS / devices, fixed: true })
    }

    /// Total number of workers.
    pub fn len(&self) -> usize {
        self.devices * self.workers
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of worker `worker` of device `device`. The batch is split as evenly as possible, first
    /// over devices, then over a device's workers; a fixed mesh splits it over all workers at once.
    pub fn rows(&self, rows: usize, device: usize, worker: usize) -> std::ops::Range<usize> {
        if self.fixed {
            return split_range(0..rows, self.len(), device * self.workers + worker);
        }
        split_range(self.device_rows(rows, device), self.workers, worker)
    }

    /// The rows of a device.
    pub fn device_rows(&self, rows: usize, device: usize) -> std::ops::Range<usize> {
        if self.fixed {
            let last = self.rows(rows, device, self.workers - 1);
            return self.rows(rows, device, 0).start..last.end;
        }
        split_range(0..rows, self.devices, device)
    }

    /// The rows of consecutive devices.
    pub fn rows_of(&self, rows: usize, devices: std::ops::Range<usize>) -> std::ops::Range<usize> {
        if devices.is_empty() {
            return 0..0;
        }
        let last = self.device_rows(rows, devices.end - 1);
        self.device_rows(rows, devices.start).start..last.end
    }

    /// The maximum number of rows of a device; the first devices get the remainder.
    pub fn max_device_rows(&self, rows: usize) -> usize {
        self.device_rows(rows, 0).len()
    }

    /// The maximum number of rows of a worker.
    pub fn max_rows(&self, rows: usize) -> usize {
        rows.div_ceil(self.devices).div_ceil(self.workers)
    }
}

/// Part `i` of `n` of a range. The first parts are one longer if the range does not divide evenly.
pub fn split_range(range: std::ops::Range<usize>, n: usize, i: usize) -> std::ops::Range<usize> {
    let (len, start) = (range.len(), range.start);
    let (each, extra) = (len / n, len % n);
    let begin = start + i * each + i.min(extra);
    begin..begin + each + usize::from(i < extra)
}

/// How the work of a device is split among its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Each worker has its own rows of the batch and its own memory.
    Rows,
    /// All workers share one memory and process all rows of the device, each its own lines of every
    /// value (the first axis after the rows), with a barrier after every instruction.
    Spatial,
}

impl Split {
    /// Spatial splitting pays off if a device has fewer rows than workers.
    pub fn of(mesh: Mesh, rows: usize) -> Split {
        let fewer_rows = rows.div_ceil(mesh.devices.max(1)) < mesh.workers;
        if fewer_rows { Split::Spatial } else { Split::Rows }
    }
}

/// The precision in which layers store activations. Arithmetic and weights are always 32-bit floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// 32-bit floats.
    #[default]
    Float32,
    /// bfloat16, with the range of 32-bit floats: Keras' `mixed_bfloat16`.
    MixedBfloat16,
    /// IEEE 754 16-bit floats, with loss scaling: Keras' `mixed_float16`.
    MixedFloat16,
}

impl Policy {
    /// The 16-bit type, if any.
    pub fn narrow(self) -> Option<DType> {
        match self {
            Policy::Float32 => None,
            Policy::MixedBfloat16 => Some(DType::Bf16),
            Policy::MixedFloat16 => Some(DType::F16),
        }
    }
}

/// Compile options of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The devices and workers.
    pub mesh: Mesh,
    /// The largest global batch.
    pub max_batch: usize,
    /// The precision of stored activations.
    pub policy: Policy,
    /// Number of instructions for which the memory of a dead value is not reused: an executor that
    /// runs instructions concurrently need not wait for the last readers.
    pub reuse_delay: usize,
}

impl Options {
    /// Options with 32-bit floats throughout.
    pub fn new(mesh: Mesh, max_batch: usize) -> Options {
        Options { mesh, max_batch, policy: Policy::Float32, reuse_delay: 0 }
    }
}

/// A value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Position in the value table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The memory that holds a value. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The host's batch, at the worker's rows.
    Feed(FeedId),
    /// The device's parameter buffer.
    Param(ParamId),
    /// The worker's arena; the bytes are reused once the value is dead.
    Arena(usize),
    /// The worker's shared block, which other workers read; never reused within a step.
    Shared(usize),
    /// The block of rows shared by the workers of a device, at the worker's rows; never reused within
    /// a step.
    Device(usize),
    /// The worker's gradient buffer.
    Gradient(ParamId),
}

/// A value with its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The buffer that holds it.
    pub location: Location,
    /// Elements to skip from `location`: a channel offset inside a wider value.
    pub offset: usize,
    /// Elements from one pixel (a run of the last axis) to the next.
    pub ld: usize,
}

impl Value {
    /// Whether its elements are contiguous in memory.
    pub fn contiguous(&self) -> bool {
        self.ld == self.ty.last()
    }
}

/// An instruction. Every worker runs all instructions, each on its own rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Instr {
    /// Runs an op's kernel.
    Compute {
        /// The op.
        op: Op,
        /// Its operands.
        inputs: Vec<ValueId>,
        /// Its result.
        output: ValueId,
        /// The layer, for profiles and messages; index into the program's scopes.
        scope: u32,
    },
    /// Copies pixel by pixel between values of different strides.
    Copy {
        /// Source.
        input: ValueId,
        /// Destination.
        output: ValueId,
    },
    /// Waits for the workers of a scope.
    Barrier(Scope),
    /// Adds the partial sums of a scope's workers in index order.
    AllReduce {
        /// The workers to sum over.
        scope: Scope,
        /// A shared value.
        input: ValueId,
        /// The sum.
        output: ValueId,
    },
    /// Mean over devices, weighted by their rows, in index order.
    ReplicaMean {
        /// A shared value.
        input: ValueId,
        /// The mean.
        output: ValueId,
    },
    /// Multiplies all rows of the device by this worker's slice of a dense kernel, which gives a
    /// partial product for [`AddSlices`](Instr::AddSlices).
    SlicedDot {
        /// The layer's input.
        x: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// The partial product: a shared value with all rows of the device.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Adds the partial products of the device's workers; each worker computes its own rows.
    AddSlices {
        /// A partial product of [`SlicedDot`](Instr::SlicedDot).
        input: ValueId,
        /// The bias, if any.
        bias: Option<ValueId>,
        /// Whether to apply a ReLU.
        relu: bool,
        /// The sum.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Computes the columns of a dense layer's input derivative that belong to this worker's slice of
    /// the kernel, for all rows of the device.
    SlicedGradInput {
        /// The derivative of the layer's output.
        dy: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// The derivative of its input, in the device's block.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Computes this worker's slice of a dense kernel's gradient over all rows of its device, for other
    /// devices to read. Used where it is cheaper than reducing full partial gradients.
    SlicedGradient {
        /// The kernel.
        param: ParamId,
        /// The layer's input.
        x: ValueId,
        /// The derivative of its output.
        dy: ValueId,
    },
    /// Reduces all gradients and applies the optimizer; each worker updates its slice.
    Update,
    /// Assigns a value to a parameter, once per device.
    Assign {
        /// The parameter.
        param: ParamId,
        /// Its new value.
        value: ValueId,
    },
    /// Returns a value to the host.
    Fetch {
        /// Index of the fetch.
        index: usize,
        /// The value.
        value: ValueId,
    },
}

/// How the gradient of a parameter is reduced.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientPlan {
    /// The parameter.
    pub param: ParamId,
    /// Whether each worker holds a slice of the device's sum, instead of a partial sum of the gradient.
    pub sliced: bool,
    /// The layer's input and the derivative of its output, if the update computes each piece of a
    /// sliced gradient right before applying it.
    pub operands: Option<(ValueId, ValueId)>,
    /// Number of elements that must not be separated when the gradient is split among workers.
    pub granule: usize,
    /// Coefficient of `Σ|w|` in the loss.
    pub l1: f32,
    /// Coefficient of `Σw²` in the loss.
    pub l2: f32,
}

/// The optimizer's part of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdatePlan {
    /// The rule.
    pub rule: UpdateRule,
    /// Gradients in the order in which backward completes them.
    pub gradients: Vec<GradientPlan>,
    /// Ranges of `gradients` that are reduced together.
    pub buckets: Vec<std::ops::Range<usize>>,
    /// The loss scaling, if any.
    pub loss_scale: Option<LossScale>,
}

/// A value that the host reads.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchPlan {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// Memory of one worker and its device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The arena, reused by liveness.
    pub arena: usize,
    /// The block that other workers read.
    pub shared: usize,
    /// The block of rows shared by the workers of a device.
    pub device: usize,
    /// Size of the arena without reuse.
    pub unplanned: usize,
}

/// A compiled step. [`Program::compile`] is the only constructor and a program is immutable, so every
/// program has been verified (`verify.rs`) and executors can rely on its locations and sizes without
/// further checks.
///
/// ```compile_fail
/// # fn f(mut program: phalanx_graph::Program) {
/// program.memory.arena = 0;
/// # }
/// ```
///
/// ```compile_fail
/// # fn f(program: phalanx_graph::Program) {
/// let other = phalanx_graph::Program { memory: Default::default(), ..program };
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) options: Options,
    pub(crate) split: Split,
    pub(crate) params: Vec<ParamSpec>,
    pub(crate) feeds: Vec<FeedSpec>,
    pub(crate) fetches: Vec<FetchPlan>,
    pub(crate) scopes: Vec<String>,
    pub(crate) values: Vec<Value>,
    pub(crate) instrs: Vec<Instr>,
    pub(crate) update: Option<UpdatePlan>,
    pub(crate) memory: Memory,
}

impl Program {
    /// Compiles a step: runs the passes, lowers it to instructions and plans its memory.
    ///
    /// # Errors
    /// A step that does not verify, or sizes that cannot be addressed.
    pub fn compile(mut step: Step, options: Options) -> Result<Program> {
        verify::check_options(&options)?;
        step.verify("compile")?;
        if step.update.is_none() {
            // Without an optimizer gradients are unused, and executors allocate no memory for them.
            step.gradients.clear();
        }
        let step = passes::optimize(step)?;
        let step = passes::store_narrow(step, options.policy);
        let lowered = lower::lower(&step, options)?;
        plan::plan_memory(step, lowered, options)
    }

    /// Name of the step.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compile options.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How the work of a device is split among its workers.
    pub fn split(&self) -> Split {
        self.split
    }

    /// Parameters.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Feeds.
    pub fn feeds(&self) -> &[FeedSpec] {
        &self.feeds
    }

    /// Fetches.
    pub fn fetches(&self) -> &[FetchPlan] {
        &self.fetches
    }

    /// Layer names.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// Values.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Instructions.
    pub fn instrs(&self) -> &[Instr] {
        &self.instrs
    }

    /// The optimizer.
    pub fn update(&self) -> Option<&UpdatePlan> {
        self.update.as_ref()
    }

    /// Memory of one worker and its device.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Bytes of activations and statistics on one device.
    pub fn device_bytes(&self) -> usize {
        let workers = self.options.mesh.workers;
        let arenas = if self.split == Split::Spatial { 1 } else { workers };
        self.memory.arena * arenas + self.memory.shared * workers + self.memory.device
    }
}
