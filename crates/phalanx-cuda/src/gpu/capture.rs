//! A step's way into a graph, and GPUs that do it together.

use super::{Gpu, Ready, SUMS, capturing, working};
use crate::driver::{Failure, Graph, Result};
use crate::libs::{self, Lib};
use crate::machine::StepId;
use crate::nccl;
use phalanx_graph::exec::ExecError;

impl Gpu {
    /// Has GPUs add with each other from now on.
    pub fn join(gpus: &mut [Gpu]) -> std::result::Result<(), ExecError> {
        let _working = working();
        let linked = libs::find(Lib::Nccl).map_err(|e| Failure(e.to_string())).and_then(|_| {
            let contexts = gpus.iter().map(|gpu| gpu.context.again()).collect::<Result<_>>()?;
            nccl::join(contexts)
        });
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        let links = linked
            .map_err(|e| ExecError::Device { device: names.join(", "), message: e.to_string() })?;
        gpus.iter_mut().zip(links).for_each(|(gpu, link)| gpu.link = Some(link));
        Ok(())
    }

    pub(super) fn capture_step(&mut self, step: StepId) -> Result<()> {
        self.context.enter()?;
        let prepared = self.prepared(step)?;
        let capture =
            || Graph::capture(&self.streams[0], || self.record(&prepared.ready, &prepared.placed));
        let graph = match &self.link {
            None => {
                let _capturing = capturing();
                capture()?
            }
            Some(link) => {
                link.together(working, || self.rehearse(&prepared.ready))?;
                link.together(capturing, capture)?
            }
        };
        if let Some(Some(prepared)) = self.steps.get_mut(step.0) {
            prepared.graph = Some(graph);
        }
        Ok(())
    }

    /// Makes a step's sums over GPUs once: the library connects them when it first has to, which it must
    /// not while it is captured. What is added is made anew in every step.
    fn rehearse(&self, ready: &[Vec<Ready>]) -> Result<()> {
        let sums = ready.iter().flatten().filter(|task| matches!(task, Ready::Reduce(_)));
        sums.into_iter().try_for_each(|task| self.issue(task, SUMS))?;
        self.streams[SUMS].synchronize()
    }

    /// Waits for the step under way, unless another GPU fails in it.
    pub(super) fn wait_for_others(&self) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        self.context.enter()?;
        while !self.done.state()? {
            link.check()?;
            std::thread::yield_now();
        }
        link.check()
    }

    /// Fails where another GPU has.
    pub(super) fn check_others(&self) -> Result<()> {
        self.link.as_ref().map_or(Ok(()), nccl::Link::check)
    }
}
