//! Measurement of the algorithms of matrix products, each replayed as a graph.

use super::resolve::ResolvedTask;
use super::{Gpu, capture_lock};
use phalanx_exec::ExecError;

impl Gpu {
    /// Measures the algorithms of a step's products, if they are to be recorded, and selects the fastest.
    pub(super) fn tune_products(
        &mut self,
        ready: &mut [Vec<ResolvedTask>],
    ) -> Result<(), ExecError> {
        for task in ready.iter_mut().flatten() {
            let ResolvedTask::Gemm { key, .. } = &*task else { continue };
            let key = key.clone();
            if !self.libraries.choices().must_measure(&key) {
                continue;
            }
            self.choose_fastest_product(task)?;
            let ResolvedTask::Gemm { plan, .. } = task else { continue };
            let recorded = plan
                .describe()
                .and_then(|algorithm| self.libraries.choices().record(&key, &algorithm));
            recorded.map_err(|e| self.device_error(e))?;
        }
        Ok(())
    }

    /// Selects the fastest proposal, or the library's own choice if none can be measured.
    fn choose_fastest_product(&mut self, task: &mut ResolvedTask) -> Result<(), ExecError> {
        let _lock = capture_lock();
        self.context.enter().map_err(|e| self.device_error(e))?;
        let ResolvedTask::Gemm { plan, .. } = &*task else { return Ok(()) };
        let mut best = (f64::INFINITY, 0);
        for index in 0..plan.proposals() {
            if let ResolvedTask::Gemm { plan, .. } = task {
                plan.choose(index);
                self.grow_workspace(0, plan.workspace())?;
            }
            if let Ok(seconds) = self.measure_tasks(std::slice::from_ref(task)) {
                best = if seconds < best.0 { (seconds, index) } else { best };
            }
        }
        if let ResolvedTask::Gemm { plan, .. } = task {
            plan.choose(best.1);
        }
        Ok(())
    }
}
