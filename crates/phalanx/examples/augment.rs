//! Image augmentation inside the model, by layers that are active in training and inactive in inference.
//!
//! `cargo run --release -p phalanx --example augment`

pub mod arguments;

use phalanx::prelude::*;

fn main() -> Result<()> {
    arguments::read("")?;
    let (plain, augmented) = run(datasets::load("glyphs")?)?;
    println!("loss on shifted test images, trained without random layers: {plain:.4}");
    println!("loss on shifted test images, trained with them:             {augmented:.4}");
    Ok(())
}

/// The network, with or without random layers before it.
fn network(augment: bool) -> Result<Model> {
    let mut model = Sequential::new().add(Input::new([28, 28, 1]));
    if augment {
        model = model
            .add(RandomTranslation::new(0.15, 0.15).fill_mode("constant"))
            .add(RandomRotation::new(0.04).fill_mode("constant"))
            .add(RandomZoom::new(0.15).fill_mode("constant"))
            .add(RandomContrast::new(0.3).value_range((0.0, 1.0)));
    }
    let mut model = model
        .add(Conv2D::new(16, 3).activation("relu"))
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(64).activation("relu"))
        .add(Dense::new(10).activation("softmax"))
        .build()?;
    model.compile(
        Compile::new("adam").loss("sparse_categorical_crossentropy").metrics(["accuracy"]),
    )?;
    Ok(model)
}

/// Shifts images two pixels down and to the right.
fn shifted(images: &Tensor) -> Result<Tensor> {
    let model = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(ZeroPadding2D::new(((2, 0), (2, 0))))
        .add(Cropping2D::new(((0, 2), (0, 2))))
        .build()?;
    model.predict(images)
}

pub fn run(digits: datasets::Split) -> Result<(f64, f64)> {
    let (images, labels) = digits.test;
    let test = (shifted(&images.to_tensor())?, labels);
    let mut losses = [0.0; 2];
    for (loss, augment) in losses.iter_mut().zip([false, true]) {
        let mut model = network(augment)?;
        model.fit(digits.train.clone(), Fit::new().epochs(3).batch_size(64))?;
        // The random layers are inactive: two predictions are the same.
        assert_eq!(model.predict(&test.0)?, model.predict(&test.0)?);
        *loss = model.evaluate(test.clone())?.get("loss").unwrap_or(f64::NAN);
    }
    Ok((losses[0], losses[1]))
}
