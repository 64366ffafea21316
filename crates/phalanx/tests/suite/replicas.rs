//! Replicas train like a single device: the same gradients, losses, metrics and predictions for any number of
//! replicas and rows, and bit-identical results in every run.

use phalanx::Stream;
use phalanx::prelude::*;

/// Every number of replicas, with one thread each and with the cores divided among them.
fn strategies() -> Vec<MirroredStrategy> {
    let cpus = |n| MirroredStrategy::cpus(n).unwrap();
    let some = (1..=4).flat_map(|n| [cpus(n).threads(1), cpus(n)]);
    some.chain([cpus(1).threads(3), cpus(2).threads(2)]).collect()
}

fn one_device() -> MirroredStrategy {
    MirroredStrategy::cpus(1).unwrap().threads(1)
}

/// Numbers in `-1..1` that depend on the seed alone.
fn noise(seed: u64, dims: &[usize]) -> Tensor {
    let mut rng = Stream::new(seed, 0, 1, 0);
    let len = dims.iter().product();
    let values: Vec<f32> = (0..len).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
    Tensor::new(dims, values).unwrap()
}

fn labels(seed: u64, rows: usize, classes: u64) -> Tensor {
    let mut rng = Stream::new(seed, 0, 2, 0);
    let values: Vec<i32> = (0..rows).map(|_| rng.below(classes) as i32).collect();
    Tensor::new([rows], values).unwrap()
}

/// Parallel convolutions, synchronised batch normalisation, dropout, pooling and a dense kernel that is large
/// compared with the batch.
fn network() -> Model {
    let inputs = Input::new([6, 6, 2]).symbol();
    let norm = || BatchNormalization::new().synchronized(true);
    let x = Conv2D::new(4, 3).padding("same").use_bias(false).apply(&inputs);
    let x = ReLU::new().apply(norm().apply(&x));
    let a = Conv2D::new(5, 1).activation("relu").apply(&x);
    let b = norm().apply(Conv2D::new(3, 3).padding("same").use_bias(false).apply(&x));
    let x = Concatenate::new().apply([&a, &b]);
    let x = Dropout::new(0.25).apply(MaxPooling2D::new(2).apply(&x));
    let x = Dense::new(64).activation("tanh").apply(Flatten::new().apply(&x));
    let outputs = Dense::new(3).kernel_regularizer("l2").activation("softmax").apply(&x);
    Model::new(&inputs, &outputs).unwrap()
}

fn samples(rows: usize) -> (Tensor, Tensor) {
    (noise(rows as u64, &[rows, 6, 6, 2]), labels(rows as u64, rows, 3))
}

fn compiled(mut model: Model, loss: &str, strategy: &MirroredStrategy) -> Model {
    let compile = Compile::new(SGD::new(0.05).momentum(0.9)).loss(loss).metrics(["accuracy"]);
    model.compile(compile.strategy(strategy.clone())).unwrap();
    model
}

fn classifier(strategy: &MirroredStrategy) -> Model {
    compiled(network(), "sparse_categorical_crossentropy", strategy)
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, v| m.max(f64::from(v.abs())))
}

/// Fails unless tensors agree up to `tolerance` of the largest element.
fn assert_close(what: &str, received: &Tensor, expected: &Tensor, tolerance: f64) {
    let (r, e) = (received.f32().unwrap(), expected.f32().unwrap());
    let allowed = tolerance * largest(e);
    for (i, (r, e)) in r.iter().zip(e).enumerate() {
        let d = (f64::from(*r) - f64::from(*e)).abs();
        assert!(d <= allowed, "{what}: element {i}: expected {e}, received {r}");
    }
}

fn assert_same_weights(what: &str, a: &Model, b: &Model, tolerance: f64) {
    for ((name, r), (_, e)) in a.weights().unwrap().iter().zip(b.weights().unwrap()) {
        assert_close(&format!("{what}: {name}"), r, &e, tolerance);
    }
}

/// Fails unless losses and metrics have the same names and, up to rounding, values.
fn assert_same_logs(
    what: &str,
    received: &[(String, f64)],
    expected: &[(String, f64)],
    tolerance: f64,
) {
    for ((name, r), (expected_name, e)) in received.iter().zip(expected) {
        assert_eq!(name, expected_name);
        let allowed = tolerance * e.abs().max(1.0);
        assert!((r - e).abs() <= allowed, "{what}: {name}: expected {e}, got {r}");
    }
}

#[test]
fn gradients_are_those_of_one_device_for_every_number_of_rows() {
    let single = classifier(&one_device());
    for strategy in strategies() {
        let model = classifier(&strategy);
        for rows in 1..=17 {
            let (x, y) = samples(rows);
            let expected = single.gradients(&x, &y).unwrap();
            let received = model.gradients(&x, &y).unwrap();
            assert_eq!(received.len(), expected.len());
            for ((name, r), (_, e)) in received.iter().zip(&expected) {
                let what = format!("{rows} rows on {strategy:?}: gradient of {name}");
                assert!(largest(e.f32().unwrap()) > 1e-6, "{what} is all zero");
                assert_close(&what, r, e, 1e-5);
            }
        }
    }
}

#[test]
fn training_is_that_of_one_device_for_every_remainder() {
    for batch in [1, 3, 4] {
        for rows in (1..=9).chain([16 * batch - 1, 16 * batch, 16 * batch + 1]) {
            let train = |strategy: &MirroredStrategy| {
                let mut model = classifier(strategy);
                let fit = || Fit::new().epochs(2).batch_size(batch).verbose(0);
                let history = model.fit(samples(rows), fit()).unwrap();
                model.check_consistency().unwrap();
                let logs: Vec<(String, f64)> = ["loss", "accuracy"]
                    .iter()
                    .flat_map(|n| history.get(n).unwrap().iter().map(|v| (n.to_string(), *v)))
                    .collect();
                (model, logs)
            };
            let (single, expected) = train(&one_device());
            for n in 2..=4 {
                let strategy = MirroredStrategy::cpus(n).unwrap();
                let (model, received) = train(&strategy);
                let what = format!("{rows} rows in batches of {batch} on {n} replicas");
                if rows <= batch {
                    // The first epoch is one step, of equal weights.
                    assert_same_logs(&what, &received[..1], &expected[..1], 1e-6);
                }
                // Rounding accumulates over up to 130 updates.
                assert_same_logs(&what, &received, &expected, 1e-5);
                assert_same_weights(&what, &model, &single, 1e-4);
            }
        }
    }
}

/// Target `i` is `2^i` and every prediction 0: with as many samples as targets, only one of each
/// adds up to `2^n - 1`.
#[test]
fn every_sample_is_used_exactly_once_an_epoch() {
    for strategy in strategies() {
        for rows in 1..=20 {
            let zeros = Dense::new(1).use_bias(false).kernel_initializer("zeros");
            let mut model = Sequential::new().add(Input::new([1])).add(zeros).build().unwrap();
            let compile = Compile::new(SGD::new(0.0)).loss("mse").metrics(["mae"]);
            model.compile(compile.strategy(strategy.clone())).unwrap();
            let powers: Vec<f32> = (0..rows).map(|i| (1u32 << i) as f32).collect();
            let data = (noise(1, &[rows, 1]), Tensor::new([rows, 1], powers).unwrap());
            let fit = Fit::new().epochs(2).batch_size(4).verbose(0);
            let history = model.fit(data, fit).unwrap();
            let expected = f64::from((1u32 << rows) - 1);
            let sums = history.get("mae").unwrap().iter().map(|mean| mean * rows as f64);
            for sum in sums {
                assert_eq!(sum.round(), expected, "{rows} rows on {strategy:?}");
            }
        }
    }
}

#[test]
fn the_same_run_gives_the_same_bits() {
    for strategy in strategies() {
        let bits = || {
            let mut model = classifier(&strategy);
            model.fit(samples(23), Fit::new().epochs(2).batch_size(5).verbose(0)).unwrap();
            let weights = model.get_weights().unwrap();
            let bits = weights.iter().flat_map(|w| w.f32().unwrap()).map(|v| v.to_bits());
            bits.collect::<Vec<u32>>()
        };
        assert!(bits() == bits(), "{strategy:?}");
    }
}

/// With inputs `2^row`, the gradient of a kernel encodes the mask, one bit per sample.
#[test]
fn dropout_masks_do_not_depend_on_replicas_or_threads() {
    const ROWS: usize = 16;
    let x: Vec<f32> = (0..ROWS * 24).map(|i| (1u32 << (i / 24)) as f32).collect();
    let x = Tensor::new([ROWS, 24], x).unwrap();
    let y = Tensor::zeros([ROWS, 1]);
    let masks = |strategy: &MirroredStrategy| {
        let layers = Sequential::new().add(Input::new([24])).add(Dropout::new(0.5));
        let dense = Dense::new(1).kernel_initializer("zeros").bias_initializer("ones");
        let mut model = compiled(layers.add(dense).build().unwrap(), "mse", strategy);
        let spell = || model.gradients(&x, &y).unwrap()[0].1.f32().unwrap().to_vec();
        assert_eq!(spell(), spell(), "asking changes nothing");
        let first = spell();
        // The next step has another mask.
        model.train_on_batch(Tensor::zeros([ROWS, 24]), &y).unwrap();
        let bias = |b: f32| Tensor::new([1], vec![b]).unwrap();
        model.set_weights(&[Tensor::zeros([24, 1]), bias(1.0)]).unwrap();
        let second = model.gradients(&x, &y).unwrap()[0].1.f32().unwrap().to_vec();
        assert_ne!(first, second);
        [first, second]
    };
    let expected = masks(&one_device());
    // dy = 2 / rows, kept elements count twice.
    let bits: Vec<u32> = expected[0].iter().map(|g| (g * ROWS as f32 / 4.0) as u32).collect();
    let kept: u32 = bits.iter().map(|b| b.count_ones()).sum();
    assert!((150..234).contains(&kept), "{kept} of 384 kept");
    for strategy in strategies() {
        assert_eq!(masks(&strategy), expected, "{strategy:?}");
    }
}

/// Mean and variance of some rows' channel.
fn moments(x: &[f32], channel: usize) -> (f64, f64) {
    let v: Vec<f64> = x.chunks(3).map(|row| f64::from(row[channel])).collect();
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    (mean, v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / v.len() as f64)
}

#[test]
fn batch_norm_has_the_statistics_of_its_replica_and_moves_by_their_mean() {
    for rows in [1, 2, 5, 8] {
        let (x, y) = (noise(3, &[rows, 3]), noise(4, &[rows, 3]));
        let norm = BatchNormalization::new().momentum(0.9);
        let model = Sequential::new().add(Input::new([3])).add(norm).build().unwrap();
        let mut model = compiled(model, "mse", &MirroredStrategy::cpus(2).unwrap());

        let first = rows.div_ceil(2);
        let (a, b) = x.f32().unwrap().split_at(3 * first);
        let halves = [(a, 0), (b, first)].into_iter().filter(|(half, _)| !half.is_empty());
        let (mut loss, mut gamma, mut beta) = (0.0, [0.0; 3], [0.0; 3]);
        let (mut mean, mut variance) = ([0.0; 3], [0.9; 3]);
        for (half, start) in halves {
            for c in 0..3 {
                let (m, v) = moments(half, c);
                let share = half.len() as f64 / 3.0 / rows as f64;
                mean[c] += 0.1 * share * m;
                variance[c] += 0.1 * share * v;
                for (i, row) in half.chunks(3).enumerate() {
                    let unit = (f64::from(row[c]) - m) / (v + 1e-3).sqrt();
                    let error = unit - f64::from(y.f32().unwrap()[(start + i) * 3 + c]);
                    loss += error * error / (3 * rows) as f64;
                    gamma[c] += 2.0 * error * unit / (3 * rows) as f64;
                    beta[c] += 2.0 * error / (3 * rows) as f64;
                }
            }
        }
        let close = |what: &str, received: &Tensor, expected: [f64; 3]| {
            for (r, e) in received.f32().unwrap().iter().zip(expected) {
                let d = (f64::from(*r) - e).abs();
                assert!(d <= 1e-6, "{rows} rows: {what}: expected {e}, received {r}");
            }
        };
        let gradients = model.gradients(&x, &y).unwrap();
        close("gradient of gamma", &gradients[0].1, gamma);
        close("gradient of beta", &gradients[1].1, beta);
        let logs = model.train_on_batch(&x, &y).unwrap();
        assert!((logs[0].1 - loss).abs() < 1e-6, "loss: expected {loss}, received {}", logs[0].1);
        let weights = model.get_weights().unwrap();
        close("moving mean", &weights[2], mean);
        close("moving variance", &weights[3], variance);
        model.check_consistency().unwrap();
    }
}

#[test]
fn predictions_are_one_per_sample_in_order() {
    for strategy in strategies() {
        let dense = Dense::new(2).use_bias(false);
        let model = Sequential::new().add(Input::new([2])).add(dense).build().unwrap();
        let mut model = compiled(model, "mse", &strategy);
        model.set_weights(&[Tensor::new([2, 2], vec![1.0, 0.0, 0.0, 1.0]).unwrap()]).unwrap();
        for rows in 1..=20 {
            let x = noise(rows as u64, &[rows, 2]);
            assert_eq!(model.predict(&x).unwrap(), x, "{rows} rows on {strategy:?}");
            for batch in [1, 3, 7] {
                let outputs = model.predict_with(&x, Inference::new().batch_size(batch)).unwrap();
                assert_eq!(
                    outputs,
                    std::slice::from_ref(&x),
                    "{rows} rows by {batch} on {strategy:?}"
                );
            }
        }
        let text = model.predict(Tensor::zeros([0, 2])).unwrap_err().to_string();
        assert!(text.contains("at least one sample"), "{text}");
    }
}

#[test]
fn evaluation_does_not_depend_on_replicas() {
    let evaluate = |strategy: &MirroredStrategy, rows: usize| {
        let mut model = network();
        let metrics: [Box<dyn Metric>; 2] = [
            Box::new(SparseCategoricalAccuracy::default()),
            Box::new(SparseTopKCategoricalAccuracy::default().k(2)),
        ];
        let loss = SparseCategoricalCrossentropy::default();
        let compile = Compile::new("sgd").loss(loss).weighted_metrics(metrics);
        model.compile(compile.strategy(strategy.clone())).unwrap();
        let (x, y) = samples(rows);
        let weights: Vec<f32> = (0..rows).map(|i| 0.5 + i as f32).collect();
        let data = Arrays::new(x, y).unwrap().sample_weight(&weights).unwrap();
        model.evaluate_with(data, Inference::new().batch_size(5)).unwrap()
    };
    for rows in 1..=12 {
        let expected = evaluate(&one_device(), rows);
        assert_eq!(expected.len(), 3);
        for strategy in strategies() {
            let what = format!("{rows} rows on {strategy:?}");
            assert_same_logs(&what, &evaluate(&strategy, rows), &expected, 1e-6);
        }
    }
}

/// A network without batch normalisation, so that batches may be combined.
fn plain(strategy: &MirroredStrategy) -> Model {
    let hidden = Dense::new(40).activation("tanh").kernel_regularizer("l1_l2");
    let layers = Sequential::new().add(Input::new([7])).add(hidden).add(Dense::new(3));
    compiled(layers.build().unwrap(), "mse", strategy)
}

#[test]
fn accumulated_batches_make_the_update_of_one_large_batch() {
    let data = || Arrays::new(noise(1, &[11, 7]), noise(2, &[11, 3])).unwrap();
    let fit = |batch: usize| Fit::new().epochs(2).batch_size(batch).shuffle(false).verbose(0);
    for strategy in [one_device(), MirroredStrategy::cpus(2).unwrap()] {
        // Batches of 3, 3, 3, 2 in one update; in updates of 6 and 5; of 9 and 2.
        for (accumulate, large) in [(4, 11), (2, 6), (3, 9)] {
            let (mut a, mut b) = (plain(&strategy), plain(&one_device()));
            a.fit(data(), fit(3).accumulate(accumulate)).unwrap();
            b.fit(data(), fit(large)).unwrap();
            let what = format!("{accumulate} batches of 3 on {strategy:?}");
            assert_same_weights(&what, &a, &b, 1e-6);
            a.check_consistency().unwrap();
        }
    }
}

#[test]
fn sample_and_class_weights_give_the_weighted_loss() {
    let (x, y) = (noise(5, &[13, 4]), labels(5, 13, 3));
    let by_sample: Vec<f32> = (0..13).map(|i| (i % 5) as f32 / 2.0).collect();
    let by_class = [(0, 2.0), (2, 0.25)];
    let model = |strategy: &MirroredStrategy| {
        let softmax = Dense::new(3).activation("softmax");
        let model = Sequential::new().add(Input::new([4])).add(softmax).build().unwrap();
        compiled(model, "sparse_categorical_crossentropy", strategy)
    };
    let outputs = model(&one_device()).predict(&x).unwrap();
    let classes = y.i32().unwrap().iter().map(|c| *c as usize);
    let losses = outputs.f32().unwrap().chunks(3).zip(classes);
    let weighted = losses.zip(&by_sample).map(|((p, class), w)| {
        let of_class = by_class.iter().find(|(c, _)| *c == class).map_or(1.0, |(_, w)| *w);
        -f64::from(p[class].ln()) * f64::from(of_class * w)
    });
    let expected = weighted.sum::<f64>() / 13.0;

    let fit = |batch: usize| {
        let fit = Fit::new().batch_size(batch).verbose(0);
        fit.sample_weight(by_sample.clone()).class_weight(by_class)
    };
    let mut single = model(&one_device());
    single.fit((&x, &y), fit(4)).unwrap();
    for strategy in strategies() {
        let whole = model(&strategy).fit((&x, &y), fit(13)).unwrap().last("loss").unwrap();
        assert!((whole - expected).abs() < 1e-6, "{strategy:?}: expected {expected}, got {whole}");
        let mut several = model(&strategy);
        several.fit((&x, &y), fit(4)).unwrap();
        assert_same_weights(&format!("{strategy:?}"), &several, &single, 1e-6);
    }
}

/// Integers from 0 to 6, of which 0 is padding at the end of a sequence; at least `least` are not.
fn tokens(rows: usize, steps: usize, least: usize) -> Tensor {
    let mut rng = Stream::new(rows as u64, 0, 3, 0);
    let mut values = vec![];
    for _ in 0..rows {
        let valid = least + rng.below((steps - least) as u64 + 1) as usize;
        values.extend((0..steps).map(|t| if t < valid { 1 + rng.below(6) as i32 } else { 0 }));
    }
    Tensor::new([rows, steps], values).unwrap()
}

/// A masked bidirectional LSTM whose output still has the mask, so that the loss is a mean over valid steps.
fn masked_recurrent() -> Model {
    let x = Input::new([5]).integers().symbol();
    let y = Embedding::new(7, 4).mask_zero(true).apply(&x);
    let y = Bidirectional::new(LSTM::new(3).return_sequences(true)).apply(&y);
    Model::new(&x, Dense::new(2).activation("tanh").apply(&y)).unwrap()
}

/// Causal attention over a masked sequence, with layer normalisation and a residual connection.
fn masked_attention() -> Model {
    let x = Input::new([5]).integers().symbol();
    let embedded = Embedding::new(7, 8).mask_zero(true).apply(&x);
    let attention = MultiHeadAttention::new(2, 4);
    let y = attention.apply([&embedded, &embedded]);
    let y = LayerNormalization::new().apply(Add::new().apply([&embedded, &y]));
    let y = GlobalAveragePooling1D::new().apply(Dense::new(6).activation("gelu").apply(&y));
    Model::new(&x, Dense::new(2).apply(&y)).unwrap()
}

#[test]
fn sequence_models_have_the_gradients_of_one_device_for_every_remainder() {
    // The mean over no valid step is NaN, as in Keras.
    let recurrent: fn() -> Model = masked_recurrent;
    for (model, target, least) in [(recurrent, vec![5, 2], 0), (masked_attention, vec![2], 1)] {
        let single = compiled(model(), "mse", &one_device());
        for replicas in 1..=3 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let several = compiled(model(), "mse", &strategy);
            for rows in 1..=9 {
                let x = tokens(rows, 5, least);
                let y = noise(7, &[vec![rows], target.clone()].concat());
                let expected = single.gradients(&x, &y).unwrap();
                let received = several.gradients(&x, &y).unwrap();
                for ((name, r), (_, e)) in received.iter().zip(&expected) {
                    let what = format!("{rows} rows on {replicas} replicas: gradient of {name}");
                    assert_close(&what, r, e, 2e-5);
                }
                let largest = expected.iter().map(|(_, e)| largest(e.f32().unwrap()));
                assert!(largest.fold(0.0, f64::max) > 1e-6, "{rows} rows: all gradients are zero");
            }
        }
    }
}
