//! Metrics against Python Keras: three batches of different sizes, their sums merged in f64.

use crate::common::{
    Case, Fixture, RUNNERS, Runner, assert_close, assert_config, on_emulated_gpu, run_on,
};
use phalanx::metrics::{self, Metric, MetricExt};
use phalanx_graph::{DType, Graph, Space, Tensor, Type};
use phalanx_needs::needs;

fn row_type(tensor: &Tensor) -> Type {
    Type::new(tensor.dtype(), Space::Rows, &tensor.dims()[1..])
}

/// The sums of one batch.
fn state(
    runner: Runner,
    metric: &dyn Metric,
    y_true: &Tensor,
    y_pred: &Tensor,
    weight: &Tensor,
) -> Vec<f64> {
    let mut g = Graph::new();
    let feeds = [y_true, y_pred, weight];
    let ids = feeds.map(|t| g.add_feed("feed", row_type(t)));
    let [t, p, w] = ids.map(|id| g.feed(id));
    let sums = metric.update(&mut g, t, p, w).expect("operands that fit");
    let expected = Type::new(DType::F32, Space::Partial, [metric.state_len(&row_type(y_pred))]);
    assert_eq!(*g.ty(sums), expected, "{}", metric.name());
    run_on(runner, &g, &[sums], &feeds.map(Clone::clone), &[]).remove(0)
}

/// Labels as passed on by the losses: without a last axis of one.
fn labels(y_true: &Tensor) -> Tensor {
    match (y_true.dtype(), y_true.dims()) {
        (DType::I32, [n, 1]) => y_true.clone().reshape([*n]).unwrap(),
        _ => y_true.clone(),
    }
}

/// The numbers of a result. That of a vector is their mean.
fn result(metric: &dyn Metric, state: &[f64]) -> Vec<f64> {
    let number = metric.result(state);
    let Some(vector) = metric.vector(state) else { return vec![number] };
    let mean = vector.iter().sum::<f64>() / vector.len() as f64;
    assert_close(metric.name(), &[number], &[mean as f32], 1e-6);
    vector
}

fn check(case: &Case<'_>, runner: Runner) {
    let metric = metrics::from_config(case.class_name(), case.config()).expect(case.name);
    let prediction = row_type(case.tensor("y_pred/0"));
    let mut merged = vec![0.0; metric.state_len(&prediction)];
    let mut results = vec![];
    for i in 0..3 {
        let (y_true, y_pred) =
            (case.tensor(&format!("y_true/{i}")), case.tensor(&format!("y_pred/{i}")));
        let rows = y_pred.rows();
        let ones = Tensor::new([rows], vec![1.0; rows]).unwrap();
        let weight = case.find(&format!("sample_weight/{i}")).unwrap_or(&ones);
        let sums = state(runner, &*metric, &labels(y_true), y_pred, weight);
        merged.iter_mut().zip(sums).for_each(|(m, s)| *m += s);
        results.extend(result(&*metric, &merged));
    }
    let what = format!("{} on {runner:?}", case.name);
    assert_close(&what, &results, case.f32("result"), 1e-5);
}

#[test]
fn three_merged_batches_match_keras() {
    let fixture = Fixture::load("metrics");
    assert!(fixture.cases().count() > 200);
    for runner in RUNNERS {
        fixture.cases().for_each(|case| check(&case, runner));
    }
}

#[needs(gxx)]
#[test]
fn merged_batches_match_keras_on_an_emulated_gpu() {
    let fixture = Fixture::load("metrics");
    for (i, case) in fixture.cases().enumerate() {
        if on_emulated_gpu(i) {
            check(&case, Runner::EmulatedGpu);
        }
    }
}

/// Means and sums of a program's own values.
#[test]
fn running_means_and_sums_match_keras() {
    let fixture = Fixture::load("running_metrics");
    assert_eq!(fixture.cases().count(), 4);
    for case in fixture.cases() {
        let (mut mean, mut sum) = (metrics::Mean::new(), metrics::Sum::new());
        let floats = |field: String| -> Option<Vec<f64>> {
            let values = case.find(&field)?.f32()?;
            Some(values.iter().map(|value| f64::from(*value)).collect())
        };
        let mut results = vec![];
        for i in 0..3 {
            let (values, weights) =
                (floats(format!("values/{i}")).unwrap(), floats(format!("sample_weight/{i}")));
            mean.update_state(&values, weights.as_deref());
            sum.update_state(&values, weights.as_deref());
            results.push(if case.class_name() == "Mean" { mean.result() } else { sum.result() });
        }
        assert_close(case.name, &results, case.f32("result"), 1e-5);
    }
}

#[test]
fn configs_round_trip() {
    for case in Fixture::load("metrics").cases() {
        let metric = metrics::from_config(case.class_name(), case.config()).unwrap();
        assert_eq!(metric.class_name(), case.class_name());
        let mut keras = case.config().clone();
        // Keras writes weights of labels as a tensor, which it cannot read. It reads a list.
        if let Some(weights) = keras.get("label_weights").and_then(|w| w.pointer("/config/value")) {
            keras.insert("label_weights".into(), weights.clone());
        }
        assert_config(case.name, &metric.config(), &keras, &["axis"]);
        let again = metrics::from_config(case.class_name(), &metric.config()).unwrap();
        assert_eq!(again.config(), metric.config());
    }
}

#[test]
fn nothing_counted_is_zero() {
    let target = Type::rows([1]);
    for name in [
        "accuracy",
        "precision",
        "recall",
        "auc",
        "mse",
        "root_mean_squared_error",
        "true_positives",
        "binary_io_u",
        "r2_score",
    ] {
        let metric = metrics::get(name, &target, &target).unwrap();
        assert_eq!(metric.result(&vec![0.0; metric.state_len(&target)]), 0.0, "{name}");
    }
    let pr = metrics::AUC::default().curve(metrics::Curve::PR);
    assert_eq!(pr.result(&vec![0.0; pr.state_len(&target)]), 0.0);
}

#[test]
fn nothing_counted_is_a_vector_of_zeros() {
    let three = Type::rows([3]);
    let thresholds = Some(vec![0.2, 0.6, 0.7].into());
    let metrics: [&dyn Metric; 4] = [
        &metrics::F1Score::default(),
        &metrics::FBetaScore::default(),
        &metrics::R2Score::default().class_aggregation(None),
        &metrics::Recall::default().thresholds(thresholds),
    ];
    for metric in metrics {
        let state = vec![0.0; metric.state_len(&three)];
        assert_eq!(metric.vector(&state), Some(vec![0.0; 3]), "{}", metric.name());
    }
    // One threshold in a list is a number, as in Keras.
    let recall = metrics::Recall::default().thresholds(Some(vec![0.2].into()));
    assert_eq!(recall.vector(&vec![0.0; recall.state_len(&three)]), None);
}

/// Expected numbers: `keras.metrics.AUC(num_thresholds=7, curve=…, summation_method=…)` of Keras
/// 3.15 for targets 0, 1, 1, 0, 1 and predictions 0.1, 0.4, 0.8, 0.6, 0.3.
#[test]
fn auc_sums_the_area_in_three_ways() {
    use metrics::{AUC, Curve, SummationMethod};
    let state = [3.0, 3.0, 2.0, 1.0, 1.0, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 3.0, 2.0];
    for (curve, method, expected) in [
        (Curve::ROC, SummationMethod::Interpolation, 0.666_666_7),
        (Curve::ROC, SummationMethod::Minoring, 0.666_666_7),
        (Curve::ROC, SummationMethod::Majoring, 0.666_666_7),
        (Curve::PR, SummationMethod::Interpolation, 0.768_950_9),
        (Curve::PR, SummationMethod::Minoring, 0.388_888_9),
        (Curve::PR, SummationMethod::Majoring, 0.805_555_6),
    ] {
        let auc = AUC::default().num_thresholds(7).curve(curve).summation_method(method);
        assert_close(&format!("{curve:?} {method:?}"), &[auc.result(&state)], &[expected], 1e-6);
    }
}

#[test]
fn accuracy_and_crossentropy_pick_their_kind_and_keep_their_name() {
    let labels = Type::new(DType::I32, Space::Rows, []);
    let steps = Type::new(DType::I32, Space::Rows, [5]);
    let cases = [
        (Type::rows([1]), Type::rows([1]), "Binary"),
        (labels, Type::rows([10]), "SparseCategorical"),
        (steps, Type::rows([5, 10]), "SparseCategorical"),
        (Type::rows([10]), Type::rows([10]), "Categorical"),
    ];
    for (target, prediction, kind) in cases {
        for (name, what) in
            [("accuracy", "Accuracy"), ("acc", "Accuracy"), ("crossentropy", "Crossentropy")]
        {
            let metric = metrics::get(name, &target, &prediction).unwrap();
            assert_eq!(metric.class_name(), format!("{kind}{what}"));
            assert_eq!(metric.name(), name);
        }
    }
    let metric = metrics::get("mse", &Type::rows([1]), &Type::rows([1])).unwrap();
    assert_eq!((metric.class_name(), metric.name()), ("MeanSquaredError", "mse"));
}

#[test]
fn what_only_weights_of_the_data_decide_is_refused() {
    use phalanx::prelude::{Apply, Compile, Dense, Input, Model};
    let ignored = serde_json::json!({ "ignore_class": 1 });
    let ignored = ignored.as_object().unwrap();
    let function = "sparse_categorical_crossentropy";
    let metric = || metrics::MeanMetricWrapper::with_arguments(function, "error", ignored).unwrap();
    let x = Input::new([2]).symbol();
    let mut model = Model::new(&x, Dense::new(3).activation("softmax").apply(&x)).unwrap();
    let compile = || Compile::new("sgd").loss(function);
    model.compile(compile().metrics([metric()])).unwrap();
    let text = model.compile(compile().weighted_metrics([metric()])).unwrap_err().to_string();
    let expected = "metric 'error': ignore_class: expected null among weighted_metrics";
    assert!(text.contains(expected), "{text}");
    // Keras counts the number of a batch once, however many samples it has.
    let metric = metrics::MeanMetricWrapper::new("dice", "overlap").unwrap();
    let text = model.compile(Compile::new("sgd").loss("mse").metrics([metric])).unwrap_err();
    let expected = "fn: expected a function with a value for each sample, received dice";
    assert!(text.to_string().contains(expected), "{text}");
}

fn misfit(metric: &dyn Metric, target: Type, prediction: Type) -> String {
    let mut g = Graph::new();
    let ids = [target, prediction, Type::rows([])].map(|ty| g.add_feed("feed", ty));
    let [t, p, w] = ids.map(|id| g.feed(id));
    metric.update(&mut g, t, p, w).expect_err("operands that do not fit").to_string()
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let labels = Type::new(DType::I32, Space::Rows, []);
    let text = misfit(
        &metrics::CategoricalAccuracy::default().named("accuracy"),
        labels.clone(),
        Type::rows([10]),
    );
    let expected = "metric 'accuracy': y_true: expected f32 (None, 10), received i32 (None,)";
    assert_eq!(text, expected);
    let text =
        misfit(&metrics::SparseCategoricalAccuracy::default(), Type::rows([9]), Type::rows([9]));
    assert!(text.ends_with("expected i32 (None,), received f32 (None, 9)"), "{text}");
    let text = misfit(&metrics::Precision::default(), labels, Type::rows([10]));
    assert!(text.contains("metric 'precision': y_true: expected f32 (None, 10)"), "{text}");
    let text = misfit(&metrics::R2Score::default(), Type::rows([2, 2]), Type::rows([2, 2]));
    assert!(
        text.contains("y_pred: expected shape (None, outputs), received f32 (None, 2, 2)"),
        "{text}"
    );
    let auc = metrics::AUC::default().multi_label(true).num_labels(Some(3));
    let text = misfit(&auc, Type::rows([2]), Type::rows([2]));
    assert!(text.contains("y_pred: expected shape (None, 3), received f32 (None, 2)"), "{text}");
    let auc = metrics::AUC::default().label_weights(Some(vec![0.5, 2.0]));
    for auc in [auc.clone(), auc.multi_label(true)] {
        let text = misfit(&auc, Type::rows([3]), Type::rows([3]));
        let expected = "label_weights: expected a weight for each label of (None, 3), received 2";
        assert!(text.contains(expected), "{text}");
    }
    let precision = metrics::Precision::default();
    let text = misfit(&precision.clone().class_id(Some(2)), Type::rows([2]), Type::rows([2]));
    assert!(text.contains("class_id: expected a class of (None, 2), received 2"), "{text}");
    let text = misfit(&precision.top_k(Some(3)), Type::rows([2]), Type::rows([2]));
    assert!(text.contains("top_k: expected at most 1024 of the classes of (None, 2)"), "{text}");
    let iou = metrics::MeanIoU::new(3).sparse_y_pred(false);
    let text = misfit(&iou, Type::rows([5]), Type::rows([4, 3]));
    assert!(text.contains("y_true: expected i32 (None, 4), received f32 (None, 5)"), "{text}");
    let text = misfit(&metrics::PearsonCorrelation::default(), Type::rows([]), Type::rows([]));
    assert!(text.contains("axis: expected an axis of (None,) other than the batch"), "{text}");
    let text = misfit(&metrics::MeanSquaredError::default(), Type::rows([2]), Type::rows([3]));
    assert!(text.contains("expected f32 (None, 3), received f32 (None, 2)"), "{text}");
}

#[test]
fn names_and_configs_that_mean_nothing_are_refused() {
    let ty = Type::rows([1]);
    let text = metrics::get("accurate", &ty, &ty).unwrap_err().to_string();
    assert!(text.contains("unknown metric 'accurate'; did you mean 'accuracy'?"), "{text}");
    let refused = |class: &str, config: serde_json::Value| {
        metrics::from_config(class, config.as_object().unwrap()).unwrap_err().to_string()
    };
    for (class, config) in [
        ("AUC", serde_json::json!({"num_thresholds": 1})),
        ("AUC", serde_json::json!({"num_labels": 3})),
        ("AUC", serde_json::json!({"label_weights": ["one"]})),
        ("AUC", serde_json::json!({"curve": "LIFT"})),
        ("AUC", serde_json::json!({"thresholds": [1.5]})),
        ("AUC", serde_json::json!({"thresholds": []})),
        ("BinaryAccuracy", serde_json::json!({"threshold": 2.0})),
        ("Precision", serde_json::json!({"top_k": 0})),
        ("SparseCategoricalCrossentropy", serde_json::json!({"ignore_class": 1})),
        ("F1Score", serde_json::json!({"average": "mean"})),
        ("FBetaScore", serde_json::json!({"beta": 0.0, "average": "micro"})),
        ("F1Score", serde_json::json!({"threshold": 0.0, "average": "micro"})),
        ("R2Score", serde_json::json!({"class_aggregation": "mean"})),
        ("PrecisionAtRecall", serde_json::json!({"recall": 1.5})),
        ("MeanMetricWrapper", serde_json::json!({"fn": "huber", "gamma": 1.0})),
        ("MeanMetricWrapper", serde_json::json!({"fn": "huber", "delta": -1.0})),
        ("MeanMetricWrapper", serde_json::json!({"fn": "binary_accuracy", "from_logits": true})),
        ("MeanIoU", serde_json::json!({"num_classes": 1u64 << 40})),
        ("BinaryIoU", serde_json::json!({"target_class_ids": [2]})),
        ("Recall", serde_json::json!({"thresholds": [0.1, 1.5]})),
        ("Recall", serde_json::json!({"thresholds": []})),
        ("TopKCategoricalAccuracy", serde_json::json!({"k": 0})),
    ] {
        let text = refused(class, config.clone());
        let mut keys = config.as_object().unwrap().keys();
        assert!(keys.any(|key| text.contains(key)), "{class} {config}: {text}");
    }
}
