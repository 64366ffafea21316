//! A run of two epochs on the devices of one or several workers. The tests of emulated GPUs use it too.

use phalanx::prelude::*;

pub fn samples(n: usize) -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..n * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let y: Vec<i32> = (0..n).map(|i| (i * 7 % 3) as i32).collect();
    (Tensor::new([n, 6], x).unwrap(), Tensor::new([n], y).unwrap())
}

pub fn compiled(strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<Model> {
    let mut model = Sequential::new()
        .add(Input::new([6]))
        .add(Dense::new(16).activation("relu"))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.2))
        .add(Dense::new(3).activation("softmax"))
        .build()?;
    let compile = Compile::new(Adam::new(0.01)).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy).seed(3))?;
    Ok(model)
}

/// The results of a run: history, evaluation, predictions and weights.
pub type Outcome = (Vec<f64>, Vec<f64>, Vec<f32>, String);

pub fn train(
    strategy: impl Into<MultiWorkerMirroredStrategy>,
    n: usize,
    batch: usize,
    fit: Fit,
) -> Result<Outcome> {
    let mut model = compiled(strategy)?;
    let (x, y) = samples(n);
    let weights: Vec<f32> = (0..n).map(|i| 0.5 + (i % 4) as f32).collect();
    let fit = fit.epochs(2).batch_size(batch).verbose(0).sample_weight(weights);
    let history = model.fit((&x, &y), fit.validation_data((&x, &y)))?;
    let arguments = || Inference::new().batch_size(batch);
    let logs = model.evaluate_with((&x, &y), arguments())?;
    let outputs = model.predict_with(&x, arguments())?;
    model.check_consistency()?;
    let losses = ["loss", "val_loss", "accuracy"]
        .iter()
        .flat_map(|name| history.get(name).unwrap().to_vec());
    Ok((
        losses.collect(),
        logs.iter().map(|(_, v)| *v).collect(),
        outputs[0].f32().unwrap().to_vec(),
        model.weights_sha256()?,
    ))
}
