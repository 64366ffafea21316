//! Steps other than training, and several programs with shared parameters.

use crate::Lab;
use crate::harness::*;
use crate::networks::{mlp, momentum, sequence};
use crate::simulate::{Numbers, SEED};
use phalanx_cpu::reference::{Bindings, Context, evaluate};
use phalanx_exec::{Batch, ProgramId, StateId};
use phalanx_graph::update::{RuleBuilder, Slot, SlotInit};
use phalanx_graph::{Fetch, Graph, Mesh, ParamId, Step};

pub fn a_step_may_do_nothing_but_assign(lab: &dyn Lab) {
    let mut g = Graph::new();
    let ids = [g.add_param("w", &[3, 5], true), g.add_param("unchanged", &[4], true)];
    let w = g.param(ids[0]);
    let half = g.scale(w, 0.5).expect("fits");
    let unchanged = g.param(ids[1]);
    let mut step = Step::new("constrain", g);
    step.assigns = vec![(ids[0], half), (ids[1], unchanged)];
    for mesh in lab.meshes() {
        let params = Numbers::new(0).params(&step);
        let mut e = executor(lab, mesh, step.graph.params(), &params);
        let before = ids.map(|id| e.param(id).unwrap());
        let id = e.load(compile(&step, mesh, 1)).expect("loads");
        let context = Context { rows: 0, seed: 0, step: 0 };
        e.run(id, &batch(&context, &[]), &mut vec![]).expect("runs");
        e.check_consistency().expect("mirrored");
        let want: Vec<f32> = before[0].iter().map(|v| v * 0.5).collect();
        assert_eq!(
            (e.param(ids[0]).unwrap(), e.param(ids[1]).unwrap()),
            (want, before[1].clone()),
            "{mesh:?}"
        );
    }
}

pub fn programs_share_parameters(lab: &dyn Lab) {
    let train = mlp(&[7, 9, 5], momentum(None), (0.0, 0.0));
    let mut predict = train.clone();
    predict.update = None;
    predict.fetches.remove(0);
    for mesh in lab.meshes() {
        let mut numbers = Numbers::new(0);
        let params = numbers.params(&train);
        let mut e = executor(lab, mesh, train.graph.params(), &params);
        let first = e.load(compile(&train, mesh, 4)).expect("loads");
        // Loaded later, with larger buffers.
        let second = e.load(compile(&predict, mesh, 50)).expect("loads");
        for number in 0..3 {
            let b = numbers.batch(&train, 4, number);
            let owned = elements(&b.feeds);
            let feeds = feeds(&owned);
            let (rows, scalars) = (b.rows, &b.scalars[..]);
            let batch = Batch {
                rows,
                feeds: &feeds,
                seed: SEED,
                step: 0,
                scalars,
                accumulate: None,
                staged: false,
            };
            e.run(first, &batch, &mut vec![]).expect("runs");
        }
        let b = numbers.batch(&train, 50, 0);
        let params = (0..train.graph.params().len() as u32).map(ParamId).map(|id| {
            let floats = e.param(id).unwrap().iter().map(|v| f64::from(*v)).collect();
            phalanx_cpu::reference::Value::float(
                train.graph.params()[id.index()].dims.clone(),
                floats,
            )
        });
        let bindings = Bindings { params: params.collect(), feeds: b.feeds };
        let context = Context { rows: 50, seed: 0, step: 0 };
        let want = evaluate(&predict.graph, &[predict.fetches[0].node], &bindings, &context);
        let (elements, mut fetched) = (elements(&bindings.feeds), vec![]);
        e.run(second, &crate::harness::batch(&context, &feeds(&elements)), &mut fetched)
            .expect("runs");
        assert_close(&format!("{mesh:?}"), &fetched[0], want[0].floats(), lab.tolerances().op);
    }
}

/// Programs for inputs of different sizes share weights and slots. It does not matter for a single bit whether all of them
/// stay loaded, or each only while it is used.
pub fn programs_of_several_shapes(lab: &dyn Lab) {
    let steps = [4, 9, 2].map(|length| sequence(length, momentum(None)));
    for mesh in lab.meshes() {
        let mut numbers = Numbers::new(0);
        let params = numbers.params(&steps[0]);
        let batches = [0, 1, 2, 1, 0].map(|shape| (shape, numbers.batch(&steps[shape], 5, 0)));
        let run = |reload: bool| -> Vec<u32> {
            let mut e = executor(lab, mesh, steps[0].graph.params(), &params);
            e.create_slots(&momentum(None)).expect("fits");
            assert_eq!(e.slots(), 1);
            let mut ids: [Option<ProgramId>; 3] = [None; 3];
            let mut results = vec![];
            for (shape, b) in &batches {
                let load = || e.load(compile(&steps[*shape], mesh, 5)).expect("loads");
                let id = *ids[*shape].get_or_insert_with(load);
                let (owned, mut fetched) = (elements(&b.feeds), vec![]);
                let (feeds, scalars) = (feeds(&owned), &b.scalars[..]);
                let batch =
                    Batch { rows: b.rows, feeds: &feeds, seed: SEED, scalars, ..Batch::default() };
                e.run(id, &batch, &mut fetched).expect("runs");
                results.extend(fetched.concat());
                if reload {
                    e.unload(id);
                    ids[*shape] = None;
                    assert!(e.run(id, &batch, &mut vec![]).is_err(), "{mesh:?}");
                }
            }
            e.check_consistency().expect("mirrored");
            let params = (0..params.len() as u32).flat_map(|id| e.param(ParamId(id)).unwrap());
            results.into_iter().chain(params).map(f32::to_bits).collect()
        };
        assert_eq!(run(false), run(true), "{mesh:?}");
    }
}

/// A fetched weight is the one that the step used, even if other workers already update theirs.
pub fn weights_are_fetched_before_the_update(lab: &dyn Lab) {
    let mut step = mlp(&[300, 200, 5], momentum(None), (0.0, 0.1));
    let node = step.graph.param(ParamId(0));
    step.fetches.push(Fetch { name: "weight".into(), node });
    for mesh in lab.meshes() {
        let mut numbers = Numbers::new(0);
        let mut e = executor(lab, mesh, step.graph.params(), &numbers.params(&step));
        let id = e.load(compile(&step, mesh, 4)).expect("loads");
        let b = numbers.batch(&step, 4, 0);
        let (owned, mut fetched) = (elements(&b.feeds), vec![]);
        let feeds = feeds(&owned);
        for _ in 0..20 {
            let before = e.param(ParamId(0)).unwrap();
            let (rows, scalars) = (b.rows, &b.scalars[..]);
            let batch = Batch {
                rows,
                feeds: &feeds,
                seed: SEED,
                step: 0,
                scalars,
                accumulate: None,
                staged: false,
            };
            e.run(id, &batch, &mut fetched).expect("runs");
            assert_eq!(fetched[2], before, "{mesh:?}");
        }
    }
}

pub fn slots_start_as_the_rule_says(lab: &dyn Lab) {
    let slot = |name: &str, init| Slot { name: name.into(), init };
    let slots = vec![slot("copy", SlotInit::Weight), slot("number", SlotInit::Value(0.25))];
    let r = RuleBuilder::new(slots, 0);
    let rule = r.clone().finish("keep", None, r.weight(), &[r.slot(0), r.slot(1)]);
    let step = mlp(&[3, 5], rule, (0.0, 0.0));
    let mesh = Mesh::new(2, 1);
    let mut e = executor(lab, mesh, step.graph.params(), &Numbers::new(0).params(&step));
    e.load(compile(&step, mesh, 4)).expect("loads");
    assert_eq!(e.slots(), 2);
    assert_eq!(
        e.read(StateId::Slot(0, ParamId(0))).unwrap().unwrap(),
        e.param(ParamId(0)).unwrap()
    );
    assert_eq!(e.read(StateId::Slot(1, ParamId(0))).unwrap().unwrap(), [0.25; 15]);
    e.write(StateId::Slot(1, ParamId(0)), &[2.0; 15]).expect("fits");
    assert_eq!(e.read(StateId::Slot(1, ParamId(0))).unwrap().unwrap(), [2.0; 15]);
    assert!(e.write(StateId::Slot(1, ParamId(0)), &[2.0; 3]).is_err());
}
