//! The arguments of `fit`, its callbacks and its history.

use super::{clouds, compiled, difference, one_thread, one_weight, tensor};
use phalanx::data::{Epoch, LocalShard};
use phalanx::model::OnNan;
use phalanx::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The samples, by index, that `fit` trains on in batches of one, by epoch. The model predicts 0 and never
/// learns, so the loss of sample `i` is `i²`.
fn order(samples: usize, fit: Fit) -> (Vec<Vec<usize>>, History) {
    let x = Tensor::zeros([samples, 1]);
    let y = tensor(&[samples, 1], (0..samples).map(|i| i as f32).collect::<Vec<_>>());
    let mut model = zero_model();
    let seen = Arc::new(Mutex::new(vec![]));
    let (begin, end) = (seen.clone(), seen.clone());
    let mut batches = 0.0;
    let mut before = 0.0;
    let recorder = LambdaCallback::new()
        .epoch_begin(move |_| {
            begin.lock().unwrap().push(vec![]);
            Ok(Action::Continue)
        })
        .batch_end(move |view| {
            let mut seen = end.lock().unwrap();
            let epoch: &mut Vec<usize> = seen.last_mut().unwrap();
            if epoch.is_empty() {
                (batches, before) = (0.0, 0.0);
            }
            batches += 1.0;
            let sum = view.log("loss").unwrap() * batches;
            epoch.push((sum - before).sqrt().round() as usize);
            before = sum;
            Ok(Action::Continue)
        });
    let history = model.fit((x, y), fit.batch_size(1).verbose(0).callback(recorder)).unwrap();
    let seen = seen.lock().unwrap().clone();
    (seen, history)
}

fn zero_model() -> Model {
    let mut model = Sequential::new()
        .add(Input::new([1]))
        .add(Dense::new(1).kernel_initializer("zeros"))
        .build()
        .unwrap();
    model.compile(Compile::new(SGD::new(0.0)).loss("mse").strategy(one_thread())).unwrap();
    model
}

#[test]
fn without_shuffling_the_data_keep_their_order() {
    let (seen, history) = order(4, Fit::new().epochs(2).shuffle(false));
    assert_eq!(seen, [[0, 1, 2, 3], [0, 1, 2, 3]]);
    assert_eq!(history.get("loss").unwrap(), [3.5, 3.5]);
}

#[test]
fn shuffling_is_anew_each_epoch_and_the_same_each_run() {
    let (seen, _) = order(12, Fit::new().epochs(3));
    for epoch in &seen {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..12), "{seen:?}");
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "{seen:?}");
    assert_eq!(seen, order(12, Fit::new().epochs(3)).0);
    // A resumed run shuffles like the epochs it continues.
    let (later, _) = order(12, Fit::new().initial_epoch(1).epochs(3));
    assert_eq!(later[..], seen[1..]);
}

#[test]
fn steps_per_epoch_cuts_the_data_or_starts_it_again() {
    let fit = || Fit::new().epochs(3).shuffle(false);
    let (shorter, history) = order(4, fit().steps_per_epoch(3));
    assert_eq!(shorter, [[0, 1, 2], [3, 0, 1], [2, 3, 0]]);
    assert_eq!(history.epochs, [0, 1, 2]);
    let (longer, _) = order(4, fit().steps_per_epoch(5));
    assert_eq!(longer, [[0, 1, 2, 3, 0], [1, 2, 3, 0, 1], [2, 3, 0, 1, 2]]);
}

#[test]
fn a_validation_split_is_the_last_share() {
    let (seen, history) = order(8, Fit::new().shuffle(false).validation_split(0.25));
    assert_eq!(seen, [[0, 1, 2, 3, 4, 5]]);
    assert_eq!(history.get("val_loss").unwrap(), [(36.0 + 49.0) / 2.0]);
    // Shuffling is applied after the split.
    let (seen, history) = order(8, Fit::new().validation_split(0.25));
    assert!(seen[0].iter().all(|i| *i < 6), "{seen:?}");
    assert_eq!(history.get("val_loss").unwrap(), [(36.0 + 49.0) / 2.0]);
}

#[test]
fn validation_data_is_evaluated_after_each_epoch() {
    let data = (Tensor::zeros([3, 1]), tensor(&[3, 1], vec![1.0f32, 2.0, 4.0]));
    let (_, history) = order(5, Fit::new().epochs(2).validation_data(data));
    assert_eq!(history.get("val_loss").unwrap(), [7.0, 7.0]);
    assert_eq!(history.get("loss").unwrap(), [6.0, 6.0]);
}

#[test]
fn epochs_count_from_the_initial_epoch() {
    let (_, history) = order(2, Fit::new().initial_epoch(2).epochs(5));
    assert_eq!(history.epochs, [2, 3, 4]);
    assert_eq!((history.seconds.len(), history.images_per_second.len()), (3, 3));
    let waited = history.input_wait_seconds();
    assert!(waited > 0.0 && waited < history.seconds.iter().sum(), "{waited}");
    for none in [Fit::new().epochs(0), Fit::new().epochs(2).initial_epoch(2)] {
        assert!(order(2, none).1.epochs.is_empty());
    }
}

#[test]
fn class_and_sample_weights_weigh_the_loss() {
    // All classes have the same probability: the loss of every sample is ln 3.
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(Dense::new(3).kernel_initializer("zeros").activation("softmax"))
        .build()
        .unwrap();
    let ln3 = 3f64.ln();
    let mut loss = |fit: Fit| {
        let compile = Compile::new(SGD::new(0.0)).loss("sparse_categorical_crossentropy");
        model.compile(compile.strategy(one_thread())).unwrap();
        let history = model.fit(clouds(9), fit.batch_size(4).verbose(0)).unwrap();
        history.last("loss").unwrap()
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    near(loss(Fit::new()), ln3);
    let classes: BTreeMap<usize, f32> = [(0, 2.0), (2, 0.5)].into();
    near(loss(Fit::new().class_weight(classes.clone())), ln3 * (2.0 + 1.0 + 0.5) / 3.0);
    let samples: Vec<f32> = (0..9).map(|i| i as f32).collect();
    near(loss(Fit::new().sample_weight(samples.clone())), ln3 * 4.0);
    // Both weights are multiplied; the classes repeat as 0, 1, 2.
    let both = (0..9).map(|i| [2.0, 1.0, 0.5][i % 3] * i as f64).sum::<f64>() / 9.0;
    near(loss(Fit::new().sample_weight(samples).class_weight(classes)), ln3 * both);
}

/// Records its calls.
struct Recorder(&'static str, Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn note(&self, hook: &str, view: &View<'_>) -> Result<Action> {
        let logs: Vec<&str> = view.logs.iter().map(|(name, _)| name.as_str()).collect();
        let line = format!("{} {hook} {} [{}]", self.0, view.epoch, logs.join(" "));
        self.1.lock().unwrap().push(line);
        Ok(Action::Continue)
    }
}

impl Callback for Recorder {
    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("train_begin", view)
    }

    fn on_train_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("train_end", view)
    }

    fn on_epoch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("epoch_begin", view)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("epoch_end", view)
    }

    fn on_batch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("batch_begin", view)
    }

    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.note("batch_end", view)
    }
}

#[test]
fn callbacks_are_called_in_the_order_of_keras() {
    let lines = Arc::new(Mutex::new(vec![]));
    let mut model = compiled(SGD::default());
    let (x, y) = clouds(6);
    let fit = Fit::new().epochs(2).batch_size(3).validation_data((x.clone(), y.clone()));
    let fit = fit.callback(Recorder("a", lines.clone())).callback(Recorder("b", lines.clone()));
    model.fit((x, y), fit.verbose(0)).unwrap();
    let batch = ["batch_begin E []", "batch_end E [loss accuracy]"];
    let epoch = |e: usize| {
        let mut hooks = vec!["epoch_begin E []"];
        hooks.extend(batch.iter().chain(&batch));
        hooks.push("epoch_end E [loss accuracy val_loss val_accuracy]");
        hooks.into_iter().map(|h| h.replace('E', &e.to_string())).collect::<Vec<_>>()
    };
    let mut expected = vec!["train_begin 0 []".to_string()];
    expected.extend([epoch(0), epoch(1)].concat());
    expected.push("train_end 1 []".into());
    let expected: Vec<String> =
        expected.iter().flat_map(|h| [format!("a {h}"), format!("b {h}")]).collect();
    assert_eq!(*lines.lock().unwrap(), expected);
}

/// Data that counts how often it is opened.
struct Counted(Arrays, Arc<AtomicUsize>);

impl Dataset for Counted {
    fn len(&self) -> Option<usize> {
        self.0.len()
    }

    fn batches(&self) -> Option<usize> {
        self.0.batches()
    }

    fn batch_size(&self) -> usize {
        self.0.batch_size()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        share: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.epoch_of(seed, epoch, start, share)
    }
}

#[test]
fn data_is_opened_for_the_epochs_there_are() {
    let opened = |fit: Fit| {
        let count = Arc::new(AtomicUsize::new(0));
        let (x, y) = clouds(6);
        let data = Arrays::new(x, y).unwrap().batch(2).unwrap();
        let data: Arc<dyn Dataset> = Arc::new(Counted(data, count.clone()));
        compiled(SGD::default()).fit(data, fit.verbose(0)).unwrap();
        count.load(Ordering::Relaxed)
    };
    assert_eq!(opened(Fit::new().epochs(2)), 2);
    assert_eq!(opened(Fit::new().epochs(2).initial_epoch(2)), 0);
    assert_eq!(opened(Fit::new().epochs(3).steps_per_epoch(2)), 2, "six batches of three");
}

#[test]
fn a_callback_stops_after_its_step_or_its_epoch() {
    let at_batch = LambdaCallback::new().batch_end(|view| {
        let stop = view.step == 2;
        Ok(if stop { Action::Stop } else { Action::Continue })
    });
    let (seen, history) = order(4, Fit::new().epochs(3).shuffle(false).callback(at_batch));
    assert_eq!(seen, [[0, 1]]);
    assert_eq!(history.epochs, [0]);
    let at_epoch = LambdaCallback::new().epoch_end(|view| {
        let stop = view.epoch == 1;
        Ok(if stop { Action::Stop } else { Action::Continue })
    });
    assert_eq!(order(4, Fit::new().epochs(9).callback(at_epoch)).1.epochs, [0, 1]);
}

#[test]
fn early_stopping_stops_and_brings_the_best_weights_back() {
    let (_, history) =
        order(4, Fit::new().epochs(9).callback(EarlyStopping::new("loss").patience(2)));
    assert_eq!(history.epochs, [0, 1, 2], "a loss that stays improves once");

    // The second epoch makes the weights worse.
    let mut model = compiled(Adam::new(0.01));
    let first = Arc::new(Mutex::new(vec![]));
    let kept = first.clone();
    let keep = LambdaCallback::new().epoch_end(move |view| {
        if view.epoch == 0 {
            let values = |name: &String| view.weights.get(name).unwrap();
            *kept.lock().unwrap() = view.weights.names().iter().flat_map(values).collect();
        }
        Ok(Action::Continue)
    });
    let ruin = LearningRateScheduler::new(|epoch| if epoch == 0 { 0.01 } else { 50.0 });
    let stop = EarlyStopping::new("loss").patience(1).restore_best_weights(true);
    let fit = Fit::new().epochs(9).callback(ruin).callback(keep).callback(stop);
    let history = model.fit(clouds(60), fit.verbose(0)).unwrap();
    assert_eq!(history.epochs, [0, 1]);
    let weights = model.get_weights().unwrap();
    let weights: Vec<f32> = weights.iter().flat_map(|w| w.f32().unwrap().to_vec()).collect();
    assert_eq!(weights, *first.lock().unwrap());
}

#[test]
fn the_learning_rate_follows_callbacks_and_the_user() {
    let mut model = compiled(SGD::new(0.5));
    let schedule = LearningRateScheduler::with_current(|_, rate| rate / 2.0);
    let fit = Fit::new().epochs(3).callback(schedule).verbose(0);
    let history = model.fit(clouds(6), fit).unwrap();
    assert_eq!(history.get("lr").unwrap(), [0.25, 0.125, 0.0625]);
    // As in Keras, the rate stays until it is set again.
    assert_eq!(model.learning_rate().unwrap(), 0.0625);
    model.set_learning_rate(0.1).unwrap();
    let history = model.fit(clouds(6), Fit::new().verbose(0)).unwrap();
    assert_eq!(history.get("lr").unwrap(), [0.1]);

    let plateau = ReduceLROnPlateau::new("loss").factor(0.5).patience(1);
    let (_, history) = order(2, Fit::new().epochs(4).callback(plateau));
    assert_eq!(history.get("lr").unwrap(), [0.0; 4], "half of nothing");
}

#[test]
fn schedules_count_steps_across_epochs() {
    let schedule = PiecewiseConstantDecay::new([1, 4], [0.5, 0.25, 0.125]);
    let mut model = compiled(SGD::new(schedule));
    let rates = Arc::new(Mutex::new(vec![]));
    let seen = rates.clone();
    let look = LambdaCallback::new().batch_begin(move |view| {
        seen.lock().unwrap().push(view.learning_rate);
        Ok(Action::Continue)
    });
    let fit = Fit::new().epochs(2).batch_size(2).callback(look).verbose(0);
    model.fit(clouds(6), fit).unwrap();
    assert_eq!(*rates.lock().unwrap(), [0.5, 0.5, 0.25, 0.25, 0.25, 0.125]);
}

#[test]
fn accumulated_batches_update_as_one_large_batch() {
    let run = |batch: usize, fit: Fit| {
        let mut model = compiled(SGD::new(0.1).momentum(0.9));
        let fit = fit.epochs(2).batch_size(batch).shuffle(false).verbose(0);
        model.fit(clouds(20), fit).unwrap();
        model.get_weights().unwrap()
    };
    let large = run(8, Fit::new());
    assert!(difference(&large, &run(4, Fit::new().accumulate(2))) < 1e-6);
    assert!(difference(&large, &run(2, Fit::new().accumulate(4))) < 1e-6);
    assert!(difference(&large, &run(2, Fit::new())) > 1e-3);
}

#[test]
fn a_moving_average_replaces_the_weights_when_training_ends() {
    let mut model = Sequential::new().add(Input::new([1])).add(one_weight()).build().unwrap();
    let optimizer = SGD::new(0.1).use_ema(0.5);
    model.compile(Compile::new(optimizer).loss("mse").strategy(one_thread())).unwrap();
    let ones = || (tensor(&[4, 1], vec![1.0f32; 4]), Tensor::zeros([4, 1]));
    model.fit(ones(), Fit::new().epochs(3).verbose(0)).unwrap();
    // Each step subtracts 0.2 of the weight; the average starts as the first weight.
    let weights = [1.6f32, 1.28, 1.024];
    let average = weights[1..].iter().fold(weights[0], |a, w| 0.5 * a + 0.5 * w);
    let weight = model.get_weights().unwrap()[0].f32().unwrap()[0];
    assert!((weight - average).abs() < 1e-6, "{weight} {average}");
}

/// Clouds with a NaN sample in the middle, for batches of six.
fn clouds_with_nan() -> (Tensor, Tensor) {
    let (x, y) = clouds(6);
    let mut values = x.f32().unwrap().to_vec();
    let at = values.len() / 2;
    values[at] = f32::NAN;
    (Tensor::new(x.dims(), values).unwrap(), y)
}

#[test]
fn a_step_with_nan_is_an_error_a_stop_or_undone_as_requested() {
    let fit = || Fit::new().epochs(2).batch_size(2).shuffle(false).verbose(0);
    let error = compiled(Adam::default()).fit(clouds_with_nan(), fit()).unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 2, epoch: 1, .. }), "{error}");

    let history =
        compiled(Adam::default()).fit(clouds_with_nan(), fit().on_nan(OnNan::Stop)).unwrap();
    assert_eq!(history.epochs, [0]);

    let mut model = compiled(Adam::default());
    let history = model.fit(clouds_with_nan(), fit().on_nan(OnNan::Skip)).unwrap();
    assert!(history.get("loss").unwrap().iter().all(|loss| loss.is_finite()), "{history:?}");
    // The other batches trained as if the bad one did not exist.
    let (x, y) = clouds_with_nan();
    let rows = |t: &Tensor, keep: &[usize]| -> Vec<f32> {
        let row = t.row_len();
        keep.iter().flat_map(|r| t.f32().unwrap()[r * row..(r + 1) * row].to_vec()).collect()
    };
    let keep = [0, 1, 4, 5];
    let good = Tensor::new([4, x.row_len()], rows(&x, &keep)).unwrap();
    let labels: Vec<i32> = keep.iter().map(|r| y.i32().unwrap()[*r]).collect();
    let mut other = compiled(Adam::default());
    other.fit((good, Tensor::new([4], labels).unwrap()), fit()).unwrap();
    assert_eq!(model.weights_sha256().unwrap(), other.weights_sha256().unwrap());
}
