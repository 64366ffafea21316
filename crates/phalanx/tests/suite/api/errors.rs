//! Errors of calls say where something is wrong, what was expected and what was received.

use super::{classifier, clouds, compiled, one_thread, tensor};
use phalanx::metrics::MetricExt;
use phalanx::prelude::*;

/// A call, and the text that its error must contain.
pub type Case = (fn() -> Result<()>, &'static str);

pub fn check(cases: &[Case]) {
    let mut wrong = vec![];
    for (run, expected) in cases {
        match run() {
            Ok(()) => wrong.push(format!("no error, expected: {expected}")),
            Err(e) if !e.to_string().contains(expected) => {
                wrong.push(format!("received: {e}\nexpected: {expected}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}

fn with(compile: Compile) -> Result<()> {
    classifier().compile(compile.strategy(one_thread()))
}

fn optimizer(optimizer: impl Optimizer + 'static) -> Result<()> {
    with(Compile::new(optimizer).loss("mse"))
}

#[test]
fn compile_checks_its_optimizer() {
    check(&[
        (|| optimizer(SGD::new(f64::NAN)), "SGD: learning_rate: expected"),
        (|| optimizer(Adam::new(-1.0)), "Adam: learning_rate: expected"),
        (
            || optimizer(SGD::default().momentum(f64::INFINITY)),
            "SGD: momentum: expected a number from 0 to 1, received inf",
        ),
        (
            || optimizer(SGD::default().clipnorm(1.0).clipvalue(1.0)),
            "SGD: gradient limits: expected one of",
        ),
        (
            || optimizer(SGD::default().gradient_accumulation_steps(0)),
            "SGD: gradient_accumulation_steps: expected 2 steps or more, received 0",
        ),
        (
            || optimizer(SGD::new(PiecewiseConstantDecay::new([3, 2], [1.0, 2.0, 3.0]))),
            "PiecewiseConstantDecay",
        ),
        (|| optimizer(SGD::new(CosineDecay::new(0.1, 0))), "CosineDecay"),
    ]);
}

#[test]
fn compile_checks_its_losses_and_metrics() {
    check(&[
        (
            || with(Compile::new("sgd")),
            "compile: loss: expected a loss for one output or more, metrics, or layers with penalties, received none of them",
        ),
        (
            || with(Compile::new("sgd").loss("mse").loss("mae")),
            "compile: loss: expected one per output, 1, received 2",
        ),
        (
            || with(Compile::new("sgd").loss("mse").loss_weights([1.0, 2.0])),
            "compile: loss_weights: expected one per output, 1, received 2",
        ),
        (
            || with(Compile::new("sgd").loss("mse").loss_weights([f64::NAN])),
            "compile: loss_weights: expected finite numbers, received NaN",
        ),
        (
            || with(Compile::new("sgd").loss("mse").metrics(["mae"]).metrics(["mae"])),
            "compile: metrics: expected one per output, 1, received 2",
        ),
        (
            || {
                let named = BinaryAccuracy::default().named("loss");
                with(Compile::new("sgd").loss("mse").metrics([named]))
            },
            "compile: losses and metrics: expected each name once",
        ),
        (
            || {
                with(
                    Compile::new("sgd").loss("mse").metrics([SparseCategoricalAccuracy::default()]),
                )
            },
            "metric 'sparse_categorical_accuracy': y_true: expected i32 (None,), received f32 (None, 3)",
        ),
        (
            || {
                with(
                    Compile::new("sgd")
                        .loss("sparse_categorical_crossentropy")
                        .metrics(["categorical_accuracy"]),
                )
            },
            "metric 'categorical_accuracy': y_true: expected f32 (None, 3), received i32 (None,)",
        ),
        (
            || {
                with(
                    Compile::new("sgd")
                        .loss("mse")
                        .metrics([BinaryAccuracy::default().threshold(2.0)]),
                )
            },
            "metric 'binary_accuracy': threshold: expected a number from 0 to 1, received 2",
        ),
        (
            || {
                let x = Input::new([4]).integers().symbol();
                let mut model = Model::new(&x, &x)?;
                model.compile(Compile::new("sgd").loss("mse"))
            },
            "loss 'mean_squared_error': y_pred: expected float rows, one per sample, received i32 (None, 4)",
        ),
        (
            || {
                let x = Input::new([0; 0]).symbol();
                let mut model = Model::new(&x, &x)?;
                model.compile(Compile::new("sgd").loss("sparse_categorical_crossentropy"))
            },
            "loss 'sparse_categorical_crossentropy': y_pred: expected a last axis of classes, received f32 (None,)",
        ),
    ]);
}

#[test]
fn calls_that_need_a_compiled_model_say_so() {
    check(&[
        (
            || classifier().fit(clouds(3), Fit::new()).map(|_| ()),
            "model 'sequential' is not compiled: call compile(...) before fit",
        ),
        (|| classifier().evaluate(clouds(3)).map(|_| ()), "before evaluate"),
        (
            || classifier().train_on_batch(&clouds(3).0, &clouds(3).1).map(|_| ()),
            "before train_on_batch",
        ),
        (|| classifier().gradients(&clouds(3).0, &clouds(3).1).map(|_| ()), "before gradients"),
        (|| classifier().program(StepKind::Train, 1).map(|_| ()), "before program"),
        (|| classifier().set_learning_rate(0.1), "before set_learning_rate"),
        (
            || {
                let mut model = classifier();
                model.predict(clouds(3).0)?;
                model.fit(clouds(3), Fit::new()).map(|_| ())
            },
            "before fit",
        ),
        (
            || {
                let model = classifier();
                model.predict(clouds(3).0)?;
                model.program(StepKind::Train, 1).map(|_| ())
            },
            "before program",
        ),
        (
            || compiled(SGD::default()).program(StepKind::Train, 0).map(|_| ()),
            "program: batch_size: expected 1 or more, received 0",
        ),
        (
            || compiled(SGD::default()).set_learning_rate(f64::NAN),
            "model 'sequential': learning_rate: expected a finite rate from 0 up, received NaN",
        ),
    ]);
}

#[test]
fn callbacks_report_what_they_cannot_do() {
    fn with(callback: impl Callback + 'static) -> Result<()> {
        let fit = Fit::new().epochs(2).verbose(0).callback(callback);
        compiled(SGD::default()).fit(clouds(6), fit).map(|_| ())
    }
    fn answering(action: fn() -> Action) -> Result<()> {
        with(LambdaCallback::new().batch_end(move |_| Ok(action())))
    }
    check(&[
        (
            || with(EarlyStopping::new("val_loss")),
            "EarlyStopping: monitor: expected validation_data or validation_split in fit, or one of loss, \
             accuracy, received 'val_loss' without either",
        ),
        (
            || with(ReduceLROnPlateau::new("acuracy")),
            "ReduceLROnPlateau: monitor: expected one of loss, accuracy, received 'acuracy'",
        ),
        (
            || with(LearningRateScheduler::new(|_| f64::NAN)),
            "LearningRateScheduler: schedule: expected a finite rate from 0 up, received NaN for epoch 0",
        ),
        (
            || answering(|| Action::SetLearningRate(-1.0)),
            "learning_rate: expected a finite rate from 0 up, received -1",
        ),
        (
            || answering(|| Action::RestoreWeights(vec![("dense/kernle".into(), vec![])])),
            "unknown weight 'dense/kernle'; did you mean 'dense/kernel'?",
        ),
        (
            || answering(|| Action::RestoreWeights(vec![("dense/bias".into(), vec![1.0])])),
            "parameter dense/bias: expected 8 elements, received 1",
        ),
    ]);
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    let mut model = compiled(SGD::default());
    let before = model.get_weights().unwrap();
    let mut wrong = before.clone();
    wrong[0] = Tensor::zeros([4, 8]);
    wrong[3] = Tensor::zeros([4]);
    let error = model.set_weights(&wrong).unwrap_err().to_string();
    assert_eq!(error, "model 'sequential': dense_1/bias: expected f32 [3], received f32 [4]");
    wrong[3] = tensor(&[3], vec![1i32, 2, 3]);
    let error = model.set_weights(&wrong).unwrap_err().to_string();
    assert_eq!(error, "model 'sequential': dense_1/bias: expected f32 [3], received i32 [3]");
    let error = model.set_weights(&wrong[..3]).unwrap_err().to_string();
    assert_eq!(error, "model 'sequential': set_weights: expected 4 tensors, received 3");
    assert_eq!(model.get_weights().unwrap(), before);
}

/// The monitored metric of a callback is checked before the first epoch.
#[test]
fn a_monitor_that_does_not_exist_is_refused_before_the_first_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| ModelCheckpoint::new(directory.path().join(name));
    let best = |monitor: &str| file("best.keras").monitor(monitor).save_best_only(true);
    let callbacks: Vec<(Box<dyn Callback>, &str)> = vec![
        (Box::new(EarlyStopping::new("val_accuracy")), "EarlyStopping: monitor: expected valid"),
        (Box::new(EarlyStopping::new("los")), "expected one of loss, accuracy, received 'los'"),
        (
            Box::new(ReduceLROnPlateau::new("val_loss")),
            "ReduceLROnPlateau: monitor: expected valid",
        ),
        (Box::new(best("val_accuracy")), "ModelCheckpoint: monitor: expected validation_data"),
        (Box::new(best("accurcy")), "ModelCheckpoint: monitor: expected one of loss, accuracy,"),
        (
            Box::new(best("val_loss").save_freq(3)),
            "ModelCheckpoint: monitor: expected a metric of batches, because save_freq counts batches",
        ),
        (Box::new(file("{val_loss:.2f}.keras")), "checkpoint's name 'val_loss'"),
        (Box::new(file("{epoch}-{acc:.2f}.keras")), "did you mean 'accuracy'? known: epoch, loss,"),
        (Box::new(file("{loss:d}.keras")), "{loss:d} for a fraction"),
    ];
    struct Boxed(Box<dyn Callback>);
    impl Callback for Boxed {
        fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
            self.0.on_train_begin(view)
        }
    }
    for (callback, message) in callbacks {
        let begun = LambdaCallback::new().epoch_begin(|_| panic!("an epoch was begun"));
        let fit = Fit::new().verbose(0).callback(Boxed(callback)).callback(begun);
        let error = compiled(SGD::default()).fit(clouds(6), fit).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let fit = Fit::new().epochs(2).verbose(0).validation_data(clouds(6));
    let fit = fit.callback(best("val_accuracy")).callback(EarlyStopping::new("val_loss"));
    compiled(SGD::default()).fit(clouds(6), fit).unwrap();
}
