//! A trained network under a new head, on the devices one chooses: the first layers stay as they
//! are, only the head learns.
//!
//! `cargo run --release -p phalanx --example 05_transfer`

use phalanx::prelude::*;

fn main() -> Result<()> {
    // As in TensorFlow: two GPUs where there are as many. Without any it is the CPU.
    let gpus: Vec<_> = list_physical_devices(DeviceKind::Gpu).into_iter().take(2).collect();
    set_visible_devices(&gpus, DeviceKind::Gpu)?;
    let (_, _, logs) = run()?;
    println!("odd or even - {logs}");
    Ok(())
}

/// A small network that was trained to tell ten digits apart; `applications::resnet50(.., None)`
/// would stand here, had it been trained.
fn base_model(digits: &datasets::Split) -> Result<Model> {
    let images = Input::new([28, 28, 1]).symbol();
    let x = Conv2D::new(8, 3).strides(2).activation("relu").apply(&images);
    let x = BatchNormalization::new().momentum(0.9).apply(&x);
    let x = Conv2D::new(16, 3).strides(2).activation("relu").apply(&x);
    let features = Flatten::new().apply(&x);
    let classes = Dense::new(10).activation("softmax").apply(&features);
    let mut trained = Model::new(&images, &classes)?;
    trained.compile(Compile::new("adam").loss("sparse_categorical_crossentropy"))?;
    trained.fit(&digits.train, Fit::new().epochs(2).batch_size(64).verbose(2))?;
    // Another model over the same layers: it sees what was trained.
    Model::with_name("base", &images, &features)
}

pub fn run() -> Result<(Model, Model, Logs)> {
    let digits = datasets::load("glyphs")?;
    let base = base_model(&digits)?;
    base.set_trainable(false);

    let x = Dense::new(64).activation("relu").apply(base.outputs());
    let x = Dense::new(32).activation("relu").apply(&x);
    let predictions = Dense::new(2).activation("softmax").apply(&x);
    let mut model = Model::new(base.inputs(), &predictions)?;

    let strategy = MirroredStrategy::new();
    let batch_size = 64 * strategy.num_replicas_in_sync();
    model.compile(
        Compile::new("adam")
            .loss("categorical_crossentropy")
            .metrics(["accuracy"])
            .strategy(strategy),
    )?;
    println!("{}", model.summary());

    let odd = |(x, y): (Samples, Tensor)| -> Result<Arrays> {
        let odd: Vec<i32> = y.i32().into_iter().flatten().map(|digit| digit % 2).collect();
        let odd = Tensor::new(y.dims(), odd).expect("as many as digits");
        Arrays::new(x, to_categorical(&odd, Some(2))?)
    };
    model.fit(odd(digits.train)?, Fit::new().epochs(3).batch_size(batch_size).verbose(2))?;
    let logs = model.evaluate(odd(digits.test)?, batch_size)?;
    Ok((base, model, logs))
}
