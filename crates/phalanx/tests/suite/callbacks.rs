//! Callbacks on real runs: their output and their effect on training.

use phalanx::callbacks::{Action, LambdaCallback};
use phalanx::prelude::*;
use serde_json::Value;
use std::path::Path;

/// A small network. Its task is whether two numbers have a positive sum.
fn compiled(learning_rate: f64) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([2]))
        .add(Dense::new(8).activation("relu"))
        .add(Dense::new(2).activation("softmax"))
        .build()
        .unwrap();
    let compile = Compile::new(SGD::new(learning_rate))
        .loss("sparse_categorical_crossentropy")
        .metrics(["accuracy"]);
    model.compile(compile).unwrap();
    model
}

fn data() -> (Tensor, Tensor) {
    let mut rng = phalanx::Stream::new(1, 0, 0, 0);
    let x: Vec<f32> = (0..128).map(|_| 2.0 * rng.unit() as f32 - 1.0).collect();
    let y: Vec<i32> = x.chunks(2).map(|p| i32::from(p[0] + p[1] > 0.0)).collect();
    (Tensor::new([64, 2], x).unwrap(), Tensor::new([64], y).unwrap())
}

/// Four batches an epoch, 16 samples of validation.
fn fit(epochs: usize) -> Fit {
    Fit::new().epochs(epochs).batch_size(12).validation_split(0.25).verbose(0)
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn tables_and_lines_hold_what_the_history_holds() {
    let directory = tempfile::tempdir().unwrap();
    let (csv, json) = (directory.path().join("log.csv"), directory.path().join("log.jsonl"));
    let lines = JsonLines::new(&json);
    let run = fit(3)
        .callback(LearningRateScheduler::new(|epoch| 0.1 / (1.0 + epoch as f64)))
        .callback(CSVLogger::new(&csv))
        .callback(lines.clone());
    let history = compiled(0.1).fit(data(), run).unwrap();
    lines.event("end", [("test_accuracy", 0.5.into())]).unwrap();

    let text = std::fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let columns = ["epoch", "accuracy", "learning_rate", "loss", "val_accuracy", "val_loss"];
    assert_eq!(rows[0], columns);
    assert_eq!(rows.len(), 4);
    for (epoch, row) in rows[1..].iter().enumerate() {
        assert_eq!(row[0], epoch.to_string());
        for (name, cell) in columns.iter().zip(row).skip(1) {
            let name = if *name == "learning_rate" { "lr" } else { name };
            assert_eq!(cell.parse::<f64>().unwrap(), history.get(name).unwrap()[epoch], "{name}");
        }
    }

    let text = std::fs::read_to_string(&json).unwrap();
    let objects: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    for (epoch, object) in objects[..3].iter().enumerate() {
        assert_eq!(object["epoch"], epoch + 1);
        for name in ["loss", "accuracy", "val_loss", "val_accuracy", "lr"] {
            assert_eq!(object[name], history.get(name).unwrap()[epoch], "{name}");
        }
        assert_eq!(object["seconds"], history.seconds[epoch]);
        assert_eq!(object["images_per_second"], history.images_per_second[epoch]);
    }
    assert_eq!(objects[3], serde_json::json!({"event": "end", "test_accuracy": 0.5}));
}

#[test]
fn a_checkpoint_brings_the_weights_of_its_epoch_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ckpt/{epoch:02d}-{val_loss:.4f}.safetensors");
    let mut model = compiled(0.1);
    let history = model.fit(data(), fit(3).callback(ModelCheckpoint::new(path))).unwrap();
    let ckpt = directory.path().join("ckpt");
    let loss = |epoch: usize| history.get("val_loss").unwrap()[epoch];
    let names = [0, 1, 2].map(|e| format!("{:02}-{:.4}.safetensors", e + 1, loss(e)));
    assert_eq!(files(&ckpt), names);

    // A checkpoint of a run is identical to the file that the model itself would write.
    let again = directory.path().join("again.safetensors");
    model.save_weights(&again).unwrap();
    let latest = latest_checkpoint(&ckpt).unwrap().unwrap();
    assert_eq!(latest, ckpt.join(&names[2]));
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&latest).unwrap());

    // Evaluating it gives the validation results of the epoch, on the last quarter of the data.
    let mut fresh = compiled(0.1);
    fresh.load_weights(ckpt.join(&names[1])).unwrap();
    let (x, y) = data();
    let x = Tensor::new([16, 2], x.f32().unwrap()[96..].to_vec()).unwrap();
    let phalanx::Data::I32(labels) = y.data() else { panic!("labels are integers") };
    let y = Tensor::new([16], labels[48..].to_vec()).unwrap();
    let logs = fresh.evaluate_with((&x, &y), Inference::new()).unwrap();
    let found = logs.iter().find(|(name, _)| name == "loss").unwrap().1;
    assert!((found - loss(1)).abs() < 1e-6, "{found} for {}", loss(1));

    // Training continues from it exactly, because plain SGD has no other state.
    let mut resumed = compiled(0.1);
    resumed.load_weights(ckpt.join(&names[1])).unwrap();
    resumed.fit(data(), fit(3).initial_epoch(2)).unwrap();
    assert_eq!(resumed.get_weights().unwrap(), model.get_weights().unwrap());
}

#[test]
fn checkpoints_by_batches_and_of_the_best_only() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let run = fit(2)
        .callback(ModelCheckpoint::new(at("often/{epoch}-{batch}.safetensors")).save_freq(3))
        .callback(ModelCheckpoint::new(at("last/{epoch}.safetensors")).keep_last(1))
        .callback(
            ModelCheckpoint::new(at("never.safetensors"))
                .monitor("val_accuracy")
                .save_best_only(true)
                .initial_value_threshold(2.0),
        );
    compiled(0.1).fit(data(), run).unwrap();
    assert_eq!(files(&at("often")), ["1-3.safetensors", "2-2.safetensors"]);
    assert_eq!(files(&at("last")), ["2.safetensors"]);
    assert!(!at("never.safetensors").exists());
}

#[test]
fn a_run_that_breaks_leaves_the_last_good_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let mut model = compiled(0.1);
    // From the second epoch on, the rate makes every weight infinite.
    let rate = |epoch: usize| if epoch == 0 { 0.1 } else { 1e38 };
    let copy = path.clone();
    let mut first = None;
    let keep = LambdaCallback::new().epoch_end(move |_| {
        first.get_or_insert(std::fs::read(&copy).unwrap());
        std::fs::write(copy.with_extension("first"), first.as_ref().unwrap()).unwrap();
        Ok(Action::Continue)
    });
    let run = fit(4)
        .callback(LearningRateScheduler::new(rate))
        .callback(ModelCheckpoint::new(&path))
        .callback(ModelCheckpoint::new(&path).save_freq(1))
        .callback(keep);
    let error = model.fit(data(), run).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    let mut loaded = compiled(0.1);
    loaded.load_weights(&path).unwrap();
    let finite = |t: &Tensor| t.f32().unwrap().iter().all(|v| v.is_finite());
    assert!(loaded.get_weights().unwrap().iter().all(finite));
    assert_eq!(files(directory.path()), ["model.first", "model.safetensors"]);
}

#[test]
fn a_plateau_lowers_the_rate_of_the_epochs_that_follow() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    // Nothing improves by 10.
    let plateau =
        ReduceLROnPlateau::new("loss").min_delta(10.0).patience(1).factor(0.5).cooldown(1);
    let run = fit(6).callback(plateau).callback(CSVLogger::new(&csv));
    let history = compiled(0.5).fit(data(), run).unwrap();
    let rates = [0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125];
    assert_eq!(history.get("lr").unwrap(), rates);
    // A logger later in the list writes the rate of the finished epoch.
    let text = std::fs::read_to_string(&csv).unwrap();
    let column = text.lines().skip(1).map(|l| l.split(',').nth(2).unwrap().parse().unwrap());
    assert_eq!(column.collect::<Vec<f64>>(), rates);
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let path = directory.path().join("file/{epoch}.safetensors");
    let error = compiled(0.1).fit(data(), fit(1).callback(ModelCheckpoint::new(path))).unwrap_err();
    assert!(error.to_string().contains("/file: "), "{error}");
    let early = fit(1).callback(ModelCheckpoint::new("model.onnx"));
    let error = compiled(0.1).fit(data(), early).unwrap_err().to_string();
    assert!(error.contains("model.onnx: expected a name ending in .weights.h5"), "{error}");
}
