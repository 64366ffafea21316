//! The schedule of all-reduces across GPUs. It follows from the program alone, so every GPU issues
//! the same reductions in the same order, regardless of its rows.
//!
//! A bucket of gradients is reduced as soon as its last gradient is complete, while the backward
//! pass continues. A collective is batched with all later ones whose operands are complete by then.

use crate::launch::{Arg, Block, Elem, Launch, Ptr, Span, Word};
use crate::lower::Lowering;
use crate::plan::ALIGN;
use crate::work_item::{ReducePart, Task, WorkItem};
use phalanx_graph::Scope;
use phalanx_graph::program::{Instr, Location, Program, UpdatePlan, ValueId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The reductions of a step, and when they start.
#[derive(Debug, Default)]
pub(crate) struct ReduceSchedule {
    /// Collectives that are batched, by the first of them.
    groups: HashMap<usize, Vec<usize>>,
    /// Offset of each collective's result in scratch memory, the same on all replicas.
    slots: HashMap<usize, usize>,
    /// Ranges of the gradients, by the instruction that completes them.
    buckets: HashMap<usize, Vec<Range<usize>>>,
}

/// A weighted sum over the replicas on this GPU.
struct LocalReduce {
    to: Ptr,
    elem: Elem,
    len: usize,
    from: Vec<(Ptr, f32)>,
}

/// The operand of a collective over all replicas.
fn operand(instr: &Instr) -> Option<ValueId> {
    match instr {
        Instr::AllReduce { scope: Scope::All, input, .. } | Instr::ReplicaMean { input, .. } => {
            Some(*input)
        }
        _ => None,
    }
}

/// The instructions that write to a location.
fn writers(program: &Program, place: Location) -> impl Iterator<Item = usize> {
    let each = program.instrs().iter().enumerate();
    let writes = move |instr: &Instr| {
        instr.output().is_some_and(|output| program.value(output).location == place)
    };
    each.filter(move |(_, instr)| writes(instr)).map(|(at, _)| at)
}

/// Groups of collectives that are batched: the first, with all later ones whose operands are
/// written before it and not overwritten.
fn groups(program: &Program, covered: &HashSet<usize>) -> Vec<Vec<usize>> {
    let mut waiting: Vec<(usize, ValueId)> = program
        .instrs()
        .iter()
        .enumerate()
        .filter(|(at, _)| !covered.contains(at))
        .filter_map(|(at, instr)| Some((at, operand(instr)?)))
        .collect();
    let mut groups = vec![];
    while let Some((first, _)) = waiting.first().copied() {
        let batched = |(at, x): &(usize, ValueId)| {
            let place = program.value(*x).location;
            let stays = matches!(place, Location::Shared(_));
            *at == first || stays && writers(program, place).all(|made| made < first)
        };
        let (group, rest) = waiting.into_iter().partition::<Vec<_>, _>(batched);
        groups.push(group.into_iter().map(|(at, _)| at).collect());
        waiting = rest;
    }
    groups
}

/// The instruction after which all gradients of a bucket are complete.
fn completed_by(program: &Program, plan: &UpdatePlan, bucket: &Range<usize>) -> usize {
    let update = program.instrs().iter().position(|i| matches!(i, Instr::Update));
    let update = update.unwrap_or(program.instrs().len());
    let made = plan.gradients[bucket.clone()]
        .iter()
        .map(|g| writers(program, Location::Gradient(g.param)).max().unwrap_or(update));
    made.max().unwrap_or(update)
}

impl Lowering<'_> {
    /// Plans the reductions across GPUs, and allocates their results before the scratch memory of
    /// the replicas diverges.
    pub(crate) fn plan_reductions(&mut self) {
        let program = self.request.program;
        for mut group in groups(program, &self.request.facts.covered) {
            let first = group[0];
            let of = |at: &usize| operand(&program.instrs()[*at]).expect("a collective");
            // Operands of the same type become adjacent.
            group.sort_by_key(|at| self.operand(0, of(at)).elem as usize);
            for at in &group {
                let x = self.operand(0, of(at));
                let bytes = x.len * x.elem.bytes();
                let slots: Vec<Ptr> = self.scratch.iter_mut().map(|s| s.take(bytes)).collect();
                self.reduce_schedule.slots.insert(*at, slots[0].offset);
            }
            self.reduce_schedule.groups.insert(first, group);
        }
        let Some(plan) = program.update() else { return };
        for bucket in &plan.buckets {
            let at = completed_by(program, plan, bucket);
            self.reduce_schedule.buckets.entry(at).or_default().push(bucket.clone());
        }
    }

    /// Redirects readers of the current collective to its sum.
    pub(crate) fn read_sum(&mut self, y: ValueId) {
        if let Some(group) = self.reduce_schedule.groups.remove(&self.at) {
            self.reduce_group(&group);
        }
        let own = self.cx(0).0.assigned(y).span();
        self.aliases.insert(own, (Block::Scratch, self.reduce_schedule.slots[&self.at]));
    }

    /// The contribution of each replica to a collective, with its weight.
    fn contributions(&mut self, at: usize) -> LocalReduce {
        let instr = &self.request.program.instrs()[at];
        let x = operand(instr).expect("a collective");
        let is_mean = matches!(instr, Instr::ReplicaMean { .. });
        let total = self.request.rows.max(1) as f32;
        let from = self.replicas().map(|r| {
            let share = if is_mean { self.request.replicas[r].rows as f32 / total } else { 1.0 };
            (self.operand(r, x).ptr, share)
        });
        let from = from.collect();
        let x = self.operand(0, x);
        let slot = Ptr::new(x.ptr.replica, Block::Scratch, self.reduce_schedule.slots[&at]);
        LocalReduce { to: slot, elem: x.elem, len: x.len, from }
    }

    fn reduce_group(&mut self, group: &[usize]) {
        let local_reduces: Vec<LocalReduce> =
            group.iter().map(|at| self.contributions(*at)).collect();
        if let [one] = &local_reduces[..]
            && let [(from, 1.0)] = one.from[..]
            && one.len > 0
        {
            let part = ReducePart { from, to: one.to, elem: one.elem, len: one.len };
            return self.reduce("sum", vec![part]);
        }
        let parts = coalesce(local_reduces.iter().map(|g| in_place(g.to, g.elem, g.len)));
        self.local_reduce("parts of sums", &local_reduces);
        self.reduce("sums", parts.clone());
        self.broadcast_to_replicas(&parts);
    }

    /// Reduces the gradients that the current instruction completes.
    pub(crate) fn reduce_gradients(&mut self) {
        let Some(buckets) = self.reduce_schedule.buckets.remove(&self.at) else { return };
        let Some(plan) = self.request.program.update() else { return };
        for bucket in buckets {
            let mut found: Vec<(usize, usize)> = vec![];
            for g in &plan.gradients[bucket] {
                let i = g.param.index();
                found.push((self.request.layout.params[i], self.request.program.params()[i].len()));
            }
            found.sort_unstable();
            let at = |r: usize, offset| {
                Ptr::new(self.request.replicas[r].local, Block::Gradients, offset)
            };
            let parts = coalesce(
                found.iter().map(|(offset, len)| in_place(at(0, *offset), Elem::F32, *len)),
            );
            let local_reduce = |p: &ReducePart| {
                let from = self.replicas().map(|r| (at(r, p.to.offset), 1.0)).collect();
                LocalReduce { to: p.to, elem: p.elem, len: p.len, from }
            };
            let local_reduces: Vec<LocalReduce> = parts.iter().map(local_reduce).collect();
            if self.request.replicas.len() > 1 {
                self.local_reduce("parts of gradients", &local_reduces);
            }
            self.reduce("gradients", parts);
        }
    }

    fn reduce(&mut self, what: &str, parts: Vec<ReducePart>) {
        if !parts.is_empty() {
            let label = format!("{what} over GPUs");
            self.push(WorkItem::reduce(label, self.at, parts));
        }
    }

    /// Copies sums to the other replicas on this GPU.
    fn broadcast_to_replicas(&mut self, parts: &[ReducePart]) {
        let mut local_reduces = vec![];
        for replica in self.replicas().skip(1) {
            let local = self.request.replicas[replica].local;
            for ReducePart { to: from, elem, len, .. } in parts.iter().copied() {
                let to = Ptr { replica: local, ..from };
                local_reduces.push(LocalReduce { to, elem, len, from: vec![(from, 1.0)] });
            }
        }
        self.local_reduce("sums to replicas", &local_reduces);
    }

    fn local_reduce(&mut self, label: &str, local_reduces: &[LocalReduce]) {
        if local_reduces.is_empty() {
            return;
        }
        let span = |at: Ptr, g: &LocalReduce| Span::whole(at, g.len * g.elem.bytes());
        let reads =
            local_reduces.iter().flat_map(|g| g.from.iter().map(move |(from, _)| span(*from, g)));
        self.push(WorkItem {
            label: label.into(),
            instr: self.at,
            reads: reads.collect(),
            writes: local_reduces.iter().map(|g| span(g.to, g)).collect(),
            tasks: vec![Task::Launch(launch(local_reduces))],
        });
    }
}

fn in_place(at: Ptr, elem: Elem, len: usize) -> ReducePart {
    ReducePart { from: at, to: at, elem, len }
}

/// In-place parts, with adjacent ones merged, including the padding between them.
fn coalesce(parts: impl Iterator<Item = ReducePart>) -> Vec<ReducePart> {
    let mut out: Vec<ReducePart> = vec![];
    for part in parts.filter(|p| p.len > 0) {
        let size = part.elem.bytes();
        match out.last_mut() {
            Some(last)
                if last.elem == part.elem
                    && (last.to.offset + last.len * size).next_multiple_of(ALIGN)
                        == part.to.offset =>
            {
                last.len = (part.to.offset - last.to.offset) / size + part.len;
            }
            _ => out.push(part),
        }
    }
    out
}

/// All local sums in one launch. All have the same number of sources.
fn launch(local_reduces: &[LocalReduce]) -> Launch {
    let count = local_reduces[0].from.len();
    let mut table = vec![];
    for g in local_reduces {
        let kind = match g.elem {
            Elem::F32 => 0usize,
            Elem::F64 => 1,
            Elem::I32 => 2,
            Elem::Bf16 | Elem::F16 => unreachable!("sums have at least 32 bits"),
        };
        table.extend([Word::from(g.to), g.len.into(), kind.into()]);
        table
            .extend(g.from.iter().flat_map(|(from, weight)| [Word::from(*from), (*weight).into()]));
    }
    let longest = local_reduces.iter().map(|g| g.len).max().unwrap_or(0);
    let blocks = longest.div_ceil(256 * 8).clamp(1, 512);
    Launch::blocks("collective", "gather_many", local_reduces.len() * blocks, 256)
        .arg(Arg::Table(table))
        .arg(blocks)
        .arg(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Plan;
    use crate::lower::{FusionFacts, Replica, Request, lower};
    use crate::plan::Allocations;
    use crate::schedule::schedule;
    use phalanx_graph::{Mesh, Options, Step};
    use phalanx_testing::networks::{cnn, mlp, momentum};

    /// The plan of each GPU, with consecutively numbered replicas.
    fn plans(step: &Step, layout: &[usize], rows: usize) -> Vec<Plan> {
        let mesh = Mesh::new(layout.iter().sum(), 1);
        let program = Program::compile(step.clone(), Options::new(mesh, 12)).expect("compiles");
        let (allocations, facts) = (Allocations::of(&program), FusionFacts::of(&program, false));
        let mut first = 0;
        let mut plan = |count: usize| {
            let replica = |local: usize| {
                let range = mesh.replica_rows(rows, first + local);
                Replica { local, rows: range.len(), first_row: range.start }
            };
            let replicas: Vec<Replica> = (0..count).map(replica).collect();
            first += count;
            let request = Request {
                program: &program,
                layout: &allocations.layout,
                facts: &facts,
                replicas: &replicas,
                rows,
                fetches: &allocations.fetches,
                accumulate: None,
                joined: true,
                from: None,
            };
            lower(&request).0
        };
        layout.iter().map(|count| plan(*count)).collect()
    }

    /// Types and lengths of all reductions across GPUs, in order.
    fn sums(plan: &Plan) -> Vec<Vec<(Elem, usize)>> {
        let tasks = plan.work_items.iter().flat_map(|w| &w.tasks);
        let parts = tasks.filter_map(|task| match task {
            Task::Reduce(parts) => Some(parts.iter().map(|p| (p.elem, p.len)).collect()),
            _ => None,
        });
        parts.collect()
    }

    #[test]
    fn all_gpus_issue_the_same_reductions_regardless_of_rows() {
        let steps = [
            cnn(Scope::All, true, momentum(None), (0.0, 1e-3)),
            cnn(Scope::Device, true, momentum(None), (0.0, 1e-3)),
            mlp(&[7, 6, 5], momentum(None), (1e-3, 0.0)),
        ];
        for step in &steps {
            let all = sums(&plans(step, &[1], 12)[0]);
            assert!(all.len() >= 2 && all.iter().flatten().all(|(_, len)| *len > 0), "{all:?}");
            for layout in [&[1, 1][..], &[2, 1, 3], &[1, 4]] {
                for rows in [12, 3, 1, 0] {
                    for plan in plans(step, layout, rows) {
                        assert_eq!(sums(&plan), all, "{} {layout:?} {rows}", step.name);
                    }
                }
            }
        }
    }

    #[test]
    fn replica_statistics_are_batched() {
        let step = cnn(Scope::Device, true, momentum(None), (0.0, 0.0));
        let plan = &plans(&step, &[1, 1], 12)[0];
        let means = sums(plan).iter().filter(|parts| parts[0].0 == Elem::F32).count();
        assert_eq!(means, 2, "gradients, and everything else: {:?}", sums(plan));
    }

    #[test]
    fn a_bucket_is_reduced_during_the_backward_pass() {
        // Each of the two kernels fills a bucket.
        let step = mlp(&[1100, 1000, 1100, 5], momentum(None), (0.0, 0.0));
        let plan = &plans(&step, &[1, 1], 12)[0];
        let reduces: Vec<usize> = (0..plan.work_items.len())
            .filter(|i| plan.work_items[*i].label.starts_with("gradients"))
            .collect();
        assert_eq!(reduces.len(), 2, "{:?}", sums(plan));
        let placed = schedule(&plan.work_items, 4);
        let first = &plan.work_items[reduces[0]];
        let between = &plan.work_items[reduces[0] + 1..reduces[1]];
        assert!(between.iter().any(|w| w.label.starts_with("dot_grad")), "backward goes on");
        assert!(!between.iter().any(|w| w.follows(first)), "and waits for nothing of it");
        for waited in &placed[reduces[0]].waits {
            assert!(first.follows(&plan.work_items[*waited]), "{}", plan.work_items[*waited].label);
        }
    }
}
