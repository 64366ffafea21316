//! The step program: plain data that any executor can run, with all values assigned to memory.

mod instr;
mod location;
mod mesh;
mod print;
mod sharding;
mod split;
mod traffic;
mod update;

pub use instr::Instr;
pub use location::{Location, Memory, Value, ValueId, WeightGroup};
pub use mesh::{Mesh, SHARDS, split_range};
pub use sharding::{BLOCK, ShardLevel, Sharding};
pub use split::{Split, SplitRules};
pub use traffic::{CollectiveKind, MeshAxis, Transfer};
pub use update::{GradientPlan, UpdatePlan};

use crate::error::Result;
use crate::graph::{FeedSpec, ParamSpec};
use crate::passes;
use crate::step::Step;
use crate::types::{DType, Type};
use crate::{lower, plan, verify};

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
    /// Keras' name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Float32 => "float32",
            Policy::MixedBfloat16 => "mixed_bfloat16",
            Policy::MixedFloat16 => "mixed_float16",
        }
    }

    /// The policy of this name, if any.
    pub fn from_name(name: &str) -> Option<Policy> {
        let all = [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16];
        all.into_iter().find(|policy| policy.name() == name)
    }

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
    /// When workers share work in another way than by rows.
    pub split_rules: SplitRules,
    /// Long axes of products are padded with zeros to a multiple of this length, where padding costs little; 1 for no
    /// padding.
    pub product_alignment: usize,
    /// Segments of the forward pass of which only the borders are kept for the backward pass, which computes the rest
    /// again; 0 or 1 to keep everything.
    pub recompute: usize,
}

impl Options {
    /// Options with 32-bit floats throughout, for workers that only share rows.
    pub fn new(mesh: Mesh, max_batch: usize) -> Options {
        Options {
            mesh,
            max_batch,
            policy: Policy::Float32,
            reuse_delay: 0,
            split_rules: SplitRules::NONE,
            product_alignment: 1,
            recompute: 0,
        }
    }

    /// The split of a step that only computes.
    pub fn inference_split(&self) -> Split {
        self.split_rules.split(self.mesh, self.max_batch)
    }
}

/// A value that the host reads.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchPlan {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
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
    pub(crate) layers: Vec<String>,
    pub(crate) values: Vec<Value>,
    pub(crate) instrs: Vec<Instr>,
    pub(crate) update: Option<UpdatePlan>,
    pub(crate) weight_groups: Vec<WeightGroup>,
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
        verify::check_batch(&step.graph, options.max_batch)?;
        if step.update.is_none() {
            // Without an optimizer gradients are unused, and executors allocate no memory for them.
            step.gradients.clear();
        }
        let parts = options.mesh.devices_per_replica;
        if parts > 1 {
            step = passes::localize(passes::partition(step, parts)?, parts)?;
        }
        let step = passes::align_products(step, options.product_alignment)?;
        let step = passes::optimize(step)?;
        let mut step = passes::store_narrow(step, options.policy);
        if options.recompute > 1 {
            step = passes::recompute(
                step,
                options.recompute,
                options.mesh.max_rows(options.max_batch),
            )?;
        }
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
    pub fn layers(&self) -> &[String] {
        &self.layers
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

    /// The groups of weights that are gathered, in order.
    pub fn weight_groups(&self) -> &[WeightGroup] {
        &self.weight_groups
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
