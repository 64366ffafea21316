//! Mixed precision, on this machine's GPU or on an emulated one: 16-bit activations give the
//! results of 32-bit ones, up to their eight or eleven bits.

use crate::on_gpus;
use phalanx_cuda::emulator::Emulator;
use phalanx_exec::{Batch, DeviceSlot, Executor, ProgramId};
use phalanx_graph::program::Policy;
use phalanx_graph::{Mesh, Options, ParamId, ParamSpec, Program, Scope, Step};
use phalanx_testing::harness::{elements, feeds};
use phalanx_testing::needs;
use phalanx_testing::networks::{attention, cnn, mlp, momentum, recurrent, scaled_cnn, scaled_mlp};
use phalanx_testing::simulate::{Numbers, SEED};

/// Whether there is a real GPU.
fn real() -> bool {
    crate::gpus() > 0
}

/// Replicas that share a GPU or, if `joined`, have an emulated one each.
fn executor(devices: usize, joined: bool, params: &[ParamSpec]) -> Box<dyn Executor> {
    let part = |part| DeviceSlot { index: 0, part: Some(part) };
    let slots: Vec<DeviceSlot> = (0..devices).map(part).collect();
    let emulator = Emulator::new(devices);
    match (joined, real()) {
        (false, true) => on_gpus(&slots, params),
        (false, false) => emulator.executor(devices, params).expect("starts"),
        (true, _) => emulator.joined_executor(&vec![1; devices], params).expect("starts"),
    }
}

/// A network in training.
struct Trained {
    e: Box<dyn Executor>,
    id: ProgramId,
    numbers: Numbers,
    steps: u64,
    fetched: Vec<Vec<f32>>,
}

impl Trained {
    fn new(step: &Step, policy: Policy, (devices, joined): (usize, bool)) -> Trained {
        let mesh = Mesh::new(devices, 1);
        let options = Options { policy, ..Options::new(mesh, 8) };
        let program = Program::compile(step.clone(), options).unwrap();
        let text = program.to_string();
        assert_eq!(text.contains("rows bf16["), policy == Policy::MixedBfloat16, "{text}");
        assert_eq!(text.contains("rows f16["), policy == Policy::MixedFloat16, "{text}");
        let params = step.graph.params();
        let mut e = executor(devices, joined, params);
        for (i, values) in Numbers::new(0).params(step).iter().enumerate() {
            let values: Vec<f32> = values.floats().iter().map(|v| *v as f32).collect();
            e.set_param(ParamId(i as u32), &values).expect("fits");
        }
        let id = e.load(program.into()).expect("loads");
        Trained { e, id, numbers: Numbers::new(1), steps: 0, fetched: vec![] }
    }

    fn run(&mut self, step: &Step, rows: usize) {
        let b = self.numbers.batch(step, rows, self.steps);
        let elements = elements(&b.feeds);
        let (feeds, scalars) = (feeds(&elements), &b.scalars[..]);
        let feeds = &feeds[..];
        let batch = Batch { rows, feeds, seed: SEED, step: b.step, scalars, ..Batch::default() };
        self.e.run(self.id, &batch, &mut self.fetched).expect("runs");
        self.e.check_consistency().expect("mirrored");
        self.steps += 1;
    }
}

/// Weights and predictions after a few steps.
fn train(
    step: &Step,
    policy: Policy,
    devices: (usize, bool),
    rows: &[usize],
) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut network = Trained::new(step, policy, devices);
    rows.iter().for_each(|rows| network.run(step, *rows));
    let ids = (0..step.graph.params().len() as u32).map(ParamId);
    (ids.map(|id| network.e.param(id).unwrap()).collect(), network.fetched[1].clone())
}

fn check(step: &Step, policy: Policy, rows: &[usize], tolerance: f32) {
    let both = [(1, false), (2, false), (2, true)];
    for (devices, joined) in both.into_iter().filter(|(_, joined)| !(*joined && real())) {
        let (wide, predicted) = train(step, Policy::Float32, (devices, joined), rows);
        let (narrow, also) = train(step, policy, (devices, joined), rows);
        let close = |what: &str, a: &[f32], b: &[f32]| {
            let largest = a.iter().fold(0f32, |m, v| m.max(v.abs()));
            let apart = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            // Products of 32-bit floats have only ten bits on a real GPU.
            let allowed = tolerance * if real() { 2.0 } else { 1.0 } * largest + 1e-6;
            assert!(apart <= allowed, "{what}: {apart} apart, allowed {allowed}");
        };
        close("predictions", &predicted, &also);
        for ((spec, a), b) in step.graph.params().iter().zip(&wide).zip(&narrow) {
            close(&spec.name, a, b);
        }
        assert_ne!(wide, narrow, "sixteen bits leave a trace");
    }
}

#[needs(gpu_or_gxx)]
#[test]
fn a_convolutional_network_with_batch_norm() {
    let step = cnn(Scope::Device, true, momentum(None), (0.0, 1e-3));
    check(&step, Policy::MixedBfloat16, &[8, 5, 8], 0.03);
}

#[needs(gpu_or_gxx)]
#[test]
fn a_perceptron() {
    check(
        &mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0)),
        Policy::MixedBfloat16,
        &[8, 5, 8],
        0.03,
    );
}

#[needs(gpu_or_gxx)]
#[test]
fn self_attention() {
    let step = attention(momentum(None), (0.0, 0.0));
    check(&step, Policy::MixedBfloat16, &[8, 5, 8], 0.03);
}

#[needs(gpu_or_gxx)]
#[test]
fn recurrent_cells() {
    let step = recurrent(momentum(None), (0.0, 0.0));
    check(&step, Policy::MixedBfloat16, &[8, 5, 8], 0.03);
}

#[needs(gpu_or_gxx)]
#[test]
fn halves_of_a_convolutional_network() {
    let step = scaled_cnn(Scope::Device, momentum(None), (0.0, 1e-3), 2);
    check(&step, Policy::MixedFloat16, &[8, 5, 8], 0.03);
}

#[needs(gpu_or_gxx)]
#[test]
fn halves_of_a_perceptron() {
    let step = scaled_mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0), 2);
    check(&step, Policy::MixedFloat16, &[8, 5, 8], 0.03);
}

/// The median difference between a single step's weights and those of 32-bit floats. Weights after
/// a ReLU that switches sides may differ a lot.
fn median_error(step: &Step, policy: Policy, devices: usize) -> f32 {
    let run = |policy| train(step, policy, (devices, false), &[8]).0.concat();
    let pairs = run(Policy::Float32).into_iter().zip(run(policy));
    let mut errors: Vec<f32> = pairs.map(|(a, b)| (a - b).abs()).collect();
    errors.sort_by(f32::total_cmp);
    errors[errors.len() / 2]
}

#[needs(gpu_or_gxx)]
#[test]
fn halves_are_more_precise_than_bf16() {
    for step in [
        scaled_cnn(Scope::Device, momentum(None), (0.0, 1e-3), 2),
        scaled_mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0), 2),
    ] {
        let [half, bf16] = [Policy::MixedFloat16, Policy::MixedBfloat16]
            .map(|policy| median_error(&step, policy, 2));
        assert!(half < 2e-5 && half < bf16, "{}: {half} and {bf16}", step.name);
    }
}

#[needs(gpu_or_gxx)]
#[test]
fn overflowing_halves_are_detected_in_the_gradients() {
    let step = scaled_mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0), 2);
    let state = step.loss_scale.expect("scaled").state;
    for devices in [(1, false), (2, false)] {
        let mut lab = Trained::new(&step, Policy::MixedFloat16, devices);
        let weights = |lab: &Trained| {
            let all = (0..step.graph.params().len() as u32).map(ParamId);
            all.filter(|id| *id != state).map(|id| lab.e.param(id).unwrap()).collect::<Vec<_>>()
        };
        // 32-bit floats can represent it, halves cannot.
        lab.e.set_param(state, &[2f32.powi(24), 0.0, 1.0]).expect("fits");
        let before = weights(&lab);
        let mut scales = vec![];
        for _ in 0..12 {
            lab.run(&step, 8);
            scales.push(lab.fetched[2][0]);
            let skipped = lab.fetched[2][2] == 0.0;
            assert_eq!(weights(&lab) == before, scales.is_sorted_by(|a, b| a > b) && skipped);
        }
        assert_eq!(scales[0], 2f32.powi(23), "the first step overflows");
        assert!(weights(&lab) != before, "a later one does not: {scales:?}");
        lab.e.check_consistency().expect("mirrored");
    }
}
