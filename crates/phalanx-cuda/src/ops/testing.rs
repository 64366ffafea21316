//! Runs one op on the emulated GPU and compares it with the reference.

use super::compute;
use crate::cx::{Aliases, Cx, Layout, Scratch};
use crate::emulator::{EmulatedGpu, missing};
use crate::inputs::{INPUT_BYTES, Inputs};
use crate::launch::{Block, Elem, Launch, Ptr, Span};
use crate::machine::{Machine, Plan};
use crate::tape::Tapes;
use crate::task::{Task, Work};
use phalanx_cpu::reference::{Bindings, Context, Data, Value, evaluate};
use phalanx_graph::program::{
    Memory, Mesh, Options, Place, Program, Split, Value as Placed, ValueId,
};
use phalanx_graph::{FeedId, Graph, NodeId, Op, Type};

pub(super) const SEED: u64 = 0x1234_5678_9abc_def0;
pub(super) const STEP: u64 = 0x1_0000_0007;

/// Numbers between -1 and 1 that a 32-bit float holds.
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
    /// Elements in front of operands and result, which spoil their alignment.
    pub shift: usize,
    /// Rows of the batch in front of these.
    pub first_row: usize,
    /// Whether floats lie in memory as `bf16`.
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
        let ty = Type { dtype: phalanx_graph::DType::I32, ..Type::rows(dims) };
        let value = Value::int(self.dims(&ty), data);
        self.x.push((ty, value));
        self
    }

    pub fn shifted(self, shift: usize) -> Case {
        Case { shift, ..self }
    }

    /// These rows are not the batch's first.
    pub fn behind(self, first_row: usize) -> Case {
        Case { first_row, ..self }
    }

    /// The same on narrow floats, operands rounded to them.
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

    /// Operands are feeds one behind the other, the result starts the arena.
    fn program(&self) -> (Program, Layout) {
        let (g, y) = self.graph();
        let shift = self.shift;
        let place = |ty: &Type, place| {
            let ld = ty.last();
            Placed { ty: ty.clone(), place, offset: shift, ld }
        };
        let (mut feeds, mut at, mut values) = (vec![], INPUT_BYTES, vec![]);
        for (i, (ty, value)) in self.x.iter().enumerate() {
            feeds.push(at);
            at += ((value.len() + shift) * 4).next_multiple_of(256).max(256);
            values.push(place(ty, Place::Feed(FeedId(i as u32))));
        }
        values.push(place(g.ty(y), Place::Arena(0)));
        let program = Program {
            name: "test".into(),
            options: Options::new(Mesh::new(1, 1), self.rows),
            split: Split::Rows,
            params: vec![],
            feeds: g.feeds().to_vec(),
            fetches: vec![],
            scopes: vec![],
            values,
            instrs: vec![],
            update: None,
            memory: Memory::default(),
        };
        feeds.push(at);
        (program, Layout { feeds, params: vec![] })
    }

    /// What the op is lowered to.
    pub fn launches(&self) -> Vec<Launch> {
        let (program, layout) = self.program();
        self.lower(&program, &layout, &mut Scratch::default())
    }

    /// Narrow operands fit wherever wide ones do: only the kernels' types change.
    fn lower(&self, program: &Program, layout: &Layout, scratch: &mut Scratch) -> Vec<Launch> {
        let (rows, first_row) = (self.rows, self.first_row);
        let aliases = &Aliases::default();
        let mut cx = Cx { program, layout, aliases, scratch, replica: 0, rows, first_row };
        let mut launches = lower(&mut cx, &self.op);
        if self.narrow {
            launches.iter_mut().for_each(|l| l.kernel = l.kernel.replace("float", "bf16"));
        }
        launches
    }

    /// Fails unless the emulated GPU has what the reference has, the same in every order.
    pub fn check(&self, tolerance: f64) {
        if let Some(reason) = missing() {
            return eprintln!("skipped: {reason}");
        }
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

    /// Float rows with zeros for the rows in front.
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

    /// A result without the rows in front.
    fn own_rows(&self, mut value: Value) -> Value {
        if let (Data::Float(all), true) = (&mut value.data, self.first_row > 0) {
            all.drain(..all.len() / value.dims[0] * self.first_row);
            value.dims[0] = self.rows;
        }
        value
    }

    /// The result of two steps on one GPU.
    fn run(&self, seed: Option<u64>, want: &Value) -> Vec<Vec<u32>> {
        let (len, ints) = (want.len(), matches!(want.data, Data::Int(_)));
        let (program, layout) = self.program();
        let mut scratch = Scratch::default();
        let launches = self.lower(&program, &layout, &mut scratch);
        let mut gpu = EmulatedGpu::new(seed);
        let input_bytes = layout.feeds[self.x.len()];
        let sizes = [
            (Block::Inputs, input_bytes),
            (Block::Arena, (len + self.shift) * 4),
            (Block::Scratch, scratch.end()),
        ];
        for (block, bytes) in sizes {
            gpu.reserve(0, block, bytes, "a test").expect("memory");
        }
        let at = |block| Ptr::new(0, block, 0);
        let [inputs, arena, scratch] = sizes.map(|(b, bytes)| Span::whole(at(b), bytes));
        let work = Work {
            instr: 0,
            label: self.op.name().into(),
            tasks: launches.into_iter().map(Task::Launch).collect(),
            reads: vec![inputs],
            writes: vec![arena, scratch],
        };
        let step = gpu.prepare(Plan { work: vec![work], tapes: String::new() });
        let step = step.expect("compiles");
        let bytes = self.input_bytes(&layout.feeds);
        let mut results = vec![];
        for _ in 0..2 {
            gpu.start(step, &bytes).expect("runs");
            let narrow = self.narrow && !ints;
            let mut y = vec![0; len * if narrow { 2 } else { 4 }];
            gpu.read(at(Block::Arena).add(self.shift * 4), &mut y).expect("is there");
            results.push(if narrow { wide_words(&y) } else { words(&y) });
        }
        results
    }

    /// The block of inputs.
    fn input_bytes(&self, feeds: &[usize]) -> Vec<u8> {
        let mut bytes = vec![0xff; feeds[self.x.len()]];
        bytes[..8].copy_from_slice(&SEED.to_le_bytes());
        bytes[8..16].copy_from_slice(&STEP.to_le_bytes());
        assert_eq!(
            (std::mem::offset_of!(Inputs, seed), std::mem::offset_of!(Inputs, step)),
            (0, 8)
        );
        for ((_, value), feed) in self.x.iter().zip(feeds) {
            let elem = if self.narrow { Elem::Bf16 } else { Elem::F32 };
            let own: Vec<u8> = match &value.data {
                Data::Float(v) => v.iter().flat_map(|v| float_bytes(*v as f32, elem)).collect(),
                Data::Int(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let start = feed + self.shift * 4;
            bytes[start..start + own.len()].copy_from_slice(&own);
        }
        bytes
    }
}

pub(super) fn to_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.is_nan() { 0x7fc0 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn float_bytes(v: f32, elem: Elem) -> Vec<u8> {
    match elem {
        Elem::Bf16 => to_bf16(v).to_le_bytes().to_vec(),
        _ => v.to_le_bytes().to_vec(),
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// Narrow floats as the words of wide ones.
fn wide_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)) << 16).collect()
}

/// One operand and one result, for launches that no op has.
pub(super) struct Bench {
    gpu: EmulatedGpu,
    input_bytes: usize,
    scratch: Scratch,
}

impl Bench {
    /// With the operand's numbers in memory, unless nothing can be emulated here.
    pub fn new(elem: Elem, x: &[f32]) -> Option<Bench> {
        if let Some(reason) = missing() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let bytes: Vec<u8> = x.iter().flat_map(|v| float_bytes(*v, elem)).collect();
        let mut gpu = EmulatedGpu::new(Some(3));
        gpu.reserve(0, Block::Inputs, bytes.len().max(1), "a test").expect("memory");
        gpu.write(Ptr::new(0, Block::Inputs, 0), &bytes).expect("fits");
        Some(Bench { gpu, input_bytes: bytes.len(), scratch: Scratch::default() })
    }

    pub fn x(&self) -> Ptr {
        Ptr::new(0, Block::Inputs, 0)
    }

    pub fn y(&self) -> Ptr {
        Ptr::new(0, Block::Arena, 0)
    }

    /// Lowers something with this bench's scratch memory.
    pub fn lower<T>(&mut self, f: impl FnOnce(&mut Cx<'_>) -> T) -> T {
        let (program, layout) = Case::new(Op::SumRows, 1).rows(&[]).program();
        let (program, layout, scratch) = (&program, &layout, &mut self.scratch);
        let aliases = &Aliases::default();
        f(&mut Cx { program, layout, aliases, scratch, replica: 0, rows: 1, first_row: 0 })
    }

    /// The result's first `len` numbers.
    pub fn run(&mut self, launches: Vec<Launch>, elem: Elem, len: usize) -> Vec<f32> {
        let bytes = len * elem.bytes();
        let scratch = self.scratch.end();
        self.gpu.reserve(0, Block::Arena, bytes, "a test").expect("memory");
        self.gpu.reserve(0, Block::Scratch, scratch, "a test").expect("memory");
        let span = |block, bytes| Span::whole(Ptr::new(0, block, 0), bytes);
        let work = Work {
            instr: 0,
            label: "test".into(),
            tasks: launches.into_iter().map(Task::Launch).collect(),
            reads: vec![span(Block::Inputs, self.input_bytes)],
            writes: vec![span(Block::Arena, bytes), span(Block::Scratch, scratch)],
        };
        let plan = Plan { work: vec![work], tapes: String::new() };
        let step = self.gpu.prepare(plan).expect("compiles");
        self.gpu.start(step, &[]).expect("runs");
        let mut y = vec![0; bytes];
        self.gpu.read(self.y(), &mut y).expect("is there");
        let words = if elem == Elem::Bf16 { wide_words(&y) } else { words(&y) };
        words.into_iter().map(f32::from_bits).collect()
    }
}

/// The op over all values of a program but the last, its result.
fn lower(cx: &mut Cx<'_>, op: &Op) -> Vec<Launch> {
    let n = cx.program.values.len() - 1;
    let x: Vec<ValueId> = (0..n as u32).map(ValueId).collect();
    compute(cx, &mut Tapes::default(), op, &x, ValueId(n as u32))
}
