//! Measurement of a step's work items, each replayed as a graph.

use super::resolve::ResolvedTask;
use super::{Gpu, capture_lock};
use crate::device::StepId;
use phalanx_cuda_driver::driver::{DeviceBuffer, Event, Graph, Result};
use phalanx_exec::ExecError;

/// Repetitions of the tasks in a measured graph.
const REPEATS: usize = 20;

impl Gpu {
    /// Seconds per run of each work item when repeated. `None` for all-reduces, because other GPUs
    /// do not take part.
    pub(super) fn measure_step(
        &mut self,
        step: StepId,
    ) -> std::result::Result<Vec<Option<f64>>, ExecError> {
        let _lock = capture_lock();
        self.context.enter().map_err(|e| self.device_error(e))?;
        // Steps may have run on any stream, so one workspace must suffice for all.
        let bytes = self.memory.workspaces.iter().map(DeviceBuffer::bytes).max().unwrap_or(0);
        self.grow_workspace(0, bytes)?;
        self.measure_work_items(step).map_err(|e| self.device_error(e))
    }

    fn measure_work_items(&self, step: StepId) -> Result<Vec<Option<f64>>> {
        let seconds = |tasks: &Vec<ResolvedTask>| match tasks[..] {
            [ResolvedTask::Reduce(_)] => Ok(None),
            _ => self.measure_tasks(tasks).map(Some),
        };
        self.prepared(step)?.ready.iter().map(seconds).collect()
    }

    /// Seconds per run of repeated tasks: the minimum of several measurements.
    pub(super) fn measure_tasks(&self, tasks: &[ResolvedTask]) -> Result<f64> {
        let main = self.streams.main();
        let (start, end) = (Event::timed()?, Event::timed()?);
        let repeat = || {
            let all = (0..REPEATS).flat_map(|_| tasks);
            all.into_iter().try_for_each(|task| self.issue(task, 0))
        };
        let graph = Graph::capture(main, repeat)?;
        graph.launch(main)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            start.record(main)?;
            graph.launch(main)?;
            end.record(main)?;
            end.synchronize()?;
            fastest = fastest.min(end.since(&start)?);
        }
        Ok(fastest / REPEATS as f64)
    }
}
