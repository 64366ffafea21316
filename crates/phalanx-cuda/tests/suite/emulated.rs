//! Tests of the GPU executor against the reference evaluator, on an emulated GPU.
//! `PHALANX_EMULATOR_SEED` selects another order of work items, blocks and threads.

use crate::seed;
use phalanx_cuda::emulator::Emulator;
use phalanx_exec::{Batch, Executor, FeedData};
use phalanx_graph::{FeedSpec, Mesh, ParamSpec, Step};
use phalanx_testing::harness::{Elements, compile, elements, executor, feeds};
use phalanx_testing::networks::{momentum, sequence};
use phalanx_testing::simulate::{Numbers, SEED};
use phalanx_testing::{Lab, needs};

struct Emulated;

impl Lab for Emulated {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(1, 1), Mesh::new(2, 1), Mesh::new(3, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        Emulator::new(1).seed(seed()).executor(mesh.replicas, params).expect("starts")
    }

    fn random_graphs(&self) -> u32 {
        20
    }
}

phalanx_testing::executor_tests!([gxx], super::Emulated);

/// More numbers of rows than prepared steps are kept for. A step that was dropped gives the same bits when it is prepared
/// again, and other programs stay as they are.
#[needs(gxx)]
#[test]
fn steps_that_were_dropped_are_prepared_again() {
    const ROWS: usize = 300;
    let step = Step { update: None, ..sequence(2, momentum(None)) };
    let mesh = Mesh::new(1, 1);
    let mut numbers = Numbers::new(0);
    let mut e = executor(&Emulated, mesh, step.graph.params(), &numbers.params(&step));
    let ids = [ROWS, 8].map(|rows| e.load(compile(&step, mesh, rows)).expect("loads"));
    let b = numbers.batch(&step, ROWS, 0);
    let owned = elements(&b.feeds);
    let mut run = |program: usize, rows: usize| -> Vec<u32> {
        let part = |(spec, data): (&FeedSpec, &FeedData<'_>)| match (spec.ty.is_rows(), data) {
            (false, data) => elements_of(data, 0),
            (true, data) => elements_of(data, rows * spec.ty.len()),
        };
        let all = feeds(&owned);
        let parts: Vec<Elements> = step.graph.feeds().iter().zip(&all).map(part).collect();
        let batch = Batch { rows, feeds: &feeds(&parts), seed: SEED, ..Batch::default() };
        let mut fetched = vec![];
        e.run(ids[program], &batch, &mut fetched).expect("runs");
        fetched.concat().into_iter().map(f32::to_bits).collect()
    };
    let first = [run(0, 5), run(1, 5)];
    for rows in 1..=ROWS {
        run(0, rows);
    }
    assert_eq!([run(0, 5), run(1, 5)], first);
}

/// The first `len` elements, or all of them if `len` is 0.
fn elements_of(data: &FeedData<'_>, len: usize) -> Elements {
    match data {
        FeedData::F32(v) => Elements::F32(v[..if len == 0 { v.len() } else { len }].to_vec()),
        FeedData::I32(v) => Elements::I32(v[..if len == 0 { v.len() } else { len }].to_vec()),
    }
}
