//! The real datasets in `$PHALANX_DATA`, if it is set.

use phalanx::data::{Arrays, Dataset, HostBatch, Samples};
use phalanx::datasets::cifar;
use phalanx_needs::needs;
use std::path::PathBuf;

fn cifar_10() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("PHALANX_DATA")?).join("cifar-10-batches-bin");
    dir.is_dir().then_some(dir)
}

fn channel_means(x: &Samples) -> [f64; 3] {
    let mean = x.mean();
    let pixels = mean.f32().unwrap().chunks(3);
    let n = pixels.len() as f64;
    let mut sums = [0.0; 3];
    pixels.for_each(|p| (0..3).for_each(|c| sums[c] += f64::from(p[c]) / n));
    sums
}

/// The counts and means that the README of the data states.
#[needs(cifar10)]
#[test]
fn cifar_10_has_the_published_counts_and_means() {
    let dir = cifar_10().expect("$PHALANX_DATA/cifar-10-batches-bin");
    let data = cifar::load(Some(&dir)).unwrap();
    assert_eq!(data.train.0.dims(), [50_000, 32, 32, 3]);
    assert_eq!(data.test.0.dims(), [10_000, 32, 32, 3]);
    for (part, per_class, expected) in [
        (&data.train, 5000, [0.4914, 0.4822, 0.4465]),
        (&data.test, 1000, [0.4942, 0.4851, 0.4504]),
    ] {
        let labels = part.1.i32().unwrap();
        for class in 0..10 {
            assert_eq!(labels.iter().filter(|l| **l == class).count(), per_class);
        }
        for (mean, expected) in channel_means(&part.0).into_iter().zip(expected) {
            assert!((mean - expected).abs() < 5e-5, "{mean} {expected}");
        }
    }
    let (x, y) = data.train;
    let arrays = Arrays::new(x.clone(), y).unwrap().batch(128).unwrap().shuffle(true);
    let mut batch = HostBatch::default();
    assert!(arrays.epoch(1, 0, 0).unwrap().next(&mut batch).unwrap());
    assert_eq!(batch.inputs[0].dims(), [128, 32, 32, 3]);
}

#[test]
fn unknown_names_are_rejected_and_local_datasets_are_found() {
    assert!(phalanx::datasets::find("mnsit").unwrap_err().to_string().contains("fashion-mnist"));
    if let Some(dir) = cifar_10() {
        assert_eq!(phalanx::datasets::find("cifar-10").unwrap(), Some(dir));
    }
}
