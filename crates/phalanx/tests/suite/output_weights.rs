//! Sample weights of each output, and of each time step. The fixture is made by tests/python/output_weights.py.

use crate::common::{Case, Fixture, emulated_gpu};
use crate::output_losses::{check_logs, check_weights, file, last_logs};
use phalanx::data::{Arrays, Pipeline};
use phalanx::model::BatchWeights;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::sync::Arc;

fn targets(case: &Case<'_>) -> Vec<Tensor> {
    case.list("y").into_iter().cloned().collect()
}

/// The weights of each output; `None` for ones.
fn weights(case: &Case<'_>) -> Vec<Option<Tensor>> {
    let of_output = |i: usize| case.find(&format!("weight/{i}")).cloned();
    (0..targets(case).len()).map(of_output).collect()
}

fn data(case: &Case<'_>) -> Arrays {
    let data = Arrays::new(case.tensor("x").clone(), targets(case)).unwrap();
    data.output_weights(weights(case)).unwrap()
}

fn check(model: &mut Model, case: &Case<'_>, what: &str) {
    let logs = model.evaluate_with(data(case), Inference::new().batch_size(4)).unwrap();
    check_logs(&logs, case, "result", what);
    let fit = Fit::new().epochs(2).batch_size(4).shuffle(false).verbose(0);
    let history = model.fit(data(case), fit).unwrap();
    if case.name.starts_with("masked") {
        // On JAX, Keras' metrics of training do not see the mask of an output.
        let names = case.json["names"].as_array().unwrap();
        let loss = names.iter().position(|name| name == "loss").unwrap();
        let expected = f64::from(case.f32("history")[loss]);
        let received = history.last("loss").unwrap();
        assert!((received - expected).abs() < 1e-5 * expected, "{} {received}", case.name);
    } else {
        check_logs(&last_logs(&history), case, "history", what);
    }
    check_weights(model, case, what);
}

fn load(case: &Case<'_>, strategy: MirroredStrategy) -> Model {
    Load::new().strategy(strategy).model(file("output_weights", case)).unwrap()
}

#[test]
fn weights_of_outputs_and_time_steps_give_keras_numbers() {
    for case in Fixture::load("output_weights").cases() {
        for replicas in [1, 2] {
            let mut model = load(&case, MirroredStrategy::cpus(replicas).unwrap().threads(1));
            check(&mut model, &case, &format!("on {replicas}"));
        }
    }
}

#[needs(gxx)]
#[test]
fn weights_of_outputs_and_time_steps_reach_an_emulated_gpu() {
    let fixture = Fixture::load("output_weights");
    for name in ["per_output_sums", "masked_mean"] {
        let case = fixture.cases().find(|case| case.name == name).unwrap();
        let strategy = MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
        check(&mut load(&case, strategy), &case, "on an emulated GPU");
    }
}

#[test]
fn fit_batches_and_pipelines_take_weights_of_outputs() {
    let fixture = Fixture::load("output_weights");
    let case = fixture.cases().find(|case| case.name == "steps").unwrap();
    let one = || MirroredStrategy::cpus(1).unwrap().threads(1);
    let x = || case.tensor("x").clone();
    let mut model = load(&case, one());
    let arrays = Arrays::new(x(), targets(&case)).unwrap();
    let fit = Fit::new().epochs(2).batch_size(4).shuffle(false).verbose(0);
    let history = model.fit(arrays, fit.output_weights(weights(&case))).unwrap();
    check_logs(&last_logs(&history), &case, "history", "given to fit");
    // A batch with weights of positions, one without, and one with them again.
    let mut model = load(&case, one());
    let of_batch = BatchWeights::new().output_weights(weights(&case));
    let whole = |model: &mut Model| {
        let data = data(&case).batch(6).unwrap();
        model.evaluate_with(data, Inference::new()).unwrap().get("loss").unwrap()
    };
    let expected = whole(&mut model);
    let weighted = model.test_on_batch_with(x(), targets(&case), &of_batch).unwrap();
    let plain = model.test_on_batch(x(), targets(&case)).unwrap().get("loss").unwrap();
    assert_eq!(weighted.get("loss").unwrap(), expected);
    assert!((plain - expected).abs() > 1e-3, "{plain} {expected}");
    assert_eq!(whole(&mut model), expected);
    let elements = vec![x(), targets(&case)[0].clone(), case.tensor("weight/0").clone()];
    let pipeline = Pipeline::from_tensor_slices(elements).unwrap().batch(4, false).unwrap();
    let logs = model.evaluate_with(pipeline, Inference::new()).unwrap();
    check_logs(&logs, &case, "result", "of a pipeline");
    // A slice of arrays has the weights of its rows.
    let tail = data(&case).skip(4).unwrap();
    let select = |t: &Tensor| t.slice_rows(4..6);
    let own = Arrays::new(select(&x()), select(&targets(&case)[0])).unwrap();
    let own = own.output_weights([Some(select(case.tensor("weight/0")))]).unwrap();
    let evaluate = |model: &mut Model, data| model.evaluate_with(data, Inference::new()).unwrap();
    assert_eq!(evaluate(&mut model, tail), evaluate(&mut model, own));
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let fixture = Fixture::load("output_weights");
    let case = fixture.cases().find(|case| case.name == "steps").unwrap();
    let arrays = || Arrays::new(case.tensor("x").clone(), targets(&case)).unwrap();
    let error = |weights: Vec<Option<Tensor>>| arrays().output_weights(weights).unwrap_err();
    let text = error(vec![None, None]).to_string();
    assert!(text.contains("1, one for each target, received 2"), "{text}");
    let text = error(vec![Some(Tensor::zeros([5, 5]))]).to_string();
    assert!(text.contains("6 rows of floats, received f32 [5, 5]"), "{text}");
    let nan = Tensor::new([6], vec![f32::NAN; 6]).unwrap();
    assert!(error(vec![Some(nan)]).to_string().contains("finite numbers, received NaN"));
    let both = arrays().sample_weight(&[1.0; 6]).unwrap();
    assert!(both.output_weights([None]).is_err());
    assert!(arrays().output_weights([None]).unwrap().sample_weight(&[1.0; 6]).is_err());
    let mut model = load(&case, MirroredStrategy::cpus(1).unwrap());
    let wrong = arrays().output_weights([Some(Tensor::zeros([6, 4]))]).unwrap();
    let text = model.evaluate_with(wrong, Inference::new()).unwrap_err().to_string();
    let expected =
        "one for each sample, or the shape of its loss values, (None, 5), received (None, 4)";
    assert!(text.contains("output 'tags'") && text.contains(expected), "{text}");
}
