//! Test harness for launches on an emulated GPU: places values, runs one op, reads results back.

use crate::device::{GpuDevice, Plan, StepId};
use crate::emulator::EmulatedGpu;
use crate::emulator::narrow::{from_half, to_half};
use crate::inputs::{INPUT_BYTES, Inputs};
use crate::launch::{Block, Elem, Launch, Ptr, Span};
use crate::lowering_context::{Aliases, Layout, LowerCtx, Scratch};
use crate::tape::Tapes;
use crate::work_item::{Task, WorkItem};
use phalanx_graph::program::{Location, Value, ValueId};
use phalanx_graph::{DType, ParamId, ParamSpec, Space, Type};

const BLOCK_BYTES: usize = 1 << 20;

/// Bytes for values.
const ARENA_BYTES: usize = 16 << 20;

/// Guard after every value, which must not change.
const GUARD: [u8; 64] = [0xff; 64];

/// Program order, and a random order.
pub(crate) const SEEDS: [Option<u64>; 2] = [None, Some(7)];

/// An emulated GPU and values on it.
pub(crate) struct Harness {
    pub gpu: EmulatedGpu,
    values: Vec<Value>,
    params: Vec<ParamSpec>,
    pub layout: Layout,
    pub inputs: Inputs,
    /// Rows of the batch before these.
    pub first_row: usize,
    scratch: Scratch,
    rows: usize,
    used: usize,
    guards: Vec<Ptr>,
}

/// Pseudo-random numbers between -1 and 1.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Fails unless all numbers are close; NaN equals NaN.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g.is_nan() && w.is_nan() || f64::from(*g) == *w;
        let near = (f64::from(*g) - w).abs() <= tolerance * w.abs().max(1.0);
        assert!(same || near, "{what}: element {i} is {g}, wanted {w}");
    }
}

impl Harness {
    /// Running needs g++, lowering does not.
    pub fn new(seed: Option<u64>, rows: usize) -> Harness {
        let mut gpu = EmulatedGpu::new(seed);
        for (at, bytes) in blocks() {
            gpu.reserve(at.replica, at.block, bytes, "a test").expect("memory");
        }
        let layout = Layout { feeds: vec![], params: vec![] };
        let (scratch, inputs) = (Scratch::new(0), Inputs::default());
        let (first_row, used, guards) = (0, 0, vec![]);
        Harness {
            gpu,
            values: vec![],
            params: vec![],
            layout,
            inputs,
            first_row,
            scratch,
            rows,
            used,
            guards,
        }
    }

    /// Allocates a value after `skipped` elements of four bytes.
    fn value(&mut self, ty: Type, ld: usize, bytes: usize, skipped: usize) -> ValueId {
        let place = Location::Shared(self.used);
        let end = self.used + skipped * 4 + bytes;
        self.used = (end + GUARD.len()).next_multiple_of(256);
        assert!(self.used <= ARENA_BYTES);
        let guard = Ptr::new(0, Block::Shared, end);
        self.gpu.write(guard, &GUARD).expect("fits");
        self.guards.push(guard);
        self.values.push(Value { ty, location: place, offset: skipped, ld });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Places a contiguous value, given as bytes, after `skipped` elements of four bytes.
    pub fn put(&mut self, ty: &Type, skipped: usize, bytes: &[u8]) -> ValueId {
        let id = self.value(ty.clone(), ty.last(), bytes.len(), skipped);
        self.gpu.write(self.at(id), bytes).expect("fits");
        id
    }

    /// Places contiguous floats of an element type.
    pub fn floats(&mut self, elem: Elem, values: &[f32]) -> ValueId {
        let bytes: Vec<u8> = values.iter().flat_map(|v| float_bytes(*v, elem)).collect();
        self.put(&Type::mirrored([values.len()]), 0, &bytes)
    }

    /// Places rows of floats, with `gap` elements between pixels.
    pub fn rows(&mut self, dims: &[usize], gap: usize, values: &[f32]) -> ValueId {
        self.rows_of(DType::F32, dims, gap, values)
    }

    /// The same, stored in another type.
    pub fn rows_of(&mut self, dtype: DType, dims: &[usize], gap: usize, values: &[f32]) -> ValueId {
        let (width, ld) = (dims[dims.len() - 1], dims[dims.len() - 1] + gap);
        let pixels = values.len() / width;
        let ty = Type { dtype, ..Type::rows(dims.to_vec()) };
        let id = self.value(ty, ld, pixels * ld * dtype.bytes(), 0);
        let mut spread = vec![77.0; pixels * ld];
        for (to, from) in spread.chunks_mut(ld).zip(values.chunks(width)) {
            to[..width].copy_from_slice(from);
        }
        let bytes: Vec<u8> = spread.iter().flat_map(|v| float_bytes(*v, float(dtype))).collect();
        self.gpu.write(self.at(id), &bytes).expect("fits");
        id
    }

    /// Places floats without a row axis.
    pub fn whole(&mut self, dims: &[usize], values: &[f32]) -> ValueId {
        let ty = Type::new(DType::F32, Space::Mirrored, dims.to_vec());
        let id = self.value(ty, dims.last().copied().unwrap_or(1), values.len() * 4, 0);
        self.write(self.at(id), values);
        id
    }

    /// Allocates doubles.
    pub fn doubles(&mut self, dims: &[usize]) -> ValueId {
        let ty = Type::new(DType::F64, Space::Partial, dims.to_vec());
        self.value(ty, dims[dims.len() - 1], dims.iter().product::<usize>() * 8, 0)
    }

    /// A parameter with its gradient, on two replicas.
    pub fn param(&mut self, weights: &[f32]) -> ParamId {
        let at = self.layout.params.last().map_or(0, |at| {
            let len = self.params[self.layout.params.len() - 1].len();
            at + (len * 4).next_multiple_of(256)
        });
        self.layout.params.push(at);
        let dims = vec![weights.len()];
        self.params.push(ParamSpec {
            name: "w".into(),
            dims,
            trainable: true,
            partition_axis: None,
        });
        (0..2).for_each(|r| self.write(Ptr::new(r, Block::Params, at), weights));
        ParamId(self.layout.params.len() as u32 - 1)
    }

    pub fn at(&self, id: ValueId) -> Ptr {
        let Location::Shared(at) = self.values[id.index()].location else {
            unreachable!("see `value`")
        };
        Ptr::new(0, Block::Shared, at + self.values[id.index()].offset * 4)
    }

    pub fn write(&mut self, at: Ptr, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.gpu.write(at, &bytes).expect("fits");
    }

    pub fn read(&self, at: Ptr, len: usize) -> Vec<f32> {
        self.words(at, Elem::F32, len).into_iter().map(f32::from_bits).collect()
    }

    /// Elements as 32-bit words; 16-bit floats are widened.
    pub fn words(&self, at: Ptr, elem: Elem, len: usize) -> Vec<u32> {
        let mut bytes = vec![0; len * elem.bytes()];
        self.gpu.read(at, &mut bytes).expect("fits");
        match elem {
            Elem::Bf16 => {
                let narrow = bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b));
                narrow.map(|b| u32::from(b) << 16).collect()
            }
            Elem::F16 => {
                let narrow = bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b));
                narrow.map(|b| (from_half(b) as f32).to_bits()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
        }
    }

    /// A value without the gaps between its pixels, which must be unchanged.
    pub fn get(&self, id: ValueId) -> Vec<f32> {
        let v = &self.values[id.index()];
        let (width, rows) = (v.ty.last(), if v.ty.is_rows() { self.rows } else { 1 });
        let len = v.ty.len() * rows / width * v.ld;
        let words = self.words(self.at(id), float(v.ty.dtype), len);
        let all: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
        let gaps = all.chunks(v.ld).flat_map(|p| &p[width..]);
        assert!(gaps.into_iter().all(|g| *g == 77.0), "wrote between the pixels");
        all.chunks(v.ld).flat_map(|p| p[..width].to_vec()).collect()
    }

    /// Lowers once and runs twice: the state after a launch must not affect the next.
    pub fn run(&mut self, lower: impl Fn(&mut LowerCtx<'_>, &mut Tapes) -> Vec<Launch>) {
        let step = self.prepare(lower);
        self.start(step);
        self.start(step);
    }

    /// Lowers and prepares a step.
    pub fn prepare(
        &mut self,
        lower: impl Fn(&mut LowerCtx<'_>, &mut Tapes) -> Vec<Launch>,
    ) -> StepId {
        let (launches, tapes) = self.lower(lower);
        let tasks = launches.into_iter().map(Task::Launch).collect();
        let writes = blocks().into_iter().map(|(at, bytes)| Span::whole(at, bytes)).collect();
        let work = WorkItem { label: "test".into(), instr: 0, tasks, reads: vec![], writes };
        self.gpu.prepare(Plan { work_items: vec![work], tapes }).expect("compiles")
    }

    /// Launches, and the source of their tapes.
    pub fn lower(
        &mut self,
        lower: impl Fn(&mut LowerCtx<'_>, &mut Tapes) -> Vec<Launch>,
    ) -> (Vec<Launch>, String) {
        let mut tapes = Tapes::default();
        let mut cx = LowerCtx {
            values: &self.values,
            params: &self.params,
            layout: &self.layout,
            aliases: &Aliases::default(),
            scratch: &mut self.scratch,
            replica: 0,
            rows: self.rows,
            first_row: self.first_row,
        };
        (lower(&mut cx, &mut tapes), tapes.source())
    }

    pub fn start(&mut self, step: StepId) {
        let i = &self.inputs;
        let mut bytes = [i.seed.to_le_bytes(), i.step.to_le_bytes()].concat();
        for v in i.scalars.iter().chain(&[i.keep, i.weight, i.mean, i.unused]) {
            bytes.extend(v.to_le_bytes());
        }
        bytes.resize(INPUT_BYTES, 0);
        self.gpu.start(step, &bytes).expect("runs");
        for guard in &self.guards {
            let mut now = GUARD.map(|_| 0);
            self.gpu.read(*guard, &mut now).expect("is there");
            assert_eq!(now, GUARD, "wrote past a value");
        }
    }
}

/// Addresses and sizes of the blocks of two replicas.
fn blocks() -> Vec<(Ptr, usize)> {
    let work = [Block::Inputs, Block::Params, Block::Scratch, Block::Counters];
    let small = work.into_iter().chain([Block::Gradients, Block::Accumulated]);
    let slots = [Block::Slot(0), Block::Slot(1)];
    let sizes = small.chain(slots).map(|b| (b, BLOCK_BYTES)).chain([(Block::Shared, ARENA_BYTES)]);
    let both = |(b, bytes): (Block, usize)| [0, 1].map(|r| (Ptr::new(r, b, 0), bytes));
    sizes.flat_map(both).collect()
}

pub(crate) fn to_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.is_nan() { 0x7fc0 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The element type of floats.
fn float(dtype: DType) -> Elem {
    match dtype {
        DType::Bf16 => Elem::Bf16,
        DType::F16 => Elem::F16,
        _ => Elem::F32,
    }
}

/// The bytes of a float in an element type.
pub(crate) fn float_bytes(v: f32, elem: Elem) -> Vec<u8> {
    match elem {
        Elem::Bf16 => to_bf16(v).to_le_bytes().to_vec(),
        Elem::F16 => to_half(f64::from(v)).to_le_bytes().to_vec(),
        _ => v.to_le_bytes().to_vec(),
    }
}
