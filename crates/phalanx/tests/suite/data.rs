//! Datasets through the public interface: augmentation, prefetching, pipelines.

use phalanx::data::{
    Dataset, Epoch, HostBatch, ImageDataGenerator, Images, LocalShard, Pixels, Prefetch, Samples,
    Subset,
};
use phalanx::{Error, Result, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Images whose pixels and labels all equal the index of the sample.
fn numbered(n: usize) -> (Samples, Tensor) {
    let bytes = (0..n).flat_map(|i| [i as u8; 8 * 8 * 3]).collect();
    let x = Pixels::new([n, 8, 8, 3], bytes, 1.0).unwrap();
    (x.into(), Tensor::new([n], (0..n as i32).collect::<Vec<_>>()).unwrap())
}

/// Noise, with the index of the sample as label.
fn noise(n: usize) -> (Samples, Tensor) {
    let mut random = phalanx::Stream::new(1, 0, 0, 0);
    let bytes = (0..n * 8 * 8 * 3).map(|_| random.word() as u8).collect();
    let x = Pixels::new([n, 8, 8, 3], bytes, 255.0).unwrap();
    (x.into(), Tensor::new([n], (0..n as i32).collect::<Vec<_>>()).unwrap())
}

/// Labels and images of an epoch, sample by sample.
fn samples(data: &dyn Dataset, epoch: u64, start: usize) -> Result<Vec<(i32, Vec<f32>)>> {
    let (mut batch, mut out) = (HostBatch::default(), vec![]);
    let mut batches = data.epoch(7, epoch, start)?;
    while batches.next(&mut batch)? {
        assert_eq!(batch.sample_weight, vec![1.0; batch.rows]);
        let labels = &batch.targets[0].i32().unwrap()[..batch.rows];
        let images = batch.inputs[0].f32().unwrap().chunks(8 * 8 * 3);
        out.extend(labels.iter().copied().zip(images.map(<[f32]>::to_vec)));
    }
    Ok(out)
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn everything() -> ImageDataGenerator {
    ImageDataGenerator::new()
        .rotation_range(30.0)
        .width_shift_range(0.2)
        .height_shift_range(3.0)
        .brightness_range((0.5, 1.5))
        .shear_range(10.0)
        .zoom_range(0.2)
        .channel_shift_range(0.1)
        .fill_mode("reflect")
        .horizontal_flip(true)
        .vertical_flip(true)
        .samplewise_center(true)
        .samplewise_std_normalization(true)
}

#[test]
fn augmentation_depends_only_on_seed_epoch_and_sample_index() {
    let (x, y) = noise(50);
    let flow = |batch| everything().flow(&x, &y, batch).unwrap();
    let by_label = |mut all: Vec<(i32, Vec<f32>)>| {
        all.sort_by_key(|(label, _)| *label);
        all
    };
    let small = by_label(samples(&flow(7), 3, 0).unwrap());
    assert_eq!(small.len(), 50);
    assert_eq!(small, by_label(samples(&flow(32).shuffle(false), 3, 0).unwrap()));
    assert_ne!(small, by_label(samples(&flow(7), 4, 0).unwrap()));
    // An epoch resumed in the middle, and one produced by several threads.
    let whole = samples(&flow(7), 3, 0).unwrap();
    assert_eq!(whole[21..], samples(&flow(7), 3, 3).unwrap());
    for workers in [1, 2, 3, 8] {
        let ahead = Prefetch::new(Arc::new(flow(7))).workers(workers).ahead(3);
        assert_eq!(whole, samples(&ahead, 3, 0).unwrap());
        assert_eq!(whole[21..], samples(&ahead, 3, 3).unwrap());
    }
}

#[test]
fn standardisation_follows_keras() {
    let (x, y) = noise(20);
    let one = |generator: ImageDataGenerator| {
        samples(&generator.flow(&x, &y, 20).unwrap().shuffle(false), 0, 0).unwrap()
    };
    let plain = one(ImageDataGenerator::new());
    let scaled = one(ImageDataGenerator::new().rescale(2.0));
    for ((_, a), (_, b)) in plain.iter().zip(&scaled) {
        assert!(a.iter().zip(b).all(|(a, b)| a * 2.0 == *b));
    }
    let mean = |v: &[f32]| v.iter().sum::<f32>() / v.len() as f32;
    let square = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32;
    let sample =
        ImageDataGenerator::new().samplewise_center(true).samplewise_std_normalization(true);
    for (_, image) in one(sample) {
        assert!(mean(&image).abs() < 1e-5 && (square(&image) - 1.0).abs() < 1e-4);
    }
    let feature = ImageDataGenerator::new()
        .featurewise_center(true)
        .featurewise_std_normalization(true)
        .fit(&x)
        .unwrap();
    let all: Vec<f32> = one(feature.clone()).into_iter().flat_map(|(_, image)| image).collect();
    for channel in 0..3 {
        let values: Vec<f32> = all.iter().skip(channel).step_by(3).copied().collect();
        assert!(mean(&values).abs() < 1e-4 && (square(&values) - 1.0).abs() < 1e-3);
    }
}

#[test]
fn shifts_flips_and_brightness_stay_in_their_range() {
    let bytes: Vec<u8> = (0..64).flat_map(|i| [(i % 8) as u8 * 10; 3]).collect();
    let x = Pixels::new([1, 8, 8, 3], bytes, 1.0).unwrap();
    let y = Tensor::new([1], vec![0]).unwrap();
    let first = |generator: &ImageDataGenerator, epoch| {
        samples(&generator.flow(x.clone(), &y, 1).unwrap(), epoch, 0).unwrap().remove(0).1
    };
    let shifted = ImageDataGenerator::new().width_shift_range(0.25);
    let mut seen: Vec<f32> = (0..200).map(|epoch| first(&shifted, epoch)[0]).collect();
    seen.sort_by(f32::total_cmp);
    // Two pixels in either direction, ten apart; on the left the edge is repeated.
    assert!(seen[0] == 0.0 && seen[199] > 19.0 && seen[199] <= 20.0, "{seen:?}");
    let whole = ImageDataGenerator::new().width_shift_range(3.0);
    assert!((0..50).all(|epoch| [0.0, 10.0, 20.0].contains(&first(&whole, epoch)[0])));
    let flipped = ImageDataGenerator::new().horizontal_flip(true);
    let count = (0..400).filter(|epoch| first(&flipped, *epoch)[0] == 70.0).count();
    assert!((150..250).contains(&count), "{count}");
    let bright = ImageDataGenerator::new().brightness_range((2.0, 2.0));
    assert_eq!(first(&bright, 0)[3 * 7], 140.0);
}

#[test]
fn subsets_partition_the_samples() {
    let (x, y) = numbered(10);
    let flow = ImageDataGenerator::new().validation_split(0.25).flow(&x, &y, 4).unwrap();
    let flow = flow.shuffle(false);
    let labels = |subset| -> Vec<i32> {
        let part = flow.clone().subset(subset).unwrap();
        samples(&part, 0, 0).unwrap().into_iter().map(|(label, _)| label).collect()
    };
    assert_eq!(labels(Subset::Validation), [0, 1]);
    assert_eq!(labels(Subset::Training), [2, 3, 4, 5, 6, 7, 8, 9]);
    let none = ImageDataGenerator::new().flow(&x, &y, 4).unwrap().subset(Subset::Validation);
    assert!(message(none).contains("validation_split"));
}

#[test]
fn arguments_out_of_range_are_named() {
    let (x, y) = numbered(2);
    let new = ImageDataGenerator::new;
    for (generator, expected) in [
        (new().fill_mode("mirror"), "unknown fill_mode 'mirror'"),
        (new().rotation_range(f64::NAN), "rotation_range: expected 0 to 1,000,000"),
        (new().width_shift_range(-0.1), "width_shift_range"),
        (new().zoom_range(1.0), "zoom_range: expected a range above 0, received 0 to 2"),
        (new().zoom_range((1.2, 0.8)), "zoom_range"),
        (new().brightness_range((-1.0, 1.0)), "brightness_range"),
        (new().validation_split(1.0), "validation_split"),
        (new().featurewise_center(true), "call fit(x) first"),
    ] {
        let message = message(generator.flow(&x, &y, 1));
        assert!(message.contains(expected), "{message} should say {expected}");
    }
    assert!(message(new().flow(&x, &y, 0)).contains("batch_size"));
    assert!(message(new().flow(&x, Tensor::zeros([3]), 1)).contains("y[0]: expected 2 rows"));
    assert!(message(new().flow(Tensor::zeros([2, 8]), (), 1)).contains("images [n, height"));
    assert!(message(new().fit(Tensor::zeros([2, 8]))).contains("images [n, height"));
}

/// Images of which one cannot be read. Counts the reads.
struct Failing {
    bad: Option<usize>,
    panics: bool,
    read: AtomicUsize,
}

impl Dataset for Failing {
    fn len(&self) -> Option<usize> {
        Some(1000)
    }

    fn batches(&self) -> Option<usize> {
        Some(1000)
    }

    fn batch_size(&self) -> usize {
        1
    }

    fn skips(&self) -> bool {
        true
    }

    fn epoch_of(
        &self,
        _: u64,
        _: u64,
        start: usize,
        _: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        Ok(Box::new(FailingEpoch(self, start)))
    }
}

struct FailingEpoch<'a>(&'a Failing, usize);

impl Epoch for FailingEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        if Some(self.1) == self.0.bad {
            assert!(!self.0.panics, "sample {} makes it panic", self.1);
            return Err(Error::config("reader", format!("sample {} is unreadable", self.1)));
        }
        self.0.read.fetch_add(1, Ordering::Relaxed);
        batch.rows = 1;
        self.1 += 1;
        Ok(self.1 <= 1000)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.1 += batches;
        Ok(())
    }
}

#[test]
fn a_prefetched_error_ends_the_epoch_at_its_position() {
    for (panics, expected) in [(false, "sample 20 is unreadable"), (true, "sample 20 makes it")] {
        for workers in [1, 4] {
            let failing = Failing { bad: Some(20), panics, read: AtomicUsize::new(0) };
            let data = Prefetch::new(Arc::new(failing)).workers(workers);
            let mut batch = HostBatch::default();
            let mut epoch = data.epoch(0, 0, 0).unwrap();
            for _ in 0..20 {
                assert!(epoch.next(&mut batch).unwrap());
            }
            assert!(message(epoch.next(&mut batch)).contains(expected));
            assert!(!epoch.next(&mut batch).unwrap());
        }
    }
}

#[test]
fn prefetching_is_bounded_and_dropping_ends_the_threads() {
    let failing = Arc::new(Failing { bad: None, panics: false, read: AtomicUsize::new(0) });
    let data = Prefetch::new(failing.clone()).workers(2).ahead(4);
    let mut batch = HostBatch::default();
    let mut epoch = data.epoch(0, 0, 0).unwrap();
    assert!(epoch.next(&mut batch).unwrap());
    std::thread::sleep(Duration::from_millis(100));
    // The one taken, four waiting, and one in each thread.
    assert!(failing.read.load(Ordering::Relaxed) <= 1 + 4 + 2);
    drop(epoch);
    // The threads have been joined and have dropped their references to the dataset.
    assert_eq!(Arc::strong_count(&failing), 2);
}

#[test]
fn waiting_is_measured() {
    struct Slow;
    impl Images for Slow {
        fn dims(&self) -> Vec<usize> {
            vec![3, 1, 1, 1]
        }
        fn read(&self, _: usize, to: &mut [f32]) -> Result<()> {
            std::thread::sleep(Duration::from_millis(30));
            to.fill(0.0);
            Ok(())
        }
    }
    let flow = ImageDataGenerator::new().flow_images(Arc::new(Slow), (), 1).unwrap();
    let data = Prefetch::new(Arc::new(flow));
    let mut batch = HostBatch::default();
    let mut epoch = data.epoch(0, 0, 0).unwrap();
    while epoch.next(&mut batch).unwrap() {}
    assert!(data.waited() >= Duration::from_millis(80), "{:?}", data.waited());
}
