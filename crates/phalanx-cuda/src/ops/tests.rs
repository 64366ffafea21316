//! Every general op against the reference, in the shapes that take different code paths.

mod lines;

use super::axes::{Loop, push};
use super::case::{Case, numbers};
use super::harness::{Harness, close, from_bf16, to_bf16};
use super::layout::copy_loops;
use super::reduce::{RowSum, column_sums, sum_many};
use crate::launch::{Block, Elem, Ptr};
use phalanx_graph::ops::{FillMode, ReduceKind, SampleGeom};
use phalanx_graph::{DType, Op, Type};

/// The kernels that a case launches.
fn names(case: &Case) -> Vec<String> {
    case.launches().iter().map(|l| l.kernel.clone()).collect()
}

#[phalanx_testing::needs(gxx)]
#[test]
fn constants_and_casts() {
    Case::new(Op::Const { bits: 2.5f64.to_bits(), dims: vec![3, 7] }, 1).check(0.0);
    let ints = vec![0, 1, -5, i32::MAX, i32::MIN, 1 << 24];
    Case::new(Op::Cast { dtype: DType::F32 }, 2).ints(&[3], ints).check(1e-7);
    let floats = vec![1.9, -1.9, f64::NAN, 1e20, -1e20, f64::INFINITY, 0.0, -0.5];
    for shift in [0, 1] {
        let case = Case::new(Op::Cast { dtype: DType::I32 }, 2);
        case.floats(Type::rows([4]), floats.clone()).shifted(shift).check(0.0);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn broadcasts() {
    let to = |dims: &[usize]| Op::Broadcast { dims: dims.to_vec() };
    for shift in [0, 1] {
        Case::new(to(&[3, 4, 8]), 2).rows(&[1, 1, 8]).shifted(shift).check(0.0);
        Case::new(to(&[3, 4, 8]), 2).rows(&[8]).shifted(shift).check(0.0);
    }
    Case::new(to(&[3, 4, 5]), 2).rows(&[3, 1, 5]).check(0.0);
    Case::new(to(&[3, 4, 5]), 2).rows(&[4, 1]).check(0.0);
    Case::new(to(&[7]), 3).rows(&[1]).check(0.0);
    let whole = Type::mirrored([1, 5]);
    Case::new(to(&[6, 5]), 1).floats(whole, numbers(5, 1)).check(0.0);
}

fn reduce(kind: ReduceKind, axes: &[usize]) -> Op {
    Op::Reduce { kind, axes: axes.to_vec() }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn reductions() {
    let sum = |axes: &[usize], rows| Case::new(reduce(ReduceKind::Sum, axes), rows);
    let cases = [
        (sum(&[1], 5).rows(&[3, 10]), "reduce_lines<false, float, float, 16>"),
        (sum(&[0], 300).rows(&[1]), "reduce_lines<false, float, float, 1>"),
        (sum(&[0], 2).rows(&[5000]), "reduce_columns<false, float, float, 1, 1>"),
        (sum(&[0, 1], 2).rows(&[7, 7, 64]), "reduce_columns<false, float, float, 4, 16>"),
        (sum(&[0, 1], 2).rows(&[30, 40, 3]), "reduce_columns<false, float, float, 1, 4>"),
        (sum(&[0], 9).rows(&[6, 5]), "reduce_each<false, float, float, u32>"),
        (
            sum(&[0, 2], 3).rows(&[4, 5, 6]),
            "reduce_axes<false, float, float, u32, Axes<1, 5>, Axes<120, 6>, Axes<1, 6>, Axes<30, 1>>",
        ),
    ];
    for (case, name) in cases {
        assert_eq!(names(&case), [name]);
        case.check(2e-6);
    }
    for dims in [&[3, 40][..], &[600, 17], &[40, 3, 7], &[0, 1, 4]] {
        for axes in [&[0][..], &[1], &[0, 1]] {
            sum(axes, 3).rows(dims).check(2e-6);
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn maxima_propagate_nan() {
    for (dims, axes) in
        [(&[9, 10][..], &[1][..]), (&[40, 64], &[0]), (&[3, 5], &[0]), (&[4, 3, 5], &[0, 2])]
    {
        let n = 4 * dims.iter().product::<usize>();
        let mut x = numbers(n, 3);
        x[n / 2 + 1] = f64::NAN;
        x[3] = f64::INFINITY;
        x[n - 1] = f64::NEG_INFINITY;
        let case = Case::new(reduce(ReduceKind::Max, axes), 4);
        case.floats(Type::rows(dims), x).check(0.0);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn sums_over_rows() {
    let case = |rows, dims: &[usize]| Case::new(Op::SumRows, rows).rows(dims);
    assert_eq!(names(&case(64, &[1000])), ["reduce_columns<false, float, float, 4, 32>"]);
    assert_eq!(case(64, &[1000]).launches()[0].grid, [8, 1, 1]);
    // Enough rows for several blocks: partial sums and a last block.
    assert_eq!(case(3000, &[20]).launches()[0].grid, [12, 1, 1]);
    for (rows, dims) in [
        (64, &[100][..]),
        (3000, &[20]),
        (3000, &[3]),
        (5000, &[]),
        (1500, &[2, 130]),
        (3, &[50]),
        (70, &[7, 5]),
    ] {
        case(rows, dims).check(3e-6);
        case(rows, dims).shifted(1).check(3e-6);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn transposes() {
    let case = |perm: &[usize], dims: &[usize]| {
        Case::new(Op::Transpose { perm: perm.to_vec() }, 2).rows(dims)
    };
    for (perm, dims) in [
        (&[1, 0][..], &[40, 33][..]),
        (&[2, 0, 1], &[5, 7, 3]),
        (&[2, 0, 1], &[4, 5, 37]),
        (&[3, 1, 0, 2], &[17, 4, 5, 18]),
        (&[1, 0, 2], &[3, 4, 8]),
        (&[0, 1], &[6, 5]),
        (&[], &[]),
    ] {
        case(perm, dims).check(0.0);
        case(perm, dims).shifted(1).check(0.0);
    }
    let tiles = names(&case(&[1, 0], &[40, 33]));
    assert_eq!(tiles, ["transpose_tiles<u32, u32, Axes<1>, Axes<1320>, Axes<1320>>"]);
    let packs = names(&case(&[1, 0, 2], &[3, 4, 8]));
    let want =
        "copy_axes<uint4, uint4, u32, Axes<1, 4, 3, 2>, Axes<24, 2, 8, 1>, Axes<24, 6, 2, 1>>";
    assert_eq!(packs, [want]);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn slices_and_concatenation() {
    for shift in [0, 1] {
        for (axis, start, len) in [(0, 1, 2), (1, 0, 3), (2, 4, 4), (2, 1, 3)] {
            let op = Op::Slice { axis, start, len };
            Case::new(op, 2).rows(&[3, 4, 8]).shifted(shift).check(0.0);
        }
        let join = |axis| Case::new(Op::Concat { axis }, 2).shifted(shift);
        join(0).rows(&[3, 4, 8]).rows(&[1, 4, 8]).rows(&[2, 4, 8]).check(0.0);
        join(1).rows(&[3, 1, 5]).rows(&[3, 2, 5]).check(0.0);
        join(0).ints(&[2], vec![1, 2, 3, 1 << 30]).ints(&[1], vec![5, 6]).check(0.0);
    }
    // Wide words only if the start is aligned to them.
    let words = |start| {
        let op = Op::Slice { axis: 1, start, len: 4 };
        let name = names(&Case::new(op, 2).rows(&[6, 8])).remove(0);
        name.split(',').next().map(str::to_owned)
    };
    assert_eq!(words(4).as_deref(), Some("copy_pixels<uint4"));
    assert_eq!(words(2).as_deref(), Some("copy_pixels<u64"));
    assert_eq!(words(1).as_deref(), Some("copy_pixels<u32"));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn pads() {
    for (dims, before, after) in [
        (&[5, 6, 8][..], &[1, 2, 0][..], &[1, 1, 0][..]),
        (&[5, 6, 3], &[0, 1, 0], &[1, 0, 0]),
        (&[2, 3, 2], &[1, 0, 1], &[0, 2, 3]),
        (&[4], &[0], &[0]),
        (&[4], &[3], &[0]),
    ] {
        let op = Op::Pad { before: before.to_vec(), after: after.to_vec() };
        for shift in [0, 1] {
            Case::new(op.clone(), 2).rows(dims).shifted(shift).check(0.0);
        }
    }
    let op = Op::Pad { before: vec![0, 3], after: vec![0, 0] };
    Case::new(op, 1).floats(Type::mirrored([2, 3]), numbers(6, 1)).check(0.0);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn upsampling_and_its_gradient() {
    for (size, bilinear) in [([2, 2], false), ([2, 3], true), ([1, 4], true), ([3, 2], false)] {
        for c in [5, 8] {
            let op = Op::Upsample { size, bilinear };
            Case::new(op, 2).rows(&[3, 4, c]).check(1e-6);
            let op = Op::UpsampleGrad { size, bilinear };
            Case::new(op, 2).rows(&[3 * size[0], 4 * size[1], c]).check(2e-6);
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn affine_sampling_and_its_gradient() {
    let maps = [
        [0.75, 0.25, -1.25, -0.5, 1.125, 0.75],
        [1.0, 0.0, -2.0, 0.0, 1.0, 1.0],
        [1.0e30, 0.0, -2.0, 0.0, -1.0, 9.0],
    ];
    for fill in [FillMode::Constant, FillMode::Nearest, FillMode::Reflect, FillMode::Wrap] {
        for bilinear in [false, true] {
            let geom = SampleGeom {
                input: [5, 4, 3],
                output: [3, 6],
                fill,
                fill_value: 0.5.into(),
                bilinear,
            };
            let matrices = || maps.concat();
            let case = Case::new(Op::AffineSample(geom), 3).rows(&[5, 4, 3]);
            case.floats(Type::rows([6]), matrices()).check(1e-6);
            let case = Case::new(Op::AffineSampleGrad(geom), 3).rows(&[3, 6, 3]);
            case.floats(Type::rows([6]), matrices()).check(2e-6);
        }
    }
    // More pixels than a block has threads.
    let geom = SampleGeom {
        input: [24, 20, 1],
        output: [18, 30],
        fill: FillMode::Reflect,
        fill_value: 0.0.into(),
        bilinear: true,
    };
    let case = Case::new(Op::AffineSampleGrad(geom), 3).rows(&[18, 30, 1]);
    case.floats(Type::rows([6]), maps.concat()).check(2e-6);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn softmax_and_crossentropy() {
    for (rows, n) in [(5, 1), (7, 10), (3, 100), (3, 1003), (2, 5000), (2100, 150)] {
        let spread = |v: &f64| f64::from((v * 20.0 + 60.0) as f32);
        let logits: Vec<f64> = numbers(rows * n, 1).iter().map(spread).collect();
        let labels: Vec<i32> = (0..rows).map(|r| (r * 7 % (n + 1)) as i32 - r as i32 % 2).collect();
        let logits = |op| Case::new(op, rows).floats(Type::rows([n]), logits.clone());
        logits(Op::Softmax).check(1e-6);
        logits(Op::LogSoftmax).check(1e-6);
        Case::new(Op::SoftmaxGrad, rows).rows(&[n]).rows(&[n]).check(2e-6);
        logits(Op::SparseXent).ints(&[], labels.clone()).check(1e-6);
        logits(Op::SparseXentGrad).ints(&[], labels).rows(&[]).check(1e-6);
    }
    let wild = vec![f64::NAN, 0.0, 1.0, f64::NEG_INFINITY, 2.0, 3.0];
    Case::new(Op::Softmax, 2).floats(Type::rows([3]), wild).check(1e-6);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn embeddings() {
    for width in [1, 19, 64, 132] {
        let index = vec![3, 0, -1, 3, 5, 4, 3, 0];
        let table = Type::mirrored([5, width]);
        let gather = Case::new(Op::Gather, 4).floats(table, numbers(5 * width, 1));
        gather.ints(&[2], index.clone()).check(0.0);
        let grad = |vocab, rows| Case::new(Op::GatherGrad { vocab }, rows);
        grad(5, 4).ints(&[2], index).rows(&[2, width]).check(1e-6);
        // Some rows often, some seldom, some never.
        let index: Vec<i32> = (0..700).map(|i| if i % 3 == 0 { 7 } else { i * i % 41 }).collect();
        grad(50, 100).ints(&[7], index).rows(&[7, width]).check(1e-5);
    }
    let index: Vec<i32> = (0..64).map(|i| i * 91 % 2999).collect();
    Case::new(Op::GatherGrad { vocab: 3000 }, 64).ints(&[], index).rows(&[4]).check(1e-6);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn integer_operands_and_results() {
    let labels = vec![2, 0, -1, 7, 4, 3];
    Case::new(Op::OneHot { depth: 5 }, 3).ints(&[2], labels.clone()).check(0.0);
    for n in [5, 8, 100] {
        let mut scores = numbers(6 * n, 2);
        scores[1] = scores[3];
        scores[n + 2] = f64::NAN;
        scores[2 * n] = f64::NAN;
        scores[3 * n + 1] = f64::INFINITY;
        (4 * n..5 * n).for_each(|i| scores[i] = f64::NEG_INFINITY);
        let scores = |op| Case::new(op, 6).floats(Type::rows([n]), scores.clone());
        scores(Op::ArgMax).check(0.0);
        for k in [1, 3, 1000] {
            scores(Op::InTopK { k }).ints(&[], labels.clone()).check(0.0);
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn counts_above_thresholds() {
    for (rows, n) in [(7, 2), (40, 200), (2500, 5), (30, 300)] {
        let mut scores: Vec<f64> = numbers(rows, 1).iter().map(|v| (v + 1.0) / 2.0).collect();
        scores[0] = 0.5;
        scores[1] = f64::NAN;
        scores[2] = f64::INFINITY;
        let labels = numbers(rows, 2).iter().map(|v| f64::from(*v > 0.2)).collect();
        let case = Case::new(Op::ThresholdCounts { n }, rows).floats(Type::rows([]), scores);
        case.floats(Type::rows([]), labels).rows(&[]).check(2e-6);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn random_numbers() {
    for dims in [&[203][..], &[4, 5, 32], &[]] {
        Case::new(Op::Uniform { key: 5, dims: dims.to_vec() }, 3).check(0.0);
    }
    Case::new(Op::RowIndex, 300).check(0.0);
    Case::new(Op::RowIndex, 3).starting_at(1000).check(0.0);
    for (dims, noise) in [
        (&[203][..], &[203][..]),
        (&[4, 5, 32], &[4, 5, 32]),
        (&[4, 5, 33], &[1, 1, 33]),
        (&[4, 5, 7], &[4, 1, 1]),
        (&[4, 5, 7], &[4, 1, 7]),
        (&[3], &[1]),
        (&[], &[]),
    ] {
        for rate in [0.0, 0.25, 0.3, 1.0] {
            let op = Op::Dropout { rate: rate.into(), key: 5, noise: noise.to_vec() };
            for shift in [0, 1] {
                Case::new(op.clone(), 3).rows(dims).shifted(shift).check(1e-6);
            }
        }
    }
    // Rows that are not the first of the batch.
    let op = Op::Dropout { rate: 0.5.into(), key: 1, noise: vec![32] };
    let shared = Op::Dropout { rate: 0.5.into(), key: 1, noise: vec![1, 8] };
    Case::new(Op::Uniform { key: 5, dims: vec![7] }, 3).starting_at(1000).check(0.0);
    Case::new(op.clone(), 3).rows(&[32]).starting_at(70).check(1e-6);
    Case::new(shared, 3).rows(&[4, 8]).starting_at(70).check(1e-6);
    let case = |shift| Case::new(op.clone(), 3).rows(&[32]).shifted(shift);
    assert_eq!(names(&case(0)), ["dropout<float, float, 4, u32>"]);
    assert_eq!(names(&case(1)), ["dropout<float, float, 1, u32>"]);
}

/// Kernels with 16-bit operands: compared with the reference on the same numbers.
#[phalanx_testing::needs(gxx)]
#[test]
fn sixteen_bit_floats() {
    let sum = |axes: &[usize]| Op::Reduce { kind: ReduceKind::Sum, axes: axes.to_vec() };
    let labels = vec![2, 0, -1, 7];
    let cases = [
        Case::new(sum(&[1]), 4).rows(&[3, 10]),
        Case::new(sum(&[0]), 4).rows(&[600, 8]),
        Case::new(sum(&[0, 2]), 4).rows(&[3, 5, 4]),
        Case::new(Op::SumRows, 3000).rows(&[16]),
        Case::new(Op::Softmax, 4).rows(&[10]),
        Case::new(Op::SoftmaxGrad, 4).rows(&[40]).rows(&[40]),
        Case::new(Op::LogSoftmax, 4).rows(&[300]),
        Case::new(Op::SparseXent, 4).rows(&[10]).ints(&[], labels.clone()),
        Case::new(Op::SparseXentGrad, 4).rows(&[10]).ints(&[], labels.clone()).rows(&[]),
        Case::new(Op::Upsample { size: [2, 3], bilinear: true }, 2).rows(&[3, 4, 8]),
        Case::new(Op::UpsampleGrad { size: [2, 2], bilinear: false }, 2).rows(&[4, 4, 5]),
        Case::new(Op::InTopK { k: 2 }, 4).rows(&[10]).ints(&[], labels.clone()),
        Case::new(Op::ArgMax, 4).rows(&[10]),
        Case::new(Op::OneHot { depth: 5 }, 4).ints(&[], labels),
        Case::new(Op::Dropout { rate: 0.5.into(), key: 3, noise: vec![32] }, 4).rows(&[32]),
        Case::new(Op::Dropout { rate: 0.5.into(), key: 3, noise: vec![31] }, 4).rows(&[31]),
        Case::new(Op::Uniform { key: 3, dims: vec![30] }, 4),
    ];
    for case in cases {
        case.narrow().check(0.005);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn copies_between_strides_and_types() {
    for (x, y, width, ldx, ldy) in [
        (Elem::F32, Elem::F32, 8, 12, 20),
        (Elem::F32, Elem::F32, 3, 5, 3),
        (Elem::F32, Elem::Bf16, 8, 8, 12),
        (Elem::Bf16, Elem::F32, 8, 16, 8),
        (Elem::F32, Elem::Bf16, 5, 7, 5),
        (Elem::Bf16, Elem::Bf16, 8, 8, 24),
        (Elem::Bf16, Elem::Bf16, 3, 3, 4),
    ] {
        let (pixels, mut loops) = (50, vec![]);
        push(&mut loops, pixels, ldx, ldy);
        push(&mut loops, width, 1, 1);
        let values: Vec<f32> = numbers(pixels * ldx, 1).iter().map(|v| *v as f32).collect();
        let mut harness = Harness::new(Some(3), 1);
        let (from, to) = (harness.floats(x, &values), harness.floats(y, &vec![0.0; pixels * ldy]));
        let (from, to) = (harness.at(from), harness.at(to));
        harness.run(|_, _| copy_loops(loops.clone(), (from, x), (to, y)));
        let result = harness.words(to, y, pixels * ldy).into_iter().map(f32::from_bits);
        let result: Vec<f32> = result.collect();
        for p in 0..pixels {
            for c in 0..width {
                let value = values[p * ldx + c];
                let narrow = from_bf16(to_bf16(value));
                let want = if [x, y].contains(&Elem::Bf16) { narrow } else { value };
                assert_eq!(result[p * ldy + c], want, "{x:?} {y:?} {width} at {p}, {c}");
            }
        }
    }
    let names = |width, ldx| {
        let loops =
            vec![Loop { count: 4, src: ldx, dst: 8 }, Loop { count: width, src: 1, dst: 1 }];
        let at = Ptr::new(0, Block::Arena, 0);
        copy_loops(loops, (at, Elem::F32), (at, Elem::Bf16))[0].kernel.clone()
    };
    assert_eq!(names(8, 8), "copy_pixels<Pack<float, 4>, Pack<bf16, 4>, u32>");
    assert_eq!(names(8, 9), "copy_pixels<float, bf16, u32>");
}

#[phalanx_testing::needs(gxx)]
#[test]
fn sums_of_columns() {
    for (elem, pixels, c, ld) in [
        (Elem::F32, 5000, 32, 48),
        (Elem::Bf16, 5000, 32, 48),
        (Elem::F32, 300, 7, 7),
        (Elem::Bf16, 20, 3, 5),
    ] {
        let values: Vec<f32> = numbers(pixels * ld, 1).iter().map(|v| *v as f32).collect();
        let mut harness = Harness::new(Some(3), 1);
        let (x, y) = (harness.floats(elem, &values), harness.floats(Elem::F32, &vec![0.0; c]));
        let (x, y) = ((harness.at(x), elem), harness.at(y));
        harness.run(|cx, _| vec![column_sums(cx, x, [pixels, c, ld], y)]);
        let result = harness.read(y, c);
        for (k, got) in result.iter().enumerate() {
            let value = |p: usize| match elem {
                Elem::Bf16 => f64::from(from_bf16(to_bf16(values[p * ld + k]))),
                _ => f64::from(values[p * ld + k]),
            };
            let want: f64 = (0..pixels).map(value).sum();
            assert!((f64::from(*got) - want).abs() < 1e-4, "{elem:?} {c} at {k}: {got} {want}");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn many_sums_over_rows() {
    let mut harness = Harness::new(Some(3), 1);
    let (mut sums, mut wanted) = (vec![], vec![]);
    for (rows, columns, ld) in [(300, 40, 40), (500, 1, 1), (7, 3, 5), (1, 16, 16), (64, 257, 300)]
    {
        let values: Vec<f32> = numbers(rows * ld, 1).iter().map(|v| *v as f32).collect();
        let (x, y) =
            (harness.floats(Elem::F32, &values), harness.floats(Elem::F32, &vec![9.0; columns]));
        sums.push(RowSum { from: harness.at(x), to: harness.at(y), rows, columns, ld });
        let column = |c: usize| (0..rows).map(|r| f64::from(values[r * ld + c])).sum();
        wanted.push((0..columns).map(column).collect::<Vec<f64>>());
    }
    harness.run(|_, _| vec![sum_many(&sums)]);
    for (sum, want) in sums.iter().zip(&wanted) {
        close(&format!("{sum:?}"), &harness.read(sum.to, sum.columns), want, 1e-5);
    }
}
