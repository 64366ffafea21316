//! Selection of algorithms for matrix products: the fastest proposal, each replayed as a graph.

use super::resolve::ResolvedTask;
use super::{Gpu, capture_lock};
use crate::autotune;
use phalanx_exec::ExecError;

impl Gpu {
    /// Selects an algorithm for every product of a step. Cached measurements are reused.
    pub(super) fn tune_products(
        &mut self,
        ready: &mut [Vec<ResolvedTask>],
    ) -> Result<(), ExecError> {
        let mut guard = None;
        for task in ready.iter_mut().flatten() {
            let ResolvedTask::Gemm { plan, key, .. } = task else { continue };
            if let Some(index) = autotune::cached(key) {
                plan.choose(index);
                continue;
            }
            if guard.is_none() {
                guard = Some(capture_lock());
                self.context.enter().map_err(|e| self.device_error(e))?;
            }
            let key = key.clone();
            let best = self.fastest_product(task)?;
            let ResolvedTask::Gemm { plan, .. } = task else { continue };
            // Another process may have measured too: all use the first choice that was stored.
            let index = autotune::cached(&key).unwrap_or(best);
            plan.choose(index);
            autotune::store(&key, index);
        }
        Ok(())
    }

    /// Index of the fastest proposal, or the library's own choice if none can be measured.
    fn fastest_product(&mut self, task: &mut ResolvedTask) -> Result<usize, ExecError> {
        let mut best = (f64::INFINITY, 0);
        let ResolvedTask::Gemm { plan, .. } = &*task else { return Ok(0) };
        for index in 0..plan.proposals() {
            if let ResolvedTask::Gemm { plan, .. } = task {
                plan.choose(index);
                self.grow_workspace(0, plan.workspace())?;
            }
            if let Ok(seconds) = self.measure_tasks(std::slice::from_ref(task)) {
                best = if seconds < best.0 { (seconds, index) } else { best };
            }
        }
        Ok(best.1)
    }
}
