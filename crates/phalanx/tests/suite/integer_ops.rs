//! Ops on integers have the results of 32-bit integers, or fail: arithmetic of `keras.ops` runs on 32-bit floats, which
//! silently rounded integers from 2^24 on.

use crate::common::emulated_gpu;
use phalanx::layer::Argument;
use phalanx::ops;
use phalanx::prelude::*;
use phalanx_needs::needs;
use serde_json::{Value, json};
use std::sync::Arc;

/// The first integer that is not exact in sums: 2^24.
const LIMIT: i32 = 1 << 24;

type Build = fn(&Symbol) -> Result<Symbol>;

fn call(name: &str, x: &Symbol, more: &[Value], config: Value) -> Result<Symbol> {
    match more {
        [number] => ops::call(name, [x.into(), Argument::Plain(number.clone())], config),
        _ => ops::call(name, [x.into()], config),
    }
}

/// A model of three integers for each sample.
fn model(build: Build) -> Result<Model> {
    let x = Input::new([3]).integers().symbol();
    Model::new(&x, build(&x)?)
}

fn predict(model: &Model, values: [i32; 3]) -> Result<Vec<f32>> {
    let x = Tensor::new([2, 3], [[1, 2, 3], values].concat()).unwrap();
    Ok(model.predict(x)?.f32().unwrap().to_vec())
}

/// An op, integers whose result is exact, the result for them, and integers that are refused.
type OpCase = (&'static str, Build, [i32; 3], Vec<f32>, [i32; 3]);

fn cases() -> Vec<OpCase> {
    let limit = LIMIT as f32;
    vec![
        (
            "Add",
            |x| call("numpy.Add", x, &[json!(5)], json!({})),
            [LIMIT - 6, 0, -7],
            vec![limit - 1.0, 5.0, -2.0],
            [LIMIT - 5, 0, 0],
        ),
        (
            "Multiply",
            |x| call("numpy.Multiply", x, &[json!(4097)], json!({})),
            [4095, -4095, 0],
            vec![limit - 1.0, 1.0 - limit, 0.0],
            [0, 4096, 0],
        ),
        (
            "Sum",
            |x| call("numpy.Sum", x, &[], json!({"axis": 1})),
            [LIMIT / 2, LIMIT / 2 - 2, 1],
            vec![limit - 1.0],
            // The result is small, but not that of a sum of floats.
            [LIMIT - 1, 3, 2 - LIMIT],
        ),
        (
            "FloorDivide",
            |x| call("numpy.FloorDivide", x, &[json!(3)], json!({})),
            [LIMIT - 1, -1, -7],
            vec![5_592_405.0, -1.0, -3.0],
            [LIMIT + 1, 0, 0],
        ),
        (
            "Mod",
            |x| call("numpy.Mod", x, &[json!(1000)], json!({})),
            [LIMIT - 1, -1, -1000],
            vec![215.0, 999.0, 0.0],
            [0, 0, -LIMIT - 1],
        ),
        (
            "Maximum",
            |x| call("numpy.Maximum", x, &[json!(-5)], json!({})),
            [LIMIT - 1, -8, 4],
            vec![limit - 1.0, -5.0, 4.0],
            [LIMIT + 1, 0, 0],
        ),
        (
            "Less",
            |x| call("numpy.Less", x, &[json!(i32::MAX)], json!({})),
            [LIMIT - 1, -8, 4],
            vec![1.0, 1.0, 1.0],
            [i32::MAX, 0, 0],
        ),
        (
            "Power",
            |x| call("numpy.Power", x, &[json!(5)], json!({})),
            [7, -11, 15],
            vec![16807.0, -161_051.0, 759_375.0],
            [100, 0, 0],
        ),
        (
            "Dot",
            |x| ops::call("numpy.Dot", [x.into(), Argument::Plain(json!([2, 3, -1]))], json!({})),
            [2047, -2047, 1],
            vec![-2048.0],
            [0, 2048, 0],
        ),
        (
            "LeftShift",
            |x| call("numpy.LeftShift", x, &[json!(10)], json!({})),
            [16383, -5, 0],
            vec![16_776_192.0, -5120.0, 0.0],
            [i32::MAX / 1024 + 1, 0, 0],
        ),
    ]
}

#[test]
fn integers_that_floats_would_round_are_refused() {
    for (name, build, exact, expected, beyond) in cases() {
        for strategy in [1, 2].map(|n| MirroredStrategy::cpus(n).unwrap()) {
            let mut model = model(build).unwrap();
            model.predict_on(strategy).unwrap();
            let received = predict(&model, exact).unwrap();
            assert_eq!(received[received.len() / 2..], expected, "{name}");
            let error = predict(&model, beyond).unwrap_err().to_string();
            let bits = [("Power", 20), ("Dot", 11)].into_iter().find(|(op, _)| *op == name);
            let bits = bits.map_or(24, |(_, bits)| bits);
            let expected = format!(" ({name}): integers: expected magnitudes below 2^{bits}: ");
            let named = error.contains(&expected);
            assert!(
                named && error.contains("received 1 larger ones in a batch"),
                "{name}: {error}"
            );
            // The next batch is computed again.
            assert_eq!(predict(&model, exact).unwrap(), received, "{name}");
        }
    }
}

#[needs(gxx)]
#[test]
fn an_emulated_gpu_refuses_integers_that_floats_would_round() {
    for (name, build, exact, expected, beyond) in cases().into_iter().take(4) {
        for policy in [Policy::Float32, Policy::MixedBfloat16] {
            let gpu = MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
            let mut model = model(build).unwrap();
            model.predict_on(gpu.policy(policy)).unwrap();
            let received = predict(&model, exact).unwrap();
            assert_eq!(received[received.len() / 2..], expected, "{name} {policy:?}");
            assert!(predict(&model, beyond).is_err(), "{name} {policy:?}");
        }
    }
}

#[test]
fn a_constant_that_floats_would_round_is_refused_when_the_model_is_built() {
    let error = model(|x| call("numpy.Add", x, &[json!(LIMIT + 1)], json!({}))).err().unwrap();
    let expected = "(Add): integers: expected magnitudes below 2^24";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(error.to_string().contains("received 16777217"), "{error}");
}

#[test]
fn floats_made_of_integers_are_rounded_as_in_keras() {
    let build: Build = |x| {
        let x = call("core.Cast", x, &[], json!({"dtype": "float32"}))?;
        call("numpy.Add", &x, &[json!(1.0)], json!({}))
    };
    let received = predict(&model(build).unwrap(), [LIMIT, 0, -LIMIT - 7]).unwrap();
    assert_eq!(received[3..], [LIMIT as f32, 1.0, (-LIMIT - 7) as f32 + 1.0]);
    // An integer times a float is a float in Keras.
    let build: Build = |x| call("numpy.Multiply", x, &[json!(0.5)], json!({}));
    let received = predict(&model(build).unwrap(), [LIMIT + 2, 0, 3]).unwrap();
    assert_eq!(received[3..], [(LIMIT / 2 + 1) as f32, 0.0, 1.5]);
}

#[test]
fn integers_that_only_move_may_have_any_size() {
    let build: Build = |x| {
        let x = call("core.Cast", x, &[], json!({"dtype": "int32"}))?;
        let y = call("numpy.Reshape", &x, &[], json!({"newshape": [-1, 3]}))?;
        Ok(Embedding::new(4, 1).apply(y))
    };
    assert!(predict(&model(build).unwrap(), [3, 0, 1]).is_ok());
}

#[test]
fn training_and_evaluation_refuse_them_too() {
    let x = Input::new([3]).integers().symbol();
    let hashed = call("numpy.Multiply", &x, &[json!(2_654_435)], json!({})).unwrap();
    let hashed = call("numpy.Mod", &hashed, &[json!(11)], json!({})).unwrap();
    let index = call("core.Cast", &hashed, &[], json!({"dtype": "int32"})).unwrap();
    let y = Embedding::new(11, 2).apply(index);
    let mut model = Model::new(&x, Dense::new(1).apply(Flatten::new().apply(y))).unwrap();
    model.compile(Compile::new("sgd").loss("mse")).unwrap();
    let x = |last: i32| Tensor::new([4, 3], (0..11).chain([last]).collect::<Vec<i32>>()).unwrap();
    let y = Tensor::new([4, 1], vec![0.5; 4]).unwrap();
    // 7 * 2654435 is above 2^24: the index of its embedding would be another one than in Keras.
    for small in [true, false] {
        let x = if small { Tensor::new([4, 3], vec![1; 12]).unwrap() } else { x(3) };
        let fit = model.fit((&x, &y), Fit::new().verbose(0));
        let evaluated = model.evaluate_with((&x, &y), Inference::new());
        let gradients = model.gradients(&x, &y);
        assert_eq!([fit.is_ok(), evaluated.is_ok(), gradients.is_ok()], [small; 3]);
        if let Ok(gradients) = gradients {
            assert!(gradients.iter().all(|(name, _)| !name.contains("integers")));
        }
        if let Err(error) = evaluated {
            let expected = "(Multiply): integers: expected magnitudes below 2^24";
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
