//! Which algorithm computes a product: the fastest of those proposed, each measured as a replayed graph
//! runs it.

use super::{Gpu, REPEATS, Ready, capturing};
use crate::autotune;
use crate::driver::{DeviceBuffer, Event, Graph, Result};

impl Gpu {
    /// Chooses for every product of a step; what was measured before is kept.
    pub(super) fn tune_products(&mut self, ready: &mut [Vec<Ready>]) -> Result<()> {
        let mut guard = None;
        for task in ready.iter_mut().flatten() {
            let Ready::Gemm { plan, key, .. } = task else { continue };
            if let Some(index) = autotune::kept(key) {
                plan.choose(index);
                continue;
            }
            if guard.is_none() {
                guard = Some(capturing());
                self.context.enter()?;
            }
            let key = key.clone();
            let best = self.fastest_product(task)?;
            let Ready::Gemm { plan, .. } = task else { continue };
            // Another process may have measured as well: the first one's choice is everybody's.
            let index = autotune::kept(&key).unwrap_or(best);
            plan.choose(index);
            autotune::keep(&key, index);
        }
        Ok(())
    }

    /// The number of the fastest proposal; the library's own choice where none can be measured.
    fn fastest_product(&mut self, task: &mut Ready) -> Result<usize> {
        let mut best = (f64::INFINITY, 0);
        let Ready::Gemm { plan, .. } = &*task else { return Ok(0) };
        for index in 0..plan.proposals() {
            if let Ready::Gemm { plan, .. } = task {
                plan.choose(index);
                if self.workspaces[0].bytes() < plan.workspace() {
                    let new = DeviceBuffer::new(plan.workspace())?;
                    self.retired.push(std::mem::replace(&mut self.workspaces[0], new));
                }
            }
            if let Ok(seconds) = self.measure_task(task) {
                best = if seconds < best.0 { (seconds, index) } else { best };
            }
        }
        Ok(best.1)
    }

    /// Seconds of a task that follows itself, the least of several.
    fn measure_task(&self, task: &Ready) -> Result<f64> {
        let main = &self.streams[0];
        let (start, end) = (Event::timed()?, Event::timed()?);
        let repeat = || (0..REPEATS).try_for_each(|_| self.issue(task, 0));
        let graph = Graph::capture(main, repeat)?;
        graph.launch(main)?;
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            start.record(main)?;
            graph.launch(main)?;
            end.record(main)?;
            end.synchronize()?;
            least = least.min(end.since(&start)?);
        }
        Ok(least / REPEATS as f64)
    }
}
