//! Programs that together launch every kernel: the op cases, training steps and the applications.

use crate::strategy_on;
use phalanx::optimizers::{
    Adadelta, Adagrad, AdamW, Adamax, Ftrl, Lion, Nadam, RMSprop, ScheduleFreeAdamW,
};
use phalanx::prelude::*;
use phalanx_graph::ops::{PoolKind, ReduceKind};
use phalanx_graph::program::{Policy, Program};
use phalanx_graph::update::{Clip, UpdateRule};
use phalanx_graph::{ConvGeom, Mesh, Op, Options, Padding, Scope, Step, Window};
use phalanx_testing::cases::{Case, case};
use phalanx_testing::networks::{adam, cnn, mlp, momentum, odd, scaled_cnn, scaled_mlp, wide};

pub const POLICIES: [Policy; 3] = [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16];

/// Batch size of the op cases.
const CASE_ROWS: usize = 5;

fn compile(step: &Step, devices: usize, batch: usize, policy: Policy) -> Program {
    let options = Options { policy, ..Options::new(Mesh::new(devices, 1), batch) };
    Program::compile(step.clone(), options).unwrap()
}

/// The cases of single ops, with their derivatives, that every executor is tested with.
pub fn ops() -> Vec<Program> {
    let mut steps = phalanx_testing::ops::all_steps();
    steps.extend(large_cases().iter().map(|case| phalanx_testing::ops::step(case, true)));
    let each = |step: &Step| POLICIES.map(|policy| compile(step, 1, CASE_ROWS, policy));
    steps.iter().flat_map(each).collect()
}

/// Larger operands than in the cases of the executor tests: some kernels depend on the size.
fn large_cases() -> Vec<Case> {
    let of_rows = |dims: &'static [usize], op: Op| {
        case(format!("{} of {dims:?}", op.name()), move |b| {
            let x = b.rows(dims);
            b.push(op.clone(), &[x])
        })
    };
    let windows = ConvGeom::new([64, 64, 8], 8, Window::new([17, 17], [2, 2], Padding::Valid));
    let sum = |axes: &[usize]| Op::Reduce { kind: ReduceKind::Sum, axes: axes.to_vec() };
    let mut cases = vec![
        of_rows(&[40, 50], Op::Transpose { perm: vec![1, 0] }),
        of_rows(&[64, 64, 8], Op::Pool(PoolKind::Max, windows.unwrap())),
        of_rows(&[5000], sum(&[0])),
        of_rows(&[200, 30], sum(&[0])),
    ];
    for dims in [&[30][..], &[1000], &[5000]] {
        cases.extend([Op::Softmax, Op::LogSoftmax].map(|op| of_rows(dims, op)));
        cases.push(case(format!("sparse_xent of {dims:?}"), move |b| {
            let (x, labels) = (b.rows(dims), b.labels(&[], 30));
            b.push(Op::SparseXent, &[x, labels])
        }));
    }
    for width in [64, 300] {
        cases.push(case(format!("gather of {width}"), move |b| {
            let (table, index) = (b.param(&[50, width]), b.labels(&[9], 50));
            b.push(Op::Gather, &[table, index])
        }));
    }
    cases
}

/// Every optimizer with all its options.
fn rules() -> Vec<UpdateRule> {
    let clips = [Clip::Norm(0.5), Clip::GlobalNorm(0.5), Clip::Value(0.5)];
    let mut rules: Vec<UpdateRule> = clips.map(|clip| momentum(Some(clip))).into();
    rules.extend([
        SGD::new(0.1).rule(),
        SGD::new(0.1).momentum(0.9).rule(),
        SGD::new(0.1).momentum(0.9).nesterov(true).weight_decay(0.1).rule(),
        Adam::new(0.1).use_ema(0.9).ema_overwrite_frequency(3).rule(),
        Adam::new(0.1).amsgrad(true).rule(),
        AdamW::new(0.1).rule(),
        RMSprop::new(0.1).rule(),
        RMSprop::new(0.1).momentum(0.9).centered(true).rule(),
        Adagrad::new(0.1).rule(),
        Adadelta::new(0.1).rule(),
        Adamax::new(0.1).rule(),
        Ftrl::new(0.1).learning_rate_power(-0.4).rule(),
        ScheduleFreeAdamW::new(0.1).rule(),
        Nadam::new(0.1).rule(),
        Lion::new(0.1).rule(),
    ]);
    rules
}

/// The training steps of the executor tests, on one replica and on two replicas that share a GPU.
pub fn training() -> Vec<Program> {
    let mut steps: Vec<Step> =
        rules().into_iter().map(|rule| mlp(&[7, 9, 5], rule, (1e-3, 1e-2))).collect();
    let clip = Some(Clip::GlobalNorm(0.1));
    steps.extend([
        wide(adam(clip), (0.0, 0.0)),
        odd(momentum(None)),
        cnn(Scope::All, true, momentum(None), (0.0, 1e-3)),
        cnn(Scope::Device, false, adam(None), (0.0, 0.0)),
        scaled_mlp(&[37, 29, 33, 5], adam(clip), (1e-3, 1e-2), 2),
        scaled_cnn(Scope::Device, momentum(None), (0.0, 1e-3), 2),
    ]);
    let each = |step: &Step| {
        let devices = [1, 2];
        devices.map(|devices| POLICIES.map(|policy| compile(step, devices, 9, policy)))
    };
    steps.iter().flat_map(|step| each(step).into_iter().flatten().collect::<Vec<_>>()).collect()
}

/// The training program of a model on `replicas` that share a GPU.
pub fn program_as(mut model: Model, replicas: usize, batch: usize, policy: Policy) -> Program {
    let devices: Vec<String> = (0..replicas).map(|part| format!("gpu:0/{part}")).collect();
    let strategy = strategy_on(&devices).unwrap().policy(policy);
    let compile = Compile::new("adam").loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy)).unwrap();
    model.program(StepKind::Train, batch).unwrap()
}

/// The training programs of the applications, in every precision.
pub fn networks() -> Vec<Program> {
    use applications::{mini_googlenet, mnist_cnn, mnist_mlp, resnet50};
    let mut programs = vec![];
    for policy in POLICIES {
        let models = [
            mnist_mlp(784, 10).unwrap(),
            mnist_cnn([28, 28, 1], 10).unwrap(),
            mini_googlenet([32, 32, 3], Some(10)).unwrap(),
            resnet50([224, 224, 3], Some(1000)).unwrap(),
        ];
        programs.extend(models.map(|model| program_as(model, 1, 64, policy)));
    }
    programs
}
