//! Profiling of programs.

use super::{Cpu, MESHES};
use phalanx_exec::Batch;
use phalanx_testing::harness::{compile, elements, executor, feeds};
use phalanx_testing::networks::{mlp, momentum};
use phalanx_testing::simulate::{Numbers, SEED};

/// A profile has a line for every instruction, and its costs match the program.
#[test]
fn profiles_time_every_instruction() {
    let step = mlp(&[300, 200, 5], momentum(None), (0.0, 0.0));
    for mesh in MESHES {
        let mut numbers = Numbers::new(0);
        let params = numbers.params(&step);
        let mut e = executor(&Cpu, mesh, step.graph.params(), &params);
        let program = compile(&step, mesh, 8);
        let id = e.load(program.clone()).expect("loads");
        let b = numbers.batch(&step, 8, 0);
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
        e.run(id, &batch, &mut vec![]).expect("runs");
        assert_eq!(e.profiling().unwrap().profile(id), None, "profiling is off");
        e.profiling().unwrap().set_profiling(true);
        for _ in 0..3 {
            e.run(id, &batch, &mut vec![]).expect("runs");
        }
        let profile = e.profiling().unwrap().profile(id).expect("measured");
        assert_eq!((profile.steps, profile.lines.len()), (3, program.instrs().len()));
        assert!(profile.lines.iter().all(|l| l.seconds >= 0.0) && profile.seconds() > 0.0);
        // Three products per layer, except that the first layer's input needs no gradient.
        let products = 2.0 * 8.0 * (2.0 * 300.0 * 200.0 + 3.0 * 200.0 * 5.0);
        let flops: f64 = profile.lines.iter().map(|l| l.cost.flops).sum();
        assert!(flops >= products && flops < 3.0 * products, "{flops} of {products}, {mesh:?}");
        assert_eq!(profile.by_op().iter().map(|l| l.count).sum::<usize>(), profile.lines.len());
        e.profiling().unwrap().set_profiling(true);
        assert_eq!(e.profiling().unwrap().profile(id), None, "profiling starts again from zero");
    }
}
