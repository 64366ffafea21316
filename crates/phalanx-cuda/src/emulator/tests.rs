//! Hand-written plans: correct ones run, and errors are detected.

use super::*;
use crate::device::{GpuDevice, Plan};
use crate::fallback;
use crate::launch::{Arg, Block, Elem, Launch, Ptr, Source, Span, Word};
use crate::work_item::{Batch, Conv, Gemm, Images, Matrix, Pass, Task, WorkItem};
use phalanx_graph::{ConvGeom, Depth, Padding, Window};

const BYTES: usize = 4096;
const X: Ptr = Ptr { replica: 0, block: Block::Params, offset: 0 };
const Y: Ptr = Ptr { replica: 0, block: Block::Arena, offset: 0 };
const SCRATCH: Ptr = Ptr { replica: 0, block: Block::Scratch, offset: 0 };
const COUNTERS: Ptr = Ptr { replica: 0, block: Block::Counters, offset: 0 };

/// Program order, and two random orders.
const SEEDS: [Option<u64>; 3] = [None, Some(1), Some(2)];

/// A GPU with some memory.
fn gpu(seed: Option<u64>) -> EmulatedGpu {
    let mut gpu = EmulatedGpu::new(seed);
    let work = [Block::Arena, Block::Scratch, Block::Counters];
    for block in work.into_iter().chain([Block::Inputs, Block::Params, Block::Fetches]) {
        gpu.reserve(0, block, BYTES, "a test").expect("memory");
    }
    gpu
}

fn launch(kernel: &str, blocks: u32, threads: u32) -> Launch {
    Launch { source: Source::Tapes, ..Launch::blocks("", kernel, blocks as usize, threads) }
}

fn span(at: Ptr) -> Span {
    Span::whole(at, BYTES - at.offset)
}

/// A work item that reads `X` and writes `Y`.
fn work(task: Task) -> WorkItem {
    WorkItem {
        label: "test".into(),
        instr: 0,
        tasks: vec![task],
        reads: vec![span(X)],
        writes: vec![span(Y)],
    }
}

fn plan(work: Vec<WorkItem>) -> Plan {
    Plan { work_items: work, tapes: include_str!("tests.cu").into() }
}

fn run(gpu: &mut EmulatedGpu, task: Task) -> Result<(), ExecError> {
    let step = gpu.prepare(plan(vec![work(task)]))?;
    gpu.start(step, &[])
}

fn message(gpu: &mut EmulatedGpu, task: Task) -> String {
    run(gpu, task).expect_err("is found").to_string()
}

fn set(gpu: &mut EmulatedGpu, at: Ptr, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    gpu.write(at, &bytes).expect("fits");
}

fn get(gpu: &EmulatedGpu, at: Ptr, len: usize) -> Vec<f32> {
    let mut bytes = vec![0; len * 4];
    gpu.read(at, &mut bytes).expect("fits");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
}

fn counted(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[phalanx_testing::needs(gxx)]
#[test]
fn a_block_sums_its_elements() {
    for seed in SEEDS {
        let mut gpu = gpu(seed);
        set(&mut gpu, X, &counted(1000));
        for threads in [32, 96, 256] {
            let l = launch("block_sum<float>", 1, threads).arg(X).arg(Y).arg(1000usize);
            run(&mut gpu, Task::Launch(l)).expect("runs");
            assert_eq!(get(&gpu, Y, 1), [499_500.0], "{seed:?}, {threads} threads");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn the_last_block_sums_the_partial_sums() {
    for seed in SEEDS {
        let mut gpu = gpu(seed);
        set(&mut gpu, X, &counted(1000));
        let mut l = launch("sum_of_all", 7, 64).arg(X).arg(SCRATCH).arg(COUNTERS);
        l.shared = 64 * 4;
        let l = l.arg(Y).arg(1000usize);
        let step = gpu.prepare(plan(vec![work(Task::Launch(l))])).expect("ready");
        for _ in 0..3 {
            gpu.start(step, &[]).expect("runs");
            assert_eq!(get(&gpu, Y, 1), [499_500.0], "{seed:?}");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn lanes_of_a_warp_exchange_values() {
    for seed in SEEDS {
        let mut gpu = gpu(seed);
        let mut v = counted(64);
        set(&mut gpu, X, &v);
        run(&mut gpu, Task::Launch(launch("exchanges", 1, 64).arg(X).arg(Y))).expect("runs");
        (0..4).for_each(|i| v[i] = 3.0);
        let v: Vec<f32> = (0..64).map(|i| v[i] + v[i / 8 * 8]).collect();
        let want = |i: usize| {
            let below = if i.is_multiple_of(32) { v[i] } else { v[i - 1] };
            v[i] + below + 11.0
        };
        assert_eq!(get(&gpu, Y, 64), (0..64).map(want).collect::<Vec<_>>(), "{seed:?}");
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn a_missing_barrier_is_detected_in_any_order() {
    for (kernel, right) in [("reversed", true), ("reversed_too_early", false)] {
        for seed in SEEDS {
            let mut gpu = gpu(seed);
            set(&mut gpu, X, &counted(64));
            run(&mut gpu, Task::Launch(launch(kernel, 1, 64).arg(X).arg(Y))).expect("runs");
            let want: Vec<f32> = counted(64).into_iter().rev().collect();
            assert_eq!(get(&gpu, Y, 64) == want, right, "{kernel} {seed:?}");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn divergent_threads_are_reported() {
    let mut gpu = gpu(None);
    for (kernel, want) in [
        (
            "leaves_early",
            "block 0: thread 0 waits at __syncthreads() (tapes.cu:55), but thread 40 has finished",
        ),
        (
            "two_barriers",
            "thread 0 waits at __syncthreads() (tapes.cu:60), but thread 32 waits at __syncthreads() (tapes.cu:61)",
        ),
        (
            "half_a_shuffle",
            "thread 1 waits at __shfl_xor_sync() (tapes.cu:67), but thread 0 has finished",
        ),
    ] {
        let text = message(&mut gpu, Task::Launch(launch(kernel, 1, 64).arg(Y)));
        assert!(text.contains(want), "{text}");
        // The next launch is not affected.
        set(&mut gpu, X, &counted(64));
        run(&mut gpu, Task::Launch(launch("reversed", 1, 64).arg(X).arg(Y))).expect("runs");
        assert_eq!(get(&gpu, Y, 2), [63.0, 62.0]);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn undeclared_and_out_of_bounds_writes_are_reported() {
    let mut gpu = gpu(None);
    let store = |gpu: &mut EmulatedGpu, base: Ptr, at: usize| {
        let l = launch("put_one", 1, 1).arg(base).arg(at).arg(2.0);
        run(gpu, Task::Launch(l)).map_err(|e| e.to_string())
    };
    assert_eq!(store(&mut gpu, Y, 5), Ok(()));
    assert_eq!(get(&gpu, Y.add(20), 1), [2.0]);
    let text = store(&mut gpu, Y, 1025).expect_err("is found");
    let want = "writes outside of Arena (replica 0, 4096 bytes), at byte 4100";
    assert!(text.contains(want), "{text}");
    let mut gpu = self::gpu(None);
    set(&mut gpu, X, &counted(4));
    let text = store(&mut gpu, X, 3).expect_err("is found");
    assert!(text.contains("writes at Params+12, which is not among its writes"), "{text}");
    let fetches = Ptr::new(0, Block::Fetches, 0);
    let text = store(&mut gpu, fetches, 0).expect_err("is found");
    assert!(text.contains("writes at Fetches+0, which is not among its writes"), "{text}");
    assert_eq!(get(&gpu, fetches, 1), [0.0]);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn undeclared_reads_yield_nan() {
    let mut gpu = gpu(None);
    set(&mut gpu, X, &counted(64));
    let task = Task::Launch(launch("reversed", 1, 64).arg(X).arg(Y));
    let blind = WorkItem { reads: vec![Span::whole(X, 4)], ..work(task) };
    let step = gpu.prepare(plan(vec![blind])).expect("ready");
    gpu.start(step, &[]).expect("runs");
    let y = get(&gpu, Y, 64);
    assert_eq!((y[0].is_nan(), y[63]), (true, 0.0));
    assert_eq!(get(&gpu, X, 64), counted(64));
    // Declares only every second number.
    let task = Task::Launch(launch("reversed", 1, 64).arg(X).arg(Y));
    let every_second = Span { at: X.add(4), bytes: 252, width: 4, pitch: 8 };
    let step = gpu.prepare(plan(vec![WorkItem { reads: vec![every_second], ..work(task) }]));
    gpu.start(step.expect("ready"), &[]).expect("runs");
    let seen: Vec<bool> = get(&gpu, Y, 64).iter().map(|v| !v.is_nan()).collect();
    assert_eq!(seen, (0..64).map(|i| i % 2 == 0).collect::<Vec<_>>());
}

#[phalanx_testing::needs(gxx)]
#[test]
fn runtime_checks_of_the_compiler_are_reported() {
    let mut gpu = gpu(None);
    let array = |i: i32| Task::Launch(launch("index_of_array", 1, 1).arg(Y).arg(i));
    run(&mut gpu, array(3)).expect("runs");
    let text = message(&mut gpu, array(4));
    assert!(
        text.contains("tapes.cu:85: an index lies outside its array (block 0, thread 0)"),
        "{text}"
    );
    set(&mut gpu, X, &counted(64));
    let load = |at: usize| Task::Launch(launch("vector_load", 1, 1).arg(X).arg(Y).arg(at));
    run(&mut gpu, load(8)).expect("runs");
    assert_eq!(get(&gpu, Y, 1), [9.0]);
    let text = message(&mut gpu, load(6));
    assert!(text.contains("an address is not aligned as its type asks"), "{text}");
    let divide = |by: i32| Task::Launch(launch("divides", 1, 1).arg(Y).arg(by));
    run(&mut gpu, divide(2)).expect("runs");
    let text = message(&mut gpu, divide(0));
    assert!(text.contains("division by zero"), "{text}");
}

#[phalanx_testing::needs(gxx)]
#[test]
fn launches_must_fit_their_kernel() {
    let mut gpu = gpu(None);
    let text = message(&mut gpu, Task::Launch(launch("put_one", 1, 1).arg(Y).arg(1).arg(2.0)));
    assert!(text.contains("expected arguments 'plf', received 'pif'"), "{text}");
    let text = message(&mut gpu, Task::Launch(launch("leaves_early", 1, 1025).arg(Y)));
    assert!(text.contains("than a GPU takes"), "{text}");
    let text = message(&mut gpu, Task::Launch(launch("nobody", 1, 1)));
    assert!(text.contains("g++ refuses") && text.contains("nobody"), "{text}");
    let outside = launch("leaves_early", 1, 1).arg(Y.add(BYTES + 1));
    let text = message(&mut gpu, Task::Launch(outside));
    assert!(text.contains("Arena+4097 lies outside its block"), "{text}");
}

#[phalanx_testing::needs(gxx)]
#[test]
fn steps_must_be_prepared_again_when_memory_moves() {
    let mut gpu = gpu(None);
    set(&mut gpu, X, &counted(64));
    let task = Task::Launch(launch("reversed", 1, 64).arg(X).arg(Y));
    let step = gpu.prepare(plan(vec![work(task)])).expect("ready");
    assert_eq!(gpu.reserve(0, Block::Params, BYTES, "a test"), Ok(false));
    gpu.start(step, &[]).expect("runs");
    assert_eq!(gpu.reserve(0, Block::Params, BYTES + 1, "a test"), Ok(true));
    assert_eq!(get(&gpu, X, 64), counted(64));
    let text = gpu.start(step, &[]).expect_err("is found").to_string();
    assert!(text.contains("prepared before a block moved"), "{text}");
}

#[phalanx_testing::needs(gxx)]
#[test]
fn kernels_round_like_the_host() {
    let mut gpu = gpu(None);
    let mut random = order::Random::new(7);
    let odd =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0, 65520.0, 1e-7, -6e-8];
    let any = (0..240).map(|_| f32::from_bits(random.next() as u32 & 0xbfff_ffff | 0x3000_0000));
    let x: Vec<f32> = odd.into_iter().chain(any).collect();
    let (narrow, back) = (Y, Y.add(1024));
    for elem in [Elem::Bf16, Elem::F16] {
        set(&mut gpu, X, &x);
        let l = launch(&format!("narrow<{}>", elem.c_name()), 2, 64);
        let l = l.arg(X).arg(narrow).arg(back).arg(x.len());
        run(&mut gpu, Task::Launch(l)).expect("runs");
        let found = get(&gpu, back, x.len());
        for (i, x) in x.iter().enumerate() {
            let want = gpu.memory.bytes(narrow.add(i * 2), 2).expect("there").to_vec();
            gpu.memory.store(narrow, elem, f64::from(*x)).expect("there");
            assert_eq!(gpu.memory.bytes(narrow, 2).expect("there"), want, "{x} as {elem:?}");
            let same = gpu.memory.load(narrow, elem).expect("there") as f32;
            assert!(same.to_bits() == found[i].to_bits() || x.is_nan(), "{x} as {elem:?}");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn tables_hold_addresses() {
    let mut gpu = gpu(None);
    let row = |at: usize, n: i64, v: f32| [Word::Ptr(Y.add(at)), Word::I64(n), Word::F32(v)];
    let words = [row(0, 2, 1.5), row(8, 1, -2.0), row(16, 1, 4.0)].concat();
    let l = launch("fill_rows", 1, 32).arg(Arg::Table(words)).arg(3usize);
    run(&mut gpu, Task::Launch(l)).expect("runs");
    let y = get(&gpu, Y, 5);
    assert_eq!((y[0], y[1], y[2], y[4]), (1.5, 1.5, -2.0, 4.0));
    // Not written in this step.
    assert!(y[3].is_nan());
}

#[phalanx_testing::needs(gxx)]
#[test]
fn work_items_wait_for_their_dependencies() {
    let mut gpu = gpu(Some(5));
    let at = |i: usize| Span::whole(Y.add(i * 4), 4);
    let store = |i: usize, v: f32| WorkItem {
        instr: 0,
        label: format!("store {i}"),
        tasks: vec![Task::Launch(launch("put_one", 1, 1).arg(Y).arg(i).arg(v))],
        reads: vec![],
        writes: vec![at(i)],
    };
    let sum = launch("block_sum<float>", 1, 32).arg(Y).arg(Y.add(64)).arg(4usize);
    let sum = WorkItem {
        instr: 0,
        label: "sum".into(),
        tasks: vec![Task::Launch(sum)],
        reads: (0..4).map(at).collect(),
        writes: vec![at(16)],
    };
    let items =
        vec![store(0, 1.0), store(1, 2.0), store(2, 3.0), store(3, 4.0), sum, store(0, 9.0)];
    let step = gpu.prepare(plan(items)).expect("ready");
    for _ in 0..20 {
        gpu.start(step, &[]).expect("runs");
        assert_eq!(get(&gpu, Y.add(64), 1), [10.0]);
        assert_eq!(get(&gpu, Y, 4), [9.0, 2.0, 3.0, 4.0]);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn matrices_are_multiplied() {
    let mut gpu = gpu(None);
    let bias = X.add(2048);
    set(&mut gpu, X, &[1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
    set(&mut gpu, X.add(1024), &[1.0, 0.5, -1.0, 2.0, 0.0, -5.0]);
    set(&mut gpu, bias, &[0.5, 0.0, 1.0]);
    let matrix = |at, ld, transposed| Matrix { at, elem: Elem::F32, ld, transposed };
    // Rows of `a` are three elements apart; `b` is stored as three rows of two.
    let (a, b) = (matrix(X, 3, false), matrix(X.add(1024), 2, true));
    let c = matrix(Y, 4, false);
    let gemm = Gemm { m: 2, n: 3, k: 2, a, b, c, bias: Some(bias), relu: true, batch: Batch::ONE };
    run(&mut gpu, Task::Gemm(gemm.clone())).expect("runs");
    let y = get(&gpu, Y, 8);
    assert_eq!((&y[..3], &y[4..7]), (&[2.5, 3.0, 0.0][..], &[5.5, 5.0, 0.0][..]));
    // Two items of one row each.
    let batch = Batch { count: 2, strides: [3, 0, 5] };
    let items = Gemm { m: 1, bias: None, relu: false, batch, ..gemm };
    run(&mut gpu, Task::Gemm(items)).expect("runs");
    let y = get(&gpu, Y, 8);
    assert_eq!((&y[..3], &y[5..]), (&[2.0, 3.0, -10.0][..], &[5.0, 5.0, -20.0][..]));
}

#[phalanx_testing::needs(gxx)]
#[test]
fn convolutions_and_their_gradients() {
    let mut gpu = gpu(None);
    // Two groups of one channel, windows of one line and two columns, one image of 1x3.
    let window = Window { groups: 2, ..Window::new([1, 2], [1, 1], Padding::Same) };
    let geom = ConvGeom::new([1, 3, 2], 2, window).unwrap();
    let (x, w, y) = (X, X.add(1024), X.add(2048));
    let images = |at, ld| Images { at, elem: Elem::F32, ld };
    let conv = |pass, x, w, y| {
        let (x, y, w) = (images(x, 3), images(y, 2), (w, Elem::F32));
        Task::Conv(Conv { pass, geom, rows: 1, x, w, y })
    };
    set(&mut gpu, x, &[1.0, 10.0, 0.0, 2.0, 20.0, 0.0, 3.0, 30.0]);
    set(&mut gpu, w, &[1.0, -1.0, 2.0, 0.5]);
    set(&mut gpu, y, &[1.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
    run(&mut gpu, conv(Pass::Forward, x, w, Y)).expect("runs");
    assert_eq!(get(&gpu, Y, 6), [-1.0, 30.0, -1.0, 55.0, 3.0, 60.0]);
    run(&mut gpu, conv(Pass::GradInput, Y, w, y)).expect("runs");
    let dx = get(&gpu, Y, 8);
    assert_eq!([dx[0], dx[1], dx[3], dx[4], dx[6], dx[7]], [1.0, 4.0, -1.0, 1.0, 1.0, 2.0]);
    run(&mut gpu, conv(Pass::GradKernel, x, Y, y)).expect("runs");
    assert_eq!(get(&gpu, Y, 4), [4.0, 2.0, 50.0, 40.0]);
}

#[phalanx_testing::needs(gxx)]
#[test]
fn the_plain_kernels_compute_the_same_convolutions() {
    let mut gpu = gpu(None);
    let (first, second) = (X, X.add(BYTES / 2));
    let images = |at, ld| Images { at, elem: Elem::F32, ld };
    let whole: Vec<f32> = (0..BYTES / 4).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
    set(&mut gpu, X, &whole);
    let window = Window { groups: 2, ..Window::new([2, 3], [1, 2], Padding::Same) };
    let flat = ConvGeom::new([2, 4, 4], 2, window).unwrap();
    let depth = Depth::new(4, [3, 2, 1], Padding::Same).unwrap();
    for geom in [flat, ConvGeom { depth, ..flat }] {
        for pass in [Pass::Forward, Pass::GradInput, Pass::GradKernel] {
            let [x, w, y] = match pass {
                Pass::Forward => [first, second, Y],
                Pass::GradInput => [Y, second, first],
                Pass::GradKernel => [first, Y, second],
            };
            let (x, y, w) = (images(x, 5), images(y, 3), (w, Elem::F32));
            let conv = Conv { pass, geom, rows: 2, x, w, y };
            let launch = fallback::launch(&conv);
            let [library, plain] = [Task::Conv(conv), Task::Launch(launch)].map(|task| {
                run(&mut gpu, task).expect("runs");
                // What was not written is NaN.
                let written = get(&gpu, Y, BYTES / 4).into_iter().enumerate();
                written.filter(|(_, v)| !v.is_nan()).collect::<Vec<_>>()
            });
            assert!(plain.len() > 10);
            assert_eq!(plain, library, "{pass:?} {geom:?}");
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn inputs_and_fetches_are_transferred() {
    let mut gpu = gpu(None);
    let (inputs, fetches) = (Ptr::new(0, Block::Inputs, 0), Ptr::new(0, Block::Fetches, 0));
    let sum = launch("block_sum<float>", 1, 32).arg(inputs).arg(fetches).arg(2usize);
    let sum = WorkItem { writes: vec![Span::whole(fetches, 4)], ..work(Task::Launch(sum)) };
    let step = gpu.prepare(plan(vec![sum])).expect("ready");
    let bytes = [1.5f32, 2.0].map(f32::to_le_bytes).concat();
    gpu.start(step, &bytes).expect("runs");
    let mut fetched = [0; 4];
    gpu.finish(Block::Fetches, &mut [&mut fetched]).expect("done");
    assert_eq!(f32::from_le_bytes(fetched), 3.5);
}
