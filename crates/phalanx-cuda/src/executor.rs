//! The GPU executor: replicas on GPUs, their memory, and prepared steps.

mod multi_step;
mod weights;

use crate::device::{GpuDevice, Plan, StepId};
use crate::device_group::{DeviceReplicas, run_all};
use crate::device_threads::ThreadPool;
use crate::inputs::{INPUT_BYTES, Inputs, MAX_SCALARS};
use crate::launch::{Block, Ptr};
use crate::lower::{self, FusionFacts, Replica, Request};
use crate::lowering_context::Layout;
use crate::plan::{self, ALIGN, Allocation, Allocations};
use crate::process_group::PeerGroup;
use crate::resident_dataset::Table;
use phalanx_graph::exec::{Batch, ExecError, Executor, FeedData, ProgramId, StepTimes};
use phalanx_graph::process_group::{Cluster, LocalShard};
use phalanx_graph::profile::Profile;
use phalanx_graph::program::{Mesh, Program, split_range};
use phalanx_graph::resident::{Column, StepInput, TableId};
use phalanx_graph::update::SlotInit;
use phalanx_graph::{ParamId, ParamSpec};
use std::collections::HashMap;
use std::time::Instant;

/// StepKey of a prepared step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StepKey {
    /// Rows of the batch.
    rows: usize,
    /// With gradient accumulation, whether the sum is applied.
    accumulate: Option<bool>,
    /// The resident dataset that the rows come from, if any.
    table: Option<TableId>,
}

/// A prepared step, with all that is needed to prepare it again.
struct PreparedStep {
    plans: Vec<Plan>,
    /// Scratch memory of its work items.
    blocks: Vec<Allocation>,
    ids: Vec<StepId>,
    /// Value of [`GpuExecutor::relocations`] when it was prepared.
    relocations: u64,
}

struct LoadedProgram {
    program: Program,
    layout: Layout,
    facts: FusionFacts,
    /// Blocks that are independent of the number of rows.
    blocks: Vec<Allocation>,
    /// Bytes of a replica's inputs.
    inputs: usize,
    /// Offset of each fetch, in bytes, and their total size.
    fetches: Vec<usize>,
    fetch_bytes: usize,
    steps: HashMap<StepKey, PreparedStep>,
    measured: Option<Measured>,
}

/// The profile of a program's step.
struct Measured {
    rows: usize,
    /// Per instruction.
    seconds: Vec<f64>,
    /// Instructions with work items that were not measured.
    unmeasured: Vec<usize>,
}

/// Runs programs on GPUs.
pub(crate) struct GpuExecutor<M: GpuDevice> {
    mesh: Mesh,
    devices: Vec<DeviceReplicas<M>>,
    threads: ThreadPool,
    /// Whether work items reduce across GPUs.
    joined: bool,
    /// The other processes, if any.
    peers: Option<PeerGroup>,
    /// Names of the local replicas.
    names: Vec<String>,
    params: Vec<ParamSpec>,
    /// Byte offset of each parameter, and their total size.
    offsets: Vec<usize>,
    param_bytes: usize,
    slots: usize,
    accumulates: bool,
    programs: Vec<LoadedProgram>,
    /// How often a block of memory was relocated.
    relocations: u64,
    times: StepTimes,
    profiling: bool,
    /// The program whose next feeds were staged.
    staged: Option<ProgramId>,
    /// The program that was started, and its rows.
    in_flight: Option<(ProgramId, usize)>,
    /// The program of the steps started on a resident dataset, and their number.
    steps_in_flight: Option<(ProgramId, usize)>,
    tables: Vec<Option<Table>>,
    started_at: Instant,
}

impl<M: GpuDevice> GpuExecutor<M> {
    /// Creates an executor for a list of parameters. Each GPU comes with the names of its replicas.
    /// In a cluster, these are the local part of all replicas.
    pub fn new(
        gpus: Vec<(M, Vec<String>)>,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<GpuExecutor<M>, ExecError> {
        let names: Vec<String> = gpus.iter().flat_map(|(_, names)| names.clone()).collect();
        let first = match &cluster {
            Some(cluster) => cluster.check(names.len())?.start,
            None => 0,
        };
        let devices = DeviceReplicas::all(gpus, first);
        let failed = |e: std::io::Error| ExecError::Device {
            device: names.join(", "),
            message: format!("a thread cannot be started: {e}"),
        };
        let threads = ThreadPool::new(devices.len()).map_err(failed)?;
        let (offsets, param_bytes) = plan::param_offsets(params);
        let mut executor = GpuExecutor {
            mesh: Mesh::new(cluster.as_ref().map_or(names.len(), Cluster::all_devices), 1),
            peers: cluster.map(PeerGroup::new),
            joined: devices.iter().any(|s| s.gpu.joined()),
            devices,
            threads,
            names,
            params: params.to_vec(),
            offsets,
            param_bytes,
            slots: 0,
            accumulates: false,
            programs: vec![],
            relocations: 0,
            times: StepTimes::default(),
            profiling: false,
            staged: None,
            in_flight: None,
            steps_in_flight: None,
            tables: vec![],
            started_at: Instant::now(),
        };
        executor.reserve(Block::Params, param_bytes, "weights")?;
        Ok(executor)
    }

    /// The replicas of this process.
    fn local_replicas(&self) -> std::ops::Range<usize> {
        let first = self.devices.first().map_or(0, |s| s.replicas.start);
        first..first + self.names.len()
    }

    /// Runs `work` on all GPUs in parallel. A GPU may wait for another, also for one of another
    /// process.
    fn run_all<R: Send>(
        &mut self,
        work: impl Fn(usize, &mut DeviceReplicas<M>) -> Result<R, ExecError> + Sync,
    ) -> Result<Vec<R>, ExecError> {
        let done = run_all(&self.threads, &mut self.devices, work);
        done.map_err(|error| match &self.peers {
            Some(peers) => peers.explain(error),
            None => error,
        })
    }

    /// Aborts the GPUs after a failed exchange with other processes, so that none waits for a lost
    /// process.
    fn abort_on_error<T>(&mut self, done: Result<T, ExecError>) -> Result<T, ExecError> {
        if done.is_err() {
            self.devices.iter_mut().for_each(|s| s.gpu.abort());
        }
        done
    }

    /// Grows a block of every replica to at least `bytes`.
    fn reserve(&mut self, block: Block, bytes: usize, purpose: &str) -> Result<(), ExecError> {
        let bytes = bytes.max(ALIGN);
        let relocations =
            self.threads.each(&mut self.devices, |_, s| s.reserve(block, bytes, purpose));
        for relocations in &relocations {
            // After a failure, other blocks may have been relocated.
            self.relocations += relocations.as_ref().map_or(1, |relocations| *relocations);
        }
        relocations.into_iter().try_for_each(|relocations| relocations.map(|_| ()))
    }

    fn reserve_all(&mut self, blocks: &[Allocation]) -> Result<(), ExecError> {
        blocks.iter().try_for_each(|a| self.reserve(a.block, a.bytes, a.purpose))
    }

    /// The rows of every replica on a GPU.
    fn replicas_on(&self, device: usize, rows: usize) -> Vec<Replica> {
        let replicas = self.devices[device].replicas.clone();
        let each = replicas.enumerate().map(|(local, device)| {
            let range = self.mesh.device_rows(rows, device);
            Replica { local, rows: range.len(), first_row: range.start }
        });
        each.collect()
    }

    fn loaded(&self, id: ProgramId) -> Result<&LoadedProgram, ExecError> {
        self.programs.get(id.0).ok_or_else(|| ExecError::Program {
            name: format!("#{}", id.0),
            reason: "it was not loaded here".into(),
        })
    }

    /// Prepares a step for a batch, if it is not prepared yet.
    fn prepare_step(&mut self, id: ProgramId, key: StepKey) -> Result<(), ExecError> {
        if !self.programs[id.0].steps.contains_key(&key) {
            let mut plans = vec![];
            let mut max_bytes = (0, 0);
            for device in 0..self.devices.len() {
                let replicas = self.replicas_on(device, key.rows);
                let loaded = &self.programs[id.0];
                let (plan, (scratch, counters)) = lower::lower(&Request {
                    program: &loaded.program,
                    layout: &loaded.layout,
                    facts: &loaded.facts,
                    replicas: &replicas,
                    rows: key.rows,
                    fetches: &loaded.fetches,
                    accumulate: key.accumulate,
                    from: self.source(loaded, key.table),
                    joined: self.joined,
                });
                tracing::debug!("{} work items for {} rows", plan.work_items.len(), key.rows);
                plans.push(plan);
                max_bytes = (scratch.max(max_bytes.0), counters.max(max_bytes.1));
            }
            let scratch = [(Block::Scratch, max_bytes.0), (Block::Counters, max_bytes.1)];
            let allocation = |(block, bytes)| Allocation::new(block, bytes, "partial sums");
            let blocks = scratch.map(allocation).to_vec();
            // Other processes may need more memory. Their steps must then be captured again, which
            // all processes do at the same time.
            self.relocations += u64::from(self.peers.is_some());
            let prepared = PreparedStep { plans, blocks, ids: vec![], relocations: 0 };
            self.programs[id.0].steps.insert(key, prepared);
        }
        let prepared = &self.programs[id.0].steps[&key];
        if prepared.ids.is_empty() || prepared.relocations != self.relocations {
            // A program that failed to allocate may have left less memory than this one needs.
            let (fixed, scratch) = (self.programs[id.0].blocks.clone(), prepared.blocks.clone());
            self.reserve_all(&fixed)?;
            self.reserve_all(&scratch)?;
            let prepared = self.programs[id.0].steps.get_mut(&key).expect("made above");
            for (device, old) in self.devices.iter_mut().zip(std::mem::take(&mut prepared.ids)) {
                device.gpu.forget(old);
            }
            let plans = &prepared.plans;
            let ids = self.threads.each(&mut self.devices, |i, s| s.prepare(plans[i].clone()));
            let ids = ids.into_iter().collect::<Result<Vec<StepId>, ExecError>>()?;
            // Compile times differ between processes.
            let arrived = self.peers.as_ref().map_or(Ok(()), PeerGroup::barrier);
            self.abort_on_error(arrived)?;
            self.run_all(|i, s| s.gpu.capture(ids[i]))?;
            let prepared = self.programs[id.0].steps.get_mut(&key).expect("made above");
            (prepared.ids, prepared.relocations) = (ids, self.relocations);
        }
        Ok(())
    }

    /// The inputs that change from step to step, besides the feeds.
    fn head(batch: &Batch<'_>) -> Inputs {
        let mut head = Inputs::new(batch.seed, batch.step, batch.scalars);
        if let Some(a) = batch.accumulate {
            head.keep = f32::from(!a.first);
            head.weight = a.weight;
            head.mean = a.apply.unwrap_or(0.0);
        }
        head
    }

    /// Copies its rows of the feeds to every replica.
    fn stage_feeds(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let LoadedProgram { program, layout, inputs, .. } = &self.programs[id.0];
        let (mesh, own) = (self.mesh, self.shard().rows(batch.rows));
        let staged = self.threads.each(&mut self.devices, |_, device| {
            let first = device.replicas.start;
            let mut fill = |local: usize, bytes: &mut [u8]| {
                let rows = split_range(0..batch.rows, mesh.devices, first + local);
                for ((spec, data), at) in program.feeds().iter().zip(batch.feeds).zip(&layout.feeds)
                {
                    let len = spec.ty.len();
                    let part = match spec.ty.is_rows() {
                        true => (rows.start - own.start) * len..(rows.end - own.start) * len,
                        false => 0..len,
                    };
                    let from = match data {
                        FeedData::F32(v) => as_bytes(&v[part]),
                        FeedData::I32(v) => as_bytes(&v[part]),
                    };
                    let at = at - INPUT_BYTES;
                    bytes[at..at + from.len()].copy_from_slice(from);
                }
            };
            device.stage(inputs - INPUT_BYTES, &mut fill)
        });
        staged.into_iter().collect()
    }

    /// Collects the fetches of all replicas, with the rows of all processes.
    fn collect_fetches(
        &self,
        id: ProgramId,
        rows: usize,
        fetched: &mut Vec<Vec<f32>>,
    ) -> Result<(), ExecError> {
        let loaded = &self.programs[id.0];
        fetched.resize_with(loaded.program.fetches().len(), Vec::new);
        for ((plan, at), out) in
            loaded.program.fetches().iter().zip(&loaded.fetches).zip(fetched.iter_mut())
        {
            out.clear();
            let is_rows = plan.ty.is_rows();
            let replicas = self.local_replicas().take(if is_rows { self.names.len() } else { 1 });
            let fetched = self.devices.iter().flat_map(|s| &s.fetched);
            for (device, bytes) in replicas.zip(fetched) {
                let rows = if is_rows { self.mesh.device_rows(rows, device).len() } else { 1 };
                let len = rows * plan.ty.len() * 4;
                out.extend(floats(&bytes[*at..at + len]));
            }
            if let Some(peers) = self.peers.as_ref().filter(|_| is_rows) {
                *out = peers.gather_rows(self.mesh, rows, plan.ty.len(), out)?;
            }
        }
        Ok(())
    }

    /// Blocks that outlive a step.
    fn persistent_blocks(&self) -> Vec<Block> {
        let gathered = self.accumulates.then_some(Block::Accumulated);
        let slots = (0..self.slots).map(Block::Slot);
        [Block::Params].into_iter().chain(gathered).chain(slots).collect()
    }

    /// Measures every instruction on the first GPU. Weights and slots are restored afterwards.
    fn measure(&mut self, id: ProgramId, key: StepKey) -> Result<(), ExecError> {
        let blocks = self.persistent_blocks();
        let param_bytes = self.param_bytes;
        let loaded = &mut self.programs[id.0];
        let prepared = &loaded.steps[&key];
        let (items, step) = (&prepared.plans[0].work_items, prepared.ids[0]);
        let DeviceReplicas { gpu, replicas, .. } = &mut self.devices[0];
        let mut saved = vec![];
        for local in 0..replicas.len() {
            for block in &blocks {
                let mut bytes = vec![0; param_bytes];
                gpu.read(Ptr::new(local, *block, 0), &mut bytes)?;
                saved.push((Ptr::new(local, *block, 0), bytes));
            }
        }
        let seconds = gpu.measure(step)?;
        for (at, bytes) in &saved {
            gpu.write(*at, bytes)?;
        }
        let mut measured = Measured {
            rows: key.rows,
            seconds: vec![0.0; loaded.program.instrs().len()],
            unmeasured: vec![],
        };
        for (work, seconds) in items.iter().zip(&seconds) {
            match seconds {
                Some(seconds) => measured.seconds[work.instr] += seconds,
                None => measured.unmeasured.push(work.instr),
            }
        }
        loaded.measured = (!seconds.is_empty()).then_some(measured);
        Ok(())
    }

    /// Waits for all started steps, then reads `bytes` bytes of a block of every replica.
    fn read_block(&mut self, from: Block, bytes: usize) -> Result<(), ExecError> {
        self.run_all(|_, s| s.finish(from, bytes))?;
        Ok(())
    }
}

impl<M: GpuDevice> Executor for GpuExecutor<M> {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn shard(&self) -> LocalShard {
        LocalShard { mesh: self.mesh, devices: self.local_replicas() }
    }

    fn set_flags(&mut self, bits: u64) {
        self.peers.iter_mut().for_each(|peers| peers.set_flags(bits));
    }

    fn flags(&self) -> Option<u64> {
        self.peers.as_ref().map(PeerGroup::flags)
    }

    fn load(&mut self, program: Program) -> Result<ProgramId, ExecError> {
        program.check_executor(self.mesh, &self.params)?;
        program.check_slots(self.programs.iter().map(|p| &p.program))?;
        if program.update().is_some_and(|plan| plan.rule.scalars > MAX_SCALARS) {
            let reason = format!("its optimizer has more than {MAX_SCALARS} scalars");
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let allocations = Allocations::of(&program);
        let blocks = allocations.blocks(&program);
        self.reserve_all(&blocks)?;
        let slots = program.update().map(|plan| &plan.rule.slots);
        if let Some(slots) = slots.filter(|slots| slots.len() != self.slots) {
            let inits: Vec<SlotInit> = slots.iter().map(|s| s.init).collect();
            self.init_slots(&inits)?;
        }
        let Allocations { layout, inputs, fetches, fetch_bytes, .. } = allocations;
        let facts = FusionFacts::of(&program, self.mesh.devices == 1 && !self.joined);
        self.programs.push(LoadedProgram {
            program,
            layout,
            facts,
            blocks,
            inputs,
            fetches,
            fetch_bytes,
            steps: HashMap::new(),
            measured: None,
        });
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn stage(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let own = self.shard().rows(batch.rows).len();
        self.loaded(id)?.program.check_own_feeds(batch, own)?;
        self.stage_feeds(id, batch)?;
        self.staged = Some(id);
        Ok(())
    }

    fn start(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let program = &self.loaded(id)?.program;
        program.check_own_batch(batch, self.shard().rows(batch.rows).len())?;
        let trains = program.update().is_some();
        let accumulate = batch.accumulate.filter(|_| trains).map(|a| a.apply.is_some());
        if accumulate.is_some() {
            self.reserve(Block::Accumulated, self.param_bytes, "accumulated gradients")?;
            self.accumulates = true;
        }
        self.peers.iter_mut().for_each(|peers| peers.set_step(batch.step));
        let key = StepKey { rows: batch.rows, accumulate, table: None };
        self.prepare_step(id, key)?;
        if self.profiling && self.programs[id.0].measured.is_none() {
            self.measure(id, key)?;
        }
        self.started_at = Instant::now();
        if !batch.staged || self.staged.take() != Some(id) {
            self.stage_feeds(id, batch)?;
        }
        let head = Self::head(batch).to_bytes();
        let ids = self.programs[id.0].steps[&key].ids.clone();
        self.run_all(|i, s| s.gpu.start(ids[i], &head))?;
        self.in_flight = Some((id, batch.rows));
        Ok(())
    }

    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError> {
        let Some((id, rows)) = self.in_flight.take() else { return Ok(()) };
        if let Some(peers) = &mut self.peers {
            // Runs while the GPUs compute. A process that does not take part is identified by name.
            let exchanged = peers.exchange_flags(&self.programs[id.0].program);
            self.abort_on_error(exchanged)?;
        }
        self.read_block(Block::Fetches, self.programs[id.0].fetch_bytes)?;
        let taken = self.collect_fetches(id, rows, fetched);
        self.abort_on_error(taken)?;
        if self.programs[id.0].program.update().is_some() {
            self.times.compute += self.started_at.elapsed().as_secs_f64();
        }
        Ok(())
    }

    fn in_flight(&self) -> bool {
        let started = self.in_flight.is_some() || self.steps_in_flight.is_some();
        started && self.devices.iter().any(|s| s.gpu.busy())
    }

    fn upload(&mut self, columns: &[Column<'_>]) -> Result<Option<TableId>, ExecError> {
        self.upload_columns(columns)
    }

    fn evict(&mut self, table: TableId) {
        self.evict_table(table);
    }

    fn steps_per_launch(
        &mut self,
        program: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<usize, ExecError> {
        self.table_steps_per_launch(program, table, rows)
    }

    fn start_steps(
        &mut self,
        program: ProgramId,
        table: TableId,
        steps: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        self.start_table_steps(program, table, steps)
    }

    fn finish_steps(&mut self, fetched: &mut Vec<Vec<Vec<f32>>>) -> Result<(), ExecError> {
        self.finish_table_steps(fetched)
    }

    fn param(&self, id: ParamId) -> Vec<f32> {
        self.read_first(Block::Params, id)
    }

    fn set_param(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.write(Block::Params, id, values)
    }

    fn slots(&self) -> usize {
        self.slots
    }

    fn slot(&self, slot: usize, id: ParamId) -> Vec<f32> {
        self.read_first(Block::Slot(slot), id)
    }

    fn set_slot(&mut self, slot: usize, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.write(Block::Slot(slot), id, values)
    }

    fn accumulated(&self, id: ParamId) -> Option<Vec<f32>> {
        self.accumulates.then(|| self.read_first(Block::Accumulated, id))
    }

    fn set_accumulated(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.reserve(Block::Accumulated, self.param_bytes, "accumulated gradients")?;
        self.accumulates = true;
        self.write(Block::Accumulated, id, values)
    }

    fn check_consistency(&self) -> Result<(), ExecError> {
        self.check_replicas_equal()
    }

    fn times(&self) -> StepTimes {
        self.times
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        if on {
            self.programs.iter_mut().for_each(|p| p.measured = None);
        }
    }

    fn profile(&self, id: ProgramId) -> Option<Profile> {
        let loaded = self.programs.get(id.0)?;
        let Measured { rows, seconds, unmeasured } = loaded.measured.as_ref()?;
        Some(Profile::new(&loaded.program, *rows, 1, seconds).lacking(unmeasured))
    }
}

impl<M: GpuDevice> Drop for GpuExecutor<M> {
    fn drop(&mut self) {
        if self.peers.is_some() && self.in_flight.is_some() {
            // The step was interrupted: GPUs of other processes may wait for it forever.
            self.devices.iter_mut().for_each(|s| s.gpu.abort());
        }
    }
}

/// Number types whose bytes can be copied as they are.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i32 {}

pub(crate) fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
