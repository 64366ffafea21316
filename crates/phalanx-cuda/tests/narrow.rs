//! Mixed precision on a GPU that the host plays: 16-bit activations give what 32-bit ones give, up to
//! their eight bits.

use phalanx_graph::exec::Batch;
use phalanx_graph::program::Policy;
use phalanx_graph::{Mesh, Options, ParamId, Program, Scope, Step};
use phalanx_testing::harness::{elements, feeds};
use phalanx_testing::networks::{cnn, mlp, momentum};
use phalanx_testing::simulate::{Numbers, SEED};

/// Weights and predictions after a few steps.
fn train(step: &Step, policy: Policy, devices: usize, joined: bool) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mesh = Mesh::new(devices, 1);
    let program =
        Program::compile(step.clone(), Options { policy, ..Options::new(mesh, 8) }).unwrap();
    let text = program.to_string();
    assert_eq!(text.contains("rows bf16["), policy == Policy::MixedBfloat16, "{text}");
    let params = step.graph.params();
    let mut e = match joined {
        true => phalanx_cuda::emulator::joined_executor(&vec![1; devices], None, params),
        false => phalanx_cuda::emulator::executor(devices, None, params),
    }
    .expect("starts");
    for (i, values) in Numbers::new(0).params(step).iter().enumerate() {
        let values: Vec<f32> = values.floats().iter().map(|v| *v as f32).collect();
        e.set_param(ParamId(i as u32), &values).expect("fits");
    }
    let id = e.load(program).expect("loads");
    let (mut fetched, mut numbers) = (vec![], Numbers::new(1));
    for (i, rows) in [8, 5, 8].into_iter().enumerate() {
        let b = numbers.batch(step, rows, i as u64);
        let elements = elements(&b.feeds);
        let (feeds, scalars) = (feeds(&elements), &b.scalars[..]);
        let feeds = &feeds[..];
        let batch = Batch { rows, feeds, seed: SEED, step: b.step, scalars, ..Batch::default() };
        e.run(id, &batch, &mut fetched).expect("runs");
        e.check_mirrored().expect("mirrored");
    }
    ((0..params.len()).map(|i| e.param(ParamId(i as u32))).collect(), fetched[1].clone())
}

fn check(step: &Step) {
    if let Some(reason) = phalanx_cuda::emulator::missing() {
        return eprintln!("{reason}");
    }
    for (devices, joined) in [(1, false), (2, false), (2, true)] {
        let (wide, predicted) = train(step, Policy::Float32, devices, joined);
        let (narrow, also) = train(step, Policy::MixedBfloat16, devices, joined);
        let close = |what: &str, a: &[f32], b: &[f32]| {
            let largest = a.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() <= 0.03 * largest + 1e-6, "{what}: {a} and {b}");
            }
        };
        close("predictions", &predicted, &also);
        for ((spec, a), b) in step.graph.params().iter().zip(&wide).zip(&narrow) {
            close(&spec.name, a, b);
        }
        assert_ne!(wide, narrow, "sixteen bits leave a trace");
    }
}

#[test]
fn a_convolutional_network_with_batch_norm() {
    check(&cnn(Scope::Device, true, momentum(None), (0.0, 1e-3)));
}

#[test]
fn a_perceptron() {
    check(&mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0)));
}
