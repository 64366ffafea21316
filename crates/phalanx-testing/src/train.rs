//! Complete training steps on every mesh, against the f64 simulation.

use crate::Lab;
use crate::harness::*;
use crate::networks::{
    adam, attention, cnn, mlp, momentum, odd, recurrent, scaled_cnn, scaled_mlp, wide,
};
use crate::simulate::{Minibatch, Numbers, SEED, Simulation};
use phalanx_exec::{Accumulate, Batch, Executor, StateId};
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamId, Program, Scope, Step};
use std::sync::Arc;

/// Parameters, then slots.
type State = Vec<Vec<f32>>;

fn state(e: &dyn Executor, step: &Step) -> State {
    let ids = || (0..step.graph.params().len() as u32).map(ParamId);
    let slots = (0..e.slots())
        .flat_map(|s| ids().map(move |id| e.read(StateId::Slot(s, id)).unwrap().unwrap()));
    ids().map(|id| e.param(id).unwrap()).chain(slots).collect()
}

/// Runs the batches and returns the final state and the rows that each step fetched.
fn execute(
    lab: &dyn Lab,
    step: &Step,
    mesh: Mesh,
    max: usize,
    batches: &[Minibatch],
) -> (State, State) {
    let params = Numbers::new(0).params(step);
    let mut e = executor(lab, mesh, step.graph.params(), &params);
    let id = e.load(compile(step, mesh, max)).expect("loads");
    let (mut fetched, mut rows) = (vec![], vec![]);
    for b in batches {
        let elements = elements(&b.feeds);
        let batch = Batch {
            rows: b.rows,
            feeds: &feeds(&elements),
            seed: SEED,
            step: b.step,
            scalars: &b.scalars,
            accumulate: b.accumulate,
            staged: false,
        };
        e.run(id, &batch, &mut fetched).expect("runs");
        rows.push(fetched[1].clone());
        if let Some(scaling) = step.loss_scale {
            assert_eq!(fetched[2], e.param(scaling.state).unwrap(), "fetched after the update");
        }
        e.check_consistency().expect("mirrored");
    }
    (state(&*e, step), rows)
}

/// Compares a run on every mesh with the simulation and with a second run.
fn check(lab: &dyn Lab, step: &Step, scope: Scope, max: usize, batches: &[Minibatch]) {
    for mesh in lab.meshes() {
        check_on(lab, mesh, step, scope, max, batches);
    }
}

/// Compares a run on batches of these rows with the simulation, on every mesh.
pub fn check_batches(lab: &dyn Lab, step: &Step, scope: Scope, max: usize, rows: &[usize]) {
    check(lab, step, scope, max, &batches(step, rows));
}

fn check_on(
    lab: &dyn Lab,
    mesh: Mesh,
    step: &Step,
    scope: Scope,
    max: usize,
    batches: &[Minibatch],
) {
    let devices = if scope == Scope::Device { mesh.replicas } else { 1 };
    let mut simulation = Simulation::new(step, devices, Numbers::new(0).params(step));
    let rows: Vec<Vec<f64>> = batches.iter().map(|b| simulation.run(b)).collect();
    let (got, fetched) = execute(lab, step, mesh, max, batches);
    let what = |p: &str| format!("{} {mesh:?}: {p}", step.name);
    for (i, (got, want)) in fetched.iter().zip(&rows).enumerate() {
        assert_close(
            &what(&format!("predictions of step {i}")),
            got,
            want,
            lab.tolerances().training,
        );
    }
    let specs = step.graph.params();
    let params = simulation.params.iter().map(|p| p.floats());
    let slots = simulation.slots.iter().flatten().map(|s| &s[..]);
    for (i, (got, want)) in got.iter().zip(params.chain(slots)).enumerate() {
        let name = format!("{} (slot {})", specs[i % specs.len()].name, i / specs.len());
        assert_close(&what(&name), got, want, lab.tolerances().training);
    }
    if let Some(scaling) = step.loss_scale {
        let at = scaling.state.index();
        let want: Vec<f32> = simulation.params[at].floats().iter().map(|v| *v as f32).collect();
        assert_eq!(got[at], want, "{}", what("loss scale"));
    }
    let again = execute(lab, step, mesh, max, batches);
    let bits = |s: &State| -> Vec<Vec<u32>> {
        s.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
    };
    assert_eq!(bits(&got), bits(&again.0), "{}", what("the same run twice"));
}

/// The bits of the fetched values and the final state of a few steps. Some steps accumulate gradients, and
/// some have fewer rows than there are devices.
pub fn bits(e: Box<dyn Executor>, step: &Step) -> Vec<Vec<u32>> {
    let program = compile(step, e.mesh(), 9);
    bits_of(e, step, program)
}

/// The same with a program of the step for up to 9 rows.
pub fn bits_of(mut e: Box<dyn Executor>, step: &Step, program: Arc<Program>) -> Vec<Vec<u32>> {
    set_params(&mut *e, &Numbers::new(0).params(step));
    let id = e.load(program).expect("loads");
    let part = |first, apply| Some(Accumulate { first, weight: 4.0, apply });
    let mut batches = batches(step, &[9, 2, 4, 1, 0, 9]);
    batches[2].accumulate = part(true, None);
    batches[3].accumulate = part(false, Some(0.2));
    let mut out = vec![];
    for b in &batches {
        let elements = elements(&b.feeds);
        let batch = Batch {
            rows: b.rows,
            feeds: &feeds(&elements),
            seed: SEED,
            step: b.step,
            scalars: &b.scalars,
            accumulate: b.accumulate,
            staged: false,
        };
        let mut fetched = vec![];
        e.run(id, &batch, &mut fetched).expect("runs");
        e.check_consistency().expect("mirrored");
        out.extend(fetched);
    }
    out.extend(state(&*e, step));
    out.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

fn batches(step: &Step, rows: &[usize]) -> Vec<Minibatch> {
    let mut numbers = Numbers::new(1);
    rows.iter().enumerate().map(|(i, r)| numbers.batch(step, *r, i as u64)).collect()
}

pub fn mlp_with_partial_gradients(lab: &dyn Lab) {
    let step = mlp(&[6, 8, 7, 5], momentum(None), (0.0, 0.0));
    let program = compile(&step, Mesh::new(1, 2), 40).to_string();
    assert!(!program.contains("gradient shard"), "{program}");
    check(lab, &step, Scope::All, 40, &batches(&step, &[40, 37, 3]));
}

pub fn mlp_with_sharded_gradients(lab: &dyn Lab) {
    let step = mlp(&[37, 29, 33, 5], momentum(None), (1e-3, 1e-2));
    for mesh in [Mesh::new(1, 2), Mesh::new(2, 2)] {
        let program = compile(&step, mesh, 6).to_string();
        assert!(program.contains("gradient shard of \"dense_0/kernel\""), "{program}");
        assert!(program.contains("gradient shard of \"dense_1/kernel\""), "{program}");
    }
    check(lab, &step, Scope::All, 6, &batches(&step, &[6, 5, 1]));
}

pub fn sharded_kernels(lab: &dyn Lab) {
    let layers = ["hidden", "left", "right", "mixed"];
    for (clip, max) in [(None, 6), (Some(Clip::GlobalNorm(0.1)), 7)] {
        let step = wide(momentum(clip), (1e-3, 1e-2));
        for mesh in [Mesh::new(1, 2), Mesh::new(2, 2), Mesh::new(1, 5)] {
            let program = compile(&step, mesh, max).to_string();
            for layer in layers {
                let line = |op: &str| program.lines().any(|l| l.contains(op) && l.ends_with(layer));
                assert!(line("sharded dot("), "{layer}: {program}");
                assert!(line("sharded dot_grad_input(") || layer == "hidden", "{layer}: {program}");
            }
        }
        check(lab, &step, Scope::All, max, &batches(&step, &[max, 5, 1, 0, 3]));
    }
    let step = wide(adam(None), (0.0, 0.0));
    check(lab, &step, Scope::All, 7, &batches(&step, &[7, 2, 6]));
}

pub fn mlp_with_adam(lab: &dyn Lab) {
    for max in [6, 30] {
        let step = mlp(&[37, 29, 33, 5], adam(None), (0.0, 1e-2));
        check(lab, &step, Scope::All, max, &batches(&step, &[6, 5, 6]));
    }
}

pub fn self_attention(lab: &dyn Lab) {
    let step = attention(momentum(None), (0.0, 1e-3));
    check(lab, &step, Scope::All, 6, &batches(&step, &[6, 1, 5]));
}

pub fn recurrent_network(lab: &dyn Lab) {
    let step = recurrent(momentum(None), (0.0, 1e-3));
    check(lab, &step, Scope::All, 6, &batches(&step, &[6, 1, 5]));
}

pub fn gradients_are_clipped(lab: &dyn Lab) {
    for clip in [Clip::Norm(0.05), Clip::GlobalNorm(0.1), Clip::Value(0.01), Clip::Norm(1e3)] {
        for max in [6, 60] {
            let step = mlp(&[37, 29, 33, 5], momentum(Some(clip)), (1e-3, 0.0));
            check(lab, &step, Scope::All, max, &batches(&step, &[6, 4, 5]));
        }
    }
}

pub fn gradients_are_accumulated(lab: &dyn Lab) {
    for clip in [None, Some(Clip::GlobalNorm(0.1))] {
        for max in [6, 60] {
            let step = mlp(&[37, 29, 33, 5], adam(clip), (0.0, 1e-3));
            let mut run = batches(&step, &[6, 4, 5, 3, 2]);
            let parts = [(true, 6.0, None), (false, 4.0, Some(0.1)), (true, 5.0, None)];
            let more = [(false, 3.0, None), (false, 2.0, Some(0.1))];
            for (b, (first, weight, apply)) in run.iter_mut().zip(parts.iter().chain(&more)) {
                let (first, weight, apply) = (*first, *weight, *apply);
                b.accumulate = Some(Accumulate { first, weight, apply });
            }
            check(lab, &step, Scope::All, max, &run);
        }
    }
}

/// Sets the first sample weight of some batches to values that make the gradients overflow.
fn set_overflowing_weights(batches: &mut [Minibatch], step: &Step, which: &[(usize, f64)]) {
    let weight = step.graph.feeds().iter().position(|f| f.name == "weight").expect("a feed");
    for (i, value) in which {
        batches[*i].feeds[weight].floats_mut()[0] = *value;
    }
}

pub fn a_scaled_loss(lab: &dyn Lab) {
    let clips =
        [None, Some(Clip::Norm(0.05)), Some(Clip::GlobalNorm(0.1)), Some(Clip::Value(0.01))];
    for clip in clips {
        for max in [6, 60] {
            let step = scaled_mlp(&[37, 29, 33, 5], adam(clip), (1e-3, 1e-2), 2);
            let mut run = batches(&step, &[6, 4, 5, 6, 3, 5, 2]);
            set_overflowing_weights(&mut run, &step, &[(1, f64::INFINITY), (4, f64::NAN)]);
            check(lab, &step, Scope::All, max, &run);
        }
    }
    let step = scaled_cnn(Scope::Device, momentum(None), (0.0, 1e-3), 2);
    let mut run = batches(&step, &[9, 7, 8, 9]);
    set_overflowing_weights(&mut run, &step, &[(1, 3e38)]);
    check(lab, &step, Scope::Device, 9, &run);
}

pub fn an_overflow_keeps_accumulated_gradients(lab: &dyn Lab) {
    let step = scaled_mlp(&[37, 29, 33, 5], adam(Some(Clip::GlobalNorm(0.1))), (0.0, 1e-3), 3);
    let mut run = batches(&step, &[6, 4, 5, 5, 3]);
    set_overflowing_weights(&mut run, &step, &[(1, f64::NAN), (3, f64::INFINITY)]);
    let parts = [
        (true, 6.0, None),
        (false, 4.0, Some(0.1)),
        (false, 5.0, Some(1.0 / 11.0)),
        (true, 5.0, None),
        (true, 3.0, Some(1.0 / 3.0)),
    ];
    for (b, (first, weight, apply)) in run.iter_mut().zip(parts) {
        b.accumulate = Some(Accumulate { first, weight, apply });
    }
    check(lab, &step, Scope::All, 6, &run);
}

pub fn cnn_with_shared_statistics(lab: &dyn Lab) {
    for dropout in [false, true] {
        let step = cnn(Scope::All, dropout, momentum(None), (0.0, 1e-3));
        check(lab, &step, Scope::All, 9, &batches(&step, &[9, 8, 7]));
    }
}

pub fn cnn_with_statistics_of_each_replica(lab: &dyn Lab) {
    let step = cnn(Scope::Device, false, adam(Some(Clip::GlobalNorm(1.0))), (0.0, 0.0));
    check(lab, &step, Scope::Device, 9, &batches(&step, &[9, 7, 8]));
}

pub fn fewer_rows_than_workers(lab: &dyn Lab) {
    let step = cnn(Scope::Device, false, momentum(None), (0.0, 0.0));
    check(lab, &step, Scope::Device, 9, &batches(&step, &[2, 1, 3]));
}

pub fn unusual_gradients(lab: &dyn Lab) {
    for clip in [None, Some(Clip::Norm(0.05))] {
        let step = odd(adam(clip));
        check(lab, &step, Scope::All, 9, &batches(&step, &[9, 4, 1]));
    }
}

pub fn a_step_without_rows_moves_by_the_penalty_alone(lab: &dyn Lab) {
    for max in [6, 60] {
        let step = mlp(&[37, 29, 33, 5], momentum(None), (1e-2, 1e-2));
        check(lab, &step, Scope::All, max, &batches(&step, &[0, 4, 0]));
    }
}

pub fn a_weight_may_move_by_its_penalty_alone(lab: &dyn Lab) {
    let mut step = mlp(&[5, 6, 5], momentum(None), (1e-2, 1e-1));
    let kernel = step.gradients.iter_mut().find(|g| g.l2 != 0.0).expect("a kernel");
    kernel.node = None;
    check(lab, &step, Scope::All, 4, &batches(&step, &[4, 3, 2]));
}
