//! In deterministic mode weights are bit-identical for any number of replicas and threads.

use phalanx::prelude::*;

/// A network with all layers that sum over the batch: convolution, normalisation, dropout, dense.
fn compiled(strategy: MirroredStrategy, optimizer: Box<dyn Optimizer>) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([10, 10, 2]))
        .add(Conv2D::new(8, 3).padding("same").activation("relu"))
        .add(BatchNormalization::new())
        .add(MaxPooling2D::new(2))
        .add(Conv2D::new(5, 3).kernel_regularizer("l2"))
        .add(LayerNormalization::new())
        .add(Flatten::new())
        .add(Dropout::new(0.3))
        .add(Dense::new(300).activation("gelu"))
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    let compile = Compile::new(optimizer)
        .loss("sparse_categorical_crossentropy")
        .metrics(["accuracy"])
        .strategy(strategy.deterministic(true))
        .seed(9);
    model.compile(compile).unwrap();
    model
}

fn data(samples: usize) -> (Tensor, Tensor) {
    let mut rng = phalanx::Stream::new(2, 0, 0, 0);
    let x: Vec<f32> = (0..samples * 200).map(|_| rng.unit() as f32).collect();
    let y: Vec<i32> = (0..samples).map(|i| (i % 3) as i32).collect();
    (Tensor::new([samples, 10, 10, 2], x).unwrap(), Tensor::new([samples], y).unwrap())
}

/// Weights and history after three epochs.
fn outcome(replicas: usize, threads: usize, optimizer: Box<dyn Optimizer>) -> (String, String) {
    let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(threads);
    let mut model = compiled(strategy, optimizer);
    let fit = Fit::new().epochs(3).batch_size(35).verbose(0).validation_split(0.1);
    let history = model.fit(data(100), fit).unwrap();
    model.check_consistency().unwrap();
    (model.weights_sha256().unwrap(), format!("{:?}", history.values))
}

#[test]
fn replicas_and_threads_leave_no_trace() {
    let optimizers: [fn() -> Box<dyn Optimizer>; 3] = [
        || Box::new(Adam::default()),
        || Box::new(SGD::new(0.01).momentum(0.9).global_clipnorm(0.05)),
        || Box::new(RMSprop::default().clipnorm(0.05)),
    ];
    for optimizer in optimizers {
        let expected = outcome(1, 1, optimizer());
        for (replicas, threads) in [(1, 2), (2, 0), (4, 1), (8, 3)] {
            let received = outcome(replicas, threads, optimizer());
            assert_eq!(received, expected, "{replicas} replicas of {threads} threads");
        }
    }
}

/// A masked recurrent layer, attention and dropout.
fn sequence_model(strategy: MirroredStrategy) -> Model {
    let x = Input::new([6]).integers().symbol();
    let y = Embedding::new(9, 8).mask_zero(true).apply(&x);
    let y = Bidirectional::new(GRU::new(4).return_sequences(true)).apply(&y);
    let y = Dropout::new(0.2).apply(MultiHeadAttention::new(2, 4).apply([&y, &y]));
    let y = LayerNormalization::new().apply(&y);
    let y = Dense::new(3).apply(LSTM::new(5).apply(&y));
    let mut model = Model::new(&x, &y).unwrap();
    let strategy = strategy.deterministic(true);
    model.compile(Compile::new("adam").loss("mse").strategy(strategy).seed(4)).unwrap();
    model
}

#[test]
fn sequence_models_have_the_same_bits_on_any_number_of_replicas() {
    let mut rng = phalanx::Stream::new(5, 0, 0, 0);
    let rows = 37;
    let x: Vec<i32> = (0..rows * 6).map(|_| rng.below(9) as i32).collect();
    let y: Vec<f32> = (0..rows * 3).map(|_| rng.unit() as f32).collect();
    let data = (Tensor::new([rows, 6], x).unwrap(), Tensor::new([rows, 3], y).unwrap());
    let weights = |replicas: usize| {
        let mut model = sequence_model(MirroredStrategy::cpus(replicas).unwrap());
        let fit = Fit::new().epochs(2).batch_size(13).verbose(0);
        model.fit(data.clone(), fit).unwrap();
        model.weights_sha256().unwrap()
    };
    let expected = weights(1);
    for replicas in [2, 4, 8] {
        assert_eq!(weights(replicas), expected, "{replicas} replicas");
    }
}

#[test]
fn other_numbers_of_replicas_are_refused() {
    let strategy = MirroredStrategy::cpus(3).unwrap().deterministic(true);
    let mut model = Sequential::new().add(Input::new([2])).add(Dense::new(1)).build().unwrap();
    let error = model.compile(Compile::new("sgd").loss("mse").strategy(strategy)).unwrap_err();
    assert!(error.to_string().contains("expected 1, 2, 4 or 8 replicas, received 3"), "{error}");
}
