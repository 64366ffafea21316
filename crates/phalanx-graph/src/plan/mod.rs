//! The memory plan: liveness, in-place reuse, and the arena offset of every buffer.

mod liveness;
mod placement;
mod translate;
mod update;

use self::liveness::LiveRange;
use self::translate::Writer;
use self::update::{GradientValues, update_plan};
use crate::error::{GraphError, Result};
use crate::graph::{NodeId, ParamId};
use crate::lower::{BufferKind, LinearInstr, Lowered};
use crate::ops::Op;
use crate::program::{FetchPlan, Instr, Options, Program, Split, WeightGroup};
use crate::step::Step;
use crate::types::Type;
use crate::verify;

/// Alignment of every buffer in bytes: one cache line, one AVX-512 register.
const ALIGN: usize = 64;

/// Assigns memory to every value and builds the program.
pub(crate) fn plan_memory(step: Step, lowered: Lowered, options: Options) -> Result<Program> {
    let mut p = Planner::new(&step, &lowered, options);
    p.check_addressable(options.max_batch)?;
    p.compute_live_ranges();
    p.reuse_in_place();
    p.delay_reuse(options.reuse_delay);
    let (offsets, mut memory) = p.offsets();
    let partial_products = p.partial_products(&mut memory);
    if cfg!(debug_assertions) {
        p.check(&offsets, memory)?;
    }
    let weight_groups: Vec<WeightGroup> =
        lowered.gathered.iter().map(|group| weight_group(&step, group)).collect();
    memory.gathered = weight_groups.iter().map(|group| group.bytes).max().unwrap_or(0);
    let mut w = Writer::new(&p, &offsets, partial_products, &weight_groups);
    let mut gradients = GradientValues::default();
    let mut instrs = Vec::with_capacity(lowered.instrs.len());
    for instr in &lowered.instrs {
        match instr {
            // With a single device the update itself computes the parts: no other device reads them.
            LinearInstr::ShardedGradKernel { param, x, dy } if options.mesh.replicas == 1 => {
                gradients.operands.insert(*param, (w.value(*x), w.value(*dy)));
            }
            LinearInstr::ReduceGradients { bucket } => {
                for (param, node) in lowered.bucket_gradients(&step, *bucket) {
                    match lowered.sharded.is_gradient(node) {
                        true => {
                            let inputs = &step.graph.node(node).inputs;
                            let operands = (w.value(inputs[0]), w.value(inputs[1]));
                            gradients.operands.insert(param, operands);
                        }
                        false => {
                            gradients.partial.insert(param, w.value(node));
                        }
                    }
                }
                instrs.push(Instr::ReduceGradients { bucket: *bucket });
            }
            _ => instrs.push(w.instr(instr)?),
        }
    }
    let values = std::mem::take(&mut w.values);
    let fetches = step
        .fetches
        .iter()
        .map(|f| FetchPlan { name: f.name.clone(), ty: step.graph.ty(f.node).clone() })
        .collect();
    let update = update_plan(&step, &lowered, &gradients);
    let program = Program {
        name: step.name.clone(),
        options,
        split: lowered.split,
        params: step.graph.params().to_vec(),
        feeds: step.graph.feeds().to_vec(),
        fetches,
        layers: step.graph.layers().to_vec(),
        values,
        instrs,
        update,
        weight_groups,
        memory,
    };
    verify::check(&program)?;
    Ok(program)
}

/// Places the weights of a group one after the other.
fn weight_group(step: &Step, params: &[ParamId]) -> WeightGroup {
    let mut group = WeightGroup::default();
    for id in params {
        group.weights.push((*id, group.bytes));
        group.bytes += (step.graph.params()[id.index()].len() * 4).next_multiple_of(ALIGN);
    }
    group
}

/// The buffers of a step while memory is assigned to them.
struct Planner<'a> {
    step: &'a Step,
    lowered: &'a Lowered,
    max_rows: usize,
    /// Maximum number of rows per device.
    replica_rows: usize,
    /// Live range of each root's buffer.
    live_ranges: Vec<Option<LiveRange>>,
    /// The buffer of each root after in-place merging.
    buffer: Vec<NodeId>,
}

impl<'a> Planner<'a> {
    fn new(step: &'a Step, lowered: &'a Lowered, options: Options) -> Planner<'a> {
        let replica_rows = options.mesh.max_replica_rows(options.max_batch);
        Planner {
            step,
            lowered,
            max_rows: match lowered.split {
                Split::Rows => options.mesh.max_rows(options.max_batch),
                Split::Spatial => replica_rows,
            },
            replica_rows,
            live_ranges: vec![None; step.graph.nodes().len()],
            buffer: step.graph.ids().collect(),
        }
    }

    /// Fails if the total size of all values overflows, so that no later sum of sizes can.
    fn check_addressable(&self, max_batch: usize) -> Result<()> {
        let bytes = |ty: &Type| {
            let rows = if ty.is_rows() { self.replica_rows } else { 1 };
            (ty.len() * ty.dtype.bytes()).checked_mul(rows)?.checked_add(ALIGN)
        };
        let add = |sum: usize, ty: &Type| sum.checked_add(bytes(ty)?);
        let types = self.step.graph.nodes().iter().map(|n| &n.ty);
        let total = types.into_iter().try_fold(0, add);
        if total.is_some_and(|n| isize::try_from(n).is_ok()) {
            return Ok(());
        }
        let expected = "activations that can be addressed";
        let received = format!("a batch of {max_batch}");
        Err(GraphError::mismatch(format!("program '{}'", self.step.name), expected, received))
    }

    fn root(&self, id: NodeId) -> NodeId {
        self.lowered.views[id.index()].root
    }

    fn bytes(&self, root: NodeId) -> usize {
        let rows = match self.lowered.kinds[root.index()] {
            BufferKind::Device => self.replica_rows,
            _ => self.max_rows,
        };
        self.bytes_of(self.step.graph.ty(root), rows)
    }

    fn bytes_of(&self, ty: &Type, rows: usize) -> usize {
        let rows = if ty.is_rows() { rows } else { 1 };
        (ty.len() * rows * ty.dtype.bytes()).next_multiple_of(ALIGN).max(ALIGN)
    }

    /// Whether the root is stored in the arena, the shared block or the device's block.
    fn buffered(&self, root: NodeId) -> bool {
        !matches!(self.step.graph.node(root).op, Op::Feed { .. } | Op::Param { .. })
            && !matches!(self.lowered.kinds[root.index()], BufferKind::Gradient(_))
    }
}
