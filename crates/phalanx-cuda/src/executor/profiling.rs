//! The time of every instruction, measured on the first GPU.

use super::{GpuExecutor, StepKey};
use crate::collectives::DeviceReplicas;
use crate::device::GpuDevice;
use crate::launch::Ptr;
use phalanx_exec::{ExecError, Profiling, ProgramId};
use phalanx_graph::profile::Profile;

/// The profile of a program's step.
pub(super) struct Measured {
    rows: usize,
    /// Per instruction.
    seconds: Vec<f64>,
    /// Instructions with work items that were not measured.
    unmeasured: Vec<usize>,
}

impl<M: GpuDevice> GpuExecutor<M> {
    /// Measures every instruction on the first GPU. Weights and slots are restored afterwards.
    pub(super) fn measure(&mut self, id: ProgramId, key: StepKey) -> Result<(), ExecError> {
        let (blocks, param_bytes) = (self.state.blocks(), self.state.bytes);
        let loaded = &mut self.programs[id];
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
}

impl<M: GpuDevice> Profiling for GpuExecutor<M> {
    fn set_profiling(&mut self, on: bool) {
        self.timing.profiling = on;
        if on {
            self.programs.iter_mut().for_each(|p| p.measured = None);
        }
    }

    fn profile(&self, id: ProgramId) -> Option<Profile> {
        let loaded = self.programs.get(id)?;
        let Measured { rows, seconds, unmeasured } = loaded.measured.as_ref()?;
        Some(Profile::new(&loaded.program, *rows, 1, seconds).lacking(unmeasured))
    }
}
