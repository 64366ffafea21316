//! The step program: instructions over placed values, ready for any executor. Plain data.

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

/// Workers of a mesh whose cut is fixed: 1, 2, 4 or 8 devices share them.
pub const SHARDS: usize = 8;

/// The workers a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Devices, that is replicas.
    pub devices: usize,
    /// Workers of each device.
    pub workers: usize,
    /// Whether rows are cut into [`SHARDS`] and sums are trees over them, however many devices share
    /// the work.
    pub fixed: bool,
}

impl Mesh {
    /// Devices with so many workers each.
    pub const fn new(devices: usize, workers: usize) -> Mesh {
        Mesh { devices, workers, fixed: false }
    }

    /// [`SHARDS`] workers, shared by so many devices, which must divide them.
    pub fn fixed(devices: usize) -> Option<Mesh> {
        let divides = devices > 0 && SHARDS.is_multiple_of(devices);
        divides.then(|| Mesh { devices, workers: SHARDS / devices, fixed: true })
    }

    /// All workers.
    pub fn len(&self) -> usize {
        self.devices * self.workers
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of worker `worker` of device `device` when `rows` are split as evenly as possible,
    /// first over devices, then over a device's workers; over all workers at once where the cut is
    /// fixed.
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

    /// The rows of devices that follow one another.
    pub fn rows_of(&self, rows: usize, devices: std::ops::Range<usize>) -> std::ops::Range<usize> {
        if devices.is_empty() {
            return 0..0;
        }
        let last = self.device_rows(rows, devices.end - 1);
        self.device_rows(rows, devices.start).start..last.end
    }

    /// The most rows a single device gets: the first ones get what does not divide.
    pub fn max_device_rows(&self, rows: usize) -> usize {
        self.device_rows(rows, 0).len()
    }

    /// The most rows a single worker gets.
    pub fn max_rows(&self, rows: usize) -> usize {
        rows.div_ceil(self.devices).div_ceil(self.workers)
    }
}

/// Part `i` of `n` of a range, the first parts one longer where it does not divide.
pub fn split_range(range: std::ops::Range<usize>, n: usize, i: usize) -> std::ops::Range<usize> {
    let (len, start) = (range.len(), range.start);
    let (each, extra) = (len / n, len % n);
    let begin = start + i * each + i.min(extra);
    begin..begin + each + usize::from(i < extra)
}

/// How the workers of a device share its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Each has its own rows of the batch and its own memory.
    Rows,
    /// All work on all rows of the device in one memory, each on its lines of every value (the
    /// first axis behind the rows), with a barrier behind every instruction.
    Spatial,
}

impl Split {
    /// Lines pay where a device has fewer rows than workers.
    pub fn of(mesh: Mesh, rows: usize) -> Split {
        let few = rows.div_ceil(mesh.devices.max(1)) < mesh.workers;
        if few { Split::Spatial } else { Split::Rows }
    }
}

/// How layers store what they compute. Arithmetic and weights are always 32-bit floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// 32-bit floats.
    #[default]
    Float32,
    /// 16 bits with the range of 32-bit floats: Keras' `mixed_bfloat16`.
    MixedBfloat16,
    /// 16-bit floats of IEEE 754, and gradients of a scaled loss: Keras' `mixed_float16`.
    MixedFloat16,
}

impl Policy {
    /// The 16-bit type, where there is one.
    pub fn narrow(self) -> Option<DType> {
        match self {
            Policy::Float32 => None,
            Policy::MixedBfloat16 => Some(DType::Bf16),
            Policy::MixedFloat16 => Some(DType::F16),
        }
    }
}

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The workers.
    pub mesh: Mesh,
    /// The largest global batch.
    pub max_batch: usize,
    /// How activations are stored.
    pub policy: Policy,
    /// Instructions for which the place of a value that nobody needs any more is left alone: whoever
    /// runs them side by side need not wait for its last readers.
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

/// Where a value lives. Offsets are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the host's batch, at the worker's rows.
    Feed(FeedId),
    /// In the device's parameter buffer.
    Param(ParamId),
    /// In the worker's arena; the bytes are reused once the value is dead.
    Arena(usize),
    /// In the worker's shared block, which others read; never reused within a step.
    Shared(usize),
    /// In the block of rows that the workers of a device share, at the worker's rows; never reused
    /// within a step.
    Device(usize),
    /// In the worker's gradient buffer.
    Gradient(ParamId),
}

/// A placed value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// Where its first element lies.
    pub location: Location,
    /// Elements to skip behind `place`: a channel offset inside a wider value.
    pub offset: usize,
    /// Elements from one pixel (a run of the last axis) to the next.
    pub ld: usize,
}

impl Value {
    /// Whether its elements are neighbours.
    pub fn contiguous(&self) -> bool {
        self.ld == self.ty.last()
    }
}

/// One instruction. Every worker runs all of them, on its own rows.
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
    /// Copies pixel by pixel between values of different stride.
    Copy {
        /// From.
        input: ValueId,
        /// To.
        output: ValueId,
    },
    /// Waits for the workers of a scope.
    Barrier(Scope),
    /// Adds the partial sums of a scope's workers in index order.
    AllReduce {
        /// The workers.
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
    /// Multiplies all rows of the device with this worker's slice of a dense kernel: a part of every
    /// sum, for [`AddSlices`](Instr::AddSlices).
    SlicedDot {
        /// The layer's input.
        x: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// The part: a shared value with all rows of the device.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Adds up what the device's workers have of a product, each for its rows.
    AddSlices {
        /// A part, as [`SlicedDot`](Instr::SlicedDot) makes it.
        input: ValueId,
        /// What is added to every row.
        bias: Option<ValueId>,
        /// Whether negative results become zero.
        relu: bool,
        /// The sum.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Computes those columns of a dense layer's input derivative that belong to this worker's slice
    /// of the kernel, for all rows of the device.
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
    /// Computes this worker's slice of a dense kernel's gradient over all rows of its device,
    /// where that is cheaper than adding whole partial gradients; for other devices to read.
    SlicedGradient {
        /// The kernel.
        param: ParamId,
        /// The layer's input.
        x: ValueId,
        /// The derivative of its output.
        dy: ValueId,
    },
    /// Reduces all gradients and applies the optimizer, each worker to its slice.
    Update,
    /// Sets a parameter, once per device.
    Assign {
        /// The parameter.
        param: ParamId,
        /// Its new value.
        value: ValueId,
    },
    /// Hands a value to the host.
    Fetch {
        /// Index of the fetch.
        index: usize,
        /// The value.
        value: ValueId,
    },
}

/// How one parameter's gradient is made whole.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientPlan {
    /// The parameter.
    pub param: ParamId,
    /// True when workers hold slices of the device's sum instead of partial sums of all of it.
    pub sliced: bool,
    /// The layer's input and the derivative of its output, where the update itself computes each
    /// piece of a sliced gradient right before it applies it.
    pub operands: Option<(ValueId, ValueId)>,
    /// Elements that must stay together when the gradient is split among workers.
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
    /// Gradients in the order backward finishes them.
    pub gradients: Vec<GradientPlan>,
    /// Ranges of `gradients` that are reduced together.
    pub buckets: Vec<std::ops::Range<usize>>,
    /// How the gradients are scaled, where they are.
    pub loss_scale: Option<LossScale>,
}

/// A value the host reads.
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
    /// The block others read.
    pub shared: usize,
    /// The device's block of rows.
    pub device: usize,
    /// What the arena would take without reuse.
    pub unplanned: usize,
}

/// A compiled step. [`Program::compile`] is the only way to one, and nobody can change it: whoever holds
/// a program may rely on its having been verified (`verify.rs`), so that executors follow its places
/// and sizes without another look.
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
    /// Compiles a step: passes, lowering to instructions, memory plan.
    ///
    /// # Errors
    /// A step that does not verify, or sizes that cannot be addressed.
    pub fn compile(mut step: Step, options: Options) -> Result<Program> {
        verify::check_options(&options)?;
        step.verify("compile")?;
        if step.update.is_none() {
            // Without an optimizer nobody takes gradients, and executors keep no room for them.
            step.gradients.clear();
        }
        let step = passes::optimize(step)?;
        let step = passes::store_narrow(step, options.policy);
        let lowered = lower::lower(&step, options)?;
        plan::place(step, lowered, options)
    }

    /// Name of the step.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it was compiled for.
    pub fn options(&self) -> Options {
        self.options
    }

    /// How the workers of a device share its work.
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

    /// Memory of one worker.
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
