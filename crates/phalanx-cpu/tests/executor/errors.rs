//! What a user gets wrong is answered, not run.

use crate::harness::*;
use crate::networks::{mlp, momentum};
use crate::simulate::{Minibatch, Numbers, SEED};
use phalanx_graph::Mesh;
use phalanx_graph::exec::{Batch, ExecError, Executor, FeedData, ProgramId};

const MESH: Mesh = Mesh::new(1, 2);

/// Runs one step of a small network after `change` had its way with the batch.
fn attempt(rows: usize, change: impl Fn(&mut Vec<FeedData<'_>>)) -> Result<(), ExecError> {
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let mut e = executor(MESH, None, step.graph.params(), &numbers.params(&step));
    let id = e.load(compile(&step, MESH, 6)).expect("loads");
    let Minibatch { feeds: values, scalars, .. } = numbers.batch(&step, rows, 0);
    let elements = elements(&values);
    let mut feeds = feeds(&elements);
    change(&mut feeds);
    let batch =
        Batch { rows, feeds: &feeds, seed: SEED, step: 0, scalars: &scalars, accumulate: None };
    e.run(id, &batch, &mut vec![])
}

fn message(result: Result<(), ExecError>) -> String {
    result.expect_err("is refused").to_string()
}

#[test]
fn a_batch_that_fits_runs() {
    assert_eq!(attempt(6, |_| {}), Ok(()));
}

#[test]
fn a_larger_batch_than_compiled() {
    let text = message(attempt(7, |_| {}));
    assert_eq!(text, "feed 'mlp': expected at most 6 rows, received 7");
}

#[test]
fn a_feed_of_another_size() {
    let text = message(attempt(6, |feeds| feeds[0] = FeedData::F32(&[0.0; 20])));
    assert_eq!(text, "feed 'x': expected rows f32[4] for 6 row(s), received 20 f32 elements");
}

#[test]
fn a_feed_of_another_type() {
    let text = message(attempt(6, |feeds| feeds[1] = FeedData::F32(&[0.0; 6])));
    assert_eq!(text, "feed 'label': expected rows i32[] for 6 row(s), received 6 f32 elements");
}

#[test]
fn a_missing_feed() {
    let text = message(attempt(6, |feeds| feeds.truncate(3)));
    assert_eq!(text, "feed 'mlp': expected 4 feeds, received 3");
}

#[test]
fn what_does_not_belong_to_the_executor() {
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let params = numbers.params(&step);
    let mut e = executor(MESH, None, step.graph.params(), &params);
    let other = compile(&step, Mesh::new(2, 1), 6);
    let text = e.load(other).expect_err("is refused").to_string();
    assert_eq!(text, "program 'mlp' does not fit this executor: it was compiled for other devices");
    let wider = mlp(&[5, 3, 5], momentum(None), (0.0, 0.0));
    let text = e.load(compile(&wider, MESH, 6)).expect_err("is refused").to_string();
    assert_eq!(text, "program 'mlp' does not fit this executor: its parameters are others");
    let batch = Batch { rows: 0, feeds: &[], seed: 0, step: 0, scalars: &[], accumulate: None };
    assert!(e.run(ProgramId(3), &batch, &mut vec![]).is_err());
    let short = e.set_param(phalanx_graph::ParamId(0), &[0.0; 5]).expect_err("is refused");
    assert_eq!(short.to_string(), "parameter dense_0/kernel: expected 12 elements, received 5");
}

#[test]
fn missing_scalars_of_the_optimizer() {
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let mut e = executor(MESH, None, step.graph.params(), &numbers.params(&step));
    let id = e.load(compile(&step, MESH, 6)).expect("loads");
    let elements = elements(&numbers.batch(&step, 6, 0).feeds);
    let batch = Batch {
        rows: 6,
        feeds: &feeds(&elements),
        seed: SEED,
        step: 0,
        scalars: &[],
        accumulate: None,
    };
    let text = message(e.run(id, &batch, &mut vec![]));
    assert_eq!(text, "feed 'optimizer scalars': expected 1, received 0");
}
