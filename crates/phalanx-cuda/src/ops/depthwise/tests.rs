//! The three passes against the reference.

use super::*;
use crate::lowering_context::LowerCtx;
use crate::ops::harness::{Harness, SEEDS, close, numbers};
use crate::ops::reduce::sum_many;
use phalanx_cpu::reference::{Bindings, Context, Data, Value, evaluate};
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::ValueId;
use phalanx_graph::{DType, Graph, Op, Padding, Type, Window};

/// A convolution and how its images are stored.
#[derive(Clone, Copy, Debug)]
struct Shape {
    geom: ConvGeom,
    rows: usize,
    /// Elements between pixels.
    gap: usize,
    dtype: DType,
}

fn shape(input: [usize; 3], kernel: [usize; 2], stride: [usize; 2], padding: Padding) -> Shape {
    let window = Window { groups: input[2], ..Window::new(kernel, stride, padding) };
    let geom = ConvGeom::new(input, input[2], window).expect("fits");
    Shape { geom, rows: 2, gap: 0, dtype: DType::F32 }
}

impl Shape {
    /// The same with a dilated window, without padding or with that of the output's size.
    fn dilated(mut self, dilation: [usize; 2], padding: Padding) -> Shape {
        let g = &self.geom;
        let (kernel, stride, groups) = (g.kernel, g.stride, g.groups);
        let window = Window { kernel, stride, dilation, padding, groups };
        self.geom = ConvGeom::new(g.input, g.output[2], window).expect("fits");
        self
    }

    fn multiplied(mut self, multiplier: usize) -> Shape {
        self.geom.output[2] *= multiplier;
        self
    }

    fn rows(self, rows: usize) -> Shape {
        Shape { rows, ..self }
    }

    fn gap(self, gap: usize) -> Shape {
        Shape { gap, ..self }
    }

    fn of(self, dtype: DType) -> Shape {
        Shape { dtype, ..self }
    }

    /// Pseudo-random numbers that the images' type represents.
    fn images(&self, dims: [usize; 3], seed: u64) -> Vec<f32> {
        let n = self.rows * dims.iter().product::<usize>();
        let bits = match self.dtype {
            DType::Bf16 => 7,
            DType::F16 => 10,
            _ => 23,
        };
        let unit = (1 << bits) as f32;
        numbers(n, seed).iter().map(|v| (v * unit).round() / unit).collect()
    }

    /// Relative errors of stored images.
    fn tolerance(&self) -> f64 {
        match self.dtype {
            DType::Bf16 => 4e-3,
            DType::F16 => 5e-4,
            _ => 4e-6,
        }
    }
}

/// The operands of all passes.
struct Operands {
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

impl Operands {
    fn new(s: &Shape) -> Operands {
        let g = &s.geom;
        let weights = g.kernel_dims().iter().product();
        Operands {
            x: s.images(g.input, 1),
            w: numbers(weights, 2),
            bias: numbers(g.output[2], 3),
            dy: s.images(g.output, 4),
        }
    }

    /// `y`, `relu(y + bias)`, `dx` and `dw` of the reference.
    fn reference(&self, s: &Shape) -> [Vec<f64>; 4] {
        let (geom, mut g) = (s.geom, Graph::new());
        let mut feeds = vec![];
        let mut feed = |name: &str, ty: Type, values: &[f32]| {
            let lead = if ty.is_rows() { vec![s.rows] } else { vec![] };
            let wide = values.iter().map(|v| f64::from(*v)).collect();
            feeds.push(Value::float([lead, ty.dims.clone()].concat(), wide));
            let id = g.add_feed(name, ty);
            g.feed(id)
        };
        let x = feed("x", Type::rows(geom.input), &self.x);
        let w = feed("w", Type::mirrored(geom.kernel_dims()), &self.w);
        let bias = feed("bias", Type::mirrored([geom.output[2]]), &self.bias);
        let dy = feed("dy", Type::rows(geom.output), &self.dy);
        let mut push = |op: Op, x: &[_]| g.push(op, x).expect("fits");
        let nodes = [
            push(Op::Conv(geom, Epilogue::default()), &[x, w]),
            push(Op::Conv(geom, Epilogue { bias: true, relu: true }), &[x, w, bias]),
            push(Op::ConvGradInput(geom), &[dy, w]),
            push(Op::ConvGradKernel(geom), &[x, dy]),
        ];
        let context = Context { rows: s.rows, seed: 0, step: 0 };
        let results = evaluate(&g, &nodes, &Bindings { feeds, params: vec![] }, &context);
        let floats = |v: Value| match v.data {
            Data::Float(v) => v,
            Data::Int(_) => unreachable!("convolutions are floats"),
        };
        let all: Vec<Vec<f64>> = results.into_iter().map(floats).collect();
        all.try_into().expect("four results")
    }

    /// The same on an emulated GPU.
    fn emulated(&self, s: &Shape, seed: Option<u64>) -> [Vec<f32>; 4] {
        let (g, mut h) = (&s.geom, Harness::new(seed, s.rows));
        let mut images =
            |dims: [usize; 3], values: &[f32]| h.rows_of(s.dtype, &dims, s.gap, values);
        let (x, dy) = (images(g.input, &self.x), images(g.output, &self.dy));
        let [y, activated] = [(); 2].map(|()| images(g.output, &vec![9.0; self.dy.len()]));
        let dx = images(g.input, &vec![9.0; self.x.len()]);
        let w = h.whole(&g.kernel_dims(), &self.w);
        let dw = h.whole(&g.kernel_dims(), &vec![9.0; self.w.len()]);
        let bias = h.whole(&[g.output[2]], &self.bias);
        let bias = h.at(bias);
        let conv = |cx: &LowerCtx<'_>, [x, filters, y]: [ValueId; 3]| {
            let [x, filters, y] = [x, filters, y].map(|id| cx.operand(id));
            Depthwise { geom: s.geom, rows: s.rows, x, filters, y }
        };
        h.run(|cx, _| vec![conv(cx, [x, w, y]).forward(None, false)]);
        h.run(|cx, _| vec![conv(cx, [x, w, activated]).forward(Some(bias), true)]);
        h.run(|cx, _| vec![conv(cx, [dx, w, dy]).grad_input()]);
        h.run(|cx, _| {
            let (mut launches, _, sums) = conv(cx, [x, dw, dy]).grad_filter(cx.scratch);
            launches.extend((!sums.is_empty()).then(|| sum_many(&sums)));
            launches
        });
        [y, activated, dx, dw].map(|id| h.get(id))
    }
}

/// Fails unless all passes match the reference, with equal bits in every order.
fn check(s: Shape) {
    let operands = Operands::new(&s);
    let want = operands.reference(&s);
    let runs = SEEDS.map(|seed| operands.emulated(&s, seed));
    let bits =
        |run: &[Vec<f32>; 4]| -> Vec<u32> { run.iter().flatten().map(|v| v.to_bits()).collect() };
    assert!(bits(&runs[0]) == bits(&runs[1]), "{s:?}: two orders differ");
    for (i, what) in ["y", "relu(y + bias)", "dx", "dw"].into_iter().enumerate() {
        let tolerance = if i < 3 { s.tolerance() } else { 4e-6 };
        close(&format!("{what} of {s:?}"), &runs[0][i], &want[i], tolerance);
    }
}

const SAME: Padding = Padding::Same;
const VALID: Padding = Padding::Valid;
const TYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

#[phalanx_testing::needs(gxx)]
#[test]
fn windows_of_three() {
    for dtype in TYPES {
        check(shape([9, 11, 8], [3, 3], [1, 1], SAME).of(dtype));
        check(shape([9, 12, 24], [3, 3], [2, 2], SAME).of(dtype));
    }
    check(shape([7, 5, 3], [3, 3], [1, 1], VALID).rows(1));
    check(shape([10, 7, 100], [3, 3], [2, 2], VALID).of(DType::F16));
    check(shape([3, 3, 100], [3, 3], [1, 1], VALID).of(DType::Bf16));
    check(shape([21, 2, 3], [3, 3], [2, 2], SAME).of(DType::Bf16));
    check(shape([7, 7, 8], [3, 3], [1, 1], Padding::Causal));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn windows_of_five_and_seven() {
    for dtype in TYPES {
        check(shape([9, 7, 8], [5, 5], [1, 1], SAME).of(dtype));
    }
    check(shape([11, 9, 24], [5, 5], [2, 2], SAME));
    check(shape([6, 11, 3], [5, 5], [2, 2], VALID).of(DType::Bf16));
    check(shape([8, 9, 3], [7, 7], [1, 1], SAME));
    check(shape([7, 9, 8], [7, 7], [1, 1], VALID).of(DType::Bf16));
    check(shape([9, 8, 24], [7, 7], [2, 2], SAME).of(DType::F16));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn windows_with_unequal_sides() {
    check(shape([1, 9, 100], [1, 3], [1, 1], SAME).of(DType::Bf16));
    check(shape([5, 6, 8], [1, 3], [1, 2], VALID));
    check(shape([9, 1, 8], [3, 1], [2, 1], SAME));
    check(shape([7, 8, 3], [2, 3], [3, 1], SAME));
    // Pixels between the windows.
    check(shape([9, 10, 8], [2, 2], [3, 4], VALID));
    check(shape([5, 5, 4], [1, 1], [2, 2], SAME));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn dilated_windows() {
    let same = |input, dilation| shape(input, [3, 3], [1, 1], SAME).dilated(dilation, SAME);
    check(same([9, 11, 8], [2, 2]));
    check(same([8, 7, 24], [2, 2]).of(DType::Bf16));
    check(same([7, 8, 3], [1, 3]));
    check(shape([11, 10, 8], [3, 3], [1, 1], VALID).dilated([3, 2], VALID));
    // More phases than pixels.
    check(same([3, 2, 4], [5, 4]));
    // One axis dilated, the other with a stride.
    check(shape([9, 8, 8], [3, 3], [2, 1], SAME).dilated([1, 2], SAME));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn several_filters_for_each_channel() {
    check(shape([5, 6, 3], [3, 3], [1, 1], SAME).multiplied(2));
    check(shape([5, 7, 8], [3, 3], [2, 2], SAME).multiplied(2).of(DType::Bf16));
    check(shape([4, 4, 2], [1, 3], [1, 1], VALID).multiplied(3).of(DType::F16));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn windows_that_no_strip_follows() {
    let both = shape([11, 10, 8], [3, 3], [2, 2], VALID).dilated([2, 2], VALID);
    check(both);
    check(both.multiplied(2).of(DType::Bf16));
    check(shape([12, 13, 4], [9, 11], [1, 1], SAME));
    check(shape([17, 12, 3], [12, 12], [6, 6], SAME).of(DType::Bf16));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn pixels_apart_from_each_other() {
    check(shape([5, 6, 8], [3, 3], [1, 1], SAME).gap(4));
    check(shape([5, 6, 8], [3, 3], [2, 2], SAME).gap(3).of(DType::Bf16));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn many_strips() {
    // Several blocks for a tile of channels.
    check(shape([10, 9, 8], [3, 3], [1, 1], SAME).rows(30));
    // More strips than threads that sum them.
    check(shape([1, 2, 2049], [1, 3], [1, 1], SAME).rows(40).of(DType::Bf16));
}

fn names(s: &Shape) -> [String; 3] {
    let operand = |dims: Vec<usize>, dtype: DType, rows: usize| Operand {
        ptr: Ptr::new(0, crate::launch::Block::Arena, 0),
        elem: if dtype == DType::F32 { Elem::F32 } else { Elem::Bf16 },
        ld: dims[dims.len() - 1],
        len: rows * dims.iter().product::<usize>(),
        dims,
    };
    let conv = Depthwise {
        geom: s.geom,
        rows: s.rows,
        x: operand(s.geom.input.to_vec(), s.dtype, s.rows),
        filters: operand(s.geom.kernel_dims().to_vec(), DType::F32, 1),
        y: operand(s.geom.output.to_vec(), s.dtype, s.rows),
    };
    let (launches, ..) = conv.grad_filter(&mut Scratch::new(0));
    [conv.forward(None, false), conv.grad_input(), launches[0].clone()].map(|l| l.kernel)
}

#[test]
fn usual_windows_are_followed_by_wide_vectors() {
    // Channels of a thread in the three passes.
    for (dtype, kernel, vectors) in [
        (DType::Bf16, 3, [4, 4, 4]),
        (DType::F32, 3, [2, 2, 2]),
        (DType::Bf16, 5, [2, 2, 2]),
        (DType::F32, 5, [2, 2, 1]),
    ] {
        let elem = if dtype == DType::F32 { "float" } else { "bf16" };
        let s = shape([56, 56, 96], [kernel; 2], [1, 1], SAME).of(dtype);
        let want = ["forward", "grad_input", "grad_filter"]
            .iter()
            .zip(vectors)
            .map(|(pass, v)| format!("depthwise_{pass}<{elem}, {v}, 4, {kernel}, {kernel}, 1, 1"));
        for (name, want) in names(&s).iter().zip(want) {
            assert!(name.starts_with(&want), "{name}, wanted {want}");
        }
    }
}

#[test]
fn tiles_cover_all_channels_and_lines() {
    for channels in [1, 3, 24, 83, 960, 2049] {
        for lines in [1, 7, 8, 9, 112, 1000] {
            let strip = Strip { vector: if channels % 4 == 0 { 4 } else { 1 }, columns: 4 };
            for rows in [1, 64, 1024] {
                let t = Tiling::new(
                    rows,
                    &Lattice { size: [lines, 13], phases: [2, 1] },
                    strip,
                    channels,
                );
                assert!(t.tile * t.tiles * strip.vector >= channels && t.tile <= MAX_TILE);
                assert_eq!((t.counts[1], t.strips), (4, rows * t.counts[0] * 4));
                assert!(t.counts[0] / 2 * t.band >= lines);
                assert!((1..=MAX_PARTS).contains(&t.parts()) && t.parts() <= t.blocks());
            }
        }
    }
}
