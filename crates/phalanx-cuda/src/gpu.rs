//! A real GPU: memory, compiled kernels, library plans, captured graphs.

mod capture;
mod kernels;
mod libraries;
mod measure;
mod memory;
mod multi_step;
mod products;
mod resolve;
mod streams;
mod transfers;

use crate::collectives::peer_timeout;
use crate::device::{ArgLists, GpuDevice, Plan, StepId};
use crate::launch::{Block, Ptr};
use crate::plan::INPUT_COPIES;
use crate::schedule::{STREAMS, StreamSlot, schedule};
use kernels::{Kernels, Tables, TapesHash};
use libraries::Libraries;
use memory::Memory;
use phalanx_cuda_driver::driver::{self, Context, DeviceBuffer, Event, Failure, Graph, Result, cu};
use phalanx_cuda_driver::libs::{self, Lib};
use phalanx_distributed::transport::nccl::Membership;
use phalanx_exec::ExecError;
use resolve::{ResolvedTask, Resolver};
use std::collections::HashMap;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use streams::Streams;
use transfers::Transfers;

/// A prepared step.
struct CapturedStep {
    /// `None` until it is captured.
    graph: Option<Graph>,
    /// Several replays of the step in one graph.
    multi_step_graph: Option<Graph>,
    /// The operations that the graphs refer to, and their streams.
    ready: Vec<Vec<ResolvedTask>>,
    slots: Vec<StreamSlot>,
    _tables: DeviceBuffer,
}

/// Other GPU calls of this process would invalidate a capture in progress.
static CAPTURE: RwLock<()> = RwLock::new(());

/// Held while a step is captured.
fn capture_lock() -> RwLockWriteGuard<'static, ()> {
    CAPTURE.write().unwrap_or_else(|e| e.into_inner())
}

/// Held during all other GPU calls.
fn call_lock() -> RwLockReadGuard<'static, ()> {
    CAPTURE.read().unwrap_or_else(|e| e.into_inner())
}

/// One GPU.
pub(crate) struct Gpu {
    name: String,
    steps: Vec<Option<CapturedStep>>,
    kernels: Kernels,
    libraries: Libraries,
    memory: Memory,
    transfers: Transfers,
    streams: Streams,
    /// Membership in a group of GPUs that reduce with each other, if any.
    link: Option<Membership>,
    /// Dropped last, because the other fields depend on it.
    context: Context,
}

impl Gpu {
    /// Opens GPU `index`.
    pub fn open(index: usize) -> std::result::Result<Gpu, ExecError> {
        let name = format!("gpu:{index}");
        let failed = |message: String| ExecError::Device { device: name.clone(), message };
        for lib in [Lib::Driver, Lib::Nvrtc] {
            libs::find(lib).map_err(|e| failed(e.to_string()))?;
        }
        Gpu::with_context(index, name.clone()).map_err(|e| failed(e.0))
    }

    fn with_context(index: usize, name: String) -> Result<Gpu> {
        let _lock = call_lock();
        let context = Context::new(index)?;
        Ok(Gpu {
            name,
            steps: vec![],
            kernels: Kernels::new(context.capability()?),
            libraries: Libraries::new(driver::describe(index)?.0)?,
            memory: Memory::new(),
            transfers: Transfers::new()?,
            streams: Streams::new()?,
            link: None,
            context,
        })
    }

    /// Selects the GPU for this thread's calls. No step is captured until the guard is dropped.
    fn enter(&self) -> Result<RwLockReadGuard<'static, ()>> {
        let lock = call_lock();
        self.context.enter()?;
        Ok(lock)
    }

    fn issue(&self, task: &ResolvedTask, stream: usize) -> Result<()> {
        let queue = &self.streams.work[stream];
        let workspace = self.memory.workspaces[stream].at();
        match task {
            ResolvedTask::Launch { function, grid: [x, y, z], threads, shared, args } => {
                let mut pointers: Vec<*mut std::ffi::c_void> =
                    args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
                let (params, none) = (pointers.as_mut_ptr(), std::ptr::null_mut());
                let (x, y, z, threads) = (*x, *y, *z, *threads);
                cu!(cuLaunchKernel(
                    function.0, x, y, z, threads, 1, 1, *shared, queue.0, params, none
                ))
            }
            ResolvedTask::Gemm { plan, at, .. } => {
                self.libraries.cublas().execute(plan, *at, workspace, queue)
            }
            ResolvedTask::Conv { plan, at } => {
                self.libraries.cudnn().execute(plan, *at, workspace, queue)
            }
            ResolvedTask::Clear { at, bytes } => cu!(cuMemsetD8Async(*at, 0, *bytes, queue.0)),
            ResolvedTask::Reduce(sums) => match &self.link {
                Some(link) => link.reduce(sums, queue),
                None => Err(Failure("there is no other GPU to reduce with".into())),
            },
        }
    }

    /// Grows each stream's workspace to the size that its tasks need.
    fn grow_workspaces(
        &mut self,
        ready: &[Vec<ResolvedTask>],
        slots: &[StreamSlot],
    ) -> std::result::Result<(), ExecError> {
        let mut wanted = vec![0; self.streams.work.len()];
        for (tasks, slot) in ready.iter().zip(slots) {
            for task in tasks {
                wanted[slot.stream] = task.workspace().max(wanted[slot.stream]);
            }
        }
        let each = wanted.into_iter().enumerate();
        each.into_iter().try_for_each(|(stream, bytes)| self.grow_workspace(stream, bytes))
    }

    /// Issues all work items to their streams, with their waits.
    fn record(&self, ready: &[Vec<ResolvedTask>], slots: &[StreamSlot]) -> Result<()> {
        let streams = &self.streams.work;
        let main = self.streams.main();
        let fork = Event::new()?;
        fork.record(main)?;
        let mut entered = vec![false; streams.len()];
        entered[0] = true;
        let mut done: HashMap<usize, Event> = HashMap::new();
        for (i, (tasks, slot)) in ready.iter().zip(slots).enumerate() {
            let stream = &streams[slot.stream];
            if !std::mem::replace(&mut entered[slot.stream], true) {
                stream.wait(&fork)?;
            }
            for j in &slot.waits {
                stream.wait(&done[j])?;
            }
            for task in tasks {
                self.issue(task, slot.stream)?;
            }
            if slot.awaited {
                let event = Event::new()?;
                event.record(stream)?;
                done.insert(i, event);
            }
        }
        for (stream, _) in streams.iter().zip(entered).skip(1).filter(|(_, e)| *e) {
            let join = Event::new()?;
            join.record(stream)?;
            main.wait(&join)?;
        }
        Ok(())
    }

    /// Compiles a step's kernels, selects its library plans and resolves its addresses.
    fn resolve(&mut self, plan: &Plan) -> Result<(Vec<Vec<ResolvedTask>>, Tables)> {
        let _lock = self.enter()?;
        let mut resolver = Resolver {
            memory: &self.memory,
            kernels: &mut self.kernels,
            libraries: &mut self.libraries,
            stream: self.streams.main(),
            tapes_hash: TapesHash::of(plan),
            tables: Tables::new(plan)?,
        };
        let ready = resolver.step(plan)?;
        Ok((ready, resolver.tables))
    }

    fn device_error(&self, failure: Failure) -> ExecError {
        match self.link.as_ref().and_then(Membership::lost) {
            Some(message) => peer_timeout(message.into()),
            None => ExecError::Device { device: self.name.clone(), message: failure.0 },
        }
    }
}

impl GpuDevice for Gpu {
    fn joined(&self) -> bool {
        self.link.is_some()
    }

    fn abort(&mut self) {
        self.link.iter().for_each(Membership::abort);
    }

    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> std::result::Result<bool, ExecError> {
        let entered = self.enter();
        let grown =
            entered.and_then(|_lock| self.memory.grow(replica, block, bytes, self.streams.main()));
        grown.map_err(|e| self.allocation_error(e, bytes, purpose))
    }

    fn write(&mut self, at: Ptr, bytes: &[u8]) -> std::result::Result<(), ExecError> {
        self.copy_to_device(at, bytes).map_err(|e| self.device_error(e))
    }

    fn read(&self, at: Ptr, bytes: &mut [u8]) -> std::result::Result<(), ExecError> {
        self.copy_to_host(at, bytes).map_err(|e| self.device_error(e))
    }

    fn prepare(&mut self, plan: Plan) -> std::result::Result<StepId, ExecError> {
        let (mut ready, tables) = self.resolve(&plan).map_err(|e| self.device_error(e))?;
        self.tune_products(&mut ready)?;
        let slots = schedule(&plan.work_items, STREAMS);
        let _lock = call_lock();
        self.grow_workspaces(&ready, &slots)?;
        let _tables = tables.buffer;
        let prepared = CapturedStep { graph: None, multi_step_graph: None, ready, slots, _tables };
        self.steps.push(Some(prepared));
        Ok(StepId(self.steps.len() - 1))
    }

    fn capture(&mut self, step: StepId) -> std::result::Result<(), ExecError> {
        self.capture_step(step).map_err(|e| self.device_error(e))
    }

    fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> std::result::Result<(), ExecError> {
        let entered = self.enter();
        let staged = entered
            .and_then(|_lock| self.transfers.stage(replicas, bytes, fill, &self.streams.copy));
        staged.map_err(|e| self.allocation_error(e, bytes, INPUT_COPIES))
    }

    fn start(&mut self, step: StepId, head: &[u8]) -> std::result::Result<(), ExecError> {
        let ready = self.check_group();
        ready.and_then(|()| self.start_step(step, head)).map_err(|e| self.device_error(e))
    }

    fn start_steps(
        &mut self,
        step: StepId,
        steps: usize,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> std::result::Result<(), ExecError> {
        let ready = self.check_group();
        let start = |()| self.start_prepared_steps(step, steps, lists, fill);
        ready.and_then(start).map_err(|e| self.device_error(e))
    }

    fn steps_per_launch(&self, step: StepId) -> usize {
        self.prepared(step).map_or(1, CapturedStep::steps_per_launch)
    }

    fn forget(&mut self, step: StepId) {
        self.drop_step(step);
    }

    fn free(&mut self, replica: usize, block: Block) {
        self.drop_block(replica, block);
    }

    fn free_memory(&self) -> Option<usize> {
        self.context.enter().ok()?;
        driver::memory().ok().map(|(free, _)| free)
    }

    fn busy(&self) -> bool {
        self.context.enter().is_ok() && matches!(self.streams.done.state(), Ok(false))
    }

    fn measure(&mut self, step: StepId) -> std::result::Result<Vec<Option<f64>>, ExecError> {
        self.measure_step(step)
    }

    fn finish(
        &mut self,
        from: Block,
        fetches: &mut [&mut [u8]],
    ) -> std::result::Result<(), ExecError> {
        let entered = self.wait_for_group().and_then(|()| self.enter());
        let fetched = entered.and_then(|_lock| {
            self.transfers.fetch(from, fetches, &self.memory, self.streams.main())
        });
        fetched.map_err(|e| self.device_error(e))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _lock = call_lock();
        self.context.enter().ok();
        // Free them here, while no capture is in progress.
        self.steps.clear();
        self.link = None;
        self.kernels.clear();
        self.libraries.close();
        self.memory.clear();
        self.transfers.clear();
        self.streams.work.clear();
    }
}
