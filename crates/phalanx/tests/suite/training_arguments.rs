//! Arguments of `fit`, `evaluate` and `predict`, hooks of callbacks, steps on one batch, schedules of one's own.

use phalanx::callbacks::CallbackState;
use phalanx::model::{Interrupt, ValidationFreq};
use phalanx::optimizers::OptimizerMap;
use phalanx::prelude::*;
use std::sync::{Arc, Mutex};

fn numbers(dims: &[usize]) -> Tensor {
    let len = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..len).map(|i| ((i * 7 % 11) as f32 - 5.0) / 5.0).collect();
    Tensor::new(dims, values).unwrap()
}

fn data(rows: usize) -> (Tensor, Tensor) {
    (numbers(&[rows, 3]), numbers(&[rows, 2]))
}

fn compiled(optimizer: impl Into<phalanx::model::OptimizerArgument>) -> Model {
    compiled_on(optimizer, MirroredStrategy::cpus(1).unwrap().threads(1))
}

fn compiled_on(
    optimizer: impl Into<phalanx::model::OptimizerArgument>,
    strategy: MirroredStrategy,
) -> Model {
    let chain = Sequential::new().add(Input::new([3])).add(Dense::new(4).activation("tanh"));
    let mut model = chain.add(Dense::new(2)).build().unwrap();
    model.compile(Compile::new(optimizer).loss("mse").strategy(strategy).seed(3)).unwrap();
    model
}

/// A callback that notes which of its hooks are called.
fn noting(notes: &Arc<Mutex<Vec<String>>>) -> LambdaCallback {
    let note = |what: &str| {
        let (notes, what) = (notes.clone(), what.to_string());
        move |view: &View<'_>| {
            let text = format!("{what} {} {}", view.batch, view.log("loss").is_some());
            notes.lock().unwrap().push(text);
            Ok(Action::Continue)
        }
    };
    LambdaCallback::new()
        .epoch_begin(note("epoch_begin"))
        .epoch_end(note("epoch_end"))
        .batch_end(note("batch_end"))
        .test_begin(note("test_begin"))
        .test_end(note("test_end"))
        .test_batch_begin(note("test_batch_begin"))
        .test_batch_end(note("test_batch_end"))
        .predict_begin(note("predict_begin"))
        .predict_end(note("predict_end"))
        .predict_batch_begin(note("predict_batch_begin"))
        .predict_batch_end(note("predict_batch_end"))
}

#[test]
fn callbacks_see_evaluations_and_predictions() {
    let notes = Arc::new(Mutex::new(vec![]));
    let taken = || std::mem::take(&mut *notes.lock().unwrap());
    let mut model = compiled("sgd");
    let fit = Fit::new().epochs(1).batch_size(4).verbose(0).validation_data(data(6));
    model.fit(data(4), fit.validation_batch_size(3).callback(noting(&notes))).unwrap();
    assert_eq!(
        taken(),
        [
            "epoch_begin 0 false",
            "batch_end 1 true",
            "test_begin 0 false",
            "test_batch_begin 0 false",
            "test_batch_end 1 true",
            "test_batch_begin 1 false",
            "test_batch_end 2 true",
            "test_end 2 true",
            "epoch_end 1 true",
        ]
    );
    let arguments = || Inference::new().batch_size(2).callback(noting(&notes));
    model.evaluate_with(data(6), arguments().steps(2)).unwrap();
    assert_eq!(
        taken(),
        [
            "test_begin 0 false",
            "test_batch_begin 0 false",
            "test_batch_end 1 true",
            "test_batch_begin 1 false",
            "test_batch_end 2 true",
            "test_end 2 true",
        ]
    );
    let outputs = model.predict_with(&data(6).0, arguments().steps(1)).unwrap();
    assert_eq!(outputs[0].dims(), [2, 2]);
    assert_eq!(
        taken(),
        [
            "predict_begin 0 false",
            "predict_batch_begin 0 false",
            "predict_batch_end 1 false",
            "predict_end 1 false",
        ]
    );
    let stop = LambdaCallback::new().predict_batch_end(|_| Ok(Action::Stop));
    let outputs = model.predict_with(&data(6).0, arguments().callback(stop)).unwrap();
    assert_eq!(outputs[0].dims(), [2, 2], "a callback ends it after the batch");
    let save = LambdaCallback::new().test_begin(|_| Ok(Action::SaveRun));
    let error = model.evaluate_with(data(6), Inference::new().callback(save)).unwrap_err();
    assert!(error.to_string().contains("received SaveRun"), "{error}");
}

/// Interrupts a run after the second batch of a validation, without a wish to see every batch.
struct InterruptingCallback(Interrupt);

impl Callback for InterruptingCallback {
    fn wants_batch_events(&self) -> bool {
        false
    }

    fn on_test_batch_end(&mut self, view: &View<'_>) -> Result<Action, phalanx::Error> {
        if view.batch >= 2 {
            self.0.request();
        }
        Ok(Action::Continue)
    }
}

#[test]
fn a_callback_that_needs_no_batches_can_interrupt_a_validation() {
    let interrupt = Interrupt::new();
    let mut model = compiled("sgd");
    let fit = Fit::new().epochs(1).batch_size(4).verbose(0).validation_data(data(60));
    let fit = fit.validation_batch_size(1).interrupt(&interrupt);
    let error =
        model.fit(data(4), fit.callback(InterruptingCallback(interrupt.clone()))).unwrap_err();
    assert!(matches!(error, phalanx::Error::Interrupted { step: 1, epoch: 1, .. }), "{error}");
}

#[test]
fn steps_limit_an_evaluation() {
    let mut model = compiled("sgd");
    let (x, y) = data(10);
    let first = |t: &Tensor, rows: usize| {
        let width = t.row_len();
        Tensor::new([rows, width], t.f32().unwrap()[..rows * width].to_vec()).unwrap()
    };
    let limited = Inference::new().batch_size(3).steps(2);
    let limited = model.evaluate_with((&x, &y), limited).unwrap();
    let part = (first(&x, 6), first(&y, 6));
    let whole = model.evaluate_with(part, Inference::new().batch_size(3)).unwrap();
    assert_eq!(limited.get("loss"), whole.get("loss"));
    for arguments in [Inference::new().steps(0), Inference::new().steps(0)] {
        let error = model.evaluate_with((&x, &y), arguments).unwrap_err();
        assert!(error.to_string().contains("steps: expected 1 or more"), "{error}");
    }
}

#[test]
fn validation_has_its_epochs_steps_and_batches() {
    let run = |freq: ValidationFreq| {
        let mut model = compiled("sgd");
        let fit = Fit::new().epochs(5).batch_size(4).verbose(0).validation_data(data(6));
        let watch = EarlyStopping::new("val_loss").patience(9);
        let history = model.fit(data(8), fit.validation_freq(freq).callback(watch)).expect("a run");
        let losses = history.get("val_loss").unwrap_or_default().to_vec();
        (0..losses.len()).filter(|i| !losses[*i].is_nan()).map(|i| i + 1).collect::<Vec<_>>()
    };
    assert_eq!(run(1.into()), [1, 2, 3, 4, 5]);
    assert_eq!(run(2.into()), [2, 4]);
    assert_eq!(run([1, 5].into()), [1, 5]);
    let mut model = compiled("sgd");
    let fit = || Fit::new().verbose(0).validation_data(data(6));
    for (bad, what) in [
        (fit().validation_freq(0), "validation_freq"),
        (fit().validation_steps(0), "validation_steps"),
        (fit().validation_batch_size(0), "validation_batch_size"),
    ] {
        let error = model.fit(data(8), bad).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    // A validation of one batch of three samples equals one on these samples.
    let logs = |validation: (Tensor, Tensor), steps: Option<usize>| {
        let mut model = compiled("sgd");
        let mut fit = Fit::new().verbose(0).batch_size(4).validation_data(validation);
        if let Some(steps) = steps {
            fit = fit.validation_batch_size(3).validation_steps(steps);
        }
        model.fit(data(8), fit).unwrap().last("val_loss")
    };
    let (x, y) = data(9);
    let head = |t: &Tensor| {
        Tensor::new([3, t.row_len()], t.f32().unwrap()[..3 * t.row_len()].to_vec()).unwrap()
    };
    assert_eq!(logs((x.clone(), y.clone()), Some(1)), logs((head(&x), head(&y)), None));
}

#[test]
fn one_batch_is_trained_tested_and_predicted() {
    let (x, y) = data(5);
    let mut model = compiled("sgd");
    let whole = model.evaluate_with((&x, &y), Inference::new().batch_size(5)).unwrap();
    assert_eq!(model.test_on_batch(&x, &y).unwrap().get("loss"), whole.get("loss"));
    assert_eq!(model.get_metrics_result().unwrap().get("loss"), whole.get("loss"));
    let none = BatchWeights::new().sample_weight(vec![0.0; 5]);
    assert_eq!(model.test_on_batch_with(&x, &y, &none).unwrap().get("loss"), Some(0.0));
    let half = model.get_metrics_result().unwrap().get("loss").unwrap();
    assert!((half - whole.get("loss").unwrap() / 2.0).abs() < 1e-9, "the mean of both batches");
    model.reset_metrics().unwrap();
    assert_eq!(model.get_metrics_result().unwrap().get("loss"), Some(0.0));
    let before = model.get_weights().unwrap();
    model.train_on_batch_with(&x, &y, &none).unwrap();
    assert_eq!(model.get_weights().unwrap(), before, "no sample counts");
    model.train_on_batch(&x, &y).unwrap();
    assert_ne!(model.get_weights().unwrap(), before);
    assert_eq!(model.predict_on_batch(&x).unwrap(), model.predict(&x).unwrap());
    let wrong = BatchWeights::new().sample_weight(vec![1.0; 4]);
    assert!(model.train_on_batch_with(&x, &y, &wrong).is_err());
}

#[test]
fn classes_have_weights_in_one_batch() {
    let chain = Sequential::new().add(Input::new([3])).add(Dense::new(2));
    let mut model = chain.build().unwrap();
    let loss = SparseCategoricalCrossentropy::default().from_logits(true);
    model.compile(Compile::new("sgd").loss(loss)).unwrap();
    let (x, y) = (numbers(&[4, 3]), Tensor::new([4], vec![0, 1, 1, 0]).unwrap());
    let by_class = BatchWeights::new().class_weight([(0, 2.0), (1, 0.5)]);
    let by_sample = BatchWeights::new().sample_weight(vec![2.0, 0.5, 0.5, 2.0]);
    let [a, b] = [by_class, by_sample]
        .map(|weights| model.test_on_batch_with(&x, &y, &weights).unwrap().get("loss"));
    assert_eq!(a, b);
    assert_ne!(a, model.test_on_batch(&x, &y).unwrap().get("loss"));
}

#[test]
fn a_clone_has_weights_of_its_own() {
    let mut model = compiled("adam");
    let mut copy = model.clone_model().unwrap();
    copy.set_weights(&model.get_weights().unwrap()).unwrap();
    model.fit(data(8), Fit::new().verbose(0)).unwrap();
    assert_ne!(copy.get_weights().unwrap(), model.get_weights().unwrap());
    assert_eq!(copy.name(), model.name());
    assert_eq!(copy.count_params(), model.count_params());
}

/// Ends the run after an epoch, so that another continues it.
struct StopAfter(usize);

impl Callback for StopAfter {
    fn on_epoch_end(&mut self, view: &View<'_>) -> phalanx::Result<Action> {
        Ok(if view.epoch + 1 == self.0 { Action::Stop } else { Action::Continue })
    }

    fn on_train_resume(&mut self, _: &View<'_>, _: &CallbackState) -> phalanx::Result<Action> {
        Ok(Action::Continue)
    }
}

#[derive(Debug)]
struct Halved {
    every: u64,
}

impl LearningRateSchedule for Halved {
    fn at(&self, step: u64) -> f64 {
        0.1 * 0.5_f64.powi((step / self.every) as i32)
    }
}

#[derive(Debug)]
struct Broken;

impl LearningRateSchedule for Broken {
    fn at(&self, step: u64) -> f64 {
        if step < 2 { 0.1 } else { f64::NAN }
    }
}

#[test]
fn a_schedule_of_ones_own_sets_every_rate() {
    let mut ours = compiled(SGD::new(Halved { every: 2 }));
    let mut keras = compiled(SGD::new(ExponentialDecay::new(0.1, 2, 0.5).staircase(true)));
    for model in [&mut ours, &mut keras] {
        model.fit(data(12), Fit::new().epochs(3).batch_size(4).verbose(0)).unwrap();
    }
    assert_eq!(ours.get_weights().unwrap(), keras.get_weights().unwrap());
    assert_eq!(ours.learning_rate().unwrap(), 0.1 / 16.0);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.keras");
    ours.save(&path).unwrap();
    let loaded = load_model(&path).unwrap();
    assert!((loaded.learning_rate().unwrap() - 0.1 / 16.0).abs() < 1e-9, "the current rate");
    let mut broken = compiled(SGD::new(Broken));
    let error = broken.fit(data(12), Fit::new().batch_size(4).verbose(0)).unwrap_err().to_string();
    assert!(error.contains("learning rate of step 2"), "{error}");
}

#[test]
fn a_resumed_run_continues_whole_weight_optimizers_and_schedules() {
    type Make = fn() -> Box<dyn Optimizer>;
    let makers: [Make; 5] = [
        || Box::new(Lamb::new(0.05).use_ema(0.9)),
        || Box::new(Adafactor::new(Halved { every: 2 })),
        || Box::new(Muon::new(0.05).gradient_accumulation_steps(3)),
        || {
            let map = OptimizerMap::new(Adam::new(0.05)).with(".*/bias", SGD::new(0.1));
            Box::new(MultiOptimizer::new(map))
        },
        || Box::new(LossScaleOptimizer::new(Lamb::new(0.05))),
    ];
    for make in makers {
        let run = |epochs: usize, replicas: usize, backup: Option<&std::path::Path>| {
            let strategy = MirroredStrategy::cpus(replicas).unwrap().deterministic(true);
            let mut model = compiled_on(make(), strategy);
            let mut fit = Fit::new().epochs(4).batch_size(4).verbose(0);
            if let Some(directory) = backup {
                fit = fit.callback(BackupAndRestore::new(directory).delete_checkpoint(false));
            }
            if epochs < 4 {
                fit = fit.epochs(epochs);
            }
            model.fit(data(10), fit).unwrap();
            model.weights_sha256().unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        run(1, 1, Some(directory.path()));
        run(2, 2, Some(directory.path()));
        let resumed = run(4, 1, Some(directory.path()));
        assert_eq!(resumed, run(4, 1, None), "{}", make().rule_name());
        assert_eq!(resumed, run(4, 4, None), "{} on four replicas", make().rule_name());
    }
}

#[test]
fn averages_stand_in_for_the_weights() {
    let (x, y) = data(8);
    for optimizer in [
        Box::new(SGD::new(0.5).use_ema(0.5)) as Box<dyn Optimizer>,
        Box::new(Lamb::new(0.5).use_ema(0.5)),
    ] {
        let mut model = compiled(optimizer);
        for _ in 0..3 {
            model.train_on_batch(&x, &y).unwrap();
        }
        let plain = model.test_on_batch(&x, &y).unwrap().get("loss");
        let weights = model.get_weights().unwrap();
        let swapped = Inference::new().callback(SwapEMAWeights::new());
        let averaged = model.evaluate_with((&x, &y), swapped).unwrap().get("loss");
        assert_ne!(averaged, plain);
        assert_eq!(model.get_weights().unwrap(), weights, "they are put back");
        // At the end of training the averages replace the weights.
        model.fit((&x, &y), Fit::new().epochs(0).verbose(0)).unwrap();
        assert_eq!(model.test_on_batch(&x, &y).unwrap().get("loss"), averaged);
    }
    let mut without = compiled("sgd");
    let swapped = Inference::new().callback(SwapEMAWeights::new());
    let error = without.evaluate_with((&x, &y), swapped).unwrap_err().to_string();
    assert!(error.contains("use_ema"), "{error}");
}

#[test]
fn checkpoints_between_epochs_have_the_averages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("{epoch}.safetensors");
    let run = |swap: bool| {
        let mut model = compiled(SGD::new(0.5).use_ema(0.5));
        let swap = SwapEMAWeights::new().swap_on_epoch(swap);
        let callbacks = CallbackList::new()
            .append(swap)
            .append(ModelCheckpoint::new(&path))
            .append(StopAfter(2));
        let fit = Fit::new().epochs(9).batch_size(4).verbose(0);
        model.fit(data(8), fit.callbacks(callbacks)).unwrap();
        let mut saved = compiled("sgd");
        saved.load_weights(directory.path().join("2.safetensors")).unwrap();
        (saved.get_weights().unwrap(), model.get_weights().unwrap())
    };
    let (averages, end) = run(true);
    assert_eq!(averages, end, "the averages are the result of training");
    let (plain, same_end) = run(false);
    assert_eq!(end, same_end, "training itself is the same");
    assert_ne!(plain, end);
}

#[test]
fn a_joined_optimizer_has_no_learning_rate_of_its_own() {
    let map = OptimizerMap::new(SGD::new(0.1)).with("sequential/dense/.*", Adam::new(0.01));
    let mut model = compiled(MultiOptimizer::new(map));
    let error = model.set_learning_rate(0.5).unwrap_err().to_string();
    assert!(error.contains("MultiOptimizer(Adam, SGD)"), "{error}");
    let twice =
        OptimizerMap::new(SGD::new(0.1)).with(".*", SGD::new(0.1)).with("seq.*", Adam::new(0.1));
    let chain = Sequential::new().add(Input::new([3])).add(Dense::new(2));
    let mut model = chain.build().unwrap();
    let error = model.compile(Compile::new(MultiOptimizer::new(twice)).loss("mse")).unwrap_err();
    assert!(error.to_string().contains("one that matches weight 'sequential/"), "{error}");
    for (pattern, what) in [("(", "a regular expression"), ("(?=a)", "look-around")] {
        let map = OptimizerMap::new(SGD::new(0.1)).with(pattern, Adam::new(0.1));
        let error = MultiOptimizer::new(map).validate().unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn labels_of_ctc_are_padded() {
    let build = || {
        let mut model =
            Sequential::new().add(Input::new([6, 3])).add(Dense::new(4)).build().unwrap();
        let strategy = MirroredStrategy::cpus(2).unwrap().threads(1);
        let sgd = SGD::new(0.5);
        model.compile(Compile::new(sgd).loss("ctc").strategy(strategy).seed(2)).unwrap();
        model
    };
    let x = numbers(&[5, 6, 3]);
    let short = Tensor::new([5, 2], vec![1, 2, 3, 3, 2, 0, 0, 0, 1, 3]).unwrap();
    let padded: Vec<i32> =
        short.i32().unwrap().chunks(2).flat_map(|l| [l[0], l[1], 0, 0, 0, 0]).collect();
    let padded = Tensor::new([5, 6], padded).unwrap();
    let (mut a, mut b) = (build(), build());
    for _ in 0..3 {
        let logs = a.train_on_batch(&x, &short).unwrap();
        assert_eq!(logs, b.train_on_batch(&x, &padded).unwrap());
    }
    assert_eq!(a.get_weights().unwrap(), b.get_weights().unwrap());
    a.fit((&x, &short), Fit::new().verbose(0)).unwrap();
    let too_long = Tensor::new([5, 7], vec![1; 35]).unwrap();
    assert!(a.train_on_batch(&x, &too_long).is_err());
}
