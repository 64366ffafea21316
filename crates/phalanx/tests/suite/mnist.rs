//! The perceptron of the guide on the real MNIST: test accuracy of 0.97 after two epochs, on one replica
//! and on two.

use phalanx::data::Samples;
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::path::{Path, PathBuf};

/// `$PHALANX_DATA/mnist`.
fn directory() -> PathBuf {
    PathBuf::from(std::env::var_os("PHALANX_DATA").expect("PHALANX_DATA is set")).join("mnist")
}

#[needs(mnist)]
#[test]
fn the_perceptron_reads_97_of_100_digits_after_two_epochs() {
    let directory = directory();
    let data = datasets::mnist::load(Some(&directory)).unwrap();
    let flat = |(images, labels): (Samples, Tensor)| {
        let rows = images.rows();
        Arrays::new(images.reshape([rows, 784]).unwrap(), labels).unwrap()
    };
    let (train, test) = (flat(data.train), flat(data.test));
    for replicas in [1, 2] {
        let mut model = applications::mnist_mlp(784, 10).unwrap();
        let loss = SparseCategoricalCrossentropy::default().from_logits(true);
        let compile = Compile::new(Adam::default()).loss(loss).metrics(["accuracy"]);
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        model.compile(compile.strategy(strategy)).unwrap();
        let fit = Fit::new().epochs(2).batch_size(32).validation_split(1.0 / 6.0).verbose(0);
        let history = model.fit(&train, fit).unwrap();
        assert_eq!(history.get("val_accuracy").unwrap().len(), 2);
        let logs = model.evaluate(&test).unwrap();
        println!("{replicas} replica(s): {logs:?}, validation {:?}", history.get("val_accuracy"));
        assert_eq!(logs[1].0, "accuracy");
        assert!(logs[1].1 >= 0.97, "{replicas} replica(s): test accuracy {}", logs[1].1);
        model.check_consistency().unwrap();
    }
}

/// Weights and history of a run with all kinds of state that must be restored.
fn run(digits: &(Samples, Tensor), backup: &Path, until: Option<u64>) -> Result<(String, String)> {
    let mut model = Sequential::new()
        .add(Input::new([28, 28, 1]))
        .add(Conv2D::new(8, 3).activation("relu"))
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dropout::new(0.3))
        .add(Dense::new(10).activation("softmax"))
        .build()?;
    let compile = Compile::new(Adam::default()).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).seed(4))?;
    let interrupt = Interrupt::new();
    let requester = interrupt.clone();
    let watch = LambdaCallback::new().batch_end(move |view| {
        if until == Some(view.step) {
            requester.request();
        }
        Ok(Action::Continue)
    });
    let shift = ImageDataGenerator::new().width_shift_range(0.1).rotation_range(10.0);
    let fit = Fit::new()
        .epochs(4)
        .verbose(0)
        .validation_data(Arrays::new(digits.0.clone(), &digits.1)?.batch(100)?)
        .callback(BackupAndRestore::new(backup).save_freq(7).delete_checkpoint(false))
        .callback(EarlyStopping::new("val_loss").patience(1).restore_best_weights(true))
        .callback(ReduceLROnPlateau::new("val_loss").patience(1).factor(0.5))
        .callback(watch)
        .interrupt(&interrupt);
    let history = model.fit(shift.flow(digits.0.clone(), &digits.1, 64)?, fit)?;
    Ok((model.weights_sha256()?, format!("{:?}", history.values)))
}

#[needs(mnist)]
#[test]
fn interrupted_within_an_epoch_a_run_on_digits_ends_with_the_same_bits() {
    let directory = directory();
    let data = datasets::mnist::load(Some(&directory)).unwrap();
    let labels = data.train.1.i32().unwrap()[..2000].to_vec();
    let images = data.train.0.slice_rows(0..2000).unwrap();
    let digits = (images, Tensor::new([2000], labels).unwrap());
    let (alone, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(&digits, alone.path(), None).unwrap();
    for step in [5, 40, 77] {
        let error = run(&digits, twice.path(), Some(step)).unwrap_err();
        assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    }
    assert_eq!(run(&digits, twice.path(), None).unwrap(), expected);
}
