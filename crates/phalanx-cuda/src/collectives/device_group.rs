//! GPUs with their replicas, run in parallel.

use super::ThreadPool;
use crate::device::{GpuDevice, Plan, StepId};
use crate::launch::Block;
use phalanx_exec::ExecError;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

/// A GPU and the replicas on it.
pub(crate) struct DeviceReplicas<M> {
    pub gpu: M,
    /// Indices of its replicas among those of all processes.
    pub replicas: Range<usize>,
    /// Fetched bytes of each replica.
    pub fetched: Vec<Vec<u8>>,
}

impl<M: GpuDevice> DeviceReplicas<M> {
    /// Assigns consecutive replicas to GPUs, starting at `first`. Each GPU comes with the names of
    /// its replicas.
    pub fn all(gpus: Vec<(M, Vec<String>)>, mut first: usize) -> Vec<DeviceReplicas<M>> {
        let device = |(gpu, names): (M, Vec<String>)| {
            let replicas = first..first + names.len();
            first = replicas.end;
            DeviceReplicas { gpu, fetched: vec![vec![]; replicas.len()], replicas }
        };
        gpus.into_iter().map(device).collect()
    }

    /// Grows a block of every replica to at least `bytes`. Returns how many blocks were relocated.
    pub fn reserve(&mut self, block: Block, bytes: usize, purpose: &str) -> Result<u64, ExecError> {
        let mut relocations = 0;
        for local in 0..self.replicas.len() {
            let moved = self.gpu.reserve(local, block, bytes, purpose);
            relocations += u64::from(moved.map_err(|e| self.per_replica(e))?);
        }
        Ok(relocations)
    }

    pub fn prepare(&mut self, plan: Plan) -> Result<StepId, ExecError> {
        self.gpu.prepare(plan).map_err(|e| self.per_replica(e))
    }

    /// Stages the feeds of the next step: `bytes` bytes of each replica.
    pub fn stage(
        &mut self,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError> {
        self.gpu.stage(self.replicas.len(), bytes, fill).map_err(|e| self.per_replica(e))
    }

    /// Waits for all started steps, then reads `bytes` bytes of a block of every replica.
    pub fn finish(&mut self, from: Block, bytes: usize) -> Result<(), ExecError> {
        self.fetched.iter_mut().for_each(|b| b.resize(bytes, 0));
        let mut buffers: Vec<&mut [u8]> = self.fetched.iter_mut().map(Vec::as_mut_slice).collect();
        self.gpu.finish(from, &mut buffers)
    }

    /// Divides the available memory of an out-of-memory error by the number of replicas that share
    /// the GPU.
    fn per_replica(&self, error: ExecError) -> ExecError {
        match error {
            ExecError::Memory { wanted, purpose, available } => ExecError::Memory {
                wanted,
                purpose,
                available: available.map(|bytes| bytes / self.replicas.len()),
            },
            other => other,
        }
    }
}

/// Runs `work` on all GPUs in parallel; one may wait for another. If one fails, the others are
/// aborted and its error is returned, since theirs only follow from it.
pub(crate) fn run_all<M: GpuDevice, R: Send>(
    threads: &ThreadPool,
    devices: &mut [DeviceReplicas<M>],
    work: impl Fn(usize, &mut DeviceReplicas<M>) -> Result<R, ExecError> + Sync,
) -> Result<Vec<R>, ExecError> {
    if let [alone] = devices {
        let done = work(0, alone);
        if done.is_err() {
            // GPUs of other processes may wait for this one.
            alone.gpu.abort();
        }
        return Ok(vec![done?]);
    }
    let first = OnceLock::new();
    let results = threads.each(devices, |i, device| {
        let done = catch_unwind(AssertUnwindSafe(|| work(i, device)));
        if !matches!(done, Ok(Ok(_))) {
            first.get_or_init(|| i);
            device.gpu.abort();
        }
        done
    });
    let mut results: Vec<Result<R, ExecError>> =
        results.into_iter().map(|done| done.unwrap_or_else(|panic| resume_unwind(panic))).collect();
    match first.get() {
        Some(i) => Err(results.swap_remove(*i).err().expect("it failed")),
        None => results.into_iter().collect(),
    }
}
