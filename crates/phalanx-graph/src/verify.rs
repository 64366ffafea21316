//! Verification of compiled programs, in release builds too. Each value lies inside its buffer for any
//! batch that the program accepts, operands have the types, strides and locations that the kernel
//! expects, and no result overlaps an operand that is read while it is written.
//!
//! [`Program::compile`] is the only constructor of a program and ends with these checks, so executors
//! can pass addresses to kernels without repeating them.

mod updates;

use crate::error::{GraphError, Result};
use crate::graph::{Graph, ParamId, ParamSpec};
use crate::lower::{needs_own_buffer, reads_strided, writes_strided};
use crate::ops::{Access, Epilogue, Op, PartsOp};
use crate::program::{Instr, Location, Options, Program, SHARDS, Split, Value, ValueId};
use crate::types::{DType, Type};

/// Fails for a mesh without workers, or if the number of workers overflows.
pub(crate) fn check_options(options: &Options) -> Result<()> {
    let mesh = options.mesh;
    let workers = mesh.replicas.checked_mul(mesh.workers).filter(|n| *n > 0);
    let parts = mesh.sharding.domains > 0 && mesh.devices_per_replica > 0;
    if workers.is_some_and(|n| !mesh.fixed || n == SHARDS) && parts {
        return Ok(());
    }
    let expected = match mesh.fixed {
        true => format!("{SHARDS} workers in all"),
        false => "at least one device with at least one worker".into(),
    };
    let received = format!(
        "{} replica(s) of {} device(s) of {} worker(s) in {} memory domain(s)",
        mesh.replicas, mesh.devices_per_replica, mesh.workers, mesh.sharding.domains
    );
    Err(GraphError::mismatch("mesh", expected, received))
}

/// Fails if the graph is built for a smaller batch.
pub(crate) fn check_batch(graph: &Graph, max_batch: usize) -> Result<()> {
    match graph.batch_limit() {
        Some(rows) if rows < max_batch => {
            let expected = format!("at most {rows}, for which the step is built");
            Err(GraphError::mismatch("batch", expected, max_batch.to_string()))
        }
        _ => Ok(()),
    }
}

/// Fails if running the program would access memory out of bounds.
pub(crate) fn check(program: &Program) -> Result<()> {
    check_options(&program.options)?;
    let v = Verifier {
        p: program,
        replica_rows: program.options.mesh.max_replica_rows(program.options.max_batch),
        rows: match program.split {
            Split::Rows => program.options.mesh.max_rows(program.options.max_batch),
            Split::Spatial => program.options.mesh.max_replica_rows(program.options.max_batch),
        },
    };
    v.tables()?;
    for (i, value) in program.values.iter().enumerate() {
        v.value(value).map_err(|what| fail(format!("value {i}, {}: {what}", value.ty)))?;
    }
    for (i, instr) in program.instrs.iter().enumerate() {
        v.instr(instr).map_err(|what| fail(format!("instruction {i}: {what}")))?;
    }
    v.gathered_weights().map_err(fail)?;
    match &program.update {
        Some(plan) => v.update(plan),
        None => Ok(()),
    }
}

fn fail(what: String) -> GraphError {
    GraphError::internal("verify", what)
}

/// The result of a check; the error is the reason for the rejection.
type Check = Result<(), String>;

fn expect(holds: bool, what: &str) -> Check {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// The type as the op sees it: 16-bit floats count as 32-bit floats.
fn widened(ty: &Type) -> Type {
    match ty.dtype {
        DType::Bf16 | DType::F16 => Type { dtype: DType::F32, ..ty.clone() },
        _ => ty.clone(),
    }
}

/// How the memory of two values overlaps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    /// No shared bytes, and neither lies in the gaps between the other's pixels.
    Disjoint,
    /// No shared bytes, but each lies in the gaps between the other's pixels.
    Interleaved,
    /// All elements coincide.
    Identical,
    /// Some bytes are shared.
    Partial,
}

struct Verifier<'a> {
    p: &'a Program,
    /// The maximum number of rows of a worker, and of a device.
    rows: usize,
    replica_rows: usize,
}

impl Verifier<'_> {
    /// Parameters, feeds and fetches are addressable.
    fn tables(&self) -> Result<()> {
        let p = self.p;
        let addressable = |bytes: Option<usize>| bytes.is_some_and(|n| isize::try_from(n).is_ok());
        let param = |sum: usize, spec: &ParamSpec| {
            // Executors round every parameter up to whole cache lines.
            sum.checked_add(spec.len().checked_mul(4)?.checked_next_multiple_of(1024)?)
        };
        if !addressable(p.params.iter().try_fold(0, param)) {
            let expected = "parameters that can be addressed";
            return Err(GraphError::mismatch(format!("program '{}'", p.name), expected, "more"));
        }
        let rows = p.options.max_batch;
        for ty in p.feeds.iter().map(|f| &f.ty).chain(p.fetches.iter().map(|f| &f.ty)) {
            ty.check_limits()?;
            let all = if ty.is_rows() { ty.len().checked_mul(rows) } else { Some(ty.len()) };
            if !addressable(all.and_then(|n| n.checked_mul(ty.dtype.bytes()))) {
                let what = format!("program '{}'", p.name);
                let expected = "batches that can be addressed";
                return Err(GraphError::mismatch(what, expected, format!("{rows} rows of {ty}")));
            }
        }
        Ok(())
    }

    fn get(&self, id: ValueId) -> Result<&Value, String> {
        self.p.values.get(id.index()).ok_or_else(|| format!("there is no value {}", id.0))
    }

    fn param(&self, id: ParamId) -> Result<&ParamSpec, String> {
        self.p.params.get(id.index()).ok_or_else(|| format!("there is no parameter {}", id.0))
    }

    /// The bytes from a value's location to the end of its last element, for `rows` rows; zero if it has
    /// no elements.
    fn end(&self, v: &Value, rows: usize) -> Result<usize, String> {
        let count = || {
            let rows = if v.ty.is_rows() { rows } else { 1 };
            let pixels = v.ty.len().checked_mul(rows)? / v.ty.last().max(1);
            if pixels == 0 || v.ty.is_empty() {
                return Some(0);
            }
            let elements = (pixels - 1).checked_mul(v.ld)?.checked_add(v.ty.last())?;
            let bytes = elements.checked_add(v.offset)?.checked_mul(v.ty.dtype.bytes())?;
            isize::try_from(bytes).is_ok().then_some(bytes)
        };
        count().ok_or_else(|| "its bytes cannot be counted".into())
    }

    /// The value lies inside its buffer.
    fn value(&self, v: &Value) -> Check {
        v.ty.check_limits().map_err(|e| e.to_string())?;
        expect(v.ld >= v.ty.last(), "its pixels overlap")?;
        let fits = |at: usize, rows: usize, size: usize| {
            let end = self.end(v, rows)?.checked_add(at);
            expect(end.is_some_and(|end| end <= size), "it exceeds its block")?;
            expect(at.is_multiple_of(8), "it is not aligned")
        };
        let memory = self.p.memory;
        match v.location {
            Location::Arena(at) => fits(at, self.rows, memory.arena),
            Location::Shared(at) => fits(at, self.rows, memory.shared),
            Location::Device(at) => fits(at, self.replica_rows, memory.device),
            Location::Param(id) | Location::Gradient(id) => {
                let bytes = self.param(id)?.len() * 4;
                expect(!v.ty.is_rows() && v.ty.dtype == DType::F32, "parameters are whole floats")?;
                expect(self.end(v, 1)? <= bytes, "it exceeds its parameter")?;
                let allocated = matches!(v.location, Location::Param(_)) || self.p.update.is_some();
                expect(allocated, "there are no gradients without an update")
            }
            Location::Gathered { group, offset } => {
                let group = self.p.weight_groups.get(group).ok_or("there is no such group")?;
                let weight = group.weights.iter().find(|(_, at)| *at == offset);
                let (id, _) = weight.ok_or("there is no weight at its offset")?;
                let bytes = self.param(*id)?.len() * 4;
                expect(!v.ty.is_rows() && v.ty.dtype == DType::F32, "weights are whole floats")?;
                expect(self.end(v, 1)? <= bytes, "it exceeds its weight")?;
                let inside = offset.checked_add(bytes).is_some_and(|end| end <= group.bytes);
                expect(inside && group.bytes <= memory.gathered, "its weight exceeds the group")
            }
            Location::Feed(id) => {
                let feed = &self.p.feeds.get(id.index()).ok_or("there is no such feed")?.ty;
                let same = v.ty.dtype == feed.dtype && v.ty.is_rows() == feed.is_rows();
                expect(same, "its feed is of another type")?;
                let bytes = feed.len() * feed.dtype.bytes();
                expect(self.end(v, 1)? <= bytes, "it exceeds its feed")?;
                // Executors advance by whole rows of the feed, however much of each they read.
                let row = v.ty.len() / v.ty.last().max(1) * v.ld;
                expect(v.ty.is_empty() || row == feed.len(), "its rows are not those of the feed")
            }
        }
    }

    /// How two values of a worker overlap, for `rows` rows.
    fn overlap(&self, a: &Value, b: &Value, rows: usize) -> Result<Overlap, String> {
        let start = |v: &Value| match v.location {
            Location::Arena(at) | Location::Shared(at) | Location::Device(at) => at,
            Location::Gathered { offset, .. } => offset,
            Location::Feed(_) | Location::Param(_) | Location::Gradient(_) => 0,
        };
        let same_block = match (a.location, b.location) {
            (Location::Arena(_), Location::Arena(_)) => true,
            (Location::Shared(_), Location::Shared(_)) => true,
            (Location::Device(_), Location::Device(_)) => true,
            (a, b) => a == b,
        };
        let range = |v: &Value| -> Result<_, String> {
            let skipped = v.offset * v.ty.dtype.bytes();
            Ok((start(v) + skipped, start(v) + self.end(v, rows)?))
        };
        let ((a0, a1), (b0, b1)) = (range(a)?, range(b)?);
        if !same_block || a0 >= b1 || b0 >= a1 {
            return Ok(Overlap::Disjoint);
        }
        if a.location != b.location || a.ld != b.ld || a.ty.dtype.bytes() != b.ty.dtype.bytes() {
            return Ok(Overlap::Partial);
        }
        if a.offset == b.offset && a.ty.last() == b.ty.last() && a.ty.len() == b.ty.len() {
            return Ok(Overlap::Identical);
        }
        // Columns of one wide value: neither wraps into the next pixel.
        let columns = |v: &Value| (v.offset, v.offset + v.ty.last());
        let ((a0, a1), (b0, b1)) = (columns(a), columns(b));
        let disjoint = a1 <= a.ld && b1 <= b.ld && (a1 <= b0 || b1 <= a0);
        Ok(if disjoint { Overlap::Interleaved } else { Overlap::Partial })
    }

    /// Feeds are read-only, and parameters change only by updates and assignments.
    fn writable(&self, v: &Value) -> Check {
        let writable = !matches!(
            v.location,
            Location::Feed(_) | Location::Param(_) | Location::Gathered { .. }
        );
        expect(writable, "its result lies in a feed or a parameter")
    }

    fn instr(&self, instr: &Instr) -> Check {
        let layer = match instr {
            Instr::Compute { layer, .. }
            | Instr::ReduceScatter { layer, .. }
            | Instr::ExchangeParts { layer, .. } => *layer as usize,
            _ => 0,
        };
        expect(layer < self.p.layers.len().max(1), "it belongs to no layer")?;
        match instr {
            Instr::Compute { op, inputs, output, sharded: false, .. } => {
                self.compute(op, inputs, *output)
            }
            Instr::Compute { op, inputs, output, sharded: true, .. } => {
                self.sharded_product(op, inputs, *output)
            }
            Instr::Copy { input, output } => self.copy(self.get(*input)?, self.get(*output)?),
            Instr::Barrier(_) => Ok(()),
            Instr::AllReduce { scope, input, output } => {
                self.collective(&Op::AllReduce { scope: *scope }, *input, *output)
            }
            Instr::ReplicaMean { input, output } => {
                self.collective(&Op::ReplicaMean, *input, *output)
            }
            Instr::ExchangeParts { op, input, output, .. } => {
                self.exchange_parts(*op, *input, *output)
            }
            Instr::ReduceScatter { input, bias, output, .. } => {
                self.reduce_scatter(*input, *bias, *output)
            }
            Instr::ShardedGradKernel { param, x, dy } => {
                let plan = self.p.update.as_ref();
                let planned = plan.and_then(|p| p.gradients.iter().find(|g| g.param == *param));
                let stored = planned.is_some_and(|g| g.sharded && g.operands.is_none());
                expect(stored, "the gradient of its parameter is not sharded")?;
                self.kernel_gradient(*param, *x, *dy)
            }
            Instr::GatherWeights { group } => {
                expect(*group < self.p.weight_groups.len(), "there is no such group")
            }
            Instr::ReduceGradients { bucket } => {
                let known = self.p.update.as_ref().is_some_and(|plan| *bucket < plan.buckets.len());
                expect(known, "there is no such bucket")
            }
            Instr::Update => expect(self.p.update.is_some(), "there is no optimizer"),
            Instr::Assign { param, value } => {
                let (spec, v) = (self.param(*param)?, self.get(*value)?);
                let valid = !v.ty.is_rows() && v.contiguous() && v.ty.dtype == DType::F32;
                expect(valid && v.ty.len() == spec.len(), "its value is not the parameter's")
            }
            Instr::Fetch { index, value } => {
                let v = self.get(*value)?;
                let plan = self.p.fetches.get(*index).ok_or("there is no such fetch")?;
                expect(plan.ty == v.ty && v.contiguous(), "its value is not that of the fetch")
            }
        }
    }

    /// The op accepts operands of these types and its result has the type of `output`.
    fn typed(&self, op: &Op, inputs: &[&Value], output: &Value) -> Check {
        self.writable(output)?;
        let types: Vec<Type> = inputs.iter().map(|v| widened(&v.ty)).collect();
        let types: Vec<&Type> = types.iter().collect();
        let ty = op.infer(&types).map_err(|e| e.to_string())?;
        let (inferred, stored) = (widened(&ty), widened(&output.ty));
        // A constant can fill a value of any space.
        let space = inferred.space == stored.space || matches!(op, Op::Const { .. });
        let same = inferred.dims == stored.dims && inferred.dtype == stored.dtype && space;
        expect(same, &format!("its result is {}, {} gives {ty}", output.ty, op.name()))
    }

    fn compute(&self, op: &Op, inputs: &[ValueId], output: ValueId) -> Check {
        let lowered = matches!(
            op,
            Op::Feed { .. }
                | Op::Param { .. }
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Select
                | Op::Reshape { .. }
                | Op::AllReduce { .. }
                | Op::ReplicaMean
                | Op::Model(_)
                | Op::Parts(PartsOp::AllReduce(_) | PartsOp::AllGather { .. })
        );
        expect(!lowered, "its op is not computed")?;
        let y = self.get(output)?;
        let x = inputs.iter().map(|id| self.get(*id)).collect::<Result<Vec<_>, _>>()?;
        self.typed(op, &x, y)?;
        if let Op::Cast { dtype } = op {
            expect(*dtype == y.ty.dtype, "its cast gives another type")?;
        }
        expect(y.contiguous() || writes_strided(op), "its result has gaps")?;
        for (i, x) in x.iter().enumerate() {
            expect(x.contiguous() || reads_strided(op, i), "an operand has gaps")?;
            let in_place = match op {
                Op::Fused(tape) => tape.inputs[i] == Access::Full,
                Op::Dropout { .. } => true,
                _ => false,
            };
            let allowed = match self.overlap(x, y, self.rows)? {
                Overlap::Disjoint => true,
                Overlap::Interleaved => !needs_own_buffer(op),
                Overlap::Identical => in_place && x.ty.dtype.bytes() == y.ty.dtype.bytes(),
                Overlap::Partial => false,
            };
            expect(allowed, "it reads the buffer it writes")?;
        }
        Ok(())
    }

    fn copy(&self, from: &Value, to: &Value) -> Check {
        self.writable(to)?;
        let same = from.ty.dtype == to.ty.dtype
            && from.ty.is_rows() == to.ty.is_rows()
            && from.ty.len() == to.ty.len();
        expect(same, "its operand and result have different types")?;
        let same_pixels = from.contiguous() || to.contiguous() || from.ty.last() == to.ty.last();
        expect(same_pixels, "its operand and result have different pixels")?;
        let overlap = self.overlap(from, to, self.rows)?;
        expect(
            matches!(overlap, Overlap::Disjoint | Overlap::Interleaved),
            "its operand and result overlap",
        )
    }

    fn collective(&self, op: &Op, input: ValueId, output: ValueId) -> Check {
        let (x, y) = (self.get(input)?, self.get(output)?);
        self.typed(op, &[x], y)?;
        expect(matches!(x.location, Location::Shared(_)), "its operand is not shared")?;
        expect(x.contiguous() && y.contiguous(), "it has gaps")?;
        expect(matches!(x.ty.dtype, DType::F32 | DType::F64), "sums are wide floats")?;
        expect(x.ty.dtype == y.ty.dtype, "its result is of another type")?;
        expect(self.overlap(x, y, 1)? == Overlap::Disjoint, "its operand and result overlap")
    }

    /// The devices of a replica read each other's operand, so it lies in memory of the worker.
    fn exchange_parts(&self, op: PartsOp, input: ValueId, output: ValueId) -> Check {
        let (x, y) = (self.get(input)?, self.get(output)?);
        expect(
            self.p.options.mesh.devices_per_replica > 1,
            "a single device has no parts to exchange",
        )?;
        expect(!matches!(op, PartsOp::Slice { .. }), "it exchanges nothing")?;
        self.typed(&Op::Parts(op), &[x], y)?;
        let own = !matches!(x.location, Location::Feed(_) | Location::Gathered { .. });
        expect(own, "other devices cannot read its operand")?;
        expect(x.contiguous() && y.contiguous(), "it has gaps")?;
        expect(
            x.ty.dtype == y.ty.dtype && x.ty.dtype.bytes() <= 8,
            "its result is of another type",
        )?;
        expect(
            self.overlap(x, y, self.rows)? == Overlap::Disjoint,
            "its operand and result overlap",
        )
    }

    /// Only devices of several workers shard kernels, so executors of one worker need not know how.
    fn several_workers(&self) -> Check {
        expect(self.p.options.mesh.workers > 1, "a single worker has nothing to share")
    }

    /// The rows lie where all workers of the device can read them.
    fn readable_by_device(&self, v: &Value) -> Check {
        let readable = matches!(v.location, Location::Feed(_) | Location::Device(_));
        let floats = v.ty.is_rows() && v.ty.dtype == DType::F32;
        expect(readable && floats, "other workers cannot read its rows")
    }

    /// A partial product: a shared value with all rows of the device.
    fn partial_product(&self, v: &Value) -> Check {
        let Location::Shared(at) = v.location else {
            return Err("its parts are not shared".into());
        };
        expect(v.contiguous() && v.offset == 0, "its parts have gaps")?;
        let end = self.end(v, self.replica_rows)?.checked_add(at);
        expect(end.is_some_and(|end| end <= self.p.memory.shared), "its parts exceed their block")
    }

    /// A product of all rows of the device with this worker's rows of a dense kernel.
    fn sharded_product(&self, op: &Op, inputs: &[ValueId], output: ValueId) -> Check {
        self.several_workers()?;
        let [x, w] = inputs else { return Err("it is not a product with a kernel".into()) };
        let (x, w, y) = (self.get(*x)?, self.get(*w)?, self.get(output)?);
        self.typed(op, &[x, w], y)?;
        self.readable_by_device(x)?;
        expect(w.contiguous(), "its kernel has gaps")?;
        match op {
            Op::Dot(epilogue) => {
                expect(*epilogue == Epilogue::default(), "its parts are not sums of products")?;
                expect(y.ty.dtype == DType::F32, "its parts are not floats")?;
                self.partial_product(y)
            }
            Op::DotGradInput => {
                let in_block = matches!(y.location, Location::Device(_));
                expect(in_block, "its result is not in the device's block")?;
                let overlap = self.overlap(x, y, self.replica_rows)?;
                expect(overlap == Overlap::Disjoint, "it reads the buffer it writes")
            }
            _ => Err("its op cannot be sharded".into()),
        }
    }

    fn reduce_scatter(&self, input: ValueId, bias: Option<ValueId>, output: ValueId) -> Check {
        self.several_workers()?;
        let (x, y) = (self.get(input)?, self.get(output)?);
        self.writable(y)?;
        self.partial_product(x)?;
        expect(x.ty == y.ty && x.ty.is_rows(), "its result is of another type")?;
        expect(x.ty.dtype == DType::F32, "its parts are not floats")?;
        if let Some(bias) = bias {
            let b = self.get(bias)?;
            let fits = !b.ty.is_rows() && b.contiguous() && b.ty.dims == [y.ty.last()];
            expect(fits && b.ty.dtype == DType::F32, "its bias is of another type")?;
            expect(self.overlap(b, y, self.rows)? == Overlap::Disjoint, "its bias overlaps")?;
        }
        expect(
            self.overlap(x, y, self.replica_rows)? == Overlap::Disjoint,
            "its operand and result overlap",
        )
    }

    /// The gradient of a dense kernel over all rows of the device.
    fn kernel_gradient(&self, param: ParamId, x: ValueId, dy: ValueId) -> Check {
        self.several_workers()?;
        let (spec, x, dy) = (self.param(param)?, self.get(x)?, self.get(dy)?);
        self.readable_by_device(x)?;
        self.readable_by_device(dy)?;
        let ty = Op::DotGradKernel.infer(&[&x.ty, &dy.ty]).map_err(|e| e.to_string())?;
        expect(ty.dims == spec.dims, "its operands are not those of the kernel")
    }
}

#[cfg(test)]
mod tests;
