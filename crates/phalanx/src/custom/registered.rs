//! The classes and functions that a program has registered, by the names that files have.

use super::weights::{CustomConstraint, CustomInitializer, CustomRegularizer};
use super::{Config, Graph, Layer, Loss, LossOptions, Metric, NodeId};
use crate::error::{Error, Result};
use crate::metrics::LossMetric;
use crate::{config, layers, losses, metrics};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Reads a value of a registered class from its config.
pub(super) type Read<T> = fn(&str, &Config) -> Result<Box<T>>;

/// Everything that is registered, by name.
#[derive(Default)]
pub(super) struct Registered {
    layers: BTreeMap<&'static str, Read<dyn Layer>>,
    losses: BTreeMap<&'static str, Read<dyn Loss>>,
    metrics: BTreeMap<&'static str, Read<dyn Metric>>,
    activations: BTreeMap<&'static str, CustomActivation>,
    functions: BTreeMap<&'static str, LossFunction>,
    pub(super) initializers: BTreeMap<&'static str, Read<dyn CustomInitializer>>,
    pub(super) regularizers: BTreeMap<&'static str, Read<dyn CustomRegularizer>>,
    pub(super) constraints: BTreeMap<&'static str, Read<dyn CustomConstraint>>,
}

static REGISTERED: RwLock<Registered> = RwLock::new(Registered {
    layers: BTreeMap::new(),
    losses: BTreeMap::new(),
    metrics: BTreeMap::new(),
    activations: BTreeMap::new(),
    functions: BTreeMap::new(),
    initializers: BTreeMap::new(),
    regularizers: BTreeMap::new(),
    constraints: BTreeMap::new(),
});

pub(super) fn registered() -> RwLockReadGuard<'static, Registered> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn registered_mut() -> RwLockWriteGuard<'static, Registered> {
    REGISTERED.write().unwrap_or_else(PoisonError::into_inner)
}

/// Fails unless a class may have this name.
pub(super) fn check_name(
    kind: &str,
    name: &str,
    known: impl FnOnce() -> Vec<&'static str>,
) -> Result<()> {
    let parts: Vec<&str> = name.split('>').collect();
    let word = |part: &&str| {
        !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "_.-".contains(c))
    };
    if !(1..=2).contains(&parts.len()) || !parts.iter().all(word) {
        let expected = "the name under which Python registers it: package>Name";
        return Err(Error::argument(format!("register {kind}"), "name", expected, name));
    }
    if parts.len() == 1 && known().contains(&name) {
        let expected = "a name that Keras does not have, such as package>Name";
        return Err(Error::argument(format!("register {kind}"), "name", expected, name));
    }
    Ok(())
}

/// Registers a custom layer, so that files that contain it can be loaded. `name` is what [`Layer::class_name`] returns: the
/// name under which Python registers the class, `package>Name`, or its plain name if Python does not register it. A later
/// registration of a name replaces an earlier one. See [`custom`](crate::custom).
///
/// # Errors
/// If the name is one of Keras' layers or not of this form.
pub fn register_layer<L: Layer + DeserializeOwned>(name: &'static str) -> Result<()> {
    check_name("layer", name, layers::class_names)?;
    let read: Read<dyn Layer> = |class, config| {
        let mut config = config.clone();
        layers::drop_no_op_keys(&mut config);
        // What the base class of a Python layer without a `get_config` of its own writes.
        if config.get("autocast") == Some(&Value::Bool(true)) {
            config.remove("autocast");
        }
        Ok(Box::new(layers::read_config::<L>(class, &config)?))
    };
    registered_mut().layers.insert(name, read);
    Ok(())
}

/// Registers a custom loss for files and for [`losses::get`](crate::losses::get). Keys that a config lacks have the values
/// of `Default`. See [`register_layer`] for `name`.
///
/// # Errors
/// If the name is one of Keras' losses or not of the form `package>Name`.
pub fn register_loss<L>(name: &'static str) -> Result<()>
where
    L: Loss + Default + Serialize + DeserializeOwned + 'static,
{
    check_name("loss", name, losses::class_names)?;
    let read: Read<dyn Loss> = |class, config| {
        let loss: L = config::read(class, config)?;
        loss.validate()?;
        Ok(Box::new(loss))
    };
    registered_mut().losses.insert(name, read);
    Ok(())
}

/// Registers a custom metric for files and for names in `compile`. Keys that a config lacks have the values of `Default`.
/// See [`register_layer`] for `name`.
///
/// # Errors
/// If the name is one of Keras' metrics or not of the form `package>Name`.
pub fn register_metric<M>(name: &'static str) -> Result<()>
where
    M: Metric + Default + Serialize + DeserializeOwned + 'static,
{
    check_name("metric", name, metrics::class_names)?;
    let read: Read<dyn Metric> = |class, config| {
        let metric: M = config::read(class, config)?;
        metric.validate()?;
        Ok(Box::new(metric))
    };
    registered_mut().metrics.insert(name, read);
    Ok(())
}

/// Registers an activation function: `activation("my>twice")` and files with the function `twice` that Python registers
/// in the package `my` then use it.
///
/// ```
/// use phalanx::custom::{Graph, NodeId, register_activation};
/// use phalanx::prelude::*;
///
/// fn twice(g: &mut Graph, x: NodeId) -> Result<NodeId> {
///     Ok(g.scale(x, 2.0)?)
/// }
///
/// register_activation("my>twice", twice)?;
/// let layer = Dense::new(4).activation("my>twice");
/// # Sequential::new().add(Input::new([2])).add(layer).build()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// # Errors
/// If the name is one of Keras' activations or not of the form `package>name`.
pub fn register_activation(
    name: &'static str,
    apply: fn(&mut Graph, NodeId) -> Result<NodeId>,
) -> Result<()> {
    use crate::by_name::Named;
    check_name("activation", name, || crate::activations::ActivationFn::NAMES.to_vec())?;
    registered_mut().activations.insert(name, CustomActivation { name, apply });
    Ok(())
}

/// The formula of a loss: one value per sample and position, from targets and predictions.
type LossFunction = fn(&mut Graph, NodeId, NodeId) -> Result<NodeId>;

/// Registers a function of targets and predictions that is a loss, and a metric, by its name. Both have the same type; the
/// function gives one value per sample and position.
///
/// # Errors
/// If the name is one of Keras' losses or not of the form `package>name`.
pub fn register_loss_function(name: &'static str, values: LossFunction) -> Result<()> {
    check_name("loss", name, losses::class_names)?;
    registered_mut().functions.insert(name, values);
    Ok(())
}

/// A registered activation function.
#[derive(Clone, Copy)]
pub struct CustomActivation {
    name: &'static str,
    apply: fn(&mut Graph, NodeId) -> Result<NodeId>,
}

impl CustomActivation {
    /// Returns the registered name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Appends the function to the graph.
    pub fn apply(&self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        (self.apply)(g, x)
    }
}

impl fmt::Debug for CustomActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for CustomActivation {
    fn eq(&self, other: &CustomActivation) -> bool {
        self.name == other.name
    }
}

/// A registered loss function.
#[derive(Clone, Debug)]
pub struct FunctionLoss {
    common: LossOptions,
    name: &'static str,
    values: LossFunction,
}

impl Loss for FunctionLoss {
    fn class_name(&self) -> &'static str {
        self.name
    }

    fn config(&self) -> Config {
        super::to_config(&self.common)
    }

    fn common(&self) -> &LossOptions {
        &self.common
    }

    fn common_mut(&mut self) -> &mut LossOptions {
        &mut self.common
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        (self.values)(g, y_true, y_pred)
    }
}

fn function_loss(name: &str) -> Option<FunctionLoss> {
    let (name, values) = registered().functions.get_key_value(name).map(|(n, f)| (*n, *f))?;
    let common = LossOptions::named(short_class(name));
    Some(FunctionLoss { common, name, values })
}

/// The registered layer of this name, from its config.
pub(crate) fn layer(name: &str, config: &Config) -> Option<Result<Box<dyn Layer>>> {
    let read = *registered().layers.get(name)?;
    Some(read(name, config))
}

/// The registered loss of this name, from its config.
pub(crate) fn loss(name: &str, config: &Config) -> Option<Result<Box<dyn Loss>>> {
    let read = registered().losses.get(name).copied();
    match read {
        Some(read) => Some(read(name, config)),
        None => Some(Ok(Box::new(function_loss(name)?))),
    }
}

/// The registered metric of this name, from its config.
pub(crate) fn metric(name: &str, config: &Config) -> Option<Result<Box<dyn Metric>>> {
    let read = registered().metrics.get(name).copied();
    match read {
        Some(read) => Some(read(name, config)),
        None => Some(Ok(Box::new(LossMetric::new(function_loss(name)?)))),
    }
}

/// The registered activation of this name.
pub(crate) fn activation(name: &str) -> Option<CustomActivation> {
    registered().activations.get(name).copied()
}

/// Whether a class of this kind is registered.
fn is_registered(kind: &str, name: &str) -> bool {
    let registered = registered();
    match kind {
        "layer" => registered.layers.contains_key(name),
        "loss" => registered.losses.contains_key(name),
        "metric" => registered.metrics.contains_key(name),
        "initializer" => registered.initializers.contains_key(name),
        "regularizer" => registered.regularizers.contains_key(name),
        "constraint" => registered.constraints.contains_key(name),
        _ => false,
    }
}

/// The class of an object in a file that is not Keras' own, if it is one: the name it is registered under.
///
/// # Errors
/// If it is not registered.
pub(crate) fn class_and_package<'a>(
    kind: &str,
    whole: &'a Config,
    class: &'a str,
) -> Result<Option<&'a str>> {
    let text = |key: &str| whole.get(key).and_then(Value::as_str);
    let keras = |module: &str| module == "keras" || module.starts_with("keras.");
    let registered = text("registered_name");
    if let Some(name) = registered.filter(|name| is_registered(kind, name)) {
        return Ok(Some(name));
    }
    let of_keras = match text("module") {
        Some(module) => keras(module) && registered.is_none_or(|name| name == class),
        // Files without modules have no registered names either, except in the name of the class.
        None => registered.is_none() && !class.contains('>'),
    };
    match of_keras || (registered.is_none() && is_registered(kind, class)) {
        true => Ok(None),
        false => Err(refuse(kind, registered.unwrap_or(class), text("module"))),
    }
}

/// The error of a class that is not registered; `module` is that of Python, if the file names one.
pub(crate) fn refuse(kind: &str, name: &str, module: Option<&str>) -> Error {
    let short = short_class(name);
    let expected = match kind {
        "layer" | "loss" | "metric" | "initializer" | "regularizer" | "constraint" => format!(
            "a class of Keras or a registered one: implement it in Rust as `{short}` and call \
             phalanx::custom::register_{kind}::<{short}>(\"{name}\") before loading"
        ),
        _ => "a class of Keras".into(),
    };
    let module = module.map_or(String::new(), |module| format!(" of the module '{module}'"));
    let received = format!("'{name}'{module}, which is not registered");
    Error::argument(kind, "class", expected, received)
}

/// The class name without its package.
pub(crate) fn short_class(name: &str) -> &str {
    name.rsplit('>').next().unwrap_or(name)
}

/// A serialized object of Keras' `module`, or of a custom class.
pub(crate) fn object(module: &str, class: &str, config: Config) -> Value {
    let kind = module.rsplit('.').next().unwrap_or_default().trim_end_matches('s');
    let kind = if kind == "losse" { "loss" } else { kind };
    if class.contains('>') || is_registered(kind, class) {
        return json!({ "module": null, "class_name": short_class(class), "config": config,
                       "registered_name": class });
    }
    json!({ "module": module, "class_name": class, "config": config, "registered_name": null })
}

/// A serialized function, if one of this name is registered.
pub(crate) fn function_object(name: &str) -> Option<Value> {
    let known = {
        let registered = registered();
        registered.activations.contains_key(name) || registered.functions.contains_key(name)
    };
    known.then(|| {
        json!({ "module": "builtins", "class_name": "function", "config": name,
                "registered_name": "function" })
    })
}
