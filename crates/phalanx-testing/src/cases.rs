//! Small graphs of every op with values for their operands. The gradient checks compare their derivatives
//! with finite differences, and the executor tests compare their programs with the reference evaluator.

mod composed;
mod recurrent;
mod table;
mod windows;

pub use composed::*;
pub use recurrent::*;
pub use table::*;
pub use windows::*;

use phalanx_cpu::reference::{Bindings, Context, Value};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::{DType, Graph, NodeId, Op, Space, Type, rng};

/// The binding that holds the values of a float operand.
#[derive(Clone, Copy)]
pub enum Source {
    Feed(usize),
    Param(usize),
}

/// A graph under construction, with values for its operands.
pub struct Build {
    pub g: Graph,
    pub bindings: Bindings,
    /// Every float operand and the binding of its values.
    pub wrt: Vec<(NodeId, Source)>,
    pub context: Context,
    random: rng::Stream,
    /// The range of the next operands' values.
    pub range: (f64, f64),
}

impl Build {
    /// An empty graph for a batch of `rows`; the values are seeded by the name of the case.
    pub fn new(case: &str, rows: usize) -> Build {
        let seed = case.bytes().fold(1u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        let random = rng::Stream::new(seed, 0, 0, 0);
        let bindings = Bindings::default();
        let context = Context { rows, seed: 11, step: 5 };
        let range = (-1.0, 1.0);
        Build { g: Graph::new(), bindings, wrt: vec![], context, random, range }
    }

    /// Random values in the current range, none of them close to the kink at zero.
    fn numbers(&mut self, len: usize) -> Vec<f64> {
        let (lo, hi) = self.range;
        let mut draw = || lo + (hi - lo) * self.random.unit();
        (0..len)
            .map(|_| match draw() {
                v if v.abs() < 0.05 => v + 0.1f64.copysign(v),
                v => v,
            })
            // Rounded to f32, so that f32 kernels get the same values.
            .map(|v| f64::from(v as f32))
            .collect()
    }

    pub fn feed(&mut self, ty: Type, value: Value) -> NodeId {
        let id = self.g.add_feed("feed", ty);
        self.bindings.feeds.push(value);
        self.g.feed(id)
    }

    /// Float rows.
    pub fn rows(&mut self, dims: &[usize]) -> NodeId {
        let full = [&[self.context.rows], dims].concat();
        let data = self.numbers(full.iter().product());
        let source = Source::Feed(self.bindings.feeds.len());
        let id = self.feed(Type::rows(dims), Value::float(full, data));
        self.wrt.push((id, source));
        id
    }

    /// A float parameter.
    pub fn param(&mut self, dims: &[usize]) -> NodeId {
        let data = self.numbers(dims.iter().product());
        let source = Source::Param(self.bindings.params.len());
        let id = self.g.add_param("param", dims, true);
        self.bindings.params.push(Value::float(dims, data));
        let id = self.g.param(id);
        self.wrt.push((id, source));
        id
    }

    /// Integer rows below `n`.
    pub fn labels(&mut self, dims: &[usize], n: u64) -> NodeId {
        let full = [&[self.context.rows], dims].concat();
        let len = full.iter().product();
        let data = (0..len).map(|_| self.random.below(n) as i32).collect();
        self.feed(Type::new(DType::I32, Space::Rows, dims), Value::int(full, data))
    }

    /// Mirrored integers from `lo` on, below `hi`.
    pub fn mirrored_integers(&mut self, dims: &[usize], (lo, hi): (i32, i32)) -> NodeId {
        let len = dims.iter().product();
        let span = hi.abs_diff(lo).into();
        let data = (0..len).map(|_| lo + self.random.below(span) as i32).collect();
        self.feed(Type::new(DType::I32, Space::Mirrored, dims), Value::int(dims, data))
    }

    pub fn push(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        self.g.push(op, inputs).expect("operands fit")
    }

    /// Appends the derivatives of `Σ y · seed` for a random seed.
    pub fn differentiate(&mut self, y: NodeId) -> Differentiated {
        let ty = self.g.ty(y).clone();
        let lead = if ty.is_rows() { vec![self.context.rows] } else { vec![] };
        let full = [lead, ty.dims.clone()].concat();
        self.range = (-1.0, 1.0);
        let numbers = self.numbers(full.iter().product());
        let seed = self.feed(ty, Value::float(full, numbers.clone()));
        let wrt: Vec<NodeId> = self.wrt.iter().map(|(id, _)| *id).collect();
        let found = gradients(&mut self.g, &[(y, seed)], &wrt).expect("differentiable");
        self.g.verify("cases").expect("verified");
        Differentiated { seed, numbers, found }
    }
}

/// The nodes that `Build::differentiate` appended.
pub struct Differentiated {
    pub seed: NodeId,
    pub numbers: Vec<f64>,
    /// The derivatives, in the order of `Build::wrt`.
    pub found: Vec<Option<NodeId>>,
}

/// A named function that builds a graph and returns its output.
pub struct Case {
    pub name: String,
    pub build: Box<dyn Fn(&mut Build) -> NodeId>,
}

pub fn case(name: impl Into<String>, build: impl Fn(&mut Build) -> NodeId + 'static) -> Case {
    Case { name: name.into(), build: Box::new(build) }
}
