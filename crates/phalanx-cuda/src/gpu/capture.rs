//! Capture of a step as a graph, synchronised across GPUs.

use super::resolve::ResolvedTask;
use super::streams::REDUCE_STREAM;
use super::{Gpu, call_lock, capture_lock};
use crate::collectives::peer_timeout;
use crate::device::StepId;
use phalanx_cuda_driver::driver::{Event, Failure, Graph, Result};
use phalanx_cuda_driver::libs::{self, Lib};
use phalanx_distributed::transport::nccl::{self, JoinError};
use phalanx_distributed::{Error, PeerError, ProcessGroup, RankAssignment};
use phalanx_exec::ExecError;
use std::sync::Arc;

impl Gpu {
    /// Forms a group of GPUs that reduce with each other, and with those of other processes.
    pub fn join(
        gpus: &mut [Gpu],
        peers: Option<&Arc<dyn ProcessGroup>>,
    ) -> std::result::Result<(), ExecError> {
        let _lock = call_lock();
        let names: Vec<String> = gpus.iter().map(|gpu| gpu.name.clone()).collect();
        let device = || names.join(", ");
        let failed = |e: Failure| ExecError::Device { device: device(), message: e.to_string() };
        libs::find(Lib::Nccl).map_err(|e| failed(Failure(e.to_string())))?;
        let make_id = || {
            nccl::make_id().map_err(|e| Error::Device { device: device(), message: e.to_string() })
        };
        let assignment =
            peers.map(|peers| RankAssignment::exchange(peers, gpus.len(), make_id)).transpose()?;
        let contexts = gpus.iter().map(|gpu| gpu.context.try_clone()).collect::<Result<_>>();
        let links =
            nccl::join(contexts.map_err(failed)?, assignment).map_err(|error| match error {
                JoinError::Local(failure) => failed(failure),
                JoinError::Timeout(message) | JoinError::PeerLost(PeerError { message, .. }) => {
                    match peers {
                        // The process group knows which peer is lost.
                        Some(peers) => peers.diagnose(message).into(),
                        None => peer_timeout(message),
                    }
                }
            })?;
        gpus.iter_mut().zip(links).for_each(|(gpu, link)| gpu.link = Some(link));
        Ok(())
    }

    pub(super) fn capture_step(&mut self, step: StepId) -> Result<()> {
        self.context.enter()?;
        let prepared = self.prepared(step)?;
        let capture = || {
            Graph::capture(self.streams.main(), || self.record(&prepared.ready, &prepared.slots))
        };
        let graph = match &self.link {
            None => {
                let _lock = capture_lock();
                capture()?
            }
            Some(link) => {
                link.run_all(call_lock, || self.warm_up_reductions(&prepared.ready))?;
                link.run_all(capture_lock, capture)?
            }
        };
        if let Some(Some(prepared)) = self.steps.get_mut(step.0) {
            prepared.graph = Some(graph);
        }
        Ok(())
    }

    /// Warms up a step's all-reduces: NCCL connects the GPUs on first use, which must not happen
    /// during a capture. Every step recomputes the reduced values.
    fn warm_up_reductions(&self, ready: &[Vec<ResolvedTask>]) -> Result<()> {
        let sums = ready.iter().flatten().filter(|task| matches!(task, ResolvedTask::Reduce(_)));
        sums.into_iter().try_for_each(|task| self.issue(task, REDUCE_STREAM))?;
        let event = Event::new()?;
        event.record(&self.streams.work[REDUCE_STREAM])?;
        self.wait(&event)
    }

    /// Waits for the step in flight. Fails if another GPU fails.
    pub(super) fn wait_for_group(&self) -> Result<()> {
        if self.link.is_none() {
            return Ok(());
        }
        self.context.enter()?;
        self.wait(&self.streams.done)
    }

    /// Waits for an event. Fails if another GPU fails first, or those of other processes do not
    /// respond.
    fn wait(&self, event: &Event) -> Result<()> {
        self.link.as_ref().map_or_else(|| event.synchronize(), |link| link.wait(event))
    }

    /// Fails if another GPU has failed.
    pub(super) fn check_group(&self) -> Result<()> {
        self.link.as_ref().map_or(Ok(()), nccl::Membership::check)
    }
}
