//! Image augmentation layers: sampling against Python Keras, and the ranges, frequencies and dependencies of
//! random augmentations.

use crate::common::{Fixture, RUNNERS, assert_close, feed_data, run_on};
use phalanx::layer::{LayerHandle, Lowering};
use phalanx::prelude::*;
use phalanx_cpu::{CpuBackend, CpuExecutor, CpuOptions};
use phalanx_exec::{Backend, Batch, Executor};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::ops::{FillMode, SampleGeom};
use phalanx_graph::program::Policy;
use phalanx_graph::{Fetch, Graph, Op, ParamId, Program, Step, Type};

/// Keras computes coordinates in f32: fifty pixels out, they are off by fifty times 1e-7.
const SAMPLING_TOLERANCE: f64 = 5e-5;

#[test]
fn sampling_matches_keras() {
    for case in Fixture::load("sampling").cases() {
        let (name, input) = (case.name, case.tensor("input"));
        let d = input.dims();
        let fill = match case.json["fill_mode"].as_str().unwrap() {
            "constant" => FillMode::Constant,
            "nearest" => FillMode::Nearest,
            "reflect" => FillMode::Reflect,
            _ => FillMode::Wrap,
        };
        let geom = SampleGeom {
            input: [d[1], d[2], d[3]],
            output: [d[1], d[2]],
            fill,
            fill_value: case.json["fill_value"].as_f64().unwrap().into(),
            bilinear: case.json["interpolation"] == "bilinear",
        };
        let mut g = Graph::new();
        let mut feed = |dims: &[usize]| {
            let id = g.add_feed(name, Type::rows(dims));
            g.feed(id)
        };
        let (x, matrix, seed) = (feed(&d[1..]), feed(&[6]), feed(&d[1..]));
        let y = g.push(Op::AffineSample(geom), &[x, matrix]).unwrap();
        let dx = gradients(&mut g, &[(y, seed)], &[x]).unwrap()[0].unwrap();
        let feeds = ["input", "matrix", "seed"].map(|f| case.tensor(f).clone());
        for runner in RUNNERS {
            let received = run_on(runner, &g, &[y, dx], &feeds, &[]);
            let what = |part: &str| format!("{name} {part} on {runner:?}");
            assert_close(&what("output"), &received[0], case.f32("output"), SAMPLING_TOLERANCE);
            assert_close(
                &what("gradient"),
                &received[1],
                case.f32("grad_input"),
                SAMPLING_TOLERANCE,
            );
        }
    }
}

const SIZE: usize = 21;
const MIDDLE: usize = SIZE / 2;
const ROWS: usize = 400;

/// Images whose pixels hold their coordinates: x in the first channel, y in the second.
fn coordinate_images(rows: usize) -> Tensor {
    let place = |i: usize| if i.is_multiple_of(2) { i / 2 % SIZE } else { i / 2 / SIZE % SIZE };
    let values: Vec<f32> = (0..rows * SIZE * SIZE * 2).map(|i| place(i) as f32).collect();
    Tensor::new([rows, SIZE, SIZE, 2], values).unwrap()
}

/// The mode, step, seed and devices with which a layer is run.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub training: bool,
    pub step: u64,
    pub seed: u64,
    pub devices: usize,
    pub workers: usize,
}

pub const TRAINING: At = At { training: true, step: 0, seed: 1, devices: 1, workers: 1 };

/// Applies a layer to images.
pub fn apply(layer: impl Into<LayerHandle>, images: &Tensor, at: At) -> Vec<f32> {
    let mut low = Lowering::new(at.training);
    low.graph.set_max_batch(images.rows());
    let feed = low.graph.add_feed("images", Type::rows(&images.dims()[1..]));
    let x = low.graph.feed(feed);
    let node = low.call(&layer.into(), "it", &[x]).unwrap();
    let mut step = Step::new("test", low.graph);
    step.fetches.push(Fetch { name: "y".into(), node });
    let options = CpuOptions { replicas: at.devices, workers: at.workers, ..CpuOptions::default() };
    let mut cpu = CpuExecutor::new(options, step.graph.params()).unwrap();
    let rows = images.rows();
    let options = CpuBackend.options(cpu.mesh(), Policy::Float32, rows);
    let program = Program::compile(step, options).unwrap();
    let id = cpu.load(program.into()).unwrap();
    for (param, values) in &low.constants {
        cpu.set_param(ParamId(param.index() as u32), values).unwrap();
    }
    let feeds = [feed_data(images)];
    let At { seed, step, .. } = at;
    let batch =
        Batch { rows, feeds: &feeds, seed, step, scalars: &[], accumulate: None, staged: false };
    let mut fetched = vec![];
    cpu.run(id, &batch, &mut fetched).unwrap();
    fetched.remove(0)
}

/// The map through which each image of [`coordinate_images`] was sampled, derived from its central pixels: the
/// change for one step right and one step down, and the origin of the center.
struct Seen {
    right: [f32; 2],
    down: [f32; 2],
    middle: [f32; 2],
}

fn seen(layer: impl Layer) -> Vec<Seen> {
    let y = apply(layer, &coordinate_images(ROWS), TRAINING);
    let maps = y.chunks(SIZE * SIZE * 2).map(|image| {
        let pixel = |x: usize, y: usize| [0, 1].map(|c| image[(y * SIZE + x) * 2 + c]);
        let middle = pixel(MIDDLE, MIDDLE);
        let from = |p: [f32; 2]| [p[0] - middle[0], p[1] - middle[1]];
        let (right, down) = (from(pixel(MIDDLE + 1, MIDDLE)), from(pixel(MIDDLE, MIDDLE + 1)));
        Seen { right, down, middle }
    });
    maps.collect()
}

/// Fails unless numbers lie in a range, nearly reach its ends and are evenly distributed.
pub fn assert_spread(what: &str, numbers: impl Iterator<Item = f32>, low: f32, high: f32) {
    let numbers: Vec<f32> = numbers.collect();
    let (count, span) = (numbers.len() as f32, high - low);
    let least = numbers.iter().copied().fold(f32::INFINITY, f32::min);
    let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mean = numbers.iter().sum::<f32>() / count;
    let slack = 1e-4 * (1.0 + high.abs());
    assert!(least >= low - slack && most <= high + slack, "{what}: {least} to {most}");
    assert!(least < low + 0.05 * span && most > high - 0.05 * span, "{what}: {least} to {most}");
    // Five standard errors of a uniform distribution.
    let error = 5.0 * span / (12.0 * count).sqrt();
    assert!((mean - (low + high) / 2.0).abs() < error, "{what}: mean {mean}");
}

fn near(a: [f32; 2], b: [f32; 2]) -> bool {
    (a[0] - b[0]).abs() < 2e-4 && (a[1] - b[1]).abs() < 2e-4
}

#[test]
fn translations_cover_their_range() {
    let maps = seen(RandomTranslation::new((-0.1, 0.3), 0.2).fill_mode("nearest"));
    assert!(maps.iter().all(|m| near(m.right, [1.0, 0.0]) && near(m.down, [0.0, 1.0])));
    let (middle, size) = (MIDDLE as f32, SIZE as f32);
    let right = maps.iter().map(|m| middle - m.middle[0]);
    assert_spread("right", right, -0.2 * size, 0.2 * size);
    let down = maps.iter().map(|m| middle - m.middle[1]);
    assert_spread("down", down, -0.1 * size, 0.3 * size);
}

#[test]
fn rotations_turn_about_the_middle() {
    let maps = seen(RandomRotation::new((-0.25, 0.1)));
    for m in &maps {
        assert!(near(m.middle, [MIDDLE as f32; 2]), "{:?}", m.middle);
        assert!(near([-m.down[0], m.down[1]], [m.right[1], m.right[0]]), "no turn: {:?}", m.down);
        assert!((m.right[0].hypot(m.right[1]) - 1.0).abs() < 1e-4, "{:?}", m.right);
    }
    let turns = maps.iter().map(|m| m.right[1].atan2(m.right[0]) / std::f32::consts::TAU);
    assert_spread("turns", turns, -0.25, 0.1);
}

#[test]
fn zooms_cover_their_range_together_or_apart() {
    let maps = seen(RandomZoom::new((-0.4, 0.1)));
    assert!(maps.iter().all(|m| near(m.middle, [MIDDLE as f32; 2])));
    assert!(maps.iter().all(|m| (m.right[0] - m.down[1]).abs() < 2e-4));
    assert_spread("both", maps.iter().map(|m| m.right[0]), 0.6, 1.1);
    let maps = seen(RandomZoom::new((-0.4, 0.1)).width_factor(0.3));
    assert_spread("height", maps.iter().map(|m| m.down[1]), 0.6, 1.1);
    assert_spread("width", maps.iter().map(|m| m.right[0]), 0.7, 1.3);
    let alike = maps.iter().filter(|m| (m.right[0] - m.down[1]).abs() < 0.01).count();
    assert!(alike < ROWS / 10, "{alike}");
}

#[test]
fn half_of_the_images_are_flipped() {
    for (mode, ways) in [("horizontal", 2), ("vertical", 2), ("horizontal_and_vertical", 4)] {
        let maps = seen(RandomFlip::new(mode));
        assert!(maps.iter().all(|m| m.right[1] == 0.0 && m.down[0] == 0.0), "{mode}");
        let mut counts = std::collections::BTreeMap::new();
        for m in &maps {
            assert_eq!((m.right[0].abs(), m.down[1].abs()), (1.0, 1.0), "{mode}");
            *counts.entry((m.right[0] < 0.0, m.down[1] < 0.0)).or_insert(0usize) += 1;
        }
        assert_eq!(counts.len(), ways, "{mode}: {counts:?}");
        // Five standard deviations.
        let share = ROWS as f64 / ways as f64;
        let slack = 5.0 * (share * (1.0 - 1.0 / ways as f64)).sqrt();
        assert!(counts.values().all(|n| (*n as f64 - share).abs() < slack), "{mode}: {counts:?}");
        assert_eq!(counts.contains_key(&(true, false)), mode != "vertical");
        assert_eq!(counts.contains_key(&(false, true)), mode != "horizontal");
    }
}

#[test]
fn a_flip_moves_every_pixel_and_changes_none() {
    let images = coordinate_images(8);
    let y = apply(RandomFlip::new("horizontal"), &images, TRAINING);
    let mut flipped = 0;
    for (x, y) in images.f32().unwrap().chunks(SIZE * 2).zip(y.chunks(SIZE * 2)) {
        let mirrored: Vec<f32> = x.chunks(2).rev().flatten().copied().collect();
        assert!(y == x || y == mirrored, "{y:?}");
        flipped += usize::from(y == mirrored);
    }
    assert!(flipped > 0 && flipped < 8 * SIZE && flipped % SIZE == 0, "{flipped}");
}

#[test]
fn crops_start_everywhere_in_training_and_in_the_middle_otherwise() {
    let crop = || RandomCrop::new(17, 20);
    let y = apply(crop(), &coordinate_images(ROWS), TRAINING);
    let mut starts = std::collections::BTreeSet::new();
    for image in y.chunks(17 * 20 * 2) {
        let (x0, y0) = (image[0], image[1]);
        for (i, pixel) in image.chunks(2).enumerate() {
            assert_eq!(pixel, [x0 + (i % 20) as f32, y0 + (i / 20) as f32]);
        }
        starts.insert((x0 as usize, y0 as usize));
    }
    let all = (0..2).flat_map(|x| (0..5).map(move |y| (x, y)));
    assert!(starts.iter().copied().eq(all), "{starts:?}");

    let rest = At { training: false, ..TRAINING };
    let y = apply(crop(), &coordinate_images(1), rest);
    assert_eq!(y, apply(CenterCrop::new(17, 20), &coordinate_images(1), rest));
    assert_eq!(y[..2], [0.0, 2.0]);
    // If one axis is too small there is nothing to choose, not even in training.
    for (at, size) in [(TRAINING, (30, 4)), (rest, (30, 4)), (TRAINING, (21, 21))] {
        let y = apply(RandomCrop::new(size.0, size.1), &coordinate_images(2), at);
        assert_eq!(
            y,
            apply(CenterCrop::new(size.0, size.1), &coordinate_images(2), rest),
            "{size:?}"
        );
    }
}

#[test]
fn contrast_stretches_each_image_about_its_own_mean() {
    let layer = || RandomContrast::new((0.3, 0.6)).value_range((-100.0, 100.0));
    let y = apply(layer(), &coordinate_images(ROWS), TRAINING);
    let last = SIZE * SIZE * 2 - 1;
    let factors: Vec<f32> =
        y.chunks(last + 1).map(|image| (image[last] - image[1]) / 20.0).collect();
    assert_spread("factors", factors.iter().copied(), 0.7, 1.6);
    for (image, factor) in y.chunks(last + 1).zip(factors) {
        let top = image[1];
        assert!((top - (10.0 - 10.0 * factor)).abs() < 1e-4, "{top} with {factor}");
    }
    let y = apply(layer().value_range((3.0, 11.0)), &coordinate_images(9), TRAINING);
    assert!(y.iter().all(|v| (3.0..=11.0).contains(v)));
    // One number means the same distance below and above one.
    let y = apply(
        RandomContrast::new(0.5).value_range((-100.0, 100.0)),
        &coordinate_images(ROWS),
        TRAINING,
    );
    let factors = y.chunks(last + 1).map(|image| (image[last] - image[1]) / 20.0);
    assert_spread("factors", factors, 0.5, 1.5);
}

/// Every random layer, for tests of their common properties.
fn random_layers() -> [(&'static str, LayerHandle); 7] {
    let shift = || RandomTranslation::new(0.3, 0.2);
    [
        ("flip", RandomFlip::default().into()),
        ("translation", shift().into()),
        ("nearest", shift().interpolation("nearest").into()),
        ("rotation", RandomRotation::new(0.3).fill_mode("wrap").into()),
        ("zoom", RandomZoom::new(0.3).fill_mode("constant").fill_value(3.0).into()),
        ("contrast", RandomContrast::new(0.3).into()),
        ("crop", RandomCrop::new(15, 12).into()),
    ]
}

#[test]
fn random_augmentation_depends_on_seed_step_and_sample_but_not_on_devices() {
    let images = coordinate_images(13);
    for (name, layer) in random_layers() {
        let run = |at: At| apply(layer.clone(), &images, at);
        let first = run(TRAINING);
        for (devices, workers) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 2)] {
            let at = At { devices, workers, ..TRAINING };
            assert!(run(at) == first, "{name} on {devices} devices of {workers} workers");
        }
        assert!(run(At { step: 1, ..TRAINING }) != first, "{name}: the next step");
        assert!(run(At { seed: 2, ..TRAINING }) != first, "{name}: another seed");
        let samples: Vec<&[f32]> = first.chunks(first.len() / 13).collect();
        assert!(samples.iter().any(|s| *s != samples[0]), "{name}: all samples alike");
    }
}

#[test]
fn random_layers_are_inactive_at_inference() {
    let images = coordinate_images(3);
    for (name, layer) in random_layers().into_iter().filter(|(name, _)| *name != "crop") {
        let y = apply(layer, &images, At { training: false, ..TRAINING });
        assert_eq!(y, images.f32().unwrap(), "{name}");
    }
}

/// All random layers before a small network.
fn augmented() -> Model {
    Sequential::new()
        .add(Input::new([SIZE, SIZE, 2]))
        .add(Rescaling::new(1.0 / SIZE as f64))
        .add(RandomFlip::new("horizontal"))
        .add(RandomTranslation::new(0.1, 0.1))
        .add(RandomRotation::new(0.05))
        .add(RandomZoom::new(0.1))
        .add(RandomContrast::new(0.2).value_range((0.0, 1.0)))
        .add(RandomCrop::new(16, 16))
        .add(Resizing::new(8, 8))
        .add(Conv2D::new(4, 3).activation("relu"))
        .add(Flatten::new())
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap()
}

/// The same network for images that are already cropped.
fn plain() -> Model {
    Sequential::new()
        .add(Input::new([SIZE, SIZE, 2]))
        .add(Rescaling::new(1.0 / SIZE as f64))
        .add(CenterCrop::new(16, 16))
        .add(Resizing::new(8, 8))
        .add(Conv2D::new(4, 3).activation("relu"))
        .add(Flatten::new())
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap()
}

fn compiled(mut model: Model, replicas: usize) -> Model {
    let strategy = MirroredStrategy::cpus(replicas).unwrap();
    let compile = Compile::new(SGD::new(0.01)).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy)).unwrap();
    model
}

fn labels(rows: usize) -> Tensor {
    Tensor::new([rows], (0..rows).map(|i| (i % 3) as i32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_model_predicts_as_if_the_random_layers_were_not_there() {
    let (x, y) = (coordinate_images(7), labels(7));
    let (mut with, mut without) = (compiled(augmented(), 1), compiled(plain(), 1));
    with.fit((x.clone(), y.clone()), Fit::new().epochs(2).batch_size(4).verbose(0)).unwrap();
    let trained: Vec<Tensor> = with.weights().unwrap().into_iter().map(|(_, w)| w).collect();
    without.set_weights(&trained).unwrap();
    assert_eq!(with.predict(&x).unwrap(), without.predict(&x).unwrap());
    let logs = |m: &mut Model| m.evaluate((x.clone(), y.clone())).unwrap().to_string();
    assert_eq!(logs(&mut with), logs(&mut without));
}

#[test]
fn replicas_see_the_same_augmentations() {
    let (x, y) = (coordinate_images(13), labels(13));
    let losses = |replicas: usize| {
        let mut model = compiled(augmented(), replicas);
        let fit = Fit::new().epochs(3).batch_size(5).shuffle(false).verbose(0);
        model.fit((x.clone(), y.clone()), fit).unwrap().get("loss").unwrap().to_vec()
    };
    let one = losses(1);
    for replicas in 2..=4 {
        for (a, b) in one.iter().zip(losses(replicas)) {
            assert!((a - b).abs() < 1e-5 * a.abs(), "{replicas} replicas: {a} {b}");
        }
    }
}

/// The error message of a layer on an image of this shape.
fn refusal(layer: impl Layer, dims: [usize; 3]) -> String {
    let built = Sequential::new().add(Input::new(dims)).add(layer.named("it")).build();
    built.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn refusals_name_layer_argument_expected_and_received() {
    let image = [8, 6, 3];
    let cases = [
        (
            refusal(RandomTranslation::new(1.5, 0.1), image),
            "layer 'it': height_factor: expected numbers from -1 to 1, received 1.5",
        ),
        (
            refusal(RandomRotation::new((0.1, f64::NAN)), image),
            "layer 'it': factor: expected numbers from -1 to 1, received NaN",
        ),
        (
            refusal(RandomZoom::new(0.1).width_factor((-1.0, 0.0)), image),
            "layer 'it': width_factor: expected numbers above -1, received -1",
        ),
        (
            refusal(RandomContrast::new(0.1).value_range((1.0, 0.0)), image),
            "layer 'it': value_range: expected two finite numbers in order, received (1, 0)",
        ),
        (
            refusal(RandomFlip::new("sideways"), image),
            "unknown mode 'sideways'; known: horizontal, vertical, horizontal_and_vertical",
        ),
        (
            refusal(RandomCrop::new(0, 4), image),
            "layer 'it': height: expected 1 or more, received 0",
        ),
        (refusal(Resizing::new(4, 0), image), "layer 'it': width: expected 1 or more, received 0"),
        (
            refusal(Resizing::new(usize::MAX / 2, 4), image),
            "layer 'it': height: expected at most 67108864 when multiplied with the input's 8, \
             received 9223372036854775807",
        ),
        (
            refusal(RandomZoom::new(0.1).fill_value(f64::INFINITY), image),
            "layer 'it': fill_value: expected a finite number, received inf",
        ),
    ];
    for (received, expected) in cases {
        assert_eq!(received, expected);
    }
    let flat = Sequential::new().add(Input::new([7])).add(RandomFlip::default()).build();
    let text = flat.map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("expected shape (batch, height, width, channels)"), "{text}");
    let both = Resizing::new(4, 4).crop_to_aspect_ratio(true).pad_to_aspect_ratio(true);
    assert!(refusal(both, image).contains("pad_to_aspect_ratio"));
}
