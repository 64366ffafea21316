//! Plot files: they decode, have the expected content, and bad input gives an error.

use phalanx::history::History;
use phalanx::prelude::*;
use phalanx::{Tensor, plots};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tiny_skia::Pixmap;

/// The name of a metric, and its value as a function of the fraction of the run.
type Series = (&'static str, fn(f64) -> f64);

fn history(epochs: usize, series: &[Series]) -> History {
    let mut history = History::default();
    for epoch in 0..epochs {
        let at = epoch as f64 / epochs as f64;
        let logs = series.iter().map(|(name, value)| (name.to_string(), value(at))).collect();
        history.push(epoch, &logs, 1.0, 100);
    }
    history
}

fn typical(epochs: usize) -> History {
    history(
        epochs,
        &[
            ("loss", |t| 1.4 * (-3.0 * t).exp() + 0.1),
            ("val_loss", |t| 1.2 * (-3.0 * t).exp() + 0.3),
            ("accuracy", |t| 0.95 - 0.5 * (-3.0 * t).exp()),
            ("val_accuracy", |t| 0.9 - 0.4 * (-3.0 * t).exp()),
            ("lr", |t| 0.01 * (1.0 - t)),
        ],
    )
}

/// Draws twice in both formats, checks that the bytes are equal, and returns the PNG and the text of the
/// SVG.
fn both(draw: impl Fn(&Path) -> phalanx::Result<()>) -> (Pixmap, String) {
    let dir = TempDir::new().unwrap();
    let twice = |name: &str| {
        let path = dir.path().join(name);
        draw(&path).unwrap();
        let first = fs::read(&path).unwrap();
        draw(&path).unwrap();
        assert_eq!(first, fs::read(&path).unwrap(), "{name} is not deterministic");
        first
    };
    let (png, svg) = (twice("a.png"), twice("a.SVG"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "temporary files stay behind");
    let png = Pixmap::decode_png(&png).unwrap();
    let dark = png.pixels().iter().filter(|p| p.red() < 128).count();
    assert!(dark > 50, "the picture is empty");
    let svg = String::from_utf8(svg).unwrap();
    roxmltree::Document::parse(&svg).unwrap();
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "a coordinate is not a number");
    (png, svg)
}

/// The texts of an SVG.
fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|n| n.has_tag_name("text"));
    texts.filter_map(|n| n.text().map(String::from)).collect()
}

fn assert_texts(svg: &str, expected: &[&str]) {
    let texts = texts(svg);
    for text in expected {
        assert!(texts.iter().any(|t| t == text), "'{text}' is missing in {texts:?}");
    }
}

#[test]
fn curves_look_like_the_tutorials() {
    let (png, svg) = both(|path| plots::curves(&typical(70), "MiniGoogLeNet on CIFAR-10", path));
    assert_eq!((png.width(), png.height()), (1200, 800));
    let legend = ["train_loss", "val_loss", "train_accuracy", "val_accuracy"];
    assert_texts(&svg, &legend);
    assert_texts(&svg, &["MiniGoogLeNet on CIFAR-10", "Epoch #", "Loss/Accuracy", "10", "70"]);
    assert!(!svg.contains("lr<"), "the learning rate is on another scale");
}

#[test]
fn curves_of_one_epoch_are_points() {
    let (_, svg) = both(|path| plots::curves(&typical(1), "one", path));
    assert_texts(&svg, &["Loss", "Accuracy", "1"]);
    assert_eq!(svg.matches("<circle").count(), 8, "four points and four in the legends");
}

#[test]
fn curves_skip_nan() {
    let mut broken = typical(40);
    let loss = broken.values.get_mut("loss").unwrap();
    (loss[3], loss[5], loss[7]) = (f64::NAN, f64::INFINITY, f64::MAX);
    broken.values.insert("val_auc".into(), vec![f64::NAN; 40]);
    broken.values.insert("recall".into(), vec![0.5; 7]);
    let (_, svg) = both(|path| plots::curves(&broken, "", path));
    assert_texts(&svg, &["train_loss", "train_recall"]);
    assert!(!svg.contains("auc"));
}

#[test]
fn curves_of_unusual_histories() {
    let one: &[Series] = &[("loss", |t| 3.0 - t)];
    let (_, svg) = both(|path| plots::curves(&history(9, one), "only a loss", path));
    assert_texts(&svg, &["Loss", "train_loss"]);

    both(|path| plots::curves(&typical(1000), "long", path));

    let mut spike = typical(30);
    spike.values.get_mut("loss").unwrap()[0] = 4e9;
    let (_, svg) = both(|path| plots::curves(&spike, "a bad start", path));
    assert_texts(&svg, &["Loss (log scale)", "Accuracy", "1e6"]);

    let mut many = typical(20);
    for i in 0..60 {
        many.values.insert(format!("a_metric_of_length_{i}"), vec![i as f64; 20]);
    }
    let (_, svg) = both(|path| plots::curves(&many, "many", path));
    assert!(texts(&svg).iter().any(|t| t.starts_with("and ") && t.ends_with(" more")));

    let mut late = typical(3);
    late.epochs = vec![usize::MAX - 2, usize::MAX - 1, usize::MAX];
    both(|path| plots::curves(&late, "markup <&> \"quoted\" \u{0} 한국어", path));
}

#[test]
fn confusion_matrices_of_many_sizes() {
    for n in [1, 2, 10, 37, 100, 600] {
        let cell = |i, j| if i == j { 90 } else { ((i * 7 + j * 3) % 5) as u64 };
        let counts: Vec<Vec<u64>> = (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect();
        let labels: Vec<String> = (0..n).map(|i| format!("class {i}")).collect();
        let draw = |path: &Path| plots::confusion_matrix(&counts, &labels, "Title", path);
        let (png, svg) = both(draw);
        assert!((400..2200).contains(&png.width()) && (300..2200).contains(&png.height()));
        assert_texts(&svg, &["Title", "true class", "predicted class", "class 0"]);
        let numbers = texts(&svg).iter().any(|t| t == "90");
        assert_eq!(numbers, n <= 37, "numbers with {n} classes");
    }
    let nothing = vec![vec![0; 2]; 2];
    let labels = ["a".to_string(), "b".repeat(300)];
    let (_, svg) = both(|path| plots::confusion_matrix(&nothing, &labels, "", path));
    assert_texts(&svg, &["no samples"]);
    let large = vec![vec![u64::MAX; 2]; 2];
    both(|path| plots::confusion_matrix(&large, &labels, "", path));
}

#[test]
fn a_matrix_of_more_classes_than_pixels_is_refused() {
    let n = plots::MAX_CLASSES + 1;
    // Only as many rows as the check needs.
    let counts = vec![vec![]; n];
    let path = Path::new("never.png");
    let error = plots::confusion_matrix(&counts, &[], "", path).unwrap_err().to_string();
    assert!(error.ends_with("expected at most 1600 classes, received 1601"), "{error}");
}

#[test]
fn names_in_plots_show_their_hidden_characters() {
    let acting = "<b>\u{1b}[2J\u{202e}x\u{85}";
    // Captions are truncated.
    let shown = r"<b>\u{1b}[2J";
    let labels = [acting.to_string(), "b".into()];
    let counts = vec![vec![1, 2], vec![3, 4]];
    let (_, matrix) = both(|path| plots::confusion_matrix(&counts, &labels, acting, path));
    let images = Tensor::zeros([1, 4, 4, 1]);
    let captions = [(acting.to_string(), true)];
    let (_, grid) = both(|path| plots::samples(&images, &captions, "guess (truth)", 1, path));
    let mut summary = applications::mnist_mlp(4, 2).unwrap().summary();
    (summary.name, summary.rows[0].layer) = (acting.into(), format!("{acting} (Dense)"));
    let (_, graph) = both(|path| plots::model(&summary, path));
    let mut history = typical(3);
    history.values.insert(acting.into(), vec![0.5; 3]);
    let (_, curves) = both(|path| plots::curves(&history, acting, path));
    for svg in [matrix, grid, graph, curves] {
        assert!(texts(&svg).iter().any(|text| text.contains(shown)), "{:?}", texts(&svg));
        assert!(!svg.contains(['\u{1b}', '\u{202e}', '\u{85}']));
    }
}

#[test]
fn samples_in_a_grid() {
    for (size, channels) in [([7, 28, 28], 1), ([7, 5, 9], 3), ([2, 300, 700], 3)] {
        let [n, h, w] = size;
        let values: Vec<f32> = (0..n * h * w * channels).map(|i| (i % 11) as f32 / 10.0).collect();
        let images = Tensor::new([n, h, w, channels], values).unwrap();
        let captions: Vec<(String, bool)> =
            (0..n).map(|i| (format!("cat {i}\ntrue: dog"), i != 1)).collect();
        let (_, svg) =
            both(|path| plots::samples(&images, &captions, "prediction (true class)", 4, path));
        assert_texts(&svg, &["cat 0", "true: dog"]);
        assert_eq!(svg.matches("<image").count(), n);
        let red = svg.matches("fill=\"#c41e1e\"").count();
        assert_eq!(red, 3, "both lines of the wrong one, and the legend");
        assert_texts(&svg, &["prediction (true class)", "right", "wrong"]);
    }
}

#[test]
fn models_as_graphs() {
    let mini = applications::mini_googlenet([32, 32, 3], Some(10)).unwrap().summary();
    let (png, svg) = both(|path| plots::model(&mini, path));
    assert!(png.width() < 1000 && png.height() < 5000);
    assert_texts(&svg, &["mini_googlenet", "conv2d_3", "Concatenate", "(None, 32, 32, 96)"]);
    assert_texts(&svg, &["2,688 params", "dense", "Dense"]);
    let edges: usize = mini.rows.iter().map(|r| r.inputs.len()).sum();
    assert_eq!(svg.matches("<path").count(), edges);

    let resnet = applications::resnet50([64, 64, 3], Some(10)).unwrap().summary();
    let (png, svg) = both(|path| plots::model(&resnet, path));
    assert!(png.width() < 1000 && png.height() <= 16_000);
    assert_eq!(svg.matches("rx=").count(), resnet.rows.len());
    let skips = svg.matches("stroke=\"#d67a14\"").count();
    assert_eq!(skips, 12, "one per identity block");
}

#[test]
fn a_very_deep_model_fits_into_a_png() {
    let mut summary = applications::mnist_mlp(784, 10).unwrap().summary();
    let mut row = summary.rows[1].clone();
    for i in 0..400 {
        (row.inputs, row.layer) = (vec![format!("l{i}")], format!("l{} (Dense)", i + 1));
        summary.rows.push(row.clone());
    }
    let (png, _) = both(|path| plots::model(&summary, path));
    assert!(png.height() <= 16_000);
}

#[test]
fn bad_input_is_an_error() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let fails = |result: phalanx::Result<()>, parts: &[&str]| {
        let message = result.unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "'{part}' is missing in: {message}");
        }
    };
    let run = typical(3);
    fails(plots::curves(&run, "", &at("a.jpg")), &["a.jpg", ".png or .svg", "jpg"]);
    fails(plots::curves(&run, "", &at("a")), &["received none"]);
    fails(plots::curves(&History::default(), "", &at("a.png")), &["finite value"]);
    fails(plots::curves(&run, "", &at("no/such/a.png")), &["no/such/a.png", "No such file"]);
    fs::create_dir(at("folder.png")).unwrap();
    fails(plots::curves(&run, "", &at("folder.png")), &["folder.png", "directory"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file stays behind");

    let labels = ["a".to_string(), "b".to_string()];
    let matrix = |counts: &[Vec<u64>], labels: &[String]| {
        plots::confusion_matrix(counts, labels, "", &at("m.png"))
    };
    fails(matrix(&[], &[]), &["counts", "at least one class"]);
    fails(matrix(&[vec![1, 2], vec![3]], &labels), &["expected 2 columns", "1 in row 1"]);
    fails(matrix(&[vec![1]], &labels), &["labels", "expected 1", "received 2"]);

    let caption = vec![("a".to_string(), true)];
    let samples = |dims: &[usize], captions: &[(String, bool)], columns| {
        plots::samples(&Tensor::zeros(dims), captions, "", columns, &at("s.png"))
    };
    fails(samples(&[1, 4, 4], &caption, 1), &["[n, height, width, 1 or 3]", "[1, 4, 4]"]);
    fails(samples(&[1, 4, 4, 2], &caption, 1), &["[1, 4, 4, 2]"]);
    fails(samples(&[0, 4, 4, 1], &[], 1), &["at least one pixel"]);
    fails(samples(&[2, 4, 4, 1], &caption, 1), &["captions", "expected 2", "received 1"]);
    fails(samples(&[1, 4, 4, 1], &caption, 0), &["columns"]);

    let mut empty = applications::mnist_mlp(784, 10).unwrap().summary();
    empty.rows.clear();
    fails(plots::model(&empty, &at("m.svg")), &["at least one layer"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_without_permission_is_an_error() {
    let forbidden = PathBuf::from("/proc/picture.png");
    let message = plots::curves(&typical(2), "", &forbidden).unwrap_err().to_string();
    assert!(message.starts_with("/proc/picture.png: "), "{message}");
}
