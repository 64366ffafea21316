//! Custom training steps against Keras: options of optimizers, losses that layers add, gradient penalties.

use crate::common::{Case, Fixture, difference_to_scale, emulated_gpu};
use crate::train_steps::{
    cpus, discriminator, discriminator_loss, generator, generator_loss, net, refused, samples,
    small_gan,
};
use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::custom::{Config, Layer, LayerContext, NodeId, Outputs, Unary, to_config};
use phalanx::model::{Inference, Interrupt, Logs};
use phalanx::optimizers::{self, Optimizer};
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep, Trainer};
use phalanx_needs::needs;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A GAN of a fixture, with its optimizers, as Keras started.
struct FixtureGan {
    generator: Model,
    discriminator: Model,
    trainer: Trainer,
}

impl FixtureGan {
    fn new(case: &Case<'_>, strategy: MirroredStrategy) -> FixtureGan {
        let (mut g, mut d) = (generator(), discriminator());
        let start: Vec<Tensor> = case.list("start").into_iter().cloned().collect();
        let of_generator = g.get_weights().unwrap().len();
        g.set_weights(&start[..of_generator]).unwrap();
        d.set_weights(&start[of_generator..]).unwrap();
        let repeats = case.json["repeats"].as_u64().unwrap();
        let factor = case.json["factor"].as_f64().unwrap();
        let trainer = TrainStep::new("gan")
            .input("real", Input::new([5]))
            .input("z1", Input::new([3]))
            .input("z2", Input::new([3]))
            .model("generator", &g)
            .model("discriminator", &d)
            .optimizer("d", optimizer(case, 0))
            .optimizer("g", optimizer(case, 1))
            .strategy(strategy)
            .compile(move |cx| {
                let (real, z1, z2) = (cx.input("real")?, cx.input("z1")?, cx.input("z2")?);
                for i in 0..repeats {
                    let loss = discriminator_loss(cx, real, z1)?;
                    let loss = cx.graph().scale(loss, factor)?;
                    cx.minimize(&format!("d_loss_{i}"), loss, &["discriminator"], "d")?;
                }
                let loss = generator_loss(cx, z2)?;
                let loss = cx.graph().scale(loss, factor)?;
                cx.minimize("g_loss", loss, &["generator"], "g")
            })
            .unwrap();
        FixtureGan { generator: g, discriminator: d, trainer }
    }

    fn weights(&self) -> Vec<Tensor> {
        let [g, d] = [&self.generator, &self.discriminator].map(|m| m.get_weights().unwrap());
        [g, d].concat()
    }
}

/// An optimizer of a case.
pub(crate) fn optimizer(case: &Case<'_>, i: usize) -> Box<dyn Optimizer> {
    let json = &case.json["optimizers"][i];
    let config = json["config"].as_object().unwrap();
    optimizers::from_config(json["class_name"].as_str().unwrap(), config).unwrap()
}

/// The columns of one step of a case.
fn columns(case: &Case<'_>, names: &[&str], step: usize) -> phalanx::data::Arrays {
    let column = |name: &&str| case.tensor(&format!("{name}/{step}")).clone();
    phalanx::data::Arrays::new(names.iter().map(column).collect::<Vec<_>>(), ()).unwrap()
}

fn check_weights(case: &Case<'_>, field: &str, weights: &[Tensor], tolerance: f64, what: &str) {
    for (i, (weight, expected)) in weights.iter().zip(case.list(field)).enumerate() {
        let apart = difference_to_scale(weight.f32().unwrap(), expected.f32().unwrap());
        assert!(apart < tolerance, "{} {what}: {field} {i}: {apart:.1e}", case.name);
    }
}

fn check_losses(case: &Case<'_>, step: usize, logs: &Logs, what: &str) {
    let received: Vec<f64> = logs.iter().map(|(_, value)| *value).collect();
    let expected = &case.f32("losses")[step * received.len()..(step + 1) * received.len()];
    let apart = difference_to_scale(&received, expected);
    let name = case.name;
    assert!(apart < 2e-5, "{name} {what}: losses of step {step}: {received:?} {expected:?}");
}

/// Trains a case step by step and compares every step with Keras.
fn check_gan(case: &Case<'_>, strategy: MirroredStrategy, what: &str) {
    let mut gan = FixtureGan::new(case, strategy);
    for step in 0..case.json["steps"].as_u64().unwrap() as usize {
        let logs = gan.trainer.train_on_batch(columns(case, &["real", "z1", "z2"], step)).unwrap();
        check_losses(case, step, &logs, what);
        if step == 0 {
            check_weights(case, "first", &gan.weights(), 2e-5, what);
        }
    }
    check_weights(case, "after", &gan.weights(), 1e-4, what);
    gan.trainer.check_consistency().unwrap();
}

#[test]
fn gan_steps_match_keras() {
    let fixture = Fixture::load("train_steps");
    for case in fixture.cases() {
        check_gan(&case, cpus(1), "on 1");
        // Whether a scaled loss overflows depends on the order of its sums.
        if case.json["factor"] != 1.0 {
            continue;
        }
        for replicas in [2, 4] {
            check_gan(&case, cpus(replicas), &format!("on {replicas}"));
        }
        check_gan(&case, cpus(2).deterministic(true), "in deterministic mode");
    }
}

#[test]
fn fit_leaves_the_moving_averages_of_all_optimizers_in_the_weights() {
    let fixture = Fixture::load("train_steps");
    for case in fixture.cases() {
        let mut gan = FixtureGan::new(&case, cpus(1));
        let steps = case.json["steps"].as_u64().unwrap() as usize;
        let all = ["real", "z1", "z2"].map(|name| {
            let parts: Vec<&Tensor> =
                (0..steps).map(|step| case.tensor(&format!("{name}/{step}"))).collect();
            let values: Vec<f32> = parts.iter().flat_map(|t| t.f32().unwrap().to_vec()).collect();
            let (rows, features) = (parts[0].dims()[0], parts[0].dims()[1]);
            Tensor::new([steps * rows, features], values).unwrap()
        });
        let rows = all[0].dims()[0] / steps;
        let data = phalanx::data::Arrays::new(Vec::from(all), ()).unwrap();
        let fit = Fit::new().batch_size(rows).shuffle(false).verbose(0);
        gan.trainer.fit(data, fit).unwrap();
        check_weights(&case, "final", &gan.weights(), 1e-4, "after fit");
    }
}

/// Adds the divergence of a normal distribution from the standard one to the loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Divergence {}

impl Layer for Divergence {
    fn class_name(&self) -> &'static str {
        "steps>Divergence"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (mean, log_variance) = (inputs[0], inputs[1]);
        let g = cx.graph();
        let variance = g.unary(Unary::Exp, log_variance)?;
        let square = g.unary(Unary::Square, mean)?;
        let sum = g.add(variance, square)?;
        let sum = g.sub(sum, log_variance)?;
        let sum = g.offset(sum, -1.0)?;
        // The mean of two features is half of their sum.
        let divergence = g.mean_row(sum)?;
        let divergence = g.scale(divergence, 0.1)?;
        cx.add_loss(divergence)?;
        Ok(mean.into())
    }
}

fn encoder() -> Model {
    let x = Input::new([5]).symbol();
    let hidden =
        Dense::new(4).activation("tanh").activity_regularizer("l2").named("hidden").apply(&x);
    let log_variance = Dense::new(2).named("log_variance").apply(&hidden);
    let mean = Dense::new(2).named("mean").apply(&hidden);
    let mean = Divergence {}.named("divergence").apply([&mean, &log_variance]);
    Model::new([&x], [&mean, &log_variance]).unwrap()
}

fn decoder() -> Model {
    Sequential::new()
        .add(Input::new([2]))
        .add(Dense::new(4).activation("relu").kernel_regularizer("l1"))
        .add(Dense::new(5).activity_regularizer("l1"))
        .build()
        .unwrap()
}

/// A variational autoencoder, with a second phase for the decoder if there are two optimizers.
fn vae(encoder: &Model, decoder: &Model, optimizers: Vec<Box<dyn Optimizer>>) -> TrainStep {
    let mut step = TrainStep::new("vae")
        .input("x", Input::new([5]))
        .input("noise", Input::new([2]))
        .input("code", Input::new([2]))
        .model("encoder", encoder)
        .model("decoder", decoder);
    for (i, optimizer) in optimizers.into_iter().enumerate() {
        step = step.optimizer(&format!("optimizer_{i}"), optimizer);
    }
    step
}

fn vae_body(cx: &mut StepContext<'_>, two_phases: bool) -> Result<()> {
    let (x, noise, code) = (cx.input("x")?, cx.input("noise")?, cx.input("code")?);
    let [mean, log_variance] = cx.call_all("encoder", &[x], cx.training())?[..] else {
        panic!("the encoder has two outputs")
    };
    let g = cx.graph();
    let half = g.scale(log_variance, 0.5)?;
    let deviation = g.unary(Unary::Exp, half)?;
    let noise = g.mul(deviation, noise)?;
    let z = g.add(mean, noise)?;
    let y = cx.call("decoder", &[z])?;
    let loss = cx.loss(&MeanSquaredError::default(), x, y)?;
    cx.minimize("loss", loss, &["encoder", "decoder"], "optimizer_0")?;
    if two_phases {
        let y = cx.call("decoder", &[code])?;
        let loss = cx.loss(&MeanSquaredError::default(), x, y)?;
        cx.minimize("decoder_loss", loss, &["decoder"], "optimizer_1")?;
    }
    Ok(())
}

#[test]
fn losses_that_layers_add_match_keras() {
    let fixture = Fixture::load("train_steps_vae");
    for (case, replicas) in fixture.cases().flat_map(|case| [1, 2, 3].map(|n| (case.name, n))) {
        let case = fixture.cases().find(|other| other.name == case).unwrap();
        let (mut e, mut d) = (encoder(), decoder());
        let start: Vec<Tensor> = case.list("start").into_iter().cloned().collect();
        let of_encoder = e.get_weights().unwrap().len();
        e.set_weights(&start[..of_encoder]).unwrap();
        d.set_weights(&start[of_encoder..]).unwrap();
        let count = case.json["optimizers"].as_array().unwrap().len();
        let optimizers = (0..count).map(|i| optimizer(&case, i)).collect();
        let step = vae(&e, &d, optimizers).strategy(cpus(replicas));
        let mut trainer = step.compile(move |cx| vae_body(cx, count > 1)).unwrap();
        let what = format!("on {replicas}");
        for step in 0..case.json["steps"].as_u64().unwrap() as usize {
            let batch = columns(&case, &["x", "noise", "code"], step);
            let held =
                trainer.evaluate(columns(&case, &["x", "noise", "code"], step), Inference::new());
            let logs = trainer.train_on_batch(batch).unwrap();
            check_losses(&case, step, &logs, &what);
            // The first phase has not seen an update: evaluation reports the same loss.
            let (held, loss) = (held.unwrap().get("loss").unwrap(), logs.get("loss").unwrap());
            assert!((held - loss).abs() < 1e-6 * loss, "{what}: {held} {loss}");
        }
        let weights = [e.get_weights().unwrap(), d.get_weights().unwrap()].concat();
        check_weights(&case, "after", &weights, 1e-4, &what);
        trainer.check_consistency().unwrap();
    }
}

/// The critic's loss of a Wasserstein GAN with gradient penalty.
fn penalized_critic(cx: &mut StepContext<'_>) -> Result<NodeId> {
    let (real, fake, share) = (cx.input("real")?, cx.input("fake")?, cx.input("share")?);
    let g = cx.graph();
    let share = g.reshape(share, &[1, 1])?;
    let apart = g.sub(real, fake)?;
    let part = g.mul(share, apart)?;
    let mixed = g.add(fake, part)?;
    let of_mixed = cx.call("critic", &[mixed])?;
    let gradient = cx.gradient(of_mixed, mixed)?;
    let (of_real, of_fake) = (cx.call("critic", &[real])?, cx.call("critic", &[fake])?);
    let g = cx.graph();
    let squares = g.unary(Unary::Square, gradient)?;
    let sum = g.sum_axes(squares, &[0, 1])?;
    let sum = g.reshape(sum, &[1])?;
    let norm = g.unary(Unary::Sqrt, sum)?;
    let excess = g.offset(norm, -1.0)?;
    let penalty = g.unary(Unary::Square, excess)?;
    let penalty = g.scale(penalty, 10.0)?;
    let apart = g.sub(of_fake, of_real)?;
    Ok(g.add(apart, penalty)?)
}

#[test]
fn a_gradient_penalty_matches_keras() {
    let fixture = Fixture::load("train_steps_wgan");
    for (case, replicas) in fixture.cases().flat_map(|case| [1, 2, 3].map(|n| (case.name, n))) {
        let case = fixture.cases().find(|other| other.name == case).unwrap();
        let mut critic = Sequential::new()
            .add(Input::new([5, 2]))
            .add(Conv1D::new(4, 3).padding("same").activation("tanh"))
            .add(Flatten::new())
            .add(Dense::new(6).activation("softplus"))
            .add(Dense::new(1))
            .build()
            .unwrap();
        let start: Vec<Tensor> = case.list("start").into_iter().cloned().collect();
        critic.set_weights(&start).unwrap();
        let mut trainer = TrainStep::new("wgan")
            .input("real", Input::new([5, 2]))
            .input("fake", Input::new([5, 2]))
            .input("share", Input::new([1]))
            .model("critic", &critic)
            .optimizer("optimizer", optimizer(&case, 0))
            .strategy(cpus(replicas))
            .compile(|cx| {
                let loss = penalized_critic(cx)?;
                cx.minimize("loss", loss, &["critic"], "optimizer")
            })
            .unwrap();
        let what = format!("on {replicas}");
        for step in 0..case.json["steps"].as_u64().unwrap() as usize {
            let batch = columns(&case, &["real", "fake", "share"], step);
            check_losses(&case, step, &trainer.train_on_batch(batch).unwrap(), &what);
        }
        check_weights(&case, "after", &critic.get_weights().unwrap(), 1e-4, &what);
    }
}

#[needs(gxx)]
#[test]
fn an_emulated_gpu_trains_custom_steps_as_keras_does() {
    let gpu = || MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    let fixture = Fixture::load("train_steps");
    for case in fixture.cases().filter(|case| case.name != "gan_clipped") {
        check_gan(&case, gpu(), "on an emulated GPU");
    }
}

/// A GAN whose optimizers accumulate, average and scale their losses, the discriminator's twice in a step.
fn averaged_gan(replicas: usize) -> (Model, Model, Trainer) {
    let (g, d) = (generator(), discriminator());
    let scaled = |optimizer| LossScaleOptimizer::new(optimizer).dynamic_growth_steps(3);
    // Adam divides a gradient by its own size. With an epsilon of 1e-7, the roundings of one that cancels to 1e-7 would be
    // a part of its update.
    let adam = |rate| Adam::new(rate).epsilon(1e-4);
    let trainer = TrainStep::new("averaged")
        .input("real", Input::new([5]))
        .model("generator", &g)
        .model("discriminator", &d)
        .optimizer("d", scaled(adam(0.01).use_ema(0.8).gradient_accumulation_steps(3)))
        .optimizer("g", scaled(adam(0.02).use_ema(0.7).gradient_accumulation_steps(2)))
        .strategy(cpus(replicas))
        .seed(4)
        .compile(|cx| {
            let real = cx.input("real")?;
            for name in ["d_loss", "d_again"] {
                let z = cx.random_normal(&[3])?;
                let loss = discriminator_loss(cx, real, z)?;
                cx.minimize(name, loss, &["discriminator"], "d")?;
            }
            let z = cx.random_normal(&[3])?;
            let loss = generator_loss(cx, z)?;
            cx.minimize("g_loss", loss, &["generator"], "g")
        })
        .unwrap();
    (g, d, trainer)
}

#[test]
fn accumulating_averaging_and_scaling_optimizers_resume_to_the_bit() {
    let fit = || Fit::new().epochs(4).batch_size(4).verbose(0);
    let x = samples(10);
    let (g, d, mut gan) = averaged_gan(2);
    let history = gan.fit(&x, fit()).unwrap();
    let whole = (g.get_weights().unwrap(), d.get_weights().unwrap());
    for after in [1, 4, 8] {
        let directory = tempfile::tempdir().unwrap();
        let (mut steps, interrupt) = (0, Interrupt::new());
        let requester = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |_| {
            steps += 1;
            if steps == after {
                requester.request();
            }
            Ok(Action::Continue)
        });
        let backup = || BackupAndRestore::new(directory.path());
        let (.., mut gan) = averaged_gan(2);
        let stopped = gan.fit(&x, fit().interrupt(&interrupt).callback(backup()).callback(stop));
        assert!(matches!(stopped, Err(Error::Interrupted { .. })), "{stopped:?}");
        drop(gan);
        let (g, d, mut gan) = averaged_gan(2);
        let resumed = gan.fit(&x, fit().callback(backup())).unwrap();
        assert_eq!(resumed.get("d_again"), history.get("d_again"), "{after}");
        assert_eq!((g.get_weights().unwrap(), d.get_weights().unwrap()), whole, "{after}");
    }
    // Replicas and remainders change nothing but roundings.
    let (g, _, mut gan) = averaged_gan(3);
    let three = gan.fit(&x, fit()).unwrap();
    for name in ["d_loss", "d_again", "g_loss"] {
        let (three, two) = (three.get(name).unwrap(), history.get(name).unwrap());
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5 * b.abs();
        assert!(three.iter().zip(two).all(near), "{name}: {three:?} {two:?}");
    }
    for (a, b) in g.get_weights().unwrap().iter().zip(&whole.0) {
        let apart = difference_to_scale(a.f32().unwrap(), b.f32().unwrap());
        assert!(apart < 1e-5, "{apart:.1e}");
    }
}

#[test]
fn half_precision_trains_several_optimizers() {
    let train = |policy: Policy| {
        let (.., mut gan) = small_gan(cpus(1).policy(policy));
        gan.fit(samples(12), Fit::new().epochs(3).batch_size(4).verbose(0)).unwrap()
    };
    let (whole, half) = (train(Policy::Float32), train(Policy::MixedFloat16));
    assert!(half.get("loss_scale").is_some());
    let (half, whole) = (half.last("g_loss").unwrap(), whole.last("g_loss").unwrap());
    assert!((half - whole).abs() < 1e-2 * whole, "{half} {whole}");
    train(Policy::MixedBfloat16);
}

/// Its averages start from the weights at its first update, which is not that of the second model.
#[test]
fn schedule_free_adamw_does_not_take_a_second_model_later() {
    let step = TrainStep::new("two").input("x", Input::new([5]));
    let step = step.model("a", &net()).model("b", &net());
    let error = refused(step.optimizer("free", ScheduleFreeAdamW::new(0.1)), |cx| {
        let x = cx.input("x")?;
        for model in ["a", "b"] {
            let y = cx.call(model, &[x])?;
            let squares = cx.graph().mul(y, y)?;
            let values = cx.graph().sum_axes(squares, &[0])?;
            let values = cx.graph().reshape(values, &[])?;
            cx.minimize(model, values, &[model], "free")?;
        }
        Ok(())
    });
    assert!(error.contains("optimizer 'free': models: expected the same models"), "{error}");
}
