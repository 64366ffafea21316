//! TensorBoard event files, read back by a reader that is independent of the writer.
//! `tests/python/check_tensorboard.py` reads the same logs with TensorBoard's own reader.

use phalanx::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// CRC-32C bit by bit, masked as in records.
fn masked_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a file. Checks lengths and checksums.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut records = vec![];
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(word(8), masked_crc(&rest[..8]), "checksum of a length");
        let data = &rest[12..12 + length];
        assert_eq!(word(12 + length), masked_crc(data), "checksum of a record");
        records.push(data.to_vec());
        rest = &rest[16 + length..];
    }
    records
}

/// The value of a field: a number or bytes.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Field {
    fn double(&self) -> f64 {
        let Field::Number(bits) = self else { panic!("{self:?} is no number") };
        f64::from_bits(*bits)
    }

    fn float(&self) -> f32 {
        let Field::Number(bits) = self else { panic!("{self:?} is no number") };
        f32::from_bits(u32::try_from(*bits).unwrap())
    }

    fn bytes(&self) -> &[u8] {
        let Field::Bytes(bytes) = self else { panic!("{self:?} has no bytes") };
        bytes
    }

    fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap()
    }
}

/// The fields of a protocol buffer, in order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|b| *b < 0x80).unwrap();
        let value = bytes[..=end].iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 0x7f));
        *bytes = &bytes[end + 1..];
        value
    }
    let mut out = vec![];
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let mut take = |n: usize| {
            let (head, tail) = bytes.split_at(n);
            bytes = tail;
            head.to_vec()
        };
        let field = match key & 7 {
            1 => Field::Number(u64::from_le_bytes(take(8).try_into().unwrap())),
            5 => Field::Number(u32::from_le_bytes(take(4).try_into().unwrap()).into()),
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (head, tail) = bytes.split_at(length);
                bytes = tail;
                Field::Bytes(head.to_vec())
            }
            kind => panic!("wire type {kind}"),
        };
        out.push((key >> 3, field));
    }
    out
}

fn all(message: &[(u64, Field)], number: u64) -> impl Iterator<Item = &Field> {
    message.iter().filter(move |(n, _)| *n == number).map(|(_, field)| field)
}

fn one(message: &[(u64, Field)], number: u64) -> Option<&Field> {
    all(message, number).next()
}

fn doubles(field: &Field) -> Vec<f64> {
    let bytes = field.bytes().chunks(8);
    bytes.map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// (step, value) by tag.
type Series<T> = BTreeMap<String, Vec<(u64, T)>>;

/// The content of a run directory.
#[derive(Default)]
struct Log {
    scalars: Series<f32>,
    /// The fields of the histograms.
    histograms: Series<Vec<(u64, Field)>>,
    /// (name, op, inputs) of the graph nodes.
    graph: Vec<(String, String, Vec<String>)>,
    times: Vec<f64>,
}

fn read(directory: &Path) -> Log {
    let files: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let mut log = Log::default();
    for (i, record) in records(&files[0]).iter().enumerate() {
        let event = fields(record);
        log.times.push(one(&event, 1).unwrap().double());
        if i == 0 {
            assert_eq!(one(&event, 3).unwrap().text(), "brain.Event:2");
            continue;
        }
        let Some(Field::Number(step)) = one(&event, 2) else { panic!("no step in {event:?}") };
        if let Some(graph) = one(&event, 4) {
            for node in all(&fields(graph.bytes()), 1).map(|n| fields(n.bytes())) {
                let text = |number| one(&node, number).unwrap().text().to_string();
                let inputs = all(&node, 3).map(|f| f.text().to_string()).collect();
                log.graph.push((text(1), text(2), inputs));
            }
        }
        let Some(summary) = one(&event, 5) else { continue };
        for value in all(&fields(summary.bytes()), 1).map(|v| fields(v.bytes())) {
            let tag = one(&value, 1).unwrap().text().to_string();
            if let Some(number) = one(&value, 2) {
                log.scalars.entry(tag).or_default().push((*step, number.float()));
            } else {
                let histogram = fields(one(&value, 5).unwrap().bytes());
                log.histograms.entry(tag).or_default().push((*step, histogram));
            }
        }
    }
    log
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A network with a branch, a layer called twice and a nested model.
fn branched() -> Model {
    let x = Input::new([4]).named("pixels").symbol();
    let shared = LayerHandle::from(Dense::new(4).activation("relu"));
    let twice = (&shared).apply((&shared).apply(&x));
    let inner_x = Input::new([4]).symbol();
    let inner_y = Dense::new(4).apply(&inner_x);
    let inner = Model::with_name("encoder", &inner_x, &inner_y).unwrap();
    let sum = Add::new().apply([&twice, &inner.apply(&x)]);
    let y = Dense::new(2).activation("softmax").named("head").apply(&sum);
    Model::new(&x, &y).unwrap()
}

fn train(callback: TensorBoard, validation: f64) -> (Model, History) {
    let mut rng = phalanx::Stream::new(1, 0, 0, 0);
    let x: Vec<f32> = (0..160).map(|_| rng.unit() as f32 - 0.5).collect();
    let y: Vec<i32> = x.chunks(4).map(|p| i32::from(p[0] > 0.0)).collect();
    let (x, y) = (Tensor::new([40, 4], x).unwrap(), Tensor::new([40], y).unwrap());
    let mut model = branched();
    let compile =
        Compile::new(SGD::new(0.1)).loss("sparse_categorical_crossentropy").metrics(["accuracy"]);
    model.compile(compile).unwrap();
    let fit = Fit::new().epochs(3).batch_size(8).validation_split(validation).verbose(0);
    let decay = LearningRateScheduler::new(|epoch| 0.1 / (1.0 + epoch as f64));
    let history = model.fit((x, y), fit.callback(decay).callback(callback)).unwrap();
    (model, history)
}

/// The directory of the logs. Logs are kept under `$PHALANX_TENSORBOARD_LOGS` for the check in Python.
fn log_dir(name: &str) -> (PathBuf, Option<tempfile::TempDir>) {
    match std::env::var_os("PHALANX_TENSORBOARD_LOGS") {
        Some(directory) => (Path::new(&directory).join(name), None),
        None => {
            let directory = tempfile::tempdir().unwrap();
            (directory.path().join(name), Some(directory))
        }
    }
}

/// The steps at which epochs are logged.
const EPOCHS: [u64; 3] = [0, 1, 2];

/// A log of the history, at these steps.
fn series(history: &History, name: &str, steps: &[u64]) -> Vec<(u64, f32)> {
    let values = history.get(name).unwrap().iter().map(|v| *v as f32);
    steps.iter().copied().zip(values).collect()
}

fn check_training_scalars(training: &Log, history: &History) {
    // Four batches of 8 per epoch, of which every second is logged.
    let tags: Vec<&str> = training.scalars.keys().map(String::as_str).collect();
    let expected = [
        "batch_accuracy",
        "batch_loss",
        "batch_steps_per_second",
        "epoch_accuracy",
        "epoch_images_per_second",
        "epoch_learning_rate",
        "epoch_loss",
        "epoch_steps_per_second",
    ];
    assert_eq!(tags, expected);
    assert_eq!(training.scalars["epoch_loss"], series(history, "loss", &EPOCHS));
    assert_eq!(training.scalars["epoch_accuracy"], series(history, "accuracy", &EPOCHS));
    assert_eq!(training.scalars["epoch_learning_rate"], series(history, "lr", &EPOCHS));
    let steps: Vec<u64> = training.scalars["batch_loss"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [2, 4, 6, 8, 10, 12]);
    // The running mean of the last batch is that of the epoch.
    assert_eq!(training.scalars["batch_loss"][1].1, training.scalars["epoch_loss"][0].1);
    for (epoch, (step, value)) in training.scalars["epoch_images_per_second"].iter().enumerate() {
        let speed = history.images_per_second[epoch] as f32;
        assert_eq!((*step, *value), (epoch as u64, speed));
        let steps = training.scalars["epoch_steps_per_second"][epoch].1;
        assert!((steps * 8.0 / speed - 1.0).abs() < 1e-3, "{steps} steps, {speed} images");
    }
}

fn check_validation_scalars(validation: &Log, history: &History) {
    let tags: Vec<&str> = validation.scalars.keys().map(String::as_str).collect();
    let expected = [
        "epoch_accuracy",
        "epoch_loss",
        "evaluation_accuracy_vs_iterations",
        "evaluation_loss_vs_iterations",
    ];
    assert_eq!(tags, expected);
    assert_eq!(validation.scalars["epoch_loss"], series(history, "val_loss", &EPOCHS));
    let by_step = &validation.scalars["evaluation_loss_vs_iterations"];
    assert_eq!(*by_step, series(history, "val_loss", &[4, 8, 12]));
}

fn check_histograms(training: &Log, model: &Model) {
    // Epochs 0 and 2; the last has the current weights of the model.
    let weights = model.weights().unwrap();
    assert_eq!(training.histograms.len(), weights.len());
    for (name, tensor) in weights {
        let values = tensor.f32().unwrap();
        let series = &training.histograms[&format!("{name}/histogram")];
        assert_eq!(series.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 2]);
        let last = &series[1].1;
        let number = |field| one(last, field).unwrap().double();
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!((number(1), number(2)), (least.into(), most.into()), "{name}");
        assert_eq!(number(3), values.len() as f64);
        let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
        assert!((number(4) - sum).abs() < 1e-9);
        let (limits, counts) = (doubles(one(last, 6).unwrap()), doubles(one(last, 7).unwrap()));
        assert_eq!((limits.len(), counts.len()), (30, 30));
        assert!(limits.is_sorted() && *limits.last().unwrap() == f64::from(most));
        assert_eq!(counts.iter().sum::<f64>(), values.len() as f64);
    }
}

fn check_graph(training: &Log) {
    let node = |name: &str, op: &str, inputs: &[&str]| {
        let inputs = inputs.iter().map(|i| i.to_string()).collect();
        (name.to_string(), op.to_string(), inputs)
    };
    let expected = [
        node("pixels", "InputLayer", &[]),
        node("dense", "Dense", &["pixels"]),
        node("dense_1", "Dense", &["dense"]),
        node("encoder/dense", "Dense", &["pixels"]),
        node("add", "Add", &["dense_1", "encoder/dense"]),
        node("head", "Dense", &["add"]),
    ];
    assert_eq!(training.graph, expected);
}

#[test]
fn scalars_histograms_and_graph_match_the_run() {
    let (logs, _guard) = log_dir("full");
    let callback =
        TensorBoard::new(&logs).histogram_freq(2).update_freq(2).write_steps_per_second(true);
    let before = now();
    let (model, history) = train(callback, 0.2);
    let (training, validation) = (read(&logs.join("train")), read(&logs.join("validation")));
    for log in [&training, &validation] {
        assert!(log.times.is_sorted() && log.times[0] >= before - 1e-3);
        assert!(log.times.last().unwrap() <= &(now() + 1e-3));
    }
    check_training_scalars(&training, &history);
    check_validation_scalars(&validation, &history);
    check_histograms(&training, &model);
    check_graph(&training);
    assert!(validation.graph.is_empty());
}

#[test]
fn by_default_only_epochs_and_the_graph_are_written() {
    let (logs, _guard) = log_dir("plain");
    train(TensorBoard::new(&logs), 0.0);
    let log = read(&logs.join("train"));
    let tags: Vec<&str> = log.scalars.keys().map(String::as_str).collect();
    let expected =
        ["epoch_accuracy", "epoch_images_per_second", "epoch_learning_rate", "epoch_loss"];
    assert_eq!(tags, expected);
    assert!(log.histograms.is_empty() && log.graph.len() == 6);
    assert!(!logs.join("validation").exists());
    let (logs, _guard) = log_dir("bare");
    train(TensorBoard::new(&logs).write_graph(false), 0.0);
    assert!(read(&logs.join("train")).graph.is_empty());
}

#[test]
fn an_impossible_directory_is_an_error_before_the_first_epoch() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let mut model = branched();
    model.compile(Compile::new("sgd").loss("sparse_categorical_crossentropy")).unwrap();
    let x = Tensor::new([1, 4], vec![0.0f32; 4]).unwrap();
    let y = Tensor::new([1], vec![0i32]).unwrap();
    for (callback, what) in [
        (TensorBoard::new(directory.path().join("file")), "file/train: "),
        (TensorBoard::new(directory.path()).update_freq("hour"), "received \"hour\""),
        (TensorBoard::new(directory.path()).update_freq(0), "update_freq"),
    ] {
        let error = model.fit((&x, &y), Fit::new().verbose(0).callback(callback)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}
