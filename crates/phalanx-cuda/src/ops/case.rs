//! Runs one op on the emulated GPU and compares it with the reference.

use super::compute;
use super::harness::{Harness, float_bytes, from_bf16, to_bf16};
use crate::launch::{Elem, Launch};
use crate::lowering_context::LowerCtx;
use crate::tape::Tapes;
use phalanx_cpu::reference::{Bindings, Context, Data, Value, evaluate};
use phalanx_graph::program::ValueId;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};

pub(super) const SEED: u64 = 0x1234_5678_9abc_def0;
pub(super) const STEP: u64 = 0x1_0000_0007;

/// Numbers between -1 and 1 that a 32-bit float represents exactly.
pub(super) fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        f64::from(((state >> 40) as f32) / (1u64 << 23) as f32 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

/// An op with its operands.
pub(super) struct Case {
    pub op: Op,
    pub x: Vec<(Type, Value)>,
    pub rows: usize,
    /// Elements before operands and result, which break their alignment.
    pub shift: usize,
    /// Rows of the batch before these.
    pub first_row: usize,
    /// Whether floats are stored as `bf16`.
    pub narrow: bool,
}

impl Case {
    pub fn new(op: Op, rows: usize) -> Case {
        Case { op, x: vec![], rows, shift: 0, first_row: 0, narrow: false }
    }

    /// Adds float rows of pseudo-random numbers.
    pub fn rows(self, dims: &[usize]) -> Case {
        let n = self.rows * dims.iter().product::<usize>();
        let seed = self.x.len() as u64 + 1;
        self.floats(Type::rows(dims), numbers(n, seed))
    }

    /// Adds floats.
    pub fn floats(mut self, ty: Type, data: Vec<f64>) -> Case {
        let value = Value::float(self.dims(&ty), data);
        self.x.push((ty, value));
        self
    }

    /// Adds integer rows.
    pub fn ints(mut self, dims: &[usize], data: Vec<i32>) -> Case {
        let ty = Type { dtype: DType::I32, ..Type::rows(dims) };
        let value = Value::int(self.dims(&ty), data);
        self.x.push((ty, value));
        self
    }

    pub fn shifted(self, shift: usize) -> Case {
        Case { shift, ..self }
    }

    /// Sets the index of the first row in the batch.
    pub fn starting_at(self, first_row: usize) -> Case {
        Case { first_row, ..self }
    }

    /// The same case with 16-bit floats, and operands rounded to them.
    pub fn narrow(mut self) -> Case {
        for (_, value) in &mut self.x {
            if let Data::Float(v) = &mut value.data {
                v.iter_mut().for_each(|v| *v = f64::from(from_bf16(to_bf16(*v as f32))));
            }
        }
        Case { narrow: true, ..self }
    }

    fn dims(&self, ty: &Type) -> Vec<usize> {
        let lead = if ty.is_rows() { vec![self.rows] } else { vec![] };
        [lead, ty.dims.clone()].concat()
    }

    fn graph(&self) -> (Graph, NodeId) {
        let mut g = Graph::new();
        let x: Vec<NodeId> = (self.x.iter().enumerate())
            .map(|(i, (ty, _))| {
                let feed = g.add_feed(&format!("x{i}"), ty.clone());
                g.feed(feed)
            })
            .collect();
        let y = g.push(self.op.clone(), &x).expect("operands fit");
        (g, y)
    }

    /// Places operands and the unwritten result in a harness.
    fn place_operands(&self, harness: &mut Harness) -> (Vec<ValueId>, ValueId) {
        let (graph, node) = self.graph();
        let x = self.x.iter().map(|(ty, value)| harness.put(ty, self.shift, &self.bytes(value)));
        let x = x.collect();
        let ty = graph.ty(node);
        let rows = if ty.is_rows() { self.rows } else { 1 };
        let result = vec![0xff; ty.len() * rows * self.elem(ty.dtype).bytes()];
        (x, harness.put(ty, self.shift, &result))
    }

    /// The element type in memory.
    fn elem(&self, dtype: DType) -> Elem {
        match dtype {
            DType::I32 => Elem::I32,
            _ if self.narrow => Elem::Bf16,
            _ => Elem::F32,
        }
    }

    fn bytes(&self, value: &Value) -> Vec<u8> {
        let elem = self.elem(DType::F32);
        match &value.data {
            Data::Float(v) => v.iter().flat_map(|v| float_bytes(*v as f32, elem)).collect(),
            Data::Int(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    /// The launches of the op.
    pub fn launches(&self) -> Vec<Launch> {
        let mut harness = Harness::new(None, self.rows);
        let (x, y) = self.place_operands(&mut harness);
        harness.lower(|cx, tapes| self.lower(cx, tapes, &x, y)).0
    }

    /// 16-bit operands fit wherever 32-bit ones do: only the kernels' types change.
    fn lower(
        &self,
        cx: &mut LowerCtx<'_>,
        tapes: &mut Tapes,
        x: &[ValueId],
        y: ValueId,
    ) -> Vec<Launch> {
        let mut launches = compute(cx, tapes, &self.op, x, y);
        if self.narrow {
            launches.iter_mut().for_each(|l| l.kernel = l.kernel.replace("float", "bf16"));
        }
        launches
    }

    /// Fails unless the emulated GPU matches the reference, with equal bits in every order.
    pub fn check(&self, tolerance: f64) {
        let (graph, node) = self.graph();
        let feeds = self.x.iter().map(|(_, value)| self.whole_batch(value)).collect();
        let bindings = Bindings { feeds, params: vec![] };
        let ctx = Context { rows: self.first_row + self.rows, seed: SEED, step: STEP };
        let want = self.own_rows(evaluate(&graph, &[node], &bindings, &ctx).remove(0));
        let runs: Vec<Vec<u32>> =
            [None, Some(5)].into_iter().flat_map(|seed| self.run(seed, &want)).collect();
        let text = || format!("{} rows, {:?}", self.rows, self.launches());
        for run in &runs {
            assert!(*run == runs[0], "{}: two runs differ", text());
        }
        match &want.data {
            Data::Int(want) => {
                let got: Vec<i32> = runs[0].iter().map(|w| w.cast_signed()).collect();
                assert_eq!(got, *want, "{}", text());
            }
            Data::Float(want) => {
                for (i, (word, want)) in runs[0].iter().zip(want).enumerate() {
                    let got = f64::from(f32::from_bits(*word));
                    let same = got == *want || got.is_nan() && want.is_nan();
                    let near = (got - want).abs() <= tolerance * (1.0 + want.abs());
                    assert!(same || near, "{} at {i}: {got} for {want}", text());
                }
            }
        }
    }

    /// Float rows, preceded by zeros for the earlier rows of the batch.
    fn whole_batch(&self, value: &Value) -> Value {
        let Data::Float(own) = &value.data else { return value.clone() };
        let mut value = Value::float(value.dims.clone(), own.clone());
        if self.first_row > 0 {
            let front = vec![0.0; own.len() / self.rows * self.first_row];
            value.dims[0] += self.first_row;
            value.data = Data::Float([front, own.clone()].concat());
        }
        value
    }

    /// A result without the earlier rows of the batch.
    fn own_rows(&self, mut value: Value) -> Value {
        if self.first_row > 0 {
            let before = value.len() / value.dims[0] * self.first_row;
            match &mut value.data {
                Data::Float(all) => drop(all.drain(..before)),
                Data::Int(all) => drop(all.drain(..before)),
            }
            value.dims[0] = self.rows;
        }
        value
    }

    /// The results of two steps on one GPU.
    fn run(&self, seed: Option<u64>, want: &Value) -> Vec<Vec<u32>> {
        let mut harness = Harness::new(seed, self.rows);
        harness.first_row = self.first_row;
        (harness.inputs.seed, harness.inputs.step) = (SEED, STEP);
        let (x, y) = self.place_operands(&mut harness);
        let elem = match want.data {
            Data::Int(_) => Elem::I32,
            Data::Float(_) => self.elem(DType::F32),
        };
        let step = harness.prepare(|cx, tapes| self.lower(cx, tapes, &x, y));
        let mut results = vec![];
        for _ in 0..2 {
            harness.start(step);
            results.push(harness.words(harness.at(y), elem, want.len()));
        }
        results
    }
}
