//! Errors of the user are reported and nothing is run.

use crate::Lab;
use crate::harness::*;
use crate::networks::{mlp, momentum};
use crate::simulate::{Minibatch, Numbers, SEED};
use phalanx_exec::{Batch, ExecError, FeedData, ProgramId};
use phalanx_graph::Mesh;

/// Runs one step of a small network after applying `change` to the feeds.
fn attempt(
    lab: &dyn Lab,
    rows: usize,
    change: impl Fn(&mut Vec<FeedData<'_>>),
) -> Result<(), ExecError> {
    let mesh = lab.meshes()[1];
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let mut e = executor(lab, mesh, step.graph.params(), &numbers.params(&step));
    let id = e.load(compile(&step, mesh, 6)).expect("loads");
    let Minibatch { feeds: values, scalars, .. } = numbers.batch(&step, rows, 0);
    let elements = elements(&values);
    let mut feeds = feeds(&elements);
    change(&mut feeds);
    let batch = Batch {
        rows,
        feeds: &feeds,
        seed: SEED,
        step: 0,
        scalars: &scalars,
        accumulate: None,
        staged: false,
    };
    e.run(id, &batch, &mut vec![])
}

fn message(result: Result<(), ExecError>) -> String {
    result.expect_err("is rejected").to_string()
}

pub fn a_batch_that_fits_runs(lab: &dyn Lab) {
    assert_eq!(attempt(lab, 6, |_| {}), Ok(()));
}

pub fn a_larger_batch_than_compiled(lab: &dyn Lab) {
    let text = message(attempt(lab, 7, |_| {}));
    assert_eq!(text, "feed 'mlp': expected at most 6 rows, received 7");
}

pub fn a_feed_of_another_size(lab: &dyn Lab) {
    let text = message(attempt(lab, 6, |feeds| feeds[0] = FeedData::F32(&[0.0; 20])));
    assert_eq!(text, "feed 'x': expected rows f32[4] for 6 row(s), received 20 f32 elements");
}

pub fn a_feed_of_another_type(lab: &dyn Lab) {
    let text = message(attempt(lab, 6, |feeds| feeds[1] = FeedData::F32(&[0.0; 6])));
    assert_eq!(text, "feed 'label': expected rows i32[] for 6 row(s), received 6 f32 elements");
}

pub fn a_missing_feed(lab: &dyn Lab) {
    let text = message(attempt(lab, 6, |feeds| feeds.truncate(3)));
    assert_eq!(text, "feed 'mlp': expected 4 feeds, received 3");
}

pub fn a_program_or_parameter_of_another_executor(lab: &dyn Lab) {
    let mesh = lab.meshes()[1];
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let params = numbers.params(&step);
    let mut e = executor(lab, mesh, step.graph.params(), &params);
    for other in [lab.meshes()[0], Mesh::new(mesh.replicas, mesh.workers + 1)] {
        let text = e.load(compile(&step, other, 6)).expect_err("is rejected").to_string();
        let expected =
            "program 'mlp' does not fit this executor: it was compiled for other devices";
        assert_eq!(text, expected);
    }
    let wider = mlp(&[5, 3, 5], momentum(None), (0.0, 0.0));
    let text = e.load(compile(&wider, mesh, 6)).expect_err("is rejected").to_string();
    assert_eq!(
        text,
        "program 'mlp' does not fit this executor: its parameters differ from the executor's"
    );
    let batch = Batch {
        rows: 0,
        feeds: &[],
        seed: 0,
        step: 0,
        scalars: &[],
        accumulate: None,
        staged: false,
    };
    assert!(e.run(ProgramId(3), &batch, &mut vec![]).is_err());
    let short = e.set_param(phalanx_graph::ParamId(0), &[0.0; 5]).expect_err("is rejected");
    assert_eq!(short.to_string(), "parameter dense_0/kernel: expected 12 elements, received 5");
}

pub fn missing_scalars_of_the_optimizer(lab: &dyn Lab) {
    let mesh = lab.meshes()[1];
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let mut e = executor(lab, mesh, step.graph.params(), &numbers.params(&step));
    let id = e.load(compile(&step, mesh, 6)).expect("loads");
    let elements = elements(&numbers.batch(&step, 6, 0).feeds);
    let batch = Batch {
        rows: 6,
        feeds: &feeds(&elements),
        seed: SEED,
        step: 0,
        scalars: &[],
        accumulate: None,
        staged: false,
    };
    let text = message(e.run(id, &batch, &mut vec![]));
    assert_eq!(text, "feed 'optimizer scalars': expected 1, received 0");
}
