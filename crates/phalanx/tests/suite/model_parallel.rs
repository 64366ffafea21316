//! Replicas of several devices train like one device, whatever the layout.

use phalanx::layers::*;
use phalanx::prelude::*;
use phalanx_graph::Program;

/// A block of a transformer over tokens, with a dropout and dense layers, for six classes.
fn transformer() -> Result<Model> {
    let tokens = Input::new([5]).integers().symbol();
    let x = Embedding::new(12, 8).named("tokens").apply(&tokens);
    let y = LayerNormalization::new().apply(&x);
    let y = MultiHeadAttention::new(4, 3).dropout(0.1).named("attention").apply([&y, &y]);
    let x = Add::new().apply([&x, &y]);
    let y = LayerNormalization::new().apply(&x);
    let y = Dense::new(16).activation("gelu").named("ffn_up").apply(&y);
    let y = Dense::new(8).named("ffn_down").apply(&y);
    let x = Add::new().apply([&x, &y]);
    let x = GlobalAveragePooling1D::new().apply(&x);
    let y = Dense::new(8).activation("softmax").named("classes").apply(&x);
    Model::new(&tokens, &y)
}

fn data() -> (Tensor, Tensor) {
    let n = 23;
    let x: Vec<i32> = (0..n * 5).map(|i| (i * 37 % 11) as i32).collect();
    let y: Vec<i32> = (0..n).map(|i| (i * 7 % 8) as i32).collect();
    (Tensor::new([n, 5], x).unwrap(), Tensor::new([n], y).unwrap())
}

/// The layout of a transformer: heads, the middle of dense layers, words and classes.
fn layout(batch: usize, model: usize) -> Result<LayoutMap> {
    LayoutMap::new(&DeviceMesh::new([batch, model], ["batch", "model"])?)
        .insert("tokens/embeddings", [Some("model"), None])?
        .insert("attention/(query|key|value)/kernel", [None, Some("model"), None])?
        .insert("attention/(query|key|value)/bias", [Some("model"), None])?
        .insert("attention/attention_output/kernel", [Some("model"), None, None])?
        .insert("ffn_up/kernel", [None, Some("model")])?
        .insert("ffn_up/bias", [Some("model")])?
        .insert("ffn_down/kernel", [Some("model"), None])?
        .insert("classes/kernel", [None, Some("model")])?
        .insert("classes/bias", [Some("model")])
}

struct Outcome {
    losses: Vec<f64>,
    weights: Vec<(String, Tensor)>,
    predictions: Tensor,
    /// The program of a training step.
    program: Program,
    /// Bytes of weights, gradients, optimizer state and activations of a device.
    bytes: usize,
}

fn train(strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<Outcome> {
    let mut model = transformer()?;
    let optimizer = SGD::new(0.1).momentum(0.9).global_clipnorm(0.5).use_ema(0.9);
    let compile = Compile::new(optimizer).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy).seed(3))?;
    let (x, y) = data();
    let fit = Fit::new().epochs(3).batch_size(7).verbose(0);
    let history = model.fit((&x, &y), fit.validation_data((&x, &y)))?;
    model.check_consistency()?;
    let losses = ["loss", "val_loss"].iter().flat_map(|n| history.get(n).unwrap().to_vec());
    let plan = model.own_memory_plan(StepKind::Train, 7)?;
    Ok(Outcome {
        losses: losses.collect(),
        program: model.program(StepKind::Train, 7)?,
        bytes: plan.parts.iter().map(|(_, bytes)| bytes).sum(),
        weights: model.weights()?,
        predictions: model.predict(&x)?,
    })
}

fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    let scale = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 2e-4 * scale, "{what}: {g} instead of {w}");
    }
}

#[test]
fn a_transformer_trains_like_on_one_device() {
    let one = train(DataParallel::cpus(1).unwrap()).unwrap();
    for (batch, model) in [(1, 2), (2, 2), (2, 4), (3, 1)] {
        let strategy = ModelParallel::new(layout(batch, model).unwrap()).unwrap();
        assert_eq!(strategy.num_replicas_in_sync(), batch);
        let divided = train(strategy).unwrap();
        let mesh = divided.program.options().mesh;
        assert_eq!((mesh.replicas, mesh.devices_per_replica), (batch, model));
        // Heads, dense layers and classes are summed over the devices of a replica.
        let exchanges = divided.program.to_string().contains("= all_reduce_sum_parts(");
        assert_eq!(exchanges, model > 1, "{}", divided.program);
        for (got, want) in divided.losses.iter().zip(&one.losses) {
            assert!((got - want).abs() <= 1e-4 * want.abs(), "{batch}x{model}: {got}, {want}");
        }
        for ((name, got), (_, want)) in divided.weights.iter().zip(&one.weights) {
            assert_close(name, got.f32().unwrap(), want.f32().unwrap());
        }
        let floats = |t: &Tensor| t.f32().unwrap().to_vec();
        assert_close("predictions", &floats(&divided.predictions), &floats(&one.predictions));
    }
}

#[test]
fn a_sharded_state_has_the_bits_of_a_mirrored_one() {
    let bits = |shard| {
        let strategy = ModelParallel::new(layout(2, 2).unwrap()).unwrap().shard(shard);
        let outcome = train(strategy).unwrap();
        let weights = outcome.weights.iter().flat_map(|(_, t)| t.f32().unwrap().to_vec());
        weights.map(f32::to_bits).collect::<Vec<u32>>()
    };
    let mirrored = bits(Shard::None);
    for shard in [Shard::Optimizer, Shard::Gradients, Shard::Weights] {
        assert!(bits(shard) == mirrored, "{shard:?}");
    }
}

#[test]
fn a_device_holds_its_part_of_the_weights() {
    let bytes = |model| train(ModelParallel::new(layout(1, model)?)?).map(|outcome| outcome.bytes);
    let (one, four) = (bytes(1).unwrap(), bytes(4).unwrap());
    assert!(four < one, "{four} of {one} bytes");
}

#[test]
fn a_weight_that_an_op_needs_whole_is_refused_by_compile() {
    let mut model = Sequential::new()
        .add(Input::new([8, 8, 4]))
        .add(DepthwiseConv2D::new(3).named("depthwise"))
        .add(Flatten::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    let mesh = DeviceMesh::new([1, 2], ["batch", "model"]).unwrap();
    let axes = [None, None, Some("model"), None];
    let layout = LayoutMap::new(&mesh).insert(".*depthwise/kernel", axes).unwrap();
    let compile = Compile::new("sgd").loss("mse").strategy(ModelParallel::new(layout).unwrap());
    let error = model.compile(compile).unwrap_err().to_string();
    assert!(error.contains("that layer 'depthwise' needs whole"), "{error}");
}

#[test]
fn layouts_that_cannot_work_are_refused_by_compile() {
    let error = |key: &str, axes: &[Option<&str>]| {
        let mesh = DeviceMesh::new([1, 2], ["batch", "model"]).unwrap();
        let layout = LayoutMap::new(&mesh).insert(key, axes.iter().copied()).unwrap();
        train(ModelParallel::new(layout).unwrap()).err().expect("refused").to_string()
    };
    let missing = error("dense/kernel", &[None, Some("model")]);
    assert!(
        missing.contains("'dense/kernel': expected to match a weight, received none"),
        "{missing}"
    );
    let odd = error("attention/query/kernel", &[None, None, Some("model")]);
    assert!(odd.contains("expected a multiple of model=2, received 3"), "{odd}");
    let mesh = DeviceMesh::new([3], ["batch"]).unwrap();
    let wrong = ModelParallel::with_devices(LayoutMap::new(&mesh), ["cpu:0", "cpu:1"]);
    let error = wrong.unwrap_err().to_string();
    assert!(error.contains("expected the 3 devices of the mesh batch=3, received 2"), "{error}");
}
