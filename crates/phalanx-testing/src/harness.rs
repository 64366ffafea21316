//! Helpers that run a step on an executor and compare its results with f64.

use crate::Lab;
use phalanx_cpu::CpuBackend;
use phalanx_cpu::reference::{Bindings, Context, Data, Value};
use phalanx_exec::{Backend, Batch, Executor, FeedData};
use phalanx_graph::program::Policy;
use phalanx_graph::{Mesh, ParamId, ParamSpec, Program, Step};
use std::sync::Arc;

/// The elements of a feed, owned.
pub enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

/// The elements of every feed.
pub fn elements(values: &[Value]) -> Vec<Elements> {
    let convert = |v: &Value| match &v.data {
        Data::Float(d) => Elements::F32(d.iter().map(|x| *x as f32).collect()),
        Data::Int(d) => Elements::I32(d.clone()),
    };
    values.iter().map(convert).collect()
}

/// Borrowed feeds.
pub fn feeds(elements: &[Elements]) -> Vec<FeedData<'_>> {
    let mut feeds = Vec::with_capacity(elements.len());
    for e in elements {
        feeds.push(match e {
            Elements::F32(v) => FeedData::F32(v),
            Elements::I32(v) => FeedData::I32(v),
        });
    }
    feeds
}

/// The default executor of a lab, with its parameters set.
pub fn executor(
    lab: &dyn Lab,
    mesh: Mesh,
    specs: &[ParamSpec],
    params: &[Value],
) -> Box<dyn Executor> {
    let mut e = lab.executor(mesh, specs);
    set_params(&mut *e, params);
    e
}

/// Sets all parameters.
pub fn set_params(e: &mut dyn Executor, params: &[Value]) {
    for (i, v) in params.iter().enumerate() {
        let values: Vec<f32> = v.floats().iter().map(|x| *x as f32).collect();
        e.set_param(ParamId(i as u32), &values).expect("fits");
    }
}

/// Compiles for a mesh as CPU devices do. Programs for one worker per device suit every executor.
pub fn compile(step: &Step, mesh: Mesh, max_batch: usize) -> Arc<Program> {
    let options = CpuBackend.options(mesh, Policy::Float32, max_batch);
    Program::compile(step.clone(), options).expect("compiles").into()
}

/// The batch that corresponds to a reference evaluation, without an optimizer.
pub fn batch<'a>(context: &Context, feeds: &'a [FeedData<'a>]) -> Batch<'a> {
    let Context { rows, seed, step } = *context;
    Batch { rows, feeds, seed, step, scalars: &[], accumulate: None, staged: false }
}

/// The bindings restricted to the rows of one device.
pub fn device_bindings(bindings: &Bindings, step: &Step, mesh: Mesh, device: usize) -> Bindings {
    let device_part = |(i, v): (usize, &Value)| {
        if !step.graph.feeds()[i].ty.is_rows() {
            return v.clone();
        }
        let rows = mesh.replica_rows(v.dims[0], device);
        let width = v.len() / v.dims[0].max(1);
        let mut dims = v.dims.clone();
        dims[0] = rows.len();
        let range = rows.start * width..rows.end * width;
        match &v.data {
            Data::Float(d) => Value::float(dims, d[range].to_vec()),
            Data::Int(d) => Value::int(dims, d[range].to_vec()),
        }
    };
    let feeds = bindings.feeds.iter().enumerate().map(device_part).collect();
    Bindings { feeds, params: bindings.params.clone() }
}

/// Panics unless all numbers agree within `tolerance` times the largest magnitude, at least 1.
pub fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        assert!(error <= tolerance * scale, "{what} [{i}]: expected {w}, received {g}");
    }
}
