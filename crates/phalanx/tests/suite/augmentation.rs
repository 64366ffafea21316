//! Random image layers in training against Python Keras. `tests/python/augmentation.py` records the uniform random
//! numbers behind Keras' changes; here they replace the layer's own.

use crate::common::{Case, Fixture, RUNNERS, Runner, difference_to_scale, on_emulated_gpu, run_on};
use crate::image_layers::{At, TRAINING, apply, assert_spread};
use phalanx::layer::{LayerHandle, Lowering};
use phalanx::layers::from_config;
use phalanx::prelude::*;
use phalanx_graph::autodiff::gradients;
use phalanx_graph::{Graph, NodeId, Op, Type};
use phalanx_needs::needs;

/// The tolerance relative to the largest value. Keras solves for a perspective map in 32 bits.
const TOLERANCE: f64 = 1e-4;

/// The graph with its random numbers replaced by feeds, in order, and the shapes of those feeds.
fn with_fed_numbers(graph: &Graph) -> (Graph, Vec<Vec<usize>>) {
    let mut out = Graph::like(graph);
    let mut shapes = vec![];
    for id in graph.ids() {
        let node = graph.node(id);
        match &node.op {
            Op::Uniform { dims, .. } => {
                let feed = out.add_feed("numbers", Type::rows(dims.clone()));
                shapes.push(dims.clone());
                out.feed(feed);
            }
            op => {
                out.push_typed(op.clone(), node.inputs.clone(), node.ty.clone());
            }
        }
    }
    (out, shapes)
}

/// Runs a case; returns what differs.
fn differences(case: &Case<'_>, runners: &[Runner]) -> Result<Vec<String>, String> {
    let config = case.config().clone();
    let layer = match case.json["ops"][0].as_str() {
        Some(op) => phalanx::ops::layer(op, config.into()),
        None => from_config(case.class_name(), config).map(|l| LayerHandle::new(l, None, true)),
    };
    let layer = layer.map_err(|e| e.to_string())?;
    let mut lowering = Lowering::new(true);
    let input = case.tensor("input");
    lowering.graph.set_max_batch(input.rows());
    let feed = lowering.graph.add_feed("images", Type::rows(&input.dims()[1..]));
    let x = lowering.graph.feed(feed);
    let y = lowering.call(&layer, "it", &[x]).map_err(|e| e.to_string())?;
    assert!(lowering.constants.is_empty(), "{}: constants", case.name);
    let (mut graph, shapes) = with_fed_numbers(&lowering.graph);
    let draws = case.list("draw");
    if shapes.len() != draws.len() {
        return Err(format!("expected {} random numbers, received {}", draws.len(), shapes.len()));
    }
    let mut feeds = vec![input.clone()];
    for (draw, dims) in draws.iter().zip(&shapes) {
        let dims = [&[input.rows()], &dims[..]].concat();
        let values = draw.f32().unwrap().to_vec();
        let reshaped = Tensor::new(dims.clone(), values);
        feeds.push(reshaped.map_err(|_| format!("{dims:?} from {:?}", draw.dims()))?);
    }
    let seed = graph.add_feed("seed", Type::rows(&case.tensor("seed").dims()[1..]));
    let seed = graph.feed(seed);
    feeds.push(case.tensor("seed").clone());
    let dx = gradients(&mut graph, &[(y, seed)], &[x]).map_err(|e| e.to_string())?[0];
    let mut outputs: Vec<(&str, NodeId)> = vec![("output", y)];
    if let Some(expected) = case.find("grad_input") {
        match dx {
            Some(dx) => outputs.push(("grad_input", dx)),
            None => assert!(expected.f32().unwrap().iter().all(|d| *d == 0.0), "{}", case.name),
        }
    }
    let nodes: Vec<NodeId> = outputs.iter().map(|(_, node)| *node).collect();
    let mut wrong = vec![];
    for runner in runners {
        let received = run_on(*runner, &graph, &nodes, &feeds, &[]);
        for ((field, _), received) in outputs.iter().zip(received) {
            let d = difference_to_scale(&received, case.f32(field));
            if d > TOLERANCE || d.is_nan() {
                wrong.push(format!("{field} on {runner:?}: {d:.2e}"));
            }
        }
    }
    Ok(wrong)
}

fn check(runners: &[Runner], chosen: impl Fn(usize) -> bool) {
    let mut wrong = vec![];
    let fixture = Fixture::load("augmentation");
    for (_, case) in fixture.cases().enumerate().filter(|(i, _)| chosen(*i)) {
        match differences(&case, runners) {
            Ok(list) => wrong.extend(list.into_iter().map(|w| format!("{}: {w}", case.name))),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn changes_match_keras_for_the_same_random_numbers() {
    check(&RUNNERS, |_| true);
}

#[needs(gxx)]
#[test]
fn changes_match_keras_on_an_emulated_gpu() {
    check(&[Runner::EmulatedGpu], on_emulated_gpu);
}

const SIDE: usize = 12;
const VALUES: usize = SIDE * SIDE * 3;

/// Images of smooth colours between 40 and 200.
fn images(rows: usize) -> Tensor {
    let value = |i: usize| {
        let (row, y, x, c) = (i / VALUES, i / (SIDE * 3) % SIDE, i / 3 % SIDE, i % 3);
        let wave = (x as f32 * 0.7 + c as f32 * 2.0 + row as f32).sin() + (y as f32 * 0.4).cos();
        120.0 + 40.0 * wave
    };
    let values: Vec<f32> = (0..rows * VALUES).map(value).collect();
    Tensor::new([rows, SIDE, SIDE, 3], values).unwrap()
}

/// Every layer that changes each image in its own random way.
fn random_layers() -> Vec<(&'static str, LayerHandle)> {
    vec![
        ("brightness", RandomBrightness::new(0.2).into()),
        ("invert", RandomInvert::new((0.5, 0.5)).into()),
        ("posterization", RandomPosterization::new(6.0).into()),
        ("solarization", Solarization::new().threshold_factor(0.9).into()),
        ("grayscale", RandomGrayscale::new(0.5).into()),
        ("degeneration", RandomColorDegeneration::new(0.5).into()),
        ("saturation", RandomSaturation::new((0.2, 0.7)).into()),
        ("hue", RandomHue::new(0.5).into()),
        ("jitter", RandomColorJitter::new().contrast_factor(0.3).hue_factor(0.2).into()),
        ("sharpness", RandomSharpness::new(0.9).into()),
        ("blur", RandomGaussianBlur::new((0.5, 0.8)).into()),
        ("mix_up", MixUp::new(0.8).into()),
        ("cut_mix", CutMix::new((0.8, 1.0)).into()),
        ("erasing", RandomErasing::new(1.0).into()),
        ("shear", RandomShear::new(0.3, 0.3).into()),
        ("perspective", RandomPerspective::new(1.0).scale(0.4).into()),
        ("elastic", RandomElasticTransform::new((1.0, 1.0)).scale((0.9, 1.0)).into()),
        ("rand_augment", RandAugment::new().into()),
        ("aug_mix", AugMix::new().num_chains(2).chain_depth(2).into()),
    ]
}

#[test]
fn changes_depend_on_seed_step_and_sample_but_not_on_devices() {
    let images = images(11);
    for (name, layer) in random_layers() {
        let run = |at: At| apply(layer.clone(), &images, at);
        let first = run(TRAINING);
        for (devices, workers) in [(1, 2), (3, 1), (2, 2)] {
            let at = At { devices, workers, ..TRAINING };
            assert!(run(at) == first, "{name} on {devices} devices of {workers} workers");
        }
        assert!(run(At { step: 1, ..TRAINING }) != first, "{name}: the next step");
        assert!(run(At { seed: 2, ..TRAINING }) != first, "{name}: another seed");
        let rest = run(At { training: false, ..TRAINING });
        assert_eq!(rest, images.f32().unwrap(), "{name} at inference");
    }
}

/// The histogram of a whole batch is that of all devices.
#[test]
fn equalization_counts_the_batch_of_all_devices() {
    let images = images(7);
    let one = apply(Equalization::new(), &images, TRAINING);
    assert!(one != images.f32().unwrap());
    for (devices, workers) in [(1, 2), (3, 1), (4, 2)] {
        let at = At { devices, workers, ..TRAINING };
        assert_eq!(apply(Equalization::new(), &images, at), one);
    }
}

/// The fraction of images for which a layer changes something.
fn changed(layer: impl Layer, rows: usize) -> f32 {
    let before = images(rows);
    let after = apply(layer, &before, TRAINING);
    let pairs = before.f32().unwrap().chunks(VALUES).zip(after.chunks(VALUES));
    pairs.filter(|(x, y)| x.iter().zip(*y).any(|(a, b)| (a - b).abs() > 1e-3)).count() as f32
        / rows as f32
}

#[test]
fn probabilities_are_those_of_the_factor() {
    let rows = 400;
    // Five standard deviations of a fraction of 400.
    let near = |received: f32, expected: f32| (received - expected).abs() < 0.125;
    assert!(near(changed(RandomGrayscale::new(0.3), rows), 0.3));
    assert!(near(changed(RandomInvert::new((0.2, 0.4)), rows), 0.3));
    assert!(near(changed(RandomInvert::new(1.0), rows), 0.5));
    assert!(near(changed(RandomGaussianBlur::new((0.8, 0.8)).sigma((0.9, 1.0)), rows), 0.8));
    assert!(near(changed(RandomPerspective::new((0.6, 0.6)), rows), 0.6));
    assert_eq!(changed(RandomErasing::new((1.0, 1.0)).scale((0.2, 0.3)), rows), 1.0);
    assert_eq!(changed(RandomErasing::new(0.0), rows), 0.0);
    // One of eleven changes, none of which is always visible.
    let visible = changed(RandAugment::new().num_ops(1), rows);
    assert!(visible > 0.8, "{visible}");
}

#[test]
fn factors_cover_their_range() {
    let before = images(400);
    let x = before.f32().unwrap();
    let y = apply(RandomBrightness::new((-0.1, 0.2)), &before, TRAINING);
    let shifts = y.chunks(VALUES).zip(x.chunks(VALUES)).map(|(y, x)| (y[0] - x[0]) / 255.0);
    assert_spread("brightness", shifts, -0.1, 0.2);
    let wide = RandomColorDegeneration::new((0.1, 0.6)).value_range((-999.0, 999.0));
    let y = apply(wide, &before, TRAINING);
    let parts = y.chunks(VALUES).zip(x.chunks(VALUES)).map(|(y, x)| {
        let grey = 0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2];
        (y[0] - x[0]) / (grey - x[0])
    });
    assert_spread("degeneration", parts, 0.1, 0.6);
}

/// Every image is mixed with another one of the batch, each of which is used once, with a beta-distributed weight.
#[test]
fn mixtures_are_of_a_permutation_with_the_weights_of_a_beta_distribution() {
    // The first channel has the number of the image, the second its square.
    let rows = 600;
    let values = (0..rows * 2 * 2).flat_map(|i| [(i / 4) as f32, ((i / 4) as f32).powi(2)]);
    let images = Tensor::new([rows, 2, 2, 2], values.collect::<Vec<_>>()).unwrap();
    let y = apply(MixUp::new(0.5), &images, TRAINING);
    let (mut used, mut weights) = (vec![0; rows], vec![]);
    for (own, image) in y.chunks(8).enumerate() {
        assert!(image.chunks(2).all(|pixel| pixel == &image[..2]), "one weight per image");
        let (own, mean, square) = (own as f64, f64::from(image[0]), f64::from(image[1]));
        if (mean - own).abs() < 1e-3 {
            // The weight is 1, or the image is mixed with itself.
            continue;
        }
        // own + other = (own² - square) / (own - mean)
        let other = (own * own - square) / (own - mean) - own;
        weights.push((mean - other) / (own - other));
        if (own - mean).abs() > 1.0 {
            used[other.round() as usize] += 1;
        }
    }
    assert!(used.iter().all(|n| *n <= 1) && used.iter().sum::<usize>() > rows / 2);
    // The distribution of both parameters 0.5 has a third below a quarter, another above three.
    let share =
        |f: &dyn Fn(&f64) -> bool| weights.iter().filter(|w| f(w)).count() as f64 / rows as f64;
    let (low, high) = (share(&|w| *w < 0.25), share(&|w| *w > 0.75 && *w < 0.999));
    assert!((low - 1.0 / 3.0).abs() < 0.1, "{low}");
    assert!((0.2..0.4).contains(&high), "{high}");
}

#[test]
fn cut_images_have_a_rectangle_of_another_one() {
    let (rows, side) = (200, 20);
    let values: Vec<f32> = (0..rows * side * side).map(|i| (i / (side * side)) as f32).collect();
    let images = Tensor::new([rows, side, side, 1], values).unwrap();
    let y = apply(CutMix::new((0.9, 1.0)), &images, TRAINING);
    let (mut used, mut areas) = (vec![false; rows], vec![]);
    for (own, image) in y.chunks(side * side).enumerate() {
        let changed: Vec<usize> = (0..image.len()).filter(|i| image[*i] != own as f32).collect();
        let Some((first, last)) = changed.first().zip(changed.last()) else { continue };
        let size = (last / side - first / side + 1) * (last % side - first % side + 1);
        assert_eq!(changed.len(), size, "a rectangle of image {own}");
        let other = image[*first];
        assert!(changed.iter().all(|i| image[*i] == other));
        assert!(!std::mem::replace(&mut used[other as usize], true), "{other} is used twice");
        areas.push(size as f32 / image.len() as f32);
    }
    assert!(areas.len() > rows * 8 / 10, "{}", areas.len());
    // Nearly evenly distributed.
    let share = |limit: f32| areas.iter().filter(|a| **a < limit).count() as f32 / rows as f32;
    let shares = [share(0.25), share(0.5), share(0.75)];
    let near = shares.iter().zip([0.25, 0.5, 0.75]).all(|(s, e)| (s - e).abs() < 0.15);
    assert!(near, "{shares:?}");
}

/// An image alone in its batch is mixed with itself, and outside of training nothing is mixed.
#[test]
fn mixtures_of_one_image_are_the_image() {
    let one = images(1);
    for layer in [LayerHandle::from(MixUp::new(0.5)), CutMix::new(1.0).into()] {
        let y = apply(layer.clone(), &one, TRAINING);
        assert!(y.iter().zip(one.f32().unwrap()).all(|(y, x)| (y - x).abs() < 1e-4));
        let input = Input::new([2, 2, 3]).symbol();
        let model = Model::new(&input, layer.apply(&input)).unwrap();
        let x = Tensor::new([2, 2, 2, 3], (0..24).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        assert_eq!(model.predict(&x).unwrap(), x);
    }
}

#[test]
fn mixtures_without_a_distribution_are_refused_in_training() {
    for (layer, expected) in [
        (LayerHandle::from(MixUp::new(0.0)), "alpha: expected a number above 0 in training"),
        (CutMix::new((-0.5, 0.5)).into(), "factor: expected numbers from 0 in training"),
    ] {
        let image = Input::new([2, 2, 3]).symbol();
        let mut model = Model::new(&image, layer.apply(&image)).unwrap();
        let error = model.compile(Compile::new("sgd").loss("mse")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
