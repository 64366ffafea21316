//! Programs that are loaded, and their steps for batches of a size: lowered, compiled and captured.

use super::{GpuExecutor, LoadedProgram, PreparedStep, StepKey};
use crate::collectives::PeerGroup;
use crate::device::{GpuDevice, StepId};
use crate::inputs::MAX_SCALARS;
use crate::launch::Block;
use crate::lower::{self, FusionFacts, Request};
use crate::plan::{Allocation, Allocations};
use phalanx_exec::{ExecError, ProgramId, check_program, check_slots};
use phalanx_graph::program::Program;
use phalanx_graph::update::{SlotInit, UpdateRule};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of prepared steps. A step is prepared for every number of rows of every program.
const MAX_PREPARED_STEPS: usize = 256;

impl<M: GpuDevice> GpuExecutor<M> {
    /// Loads a program: reserves the memory that does not depend on the number of rows.
    ///
    /// A program must be compiled for this mesh, whose devices have one worker. The verifier ensures that
    /// such a program shards no dense kernel, so the lowering does not know sharded instructions.
    pub(super) fn load_program(&mut self, program: Arc<Program>) -> Result<ProgramId, ExecError> {
        check_program(&program, self.mesh, &self.state.params)?;
        check_slots(&program, self.programs.iter().map(|p| &*p.program))?;
        if program.update().is_some_and(|plan| plan.rule.scalars > MAX_SCALARS) {
            let reason = format!("its optimizer has more than {MAX_SCALARS} scalars");
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let allocations = Allocations::of(&program);
        let blocks = allocations.blocks(&program);
        self.reserve_all(&blocks)?;
        if let Some(plan) = program.update() {
            self.create_all_slots(&plan.rule)?;
        }
        let Allocations { layout, inputs, fetches, fetch_bytes, .. } = allocations;
        let facts = FusionFacts::of(&program, self.mesh.replicas == 1 && !self.joined);
        Ok(self.programs.insert(LoadedProgram {
            program,
            layout,
            facts,
            blocks,
            inputs,
            fetches,
            fetch_bytes,
            steps: HashMap::new(),
            measured: None,
        }))
    }

    /// Unloads a program with its prepared steps.
    pub(super) fn unload_program(&mut self, id: ProgramId) {
        let Some(loaded) = self.programs.remove(id) else { return };
        loaded.steps.into_values().for_each(|prepared| self.forget(prepared));
        self.in_flight.staged = self.in_flight.staged.filter(|staged| *staged != id);
    }

    /// Creates the slots of an optimizer, unless they exist.
    pub(super) fn create_all_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        if rule.slots.len() == self.state.slots {
            return Ok(());
        }
        let inits: Vec<SlotInit> = rule.slots.iter().map(|s| s.init).collect();
        for slot in 0..inits.len() {
            self.reserve(Block::Slot(slot), self.state.bytes, "optimizer slots")?;
        }
        self.init_slots(&inits)
    }

    fn forget(&mut self, prepared: PreparedStep) {
        for (device, step) in self.devices.iter_mut().zip(prepared.ids) {
            device.gpu.forget(step);
        }
    }

    /// Drops the least recently used steps until another one may be prepared. All processes drop the same.
    fn evict_oldest_steps(&mut self) {
        let prepared = |p: &LoadedProgram| p.steps.len();
        while self.programs.iter().map(prepared).sum::<usize>() >= MAX_PREPARED_STEPS {
            let steps = |p: &LoadedProgram| p.steps.values().map(|s| s.used).min();
            let Some(oldest) = self.programs.iter().filter_map(steps).min() else { return };
            let mut dropped = vec![];
            for program in self.programs.iter_mut() {
                dropped.extend(program.steps.extract_if(|_, s| s.used == oldest).map(|(_, s)| s));
            }
            dropped.into_iter().for_each(|prepared| self.forget(prepared));
        }
    }

    /// Prepares a step for a batch, if it is not prepared yet.
    pub(super) fn prepare_step(&mut self, id: ProgramId, key: StepKey) -> Result<(), ExecError> {
        if !self.programs[id].steps.contains_key(&key) {
            self.evict_oldest_steps();
            let mut plans = vec![];
            let mut max_bytes = (0, 0);
            for device in 0..self.devices.len() {
                let replicas = self.replicas_on(device, key.rows);
                let loaded = &self.programs[id];
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
            self.counts.relocations += u64::from(self.peers.is_some());
            let prepared = PreparedStep { plans, blocks, ids: vec![], relocations: 0, used: 0 };
            self.programs[id].steps.insert(key, prepared);
        }
        let prepared = &self.programs[id].steps[&key];
        if prepared.ids.is_empty() || prepared.relocations != self.counts.relocations {
            // A program that failed to allocate may have left less memory than this one needs.
            let (fixed, scratch) = (self.programs[id].blocks.clone(), prepared.blocks.clone());
            self.reserve_all(&fixed)?;
            self.reserve_all(&scratch)?;
            let prepared = self.programs[id].steps.get_mut(&key).expect("made above");
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
            let prepared = self.programs[id].steps.get_mut(&key).expect("made above");
            (prepared.ids, prepared.relocations) = (ids, self.counts.relocations);
        }
        self.counts.uses += 1;
        let uses = self.counts.uses;
        self.programs[id].steps.get_mut(&key).expect("made above").used = uses;
        Ok(())
    }
}
