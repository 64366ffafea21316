//! The memory plan: liveness, in-place reuse, and the arena offset of every buffer.

use crate::error::{GraphError, Result};
use crate::graph::{NodeId, ParamId};
use crate::lower::{BufferKind, LinearInstr, Lowered, Target, needs_own_buffer};
use crate::ops::{Access, Op};
use crate::program::{
    FetchPlan, GradientPlan, Instr, Location, Memory, Options, Program, Split, UpdatePlan, Value,
    ValueId,
};
use crate::step::Step;
use crate::types::{DType, Space, Type};
use crate::verify;
use std::collections::HashMap;

/// Alignment of every buffer in bytes: one cache line, one AVX-512 register.
const ALIGN: usize = 64;

/// Approximate size of the buckets in which gradients are reduced.
const BUCKET_BYTES: usize = 4 << 20;

/// Activations up to this size stay in a GPU's cache, so reuse of their memory would gain nothing.
const MIN_REUSE_BYTES: usize = 16 << 20;

/// The first and last instruction that use a buffer, and its size.
#[derive(Clone, Copy, Debug)]
struct LiveRange {
    start: usize,
    end: usize,
    bytes: usize,
}

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
    let mut w = Writer {
        p: &p,
        offsets: &offsets,
        partial_products,
        values: vec![],
        known: HashMap::new(),
    };
    let mut operands = HashMap::new();
    let mut instrs = Vec::with_capacity(lowered.instrs.len());
    for instr in &lowered.instrs {
        match instr {
            // With a single device the update itself computes the slices: no other device reads them.
            LinearInstr::SlicedGradient { param, x, dy } if options.mesh.devices == 1 => {
                operands.insert(*param, (w.value(*x), w.value(*dy)));
            }
            _ => instrs.push(w.instr(instr)?),
        }
    }
    let values = w.values;
    let fetches = step
        .fetches
        .iter()
        .map(|f| FetchPlan { name: f.name.clone(), ty: step.graph.ty(f.node).clone() })
        .collect();
    let update = update_plan(&step, &lowered, &operands);
    let program = Program {
        name: step.name.clone(),
        options,
        split: lowered.split,
        params: step.graph.params().to_vec(),
        feeds: step.graph.feeds().to_vec(),
        fetches,
        scopes: step.graph.scopes().to_vec(),
        values,
        instrs,
        update,
        memory,
    };
    verify::check(&program)?;
    Ok(program)
}

fn update_plan(
    step: &Step,
    lowered: &Lowered,
    operands: &HashMap<ParamId, (ValueId, ValueId)>,
) -> Option<UpdatePlan> {
    let rule = step.update.clone()?;
    let mut found: Vec<(Option<NodeId>, GradientPlan)> = step
        .gradients
        .iter()
        .filter(|g| g.node.is_some() || g.penalty_alone())
        .map(|g| {
            let dims = &step.graph.params()[g.param.index()].dims;
            let plan = GradientPlan {
                param: g.param,
                sliced: g.node.is_some_and(|n| lowered.sharded.is_gradient(n)),
                operands: operands.get(&g.param).copied(),
                granule: dims.last().copied().unwrap_or(1).max(1),
                l1: g.l1,
                l2: g.l2,
            };
            (g.node, plan)
        })
        .collect();
    // Backward completes the last layers first: their bucket can be reduced while it continues.
    found.sort_by_key(|(node, _)| *node);
    let gradients: Vec<GradientPlan> = found.into_iter().map(|(_, g)| g).collect();
    let mut buckets = vec![];
    let (mut start, mut bytes) = (0, 0);
    for (i, g) in gradients.iter().enumerate() {
        bytes += step.graph.params()[g.param.index()].len() * 4;
        if bytes >= BUCKET_BYTES || i + 1 == gradients.len() {
            buckets.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    Some(UpdatePlan { rule, gradients, buckets, loss_scale: step.loss_scale })
}

struct Planner<'a> {
    step: &'a Step,
    lowered: &'a Lowered,
    max_rows: usize,
    /// Maximum number of rows per device.
    device_rows: usize,
    /// Live range of each root's buffer.
    live_ranges: Vec<Option<LiveRange>>,
    /// The buffer of each root after in-place merging.
    buffer: Vec<NodeId>,
}

impl<'a> Planner<'a> {
    fn new(step: &'a Step, lowered: &'a Lowered, options: Options) -> Planner<'a> {
        let device_rows = options.mesh.max_device_rows(options.max_batch);
        Planner {
            step,
            lowered,
            max_rows: match lowered.split {
                Split::Rows => options.mesh.max_rows(options.max_batch),
                Split::Spatial => device_rows,
            },
            device_rows,
            live_ranges: vec![None; step.graph.nodes().len()],
            buffer: step.graph.ids().collect(),
        }
    }

    /// Fails if the total size of all values overflows, so that no later sum of sizes can.
    fn check_addressable(&self, max_batch: usize) -> Result<()> {
        let bytes = |ty: &Type| {
            let rows = if ty.is_rows() { self.device_rows } else { 1 };
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
            BufferKind::Device => self.device_rows,
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

    fn touch(&mut self, id: NodeId, at: usize) {
        let root = self.root(id);
        if !self.buffered(root) {
            return;
        }
        let bytes = self.bytes(root);
        let range =
            self.live_ranges[root.index()].get_or_insert(LiveRange { start: at, end: at, bytes });
        range.end = at;
    }

    /// Extends every live range by `instructions`, or to the end of the program if all values together
    /// are small.
    fn delay_reuse(&mut self, instructions: usize) {
        let all: usize = self.live_ranges.iter().flatten().map(|range| range.bytes).sum();
        let instructions = match instructions > 0 && all <= MIN_REUSE_BYTES {
            true => self.lowered.instrs.len(),
            false => instructions,
        };
        self.live_ranges.iter_mut().flatten().for_each(|range| range.end += instructions);
    }

    fn compute_live_ranges(&mut self) {
        for (at, instr) in self.lowered.instrs.iter().enumerate() {
            match instr {
                LinearInstr::Compute(id)
                | LinearInstr::SlicedProduct(id)
                | LinearInstr::AddSlices(id)
                | LinearInstr::AllReduce(id)
                | LinearInstr::ReplicaMean(id) => {
                    let inputs = self.step.graph.node(*id).inputs.clone();
                    inputs.into_iter().for_each(|x| self.touch(x, at));
                    self.touch(*id, at);
                }
                LinearInstr::Copy { from, to } => {
                    self.touch(*from, at);
                    match to {
                        Target::Node(id) | Target::Slice { of: id, .. } => self.touch(*id, at),
                        Target::Gradient(_) => {}
                    }
                }
                LinearInstr::SlicedGradient { x, dy, .. } => {
                    self.touch(*x, at);
                    self.touch(*dy, at);
                }
                LinearInstr::Assign { node, .. } | LinearInstr::Fetch { node, .. } => {
                    self.touch(*node, at)
                }
                LinearInstr::Barrier(_) | LinearInstr::Zero(_) | LinearInstr::Update => {}
            }
        }
    }

    /// Lets an elementwise result reuse the buffer of an operand that it is the last reader of.
    fn reuse_in_place(&mut self) {
        for (at, instr) in self.lowered.instrs.iter().enumerate() {
            let LinearInstr::Compute(id) = instr else { continue };
            let node = self.step.graph.node(*id);
            let in_arena =
                self.root(*id) == *id && self.lowered.kinds[id.index()] == BufferKind::Arena;
            if !in_arena {
                continue;
            }
            let full = |i: usize| match &node.op {
                Op::Fused(tape) => tape.inputs[i] == Access::Full,
                Op::Dropout { .. } => true,
                _ => false,
            };
            let donor = node.inputs.iter().enumerate().find_map(|(i, x)| {
                let v = self.lowered.views[x.index()];
                let buffer = self.buffer[v.root.index()];
                let fits = full(i)
                    && self.step.graph.ty(*x) == &node.ty
                    && v.offset == 0
                    && v.ld == node.ty.last()
                    && self.buffered(v.root)
                    && self.lowered.kinds[v.root.index()] == BufferKind::Arena
                    && self.step.graph.ty(v.root).len() == node.ty.len();
                (fits && self.live_ranges[buffer.index()]?.end == at).then_some(buffer)
            });
            let (Some(donor), Some(mine)) = (donor, self.live_ranges[id.index()]) else { continue };
            self.buffer[id.index()] = donor;
            self.live_ranges[id.index()] = None;
            if let Some(range) = &mut self.live_ranges[donor.index()] {
                range.end = mine.end;
            }
        }
    }

    /// First fit in order of decreasing size: small buffers fill the gaps.
    fn offsets(&self) -> (Vec<usize>, Memory) {
        let mut offsets = vec![0; self.live_ranges.len()];
        let mut memory = Memory::default();
        let mut order: Vec<(usize, LiveRange)> = vec![];
        for (i, range) in self.live_ranges.iter().enumerate() {
            let Some(range) = range else { continue };
            match self.lowered.kinds[i] {
                BufferKind::Shared => offsets[i] = allocate(&mut memory.shared, range.bytes),
                BufferKind::Device => offsets[i] = allocate(&mut memory.device, range.bytes),
                BufferKind::Arena | BufferKind::Gradient(_) => {
                    memory.unplanned += range.bytes;
                    order.push((i, *range));
                }
            }
        }
        order.sort_by_key(|(i, range)| (std::cmp::Reverse(range.bytes), *i));
        let mut placed: Vec<(usize, LiveRange)> = vec![];
        for (i, range) in order {
            let mut occupied: Vec<(usize, usize)> = placed
                .iter()
                .filter(|(_, o)| o.start <= range.end && range.start <= o.end)
                .map(|(at, o)| (*at, at + o.bytes))
                .collect();
            occupied.sort_unstable();
            let mut at = 0;
            for (from, to) in occupied {
                if at + range.bytes <= from {
                    break;
                }
                at = at.max(to);
            }
            offsets[i] = at;
            memory.arena = memory.arena.max(at + range.bytes);
            placed.push((at, range));
        }
        (offsets, memory)
    }

    /// Allocates this worker's partial product of every sharded product: all rows of the device.
    fn partial_products(&self, memory: &mut Memory) -> HashMap<NodeId, usize> {
        let mut offsets = HashMap::new();
        for instr in &self.lowered.instrs {
            let LinearInstr::AddSlices(id) = instr else { continue };
            let bytes = self.bytes_of(self.step.graph.ty(*id), self.device_rows);
            offsets.insert(*id, allocate(&mut memory.shared, bytes));
        }
        offsets
    }

    /// Fails if two live buffers overlap, if a buffer exceeds its block, or if a kernel that takes slices
    /// reads the buffer it writes.
    fn check(&self, offsets: &[usize], memory: Memory) -> Result<()> {
        let buffers: Vec<(usize, LiveRange)> = self
            .live_ranges
            .iter()
            .enumerate()
            .filter_map(|(i, range)| Some((i, (*range)?)))
            .collect();
        for (n, (i, a)) in buffers.iter().enumerate() {
            let kind = self.lowered.kinds[*i];
            let size = match kind {
                BufferKind::Shared => memory.shared,
                BufferKind::Device => memory.device,
                BufferKind::Arena | BufferKind::Gradient(_) => memory.arena,
            };
            if offsets[*i] + a.bytes > size {
                let text = format!("the buffer of %{i} ends after byte {size}");
                return Err(GraphError::internal("plan", text));
            }
            for (j, b) in &buffers[..n] {
                // Buffers that other workers read are not reused within a step.
                let same_block = kind == self.lowered.kinds[*j];
                let same_time = kind != BufferKind::Arena || (a.start <= b.end && b.start <= a.end);
                let (x, y) = (offsets[*i], offsets[*j]);
                if same_block && same_time && x < y + b.bytes && y < x + a.bytes {
                    let text = format!("the buffers of %{j} and %{i} overlap");
                    return Err(GraphError::internal("plan", text));
                }
            }
        }
        for instr in &self.lowered.instrs {
            let (LinearInstr::Compute(id) | LinearInstr::SlicedProduct(id)) = instr else {
                continue;
            };
            let node = self.step.graph.node(*id);
            let buffer = |x: NodeId| self.buffer[self.root(x).index()];
            if needs_own_buffer(&node.op) && node.inputs.iter().any(|x| buffer(*x) == buffer(*id)) {
                let text = format!("{} of %{} reads the buffer it writes", node.op.name(), id.0);
                return Err(GraphError::internal("plan", text));
            }
        }
        Ok(())
    }
}

/// Appends `bytes` to a block and returns their offset.
fn allocate(block: &mut usize, bytes: usize) -> usize {
    *block += bytes;
    *block - bytes
}

/// Translates instructions and numbers values in order of appearance.
struct Writer<'a, 'b> {
    p: &'b Planner<'a>,
    offsets: &'b [usize],
    /// Offset of the partial product of each sharded product.
    partial_products: HashMap<NodeId, usize>,
    values: Vec<Value>,
    known: HashMap<NodeId, ValueId>,
}

impl Writer<'_, '_> {
    fn add(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }

    fn location(&self, root: NodeId) -> Location {
        match self.p.step.graph.node(root).op {
            Op::Feed { id } => Location::Feed(id),
            Op::Param { id } => Location::Param(id),
            _ => {
                let offset = self.offsets[self.p.buffer[root.index()].index()];
                match self.p.lowered.kinds[root.index()] {
                    BufferKind::Arena => Location::Arena(offset),
                    BufferKind::Shared => Location::Shared(offset),
                    BufferKind::Device => Location::Device(offset),
                    BufferKind::Gradient(p) => Location::Gradient(p),
                }
            }
        }
    }

    fn value(&mut self, id: NodeId) -> ValueId {
        if let Some(v) = self.known.get(&id) {
            return *v;
        }
        let view = self.p.lowered.views[id.index()];
        let ty = self.p.step.graph.ty(id).clone();
        let location = self.location(view.root);
        let new = self.add(Value { ty, location, offset: view.offset, ld: view.ld });
        self.known.insert(id, new);
        new
    }

    /// The gradient buffer of a parameter.
    fn gradient(&mut self, p: ParamId) -> ValueId {
        let dims = self.p.step.graph.params()[p.index()].dims.clone();
        let ty = Type::new(DType::F32, Space::Partial, dims);
        let ld = ty.last();
        self.add(Value { ty, location: Location::Gradient(p), offset: 0, ld })
    }

    /// This worker's partial product of a sharded product.
    fn partial_product(&mut self, id: NodeId) -> ValueId {
        let ty = self.p.step.graph.ty(id).clone();
        let (location, ld) = (Location::Shared(self.partial_products[&id]), ty.last());
        self.add(Value { ty, location, offset: 0, ld })
    }

    fn instr(&mut self, instr: &LinearInstr) -> Result<Instr> {
        let g = &self.p.step.graph;
        Ok(match instr {
            LinearInstr::Compute(id) => {
                let node = g.node(*id);
                if matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Select) {
                    let text = format!("{} left unfused", node.op.name());
                    return Err(GraphError::internal("plan", text));
                }
                let inputs = node.inputs.iter().map(|x| self.value(*x)).collect();
                let output = self.value(*id);
                Instr::Compute { op: node.op.clone(), inputs, output, scope: node.scope }
            }
            LinearInstr::SlicedProduct(id) => {
                let node = g.node(*id);
                let (x, kernel) = (self.value(node.inputs[0]), self.value(node.inputs[1]));
                let scope = node.scope;
                match node.op {
                    Op::Dot(_) => {
                        Instr::SlicedDot { x, kernel, output: self.partial_product(*id), scope }
                    }
                    _ => {
                        let output = self.value(*id);
                        Instr::SlicedGradInput { dy: x, kernel, output, scope }
                    }
                }
            }
            LinearInstr::AddSlices(id) => {
                let node = g.node(*id);
                let Op::Dot(epilogue) = node.op else {
                    return Err(GraphError::internal("plan", "dot expected"));
                };
                let bias = node.inputs.get(2).map(|b| self.value(*b));
                let (input, output) = (self.partial_product(*id), self.value(*id));
                Instr::AddSlices { input, bias, relu: epilogue.relu, output, scope: node.scope }
            }
            LinearInstr::Copy { from, to } => {
                let input = self.value(*from);
                let output = match *to {
                    Target::Node(id) => self.value(id),
                    Target::Slice { of, offset, width } => {
                        let mut ty = g.ty(of).clone();
                        *ty.dims.last_mut().expect("a channel axis") = width;
                        let ld = g.ty(of).last();
                        let location = self.location(of);
                        self.add(Value { ty, location, offset, ld })
                    }
                    Target::Gradient(p) => self.gradient(p),
                };
                Instr::Copy { input, output }
            }
            LinearInstr::Zero(p) => {
                let output = self.gradient(*p);
                let dims = g.params()[p.index()].dims.clone();
                let op = Op::Const { bits: 0f64.to_bits(), dims };
                Instr::Compute { op, inputs: vec![], output, scope: 0 }
            }
            LinearInstr::Barrier(scope) => Instr::Barrier(*scope),
            LinearInstr::AllReduce(id) => {
                let Op::AllReduce { scope } = g.node(*id).op else {
                    return Err(GraphError::internal("plan", "all_reduce expected"));
                };
                let input = self.value(g.node(*id).inputs[0]);
                Instr::AllReduce { scope, input, output: self.value(*id) }
            }
            LinearInstr::ReplicaMean(id) => {
                let input = self.value(g.node(*id).inputs[0]);
                Instr::ReplicaMean { input, output: self.value(*id) }
            }
            LinearInstr::SlicedGradient { param, x, dy } => {
                Instr::SlicedGradient { param: *param, x: self.value(*x), dy: self.value(*dy) }
            }
            LinearInstr::Update => Instr::Update,
            LinearInstr::Assign { param, node } => {
                Instr::Assign { param: *param, value: self.value(*node) }
            }
            LinearInstr::Fetch { index, node } => {
                Instr::Fetch { index: *index, value: self.value(*node) }
            }
        })
    }
}
