//! Each worker reads its own part of the data.

use super::{job, samples};
use phalanx::data::{Images, Pipeline};
use phalanx::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Images that count their reads.
struct Counted(Vec<AtomicUsize>);

impl Images for Counted {
    fn dims(&self) -> Vec<usize> {
        vec![self.0.len(), 2, 3, 1]
    }

    fn read(&self, row: usize, to: &mut [f32]) -> Result<()> {
        self.0[row].fetch_add(1, Ordering::Relaxed);
        to.iter_mut().enumerate().for_each(|(i, v)| *v = (row * 6 + i) as f32 / 100.0);
        Ok(())
    }
}

#[test]
fn every_worker_reads_its_own_images_only() {
    let images = Arc::new(Counted((0..37).map(|_| AtomicUsize::new(0)).collect()));
    let labels = Tensor::new([37], (0..37).map(|i| i % 3).collect::<Vec<i32>>()).unwrap();
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let mut model = Sequential::new()
            .add(Input::new([2, 3, 1]))
            .add(Flatten::new())
            .add(Dense::new(3))
            .build()?;
        let loss = SparseCategoricalCrossentropy::default().from_logits(true);
        model.compile(Compile::new("sgd").loss(loss).strategy(strategy.deterministic(true)))?;
        let aug = ImageDataGenerator::new().horizontal_flip(true);
        let flow = aug.flow_images(images.clone(), labels.clone(), 10)?;
        model.fit(flow, Fit::new().epochs(3).verbose(0))?;
        model.weights_sha256()
    };
    let counts = || images.0.iter().map(|c| c.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
    let one = run(MirroredStrategy::cpus(1).unwrap().into()).unwrap();
    assert_eq!(counts(), [3; 37]);
    for got in job(2, |_, strategy| run(strategy)) {
        assert_eq!(got.unwrap(), one);
    }
    assert_eq!(counts(), [3; 37], "each image once per epoch, over both workers");
}

#[test]
fn pipelines_and_weighted_means_work_too() {
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let loss = MeanSquaredError::default().with_reduction(Reduction::MeanWithSampleWeight);
        model.compile(Compile::new("sgd").loss(loss).strategy(strategy.deterministic(true)))?;
        let (x, _) = samples(41);
        let y = Tensor::new([41, 1], (0..41).map(|i| i as f32 / 41.0).collect::<Vec<_>>())?;
        let weights = Tensor::new([41], (0..41).map(|i| (i % 5) as f32 + 0.1).collect::<Vec<_>>())?;
        let data = Pipeline::from_tensor_slices((x.clone(), y.clone(), weights.clone()))?;
        model.fit(data.shuffle(10)?.batch(8, false)?, Fit::new().epochs(2).verbose(0))?;
        let own = weights.f32().unwrap_or_default();
        model.fit((x, y), Fit::new().batch_size(9).verbose(0).sample_weight(own))?;
        model.weights_sha256()
    };
    let one = run(MirroredStrategy::cpus(1).unwrap().into()).unwrap();
    for got in job(4, |_, strategy| run(strategy)) {
        assert_eq!(got.unwrap(), one);
    }
}

/// The length to pad to belongs to the global batch, so every worker has the shape that one process would have.
#[test]
fn batches_of_different_lengths_work_too() {
    let elements: Vec<Vec<Tensor>> = (0..19)
        .map(|i| {
            let length = 1 + i * 5 % 7;
            let x: Vec<f32> = (0..length * 2).map(|at| (i + at + 1) as f32 / 30.0).collect();
            let y = vec![i as f32 / 19.0];
            vec![Tensor::new([length, 2], x).unwrap(), Tensor::new([1], y).unwrap()]
        })
        .collect();
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let x = Input::new([None, Some(2)]).symbol();
        let y = GRU::new(3).apply(Masking::new().apply(&x));
        let mut model = Model::new(&x, Dense::new(1).apply(&y))?;
        let compile = Compile::new("adam").loss("mse").strategy(strategy.deterministic(true));
        model.compile(compile)?;
        let data = Pipeline::from_elements(elements.clone())?.shuffle(10)?;
        let buckets = Buckets::new([3, 6], [4, 3, 3]);
        let bucketed = data.clone().bucket_by_sequence_length(buckets)?;
        model.fit(&bucketed, Fit::new().epochs(2).verbose(0))?;
        let padded = data.padded_batch(4)?;
        model.fit(&padded, Fit::new().verbose(0))?;
        let losses = model.evaluate_with(&padded, Inference::new())?;
        let outputs = model.predict(&bucketed)?;
        let bits: Vec<u32> = outputs.f32().unwrap().iter().map(|v| v.to_bits()).collect();
        Ok((model.weights_sha256()?, losses.get("loss"), bits))
    };
    let one = run(MirroredStrategy::cpus(1).unwrap().into()).unwrap();
    for workers in [2, 4] {
        for got in job(workers, |_, strategy| run(strategy)) {
            assert_eq!(got.unwrap(), one);
        }
    }
}

#[test]
fn every_worker_maps_its_own_samples_only() {
    let calls: Arc<Vec<AtomicUsize>> = Arc::new((0..41).map(|_| AtomicUsize::new(0)).collect());
    let counts = || calls.iter().map(|c| c.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
    let run = |strategy: MultiWorkerMirroredStrategy, cached: bool| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let compile = Compile::new("sgd").loss("mse").strategy(strategy.deterministic(true));
        model.compile(compile)?;
        let (x, _) = samples(41);
        let y = Tensor::new([41, 1], (0..41).map(|i| i as f32).collect::<Vec<_>>())?;
        let calls = calls.clone();
        let mapped = Pipeline::from_tensor_slices((x, y))?.map(move |mut sample| {
            let label = &mut sample[1].f32_mut().unwrap_or_default()[0];
            calls[*label as usize].fetch_add(1, Ordering::Relaxed);
            *label /= 41.0;
            Ok(sample)
        });
        let data = if cached { mapped.cache() } else { mapped.shuffle(10)? };
        model.fit(data.batch(8, false)?.prefetch(2), Fit::new().epochs(3).verbose(0))?;
        model.weights_sha256()
    };
    for (cached, each) in [(false, 3), (true, 1)] {
        let one = run(MirroredStrategy::cpus(1).unwrap().into(), cached).unwrap();
        assert_eq!(counts(), [each; 41]);
        for workers in [2, 4] {
            for got in job(workers, |_, strategy| run(strategy, cached)) {
                assert_eq!(got.unwrap(), one);
            }
            // The last batch has one sample: workers without a row read it for its shape.
            let counts = counts();
            assert!(counts.iter().all(|count| *count >= each), "{counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), (41 + workers - 1) * each);
        }
    }
}

/// Every worker opens the generator. If the number of samples is known, it maps only those of its own rows.
#[test]
fn a_generator_gives_every_worker_its_own_rows() {
    let mapped = Arc::new(AtomicUsize::new(0));
    let run = |strategy: MultiWorkerMirroredStrategy, known: bool| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let compile = Compile::new("sgd").loss("mse").strategy(strategy.deterministic(true));
        model.compile(compile)?;
        let data = Pipeline::from_generator(|| {
            let (x, _) = samples(41);
            Ok((0..41).map(move |i| {
                let row = x.slice_rows(i..i + 1).reshape([6])?;
                Ok(vec![row, Tensor::new([1], vec![i as f32 / 41.0])?])
            }))
        });
        let data = if known { data.assert_cardinality(41) } else { data };
        let mapped = mapped.clone();
        let data = data.map(move |sample| {
            mapped.fetch_add(1, Ordering::Relaxed);
            Ok(sample)
        });
        let data = data.shuffle(10)?.batch(8, false)?.prefetch(2);
        model.fit(data, Fit::new().epochs(2).verbose(0))?;
        model.weights_sha256()
    };
    for known in [true, false] {
        let one = run(MirroredStrategy::cpus(1).unwrap().into(), known).unwrap();
        assert_eq!(mapped.swap(0, Ordering::Relaxed), 2 * 41);
        for got in job(2, |_, strategy| run(strategy, known)) {
            assert_eq!(got.unwrap(), one);
        }
        // The last batch has one sample: the worker without a row reads it for its shape.
        let each = if known { 42 } else { 2 * 41 };
        assert_eq!(mapped.swap(0, Ordering::Relaxed), 2 * each);
    }
}
