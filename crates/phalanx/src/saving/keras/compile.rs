//! Compile arguments: `compile_config` in a file, [`Compile`] here.

use super::per_output::{Outputs, single};
use super::read::{Object, is_keras};
use crate::custom;
use crate::error::{Error, Result};
use crate::model::{Compile, LossArgument, MetricArgument, OptimizerArgument};
use crate::optimizers::Optimizer;
use crate::schedules::LearningRate;
use crate::{losses, metrics, optimizers};
use serde_json::{Map, Value};

/// Keys that Keras' configs have in addition to those of an object.
const ALWAYS: [&str; 4] = ["name", "dtype", "axis", "jit_compile"];

/// Serializes an optimizer. As in Keras, the learning rate is rounded to `f32`.
pub(crate) fn optimizer(optimizer: &dyn Optimizer, rate: Option<f64>) -> Value {
    let mut config = optimizer.config();
    if let Some((inner, _)) = optimizer.inner() {
        config.insert("inner_optimizer".into(), self::optimizer(inner, rate));
        return object("keras.optimizers", optimizer.class_name(), config);
    }
    let own = match &optimizer.common().learning_rate {
        LearningRate::Constant(rate) => Some(*rate),
        LearningRate::Schedule(_) => None,
        // The file keeps the rate, not the schedule.
        LearningRate::Custom(_) => Some(optimizer.common().learning_rate.at(0)),
    };
    // The optimizers of a `MultiOptimizer` have their own rates.
    let own = own.filter(|_| !config.contains_key("optimizer_map"));
    if let Some(rate) = own.map(|own| rate.unwrap_or(own)) {
        config.insert("learning_rate".into(), f64::from(rate as f32).into());
    }
    object("keras.optimizers", optimizer.class_name(), config)
}

/// A serialized Keras object.
pub(crate) fn object(module: &str, class: &str, config: Map<String, Value>) -> Value {
    custom::object(module, class, config)
}

/// The compile arguments of a file; `None` if there is no optimizer.
pub(in crate::saving) fn compile(
    config: &Map<String, Value>,
    outputs: &Outputs,
) -> Result<Option<Compile>> {
    let Some(given) = stored_optimizer(config) else { return Ok(None) };
    let mut compile = Compile::new(read_optimizer(given)?);
    (compile.losses, compile.loss_weights) = losses(config, outputs)?;
    for (key, lists) in
        [("metrics", &mut compile.metrics), ("weighted_metrics", &mut compile.weighted_metrics)]
    {
        *lists = metric_lists(key, config, outputs, &mut |error| Err(error))?;
    }
    let mut without_optimizer = config.clone();
    without_optimizer.remove("optimizer");
    without_optimizer.remove("optimizer_config");
    compile.described = Some(without_optimizer);
    Ok(Some(compile))
}

/// The compile arguments for evaluation: losses and supported metrics, without the optimizer. Also
/// returns a message for each metric that is left out.
pub(in crate::saving) fn compile_for_evaluation(
    config: &Map<String, Value>,
    outputs: &Outputs,
) -> Result<Option<(Compile, Vec<String>)>> {
    if ["loss", "metrics", "weighted_metrics"].iter().all(|key| !is_given(config, key)) {
        return Ok(None);
    }
    let (mut compile, mut left_out) = (Compile::new("sgd"), vec![]);
    (compile.losses, compile.loss_weights) = losses(config, outputs)?;
    for (key, lists) in
        [("metrics", &mut compile.metrics), ("weighted_metrics", &mut compile.weighted_metrics)]
    {
        *lists = metric_lists(key, config, outputs, &mut |error| {
            left_out.push(error.to_string());
            Ok(())
        })?;
    }
    Ok(Some((compile, left_out)))
}

/// Whether a `compile_config` has an argument.
fn is_given(config: &Map<String, Value>, key: &str) -> bool {
    config.get(key).is_some_and(|value| !value.is_null())
}

/// The optimizer in a `compile_config`, if any.
fn stored_optimizer(config: &Map<String, Value>) -> Option<&Value> {
    config.get("optimizer").or(config.get("optimizer_config")).filter(|o| !o.is_null())
}

/// The loss of every output, if it has one, and the loss weights. Without a loss, Keras ignores the weights.
fn losses(
    config: &Map<String, Value>,
    outputs: &Outputs,
) -> Result<(Vec<Option<LossArgument>>, Vec<f64>)> {
    if !is_given(config, "loss") {
        return Ok(((0..outputs.len()).map(|_| None).collect(), vec![]));
    }
    let get = |key: &str| config.get(key).unwrap_or(&Value::Null);
    let losses = outputs.losses(get("loss"))?.into_iter();
    let losses = losses.map(|value| value.map(loss).transpose()).collect::<Result<Vec<_>>>()?;
    let weights = outputs.loss_weights(get("loss"), get("loss_weights"))?;
    let weight = |w: Option<Value>| match w {
        None => Ok(1.0),
        Some(w) => w
            .as_f64()
            .ok_or_else(|| Error::argument("compile_config", "loss_weights", "numbers", w)),
    };
    let weights = match weights.iter().any(Option::is_some) {
        true => weights.into_iter().map(weight).collect::<Result<_>>()?,
        false => vec![],
    };
    Ok((losses, weights))
}

/// Keras averages the weights after every batch, also of those that are accumulated; Phalanx does so after every update.
fn check_averages(optimizer: &dyn Optimizer) -> Result<()> {
    let (inner, joined) = (optimizer.inner().map(|(inner, _)| inner), optimizer.optimizers());
    for optimizer in [optimizer].into_iter().chain(inner).chain(joined) {
        let common = optimizer.common();
        if common.use_ema && common.gradient_accumulation_steps.is_some_and(|steps| steps > 1) {
            let owner = format!("optimizer '{}'", optimizer.class_name());
            let expected = "1 or none beside use_ema, which Keras applies after every batch";
            let received = common.gradient_accumulation_steps.unwrap_or(1);
            return Err(Error::argument(owner, "gradient_accumulation_steps", expected, received));
        }
    }
    Ok(())
}

pub(super) fn read_optimizer(value: &Value) -> Result<OptimizerArgument> {
    if let Some(name) = value.as_str() {
        return Ok(name.into());
    }
    let object = Object::parse("optimizer", value)?;
    let optimizer = optimizers::from_config(object.class, object.config)?;
    known_keys(object.class, object.config, &optimizer.config())?;
    check_averages(&*optimizer)?;
    Ok(optimizer.into())
}

/// An object given by name: a string, or a Keras function, whose module Keras calls `builtins`.
fn by_name(value: &Value) -> Option<&str> {
    let function = || match (value.get("class_name")?.as_str()?, value.get("module")) {
        ("function", None | Some(Value::Null)) => value.get("config")?.as_str(),
        ("function", Some(Value::String(module))) if module == "builtins" || is_keras(module) => {
            value.get("config")?.as_str()
        }
        _ => None,
    };
    value.as_str().or_else(function)
}

pub(super) fn loss(value: &Value) -> Result<LossArgument> {
    if let Some(name) = by_name(value) {
        return Ok(name.into());
    }
    let object = Object::parse("loss", value)?;
    let loss = losses::from_config(object.class, object.config)?;
    known_keys(object.class, object.config, &loss.config())?;
    Ok(loss.into())
}

pub(super) fn metric(value: &Value) -> Result<MetricArgument> {
    if let Some(name) = by_name(value) {
        metrics::check_name(name)?;
        return Ok(name.into());
    }
    let object = Object::parse("metric", value)?;
    check_is_no_loss(&object)?;
    let metric = metrics::from_config(object.class, object.config)?;
    known_keys(object.class, object.config, &metric.config())?;
    Ok(metric.into())
}

/// Fails for a loss in the place of a metric. Keras reports the mean of what it gives for each batch.
fn check_is_no_loss(object: &Object<'_>) -> Result<()> {
    if !is_keras(object.module) || !object.module.contains("losses") {
        return Ok(());
    }
    let class = object.class;
    let instead = match metrics::class_names().contains(&class) {
        true => format!("keras.metrics.{class}"),
        false => "a MeanMetricWrapper of its function".into(),
    };
    let expected = format!("a metric, such as {instead}");
    Err(Error::argument("compile_config", "metrics", expected, format!("the loss {class}")))
}

/// Fails if an option is set that the object does not support.
fn known_keys(class: &str, given: &Map<String, Value>, known: &Map<String, Value>) -> Result<()> {
    let has_no_effect = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(0.0),
        _ => false,
    };
    let unknown = given.iter().find(|(key, value)| {
        !known.contains_key(*key) && !ALWAYS.contains(&key.as_str()) && !has_no_effect(value)
    });
    match unknown {
        None => Ok(()),
        Some((key, value)) => {
            Err(Error::config(class, format!("unknown option `{key}` with the value {value}")))
        }
    }
}

/// The metrics of each output. `unknown` handles those that are not supported.
fn metric_lists(
    what: &str,
    config: &Map<String, Value>,
    outputs: &Outputs,
    unknown: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Vec<Vec<MetricArgument>>> {
    let value = config.get(what).unwrap_or(&Value::Null);
    let mut list = |values: &[Value]| {
        let mut known = vec![];
        for value in values {
            match metric(value) {
                Ok(metric) => known.push(metric),
                Err(error) => unknown(error)?,
            }
        }
        Ok(known)
    };
    // For one output the list holds its metrics, unless it holds lists.
    if let Value::Array(values) = value
        && outputs.len() == 1
        && values.iter().all(single)
    {
        return Ok(vec![list(values)?]);
    }
    let lists = outputs.metrics(what, value)?;
    let read = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::Array(values)) => list(values),
        Some(one) => list(std::slice::from_ref(one)),
    };
    lists.into_iter().map(read).collect()
}
