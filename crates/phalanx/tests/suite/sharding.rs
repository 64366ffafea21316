//! Training with a sharded state has the bits of mirrored training, whatever the optimizer and its options, on the
//! replicas of one process and on several workers.

use crate::workers::job;
use phalanx::layer::LayerHandle;
use phalanx::prelude::*;

const LEVELS: [Shard; 3] = [Shard::Optimizer, Shard::Gradients, Shard::Weights];

/// Parameters of more than one block, a frozen layer, moving statistics, a penalty and a constraint.
fn network() -> Result<Model> {
    Sequential::new()
        .add(Input::new([6]))
        .add(LayerHandle::from(Dense::new(40).activation("relu")).frozen())
        .add(Dense::new(230).activation("relu").kernel_regularizer("l2"))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.2))
        .add(Dense::new(50).activation("tanh").kernel_constraint("max_norm"))
        .add(Dense::new(3).activation("softmax"))
        .build()
}

fn data() -> (Tensor, Tensor) {
    let n = 37;
    let x: Vec<f32> = (0..n * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let y: Vec<i32> = (0..n).map(|i| (i * 7 % 3) as i32).collect();
    (Tensor::new([n, 6], x).unwrap(), Tensor::new([n], y).unwrap())
}

type MakeOptimizer = fn() -> Box<dyn Optimizer>;

/// Optimizers with every option that reads or changes gradients, weights or slots.
const OPTIMIZERS: [MakeOptimizer; 6] = [
    || Box::new(SGD::new(0.05)),
    || Box::new(SGD::new(0.05).momentum(0.9).clipnorm(0.05)),
    || Box::new(Adam::new(0.01).global_clipnorm(0.1).use_ema(0.9)),
    || Box::new(Adam::new(0.01).use_ema(0.8).ema_overwrite_frequency(3)),
    || Box::new(RMSprop::new(0.01).centered(true).clipvalue(0.01).weight_decay(0.01)),
    || Box::new(Adam::new(0.01).amsgrad(true).gradient_accumulation_steps(3)),
];

/// Weights, history, evaluation and predictions of a run.
fn outcome(
    strategy: impl Into<MultiWorkerMirroredStrategy>,
    optimizer: Box<dyn Optimizer>,
) -> Result<(String, String, Vec<u32>)> {
    let mut model = network()?;
    let compile = Compile::new(optimizer).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy).seed(3))?;
    let (x, y) = data();
    let fit = Fit::new().epochs(2).batch_size(9).verbose(0);
    let history = model.fit((&x, &y), fit.validation_data((&x, &y)))?;
    model.check_consistency()?;
    let evaluated = model.evaluate_with((&x, &y), Inference::new().verbose(0))?.to_string();
    let predicted = model.predict(&x)?;
    let bits = predicted.f32().unwrap().iter().map(|v| v.to_bits()).collect();
    Ok((model.weights_sha256()?, format!("{:?} {evaluated}", history.values), bits))
}

#[test]
fn replicas_of_one_process() {
    for optimizer in OPTIMIZERS {
        for (replicas, threads) in [(1, 2), (2, 1), (3, 2)] {
            let run = |shard| {
                let strategy = DataParallel::cpus(replicas)?.threads(threads).shard(shard);
                outcome(strategy, optimizer())
            };
            let mirrored = run(Shard::None).unwrap();
            for level in LEVELS {
                assert_eq!(run(level).unwrap(), mirrored, "{level:?} on {replicas}");
            }
        }
    }
}

#[test]
fn several_workers() {
    for optimizer in OPTIMIZERS {
        for workers in [2, 3] {
            let run =
                |shard| job(workers, |_, strategy| outcome(strategy.shard(shard), optimizer()));
            let mirrored = run(Shard::None);
            let mirrored = mirrored[0].as_ref().unwrap();
            for level in LEVELS {
                for (rank, outcome) in run(level).iter().enumerate() {
                    assert_eq!(
                        outcome.as_ref().unwrap(),
                        mirrored,
                        "{level:?}: rank {rank} of {workers}"
                    );
                }
            }
        }
    }
}

#[test]
fn deterministic_training_has_the_bits_of_one_device() {
    let optimizer = || -> Box<dyn Optimizer> { Box::new(Adam::new(0.01).global_clipnorm(0.1)) };
    let one = DataParallel::cpus(1).unwrap().deterministic(true);
    let one = outcome(one, optimizer()).unwrap();
    for level in LEVELS {
        for replicas in [2, 8] {
            let strategy = DataParallel::cpus(replicas).unwrap().deterministic(true).shard(level);
            assert_eq!(outcome(strategy, optimizer()).unwrap(), one, "{level:?} on {replicas}");
        }
        for workers in [2, 4] {
            let run = |_, strategy: MultiWorkerMirroredStrategy| {
                outcome(strategy.deterministic(true).shard(level), optimizer())
            };
            for outcome in job(workers, run) {
                assert_eq!(outcome.unwrap(), one, "{level:?} on {workers} workers");
            }
        }
    }
}

#[test]
fn mixed_float16_scales_the_loss_of_a_sharded_state() {
    let run = |shard| {
        let strategy = DataParallel::cpus(2).unwrap().policy(Policy::MixedFloat16).shard(shard);
        outcome(strategy, Box::new(Adam::new(0.01).global_clipnorm(0.1))).unwrap()
    };
    let mirrored = run(Shard::None);
    for level in LEVELS {
        assert_eq!(run(level), mirrored, "{level:?}");
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let strategy = || DataParallel::cpus(1).unwrap().shard(Shard::Optimizer);
    let error = outcome(strategy(), Box::new(Lamb::new(0.01))).unwrap_err().to_string();
    let expected = "compile: shard: expected an optimizer that updates weights element by element, to \
                    divide its state, received Lamb";
    assert_eq!(error, expected);
}

#[test]
fn workers_that_divide_differently_are_refused() {
    let run = |rank, strategy: MultiWorkerMirroredStrategy| {
        let level = if rank == 0 { Shard::Optimizer } else { Shard::Weights };
        outcome(strategy.shard(level), Box::new(SGD::new(0.1)))
    };
    for outcome in job(2, run) {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("shard: expected optimizer on rank 0"), "{error}");
        assert!(error.contains("received weights on rank 1"), "{error}");
    }
}
