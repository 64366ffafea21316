//! Data of models whose inputs are in a dict, whose outputs have no loss, or whose outputs have weights of their own.

use super::data::{floats, npz, trains_alike};
use super::{fault, succeeds};
use phalanx::Tensor;
use phalanx::datasets::read_arrays;
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/{name}.keras"))
}

#[test]
fn inputs_of_a_dict_have_the_names_of_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = load_model(fixture("models/inputs_list_in_dict")).unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse")).unwrap();
    model.save(dir.path().join("model.keras")).unwrap();
    let inputs = [floats(&[20, 2], 0), floats(&[20, 3], 1), floats(&[20, 4], 2)];
    let (y, [a, b, c]) = (floats(&[20, 2], 3), &inputs);
    let data = || Arrays::new(inputs.to_vec(), y.clone()).unwrap();
    // Paths in the structure, then the names of the layers.
    npz(&dir.path().join("d.npz"), &[("x_q", c), ("x_p/0", a), ("x_p/1", b), ("y", &y)]);
    trains_alike(dir.path(), &["--data", "d.npz"], data());
    npz(&dir.path().join("d.npz"), &[("x_c", c), ("x_a", a), ("x_b", b), ("y", &y)]);
    trains_alike(dir.path(), &["--data", "d.npz"], data());
    let trained = load_model(dir.path().join("trained.keras")).unwrap();
    let expected = trained.predict_all(Arrays::new(inputs.to_vec(), ()).unwrap()).unwrap();
    let predict = ["predict", "trained.keras", "--input", "x.npz", "--output", "y.npz"];
    for names in [["p/0", "p/1", "q"], ["a", "b", "c"], ["x_p/0", "x_p/1", "x_q"]] {
        let arrays: Vec<(&str, &Tensor)> = names.into_iter().zip(&inputs).collect();
        npz(&dir.path().join("x.npz"), &arrays);
        succeeds(dir.path(), &predict);
        let written = read_arrays(&dir.path().join("y.npz")).unwrap();
        assert_eq!(*written[0].1.to_tensor(), expected[0], "{names:?}");
    }
    npz(&dir.path().join("x.npz"), &[("p/0", a), ("q", c)]);
    let text = "expected arrays named p/0, p/1, q, received p/0, q";
    assert_eq!(fault(dir.path(), &predict, 1, text), None);
    npz(&dir.path().join("bad.npz"), &[("x_p", a), ("x_q", c), ("y", &y)]);
    let bad = ["train", "model.keras", "--data", "bad.npz"];
    assert_eq!(fault(dir.path(), &bad, 1, "expected x_p/0, x_p/1, x_q, as the model names"), None);
}

#[test]
fn columns_of_a_table_have_the_names_of_its_keys() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = load_model(fixture("models/inputs_list_in_dict")).unwrap();
    model.compile(Compile::new(SGD::new(0.1)).loss("mse")).unwrap();
    model.save(dir.path().join("model.keras")).unwrap();
    let inputs = [floats(&[20, 2], 0), floats(&[20, 3], 1), floats(&[20, 4], 2)];
    let y = floats(&[20, 2], 3);
    // The columns are in an order of their own.
    let table = |file: &str, names: [&str; 3], with_targets: bool| {
        let [a, b, c] = names;
        let mut parts = vec![(c, &inputs[2]), (a, &inputs[0]), (b, &inputs[1])];
        if with_targets {
            parts.push(("y", &y));
        }
        let of = |(name, t): &(&str, &Tensor)| {
            (0..t.dims()[1]).map(|i| format!("{name}_{i}")).collect::<Vec<_>>()
        };
        let mut lines = vec![parts.iter().flat_map(of).collect::<Vec<_>>().join(",")];
        for row in 0..20 {
            let cells = |(_, t): &(&str, &Tensor)| {
                let width = t.dims()[1];
                let cells = &t.f32().unwrap()[row * width..(row + 1) * width];
                cells.iter().map(f32::to_string).collect::<Vec<_>>()
            };
            lines.push(parts.iter().flat_map(cells).collect::<Vec<_>>().join(","));
        }
        std::fs::write(dir.path().join(file), lines.join("\n") + "\n").unwrap();
    };
    let predict = ["predict", "trained.keras", "--input", "x.csv", "--output", "y.npy"];
    let labels = ["--label", "y_0", "--label", "y_1"];
    for names in [["p/0", "p/1", "q"], ["a", "b", "c"]] {
        table("d.csv", names, true);
        let data = Arrays::new(inputs.to_vec(), y.clone()).unwrap();
        trains_alike(dir.path(), &[&["--data", "d.csv"], &labels[..]].concat(), data);
        let trained = load_model(dir.path().join("trained.keras")).unwrap();
        let expected = trained.predict_all(Arrays::new(inputs.to_vec(), ()).unwrap()).unwrap();
        table("x.csv", names, false);
        succeeds(dir.path(), &predict);
        let written = phalanx::datasets::npy::read(&dir.path().join("y.npy")).unwrap();
        assert_eq!(*written.to_tensor(), expected[0], "{names:?}");
    }
}

#[test]
fn outputs_without_a_loss_need_no_targets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("output_losses_second_none"), dir.path().join("model.keras")).unwrap();
    let (x, a, b) = (floats(&[20, 3], 0), floats(&[20, 2], 1), floats(&[20, 1], 2));
    let data = || Arrays::new(x.clone(), a.clone()).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y_a", &a)]);
    let out = trains_alike(dir.path(), &["--data", "d.npz"], data());
    assert!(out.contains("loss: MeanSquaredError, no loss"), "{out}");
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y_b", &b), ("y_a", &a)]);
    trains_alike(dir.path(), &["--data", "d.npz"], data());
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y_b", &b)]);
    let bad = ["train", "model.keras", "--data", "d.npz"];
    assert_eq!(fault(dir.path(), &bad, 1, "expected y_a, as the model names them"), None);
}

#[test]
fn metrics_without_a_loss_are_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let from = fixture("output_losses_metrics_and_penalties");
    std::fs::copy(from, dir.path().join("model.keras")).unwrap();
    let labels = Tensor::new([20], (0..20).map(|i| i % 4).collect::<Vec<i32>>()).unwrap();
    let (x, a) = (floats(&[20, 3], 0), floats(&[20, 3], 1));
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y_a", &a), ("y_b", &labels)]);
    let data = Arrays::new(x, vec![a, labels]).unwrap();
    let out = trains_alike(dir.path(), &["--data", "d.npz"], data);
    assert!(out.contains("loss: no loss, no loss"), "{out}");
    let evaluated = succeeds(dir.path(), &["evaluate", "trained.keras"]);
    assert!(evaluated.contains("a_accuracy") && evaluated.contains("b_acc"), "{evaluated}");
}

#[test]
fn outputs_and_time_steps_have_weights_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let from = fixture("output_weights_steps_and_text");
    std::fs::copy(from, dir.path().join("model.keras")).unwrap();
    let words: Vec<i32> = (0..100).map(|i| i * 5 % 7).collect();
    let x = Tensor::new([20, 5], words).unwrap();
    let (tags, text) = (floats(&[20, 5, 2], 1), floats(&[20, 1], 2));
    let weights = floats(&[20, 5], 3);
    let arrays = [("x", &x), ("y_tags", &tags), ("y_text", &text)];
    npz(&dir.path().join("d.npz"), &[&arrays[..], &[("sample_weight_tags", &weights)]].concat());
    let data = Arrays::new(x.clone(), vec![tags.clone(), text.clone()]).unwrap();
    let data = data.output_weights([Some(weights.clone()), None]).unwrap();
    trains_alike(dir.path(), &["--data", "d.npz"], data);
    npz(&dir.path().join("d.npz"), &[&arrays[..], &[("sample_weight_no", &weights)]].concat());
    let bad = ["train", "model.keras", "--data", "d.npz"];
    let expected =
        "expected sample_weight_tags, sample_weight_text, as the model names its outputs";
    assert_eq!(fault(dir.path(), &bad, 1, expected), None);
}
