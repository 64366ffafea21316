//! Indices outside an embedding table: an error before anything runs on them.

use super::errors::check;
use super::{one_thread, tensor, warnings};
use phalanx::prelude::*;
use phalanx_graph::DType;

/// A model of word indices: `wrap` is applied before the table of five rows.
fn word_model(wrap: fn(Symbol) -> Symbol, dtype: DType) -> Model {
    let x = Input { dtype, ..Input::new([4]) }.symbol();
    let rows = Embedding::new(5, 2).named("words").apply(wrap(x.clone()));
    let out = Dense::new(3).activation("softmax").apply(Flatten::new().apply(rows));
    let mut model = Model::new(&x, &out).unwrap();
    let compile = Compile::new("sgd").loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(one_thread())).unwrap();
    model
}

fn plain() -> Model {
    word_model(|x| x, DType::I32)
}

/// Eight samples, of which row 6 has an invalid index.
fn samples_with_invalid_index() -> (Tensor, Tensor) {
    let mut x: Vec<i32> = (0..32).map(|i| i % 5).collect();
    x[6 * 4 + 1] = 5;
    (tensor(&[8, 4], x), tensor(&[8], vec![0i32; 8]))
}

fn valid_samples() -> (Tensor, Tensor) {
    (tensor(&[8, 4], vec![4i32; 32]), tensor(&[8], vec![0i32; 8]))
}

fn fit() -> Fit {
    Fit::new().batch_size(3).verbose(0)
}

fn pipeline() -> Pipeline {
    let (x, y) = samples_with_invalid_index();
    Pipeline::from_tensor_slices((x, y)).unwrap().batch(3, false).unwrap()
}

#[test]
fn an_index_without_a_row_is_named_with_its_row_value_and_table() {
    check(&[
        (
            || plain().fit(samples_with_invalid_index(), fit()).map(|_| ()),
            "layer 'words': indices from input 'input_0': expected 0 to 4 (its table has 5 rows), \
             received 5 in row 6 of the training data",
        ),
        (
            || {
                plain()
                    .fit(valid_samples(), fit().validation_data(samples_with_invalid_index()))
                    .map(|_| ())
            },
            "received 5 in row 6 of the validation data",
        ),
        (
            || plain().fit(samples_with_invalid_index(), fit().validation_split(0.5)).map(|_| ()),
            "received 5 in row 6 of the validation data",
        ),
        (
            || plain().evaluate_with(samples_with_invalid_index(), Inference::new()).map(|_| ()),
            "received 5 in row 6 of the data",
        ),
        (
            || plain().predict(samples_with_invalid_index().0).map(|_| ()),
            "received 5 in row 6 of the data",
        ),
        (
            || {
                plain()
                    .train_on_batch(
                        &samples_with_invalid_index().0,
                        &samples_with_invalid_index().1,
                    )
                    .map(|_| ())
            },
            "received 5 in row 6 of the batch",
        ),
        (
            || {
                plain()
                    .gradients(&samples_with_invalid_index().0, &samples_with_invalid_index().1)
                    .map(|_| ())
            },
            "received 5 in row 6 of the batch",
        ),
        (
            || plain().fit(pipeline(), Fit::new().verbose(0)).map(|_| ()),
            "received 5 in row 0 of batch 3 of the training data",
        ),
        (
            || plain().fit(valid_samples(), fit().validation_data(pipeline())).map(|_| ()),
            "received 5 in row 0 of batch 3 of the validation data",
        ),
        (
            || plain().evaluate_with(pipeline(), Inference::new()).map(|_| ()),
            "received 5 in row 0 of batch 3 of the data",
        ),
        (|| plain().predict(pipeline()).map(|_| ()), "received 5 in row 0 of batch 3 of the data"),
    ]);
    plain().fit(valid_samples(), fit().validation_data(valid_samples())).unwrap();
    // Samples that are not used are not checked.
    let data = Arrays::new(samples_with_invalid_index().0, samples_with_invalid_index().1)
        .unwrap()
        .take(6)
        .unwrap();
    plain().fit(data, fit()).unwrap();
}

#[test]
fn an_index_without_a_row_is_found_after_layers_that_only_move_it() {
    fn nested(x: Symbol) -> Symbol {
        let inner = Input { dtype: DType::I32, ..Input::new([4]) }.symbol();
        let moved = Reshape::new([2, 2]).apply(&inner);
        Model::with_name("inner", &inner, &moved).unwrap().apply(x)
    }
    for wrap in [
        |x| Reshape::new([2, 2]).apply(x),
        |x| Flatten::new().apply(x),
        |x| Permute::new([2, 1]).apply(Reshape::new([2, 2]).apply(x)),
        |x: Symbol| Concatenate::new().apply([x.clone(), x]),
        nested,
    ] {
        let model = word_model(wrap, DType::I32);
        let error = model.predict(samples_with_invalid_index().0).unwrap_err().to_string();
        assert!(error.contains("received 5 in row 6 of the data"), "{error}");
        model.predict(valid_samples().0).unwrap();
    }
    // The table is inside a nested model.
    let x = Input { dtype: DType::I32, ..Input::new([4]) }.symbol();
    let rows = Embedding::new(5, 2).named("words").apply(&x);
    let inner = Model::with_name("inner", &x, &rows).unwrap();
    let x = Input { dtype: DType::I32, ..Input::new([4]) }.symbol();
    let model = Model::new(&x, inner.apply(&x)).unwrap();
    let error = model.predict(samples_with_invalid_index().0).unwrap_err().to_string();
    assert!(error.starts_with("layer 'inner/words': indices from"), "{error}");
}

#[test]
fn an_index_given_as_a_float_is_checked_as_it_is_read() {
    let model = word_model(|x| x, DType::F32);
    let row = |value: f32| tensor(&[1, 4], vec![0.0, 4.0, value, -0.5]);
    model.predict(row(4.9)).unwrap();
    for bad in [5.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = model.predict(row(bad)).unwrap_err().to_string();
        let expected = format!("expected 0 to 4 (its table has 5 rows), received {bad} in row 0");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn nan_of_a_computed_index_is_explained_by_its_layer() {
    // The indices are doubled before the table.
    let doubled = || word_model(|x| Rescaling::new(2.0).apply(x), DType::F32);
    let (x, y) = (tensor(&[2, 4], vec![4.0f32; 8]), tensor(&[2], vec![0i32, 1]));
    let expected = "layer 'words' gives NaN for an index outside 0 to 4";
    let error = doubled().fit((&x, &y), fit()).unwrap_err();
    assert!(
        matches!(error, Error::NotFinite { .. }) && error.to_string().contains(expected),
        "{error}"
    );
    let (output, messages) = warnings(|| doubled().predict(&x).unwrap());
    assert!(output.f32().unwrap()[0].is_nan());
    assert_eq!(messages, [format!("results on the data are NaN: {expected}")]);
    let (_, messages) = warnings(|| doubled().evaluate_with((&x, &y), Inference::new()).unwrap());
    assert_eq!(messages, [format!("results on the data are NaN: {expected}")]);
    // A model whose indices were all checked does not warn about a layer.
    let (_, messages) = warnings(|| plain().predict(valid_samples().0).unwrap());
    assert_eq!(messages, [] as [&str; 0]);
}
