//! The memory plan: liveness of every buffer, in-place reuse, and offsets in the arena.

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

/// Alignment of every buffer: one cache line, one AVX-512 register.
const ALIGN: usize = 64;

/// Gradients are reduced in buckets of about this many bytes.
const BUCKET_BYTES: usize = 4 << 20;

/// Bytes that stay in a GPU's cache: sharing places would save nothing.
const MIN_REUSE_BYTES: usize = 16 << 20;

/// A buffer's life in instruction indices, and its size.
#[derive(Clone, Copy, Debug)]
struct LiveRange {
    start: usize,
    end: usize,
    bytes: usize,
}

/// Gives every value a place and finishes the program.
pub(crate) fn place(step: Step, lowered: Lowered, options: Options) -> Result<Program> {
    let mut p = Planner::new(&step, &lowered, options);
    p.check_addressable(options.max_batch)?;
    p.live_ranges();
    p.reuse_in_place();
    p.rest(options.reuse_delay);
    let (offsets, mut memory) = p.offsets();
    let parts = p.parts(&mut memory);
    if cfg!(debug_assertions) {
        p.check(&offsets, memory)?;
    }
    let mut w = Writer { p: &p, offsets: &offsets, parts, values: vec![], known: HashMap::new() };
    let mut operands = HashMap::new();
    let mut instrs = Vec::with_capacity(lowered.drafts.len());
    for draft in &lowered.drafts {
        match draft {
            // Nobody else reads the slices of a single device: its update computes them.
            LinearInstr::SlicedGradient { param, x, dy } if options.mesh.devices == 1 => {
                operands.insert(*param, (w.value(*x), w.value(*dy)));
            }
            _ => instrs.push(w.instr(draft)?),
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
                sliced: g.node.is_some_and(|n| lowered.slices.is_gradient(n)),
                operands: operands.get(&g.param).copied(),
                granule: dims.last().copied().unwrap_or(1).max(1),
                l1: g.l1,
                l2: g.l2,
            };
            (g.node, plan)
        })
        .collect();
    // Backward finishes the last layers first: their bucket can leave while it goes on.
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
    /// Rows of a device.
    device_rows: usize,
    /// Life of each root's buffer.
    life: Vec<Option<LiveRange>>,
    /// The buffer a root uses after in-place merging.
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
            life: vec![None; step.graph.nodes().len()],
            buffer: step.graph.ids().collect(),
        }
    }

    /// Fails where all values side by side are more than can be counted, so that no sum of their
    /// sizes overflows later.
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
        let rows = match self.lowered.homes[root.index()] {
            BufferKind::Device => self.device_rows,
            _ => self.max_rows,
        };
        self.bytes_of(self.step.graph.ty(root), rows)
    }

    fn bytes_of(&self, ty: &Type, rows: usize) -> usize {
        let rows = if ty.is_rows() { rows } else { 1 };
        (ty.len() * rows * ty.dtype.bytes()).next_multiple_of(ALIGN).max(ALIGN)
    }

    /// Whether the root's elements lie in the arena or shared block at all.
    fn buffered(&self, root: NodeId) -> bool {
        !matches!(self.step.graph.node(root).op, Op::Feed { .. } | Op::Param { .. })
            && !matches!(self.lowered.homes[root.index()], BufferKind::Gradient(_))
    }

    fn touch(&mut self, id: NodeId, at: usize) {
        let root = self.root(id);
        if !self.buffered(root) {
            return;
        }
        let bytes = self.bytes(root);
        let life = self.life[root.index()].get_or_insert(LiveRange { start: at, end: at, bytes });
        life.end = at;
    }

    /// Leaves the places of dead values alone for a while; to the end where all values together are
    /// small.
    fn rest(&mut self, instructions: usize) {
        let all: usize = self.life.iter().flatten().map(|life| life.bytes).sum();
        let instructions = match instructions > 0 && all <= MIN_REUSE_BYTES {
            true => self.lowered.drafts.len(),
            false => instructions,
        };
        self.life.iter_mut().flatten().for_each(|life| life.end += instructions);
    }

    fn live_ranges(&mut self) {
        for (at, draft) in self.lowered.drafts.iter().enumerate() {
            match draft {
                LinearInstr::Compute(id)
                | LinearInstr::Product(id)
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

    /// Lets an elementwise result take over the buffer of an operand that dies with it.
    fn reuse_in_place(&mut self) {
        for (at, draft) in self.lowered.drafts.iter().enumerate() {
            let LinearInstr::Compute(id) = draft else { continue };
            let node = self.step.graph.node(*id);
            let own = self.root(*id) == *id && self.lowered.homes[id.index()] == BufferKind::Arena;
            if !own {
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
                    && self.lowered.homes[v.root.index()] == BufferKind::Arena
                    && self.step.graph.ty(v.root).len() == node.ty.len();
                (fits && self.life[buffer.index()]?.end == at).then_some(buffer)
            });
            let (Some(donor), Some(mine)) = (donor, self.life[id.index()]) else { continue };
            self.buffer[id.index()] = donor;
            self.life[id.index()] = None;
            if let Some(life) = &mut self.life[donor.index()] {
                life.end = mine.end;
            }
        }
    }

    /// First fit, the largest buffers first: small ones fill the gaps.
    fn offsets(&self) -> (Vec<usize>, Memory) {
        let mut offsets = vec![0; self.life.len()];
        let mut memory = Memory::default();
        let mut order: Vec<(usize, LiveRange)> = vec![];
        for (i, life) in self.life.iter().enumerate() {
            let Some(life) = life else { continue };
            match self.lowered.homes[i] {
                BufferKind::Shared => offsets[i] = take(&mut memory.shared, life.bytes),
                BufferKind::Device => offsets[i] = take(&mut memory.device, life.bytes),
                BufferKind::Arena | BufferKind::Gradient(_) => {
                    memory.unplanned += life.bytes;
                    order.push((i, *life));
                }
            }
        }
        order.sort_by_key(|(i, life)| (std::cmp::Reverse(life.bytes), *i));
        let mut placed: Vec<(usize, LiveRange)> = vec![];
        for (i, life) in order {
            let mut busy: Vec<(usize, usize)> = placed
                .iter()
                .filter(|(_, o)| o.start <= life.end && life.start <= o.end)
                .map(|(at, o)| (*at, at + o.bytes))
                .collect();
            busy.sort_unstable();
            let mut at = 0;
            for (from, to) in busy {
                if at + life.bytes <= from {
                    break;
                }
                at = at.max(to);
            }
            offsets[i] = at;
            memory.arena = memory.arena.max(at + life.bytes);
            placed.push((at, life));
        }
        (offsets, memory)
    }

    /// Room for this worker's part of every product that is added up: all rows of the device.
    fn parts(&self, memory: &mut Memory) -> HashMap<NodeId, usize> {
        let mut parts = HashMap::new();
        for draft in &self.lowered.drafts {
            let LinearInstr::AddSlices(id) = draft else { continue };
            let bytes = self.bytes_of(self.step.graph.ty(*id), self.device_rows);
            parts.insert(*id, take(&mut memory.shared, bytes));
        }
        parts
    }

    /// Fails where two buffers alive at one time overlap, where one leaves its block, or where a
    /// kernel that takes slices reads the buffer it writes.
    fn check(&self, offsets: &[usize], memory: Memory) -> Result<()> {
        let buffers: Vec<(usize, LiveRange)> =
            self.life.iter().enumerate().filter_map(|(i, life)| Some((i, (*life)?))).collect();
        for (n, (i, a)) in buffers.iter().enumerate() {
            let home = self.lowered.homes[*i];
            let size = match home {
                BufferKind::Shared => memory.shared,
                BufferKind::Device => memory.device,
                BufferKind::Arena | BufferKind::Gradient(_) => memory.arena,
            };
            if offsets[*i] + a.bytes > size {
                let text = format!("the buffer of %{i} ends behind byte {size}");
                return Err(GraphError::internal("plan", text));
            }
            for (j, b) in &buffers[..n] {
                // What others read keeps its place for the whole step.
                let same_block = home == self.lowered.homes[*j];
                let same_time = home != BufferKind::Arena || (a.start <= b.end && b.start <= a.end);
                let (x, y) = (offsets[*i], offsets[*j]);
                if same_block && same_time && x < y + b.bytes && y < x + a.bytes {
                    let text = format!("the buffers of %{j} and %{i} overlap");
                    return Err(GraphError::internal("plan", text));
                }
            }
        }
        for draft in &self.lowered.drafts {
            let (LinearInstr::Compute(id) | LinearInstr::Product(id)) = draft else { continue };
            let node = self.step.graph.node(*id);
            let home = |x: NodeId| self.buffer[self.root(x).index()];
            if needs_own_buffer(&node.op) && node.inputs.iter().any(|x| home(*x) == home(*id)) {
                let text = format!("{} of %{} reads the buffer it writes", node.op.name(), id.0);
                return Err(GraphError::internal("plan", text));
            }
        }
        Ok(())
    }
}

/// The next bytes of a block that only grows.
fn take(block: &mut usize, bytes: usize) -> usize {
    *block += bytes;
    *block - bytes
}

/// Writes instructions, numbering values as they appear.
struct Writer<'a, 'b> {
    p: &'b Planner<'a>,
    offsets: &'b [usize],
    /// Where the parts of each product in slices lie.
    parts: HashMap<NodeId, usize>,
    values: Vec<Value>,
    known: HashMap<NodeId, ValueId>,
}

impl Writer<'_, '_> {
    fn add(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }

    fn home(&self, root: NodeId) -> Location {
        match self.p.step.graph.node(root).op {
            Op::Feed { id } => Location::Feed(id),
            Op::Param { id } => Location::Param(id),
            _ => {
                let offset = self.offsets[self.p.buffer[root.index()].index()];
                match self.p.lowered.homes[root.index()] {
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
        let place = self.home(view.root);
        let new = self.add(Value { ty, location: place, offset: view.offset, ld: view.ld });
        self.known.insert(id, new);
        new
    }

    /// A parameter's whole gradient buffer.
    fn gradient(&mut self, p: ParamId) -> ValueId {
        let dims = self.p.step.graph.params()[p.index()].dims.clone();
        let ty = Type::new(DType::F32, Space::Partial, dims);
        let ld = ty.last();
        self.add(Value { ty, location: Location::Gradient(p), offset: 0, ld })
    }

    /// This worker's part of a product that is added up.
    fn part(&mut self, id: NodeId) -> ValueId {
        let ty = self.p.step.graph.ty(id).clone();
        let (place, ld) = (Location::Shared(self.parts[&id]), ty.last());
        self.add(Value { ty, location: place, offset: 0, ld })
    }

    fn instr(&mut self, draft: &LinearInstr) -> Result<Instr> {
        let g = &self.p.step.graph;
        Ok(match draft {
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
            LinearInstr::Product(id) => {
                let node = g.node(*id);
                let (x, kernel) = (self.value(node.inputs[0]), self.value(node.inputs[1]));
                let scope = node.scope;
                match node.op {
                    Op::Dot(_) => Instr::SlicedDot { x, kernel, output: self.part(*id), scope },
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
                let (input, output) = (self.part(*id), self.value(*id));
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
                        let place = self.home(of);
                        self.add(Value { ty, location: place, offset, ld })
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
