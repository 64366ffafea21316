//! Terms that layers add to the loss: their scale, on several replicas and with a smaller last batch.

use phalanx::data::Arrays;
use phalanx::error::Error;
use phalanx::initializers::Initializer;
use phalanx::layer::{Layer, LayerContext, Outputs, WeightSpec};
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use phalanx::regularizers::Regularizer;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde_json::{Map, Value};

/// What a custom layer adds to the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Term {
    None,
    /// `0.3 Σ x²` per sample.
    OfSamples,
    /// `0.1 Σ w²`, once.
    OfWeights,
    /// The same as a regularizer.
    Regularizer,
    /// A vector, which is an error.
    Vector,
}

/// `y = x · w`
#[derive(Debug)]
struct Scaled(Term);

impl Layer for Scaled {
    fn class_name(&self) -> &'static str {
        "Scaled"
    }

    fn config(&self) -> Map<String, Value> {
        Map::new()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs, Error> {
        let x = inputs[0];
        let spec = WeightSpec::new("w", &cx.dims(x), Initializer::Ones {});
        let regularizer = (self.0 == Term::Regularizer).then(|| Regularizer::l2(0.1));
        let w = cx.weight(spec.regularizer(regularizer))?;
        let (from, factor) = match self.0 {
            Term::OfSamples => (x, 0.3),
            _ => (w, 0.1),
        };
        let g = cx.graph();
        let squares = g.unary(Unary::Square, from)?;
        let scaled = g.scale(squares, factor)?;
        let sum = g.sum_axes(scaled, &[0])?;
        let sum = g.reshape(sum, &[])?;
        match self.0 {
            Term::None | Term::Regularizer => {}
            Term::Vector => cx.add_loss(scaled)?,
            _ => cx.add_loss(sum)?,
        }
        Ok(cx.graph().mul(x, w)?.into())
    }
}

/// Losses of three epochs of ten samples in batches of four, the loss of an evaluation, and the outputs.
fn train(layers: Vec<LayerHandle>, replicas: usize) -> Result<Vec<f32>, Error> {
    let x = Input::new([3]).symbol();
    let y = layers.iter().fold(x.clone(), |x, layer| layer.apply(&x));
    let mut model = Model::new(&x, &y)?;
    let strategy = MirroredStrategy::cpus(replicas)?;
    model
        .compile(Compile::new(SGD::default().learning_rate(0.05)).loss("mse").strategy(strategy))?;
    let numbers: Vec<f32> = (0..30).map(|i| (i * 7 % 11) as f32 / 6.0 - 0.8).collect();
    let targets: Vec<f32> = numbers.iter().map(|v| 0.5 - v * v).collect();
    let data = Arrays::new(Tensor::new([10, 3], numbers)?, Tensor::new([10, 3], targets)?)?;
    let history = model.fit(&data, Fit::new().epochs(3).batch_size(4).shuffle(false).verbose(0))?;
    let mut out: Vec<f32> = history.get("loss").unwrap().iter().map(|l| *l as f32).collect();
    out.push(model.evaluate(&data)?.get("loss").unwrap() as f32);
    out.extend(model.predict(&data)?.f32().unwrap());
    Ok(out)
}

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{what}: {a} and {b}");
    }
}

#[test]
fn a_term_per_sample_is_averaged_over_the_batch() {
    let custom = |replicas| train(vec![Scaled(Term::OfSamples).into()], replicas).unwrap();
    let one = custom(1);
    // Keras' layer adds the same.
    let penalty = ActivityRegularization::new(0.0, 0.3).into();
    assert_close(&one, &train(vec![penalty, Scaled(Term::None).into()], 1).unwrap(), "penalty");
    let without = train(vec![Scaled(Term::None).into()], 1).unwrap();
    assert!(one[0] - without[0] > 0.1, "{} and {}", one[0], without[0]);
    let penalty = |r| Dense::new(3).kernel_initializer("ones").activity_regularizer(r);
    let dense = |replicas| train(vec![penalty("l2").into()], replicas).unwrap();
    for replicas in [2, 3] {
        assert_close(&one, &custom(replicas), "custom layer");
        assert_close(&dense(1), &dense(replicas), "activity_regularizer");
    }
}

#[test]
fn a_term_of_weights_counts_once() {
    let of = |term, replicas| train(vec![Scaled(term).into()], replicas).unwrap();
    let expected = of(Term::Regularizer, 1);
    for replicas in [1, 2, 3] {
        assert_close(&expected, &of(Term::OfWeights, replicas), "loss of weights");
    }
}

#[test]
fn a_term_must_be_a_single_number() {
    let error = train(vec![Scaled(Term::Vector).into()], 1).unwrap_err().to_string();
    assert!(error.contains("layer 'scaled': loss term"), "{error}");
    assert!(error.contains("expected one float per sample, or one for the whole batch"), "{error}");
}
