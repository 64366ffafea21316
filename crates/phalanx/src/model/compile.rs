//! `compile` and its arguments.

use super::Model;
use super::definition::Definition;
use super::session::Session;
use crate::custom::{self, function_object};
use crate::error::{Error, Result};
use crate::losses::{self, Loss};
use crate::metrics::Metric;
use crate::optimizers::{self, LossScaleOptimizer, Optimizer};
use crate::saving::{in_structure, object};
use crate::strategy::{MirroredStrategy, Policy, Shard};
use crate::workers::MultiWorkerMirroredStrategy;
use serde_json::{Map, Value};

/// An argument of `compile`: an instance, or a name to look up.
pub enum Argument<T: ?Sized> {
    /// An instance.
    Value(Box<T>),
    /// A name to look up.
    Name(String),
}

/// An optimizer by value or by name.
pub type OptimizerArgument = Argument<dyn Optimizer>;
/// A loss by value or by name.
pub type LossArgument = Argument<dyn Loss>;
/// A metric by value or by name. A name such as `accuracy` is resolved by the shapes of output and target.
pub type MetricArgument = Argument<dyn Metric>;

impl<T: ?Sized> From<&str> for Argument<T> {
    fn from(name: &str) -> Argument<T> {
        Argument::Name(name.into())
    }
}

impl<T: ?Sized> From<Box<T>> for Argument<T> {
    fn from(value: Box<T>) -> Argument<T> {
        Argument::Value(value)
    }
}

impl<O: Optimizer + 'static> From<O> for OptimizerArgument {
    fn from(optimizer: O) -> OptimizerArgument {
        Argument::Value(Box::new(optimizer))
    }
}

impl<L: Loss + 'static> From<L> for LossArgument {
    fn from(loss: L) -> LossArgument {
        Argument::Value(Box::new(loss))
    }
}

impl<M: Metric + 'static> From<M> for MetricArgument {
    fn from(metric: M) -> MetricArgument {
        Argument::Value(Box::new(metric))
    }
}

/// The arguments of `compile`.
///
/// Without a loss, a model trains on the penalties of its layers alone, as in Keras: regularizers, activity regularizers
/// and what layers add to the loss. Its data then have targets for its metrics only. Without penalties too, `evaluate`
/// reports the metrics and a loss of 0, and `fit` changes nothing.
///
/// ```
/// use phalanx::prelude::*;
///
/// let mut model = Sequential::new()
///     .add(Input::new([4]))
///     .add(Dense::new(3).activation("softmax"))
///     .build()?;
/// model.compile(
///     Compile::new(Adam::default())
///         .loss("sparse_categorical_crossentropy")
///         .metrics(["accuracy"])
///         .strategy(MirroredStrategy::with_devices(["cpu:0", "cpu:1"])?),
/// )?;
/// # Ok::<(), phalanx::Error>(())
/// ```
pub struct Compile {
    pub(crate) optimizer: OptimizerArgument,
    /// Of each output.
    pub(crate) losses: Vec<Option<LossArgument>>,
    pub(crate) loss_weights: Vec<f64>,
    pub(crate) metrics: Vec<Vec<MetricArgument>>,
    pub(crate) weighted_metrics: Vec<Vec<MetricArgument>>,
    pub(crate) strategy: MultiWorkerMirroredStrategy,
    pub(crate) seed: u64,
    /// Losses and metrics as stored in the file this was loaded from, if any.
    pub(crate) described: Option<Map<String, Value>>,
}

impl Compile {
    /// Creates the arguments with an optimizer, by value or name.
    pub fn new(optimizer: impl Into<OptimizerArgument>) -> Compile {
        Compile {
            optimizer: optimizer.into(),
            losses: vec![],
            loss_weights: vec![],
            metrics: vec![],
            weighted_metrics: vec![],
            strategy: MirroredStrategy::new().into(),
            seed: 0,
            described: None,
        }
    }

    /// Replaces the optimizer, by value or name.
    pub fn optimizer(mut self, optimizer: impl Into<OptimizerArgument>) -> Compile {
        self.optimizer = optimizer.into();
        self
    }

    /// Returns only the optimizer.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn into_optimizer(self) -> Result<Box<dyn Optimizer>> {
        match self.optimizer {
            OptimizerArgument::Value(optimizer) => Ok(optimizer),
            OptimizerArgument::Name(name) => optimizers::get(&name),
        }
    }

    /// Returns the class name of the loss of each output, such as `MeanSquaredError`; `None` if it has none.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn loss_classes(&self) -> Result<Vec<Option<&'static str>>> {
        let class = |loss: &Option<LossArgument>| match loss {
            None => Ok(None),
            Some(LossArgument::Value(loss)) => Ok(Some(loss.class_name())),
            Some(LossArgument::Name(name)) => Ok(Some(losses::get(name)?.class_name())),
        };
        self.losses.iter().map(class).collect()
    }

    /// Returns whether each output has a loss or metrics, so that data need targets for it.
    pub fn compared_outputs(&self) -> Vec<bool> {
        let has_metrics = |output: usize, lists: &[Vec<MetricArgument>]| {
            lists.get(output).is_some_and(|list| !list.is_empty())
        };
        let compared = |output: usize| {
            let lists = [&self.metrics, &self.weighted_metrics];
            let has_loss = self.losses.get(output).is_some_and(Option::is_some);
            has_loss || lists.iter().any(|lists| has_metrics(output, lists))
        };
        let outputs = self.losses.len().max(self.metrics.len()).max(self.weighted_metrics.len());
        (0..outputs).map(compared).collect()
    }

    /// Returns `from_logits` of each loss, if it has that option.
    pub fn losses_from_logits(&self) -> Vec<Option<bool>> {
        let from_logits = |loss: &Option<LossArgument>| {
            let config = match loss.as_ref()? {
                LossArgument::Value(loss) => loss.config(),
                LossArgument::Name(name) => losses::get(name).ok()?.config(),
            };
            config.get("from_logits")?.as_bool()
        };
        self.losses.iter().map(from_logits).collect()
    }

    /// Adds the loss of the next output.
    pub fn loss(mut self, loss: impl Into<LossArgument>) -> Compile {
        self.losses.push(Some(loss.into()));
        self
    }

    /// Gives the next output no loss. It is computed and predicted, and its metrics are reported, but nothing is trained
    /// for it, as with Keras' `loss=[.., None]`. Data need targets only for outputs with a loss or metrics:
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let x = Input::new([2]).symbol();
    /// let h = Dense::new(3).activation("relu").apply(&x);
    /// let mut model = Model::new(&x, [Dense::new(1).apply(&h), h])?;
    /// model.compile(Compile::new("sgd").loss("mse").no_loss())?;
    /// let (x, y) = (Tensor::new([2, 2], vec![1.0; 4])?, Tensor::new([2, 1], vec![0.0; 2])?);
    /// model.fit((x, y), Fit::new().verbose(0))?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn no_loss(mut self) -> Compile {
        self.losses.push(None);
        self
    }

    /// Replaces all losses by the loss `name` for each of `outputs` outputs.
    pub fn replace_losses(mut self, name: &str, outputs: usize) -> Compile {
        self.losses = (0..outputs).map(|_| Some(name.into())).collect();
        self.described = None;
        self
    }

    /// Sets the weight of each output's loss in the total. That of an output without a loss has no effect.
    pub fn loss_weights(mut self, weights: impl Into<Vec<f64>>) -> Compile {
        self.loss_weights = weights.into();
        self
    }

    /// Adds the metrics of the next output. As in Keras, they ignore sample weights, and a second metric of the same name
    /// is reported as `NAME_1`.
    pub fn metrics<M: Into<MetricArgument>>(
        mut self,
        list: impl IntoIterator<Item = M>,
    ) -> Compile {
        self.metrics.push(list.into_iter().map(Into::into).collect());
        self
    }

    /// Adds the metrics of the next output that apply sample weights. As in Keras, one whose name a metric has is reported
    /// as `weighted_NAME`:
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let mut model = Sequential::new().add(Input::new([1])).add(Activation::new("linear")).build()?;
    /// model.compile(Compile::new("sgd").loss("mse").metrics(["mae"]).weighted_metrics(["mae"]))?;
    /// let (x, y) = (Tensor::new([2, 1], vec![1.0, 3.0])?, Tensor::new([2, 1], vec![0.0, 0.0])?);
    /// let data = phalanx::data::Arrays::new(x, y)?.sample_weight(&[3.0, 1.0])?;
    /// let logs = model.evaluate_with(data, Inference::new())?;
    /// assert_eq!((logs.get("mae"), logs.get("weighted_mae")), (Some(2.0), Some(1.5)));
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn weighted_metrics<M: Into<MetricArgument>>(
        mut self,
        list: impl IntoIterator<Item = M>,
    ) -> Compile {
        self.weighted_metrics.push(list.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the devices that train: a [`MirroredStrategy`], or a [`MultiWorkerMirroredStrategy`].
    pub fn strategy(mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Compile {
        self.strategy = strategy.into();
        self
    }

    /// Sets the seed of initial weights, shuffling and dropout. The default is 0, so runs are repeatable.
    pub fn seed(mut self, seed: u64) -> Compile {
        self.seed = seed;
        self
    }
}

/// The arguments of `compile` with all names resolved.
pub(crate) struct ResolvedCompile {
    pub optimizer: Box<dyn Optimizer>,
    /// Of each output.
    pub losses: Vec<Option<Box<dyn Loss>>>,
    pub loss_weights: Vec<f64>,
    /// Metrics of each output, and whether they apply sample weights.
    pub metrics: Vec<Vec<(MetricArgument, bool)>>,
    /// Losses and metrics with Keras' keys.
    pub described: Map<String, Value>,
    pub strategy: MultiWorkerMirroredStrategy,
    pub seed: u64,
    /// Whether the model can train and evaluate. Otherwise it only predicts.
    pub compiled: bool,
}

impl Compile {
    /// Returns losses and metrics with the keys of Keras' `compile_config`; names stay names.
    fn describe(&self, def: &Definition) -> Map<String, Value> {
        let outputs = def.outputs.len();
        let per_output = |values| in_structure(&def.output_structure, values);
        let lists = |lists: &[Vec<MetricArgument>]| {
            let list =
                |list: &Vec<MetricArgument>| list.iter().map(metric_value).collect::<Value>();
            match lists {
                [] => Value::Null,
                [one] if outputs == 1 => list(one),
                lists => {
                    let rest = outputs.saturating_sub(lists.len());
                    let rest = std::iter::repeat_n(Value::Array(vec![]), rest);
                    per_output(lists.iter().map(list).chain(rest).collect())
                }
            }
        };
        let loss = |loss: &Option<LossArgument>| loss.as_ref().map_or(Value::Null, loss_value);
        let losses: Vec<Value> = self.losses.iter().map(loss).collect();
        let loss = match &losses[..] {
            [] => Value::Null,
            [one] => one.clone(),
            _ => per_output(losses),
        };
        let weights = match &self.loss_weights[..] {
            [] => Value::Null,
            weights => per_output(weights.iter().map(|weight| Value::from(*weight)).collect()),
        };
        let entries = [
            ("loss", loss),
            ("loss_weights", weights),
            ("metrics", lists(&self.metrics)),
            ("weighted_metrics", lists(&self.weighted_metrics)),
            ("run_eagerly", false.into()),
            ("steps_per_execution", 1.into()),
            ("jit_compile", "auto".into()),
        ];
        entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
    }

    /// Looks up names and checks all arguments for a model.
    fn resolve(self, def: &Definition) -> Result<ResolvedCompile> {
        let (outputs, policy) = (def.outputs.len(), def.dtype_policy());
        let described = match &self.described {
            Some(described) => described.clone(),
            None => self.describe(def),
        };
        let optimizer = match self.optimizer {
            OptimizerArgument::Value(o) => o,
            OptimizerArgument::Name(name) => optimizers::get(&name)?,
        };
        let policy = self.strategy.local().requested_policy().unwrap_or(policy);
        let needs_loss_scale = policy == Policy::MixedFloat16;
        let optimizer = match optimizer.inner() {
            None if needs_loss_scale => Box::new(LossScaleOptimizer::wrap(optimizer)),
            _ => optimizer,
        };
        optimizer.validate()?;
        let losses = resolve_losses(self.losses)?;
        let check_count = |argument: &str, n: usize| {
            if n == outputs {
                return Ok(());
            }
            Err(Error::argument("compile", argument, format!("one per output, {outputs}"), n))
        };
        // Without losses, a model trains on the penalties of its layers.
        if !losses.is_empty() {
            check_count("loss", losses.len())?;
        }
        let loss_weights =
            if self.loss_weights.is_empty() { vec![1.0; losses.len()] } else { self.loss_weights };
        match losses.len() {
            0 if !loss_weights.is_empty() => {
                let (expected, received) = ("none without a loss", loss_weights.len());
                return Err(Error::argument("compile", "loss_weights", expected, received));
            }
            0 => {}
            _ => check_count("loss_weights", loss_weights.len())?,
        }
        if let Some(bad) = loss_weights.iter().find(|w| !w.is_finite()) {
            return Err(Error::argument("compile", "loss_weights", "finite numbers", bad));
        }
        let mut metrics: Vec<Vec<(MetricArgument, bool)>> = vec![];
        metrics.resize_with(outputs, Vec::new);
        for (argument, lists, weighted) in
            [("metrics", self.metrics, false), ("weighted_metrics", self.weighted_metrics, true)]
        {
            if lists.len() > outputs {
                check_count(argument, lists.len())?;
            }
            for (of_output, list) in metrics.iter_mut().zip(lists) {
                of_output.extend(list.into_iter().map(|m| (m, weighted)));
            }
        }
        let (strategy, seed) = (self.strategy, self.seed);
        Ok(ResolvedCompile {
            optimizer,
            losses,
            loss_weights,
            metrics,
            described,
            strategy,
            seed,
            compiled: true,
        })
    }
}

/// Looks up and checks the loss of each output.
fn resolve_losses(losses: Vec<Option<LossArgument>>) -> Result<Vec<Option<Box<dyn Loss>>>> {
    let resolve = |loss| {
        let loss = match loss {
            None => return Ok(None),
            Some(LossArgument::Value(loss)) => loss,
            Some(LossArgument::Name(name)) => losses::get(&name)?,
        };
        loss.validate()?;
        Ok(Some(loss))
    };
    losses.into_iter().map(resolve).collect()
}

/// A name, or the registered function or class that it stands for.
fn name_value(name: &str) -> Value {
    let class = |object: Result<Value>| object.unwrap_or_else(|_| name.into());
    if let Some(function) = function_object(name) {
        return function;
    }
    let empty = Map::new();
    let loss =
        || custom::loss(name, &empty).map(|l| l.map(|l| object("keras.losses", name, l.config())));
    let metric = || {
        custom::metric(name, &empty).map(|m| m.map(|m| object("keras.metrics", name, m.config())))
    };
    loss().or_else(metric).map_or_else(|| name.into(), class)
}

fn loss_value(loss: &LossArgument) -> Value {
    match loss {
        LossArgument::Name(name) => name_value(name),
        LossArgument::Value(loss) if function_object(loss.class_name()).is_some() => {
            name_value(loss.class_name())
        }
        LossArgument::Value(loss) => object("keras.losses", loss.class_name(), loss.config()),
    }
}

fn metric_value(metric: &MetricArgument) -> Value {
    match metric {
        MetricArgument::Name(name) => name_value(name),
        MetricArgument::Value(m) if function_object(m.class_name()).is_some() => {
            name_value(m.class_name())
        }
        MetricArgument::Value(m) => object("keras.metrics", m.class_name(), m.config()),
    }
}

impl Model {
    /// Whether the layers have penalties, on which the model can train without losses.
    pub(crate) fn has_penalties(&self) -> Result<bool> {
        Session::has_penalties(&self.def)
    }

    /// Compiles model, loss, metrics, optimizer and strategy into step programs.
    ///
    /// # Errors
    /// If a name is unknown, an option is out of range, or a loss or metric does not match its output.
    pub fn compile(&mut self, compile: Compile) -> Result<()> {
        self.def.check_policies()?;
        let resolved = compile.resolve(&self.def)?;
        // Copies of the weights in the machine's memory: the model's own, and those of the devices.
        let local = resolved.strategy.local();
        let copies = match (local.backend().traits().on_host, local.requested_shard()) {
            (false, _) => 0,
            (true, Shard::None) => local.num_replicas_in_sync(),
            (true, _) => 1,
        };
        self.check_weights(1 + copies)?;
        self.initialize(resolved.seed)?;
        // Frees the devices' memory before the new session allocates. What it has trained must not be lost.
        if let Some(session) = self.session_slot() {
            session.weights.release()?;
        }
        *self.session_slot() = None;
        let session = Session::new(self, resolved)?;
        *self.session_slot() = Some(session);
        Ok(())
    }
}
