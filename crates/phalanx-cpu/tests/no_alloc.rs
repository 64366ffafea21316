//! After warm-up a training step allocates nothing on any thread.

use phalanx_cpu::{CpuBackend, CpuExecutor, CpuOptions};
use phalanx_exec::{Accumulate, Backend, Batch, Executor, FeedData};
use phalanx_graph::program::Policy;
use phalanx_graph::update::Clip;
use phalanx_graph::{DType, FeedSpec, Mesh, Program, Scope, Step};
use phalanx_testing::networks::{adam, attention, cnn, mlp, momentum, odd, sequence, wide};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards everything unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated by ten steps after a warm-up of three runs of each program, which take turns. With `accumulate`, every
/// second step applies the gradients of two.
fn allocated(steps: &[Step], mesh: Mesh, accumulate: bool) -> usize {
    const ROWS: usize = 7;
    let options =
        CpuOptions { replicas: mesh.replicas, workers: mesh.workers, ..CpuOptions::default() };
    let mut e = CpuExecutor::new(options, steps[0].graph.params()).expect("starts");
    let (floats, ints) = (vec![0.1; ROWS * 140], vec![1; ROWS * 2]);
    let feed = |spec: &FeedSpec| {
        let len = if spec.ty.is_rows() { ROWS } else { 1 } * spec.ty.len();
        match spec.ty.dtype {
            DType::I32 => FeedData::I32(&ints[..len]),
            _ => FeedData::F32(&floats[..len]),
        }
    };
    let load = |step: &Step| {
        let options = CpuBackend.options(mesh, Policy::Float32, ROWS);
        let program = Program::compile(step.clone(), options).expect("compiles");
        let feeds: Vec<FeedData<'_>> = step.graph.feeds().iter().map(feed).collect();
        (e.load(program.into()).expect("loads"), feeds)
    };
    let programs: Vec<_> = steps.iter().map(load).collect();
    let mut fetched = vec![];
    let mut before = 0;
    let warm_up = 3 * steps.len();
    for number in 0..warm_up + 10 {
        if number == warm_up {
            before = BYTES.load(Ordering::SeqCst);
        }
        let (id, feeds) = &programs[number % programs.len()];
        let first = number % 2 == 0;
        let apply = (!first).then_some(0.5 / ROWS as f32);
        let part = Accumulate { first, weight: ROWS as f32, apply };
        let batch = Batch {
            rows: ROWS,
            feeds,
            seed: 1,
            step: number as u64,
            scalars: &[0.01],
            accumulate: accumulate.then_some(part),
            staged: false,
        };
        e.run(*id, &batch, &mut fetched).expect("runs");
    }
    assert!(before > 0, "allocations are counted");
    BYTES.load(Ordering::SeqCst) - before
}

/// A single test, so that no other test allocates concurrently.
#[test]
fn steps_allocate_nothing() {
    // Three devices use reduce-scatter.
    for (devices, workers) in [(1, 2), (2, 1), (3, 1), (3, 2)] {
        let mesh = Mesh::new(devices, workers);
        for accumulate in [false, true] {
            let check_all = |steps: &[Step]| {
                let what = format!("{} on {mesh:?}, accumulating: {accumulate}", steps[0].name);
                assert_eq!(allocated(steps, mesh, accumulate), 0, "{what}");
            };
            let check = |step: Step| check_all(&[step]);
            // Batches of different lengths, each with its program.
            check_all(&[7, 16, 3].map(|length| sequence(length, adam(None))));
            for scope in [Scope::All, Scope::Device] {
                check(cnn(scope, true, adam(Some(Clip::GlobalNorm(1.0))), (0.0, 1e-3)));
            }
            check(attention(momentum(None), (0.0, 0.0)));
            check(mlp(&[100, 80, 5], momentum(None), (0.0, 0.0)));
            check(odd(momentum(None)));
            check(wide(momentum(None), (0.0, 0.0)));
        }
    }
}
