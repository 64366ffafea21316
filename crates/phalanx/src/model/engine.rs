//! A compiled model: the executor, its programs, and the state that training carries along.

use super::Model;
use super::compile::{MetricArgument, Resolved};
use super::definition::Definition;
use super::steps::{self, Lowered, Objective};
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::layer::{Lowering, ModelWeight};
use crate::losses::{Loss, Reduction};
use crate::metrics::{self, Metric};
use crate::optimizers::Optimizer;
use crate::strategy::{DeviceKind, MirroredStrategy};
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_graph::exec::{Accumulate, Batch, Executor, FeedData, ProgramId, Times};
use phalanx_graph::program::FetchPlan;
use phalanx_graph::{DType, Data, Options, ParamId, Program, Step, Tensor, Type};
use std::sync::Arc;

/// Which step of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Forward, backward, update.
    Train,
    /// Losses and metrics.
    Test,
    /// Outputs.
    Predict,
    /// Forward and backward, nothing changed.
    Gradients,
}

/// Sums of losses and metrics over batches, merged in f64.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    rows: f64,
    total: f64,
    outputs: Vec<f64>,
    states: Vec<Vec<f64>>,
}

/// One loaded program.
#[derive(Clone, Copy)]
struct Slot {
    id: ProgramId,
    max_batch: usize,
}

/// What `compile` builds.
pub(crate) struct Engine {
    def: Arc<Definition>,
    executor: Box<dyn Executor>,
    pub(crate) optimizer: Box<dyn Optimizer>,
    losses: Vec<Box<dyn Loss>>,
    loss_weights: Vec<f64>,
    metrics: Vec<Vec<Box<dyn Metric>>>,
    weights: Vec<ModelWeight>,
    constants: Vec<(ParamId, Vec<f32>)>,
    targets: Vec<Type>,
    output_names: Vec<String>,
    programs: [Option<Slot>; 4],
    constrain: Option<ProgramId>,
    pub(crate) seed: u64,
    /// Training steps so far: the random counters.
    pub(crate) steps: u64,
    /// Optimizer updates so far.
    pub(crate) updates: u64,
    /// Batches gathered towards the next update, and their weight.
    gathered: (u64, f64),
    dirty: bool,
    fetched: Vec<Vec<f32>>,
    scales: Vec<f32>,
}

fn lower(def: &Definition, training: bool) -> Result<Lowered> {
    let mut low = Lowering::new(training);
    let feeds = def.feeds(&mut low);
    let inputs: Vec<_> = feeds.iter().map(|f| low.graph.feed(*f)).collect();
    let outputs = def.lower(&mut low, &inputs, "")?;
    Ok(Lowered { low, outputs })
}

fn start(strategy: &MirroredStrategy, l: &Lowered) -> Result<Box<dyn Executor>> {
    let kinds = strategy.devices().iter().map(|d| d.kind);
    if kinds.clone().any(|k| k != DeviceKind::Cpu) {
        let received = strategy.devices().iter().map(ToString::to_string).collect::<Vec<_>>();
        return Err(Error::argument("compile", "strategy", "CPU devices", received.join(", ")));
    }
    let options = CpuOptions {
        devices: strategy.num_replicas_in_sync(),
        workers: strategy.worker_threads(),
        isa: None,
    };
    Ok(Box::new(CpuExecutor::new(options, l.low.graph.params())?))
}

impl Engine {
    pub(crate) fn new(model: &Model, resolved: Resolved) -> Result<Engine> {
        let Resolved { optimizer, losses, loss_weights, metrics, strategy, seed } = resolved;
        let l = lower(&model.def, true)?;
        let types: Vec<Type> = l.outputs.iter().map(|o| l.low.graph.ty(*o).clone()).collect();
        let targets: Vec<Type> =
            losses.iter().zip(&types).map(|(loss, ty)| loss.target(ty)).collect::<Result<_>>()?;
        let resolve = |(i, list): (usize, Vec<MetricArgument>)| {
            list.into_iter()
                .map(|m| match m {
                    MetricArgument::Value(m) => Ok(m),
                    MetricArgument::Name(name) => metrics::get(&name, &targets[i], &types[i]),
                })
                .collect::<Result<Vec<_>>>()
        };
        let metrics: Vec<Vec<Box<dyn Metric>>> =
            metrics.into_iter().enumerate().map(resolve).collect::<Result<_>>()?;
        let executor = start(&strategy, &l)?;
        let mut engine = Engine {
            def: model.def.clone(),
            executor,
            optimizer,
            losses,
            loss_weights,
            metrics,
            weights: l.low.weights,
            constants: l.low.constants,
            targets,
            output_names: model.output_names(),
            programs: [None; 4],
            constrain: None,
            seed,
            steps: 0,
            updates: 0,
            gathered: (0, 0.0),
            dirty: false,
            fetched: vec![],
            scales: vec![],
        };
        engine.push()?;
        if !engine.compiled() {
            return Ok(engine);
        }
        // Shapes that losses or metrics do not fit are found now, not in the first epoch.
        engine.step(StepKind::Train)?;
        if let Some(step) = steps::constrain(lower(&engine.def, true)?)? {
            let id = engine.executor.load(engine.program_for(step, 1)?)?;
            engine.constrain = Some(id);
        }
        Ok(engine)
    }

    /// An engine that only predicts, for models that were never compiled.
    pub(crate) fn inference(model: &Model) -> Result<Engine> {
        let optimizer = Box::new(crate::optimizers::SGD::default());
        let strategy = MirroredStrategy::new();
        let (losses, loss_weights, metrics) = (vec![], vec![], vec![]);
        Engine::new(model, Resolved { optimizer, losses, loss_weights, metrics, strategy, seed: 0 })
    }

    /// Whether there is something to train for.
    pub(crate) fn compiled(&self) -> bool {
        !self.losses.is_empty()
    }

    /// The optimizer's learning rate at this step.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.optimizer.common().learning_rate.at(self.steps)
    }

    /// Batches that make an update, where the optimizer asks for several.
    pub(crate) fn gather_steps(&self) -> Option<u64> {
        self.optimizer.common().gradient_accumulation_steps
    }

    /// Element types of the targets.
    pub(crate) fn target_dtypes(&self) -> Vec<DType> {
        self.targets.iter().map(|t| t.dtype).collect()
    }

    fn objective(&self) -> Objective<'_> {
        Objective { losses: &self.losses, loss_weights: &self.loss_weights, metrics: &self.metrics }
    }

    fn step(&self, kind: StepKind) -> Result<Step> {
        let l = lower(&self.def, matches!(kind, StepKind::Train | StepKind::Gradients))?;
        match kind {
            StepKind::Train => steps::train(l, &self.objective(), self.optimizer.rule()),
            StepKind::Test => steps::test(l, &self.objective()),
            StepKind::Predict => Ok(steps::predict(l)),
            StepKind::Gradients => steps::gradients(l, &self.objective(), self.optimizer.rule()),
        }
    }

    fn program_for(&self, step: Step, max_batch: usize) -> Result<Program> {
        let options = Options { mesh: self.executor.mesh(), max_batch };
        Ok(Program::compile(step, options)?)
    }

    /// The program of a step for a batch of this size, as it would be run.
    pub(crate) fn program(&self, kind: StepKind, max_batch: usize) -> Result<Program> {
        self.program_for(self.step(kind)?, max_batch)
    }

    fn ensure(&mut self, kind: StepKind, batch: usize) -> Result<ProgramId> {
        let at = kind as usize;
        if let Some(slot) = self.programs[at].filter(|s| s.max_batch >= batch) {
            return Ok(slot.id);
        }
        let program = self.program(kind, batch)?;
        let id = self.executor.load(program)?;
        self.programs[at] = Some(Slot { id, max_batch: batch });
        Ok(id)
    }

    pub(crate) fn devices(&self) -> Vec<String> {
        self.executor.devices()
    }

    pub(crate) fn times(&self) -> Times {
        self.executor.times()
    }

    pub(crate) fn check_mirrored(&self) -> Result<()> {
        Ok(self.executor.check_mirrored()?)
    }

    /// Brings the weights back to the layers.
    pub(crate) fn pull(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for w in &self.weights {
            let values = self.executor.param(w.param);
            w.layer.weights()[w.index].values = Some(values);
        }
    }

    /// Sends the layers' weights to the devices.
    pub(crate) fn push(&mut self) -> Result<()> {
        for w in &self.weights {
            let values = w.layer.weights()[w.index].values.clone();
            if let Some(values) = values {
                self.executor.set_param(w.param, &values)?;
            }
        }
        for (param, values) in &self.constants {
            self.executor.set_param(*param, values)?;
        }
        self.dirty = false;
        Ok(())
    }

    pub(crate) fn weight_names(&self) -> Vec<String> {
        let full =
            |w: &ModelWeight| format!("{}/{}", w.layer_name, w.layer.weights()[w.index].spec.name);
        self.weights.iter().map(full).collect()
    }

    pub(crate) fn weight(&self, name: &str) -> Option<Vec<f32>> {
        let at = self.weight_names().iter().position(|n| n == name)?;
        Some(self.executor.param(self.weights[at].param))
    }

    /// Sets weights by name.
    pub(crate) fn restore(&mut self, weights: &[(String, Vec<f32>)]) -> Result<()> {
        let names = self.weight_names();
        for (name, values) in weights {
            let Some(at) = names.iter().position(|n| n == name) else {
                return Err(Error::Unknown { kind: "weight", name: name.clone(), known: names });
            };
            self.executor.set_param(self.weights[at].param, values)?;
        }
        self.dirty = true;
        Ok(())
    }

    /// At the end of training an optimizer with a moving average leaves that in the weights.
    pub(crate) fn finish_training(&mut self) -> Result<()> {
        if !self.optimizer.common().use_ema || self.updates == 0 {
            return Ok(());
        }
        let last = self.executor.slots() - 1;
        let trained: Vec<ParamId> = self
            .weights
            .iter()
            .filter(|w| w.layer.trainable() && w.layer.weights()[w.index].spec.trainable)
            .map(|w| w.param)
            .collect();
        for param in trained {
            let average = self.executor.slot(last, param);
            self.executor.set_param(param, &average)?;
        }
        Ok(())
    }

    /// Checks a batch against the model before anything runs on it.
    fn check(&self, batch: &HostBatch, targets: bool) -> Result<()> {
        let rows = batch.rows;
        let fits = |owner: &str, what: String, ty: &Type, t: &Tensor| {
            // Batches may have room for more rows than they hold.
            if t.row_len() == ty.len() && t.rows() >= rows && t.dtype() == ty.dtype {
                return Ok(());
            }
            let mut dims = vec![rows];
            dims.extend(&ty.dims);
            let expected = format!("{} {dims:?}", ty.dtype);
            let received = format!("{} {:?}", t.dtype(), t.dims());
            Err(Error::argument(owner, what, expected, received))
        };
        let owner = format!("model '{}'", self.def.name);
        let count = |what: &str, expected: usize, received: usize| {
            if expected == received {
                return Ok(());
            }
            Err(Error::argument(&owner, what, expected.to_string(), received))
        };
        count("inputs", self.def.inputs.len(), batch.inputs.len())?;
        for (i, t) in batch.inputs.iter().enumerate() {
            let input = self.def.input(i);
            let ty = Type::new(input.dtype, phalanx_graph::Space::Rows, input.dims.clone());
            fits(&owner, format!("input {i}"), &ty, t)?;
        }
        if !targets {
            return Ok(());
        }
        count("targets", self.targets.len(), batch.targets.len())?;
        for (i, t) in batch.targets.iter().enumerate() {
            fits(&owner, format!("target of '{}'", self.output_names[i]), &self.targets[i], t)?;
            self.check_labels(i, t, rows)?;
        }
        Ok(())
    }

    /// Class numbers must name a class.
    fn check_labels(&self, output: usize, target: &Tensor, rows: usize) -> Result<()> {
        let Data::I32(labels) = target.data() else { return Ok(()) };
        let labels = &labels[..rows * target.row_len()];
        let classes = self.classes(output);
        match labels.iter().position(|l| usize::try_from(*l).map_or(true, |l| l >= classes)) {
            None => Ok(()),
            Some(row) => Err(Error::argument(
                format!("model '{}'", self.def.name),
                format!("labels of '{}'", self.output_names[output]),
                format!("0 to {}", classes.saturating_sub(1)),
                format!("{} in row {row} of the batch", labels[row]),
            )),
        }
    }

    fn classes(&self, output: usize) -> usize {
        let symbol = &self.def.outputs[output];
        let placed = self.def.calls.iter().find(|p| Arc::as_ptr(&p.call) == symbol.id());
        placed.map_or(usize::MAX, |p| p.ty.last())
    }

    /// What each output's weighted loss sum is divided by.
    fn denominators(&self, batch: &HostBatch) -> Vec<f64> {
        let rows = batch.rows as f64;
        self.losses
            .iter()
            .map(|loss| match loss.reduction() {
                Reduction::SumOverBatchSize => rows,
                Reduction::Sum => 1.0,
                Reduction::MeanWithSampleWeight => {
                    batch.sample_weight[..batch.rows].iter().map(|w| f64::from(*w)).sum()
                }
            })
            .collect()
    }

    /// Runs one batch and adds its losses and metrics to the tally; returns the batch's loss.
    pub(crate) fn run(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        learning_rate: f64,
        accumulate: Option<Gather>,
        tally: &mut Tally,
    ) -> Result<f64> {
        let training = kind == StepKind::Train;
        let accumulate = accumulate.filter(|_| training).map(|g| self.gather(g, batch.rows as f64));
        let scalars = match training {
            true => self.optimizer.scalars(learning_rate, self.updates + 1),
            false => vec![],
        };
        let denominators = self.execute(kind, batch, &scalars, accumulate)?;
        if training {
            self.steps += 1;
            self.dirty = true;
        }
        if training && accumulate.is_none_or(|a| a.apply.is_some()) {
            self.updates += 1;
            if let Some(id) = self.constrain {
                let nothing =
                    Batch { rows: 0, feeds: &[], seed: 0, step: 0, scalars: &[], accumulate: None };
                self.executor.run(id, &nothing, &mut vec![])?;
            }
        }
        Ok(tally.add(self, batch.rows, &denominators))
    }

    /// Runs a program with targets on a batch; returns what each loss sum is divided by.
    fn execute(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        scalars: &[f32],
        accumulate: Option<Accumulate>,
    ) -> Result<Vec<f64>> {
        self.check(batch, true)?;
        let id = self.ensure(kind, batch.rows)?;
        let denominators = self.denominators(batch);
        self.scales.clear();
        let invert = |d: &f64| if *d == 0.0 { 0.0 } else { (1.0 / d) as f32 };
        self.scales.extend(denominators.iter().map(invert));
        let mut feeds: Vec<FeedData<'_>> = Vec::with_capacity(batch.inputs.len() + 4);
        feeds.extend(batch.inputs.iter().chain(&batch.targets).map(|t| feed(t, batch.rows)));
        feeds.push(FeedData::F32(&batch.sample_weight[..batch.rows]));
        feeds.extend(self.scales.chunks(1).map(FeedData::F32));
        let step = Batch {
            rows: batch.rows,
            feeds: &feeds,
            seed: self.seed,
            step: self.steps,
            scalars,
            accumulate,
        };
        self.executor.run(id, &step, &mut self.fetched)?;
        Ok(denominators)
    }

    /// The gradient of the loss on a batch by every weight trained, with the weights' names.
    pub(crate) fn gradients(&mut self, batch: &HostBatch) -> Result<Vec<(String, Tensor)>> {
        self.execute(StepKind::Gradients, batch, &[], None)?;
        let program = self.program(StepKind::Gradients, 1)?;
        let tensor = |(plan, values): (&FetchPlan, &Vec<f32>)| {
            let tensor = Tensor::new(plan.ty.dims.clone(), values.clone());
            Some((plan.name.clone(), tensor?))
        };
        let all = program.fetches.iter().zip(&self.fetched).map(tensor).collect::<Option<Vec<_>>>();
        all.ok_or_else(|| Error::config("gradients", "a gradient of another size than its weight"))
    }

    /// This batch's part in an update made of several, weighted by its rows.
    fn gather(&mut self, gather: Gather, weight: f64) -> Accumulate {
        let (count, sum) = self.gathered;
        let (count, sum) = (count + 1, sum + weight);
        let apply = count == gather.every || gather.last;
        self.gathered = if apply { (0, 0.0) } else { (count, sum) };
        Accumulate {
            first: count == 1,
            weight: weight as f32,
            apply: apply.then(|| if sum > 0.0 { (1.0 / sum) as f32 } else { 0.0 }),
        }
    }

    /// Runs the model on a batch; one vector per output.
    pub(crate) fn predict(&mut self, batch: &HostBatch) -> Result<&[Vec<f32>]> {
        self.check(batch, false)?;
        let id = self.ensure(StepKind::Predict, batch.rows)?;
        let feeds: Vec<FeedData<'_>> = batch.inputs.iter().map(|t| feed(t, batch.rows)).collect();
        let step = Batch {
            rows: batch.rows,
            feeds: &feeds,
            seed: self.seed,
            step: 0,
            scalars: &[],
            accumulate: None,
        };
        self.executor.run(id, &step, &mut self.fetched)?;
        Ok(&self.fetched)
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            rows: 0.0,
            total: 0.0,
            outputs: vec![0.0; self.losses.len()],
            states: self.metrics.iter().flatten().map(|m| vec![0.0; m.state_len()]).collect(),
        }
    }

    /// Loss and metrics under the names Keras reports.
    pub(crate) fn logs(&self, tally: &Tally) -> Vec<(String, f64)> {
        let mean = |sum: f64| if tally.rows > 0.0 { sum / tally.rows } else { 0.0 };
        let mut logs = vec![("loss".to_string(), mean(tally.total))];
        let several = self.losses.len() > 1;
        if several {
            for (name, sum) in self.output_names.iter().zip(&tally.outputs) {
                logs.push((format!("{name}_loss"), mean(*sum)));
            }
        }
        let mut states = tally.states.iter();
        for (output, metrics) in self.output_names.iter().zip(&self.metrics) {
            for metric in metrics {
                let Some(state) = states.next() else { break };
                let name = match several {
                    true => format!("{output}_{}", metric.name()),
                    false => metric.name().to_string(),
                };
                logs.push((name, metric.result(state)));
            }
        }
        logs
    }

    /// Dimensions of one sample of each output.
    pub(crate) fn output_dims(&self) -> Vec<Vec<usize>> {
        let placed = |s: &super::Symbol| {
            self.def.calls.iter().find(|p| Arc::as_ptr(&p.call) == s.id()).map(|p| &p.ty)
        };
        self.def.outputs.iter().map(|s| placed(s).map_or(vec![], |t| t.dims.clone())).collect()
    }
}

/// Gradient accumulation as `fit` asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    /// Batches that make an update.
    pub every: u64,
    /// Whether this is the last batch of the epoch, which updates with what there is.
    pub last: bool,
}

/// The first rows of a tensor.
fn feed(t: &Tensor, rows: usize) -> FeedData<'_> {
    let len = rows * t.row_len();
    match t.data() {
        Data::F32(v) => FeedData::F32(&v[..len]),
        Data::I32(v) => FeedData::I32(&v[..len]),
    }
}

impl Tally {
    /// Adds the sums a step fetched; returns that step's total loss.
    fn add(&mut self, engine: &Engine, rows: usize, denominators: &[f64]) -> f64 {
        let rows = rows as f64;
        let outputs = engine.losses.len();
        let mut loss = f64::from(engine.fetched[outputs][0]);
        for (i, denominator) in denominators.iter().enumerate() {
            let sum = f64::from(engine.fetched[i][0]);
            let mean = if *denominator == 0.0 { 0.0 } else { sum / denominator };
            self.outputs[i] += mean * rows;
            loss += engine.loss_weights[i] * mean;
        }
        self.rows += rows;
        self.total += loss * rows;
        for (state, delta) in self.states.iter_mut().zip(&engine.fetched[outputs + 1..]) {
            state.iter_mut().zip(delta).for_each(|(s, d)| *s += f64::from(*d));
        }
        loss
    }
}

/// Targets of another element type than the loss takes, converted where nothing is lost.
pub(crate) fn as_dtype(t: &Tensor, dtype: DType) -> Option<Tensor> {
    match (t.data(), dtype) {
        (Data::F32(v), DType::I32) => {
            let whole = v.iter().all(|x| x.fract() == 0.0 && x.abs() < 16_777_216.0);
            let ints: Vec<i32> = v.iter().map(|x| *x as i32).collect();
            whole.then(|| Tensor::new(t.dims(), ints)).flatten()
        }
        (Data::I32(v), DType::F32) => {
            Tensor::new(t.dims(), v.iter().map(|x| *x as f32).collect::<Vec<f32>>())
        }
        _ => Some(t.clone()),
    }
}
