//! Targets, rows and bytes reach the model unchanged: the command trains exactly as the library does on the same arrays.
//! The cross-check compares the library with Keras.

use super::{fault, files, phalanx, succeeds, text};
use phalanx::Tensor;
use phalanx::datasets::{npy, read_arrays, write_arrays};
use phalanx::prelude::*;
use std::io::Write;
use std::path::Path;

/// Deterministic pseudo-random numbers.
pub fn floats(dims: &[usize], seed: usize) -> Tensor {
    let len = dims.iter().product::<usize>();
    let value = |i: usize| ((i * 37 + seed * 101 + i * i % 23) % 97) as f32 / 97.0;
    Tensor::new(dims, (0..len).map(value).collect::<Vec<f32>>()).unwrap()
}

pub fn classes(rows: usize, count: usize) -> Tensor {
    Tensor::new([rows], (0..rows).map(|i| (i * 7 % count) as i32).collect::<Vec<i32>>()).unwrap()
}

pub fn end(out: &str) -> serde_json::Value {
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

pub fn npz(path: &Path, arrays: &[(&str, &Tensor)]) {
    let arrays: Vec<_> = arrays.iter().map(|(n, t)| (n.to_string(), Tensor::clone(t))).collect();
    write_arrays(path, &arrays).unwrap();
}

/// Saves a model with one hidden layer and its loss.
fn saved(dir: &Path, top: Dense, loss: &str) {
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(Dense::new(8).activation("tanh"))
        .add(top)
        .build()
        .unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss(loss)).unwrap();
    model.save(dir.join("model.keras")).unwrap();
}

/// Trains with the command, and the same model with the library on `data`. Both must end with the same weights.
pub fn trains_alike(dir: &Path, arguments: &[&str], data: Arrays) -> String {
    let file = dir.join("model.keras");
    let mut model = load_model(&file).unwrap();
    let fit = Fit::new().epochs(3).batch_size(8).shuffle(false).verbose(0);
    model.fit(data.clone(), fit).unwrap();
    let expected = model.evaluate_with(data, Inference::new().batch_size(8)).unwrap();
    let train = ["train", "model.keras", "--epochs", "3", "--batch-size", "8", "--no-shuffle"];
    let save = ["--save", "trained.keras", "--json", "log.jsonl"];
    let out = succeeds(dir, &[&train[..], &save, arguments].concat());
    let log = std::fs::read_to_string(dir.join("log.jsonl")).unwrap();
    assert_eq!(end(&log)["weights_sha256"], model.weights_sha256().unwrap(), "{arguments:?}");
    let evaluated = succeeds(dir, &["evaluate", "trained.keras", "--batch-size", "8"]);
    let loss = format!("loss: {:.4}", expected.get("loss").unwrap());
    assert!(evaluated.contains(&loss), "{evaluated} should say {loss}");
    out
}

#[test]
fn two_dimensional_targets_are_not_turned_into_one_hot_rows() {
    let x = floats(&[20, 4], 0);
    let labels = Tensor::new([20, 3], (0..60).map(|i| (i % 5 < 2) as i32).collect::<Vec<i32>>());
    let soft = floats(&[20, 3], 2);
    for (loss, activation, y) in [
        ("mse", "linear", floats(&[20, 3], 1)),
        ("mae", "linear", floats(&[20, 3], 1)),
        ("binary_crossentropy", "sigmoid", labels.unwrap()),
        ("categorical_crossentropy", "softmax", soft.clone()),
        ("kl_divergence", "softmax", soft),
    ] {
        let dir = tempfile::tempdir().unwrap();
        saved(dir.path(), Dense::new(3).activation(activation), loss);
        npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
        let out =
            trains_alike(dir.path(), &["--data", "d.npz"], Arrays::new(x.clone(), y).unwrap());
        assert!(out.contains("targets: [3] as they are"), "{loss}: {out}");
    }
}

#[test]
fn a_regression_of_one_column_trains() {
    let (x, y) = (floats(&[20, 4], 0), floats(&[20], 1));
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(1), "mse");
    let data = || Arrays::new(x.clone(), y.clone()).unwrap();
    for shape in [vec![20], vec![20, 1]] {
        npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y.clone().reshape(shape).unwrap())]);
        trains_alike(dir.path(), &["--data", "d.npz"], data());
    }
    let row = |values: &[f32]| values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    let (xs, ys) = (x.f32().unwrap().chunks(4), y.f32().unwrap());
    let rows: String = xs.zip(ys).map(|(x, y)| format!("{y},{}\n", row(x))).collect();
    std::fs::write(dir.path().join("d.csv"), format!("price,a,b,c,d\n{rows}")).unwrap();
    trains_alike(dir.path(), &["--data", "d.csv", "--label", "price"], data());
}

#[test]
fn class_numbers_become_one_hot_rows_only_for_a_loss_on_probabilities_and_the_header_says_so() {
    let (x, y) = (floats(&[20, 4], 0), classes(20, 3));
    let dir = tempfile::tempdir().unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    saved(dir.path(), Dense::new(3).activation("softmax"), "categorical_crossentropy");
    let one_hot = phalanx::data::to_categorical(&y, Some(3)).unwrap();
    let data = Arrays::new(x.clone(), one_hot.clone()).unwrap();
    let out = trains_alike(dir.path(), &["--data", "d.npz"], data);
    assert!(out.contains("targets: class numbers as one-hot rows of 3"), "{out}");
    saved(dir.path(), Dense::new(3).activation("softmax"), "sparse_categorical_crossentropy");
    trains_alike(dir.path(), &["--data", "d.npz"], Arrays::new(x.clone(), y).unwrap());
    npz(&dir.path().join("one.npz"), &[("x", &x), ("y", &one_hot)]);
    let args = ["train", "model.keras", "--data", "one.npz"];
    assert_eq!(fault(dir.path(), &args, 1, "expected class numbers as SparseCategorical"), None);
    saved(dir.path(), Dense::new(3), "mse");
    let args = ["train", "model.keras", "--data", "d.npz"];
    assert_eq!(fault(dir.path(), &args, 1, "expected targets of [3], as MeanSquared"), None);
}

#[test]
fn sample_weights_of_a_file_are_used() {
    let (x, y, w) = (floats(&[20, 4], 0), floats(&[20, 3], 1), floats(&[20], 5));
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(3), "mse");
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y), ("sample_weight", &w)]);
    let data = Arrays::new(x, y).unwrap().sample_weight(w.f32().unwrap()).unwrap();
    trains_alike(dir.path(), &["--data", "d.npz"], data);
}

#[test]
fn image_targets_train() {
    let (x, y) = (floats(&[12, 6, 6, 1], 0), floats(&[12, 6, 6, 2], 1));
    let dir = tempfile::tempdir().unwrap();
    let mut model = Sequential::new()
        .add(Input::new([6, 6, 1]))
        .add(Conv2D::new(2, 3).padding("same"))
        .build()
        .unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse")).unwrap();
    model.save(dir.path().join("model.keras")).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    let data = Arrays::new(x.clone(), y).unwrap();
    trains_alike(dir.path(), &["--data", "d.npz"], data);
    // Outputs of any shape can be predicted.
    npy::write(&dir.path().join("x.npy"), &x).unwrap();
    succeeds(dir.path(), &["predict", "trained.keras", "--input", "x.npy", "--output", "y.npy"]);
    let y = npy::read(&dir.path().join("y.npy")).unwrap();
    assert_eq!(y.dims(), [12, 6, 6, 2]);
    let args = ["evaluate", "trained.keras", "--confusion", "c.png"];
    assert_eq!(fault(dir.path(), &args, 1, "expected a classifier"), None);
}

/// Saves a model with two named inputs and outputs.
fn two_by_two(dir: &Path) {
    let left = Input::new([4]).named("left").symbol();
    let right = Input::new([2]).named("right").symbol();
    let hidden = Concatenate::new().apply([&left, &right]);
    let hidden = Dense::new(6).activation("tanh").apply(&hidden);
    let sum = Dense::new(1).named("sum").apply(&hidden);
    let kind = Dense::new(3).activation("softmax").named("kind").apply(&hidden);
    let mut model = Model::new([&left, &right], [&sum, &kind]).unwrap();
    let compile = Compile::new(SGD::new(0.1)).loss("mse").loss("sparse_categorical_crossentropy");
    model.compile(compile).unwrap();
    model.save(dir.join("model.keras")).unwrap();
}

#[test]
fn several_inputs_and_outputs_are_matched_by_name() {
    let (left, right) = (floats(&[20, 4], 0), floats(&[20, 2], 3));
    let (sum, kind) = (floats(&[20, 1], 1), classes(20, 3));
    let dir = tempfile::tempdir().unwrap();
    two_by_two(dir.path());
    // In a different order than the model's.
    let arrays = [("y_kind", &kind), ("x_right", &right), ("y_sum", &sum), ("x_left", &left)];
    npz(&dir.path().join("d.npz"), &arrays);
    let inputs = vec![left.clone(), right.clone()];
    let data = Arrays::new(inputs.clone(), vec![sum.clone(), kind.clone()]).unwrap();
    trains_alike(dir.path(), &["--data", "d.npz"], data.clone());
    // The same from a table with columns of these names.
    let (l, r) = (left.f32().unwrap(), right.f32().unwrap());
    let mut table = String::from("kind,left_0,left_1,left_2,left_3,right.a,right.b,sum\n");
    for i in 0..20 {
        let cells: Vec<String> = l[4 * i..4 * i + 4]
            .iter()
            .chain(&r[2 * i..2 * i + 2])
            .chain(&sum.f32().unwrap()[i..=i])
            .map(f32::to_string)
            .collect();
        table += &format!("{},{}\n", kind.i32().unwrap()[i], cells.join(","));
    }
    std::fs::write(dir.path().join("d.csv"), table).unwrap();
    trains_alike(dir.path(), &["--data", "d.csv"], data);
    npz(&dir.path().join("x.npz"), &[("right", &right), ("left", &left)]);
    let predict = ["predict", "trained.keras", "--input", "x.npz", "--output"];
    succeeds(dir.path(), &[&predict[..], &["y.npz"]].concat());
    let written = read_arrays(&dir.path().join("y.npz")).unwrap();
    let model = load_model(dir.path().join("trained.keras")).unwrap();
    let expected = predict_all(model, inputs);
    for ((name, y), expected) in written.iter().zip(&expected) {
        assert_eq!(*y.to_tensor(), *expected, "{name}");
    }
    assert_eq!(written.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["sum", "kind"]);
    let one = [&predict[..], &["y.npy"]].concat();
    assert_eq!(fault(dir.path(), &one, 1, "expected an .npz for 2 outputs"), None);
    npz(&dir.path().join("bad.npz"), &[("x_left", &left), ("y_sum", &sum), ("y_kind", &kind)]);
    let bad = ["train", "model.keras", "--data", "bad.npz"];
    assert_eq!(fault(dir.path(), &bad, 1, "expected x_left, x_right, as the model names"), None);
}

fn predict_all(model: Model, inputs: Vec<Tensor>) -> Vec<Tensor> {
    model.predict_all(Arrays::new(inputs, ()).unwrap()).unwrap()
}

#[test]
fn no_row_is_held_out_for_testing_unless_requested() {
    let dir = tempfile::tempdir().unwrap();
    files::colours(dir.path());
    let train = |arguments: &[&str]| {
        let args = ["train", "mnist-mlp", "--epochs", "1", "--json", "log.jsonl"];
        let out = succeeds(dir.path(), &[&args[..], arguments].concat());
        (out, end(&std::fs::read_to_string(dir.path().join("log.jsonl")).unwrap()))
    };
    for data in ["colours.npz", "table.csv", "images"] {
        let (out, last) = train(&["--data", data]);
        assert!(out.contains("40 rows to train on, none to validate on, none to test on"), "{out}");
        assert!(last["test_loss"].is_null() && last["test_accuracy"].is_null(), "{last}");
        assert!(last.as_object().unwrap().contains_key("test_loss"), "{last}");
        let (out, last) =
            train(&["--data", data, "--test-split", "0.2", "--validation-split", "0.25"]);
        assert!(out.contains("24 rows to train on, 8 to validate on, 8 to test on"), "{out}");
        assert!(last["test_loss"].is_number(), "{last}");
    }
    let (x, y) = (floats(&[6, 4], 0), classes(6, 2));
    let (v, w) = (floats(&[3, 4], 1), classes(3, 2));
    let arrays = [("x_train", &x), ("y_train", &y), ("x_val", &v), ("y_val", &w)];
    npz(&dir.path().join("d.npz"), &arrays);
    let (out, last) = train(&["--data", "d.npz"]);
    assert!(out.contains("6 rows to train on, 3 to validate on, none to test on"), "{out}");
    assert!(last["test_loss"].is_null(), "{last}");
    let test = [("x_test", &v), ("y_test", &w)];
    npz(&dir.path().join("d.npz"), &[&arrays[..2], &test].concat());
    let (out, _) = train(&["--data", "d.npz"]);
    assert!(out.contains("6 rows to train on, validated on the test rows, 3 to test on"), "{out}");
}

#[test]
fn bytes_go_into_a_model_file_as_keras_would_feed_them() {
    let bytes: Vec<i32> = (0..16 * 12).map(|i| i * 31 % 256).collect();
    let y = floats(&[16, 2], 1);
    let floats: Vec<f32> = bytes.iter().map(|b| *b as f32).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut model = Sequential::new()
        .add(Input::new([2, 2, 3]))
        .add(Rescaling::new(1.0 / 255.0))
        .add(Flatten::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse")).unwrap();
    model.save(dir.path().join("model.keras")).unwrap();
    byte_npz(&dir.path().join("d.npz"), "(16, 2, 2, 3)", &bytes, &y);
    let x = Tensor::new([16, 2, 2, 3], floats).unwrap();
    let out = trains_alike(dir.path(), &["--data", "d.npz"], Arrays::new(x, y.clone()).unwrap());
    assert!(out.contains("[2, 2, 3], bytes as they are, 0 to 255"), "{out}");

    // On request the command rescales, reports it and records it in the file: `evaluate` needs no flag.
    let scaled: Vec<f32> = bytes.iter().map(|b| *b as f32 / 127.5 + -1.0).collect();
    let scaled = Arrays::new(Tensor::new([16, 2, 2, 3], scaled).unwrap(), y).unwrap();
    let out = trains_alike(dir.path(), &["--data", "d.npz", "--rescale=1/127.5,-1"], scaled);
    assert!(out.contains("divided by 127.5, then -1"), "{out}");
}

/// Writes an `.npz` of bytes (NumPy's `uint8`).
fn byte_npz(path: &Path, shape: &str, bytes: &[i32], y: &Tensor) {
    let targets = path.with_extension("y.npy");
    npy::write(&targets, y).unwrap();
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
    let x = [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), &bytes].concat();
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in [("x.npy", x), ("y.npy", std::fs::read(targets).unwrap())] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn categories_and_missing_values_follow_the_flags_and_are_recorded_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(1), "mse");
    let rows: String = (0..20)
        .map(|i| {
            let colour = ["red", "green", "blue"][i % 3];
            let size = if i == 7 { String::new() } else { i.to_string() };
            format!("{colour},{size},{}.5\n", i * 3)
        })
        .collect();
    std::fs::write(dir.path().join("d.csv"), format!("colour,size,price\n{rows}")).unwrap();
    let train = ["train", "model.keras", "--data", "d.csv", "--epochs", "2", "--lr", "0.001"];
    let words = fault(dir.path(), &train, 1, "\"red\" in line 2, column A (colour)");
    assert_eq!(words, None);
    let one_hot = [&train[..], &["--categories", "one-hot"]].concat();
    let empty = fault(dir.path(), &one_hot, 1, "an empty cell in line 9, column B (size)");
    assert_eq!(empty, None);
    let dropped = [&one_hot[..], &["--missing", "drop"]].concat();
    let out = succeeds(dir.path(), &dropped);
    assert!(
        out.contains("19 rows to train on") && out.contains("1 rows with missing values"),
        "{out}"
    );
    let filled = [&one_hot[..], &["--missing", "mean", "--save", "trained.keras"]].concat();
    let out = succeeds(dir.path(), &filled);
    assert!(out.contains("20 rows to train on") && out.contains("inputs: [4]"), "{out}");
    let evaluated = succeeds(dir.path(), &["evaluate", "trained.keras"]);
    assert!(
        evaluated.contains("20 rows, including those that the model was trained on"),
        "{evaluated}"
    );
    // Another table, with columns in a different order and without the label.
    std::fs::write(dir.path().join("new.csv"), "size,colour\n,red\n3,blue\n").unwrap();
    let predict = ["predict", "trained.keras", "--input", "new.csv", "--output", "y.npy"];
    succeeds(dir.path(), &predict);
    let y = npy::read(&dir.path().join("y.npy")).unwrap().to_tensor();
    let model = load_model(dir.path().join("trained.keras")).unwrap();
    let mean = (0..20).filter(|i| *i != 7).sum::<i32>() as f32 / 19.0;
    let x = Tensor::new([2, 4], vec![0.0, 0.0, 1.0, mean, 1.0, 0.0, 0.0, 3.0]).unwrap();
    assert_eq!(*y, model.predict(x).unwrap());
    std::fs::write(dir.path().join("odd.csv"), "size,colour\n1,pink\n").unwrap();
    let odd = ["predict", "trained.keras", "--input", "odd.csv", "--output", "y.npy"];
    assert_eq!(fault(dir.path(), &odd, 1, "\"pink\" in line 2, column B (colour)"), None);
}

#[test]
fn classes_of_other_data_are_matched_by_name() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(3).activation("softmax"), "sparse_categorical_crossentropy");
    let row = |i: usize, kind: &str| format!("{i},{},{},0,{kind}\n", i % 3, i * 7 % 5);
    let table = |name: &str, kinds: &[&str]| {
        let rows: String = (0..12).map(|i| row(i, kinds[i % kinds.len()])).collect();
        std::fs::write(dir.path().join(name), format!("a,b,c,d,kind\n{rows}")).unwrap();
    };
    table("all.csv", &["cat", "dog", "mouse"]);
    table("some.csv", &["dog", "mouse"]);
    table("other.csv", &["dog", "wolf"]);
    let train = ["train", "model.keras", "--data", "all.csv", "--epochs", "1", "--save", "t.keras"];
    succeeds(dir.path(), &train);
    let loss = |data: &str| {
        let out = succeeds(dir.path(), &["evaluate", "t.keras", "--data", data]);
        out.lines().last().unwrap().to_string()
    };
    // The same rows with the model's class indices.
    let mut model = load_model(dir.path().join("t.keras")).unwrap();
    let x: Vec<f32> = (0..12).flat_map(|i| [i, i % 3, i * 7 % 5, 0]).map(|v| v as f32).collect();
    let y = (0..12).map(|i| [1, 2][i % 2]).collect::<Vec<i32>>();
    let data = (Tensor::new([12, 4], x).unwrap(), Tensor::new([12], y).unwrap());
    let expected = model.evaluate_with(data, Inference::new()).unwrap();
    let expected = format!("test - loss: {:.4}", expected.get("loss").unwrap());
    assert!(loss("some.csv").starts_with(&expected), "{} {expected}", loss("some.csv"));
    let other = ["evaluate", "t.keras", "--data", "other.csv"];
    assert_eq!(fault(dir.path(), &other, 1, "\"wolf\" in line 3, column E (kind)"), None);
    let flag = ["evaluate", "t.keras", "--data", "some.csv", "--label", "kind"];
    assert_eq!(fault(dir.path(), &flag, 1, "--label: the model records how its table was"), None);
}

#[test]
fn an_extra_array_does_not_change_predictions() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(3), "mse");
    let (x, y, ids) = (floats(&[6, 4], 0), floats(&[6, 3], 1), classes(6, 6));
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    let args = ["train", "model.keras", "--data", "d.npz", "--rescale", "--save", "t.keras"];
    succeeds(dir.path(), &args);
    npz(&dir.path().join("one.npz"), &[("x", &x)]);
    npz(&dir.path().join("more.npz"), &[("ids", &ids), ("x", &x), ("y", &y)]);
    let predicted = |input: &str| {
        let args = ["predict", "t.keras", "--input", input, "--output", "y.npy"];
        let out = phalanx(dir.path(), &args);
        assert!(out.status.success(), "{}", text(&out.stderr));
        (npy::read(&dir.path().join("y.npy")).unwrap().to_tensor(), text(&out.stderr))
    };
    let (one, more) = (predicted("one.npz"), predicted("more.npz"));
    assert_eq!(one.0, more.0);
    assert!(more.1.contains("not used: ids, y") && one.1.is_empty(), "{}", more.1);
}

#[test]
fn implicit_changes_of_targets_or_inputs_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path(), Dense::new(1), "mse");
    std::fs::write(dir.path().join("w.csv"), "a,b,c,d,p\n1,2,3,4,low\n1,2,3,5,high\n").unwrap();
    let words = ["train", "model.keras", "--data", "w.csv"];
    assert_eq!(fault(dir.path(), &words, 1, "as MeanSquaredError compares, received a text"), None);
    let (x, y) = (floats(&[4, 4], 0), floats(&[4, 1], 1));
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    for flag in [&["--image-size", "8"][..], &["--grayscale"]] {
        let args = [&["train", "model.keras", "--data", "d.npz"], flag].concat();
        assert_eq!(fault(dir.path(), &args, 1, &format!("{}: expected images", flag[0])), None);
    }
    let mut images = Sequential::new()
        .add(Input::new([6, 6, 1]))
        .add(Conv2D::new(1, 3).padding("same"))
        .build()
        .unwrap();
    images.compile(Compile::new("sgd").loss("mse")).unwrap();
    images.save(dir.path().join("images.keras")).unwrap();
    let maps = floats(&[4, 6, 6, 1], 2);
    npz(&dir.path().join("maps.npz"), &[("x", &maps), ("y", &maps)]);
    let args = ["train", "images.keras", "--data", "maps.npz", "--augment", "flip"];
    assert_eq!(fault(dir.path(), &args, 1, "targets that do not depend on pixel positions"), None);
    let turned = floats(&[4, 4, 9, 1], 2);
    npz(
        &dir.path().join("odd.npz"),
        &[("x", &maps), ("y", &maps), ("x_test", &turned), ("y_test", &maps)],
    );
    let args = ["train", "images.keras", "--data", "odd.npz"];
    assert_eq!(fault(dir.path(), &args, 1, "samples of [6, 6, 1], received [4, 9, 1]"), None);
}

/// Saves a model on sequences of three numbers per step, of any length.
fn saved_with_open_sizes(dir: &Path) {
    let x = Input::new([None, Some(3)]).symbol();
    let mut model = Model::new(&x, Dense::new(2).apply(LSTM::new(4).apply(&x))).unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse")).unwrap();
    model.save(dir.join("model.keras")).unwrap();
}

#[test]
fn open_sizes_come_from_the_data() {
    let dir = tempfile::tempdir().unwrap();
    saved_with_open_sizes(dir.path());
    let (x, y) = (floats(&[20, 5, 3], 0), floats(&[20, 2], 1));
    npz(&dir.path().join("data.npz"), &[("x", &x), ("y", &y)]);
    trains_alike(dir.path(), &["--data", "data.npz"], Arrays::new(x, y).unwrap());
    // The trained model still takes sequences of any length.
    let trained = load_model(dir.path().join("trained.keras")).unwrap();
    assert!(trained.has_open_sizes());
    let (x, y) = (floats(&[6, 9, 3], 2), floats(&[6, 2], 3));
    npz(&dir.path().join("longer.npz"), &[("x", &x), ("y", &y)]);
    for file in ["model.keras", "trained.keras"] {
        let out = succeeds(dir.path(), &["evaluate", file, "--data", "longer.npz"]);
        let mut model = load_model(dir.path().join(file)).unwrap();
        let logs = model.evaluate_with((&x, &y), Inference::new()).unwrap();
        let loss = format!("loss: {:.4}", logs.get("loss").unwrap());
        assert!(out.contains(&loss), "{out} should say {loss}");
        npy::write(&dir.path().join("x.npy"), &x).unwrap();
        succeeds(dir.path(), &["predict", file, "--input", "x.npy", "--output", "p.npy"]);
        let outputs = npy::read(&dir.path().join("p.npy")).unwrap().to_tensor();
        assert_eq!(outputs.f32(), model.predict(&x).unwrap().f32());
    }
    npz(
        &dir.path().join("narrow.npz"),
        &[("x", &floats(&[4, 5, 2], 0)), ("y", &floats(&[4, 2], 0))],
    );
    let narrow = ["train", "model.keras", "--data", "narrow.npz"];
    let expected = "expected samples of (None, None, 3), received [[5, 2]]";
    assert_eq!(fault(dir.path(), &narrow, 1, expected), None);
}

#[test]
fn open_sizes_without_data_are_given() {
    let dir = tempfile::tempdir().unwrap();
    saved_with_open_sizes(dir.path());
    let bench = ["bench", "model.keras", "--steps", "1", "--batch-size", "4"];
    let plan = ["plan", "model.keras", "--device", "cpu", "--threads", "1"];
    let inspect = ["inspect", "model.keras", "--program"];
    for command in [&bench[..], &plan, &inspect] {
        let expected = "leaves sizes open, (None, None, 3): give them with --input-shape";
        assert_eq!(fault(dir.path(), command, 1, expected), None);
        succeeds(dir.path(), &[command, &["--input-shape", "7x3"]].concat());
        let other = [command, &["--input-shape", "7x4"]].concat();
        let expected = "expected samples of (None, None, 3), received [[7, 4]]";
        assert_eq!(fault(dir.path(), &other, 1, expected), None);
    }
}
