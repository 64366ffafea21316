//! The guide's perceptron on the real MNIST: 0.97 on the test set after two epochs, on one replica
//! and on two.

use phalanx::data::Samples;
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

/// `$PHALANX_DATA/mnist`, else beside the repository; `None` where there is no MNIST.
fn directory() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("PHALANX_DATA").map_or(shared, PathBuf::from);
    let found = Some(root.join("mnist")).filter(|dir| dir.is_dir());
    if found.is_none() {
        eprintln!("skipped: no mnist in {}", root.display());
    }
    found
}

#[test]
fn the_perceptron_reads_97_of_100_digits_after_two_epochs() {
    let Some(directory) = directory() else { return };
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
        model.check_mirrored().unwrap();
    }
}
