//! Programs and batches that would make workers access memory out of bounds are refused, and a refusal leaves
//! the executor unchanged.

use super::{Cpu, MESHES};
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_exec::{Batch, ExecError, Executor, FeedData, check_batch, check_own_batch};
use phalanx_graph::ops::Op;
use phalanx_graph::update::{RuleBuilder, Slot, SlotInit, UpdateRule};
use phalanx_graph::{DType, Fetch, Graph, Mesh, ParamSpec, Step, Type};
use phalanx_testing::harness::{Elements, compile, elements, executor, feeds};
use phalanx_testing::networks::{mlp, momentum};
use phalanx_testing::peers::clusters;
use phalanx_testing::simulate::{Numbers, SEED};

fn run(
    e: &mut dyn Executor,
    id: phalanx_exec::ProgramId,
    owned: &[Elements],
    scalars: &[f32],
) -> Result<Vec<Vec<f32>>, ExecError> {
    let feeds = feeds(owned);
    let (accumulate, staged) = (None, false);
    let batch = Batch { rows: 6, feeds: &feeds, seed: SEED, step: 0, scalars, accumulate, staged };
    let mut fetched = vec![];
    e.run(id, &batch, &mut fetched)?;
    Ok(fetched)
}

#[test]
fn a_program_that_runs_out_of_memory_leaves_the_others_intact() {
    let train = mlp(&[4, 300, 5], momentum(None), (0.0, 0.0));
    let mut predict = train.clone();
    predict.update = None;
    for mesh in MESHES {
        let mut numbers = Numbers::new(0);
        let params = numbers.params(&train);
        let mut e = executor(&Cpu, mesh, train.graph.params(), &params);
        let id = e.load(compile(&predict, mesh, 6)).expect("loads");
        let b = numbers.batch(&train, 6, 0);
        let owned = elements(&b.feeds);
        let before = run(&mut *e, id, &owned, &b.scalars).expect("runs");
        let refused = e.load(compile(&train, mesh, 1 << 40)).expect_err("too large");
        assert!(matches!(refused, ExecError::Memory { .. }), "{refused}");
        let after = run(&mut *e, id, &owned, &b.scalars).expect("runs again");
        assert_eq!(before, after, "{mesh:?}");
    }
}

fn plain() -> UpdateRule {
    let mut b = RuleBuilder::new(vec![], 1);
    let step = b.mul(b.gradient(), b.scalar(0));
    let weight = b.sub(b.weight(), step);
    b.finish("plain", None, weight, &[])
}

#[test]
fn a_program_with_other_optimizer_slots_is_refused() {
    let mesh = MESHES[4];
    let mut step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let mut numbers = Numbers::new(0);
    let mut e = executor(&Cpu, mesh, step.graph.params(), &numbers.params(&step));
    let id = e.load(compile(&step, mesh, 6)).expect("loads");
    let slots = step.update.as_ref().map(|rule| rule.slots.clone()).unwrap_or_default();
    step.update = Some(plain());
    let text = e.load(compile(&step, mesh, 6)).expect_err("is refused").to_string();
    let name = &slots[0].name;
    assert!(text.ends_with(&format!("optimizer slots: expected [{name}], received []")), "{text}");
    let other = Slot { name: "other".into(), init: SlotInit::Value(1.0) };
    step.update = Some(UpdateRule { slots: vec![other], ..momentum(None) });
    assert!(e.load(compile(&step, mesh, 6)).is_err());
    assert_eq!(e.slots(), 1);
    let b = numbers.batch(&step, 6, 0);
    run(&mut *e, id, &elements(&b.feeds), &b.scalars).expect("runs");
}

#[test]
fn a_cluster_that_counts_other_replicas_is_refused() {
    let params =
        [ParamSpec { name: "w".into(), dims: vec![4], trainable: true, partition_axis: None }];
    let options = |replicas| CpuOptions { replicas, workers: 1, ..CpuOptions::default() };
    let start = |replicas: usize, table: &[usize]| {
        let mut cluster = clusters(&[1, 1]).remove(0);
        cluster.replicas = table.to_vec();
        CpuExecutor::with_cluster(options(replicas), &params, Some(cluster)).map(|e| e.mesh())
    };
    assert_eq!(start(1, &[1, 3]), Ok(Mesh::new(4, 1)));
    // With more replicas than the table says, some would process rows that no feed holds.
    for (replicas, table) in
        [(2, &[1, 1][..]), (1, &[2, 1]), (1, &[1]), (1, &[1, 1, 1]), (1, &[1, usize::MAX])]
    {
        let text = start(replicas, table).expect_err("is refused").to_string();
        assert!(text.contains(&format!("expected {replicas} replicas of process 0")), "{text}");
    }
}

#[test]
fn worker_and_weight_counts_that_overflow_are_refused() {
    let half = usize::MAX / 2 + 1;
    let options = |replicas, workers| CpuOptions { replicas, workers, ..CpuOptions::default() };
    for replicas in [half, usize::MAX, 1 << 30] {
        let text = CpuExecutor::new(options(replicas, 2), &[]).err().expect("refused").to_string();
        assert!(text.contains("workers, received"), "{text}");
    }
    let spec = |dims: &[usize]| ParamSpec {
        name: "w".into(),
        dims: dims.into(),
        trainable: true,
        partition_axis: None,
    };
    for params in [vec![spec(&[half, 2])], vec![spec(&[half, 4, 4])], vec![spec(&[half]); 2]] {
        let error = CpuExecutor::new(options(1, 1), &params).err().expect("refused");
        assert!(matches!(error, ExecError::Memory { .. }), "{error}");
    }
}

#[test]
fn a_batch_whose_rows_wrap_around_is_refused() {
    let half = usize::MAX / 2 + 1;
    let mesh = MESHES[0];
    let step = mlp(&[4, 3, 5], momentum(None), (0.0, 0.0));
    let program = compile(&step, mesh, 6);
    let feeds = [FeedData::F32(&[]); 1];
    // With four floats per row, the size of this many rows wraps around to zero.
    let batch = Batch { rows: half, feeds: &feeds, scalars: &[0.0], ..Batch::default() };
    assert!(check_batch(&program, &batch).is_err());
    assert!(check_own_batch(&program, &batch, half).is_err());
}

#[test]
fn element_types_without_kernels_are_refused_by_load() {
    let mut g = Graph::new();
    let feed = g.add_feed("x", Type::rows([4]));
    let x = g.feed(feed);
    let wide = g.push(Op::Cast { dtype: DType::F64 }, &[x]).unwrap();
    let transposed = g.push(Op::Transpose { perm: vec![0] }, &[wide]).unwrap();
    let mut step = Step::new("wide", g);
    step.fetches.push(Fetch { name: "y".into(), node: transposed });
    let mut e = executor(&Cpu, MESHES[0], &[], &[]);
    let text = e.load(compile(&step, MESHES[0], 6)).expect_err("is refused").to_string();
    assert!(text.ends_with("no kernel casts f32 to f64"), "{text}");
}
