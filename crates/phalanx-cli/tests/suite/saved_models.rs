//! Model files of the library: unknown parts of their configs, and integer inputs.

use super::data::{classes, end, floats, npz};
use super::{fault, phalanx, succeeds, text};
use phalanx::Tensor;
use phalanx::datasets::npy;
use phalanx::prelude::*;
use std::io::{Read, Write};
use std::path::Path;

/// Rewrites the config of a `.keras` file.
fn edit(path: &Path, from: &str, to: &str) {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut members = vec![];
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).unwrap();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        if entry.name() == "config.json" {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "{text}");
            bytes = text.replace(from, to).into_bytes();
        }
        members.push((entry.name().to_string(), bytes));
    }
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let stored = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        zip.start_file(name, stored).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn predict_and_evaluate_ignore_unknown_optimizers_and_metrics() {
    let (x, y) = (floats(&[8, 4], 0), floats(&[8, 3], 1));
    let dir = tempfile::tempdir().unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    npy::write(&dir.path().join("x.npy"), &x).unwrap();
    let file = dir.path().join("model.keras");
    let mut model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build().unwrap();
    let compile = Compile::new(SGD::new(0.1)).loss("mse").metrics(["mae", "mse"]);
    model.compile(compile).unwrap();
    let save = || model.save(&file).unwrap();
    let predict = ["predict", "model.keras", "--input", "x.npy", "--output", "y.npy"];
    let evaluate = ["evaluate", "model.keras", "--data", "d.npz"];

    save();
    edit(&file, "\"SGD\"", "\"Shampoo\"");
    succeeds(dir.path(), &predict);
    assert!(succeeds(dir.path(), &evaluate).contains("mae: "));
    let train = ["train", "model.keras", "--data", "d.npz"];
    assert_eq!(fault(dir.path(), &train, 1, "Shampoo"), None);
    succeeds(dir.path(), &[&train[..], &["--optimizer", "sgd"]].concat());

    save();
    edit(&file, "\"mae\"", "\"triplet\"");
    succeeds(dir.path(), &predict);
    let out = phalanx(dir.path(), &evaluate);
    assert!(out.status.success() && text(&out.stdout).contains(" - mse: "));
    assert!(text(&out.stderr).contains("a metric is left out: unknown metric 'triplet'"));

    save();
    edit(&file, "\"loss\":\"mse\"", "\"loss\":\"triplet\"");
    succeeds(dir.path(), &predict);
    assert_eq!(fault(dir.path(), &evaluate, 1, "unknown loss 'triplet'"), None);
    assert_eq!(fault(dir.path(), &evaluate, 1, "add --loss mse"), None);
    let named = succeeds(dir.path(), &[&evaluate[..], &["--loss", "mae"]].concat());
    assert!(named.contains("loss: MeanAbsoluteError"), "{named}");
}

#[test]
fn a_model_with_integer_inputs_can_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Sequential::new()
        .add(Input::new([5]).integers())
        .add(Embedding::new(7, 4))
        .add(Flatten::new())
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    model.compile(Compile::new("adam").loss("sparse_categorical_crossentropy")).unwrap();
    model.save(dir.path().join("words.keras")).unwrap();
    for more in [&[][..], &["--inference"]] {
        let args = ["bench", "words.keras", "--steps", "2", "--json"];
        assert_eq!(end(&succeeds(dir.path(), &[&args[..], more].concat()))["batch"], 32);
    }
    let x = Tensor::new([6, 5], (0..30).map(|i| i % 7).collect::<Vec<i32>>()).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &classes(6, 3))]);
    let out = succeeds(dir.path(), &["train", "words.keras", "--data", "d.npz", "--epochs", "1"]);
    assert!(out.contains("6 rows to train on"), "{out}");
}

/// The command took 32 samples in a batch, which such a model refuses.
#[test]
fn a_stateful_model_predicts_and_evaluates_with_the_batch_size_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let input = Input::new([3, 2]).batch_size(4).symbol();
    let output = Dense::new(1).apply(LSTM::new(5).stateful(true).named("memory").apply(&input));
    let mut model = Model::new(&input, &output).unwrap();
    model.compile(Compile::new("sgd").loss("mse")).unwrap();
    model.save(dir.path().join("model.keras")).unwrap();
    let (x, y) = (floats(&[12, 3, 2], 0), floats(&[12, 1], 1));
    npy::write(&dir.path().join("x.npy"), &x).unwrap();
    npy::write(&dir.path().join("x10.npy"), &floats(&[10, 3, 2], 0)).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);

    let predict = ["predict", "model.keras", "--input", "x.npy", "--output", "y.npy"];
    succeeds(dir.path(), &predict);
    let expected = model.predict_with(&x, Inference::new().batch_size(4)).unwrap();
    let received = npy::read(&dir.path().join("y.npy")).unwrap().to_tensor();
    assert_eq!(*received, expected[0]);
    model.reset_states();
    let logs = model.evaluate_with((&x, &y), Inference::new().batch_size(4)).unwrap();
    let loss = format!("test - loss: {:.4}", logs.get("loss").unwrap());
    let evaluate = ["evaluate", "model.keras", "--data", "d.npz"];
    for flags in [&[][..], &["--batch-size", "4"], &["--replicas", "2", "--batch-size", "2"]] {
        let out = succeeds(dir.path(), &[&evaluate[..], flags].concat());
        assert!(out.contains(&loss), "{out} should contain {loss}");
    }
    let conflict = [&evaluate[..], &["--batch-size", "8"]].concat();
    let message = "--batch-size: expected 4 samples over all replicas, as the states of the model have, received 8";
    assert_eq!(fault(dir.path(), &conflict, 1, message), None);
    // The last batch has samples for two of the four states.
    let rest = ["predict", "model.keras", "--input", "x10.npy", "--output", "y.npy"];
    let message = "layer 'memory': size of batch 3 of the data: expected 4 samples, as its states have, received 2";
    assert_eq!(fault(dir.path(), &rest, 1, message), None);
    let train = ["train", "model.keras", "--data", "d.npz", "--epochs", "1"];
    assert!(succeeds(dir.path(), &train).contains("batch: 4 global"));
    assert!(
        succeeds(dir.path(), &["bench", "model.keras", "--steps", "2", "--json"])
            .contains("\"batch\":4")
    );
    succeeds(dir.path(), &["plan", "model.keras"]);
}

/// A table of texts, and a model that takes them.
#[test]
fn metrics_of_a_file_whose_results_are_vectors_are_lists() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let file = dir.path().join("model.keras");
    std::fs::copy(root.join("metric_names_vectors.keras"), &file).unwrap();
    let x = floats(&[12, 3], 0);
    let labels = (0..36).map(|i| if i / 3 % 3 == i % 3 { 1.0 } else { 0.0 });
    let y = Tensor::new([12, 3], labels.collect::<Vec<f32>>()).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y), ("x_test", &x), ("y_test", &y)]);
    let evaluate = ["evaluate", "model.keras", "--data", "d.npz"];
    let logs = load_model(&file).unwrap().evaluate_with((&x, &y), Inference::new()).unwrap();
    for replicas in ["1", "2"] {
        let out = succeeds(dir.path(), &[&evaluate[..], &["--replicas", replicas]].concat());
        assert!(out.contains(&format!("test - {logs}\n")), "{out} should contain {logs}");
    }
    assert!(logs.to_string().contains(" - f1_score: ["), "{logs}");
    let train = ["train", "model.keras", "--data", "d.npz", "--epochs", "1", "--json", "-"];
    let last = end(&succeeds(dir.path(), &train));
    assert_eq!(last["test_precision"].as_array().map(Vec::len), Some(3), "{last}");
    assert!(last["test_auc"].is_number(), "{last}");
}

#[test]
fn a_model_of_strings_trains_evaluates_and_predicts_on_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..40)
        .map(|i| format!("{} {} film", ["a", "The"][i % 2], ["Good!", "bad, bad"][i / 2 % 2]))
        .collect();
    let quoted = texts.iter().enumerate();
    let rows: String =
        quoted.map(|(i, text)| format!("\"{text}\",{}\n", ["yes", "no"][i / 2 % 2])).collect();
    std::fs::write(dir.path().join("d.csv"), format!("review,liked\n{rows}")).unwrap();
    let x = Input::new([1]).strings().named("review").symbol();
    let vectorize = TextVectorization::new().output_sequence_length(4).adapt(&texts[..]).unwrap();
    let y = Embedding::new(10, 4).apply(vectorize.apply(&x));
    let y = Dense::new(1).activation("sigmoid").apply(Flatten::new().apply(&y));
    let mut model = Model::new(&x, &y).unwrap();
    let compile = Compile::new(Adam::new(0.05)).loss("binary_crossentropy");
    model.compile(compile.metrics(["accuracy"])).unwrap();
    model.save(dir.path().join("m.keras")).unwrap();
    let train = ["train", "m.keras", "--data", "d.csv", "--epochs", "8", "--save", "t.keras"];
    succeeds(dir.path(), &train);
    let evaluated = succeeds(dir.path(), &["evaluate", "t.keras"]);
    assert!(evaluated.contains("accuracy: 1.0000"), "{evaluated}");
    std::fs::write(dir.path().join("new.csv"), "review\na good film\nBAD bad\n\"\"\n").unwrap();
    let trained = load_model(dir.path().join("t.keras")).unwrap();
    let expected = trained.predict(Text::from(["a good film", "BAD bad", ""])).unwrap();
    // The trained file records the table; the first one does not.
    for (file, expected) in [
        ("t.keras", expected),
        ("m.keras", model.predict(Text::from(["a good film", "BAD bad", ""])).unwrap()),
    ] {
        succeeds(dir.path(), &["predict", file, "--input", "new.csv", "--output", "y.npy"]);
        assert_eq!(*npy::read(&dir.path().join("y.npy")).unwrap().to_tensor(), expected, "{file}");
    }
    succeeds(dir.path(), &["bench", "m.keras", "--steps", "2", "--batch-size", "8"]);
}

/// Columns of numbers and strings by the names of the inputs.
#[test]
fn a_table_feeds_inputs_of_strings_and_numbers_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (city, age) =
        (Input::new([1]).strings().named("city").symbol(), Input::new([1]).named("age").symbol());
    let lookup = StringLookup::new().vocabulary(["Rome", "Oslo"]).output_mode(OutputMode::OneHot);
    let both = Concatenate::new().apply([lookup.apply(&city), age.clone()]);
    let mut model = Model::new([&city, &age], Dense::new(1).apply(&both)).unwrap();
    model.compile(Compile::new(SGD::new(0.01)).loss("mse")).unwrap();
    model.save(dir.path().join("m.keras")).unwrap();
    let table = "age,city,price\n1,Rome,3\n2,Oslo,4\n3,,5\n0.5,\"Rio, Brazil\",1\n";
    std::fs::write(dir.path().join("d.csv"), table).unwrap();
    let out = succeeds(dir.path(), &["train", "m.keras", "--data", "d.csv", "--epochs", "2"]);
    assert!(out.contains("4 rows to train on"), "{out}");
    let predict = ["predict", "m.keras", "--input", "d.csv", "--output", "y.npy"];
    succeeds(dir.path(), &predict);
    let cities = Text::from(["Rome", "Oslo", "", "Rio, Brazil"]);
    let ages = Tensor::new([4, 1], vec![1.0, 2.0, 3.0, 0.5f32]).unwrap();
    let expected = model.predict(Arrays::new((cities, ages), ()).unwrap()).unwrap();
    assert_eq!(*npy::read(&dir.path().join("y.npy")).unwrap().to_tensor(), expected);
    std::fs::write(dir.path().join("odd.csv"), "age,town\n1,Rome\n").unwrap();
    let odd = ["predict", "m.keras", "--input", "odd.csv", "--output", "y.npy"];
    assert_eq!(fault(dir.path(), &odd, 1, "a column for the input 'city'"), None);
}

/// Strings with quotes, commas, line breaks, whitespace and letters of other alphabets, in texts of an open length.
#[test]
fn texts_of_an_open_length_train_evaluate_and_predict_on_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let texts = [
        "a \"good\" film, really",
        "bad",
        "not\ngood",
        "",
        "  film ",
        "東京 film é",
        "good film",
        "not bad, no",
    ];
    let (text, kind) = (
        Input::new([1]).strings().named("text").symbol(),
        Input::new([1]).strings().named("kind").symbol(),
    );
    let vectorize = TextVectorization::new().standardize(None).adapt(texts).unwrap();
    let words = Embedding::new(20, 4).apply(vectorize.apply(&text));
    let lookup = StringLookup::new().vocabulary(["film", " film "]).num_oov_indices(0);
    let lookup = lookup.output_mode(OutputMode::OneHot).named("kinds").apply(&kind);
    let both = Concatenate::new().apply([GlobalMaxPooling1D::new().apply(&words), lookup]);
    let y = Dense::new(2).activation("softmax").named("liked").apply(&both);
    let mut model = Model::new([&text, &kind], &y).unwrap();
    let compile = Compile::new(Adam::new(0.05)).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"])).unwrap();
    model.save(dir.path().join("m.keras")).unwrap();
    let row = |(i, text): (usize, &&str)| {
        let (kind, liked) = (["film", "\" film \""][i % 2], ["yes", "no"][i % 2]);
        format!("{kind},\"{}\",{liked}\n", text.replace('"', "\"\""))
    };
    let rows: String = texts.iter().enumerate().map(row).collect();
    let table = |name: &str, header: &str, rows: &str| {
        std::fs::write(dir.path().join(name), format!("{header}\n{rows}")).unwrap();
    };
    table("d.csv", "kind,text,liked", &rows);
    let train = ["train", "m.keras", "--data", "d.csv", "--epochs", "40", "--batch-size", "3"];
    let out =
        succeeds(dir.path(), &[&train[..], &["--replicas", "2", "--save", "t.keras"]].concat());
    assert!(out.contains("depends on the length of the texts in a batch"), "{out}");
    let evaluated = succeeds(dir.path(), &["evaluate", "t.keras", "--data", "d.csv"]);
    assert!(evaluated.contains("accuracy: 1.0000"), "{evaluated}");
    // Without the label.
    let inputs: String = rows.replace(",yes\n", "\n").replace(",no\n", "\n");
    table("new.csv", "kind,text", &inputs);
    succeeds(dir.path(), &["predict", "t.keras", "--input", "new.csv", "--output", "y.npy"]);
    let kinds: Text = (0..8).map(|i| ["film", " film "][i % 2]).collect();
    let data = Arrays::new((Text::from(texts), kinds), ()).unwrap();
    let expected = load_model(dir.path().join("t.keras")).unwrap().predict(&data).unwrap();
    assert_eq!(*npy::read(&dir.path().join("y.npy")).unwrap().to_tensor(), expected);
    let refused = |table: &str, message: &str| {
        let predict = ["predict", "t.keras", "--input", table, "--output", "y.npy"];
        assert_eq!(fault(dir.path(), &predict, 1, message), None);
    };
    table("missing.csv", "text", "good\n");
    refused("missing.csv", "expected a column 'kind' for the input 'kind', received text");
    table("unknown.csv", "kind,text", "play,good\n");
    refused("unknown.csv", "layer 'kinds': input: expected tokens of the vocabulary");
    table("empty.csv", "kind,text", "film,\n");
    refused("empty.csv", "a batch of texts needs at least one token");
    let plan =
        fault(dir.path(), &["plan", "m.keras"], 1, "output_sequence_length fixes those of texts");
    assert_eq!(plan, None);
}
