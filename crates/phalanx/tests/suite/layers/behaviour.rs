//! Behaviour that fixtures of Keras cannot show: random masks, shared weights, adapted statistics, the nodes of
//! a layer.

use super::errors::refusal;
use super::{call, params, row_type};
use crate::common::{difference_to_scale, run};
use phalanx::layer::{LayerHandle, Lowering};
use phalanx::layers::*;
use phalanx_graph::{DType, Fetch, Op, Space, Step, Tensor, Type};

#[test]
fn dropout_acts_in_training_only_and_keeps_the_mean() {
    let x = Tensor::new([50, 40], vec![1.0f32; 2000]).unwrap();
    let layer: LayerHandle = Dropout::new(0.25).into();
    let types = [row_type(&x)];
    let idle = call(&layer, false, &types).unwrap();
    assert_eq!(idle.output, idle.inputs[0]);
    let zero: LayerHandle = Dropout::new(0.0).into();
    let idle = call(&zero, true, &types).unwrap();
    assert_eq!(idle.output, idle.inputs[0]);

    let active = call(&layer, true, &types).unwrap();
    let y = &run(&active.lowering.graph, &[active.output], &[x], &[])[0];
    assert!(y.iter().all(|v| *v == 0.0 || (*v - 1.0 / 0.75).abs() < 1e-6));
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    assert!((mean - 1.0).abs() < 0.05, "{mean}");
}

#[test]
fn spatial_dropout_drops_whole_channels() {
    let x = Tensor::new([6, 3, 2, 5], vec![1.0f32; 180]).unwrap();
    let called = call(&SpatialDropout2D::new(0.5).into(), true, &[row_type(&x)]).unwrap();
    let y = &run(&called.lowering.graph, &[called.output], &[x], &[])[0];
    for row in y.chunks(30) {
        assert!(row.chunks(5).all(|pixel| pixel == &row[..5]), "{row:?}");
    }
    assert!(y.contains(&0.0) && y.contains(&2.0));
}

/// Mean and variance of what a layer makes of ones in training; in inference it returns its input.
fn noisy(layer: LayerHandle) -> (f64, f64) {
    let x = Tensor::new([100, 80], vec![1.0f32; 8000]).unwrap();
    let types = [row_type(&x)];
    let idle = call(&layer, false, &types).unwrap();
    assert_eq!(idle.output, idle.inputs[0]);
    let active = call(&layer, true, &types).unwrap();
    let y = &run(&active.lowering.graph, &[active.output], &[x], &[])[0];
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    (mean, y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / y.len() as f64)
}

#[test]
fn noise_has_the_mean_and_variance_of_its_distribution() {
    let close = |received: f64, expected: f64| (received - expected).abs() < 0.02;
    let (mean, variance) = noisy(GaussianNoise::new(0.5).into());
    assert!(close(mean, 1.0) && close(variance, 0.25), "{mean} {variance}");
    let (mean, variance) = noisy(GaussianDropout::new(0.2).into());
    assert!(close(mean, 1.0) && close(variance, 0.25), "{mean} {variance}");
    // Kept elements are `scale + shift`, the others `scale · limit + shift`.
    let (rate, limit) = (0.3f64, -1.7580993408473766);
    let scale = ((1.0 - rate) * (1.0 + rate * limit * limit)).sqrt().recip();
    let (mean, variance) = noisy(AlphaDropout::new(rate).into());
    assert!(close(mean, scale * (1.0 - rate)), "{mean}");
    assert!(
        (variance - rate * (1.0 - rate) * (scale * (1.0 - limit)).powi(2)).abs() < 0.05,
        "{variance}"
    );
    assert!(
        refusal(GaussianNoise::new(1.5), &[&[3]]).starts_with("layer 'it': stddev: expected 0")
    );
    assert!(
        refusal(GaussianDropout::new(1.0), &[&[3]]).starts_with("layer 'it': rate: expected 0")
    );
}

#[test]
fn channels_first_layers_need_no_transposes_between_them() {
    let mut lowering = Lowering::new(false);
    let feed = lowering.graph.add_feed("x", Type::rows([3, 8, 8]));
    let mut x = lowering.graph.feed(feed);
    let layers: [LayerHandle; 3] = [
        Conv2D::new(4, 3).activation("relu").data_format("channels_first").into(),
        MaxPooling2D::new(2).data_format("channels_first").into(),
        Conv2D::new(5, 2).data_format("channels_first").into(),
    ];
    for (i, layer) in layers.iter().enumerate() {
        x = lowering.call(layer, &format!("layer_{i}"), &[x]).unwrap();
    }
    assert_eq!(lowering.graph.ty(x).dims, [5, 2, 2]);
    let mut step = Step::new("test", lowering.graph);
    step.fetches.push(Fetch { name: "y".into(), node: x });
    let step = phalanx_graph::passes::simplify(step);
    let transposes = step.graph.nodes().iter().filter(|n| matches!(n.op, Op::Transpose { .. }));
    assert_eq!(transposes.count(), 2, "{step}");
}

#[test]
fn noise_shape_shares_the_mask_along_an_axis() {
    let x = Tensor::new([8, 3, 4], vec![1.0f32; 96]).unwrap();
    let layer = Dropout::new(0.5).noise_shape([None, Some(1), None]);
    let called = call(&layer.into(), true, &[row_type(&x)]).unwrap();
    let y = &run(&called.lowering.graph, &[called.output], &[x], &[])[0];
    for row in y.chunks(12) {
        assert!(row.chunks(4).all(|step| step == &row[..4]), "{row:?}");
    }
    let bad = Dropout::new(0.5).noise_shape([Some(1), None, None]);
    assert!(refusal(bad, &[&[3, 4]]).starts_with("layer 'it': noise_shape: expected None"));
}

#[test]
fn synchronized_batch_norm_shares_its_statistics_with_all() {
    let types = [Type::rows([4])];
    let scopes = |layer: BatchNormalization| {
        let called = call(&layer.into(), true, &types).unwrap();
        let text = called.lowering.graph.to_string();
        (text.contains("all_reduce over=all"), text.contains("replica_mean"))
    };
    assert_eq!(scopes(BatchNormalization::new()), (false, true));
    assert_eq!(scopes(BatchNormalization::new().synchronized(true)), (true, false));
}

#[test]
fn a_layer_called_twice_shares_its_weights() {
    let dense: LayerHandle = Dense::new(3).into();
    let mut lowering = Lowering::new(true);
    let feed = lowering.graph.add_feed("x", Type::rows([3]));
    let x = lowering.graph.feed(feed);
    let y = lowering.call(&dense, "dense", &[x]).unwrap();
    lowering.call(&dense, "dense", &[y]).unwrap();
    assert_eq!(lowering.graph.params().len(), 2);
    let feed = lowering.graph.add_feed("z", Type::rows([5]));
    let z = lowering.graph.feed(feed);
    let text = lowering.call(&dense, "dense", &[z]).unwrap_err().to_string();
    let expected =
        "layer 'dense': kernel: expected the shape it was built with, [3, 3], received [5, 3]";
    assert_eq!(text, expected);
}

#[test]
fn an_adapted_normalization_gives_mean_zero_and_variance_one() {
    let values: Vec<f32> = (0..60).map(|i| (i * i % 17) as f32 + (i % 3) as f32 * 10.0).collect();
    let x = Tensor::new([10, 2, 3], values).unwrap();
    for axis in [&[-1][..], &[1, 2], &[]] {
        let layer = Normalization::new().axis(axis).adapt(&x).unwrap();
        let called = call(&layer.into(), false, &[row_type(&x)]).unwrap();
        assert!(called.lowering.weights.is_empty());
        let params = params(&called.lowering, &[]);
        let y =
            &run(&called.lowering.graph, &[called.output], std::slice::from_ref(&x), &params)[0];
        let mean = y.iter().sum::<f64>() / 60.0;
        let variance = y.iter().map(|v| v * v).sum::<f64>() / 60.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-5, "{axis:?}: {mean} {variance}");
    }
    let text = Normalization::new().adapt(&Tensor::zeros([0, 3])).unwrap_err().to_string();
    assert_eq!(text, "Normalization: data: expected samples, received shape [0, 3]");
}

#[test]
fn a_normalization_without_numbers_has_keras_weights() {
    let layer: LayerHandle = Normalization::new().into();
    let called = call(&layer, false, &[Type::rows([2])]).unwrap();
    let names: Vec<String> = layer.weights().iter().map(|w| w.spec.name.clone()).collect();
    assert_eq!(names, ["mean", "variance", "count"]);
    let weights = [vec![1.0f32, 2.0], vec![4.0, 9.0]].map(|v| Tensor::new([2], v).unwrap());
    let count = Tensor::zeros([]);
    let params = params(&called.lowering, &[&weights[0], &weights[1], &count]);
    let x = Tensor::new([1, 2], vec![5.0f32, 5.0]).unwrap();
    let y = run(&called.lowering.graph, &[called.output], &[x], &params);
    assert_eq!(y[0], [2.0, 1.0]);
}

#[test]
fn whole_numbers_are_cast_where_keras_casts_them() {
    let ints = Type::new(DType::I32, Space::Rows, [2]);
    let x = Tensor::new([1, 2], vec![51, 255]).unwrap();
    let called = call(&Rescaling::new([1.0 / 255.0, 2.0]).into(), false, &[ints]).unwrap();
    let params = params(&called.lowering, &[]);
    let y = run(&called.lowering.graph, &[called.output], &[x], &params);
    assert!(difference_to_scale(&y[0], &[0.2, 510.0]) < 1e-6);

    let called = call(&Embedding::new(4, 2).into(), false, &[Type::rows([3])]).unwrap();
    assert!(called.lowering.graph.to_string().contains("cast i32"));
}

#[test]
fn relu_as_an_activation_is_one_node_and_linear_none() {
    let ops = |layer: Dense| {
        let called = call(&layer.into(), false, &[Type::rows([2])]).unwrap();
        let names = called.lowering.graph.nodes().iter().map(|n| n.op.name());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ops(Dense::new(3).activation("relu")), "feed param param dot relu");
    assert_eq!(ops(Dense::new(3).use_bias(false)), "feed param dot");
}

#[test]
fn a_recurrent_layer_is_one_op_unless_its_options_need_every_step() {
    let ops = |layer: LayerHandle, steps: usize| {
        let called = call(&layer, true, &[Type::rows([steps, 2])]).unwrap();
        let names = called.lowering.graph.nodes().iter().map(|n| n.op.name().to_string());
        names.collect::<Vec<_>>()
    };
    let fused: [fn() -> LayerHandle; 4] = [
        || LSTM::new(3).into(),
        || GRU::new(3).return_sequences(true).into(),
        || RNN::new(LSTMCell::new(3).dropout(0.5)).go_backwards(true).into(),
        || Bidirectional::new(GRU::new(3).use_bias(false)).into(),
    ];
    for layer in fused {
        let (short, long) = (ops(layer(), 2), ops(layer(), 50));
        assert_eq!(short, long);
        assert!(long.contains(&"recurrent".to_string()), "{long:?}");
    }
    let unrolled: [fn() -> LayerHandle; 5] = [
        || SimpleRNN::new(3).into(),
        || LSTM::new(3).activation("relu").into(),
        || LSTM::new(3).recurrent_dropout(0.5).into(),
        || GRU::new(3).reset_after(false).into(),
        || GRU::new(3).recurrent_activation("hard_sigmoid").into(),
    ];
    for layer in unrolled {
        let (short, long) = (ops(layer(), 2), ops(layer(), 50));
        assert!(long.len() > 5 * short.len(), "{} and {}", short.len(), long.len());
        assert!(!long.contains(&"recurrent".to_string()), "{long:?}");
    }
}
