//! Every layer with unusual sizes and shapes: either an error or a model that trains.

use super::{one_thread, tensor};
use phalanx::layers::from_config;
use phalanx::prelude::*;
use serde_json::{Map, Value, json};

/// Values for a config key; none of them is valid for all keys.
fn values(key: &str) -> Vec<Value> {
    let sizes = json!([0, 1, 2, 3, 1u64 << 40, u64::MAX]);
    let list = match key {
        "units" | "filters" | "groups" | "input_dim" | "output_dim" | "depth_multiplier" => sizes,
        "kernel_size" | "pool_size" | "strides" | "dilation_rate" | "size" | "output_size" => {
            json!([0, [1, 2], 3, [2, 0], [2, 1, 2], 1u64 << 40, [u64::MAX, 1]])
        }
        "output_padding" => json!([null, 0, 1, [0, 1], u64::MAX]),
        "data_format" => json!(["channels_first", "channels_middle"]),
        "shared_axes" => json!([null, 1, [1, 2], [0], [-1], i64::MIN, []]),
        "n" | "stddev" | "alpha" | "bins" | "num_ops" | "num_chains" | "chain_depth" => {
            json!([0, 1, 0.5, -1, 1e308, u64::MAX])
        }
        "tile_grid_size" => json!([0, 1, [2, 3], [1, 0], u64::MAX]),
        "value_range" => json!([[0, 1], [1, 0], [3, 3], [-1e308, 1e308]]),
        "factor" | "x_factor" | "sigma" => json!([0, 1, -1, 3, [0.5, 0.1], [-1e308, 1e308]]),
        "padding" => json!(["valid", "same", "causal", 0, 1, [[1, 0], [2, 1u64 << 40]], u64::MAX]),
        "cropping" => json!([0, 1, [[1, 0], [0, 1]], [2, 9], u64::MAX]),
        "axis" => json!([-1, 0, 1, 2, -4, 17, i64::MIN, i64::MAX, [1], [1, 2], [-1, -1], []]),
        "rate" | "momentum" | "epsilon" | "negative_slope" | "threshold" | "max_value" => {
            json!([0.0, 0.5, 1.0, -1.0, 2.0, 1e308, null])
        }
        "target_shape" => {
            json!([[], [1], [-1], [2, -1], [-1, -1], [0, -1], [i64::MIN], [1, 1, 1, 12]])
        }
        "dims" => json!([[], [1], [2, 1], [1, 1], [0], [3, 1, 2], [u64::MAX]]),
        "scale" | "offset" => json!([0.0, -2.5, [1.0, 2.0], [], true, false]),
        "mean" | "variance" => json!([null, 0.0, [1.0, 2.0], [], [-1.0]]),
        "activation" => json!(["relu", "softmax", "nothing"]),
        "use_bias" | "center" | "keepdims" | "synchronized" => json!([true, false]),
        "num_tokens" | "num_bins" | "max_tokens" | "num_oov_indices" | "output_sequence_length" => {
            sizes
        }
        "output_mode" => json!(["int", "one_hot", "multi_hot", "count", "tf_idf", "other"]),
        "vocabulary" => json!([null, [], ["a", "b"], ["a", "a"], [1, 2], "file"]),
        "idf_weights" => json!([null, [], [1.0, 2.0]]),
        "vocabulary_size" => json!([null, 0, 4, u64::MAX]),
        "ngrams" => json!([null, 0, 2, u64::MAX, [], [2, 0], [3]]),
        "split" | "standardize" => json!([null, "whitespace", "character", "lower", "other"]),
        "salt" => json!([null, 1, [1, -2], [1], u64::MAX]),
        "mask_value" | "mask_token" | "oov_token" => json!([null, "a", 1, 0.5]),
        "bin_boundaries" => json!([null, [], [1.0], [2.0, 1.0], [1e308, 1e308]]),
        "invert" | "pad_to_max_tokens" | "sparse" | "ragged" => json!([true, false]),
        "interpolation" => json!(["nearest", "bilinear", "bicubic", "other"]),
        _ => json!([]),
    };
    list.as_array().cloned().unwrap_or_default()
}

const SHAPES: [&[usize]; 9] =
    [&[], &[1], &[4], &[2, 6], &[3, 4, 2], &[5, 1, 1], &[2, 1, 3, 2], &[1, 2, 2, 2, 1], &[3, 2, 3]];

/// The keys of a class, from its own config once it can be created.
fn plain(class: &str) -> Map<String, Value> {
    let mut needed = json!({ "units": 2, "filters": 2, "kernel_size": 2, "rate": 0.5, "pool_size": 2,
        "input_dim": 3, "output_dim": 2, "dims": [1], "target_shape": [-1], "scale": 2.0,
        "activation": "relu", "height": 2, "width": 1, "factor": 0.2, "height_factor": 0.2,
        "width_factor": 0.2, "n": 2, "output_size": 2, "stddev": 0.1, "axes": 1,
        "num_heads": 2, "key_dim": 2, "head_dim": 2, "num_query_heads": 2,
        "num_key_value_heads": 1, "equation": "...x,xy->...y", "output_shape": 3, "init_values": 0.5,
        "projection_dim": 2, "drop_path_rate": 0.2, "layer": { "class_name": "LSTM", "config": { "units": 2 } },
        "cell": { "class_name": "LSTMCell", "config": { "units": 2 } }, "num_tokens": 3, "num_bins": 3,
        "axis": -1,
        "layers": [{ "class_name": "Dense", "config": { "units": 2 } }] });
    needed["cells"] = json!([{ "class_name": "GRUCell", "config": { "units": 2 } }]);
    let all = needed.as_object().unwrap();
    // The minimal config, found by removing the keys that the class does not know.
    let mut config = all.clone();
    for key in all.keys() {
        let mut less = config.clone();
        less.remove(key);
        let error =
            |c: &Map<String, Value>| from_config(class, c.clone()).err().map(|e| e.to_string());
        if !error(&less).is_some_and(|e| e.contains(&format!("missing key `{key}`"))) {
            config = less;
        }
    }
    if class == "SpectralNormalization" {
        // It needs a layer with a kernel of its own.
        let dense = json!({ "class_name": "Dense", "config": { "units": 2 } });
        config.insert("layer".into(), dense);
    }
    let learned = match class {
        "StringLookup" => json!({ "vocabulary": ["a", "b"] }),
        "TextVectorization" => json!({ "vocabulary": ["a", "b"], "output_sequence_length": 3 }),
        "IntegerLookup" => json!({ "vocabulary": [1, 2] }),
        "Discretization" => json!({ "bin_boundaries": [0.5, 1.5] }),
        _ => json!({}),
    };
    config.extend(learned.as_object().unwrap().clone());
    config
}

/// The inputs that a class takes.
fn input(class: &str, shape: &[usize]) -> Input {
    let input = Input::new(shape);
    match class {
        "StringLookup" | "TextVectorization" => input.strings(),
        "IntegerLookup" | "HashedCrossing" | "CategoryEncoding" => input.integers(),
        _ => input,
    }
}

/// The result; `None` for an error that the user may have caused. Other errors are bugs.
fn unless_user_error<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            let text = e.to_string();
            let bug = ["worker", "internal", "feed '", "does not fit this executor"];
            assert!(!bug.iter().any(|word| text.starts_with(word)), "{text}");
            None
        }
    }
}

/// Builds a model and, if that succeeds, compiles, trains and predicts; the results do not matter.
fn exercise(class: &str, config: &Map<String, Value>) -> usize {
    let mut trained = 0;
    for shape in SHAPES {
        for inputs in [1, 2] {
            let Some(layer) = unless_user_error(from_config(class, config.clone())) else {
                return trained;
            };
            let layer = LayerHandle::new(layer, None, true);
            let symbols: Vec<Symbol> = (0..inputs).map(|_| input(class, shape).symbol()).collect();
            let y = layer.apply(&symbols[..]);
            let Some(mut model) = unless_user_error(Model::new(&symbols[..], &y)) else { continue };
            let compile = Compile::new(SGD::new(0.01)).loss("mse").metrics(["mae"]);
            if unless_user_error(model.compile(compile.strategy(one_thread()))).is_none() {
                continue;
            }
            let rows = |dims: &[usize]| {
                let dims = [&[3], dims].concat();
                let len = dims.iter().product();
                tensor(&dims, (0..len).map(|i| (i % 3) as f32).collect::<Vec<f32>>())
            };
            let x: Samples = match input(class, shape).text {
                true => {
                    let dims = [&[3], shape].concat();
                    let strings =
                        (0..dims.iter().product()).map(|i: usize| ["a", "b c", ""][i % 3]);
                    Text::new(dims, strings).unwrap().into()
                }
                false => rows(shape).into(),
            };
            let x = vec![x; inputs];
            let x = Arrays::new(x, ()).unwrap();
            let Some(y) = unless_user_error(model.predict(&x)) else { continue };
            let data = Arrays::new(x.inputs().to_vec(), rows(&y.dims()[1..])).unwrap();
            let fit = Fit::new().epochs(2).batch_size(2).verbose(0);
            trained += usize::from(unless_user_error(model.fit(data, fit)).is_some());
        }
    }
    trained
}

/// Layers that take states besides their input.
const CELLS: [&str; 4] = ["GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"];

#[test]
fn no_layer_panics() {
    for class in phalanx::layers::class_names() {
        let config = plain(class);
        let mut trained = exercise(class, &config);
        let keys: Vec<String> = match from_config(class, config.clone()) {
            Ok(layer) => layer.config().keys().cloned().collect(),
            Err(e) => panic!("{class}: {e}"),
        };
        for key in keys {
            for value in values(&key) {
                let mut odd = config.clone();
                odd.insert(key.clone(), value);
                trained += exercise(class, &odd);
            }
        }
        assert!(trained > 0 || CELLS.contains(&class), "{class} never trained");
    }
}

/// Compiles a model whose output has a shape and trains it on targets of two shapes; the number of trained batches.
fn train_on_shape(shape: &[usize], loss: Box<dyn Loss>, metric: &str) -> usize {
    let x = Input::new(shape).symbol();
    let mut model = Model::new(&x, ReLU::new().apply(&x)).unwrap();
    let compile = Compile::new("sgd").loss(loss).metrics([metric]);
    if unless_user_error(model.compile(compile.strategy(one_thread()))).is_none() {
        return 0;
    }
    let x = Tensor::zeros([&[2], shape].concat());
    let trained = [shape, &shape[..shape.len().max(1) - 1]].into_iter().filter(|target| {
        let y = Tensor::zeros([&[2], *target].concat());
        unless_user_error(model.train_on_batch(&x, &y)).is_some()
    });
    trained.count()
}

/// Every loss with valid and invalid options, and every metric, on outputs of every shape.
#[test]
fn no_loss_or_metric_panics() {
    let options = [
        json!({}),
        json!({ "from_logits": true, "label_smoothing": 0.1 }),
        json!({ "label_smoothing": -1.0 }),
        json!({ "delta": 0.0 }),
        json!({ "delta": 1e308, "reduction": "sum" }),
        json!({ "reduction": "mean_with_sample_weight" }),
        json!({ "reduction": "none" }),
        json!({ "axis": 1, "gamma": 0.5, "ignore_class": -1 }),
        json!({ "axis": 1u64 << 40, "alpha": 1e308 }),
        json!({ "axis": [0, -1], "alpha": [0.5, 0.5, 1.0] }),
    ];
    let shapes: [&[usize]; 5] = [&[], &[1], &[3], &[2, 3], &[2, 2, 1]];
    let (losses, metrics) = (phalanx::losses::class_names(), phalanx::metrics::class_names());
    let mut trained = 0;
    for loss in losses {
        for options in &options {
            let read = || phalanx::losses::from_config(loss, options.as_object().unwrap());
            for shape in shapes {
                let Some(loss) = unless_user_error(read()) else { continue };
                trained += train_on_shape(shape, loss, "accuracy");
            }
        }
    }
    assert!(trained > 300, "{trained}");
    for metric in [&["accuracy", "crossentropy"], &metrics[..]].concat() {
        for loss in ["mse", "sparse_categorical_crossentropy", "binary_crossentropy"] {
            for shape in shapes {
                trained += train_on_shape(shape, phalanx::losses::get(loss).unwrap(), metric);
            }
        }
    }
    assert!(trained > 600, "{trained}");
}

#[test]
fn no_option_of_a_metric_or_optimizer_panics() {
    let odd = json!([0, 1, 2, 200, -1, 0.5, 1e308, 1u64 << 40, null, "x", [0.5], true, false]);
    let (x, y) = super::clouds(6);
    let run = |compile: Compile| {
        let mut model = super::classifier();
        if unless_user_error(model.compile(compile.strategy(one_thread()))).is_some() {
            let fit = Fit::new().epochs(2).batch_size(4).verbose(0);
            unless_user_error(model.fit((x.clone(), y.clone()), fit));
        }
    };
    let loss = "sparse_categorical_crossentropy";
    let optimizers = phalanx::optimizers::class_names();
    // They need inner optimizers.
    let wrappers = ["LossScaleOptimizer", "MultiOptimizer"];
    for name in optimizers.into_iter().filter(|name| !wrappers.contains(name)) {
        let keys = phalanx::optimizers::get(name).unwrap().config();
        for (key, value) in
            keys.keys().flat_map(|k| odd.as_array().unwrap().iter().map(move |v| (k, v)))
        {
            let config = [(key.clone(), value.clone())].into_iter().collect();
            if let Some(optimizer) =
                unless_user_error(phalanx::optimizers::from_config(name, &config))
            {
                run(Compile::new(optimizer).loss(loss));
            }
        }
    }
    // Keys without a default; metrics ignore those that they do not know.
    let needed = json!({ "num_classes": 2, "target_class_ids": [0], "recall": 0.5, "precision": 0.5,
        "sensitivity": 0.5, "specificity": 0.5, "average": "macro" });
    // `MeanMetricWrapper` needs a function and takes none of these keys.
    let metrics = phalanx::metrics::class_names().into_iter();
    for name in metrics.filter(|name| *name != "MeanMetricWrapper") {
        let needed = needed.as_object().unwrap();
        let keys = phalanx::metrics::from_config(name, needed).unwrap().config();
        for (key, value) in
            keys.keys().flat_map(|k| odd.as_array().unwrap().iter().map(move |v| (k, v)))
        {
            let mut config = needed.clone();
            config.insert(key.clone(), value.clone());
            for loss in [loss, "mse", "binary_crossentropy"] {
                if let Some(metric) =
                    unless_user_error(phalanx::metrics::from_config(name, &config))
                {
                    run(Compile::new("adam").loss(loss).metrics([metric]));
                }
            }
        }
    }
}
