//! Steps on batches from the host.

use super::{GpuExecutor, LoadedProgram, StepKey};
use crate::bytes::{as_bytes, floats};
use crate::device::GpuDevice;
use crate::inputs::{INPUT_BYTES, Inputs};
use crate::launch::Block;
use phalanx_exec::{
    Batch, ExecError, Executor, FeedData, LocalShard, ProcessFlags, Profiling, ProgramId,
    ResidentData, Staging, StateId, StepTimes, check_own_batch, check_own_feeds,
};
use phalanx_graph::program::{Mesh, Program, split_range};
use phalanx_graph::update::UpdateRule;
use std::sync::Arc;
use std::time::Instant;

impl<M: GpuDevice> GpuExecutor<M> {
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
        let LoadedProgram { program, layout, inputs, .. } = &self.programs[id];
        let (mesh, own) = (self.mesh, self.shard().rows(batch.rows));
        let staged = self.threads.each(&mut self.devices, |_, device| {
            let first = device.replicas.start;
            let mut fill = |local: usize, bytes: &mut [u8]| {
                let rows = split_range(0..batch.rows, mesh.replicas, first + local);
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
        let loaded = &self.programs[id];
        fetched.resize_with(loaded.program.fetches().len(), Vec::new);
        for ((plan, at), out) in
            loaded.program.fetches().iter().zip(&loaded.fetches).zip(fetched.iter_mut())
        {
            out.clear();
            let is_rows = plan.ty.is_rows();
            let replicas = self.local_replicas().take(if is_rows { self.names.len() } else { 1 });
            let fetched = self.devices.iter().flat_map(|s| &s.fetched);
            for (replica, bytes) in replicas.zip(fetched) {
                let rows = if is_rows { self.mesh.replica_rows(rows, replica).len() } else { 1 };
                let len = rows * plan.ty.len() * 4;
                out.extend(floats(&bytes[*at..at + len]));
            }
            if let Some(peers) = self.peers.as_ref().filter(|_| is_rows) {
                *out = peers.gather_rows(self.mesh, rows, plan.ty.len(), out)?;
            }
        }
        Ok(())
    }

    /// Waits for all started steps, then reads `bytes` bytes of a block of every replica.
    pub(super) fn read_block(&mut self, from: Block, bytes: usize) -> Result<(), ExecError> {
        self.run_all(|_, s| s.finish(from, bytes))?;
        Ok(())
    }
}

impl<M: GpuDevice> Staging for GpuExecutor<M> {
    fn stage(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let own = self.shard().rows(batch.rows).len();
        check_own_feeds(&self.loaded(id)?.program, batch, own)?;
        self.stage_feeds(id, batch)?;
        self.in_flight.staged = Some(id);
        Ok(())
    }
}

impl<M: GpuDevice> Executor for GpuExecutor<M> {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn shard(&self) -> LocalShard {
        LocalShard { mesh: self.mesh, replicas: self.local_replicas() }
    }

    fn load(&mut self, program: Arc<Program>) -> Result<ProgramId, ExecError> {
        self.load_program(program)
    }

    fn unload(&mut self, id: ProgramId) {
        self.unload_program(id);
    }

    fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        self.create_all_slots(rule)
    }

    fn start(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let program = &self.loaded(id)?.program;
        check_own_batch(program, batch, self.shard().rows(batch.rows).len())?;
        let trains = program.update().is_some();
        let accumulate = batch.accumulate.filter(|_| trains).map(|a| a.apply.is_some());
        if accumulate.is_some() {
            self.reserve(Block::Accumulated, self.state.bytes, "accumulated gradients")?;
            self.state.accumulates = true;
        }
        self.peers.iter_mut().for_each(|peers| peers.set_step(batch.step));
        let key = StepKey { rows: batch.rows, accumulate, table: None };
        self.prepare_step(id, key)?;
        if self.timing.profiling && self.programs[id].measured.is_none() {
            self.measure(id, key)?;
        }
        self.in_flight.since = Instant::now();
        if !batch.staged || self.in_flight.staged.take() != Some(id) {
            self.stage_feeds(id, batch)?;
        }
        let head = Self::head(batch).to_bytes();
        let ids = self.programs[id].steps[&key].ids.clone();
        self.run_all(|i, s| s.gpu.start(ids[i], &head))?;
        self.in_flight.step = Some((id, batch.rows));
        Ok(())
    }

    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError> {
        let Some((id, rows)) = self.in_flight.step.take() else { return Ok(()) };
        if let Some(peers) = &mut self.peers {
            // Runs while the GPUs compute. A process that does not take part is identified by name.
            let exchanged = peers.exchange_flags(&self.programs[id].program);
            self.abort_on_error(exchanged)?;
        }
        self.read_block(Block::Fetches, self.programs[id].fetch_bytes)?;
        let taken = self.collect_fetches(id, rows, fetched);
        self.abort_on_error(taken)?;
        if self.programs[id].program.update().is_some() {
            self.timing.steps.compute += self.in_flight.since.elapsed().as_secs_f64();
        }
        Ok(())
    }

    fn in_flight(&self) -> bool {
        let started = self.in_flight.step.is_some() || self.in_flight.table_steps.is_some();
        started && self.devices.iter().any(|s| s.gpu.busy())
    }

    fn slots(&self) -> usize {
        self.state.slots
    }

    fn read(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError> {
        self.read_state(id)
    }

    fn write(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError> {
        self.write_state(id, values)
    }

    fn check_consistency(&self) -> Result<(), ExecError> {
        self.check_replicas_equal()
    }

    fn times(&self) -> StepTimes {
        self.timing.steps
    }

    fn staging(&mut self) -> Option<&mut dyn Staging> {
        Some(self)
    }

    /// Processes would have to agree on the samples and on the number of steps per launch.
    fn resident_data(&mut self) -> Option<&mut dyn ResidentData> {
        if self.peers.is_some() { None } else { Some(self) }
    }

    fn profiling(&mut self) -> Option<&mut dyn Profiling> {
        Some(self)
    }

    fn process_flags(&mut self) -> Option<&mut dyn ProcessFlags> {
        self.peers.as_mut().map(|peers| peers as &mut dyn ProcessFlags)
    }
}
