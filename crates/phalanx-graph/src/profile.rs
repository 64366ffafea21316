//! Profiles of a step: the time of every instruction as measured by an executor, and its arithmetic and
//! bytes as counted from the program.

use crate::geometry::ConvGeom;
use crate::ops::{self, Op, PartsOp, Tape};
use crate::program::{GradientPlan, Instr, Mesh, Program, ShardLevel, ValueId};
use std::collections::BTreeMap;

/// The cost of an instruction, summed over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: f64,
    /// Bytes of operands and results, counted once per worker that accesses them.
    pub bytes: f64,
}

/// One instruction, or all instructions of one op, averaged over steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The op.
    pub op: String,
    /// The layer or parameter; empty if there is none.
    pub layer: String,
    /// Number of instructions in this line.
    pub count: usize,
    /// Seconds per step, averaged over workers, so that the lines of a step add up to its time.
    pub seconds: f64,
    /// Arithmetic and bytes.
    pub cost: Cost,
    /// Whether part of the time could not be measured.
    pub unmeasured: bool,
}

/// The measured cost of a program's instructions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Steps measured.
    pub steps: u64,
    /// One line per instruction, in program order.
    pub lines: Vec<Line>,
}

impl Profile {
    /// A profile from the seconds that each instruction took in `steps` steps of `rows` rows.
    pub fn new(program: &Program, rows: usize, steps: u64, seconds: &[f64]) -> Profile {
        let line = |(instr, seconds): (&Instr, &f64)| {
            let (op, layer) = program.label(instr);
            let cost = program.cost(instr, rows);
            let seconds = seconds / steps.max(1) as f64;
            Line { op, layer, count: 1, seconds, cost, unmeasured: false }
        };
        Profile { steps, lines: program.instrs.iter().zip(seconds).map(line).collect() }
    }

    /// Marks instructions, given by index, as not fully measured.
    #[must_use]
    pub fn lacking(mut self, instrs: &[usize]) -> Profile {
        instrs.iter().for_each(|i| self.lines[*i].unmeasured = true);
        self
    }

    /// Seconds per step.
    pub fn seconds(&self) -> f64 {
        self.lines.iter().map(|l| l.seconds).sum()
    }

    /// One line per op, slowest first.
    pub fn by_op(&self) -> Vec<Line> {
        let mut kinds: BTreeMap<&str, Line> = BTreeMap::new();
        for l in &self.lines {
            let sum = kinds.entry(&l.op).or_default();
            sum.op.clone_from(&l.op);
            sum.count += l.count;
            sum.seconds += l.seconds;
            sum.unmeasured |= l.unmeasured;
            sum.cost.flops += l.cost.flops;
            sum.cost.bytes += l.cost.bytes;
        }
        slowest_first(kinds.into_values().collect())
    }

    /// The `n` slowest instructions.
    pub fn top(&self, n: usize) -> Vec<Line> {
        let mut lines = slowest_first(self.lines.clone());
        lines.truncate(n);
        lines
    }
}

fn slowest_first(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    lines
}

impl Program {
    /// The op and layer of an instruction, for display.
    fn label(&self, instr: &Instr) -> (String, String) {
        let param = |p: &crate::ParamId| self.params[p.index()].name.clone();
        let layer = |layer: &u32| self.layers[*layer as usize].clone();
        let none = String::new();
        match instr {
            Instr::Compute { op, layer: of, sharded: false, .. } => (op.name().into(), layer(of)),
            Instr::Compute { op, layer: of, sharded: true, .. } => {
                (format!("sharded_{}", op.name()), layer(of))
            }
            Instr::Copy { .. } => ("copy".into(), none),
            Instr::Barrier(scope) => (format!("barrier {scope}"), none),
            Instr::AllReduce { .. } => ("all_reduce".into(), none),
            Instr::ReplicaMean { .. } => ("replica_mean".into(), none),
            Instr::ExchangeParts { op, layer: of, .. } => (Op::Parts(*op).name().into(), layer(of)),
            Instr::ReduceScatter { layer: of, .. } => ("reduce_scatter".into(), layer(of)),
            Instr::ShardedGradKernel { param: p, .. } => {
                ("sharded_dot_grad_kernel".into(), param(p))
            }
            Instr::GatherWeights { .. } => ("gather_weights".into(), none),
            Instr::ReduceGradients { .. } => ("reduce_gradients".into(), none),
            Instr::Update => ("update".into(), none),
            Instr::Assign { param: p, .. } => ("assign".into(), param(p)),
            Instr::Fetch { index, .. } => ("fetch".into(), self.fetches[*index].name.clone()),
        }
    }

    /// The cost of an instruction on a global batch of `rows`, summed over all workers.
    pub fn cost(&self, instr: &Instr, rows: usize) -> Cost {
        let mesh = self.options.mesh;
        let total_bytes = |ids: &[ValueId]| ids.iter().map(|id| self.bytes(*id, rows)).sum::<f64>();
        match instr {
            Instr::Compute { op, inputs, output, sharded, .. } => {
                let flops = self.flops(op, inputs, *output, rows);
                let bytes = match sharded {
                    false => total_bytes(inputs) + total_bytes(&[*output]),
                    true => {
                        // Each worker reads its rows of the kernel; for a dot each writes a full
                        // partial product.
                        let parts = if *op == Op::DotGradInput { 1 } else { mesh.workers };
                        let kernels = (self.value(inputs[1]).ty.len() * mesh.replicas) as f64;
                        let results = total_bytes(&[*output]) * parts as f64;
                        total_bytes(&inputs[..1]) + 4.0 * kernels + results
                    }
                };
                Cost { flops, bytes }
            }
            Instr::Copy { input, output } | Instr::ReplicaMean { input, output } => {
                Cost { flops: 0.0, bytes: total_bytes(&[*input, *output]) }
            }
            Instr::AllReduce { input, output, .. } => {
                let sources = self.options.mesh.workers as f64;
                let flops = self.elements(*input, rows) * sources;
                Cost { flops, bytes: total_bytes(&[*input]) * sources + total_bytes(&[*output]) }
            }
            Instr::ExchangeParts { op, input, output, .. } => {
                let parts = mesh.devices_per_replica as f64;
                let flops = match op {
                    PartsOp::AllReduce(_) => self.elements(*output, rows) * parts,
                    PartsOp::AllGather { .. } | PartsOp::Slice { .. } => 0.0,
                };
                Cost { flops, bytes: total_bytes(&[*input]) * parts + total_bytes(&[*output]) }
            }
            Instr::ReduceScatter { input, output, .. } => {
                let parts = mesh.workers as f64;
                let flops = self.elements(*output, rows) * parts;
                Cost { flops, bytes: total_bytes(&[*input]) * parts + total_bytes(&[*output]) }
            }
            Instr::ShardedGradKernel { param, x, dy } => {
                let elements = self.params[param.index()].len() * self.options.mesh.replicas;
                let bytes = total_bytes(&[*x, *dy]) + 4.0 * elements as f64;
                Cost { flops: self.dense_flops(*x, *dy, rows), bytes }
            }
            Instr::GatherWeights { group } => {
                let bytes = self.weight_groups[*group].bytes * self.options.mesh.sharding.domains;
                Cost { flops: 0.0, bytes: bytes as f64 }
            }
            Instr::ReduceGradients { bucket } => self.reduction_cost(*bucket, rows),
            Instr::Update => self.update_cost(rows),
            Instr::Assign { value, .. } | Instr::Fetch { value, .. } => {
                Cost { flops: 0.0, bytes: total_bytes(&[*value]) }
            }
            Instr::Barrier(_) => Cost::default(),
        }
    }

    /// Elements of a value, summed over all workers.
    fn elements(&self, id: ValueId, rows: usize) -> f64 {
        let ty = &self.value(id).ty;
        let copies = if ty.is_rows() { rows } else { self.options.mesh.len() };
        (ty.len() * copies) as f64
    }

    fn bytes(&self, id: ValueId, rows: usize) -> f64 {
        self.elements(id, rows) * self.value(id).ty.dtype.bytes() as f64
    }

    fn flops(&self, op: &Op, x: &[ValueId], y: ValueId, rows: usize) -> f64 {
        let conv = |g: &ConvGeom| 2.0 * (g.macs() * rows) as f64;
        let window = |g: &ConvGeom| (g.output_len() * g.kernel[0] * g.kernel[1] * rows) as f64;
        match op {
            Op::Dot(_) | Op::DotGradInput => self.dense_flops(x[0], y, rows),
            Op::DotGradKernel => self.dense_flops(x[0], x[1], rows),
            Op::MatMul(c) => self.matmul_flops(c, x, y, rows),
            Op::Conv(g, _) | Op::ConvGradInput(g) | Op::ConvGradKernel(g) => conv(g),
            Op::Pool(_, g) | Op::PoolGrad(_, g) => window(g),
            Op::Fused(tape) => self.elements(y, rows) * tape_flops(tape),
            Op::BatchNorm(_) => 2.0 * self.elements(y, rows),
            Op::Moments => 3.0 * self.elements(x[0], rows),
            Op::BatchNormGradSums(_) => 4.0 * self.elements(x[0], rows),
            Op::BatchNormGradInput(_) => 5.0 * self.elements(y, rows),
            Op::LayerNorm(_) => 5.0 * self.elements(y, rows),
            Op::LayerNormGrad(_) => 9.0 * self.elements(y, rows),
            // Both multiply a vector of every step by the recurrent kernel.
            Op::Recurrent(a) | Op::RecurrentGrad(a, _) => {
                let (steps, kernel) = (self.value(y).ty.dims[0], self.value(x[1]).ty.len());
                let steps = steps - usize::from(a.initial && matches!(op, Op::RecurrentGrad(..)));
                2.0 * (steps * kernel * rows) as f64
            }
            Op::Softmax
            | Op::SoftmaxGrad
            | Op::LogSoftmax
            | Op::SparseXent
            | Op::SparseXentGrad => 4.0 * self.elements(x[0], rows),
            Op::Reduce { .. }
            | Op::SumRows
            | Op::GatherGrad { .. }
            | Op::TakeGrad { .. }
            | Op::Cumulative { .. } => self.elements(*x.last().unwrap_or(&y), rows),
            Op::Dropout { .. } | Op::UpsampleGrad { .. } | Op::Upsample { bilinear: true, .. } => {
                self.elements(y, rows)
            }
            // Moves, comparisons, and negligible arithmetic.
            _ => 0.0,
        }
    }

    /// Multiply-adds of every element of `x` with each element of a pixel of `dy`.
    fn dense_flops(&self, x: ValueId, dy: ValueId, rows: usize) -> f64 {
        2.0 * self.elements(x, rows) * self.value(dy).ty.last() as f64
    }

    /// Multiply-adds of every element of the result, over the contracted axes.
    fn matmul_flops(&self, c: &ops::Contraction, x: &[ValueId], y: ValueId, rows: usize) -> f64 {
        let dims = self.value(x[0]).ty.dims.iter();
        let summed = c.left.iter().zip(dims).filter(|(label, _)| !c.result.contains(label));
        let per_element: f64 = summed.map(|(_, d)| *d as f64).product();
        let elements = match c.sum_rows {
            true => (self.value(y).ty.len() * rows) as f64,
            false => self.elements(y, rows),
        };
        2.0 * elements * per_element
    }

    /// The additions and the bytes of the sum of a gradient's parts, or of the products that give them.
    fn sum_cost(&self, g: &GradientPlan, rows: usize) -> Cost {
        if let Some((x, dy)) = g.operands {
            let bytes = self.bytes(x, rows) + self.bytes(dy, rows);
            return Cost { flops: self.dense_flops(x, dy, rows), bytes };
        }
        let mesh = self.options.mesh;
        let sources = if g.sharded { mesh.replicas } else { mesh.len() } as f64;
        let elements = self.params[g.param.index()].len() as f64;
        Cost { flops: elements * (sources - 1.0), bytes: 4.0 * elements * sources }
    }

    fn reduction_cost(&self, bucket: usize, rows: usize) -> Cost {
        let Some(update) = &self.update else { return Cost::default() };
        let mut cost = Cost::default();
        for g in &update.gradients[update.buckets[bucket].clone()] {
            let sum = self.sum_cost(g, rows);
            cost.flops += sum.flops;
            cost.bytes += sum.bytes + 4.0 * self.params[g.param.index()].len() as f64;
        }
        cost
    }

    /// Every copy of the training state is updated from all partial gradients. With a single device the update also
    /// computes the sharded gradients.
    fn update_cost(&self, rows: usize) -> Cost {
        let Some(update) = &self.update else { return Cost::default() };
        let Mesh { replicas, sharding, .. } = self.options.mesh;
        let rule_flops = tape_flops(&update.rule.tape);
        let copies = if sharding.is_on() { 1.0 } else { replicas as f64 };
        let mut cost = Cost::default();
        for g in &update.gradients {
            let elements = self.params[g.param.index()].len() as f64 * copies;
            if sharding.level < ShardLevel::Gradients {
                // A gradient with operands is computed once: its program has a single device.
                let sum = self.sum_cost(g, rows);
                let copies = if g.operands.is_some() { 1.0 } else { copies };
                cost.flops += copies * sum.flops;
                cost.bytes += copies * sum.bytes;
            }
            let buffers = 1.0 + update.rule.slots.len() as f64;
            cost.flops += elements * rule_flops;
            cost.bytes += 8.0 * elements * buffers;
        }
        cost
    }
}

/// Operations of a tape per element.
fn tape_flops(tape: &Tape) -> f64 {
    let is_arithmetic = |i: &&ops::Instr| !matches!(i, ops::Instr::Input(_) | ops::Instr::Const(_));
    tape.instrs.iter().filter(is_arithmetic).count() as f64
}
