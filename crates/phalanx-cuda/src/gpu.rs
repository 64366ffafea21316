//! A real GPU: memory, compiled kernels, library plans, captured graphs.

mod capture;
mod kernels;
mod measure;
mod memory;
mod multi_step;
mod products;
mod transfers;

use crate::cublas::{Cublas, GemmPlan};
use crate::cudnn::{ConvPlan, Cudnn};
use crate::device::{ArgLists, GpuDevice, MAX_STAGED_STEPS, Plan, StepId};
use crate::driver::{
    Context, DeviceBuffer, Event, Failure, Graph, PinnedBuffer, Result, Stream, cu,
};
use crate::launch::{Arg, Block, Launch, Ptr};
use crate::libs::{self, Lib};
use crate::nccl::{Link, Reduction};
use crate::plan::INPUT_COPIES;
use crate::process_group::peer_timeout;
use crate::schedule::{STREAMS, StreamSlot, schedule};
use crate::work_item::{Conv, Part, Task};
use crate::{autotune, driver, fallback};
use cudarc::driver::sys::CUfunction_attribute;
use kernels::{Function, Kernels, Tables, TapesHash};
use multi_step::StepListUpload;
use phalanx_graph::exec::ExecError;
use std::collections::{BTreeMap, HashMap};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use transfers::{HeadStaging, Staging};

/// The stream of all-reduces, after the others.
const REDUCE_STREAM: usize = STREAMS;

/// A task with all addresses and plans resolved.
enum ResolvedTask {
    Launch { function: Function, grid: [u32; 3], threads: u32, shared: u32, args: Vec<u64> },
    Gemm { plan: GemmPlan, at: [u64; 3], key: String },
    Conv { plan: ConvPlan, at: [u64; 3] },
    Clear { at: u64, bytes: usize },
    Reduce(Vec<Reduction>),
}

/// A prepared step.
struct PreparedStep {
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
    steps: Vec<Option<PreparedStep>>,
    kernels: Kernels,
    cudnn: Option<Cudnn>,
    cublas: Option<Cublas>,
    blocks: BTreeMap<(usize, Block), DeviceBuffer>,
    workspaces: Vec<DeviceBuffer>,
    /// Outgrown workspaces, each with the number of steps at that time: those steps may still use
    /// it.
    retired: Vec<(usize, DeviceBuffer)>,
    staging: Vec<Staging>,
    /// Index of the staging area to fill next.
    next: usize,
    heads: Vec<HeadStaging>,
    list_upload: StepListUpload,
    /// Recorded after the last started step.
    done: Event,
    fetched: Vec<PinnedBuffer>,
    streams: Vec<Stream>,
    copy_stream: Stream,
    name: String,
    /// Product name, which identifies the model in cached measurements.
    model: String,
    /// Whether products of 32-bit floats may be rounded for the tensor cores.
    tf32: bool,
    /// Membership in a group of GPUs that reduce with each other, if any.
    link: Option<Link>,
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
        let streams = (0..=REDUCE_STREAM).map(|_| Stream::new()).collect::<Result<_>>()?;
        let workspaces = (0..=REDUCE_STREAM).map(|_| DeviceBuffer::default()).collect();
        let staging = (0..MAX_STAGED_STEPS).map(|_| Staging::new()).collect::<Result<_>>()?;
        let heads = (0..MAX_STAGED_STEPS).map(|_| HeadStaging::new()).collect::<Result<_>>()?;
        Ok(Gpu {
            steps: vec![],
            kernels: Kernels::new(context.capability()?),
            cudnn: None,
            cublas: None,
            blocks: BTreeMap::new(),
            workspaces,
            retired: vec![],
            staging,
            next: 0,
            heads,
            list_upload: StepListUpload::new()?,
            done: Event::new()?,
            fetched: vec![],
            streams,
            copy_stream: Stream::new()?,
            name,
            model: driver::describe(index)?.0,
            tf32: std::env::var("PHALANX_TF32").map_or(true, |v| v != "0"),
            link: None,
            context,
        })
    }

    fn address(&self, at: Ptr) -> Result<u64> {
        let block = self.blocks.get(&(at.replica, at.block));
        let block = block.ok_or_else(|| Failure(format!("{at} has no memory")))?;
        if at.offset >= block.bytes() {
            return Err(Failure(format!(
                "{at} lies past the end of its block, {} bytes",
                block.bytes()
            )));
        }
        Ok(block.at() + at.offset as u64)
    }

    fn resolve_launch(
        &self,
        tapes_hash: TapesHash,
        launch: &Launch,
        tables: &mut Tables,
    ) -> Result<ResolvedTask> {
        let function = self.kernels.find(tapes_hash, launch)?;
        let mut args = Vec::with_capacity(launch.args.len());
        for arg in &launch.args {
            args.push(match arg {
                Arg::Table(words) => tables.add(self, words)?,
                Arg::Ptr(p) => self.address(*p)?,
                Arg::Null => 0,
                Arg::I32(v) => *v as u32 as u64,
                Arg::I64(v) => *v as u64,
                Arg::F32(v) => u64::from(v.to_bits()),
            });
        }
        if launch.shared > 48 << 10 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cu!(cuFuncSetAttribute(function.0, attribute, launch.shared as i32))?;
        }
        let (grid, threads, shared) = (launch.grid, launch.threads, launch.shared);
        Ok(ResolvedTask::Launch { function, grid, threads, shared, args })
    }

    fn resolve_conv(
        &mut self,
        tapes_hash: TapesHash,
        conv: &Conv,
        tables: &mut Tables,
    ) -> Result<ResolvedTask> {
        let at = [self.address(conv.x.at)?, self.address(conv.w.0)?, self.address(conv.y.at)?];
        if self.cudnn.is_none() {
            libs::find(Lib::Cudnn).map_err(|e| Failure(e.to_string()))?;
            self.cudnn = Some(Cudnn::new()?);
        }
        let cudnn = self.cudnn.as_ref().expect("opened above");
        match autotune::choose(cudnn, conv, at, self.tf32, &self.model, &self.streams[0])? {
            Some(plan) => Ok(ResolvedTask::Conv { plan, at }),
            None => {
                let launch = fallback::launch(conv);
                self.kernels.compile(tapes_hash, "", [&launch].into_iter())?;
                self.resolve_launch(tapes_hash, &launch, tables)
            }
        }
    }

    fn resolve_task(
        &mut self,
        tapes_hash: TapesHash,
        task: &Task,
        tables: &mut Tables,
    ) -> Result<ResolvedTask> {
        match task {
            Task::Launch(l) => self.resolve_launch(tapes_hash, l, tables),
            Task::Conv(conv) => self.resolve_conv(tapes_hash, conv, tables),
            Task::Gemm(gemm) => {
                let at = [gemm.a.at, gemm.b.at, gemm.c.at];
                let at = [self.address(at[0])?, self.address(at[1])?, self.address(at[2])?];
                let bias = gemm.bias.map(|b| self.address(b)).transpose()?;
                if self.cublas.is_none() {
                    libs::find(Lib::CublasLt).map_err(|e| Failure(e.to_string()))?;
                    self.cublas = Some(Cublas::new()?);
                }
                let cublas = self.cublas.as_ref().expect("opened above");
                let plan = cublas.plan(gemm, bias, self.tf32)?;
                Ok(ResolvedTask::Gemm {
                    plan,
                    at,
                    key: autotune::gemm_key(gemm, self.tf32, &self.model),
                })
            }
            Task::Clear(span) => {
                Ok(ResolvedTask::Clear { at: self.address(span.at)?, bytes: span.bytes })
            }
            Task::Reduce(parts) => {
                let sum = |Part { from, to, elem, len }: &Part| {
                    let (from, to) = (self.address(*from)?, self.address(*to)?);
                    Ok(Reduction { from, to, elem: *elem, len: *len })
                };
                parts.iter().map(sum).collect::<Result<_>>().map(ResolvedTask::Reduce)
            }
        }
    }

    fn issue(&self, task: &ResolvedTask, stream: usize) -> Result<()> {
        let (queue, workspace) = (&self.streams[stream], self.workspaces[stream].at());
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
                let cublas = self.cublas.as_ref().expect("opened for the plan");
                cublas.execute(plan, *at, workspace, queue)
            }
            ResolvedTask::Conv { plan, at } => {
                let cudnn = self.cudnn.as_ref().expect("opened for the plan");
                cudnn.execute(plan, *at, workspace, queue)
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
        let mut wanted = vec![0; self.streams.len()];
        for (tasks, slot) in ready.iter().zip(slots) {
            for task in tasks {
                let bytes = match task {
                    ResolvedTask::Gemm { plan, .. } => plan.workspace(),
                    ResolvedTask::Conv { plan, .. } => plan.workspace,
                    ResolvedTask::Launch { .. }
                    | ResolvedTask::Clear { .. }
                    | ResolvedTask::Reduce(_) => 0,
                };
                wanted[slot.stream] = bytes.max(wanted[slot.stream]);
            }
        }
        let each = wanted.into_iter().enumerate();
        each.into_iter().try_for_each(|(stream, bytes)| self.grow_workspace(stream, bytes))
    }

    /// Issues all work items to their streams, with their waits.
    fn record(&self, ready: &[Vec<ResolvedTask>], slots: &[StreamSlot]) -> Result<()> {
        let main = &self.streams[0];
        let fork = Event::new()?;
        fork.record(main)?;
        let mut entered = vec![false; self.streams.len()];
        entered[0] = true;
        let mut done: HashMap<usize, Event> = HashMap::new();
        for (i, (tasks, slot)) in ready.iter().zip(slots).enumerate() {
            let stream = &self.streams[slot.stream];
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
        for (stream, _) in self.streams.iter().zip(entered).skip(1).filter(|(_, e)| *e) {
            let join = Event::new()?;
            join.record(stream)?;
            main.wait(&join)?;
        }
        Ok(())
    }

    /// Compiles a step's kernels, selects its library plans and resolves its addresses.
    fn resolve(&mut self, plan: &Plan) -> Result<(Vec<Vec<ResolvedTask>>, Tables)> {
        let _lock = call_lock();
        self.context.enter()?;
        let tapes_hash = TapesHash::of(plan);
        let launches =
            plan.work_items.iter().flat_map(|w| &w.tasks).filter_map(|task| match task {
                Task::Launch(l) => Some(l),
                _ => None,
            });
        self.kernels.compile(tapes_hash, &plan.tapes, launches)?;
        let mut tables = Tables::new(plan)?;
        let mut ready = Vec::with_capacity(plan.work_items.len());
        for work in &plan.work_items {
            let tasks: Result<Vec<ResolvedTask>> =
                work.tasks.iter().map(|t| self.resolve_task(tapes_hash, t, &mut tables)).collect();
            ready.push(tasks.map_err(|e| Failure(format!("{}: {e}", work.label)))?);
        }
        Ok((ready, tables))
    }

    fn device_error(&self, failure: Failure) -> ExecError {
        match self.link.as_ref().and_then(Link::lost) {
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
        self.link.iter().for_each(Link::abort);
    }

    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> std::result::Result<bool, ExecError> {
        self.grow(replica, block, bytes).map_err(|e| self.allocation_error(e, bytes, purpose))
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
        let prepared = PreparedStep { graph: None, multi_step_graph: None, ready, slots, _tables };
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
        self.stage_feeds(replicas, bytes, fill)
            .map_err(|e| self.allocation_error(e, bytes, INPUT_COPIES))
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
        self.prepared(step).map_or(1, PreparedStep::steps_per_launch)
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
        self.context.enter().is_ok() && matches!(self.done.state(), Ok(false))
    }

    fn measure(&mut self, step: StepId) -> std::result::Result<Vec<Option<f64>>, ExecError> {
        self.measure_step(step)
    }

    fn finish(
        &mut self,
        from: Block,
        fetches: &mut [&mut [u8]],
    ) -> std::result::Result<(), ExecError> {
        let done = self.wait_for_group();
        done.and_then(|()| self.finish_steps(from, fetches)).map_err(|e| self.device_error(e))
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
        (self.cudnn, self.cublas) = (None, None);
        self.blocks.clear();
        self.workspaces.clear();
        self.retired.clear();
        self.staging.clear();
        self.heads.clear();
        self.list_upload.clear();
        self.fetched.clear();
        self.streams.clear();
    }
}
