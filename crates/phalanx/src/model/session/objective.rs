//! The objective of training: optimizer, losses and metrics.

use super::targets::{check_name_is_exact, depends_on_targets};
use super::{StepKind, Tally, TrainState};
use crate::error::{Error, Result};
use crate::losses::{Loss, Reduction};
use crate::metrics::{self, Metric};
use crate::model::Logs;
use crate::model::compile::MetricArgument;
use crate::optimizers::Optimizer;
use crate::saving::optimizer_object;
use crate::schedules::LearningRate;
use crate::train_step::{CustomStep, Update};
use phalanx_graph::Type;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// A metric as the programs of a session compute it.
pub(crate) struct Tracked {
    pub metric: Box<dyn Metric>,
    pub weighted: bool,
    pub state_len: usize,
    /// Whether the first targets decide which accuracy it is. Until then it is the one of one-hot targets.
    pub undecided: bool,
}

/// The metrics of an output as the user gave them, each with whether the sample weights count in it.
pub(crate) type RequestedMetrics = Vec<(MetricArgument, bool)>;

/// What a model is trained for. A model that only predicts, or trains on penalties alone, has no losses.
pub(crate) struct Objective {
    pub optimizer: Box<dyn Optimizer>,
    /// Of the outputs that have one.
    pub losses: Vec<Box<dyn Loss>>,
    /// The output of each loss.
    pub trained: Vec<usize>,
    /// By loss.
    pub loss_weights: Vec<f64>,
    /// The losses that are one number for the whole batch.
    pub of_batch: Vec<bool>,
    /// By output.
    pub metrics: Vec<Vec<Tracked>>,
    /// Losses and metrics as the user gave them, under Keras' keys.
    pub described: Map<String, Value>,
    /// The names in logs, which outputs of a layer share.
    pub output_names: Vec<String>,
    /// The names of the outputs' losses in logs.
    pub loss_names: Vec<String>,
    /// The step that a program describes itself, in place of losses.
    pub custom: Option<CustomStep>,
    /// Whether there is anything to train for.
    pub compiled: bool,
    pub test: Option<TestReport>,
}

/// What the evaluation of a custom step reports, if it runs another function than the training step.
pub(crate) struct TestReport {
    pub loss_weights: Vec<f64>,
    pub metrics: Vec<Tracked>,
}

/// Finds metrics by name and checks all of them. `losses` and `outputs` are those of each output, and decide what the
/// metrics compare; there are no losses if a model trains on its penalties alone.
pub(crate) fn resolve_metrics(
    requested: Vec<RequestedMetrics>,
    losses: &[Option<Box<dyn Loss>>],
    outputs: &[(String, Type)],
) -> Result<Vec<Vec<Tracked>>> {
    let resolve = |(i, list): (usize, RequestedMetrics)| {
        let (output, prediction) = &outputs[i];
        let loss = losses.get(i).and_then(Option::as_deref);
        let target = loss.map(|loss| loss.target(prediction)).transpose()?;
        list.into_iter()
            .map(|(metric, weighted)| {
                let undecided = target.is_none() && depends_on_targets(&metric, prediction);
                let metric = match (metric, &target) {
                    (MetricArgument::Value(metric), _) => metric.validate().map(|()| metric),
                    (MetricArgument::Name(name), Some(target)) => {
                        metrics::get(&name, target, prediction)
                    }
                    (MetricArgument::Name(name), None) => {
                        check_name_is_exact(&name, output, prediction)?;
                        metrics::get(&name, prediction, prediction)
                    }
                }?;
                let state_len = metric.state_len(prediction);
                Ok(Tracked { metric, weighted, state_len, undecided })
            })
            .collect()
    };
    requested.into_iter().enumerate().map(resolve).collect()
}

impl Objective {
    /// The optimizers of a custom step by their index. The session holds one of them.
    pub fn step_optimizer<'a>(&'a self, custom: &'a CustomStep, index: usize) -> &'a dyn Optimizer {
        custom.optimizer(index, Some(&*self.optimizer))
    }

    /// The numbers of the updates inside the graph of a custom step, for each of them.
    pub fn update_numbers(&self, state: &TrainState) -> Vec<Vec<f32>> {
        let Some(custom) = &self.custom else { return vec![] };
        let numbers = |update: &Update| {
            let optimizer = self.step_optimizer(custom, update.optimizer);
            let mut counters = state.optimizers[update.optimizer].clone();
            let set = match custom.optimizers[update.optimizer].optimizer {
                None => state.set_rate(),
                Some(_) => counters.learning_rate.map(|rate| rate.0),
            };
            let mut out = vec![];
            let first = update.turn + 1 - update.candidates() as u64;
            for turn in 0..=update.turn {
                if turn >= first {
                    out.extend(counters.numbers(optimizer, set));
                }
                counters = counters.next(optimizer);
            }
            out
        };
        custom.updates.iter().map(numbers).collect()
    }

    /// Whether the executor's own update keeps an average of the weights.
    pub fn executor_averages(&self) -> bool {
        let inside = self.custom.as_ref().is_some_and(|custom| !custom.fused);
        self.optimizer.common().use_ema && !inside
    }

    /// Batches of an update, if the optimizer accumulates gradients.
    pub fn accumulation_steps(&self) -> Option<u64> {
        let inside = self.custom.as_ref().is_some_and(|custom| !custom.fused);
        self.optimizer.common().gradient_accumulation_steps.filter(|_| !inside)
    }

    /// Whether the optimizer accumulates gradients over several batches.
    pub fn accumulates(&self) -> bool {
        self.accumulation_steps().is_some()
    }

    /// Fails if a metric keeps another number of sums for outputs of these types than for earlier ones.
    pub fn check_state_sizes(&self, outputs: &[Type]) -> Result<()> {
        for (metrics, output) in self.metrics.iter().zip(outputs) {
            for Tracked { metric, state_len, .. } in metrics {
                let received = metric.state_len(output);
                if received != *state_len {
                    let owner = format!("metric '{}'", metric.name());
                    let expected = format!("outputs with known sizes ({state_len} sums)");
                    let received = format!("{received} sums for {}", output.shape_text());
                    return Err(Error::argument(owner, "open sizes", expected, received));
                }
            }
        }
        Ok(())
    }

    /// What evaluation reports, if a step of this kind reports something else than training.
    fn own_test(&self, kind: StepKind) -> Option<&TestReport> {
        self.test.as_ref().filter(|_| kind == StepKind::Test)
    }

    /// The metrics that a step of a kind reports.
    fn metrics(&self, kind: StepKind) -> impl Iterator<Item = &Tracked> {
        let own = self.own_test(kind);
        let others = self.metrics.iter().filter(move |_| own.is_none()).flatten();
        own.into_iter().flat_map(|test| &test.metrics).chain(others)
    }

    /// The weights of the losses that a step of a kind reports.
    pub fn loss_weights(&self, kind: StepKind) -> &[f64] {
        self.own_test(kind).map_or(&self.loss_weights, |test| &test.loss_weights)
    }

    /// A tally of no steps of a kind.
    pub fn tally(&self, kind: StepKind) -> Tally {
        let states = self.metrics(kind).map(|m| m.state_len);
        Tally::new(self.loss_weights(kind).len(), states)
    }

    /// Loss and metrics of steps of a kind under the names that Keras reports.
    pub fn logs(&self, kind: StepKind, tally: &Tally) -> Logs {
        let mut logs = Logs::default();
        if let Some(custom) = &self.custom {
            let losses = custom.losses(kind);
            let several = losses.len() > 1;
            for (i, name) in losses.iter().enumerate() {
                let loss = if several { tally.output_loss(i) } else { tally.loss() };
                logs.push(name.clone(), loss);
            }
            let metrics = self.metrics(kind).zip(tally.metric_states());
            for (tracked, state) in metrics {
                push_result(&mut logs, tracked.metric.name(), &*tracked.metric, state);
            }
            return logs;
        }
        logs.push("loss", tally.loss());
        if self.losses.len() > 1 {
            for (i, output) in self.trained.iter().enumerate() {
                // As in Keras, the last of the outputs of a layer has its name.
                logs.set(format!("{}_loss", self.loss_names[*output]), tally.output_loss(i));
            }
        }
        let metrics = self.metrics.iter().flatten().zip(self.metric_names());
        for ((tracked, name), state) in metrics.zip(tally.metric_states()) {
            push_result(&mut logs, &name, &*tracked.metric, state);
        }
        logs
    }

    /// The names under which Keras reports the metrics, in their order here. Keras names all metrics before all weighted
    /// ones. A weighted metric of a taken name is `weighted_NAME`; any other taken name gets a number.
    fn metric_names(&self) -> Vec<String> {
        let several = self.output_names.len() > 1;
        let of_output = |output: usize, name: &str| match self.output_names.get(output) {
            Some(prefix) if several => format!("{prefix}_{name}"),
            _ => name.to_string(),
        };
        let outputs = self.metrics.iter().enumerate();
        let all: Vec<(usize, &Tracked)> =
            outputs.flat_map(|(i, list)| list.iter().map(move |metric| (i, metric))).collect();
        let mut names = vec![String::new(); all.len()];
        let mut taken: HashMap<String, usize> = HashMap::new();
        for weighted in [false, true] {
            for (at, (output, tracked)) in all.iter().enumerate() {
                if tracked.weighted != weighted {
                    continue;
                }
                let mut name = of_output(*output, tracked.metric.name());
                if weighted && taken.contains_key(&name) {
                    name = of_output(*output, &format!("weighted_{}", tracked.metric.name()));
                }
                let count = taken.entry(name.clone()).or_default();
                names[at] = if *count == 0 { name } else { format!("{name}_{count}") };
                *count += 1;
            }
        }
        names
    }

    /// Fails if losses and metrics have the same name: they would be one series of the history.
    pub fn check_names(&self) -> Result<()> {
        for kind in [StepKind::Train, StepKind::Test] {
            let mut seen = HashSet::new();
            for (name, _) in self.logs(kind, &self.tally(kind)) {
                if !seen.insert(name.clone()) {
                    let expected = "each name once (rename one with named(...))";
                    return Err(Error::argument("compile", "losses and metrics", expected, name));
                }
            }
        }
        Ok(())
    }

    /// What each weighted loss sum over `rows` samples is divided by in a step of a kind. `totals` are the sums of the
    /// weights of all samples, or of those of each target; only some reductions need them. As in Keras, the sum of a loss
    /// that is one number for the batch is that number, unless the data have weights (`weighted`), each of which
    /// multiplies it.
    pub fn divisors(
        &self,
        kind: StepKind,
        rows: usize,
        (totals, weighted): (&[f64], bool),
    ) -> Vec<f64> {
        let position = |output: &usize| self.compared().iter().position(|o| o == output);
        let total = |output: &usize| match totals {
            [of_all] => *of_all,
            totals => position(output).map_or(0.0, |at| totals[at]),
        };
        let divisor =
            |(reduction, (output, of_batch)): (Reduction, (&usize, &bool))| match reduction {
                Reduction::SumOverBatchSize => rows as f64,
                Reduction::Sum if *of_batch && !weighted => rows as f64,
                Reduction::Sum => 1.0,
                Reduction::MeanWithSampleWeight => total(output),
            };
        let reductions = self.losses.iter().map(|loss| loss.reduction());
        match &self.custom {
            Some(_) => vec![rows as f64; self.loss_weights(kind).len()],
            None => reductions.zip(self.trained.iter().zip(&self.of_batch)).map(divisor).collect(),
        }
    }

    /// Whether a loss is divided by the sum of the sample weights.
    pub fn divides_by_weight(&self) -> bool {
        self.losses.iter().any(|loss| loss.reduction() == Reduction::MeanWithSampleWeight)
    }

    /// The options of the optimizer, and of the one inside a loss scale optimizer.
    pub fn optimizer_options(&self) -> Map<String, Value> {
        let mut options = self.optimizer.config();
        for other in self.custom.iter().flat_map(|custom| &custom.optimizers) {
            let config = other.optimizer.as_ref().map(|optimizer| optimizer.config());
            let named = |(key, value)| (format!("{} of '{}'", key, other.name), value);
            options.extend(config.unwrap_or_default().into_iter().map(named));
        }
        if let Some((inner, _)) = self.optimizer.inner() {
            options.remove("inner_optimizer");
            options.extend(inner.config());
        }
        options
    }

    /// The learning rate that a file stores beside the optimizer: none if a schedule of Keras sets it. `current` is
    /// the rate of the next step.
    pub fn stored_learning_rate(&self, current: f64) -> Option<f64> {
        match self.optimizer.common().learning_rate {
            LearningRate::Constant(_) | LearningRate::Custom(_) => Some(current),
            LearningRate::Schedule(_) => None,
        }
    }

    /// What the model was compiled with, under Keras' keys.
    pub fn compile_config(&self, learning_rate: f64) -> Map<String, Value> {
        let mut config = self.described.clone();
        let rate = self.stored_learning_rate(learning_rate);
        config.insert("optimizer".into(), optimizer_object(&*self.optimizer, rate));
        config
    }
}

/// Adds the result of a metric: a number or a vector.
fn push_result(logs: &mut Logs, name: &str, metric: &dyn Metric, state: &[f64]) {
    match metric.vector(state) {
        Some(vector) => logs.push_vector(name, vector),
        None => logs.push(name, metric.result(state)),
    }
}

/// The factors by which loss sums are multiplied, given what they are divided by.
pub(super) fn inverted(divisors: &[f64]) -> Vec<f32> {
    divisors.iter().map(|d| if *d == 0.0 { 0.0 } else { (1.0 / d) as f32 }).collect()
}
