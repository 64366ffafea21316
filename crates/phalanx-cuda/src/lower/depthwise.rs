//! Depthwise convolutions, which our own kernels compute from the weights as they are.

use super::{Lowering, tasks};
use crate::launch::Span;
use crate::ops::depthwise::Depthwise;
use crate::work_item::WorkItem;
use phalanx_graph::ConvGeom;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::ValueId;

impl Lowering<'_> {
    /// A convolution with input, filters and output as in the forward pass.
    fn depthwise(&mut self, replica: usize, geom: &ConvGeom, values: [ValueId; 3]) -> Depthwise {
        let rows = self.request.replicas[replica].rows;
        let (cx, _) = self.cx(replica);
        let [x, filters, y] = values.map(|id| cx.operand(id));
        Depthwise { geom: *geom, rows, x, filters, y }
    }

    pub(super) fn depthwise_conv(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        e: Epilogue,
        x: &[ValueId],
        y: ValueId,
    ) {
        let biased = e.bias && !self.request.facts.deferred_bias.contains_key(&y);
        let bias = biased.then(|| self.operand(replica, x[2]).ptr);
        let launch = self.depthwise(replica, geom, [x[0], x[1], y]).forward(bias, e.relu);
        let reads = if biased { x } else { &x[..2] };
        self.launches(replica, label, vec![launch], reads, &[y]);
    }

    /// The gradient of the input `y`; operands `dy, w`.
    pub(super) fn depthwise_grad_input(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        x: &[ValueId],
        y: ValueId,
    ) {
        let launch = self.depthwise(replica, geom, [y, x[1], x[0]]).grad_input();
        self.launches(replica, label, vec![launch], x, &[y]);
    }

    /// The gradient of the filters; operands `x, dy`. The blocks' sums are added up later, with other sums over rows.
    pub(super) fn depthwise_grad_filter(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        x: &[ValueId],
        dw: ValueId,
    ) {
        let conv = self.depthwise(replica, geom, [x[0], dw, x[1]]);
        let (launches, to, sums) = conv.grad_filter(&mut self.scratch[replica]);
        let parts = sums.first().map_or(1, |s| s.rows);
        let work = WorkItem {
            instr: self.at,
            label,
            tasks: tasks(launches),
            reads: x.iter().map(|id| self.operand(replica, *id).span()).collect(),
            writes: vec![Span::whole(to, parts * conv.filters.len * 4)],
        };
        self.push(work);
        sums.into_iter().for_each(|sum| self.defer_sum(sum));
    }
}

#[cfg(test)]
mod tests {
    use crate::launch::Source;
    use crate::plan::{Allocations, RunMode};
    use crate::work_item::Task;
    use phalanx_graph::ops::Epilogue;
    use phalanx_graph::program::Program;
    use phalanx_graph::{
        ConvGeom, Fetch, Graph, Mesh, Op, Options, Padding, Scope, Step, Type, Window,
    };

    /// The tasks of a step that computes the three passes of a convolution with bias and ReLU.
    fn passes(channels: usize, groups: usize) -> Vec<Task> {
        let window = Window { groups, ..Window::new([3, 3], [1, 1], Padding::Same) };
        let geom = ConvGeom::new([6, 5, channels], 8, window).unwrap();
        let mut g = Graph::new();
        let [x, dy] = [("x", geom.input), ("dy", geom.output)].map(|(name, dims)| {
            let feed = g.add_feed(name, Type::rows(dims));
            g.feed(feed)
        });
        let [w, bias] = [("w", &geom.kernel_dims()[..]), ("bias", &[8])].map(|(name, dims)| {
            let param = g.add_param(name, dims, true);
            g.param(param)
        });
        let e = Epilogue { bias: true, relu: true };
        let y = g.push(Op::Conv(geom, e), &[x, w, bias]).unwrap();
        let dx = g.push(Op::ConvGradInput(geom), &[dy, w]).unwrap();
        let dw = g.push(Op::ConvGradKernel(geom), &[x, dy]).unwrap();
        let dw = g.push(Op::AllReduce { scope: Scope::All }, &[dw]).unwrap();
        let mut step = Step::new("passes", g);
        for (name, node) in [("y", y), ("dx", dx), ("dw", dw)] {
            step.fetches.push(Fetch { name: name.into(), node });
        }
        let program = Program::compile(step, Options::new(Mesh::new(1, 1), 4)).unwrap();
        let (plan, _) = Allocations::of(&program).lower(&program, RunMode::default());
        plan.work_items.into_iter().flat_map(|work| work.tasks).collect()
    }

    #[test]
    fn only_depthwise_convolutions_are_our_own() {
        for (channels, groups, own) in [(8, 8, true), (4, 4, true), (4, 2, false), (1, 1, false)] {
            let tasks = passes(channels, groups);
            let library = tasks.iter().filter(|t| matches!(t, Task::Conv(_))).count();
            let files = tasks.iter().filter_map(|t| match t {
                Task::Launch(l) => Some(l.source),
                _ => None,
            });
            let count = |file| files.clone().filter(|f| *f == Source::File(file)).count();
            let got = (library, count("depthwise"));
            assert_eq!(got, if own { (0, 3) } else { (3, 0) }, "{groups} groups of {channels}");
            // Filters are not packed, and no epilogue is fused.
            assert!(!own || count("update") == 0);
            assert!(!own || files.clone().all(|f| f != Source::Tapes));
        }
    }
}
