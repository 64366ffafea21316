//! A GPU that carries out steps: memory, compiled kernels, library plans, captured graphs.

use crate::cublas::{Cublas, GemmPlan};
use crate::cudnn::{ConvPlan, Cudnn};
use crate::driver::{
    Context, DeviceBuffer, Event, Failure, Graph, Module, PinnedBuffer, Result, Stream, cu,
};
use crate::inputs::INPUT_BYTES;
use crate::launch::{Arg, Block, Launch, Ptr, Source, Word};
use crate::libs::{self, Lib};
use crate::machine::{Machine, Plan, StepId};
use crate::schedule::{Placed, schedule};
use crate::task::{Conv, Task, Work};
use crate::{autotune, driver, fallback, nvrtc};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute};
use phalanx_graph::exec::ExecError;
use std::collections::{BTreeMap, HashMap};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Works that may run side by side.
const STREAMS: usize = 4;

/// How often a work follows itself while it is measured.
const REPEATS: usize = 20;

/// Steps whose inputs may be on their way at the same time.
const AHEAD: usize = 2;

/// A kernel's function in a loaded module.
#[derive(Clone, Copy)]
struct Function(CUfunction);

// SAFETY: functions belong to a module of the same owner.
unsafe impl Send for Function {}

/// A fingerprint of a text.
type Text = u64;

/// What tells kernels of the same name apart: those of tapes are each plan's own.
fn text_of(source: Source, tapes: &str) -> Text {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    if source == Source::Tapes {
        tapes.hash(&mut hasher);
    }
    hasher.finish()
}

/// A task with everything resolved.
enum Ready {
    Launch { function: Function, grid: [u32; 3], threads: u32, shared: u32, args: Vec<u64> },
    Gemm { plan: GemmPlan, at: [u64; 3] },
    Conv { plan: ConvPlan, at: [u64; 3] },
    Clear { at: u64, bytes: usize },
}

/// A step made ready.
struct Prepared {
    graph: Graph,
    /// What the graph's nodes refer to.
    ready: Vec<Vec<Ready>>,
    _tables: DeviceBuffer,
}

/// A place for feeds on their way to the GPU.
struct Staging {
    /// By replica.
    host: Vec<PinnedBuffer>,
    device: Vec<DeviceBuffer>,
    bytes: usize,
    /// Passed once they are on the GPU.
    arrived: Event,
    /// Passed once the step has taken them.
    taken: Event,
}

/// A place for heads on their way to the GPU.
struct Head {
    host: PinnedBuffer,
    /// Passed once all replicas have it.
    taken: Event,
}

/// Whatever else this process does on its GPUs would spoil a step that is being captured.
static CAPTURE: RwLock<()> = RwLock::new(());

/// Held while a step is captured.
fn capturing() -> RwLockWriteGuard<'static, ()> {
    CAPTURE.write().unwrap_or_else(|e| e.into_inner())
}

/// Held while anything else is done.
fn working() -> RwLockReadGuard<'static, ()> {
    CAPTURE.read().unwrap_or_else(|e| e.into_inner())
}

/// One GPU.
pub(crate) struct Gpu {
    // Dropped in this order; the context goes last.
    steps: Vec<Prepared>,
    /// By source, the text written for one plan alone, and name.
    functions: HashMap<(Source, Text, String), Function>,
    modules: Vec<Module>,
    cudnn: Option<Cudnn>,
    cublas: Option<Cublas>,
    blocks: BTreeMap<(usize, Block), DeviceBuffer>,
    workspaces: Vec<DeviceBuffer>,
    /// Workspaces that earlier steps still use.
    retired: Vec<DeviceBuffer>,
    staging: Vec<Staging>,
    /// Which of them is filled next.
    next: usize,
    heads: Vec<Head>,
    /// Passed once everything started is done.
    done: Event,
    fetched: Vec<PinnedBuffer>,
    streams: Vec<Stream>,
    copies: Stream,
    capability: i32,
    name: String,
    /// Whether products of 32-bit floats may be rounded for the tensor cores.
    tf32: bool,
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
        let _working = working();
        let context = Context::new(index)?;
        let streams = (0..STREAMS).map(|_| Stream::new()).collect::<Result<_>>()?;
        let workspaces = (0..STREAMS).map(|_| DeviceBuffer::default()).collect();
        let place = |_| {
            let (host, device, bytes) = (vec![], vec![], 0);
            Ok(Staging { host, device, bytes, arrived: Event::new()?, taken: Event::new()? })
        };
        let staging = (0..AHEAD).map(place).collect::<Result<_>>()?;
        let head = |_| Ok(Head { host: PinnedBuffer::new(INPUT_BYTES)?, taken: Event::new()? });
        let heads = (0..AHEAD).map(head).collect::<Result<_>>()?;
        Ok(Gpu {
            steps: vec![],
            functions: HashMap::new(),
            modules: vec![],
            cudnn: None,
            cublas: None,
            blocks: BTreeMap::new(),
            workspaces,
            retired: vec![],
            staging,
            next: 0,
            heads,
            done: Event::new()?,
            fetched: vec![],
            streams,
            copies: Stream::new()?,
            capability: context.capability()?,
            name,
            tf32: std::env::var("PHALANX_TF32").map_or(true, |v| v != "0"),
            context,
        })
    }

    fn address(&self, at: Ptr) -> Result<u64> {
        let block = self.blocks.get(&(at.replica, at.block));
        let block = block.ok_or_else(|| Failure(format!("{at} has no memory")))?;
        if at.offset >= block.bytes() {
            return Err(Failure(format!("{at} lies behind the end, {} bytes", block.bytes())));
        }
        Ok(block.at() + at.offset as u64)
    }

    /// Compiles the kernels that are not there yet, source by source.
    fn compile(&mut self, plan: &Plan) -> Result<()> {
        let mut missing: BTreeMap<Source, Vec<String>> = BTreeMap::new();
        for task in plan.work.iter().flat_map(|w| &w.tasks) {
            let Task::Launch(l) = task else { continue };
            let key = (l.source, text_of(l.source, &plan.tapes), l.kernel.clone());
            let known = self.functions.contains_key(&key);
            let names = missing.entry(l.source).or_default();
            if !known && !names.contains(&l.kernel) {
                names.push(l.kernel.clone());
            }
        }
        missing.retain(|_, names| !names.is_empty());
        let capability = self.capability;
        let compiled = std::thread::scope(|scope| {
            let jobs: Vec<_> = missing
                .iter_mut()
                .map(|(source, names)| {
                    names.sort();
                    let job = scope.spawn(|| {
                        let text = nvrtc::source(*source, &plan.tapes)?;
                        nvrtc::compile(&text, names, capability)
                    });
                    (*source, job)
                })
                .collect();
            let join = |(source, job): (Source, std::thread::ScopedJoinHandle<'_, _>)| {
                let died = |_| Err(Failure("the kernel compiler failed".into()));
                Ok((source, job.join().unwrap_or_else(died)?))
            };
            jobs.into_iter().map(join).collect::<Result<Vec<(Source, nvrtc::Compiled)>>>()
        })?;
        for (source, code) in compiled {
            let module = Module::load(&code.cubin)?;
            for (kernel, lowered) in code.names {
                let function = Function(module.function(&lowered)?);
                let text = text_of(source, &plan.tapes);
                self.functions.insert((source, text, kernel), function);
            }
            self.modules.push(module);
        }
        Ok(())
    }

    fn ready_launch(&self, launch: &Launch, tables: &mut Tables) -> Result<Ready> {
        let key = (launch.source, tables.text(launch.source), launch.kernel.clone());
        let function = self.functions[&key];
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
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cu!(cuFuncSetAttribute(function.0, most, launch.shared as i32))?;
        }
        let (grid, threads, shared) = (launch.grid, launch.threads, launch.shared);
        Ok(Ready::Launch { function, grid, threads, shared, args })
    }

    fn ready_conv(&mut self, conv: &Conv, tables: &mut Tables) -> Result<Ready> {
        let at = [self.address(conv.x.at)?, self.address(conv.w.0)?, self.address(conv.y.at)?];
        if self.cudnn.is_none() {
            libs::find(Lib::Cudnn).map_err(|e| Failure(e.to_string()))?;
            self.cudnn = Some(Cudnn::new()?);
        }
        let cudnn = self.cudnn.as_ref().expect("opened above");
        match autotune::choose(cudnn, conv, at, self.tf32, &self.streams[0])? {
            Some(plan) => Ok(Ready::Conv { plan, at }),
            None => {
                let launch = fallback::launch(conv);
                let plan = Plan {
                    work: vec![Work::of(vec![Task::Launch(launch.clone())])],
                    tapes: String::new(),
                };
                self.compile(&plan)?;
                self.ready_launch(&launch, tables)
            }
        }
    }

    fn ready(&mut self, task: &Task, tables: &mut Tables) -> Result<Ready> {
        match task {
            Task::Launch(l) => self.ready_launch(l, tables),
            Task::Conv(conv) => self.ready_conv(conv, tables),
            Task::Gemm(gemm) => {
                let at = [gemm.a.at, gemm.b.at, gemm.c.at];
                let at = [self.address(at[0])?, self.address(at[1])?, self.address(at[2])?];
                let bias = gemm.bias.map(|b| self.address(b)).transpose()?;
                if self.cublas.is_none() {
                    libs::find(Lib::CublasLt).map_err(|e| Failure(e.to_string()))?;
                    self.cublas = Some(Cublas::new()?);
                }
                let cublas = self.cublas.as_ref().expect("opened above");
                Ok(Ready::Gemm { plan: cublas.plan(gemm, bias, self.tf32)?, at })
            }
            Task::Clear(span) => Ok(Ready::Clear { at: self.address(span.at)?, bytes: span.bytes }),
        }
    }

    fn issue(&self, task: &Ready, stream: usize) -> Result<()> {
        let (queue, workspace) = (&self.streams[stream], self.workspaces[stream].at());
        match task {
            Ready::Launch { function, grid: [x, y, z], threads, shared, args } => {
                let mut pointers: Vec<*mut std::ffi::c_void> =
                    args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
                let (params, none) = (pointers.as_mut_ptr(), std::ptr::null_mut());
                let (x, y, z, threads) = (*x, *y, *z, *threads);
                cu!(cuLaunchKernel(
                    function.0, x, y, z, threads, 1, 1, *shared, queue.0, params, none
                ))
            }
            Ready::Gemm { plan, at } => {
                let cublas = self.cublas.as_ref().expect("opened for the plan");
                cublas.execute(plan, *at, workspace, queue)
            }
            Ready::Conv { plan, at } => {
                let cudnn = self.cudnn.as_ref().expect("opened for the plan");
                cudnn.execute(plan, *at, workspace, queue)
            }
            Ready::Clear { at, bytes } => cu!(cuMemsetD8Async(*at, 0, *bytes, queue.0)),
        }
    }

    /// Grows each stream's workspace to what its tasks need.
    fn grow_workspaces(
        &mut self,
        ready: &[Vec<Ready>],
        placed: &[Placed],
    ) -> std::result::Result<(), ExecError> {
        let mut wanted = vec![0; self.streams.len()];
        for (tasks, place) in ready.iter().zip(placed) {
            for task in tasks {
                let bytes = match task {
                    Ready::Gemm { plan, .. } => plan.workspace,
                    Ready::Conv { plan, .. } => plan.workspace,
                    Ready::Launch { .. } | Ready::Clear { .. } => 0,
                };
                wanted[place.stream] = bytes.max(wanted[place.stream]);
            }
        }
        let all: usize = wanted.iter().sum();
        for (stream, bytes) in wanted.into_iter().enumerate() {
            if self.workspaces[stream].bytes() < bytes {
                let new = DeviceBuffer::new(bytes);
                let new = new.map_err(|e| self.refused(e, bytes, "workspaces", all))?;
                self.retired.push(std::mem::replace(&mut self.workspaces[stream], new));
            }
        }
        Ok(())
    }

    /// Puts all works into their streams, with their waits.
    fn record(&self, ready: &[Vec<Ready>], placed: &[Placed]) -> Result<()> {
        let main = &self.streams[0];
        let fork = Event::new()?;
        fork.record(main)?;
        let mut entered = vec![false; self.streams.len()];
        entered[0] = true;
        let mut done: HashMap<usize, Event> = HashMap::new();
        for (i, (tasks, place)) in ready.iter().zip(placed).enumerate() {
            let stream = &self.streams[place.stream];
            if !std::mem::replace(&mut entered[place.stream], true) {
                stream.wait(&fork)?;
            }
            for j in &place.waits {
                stream.wait(&done[j])?;
            }
            for task in tasks {
                self.issue(task, place.stream)?;
            }
            if place.awaited {
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

    /// Compiles a step's kernels, chooses its plans and finds its addresses.
    fn resolve(&mut self, plan: &Plan) -> Result<(Vec<Vec<Ready>>, Tables)> {
        let _working = working();
        self.context.enter()?;
        self.compile(plan)?;
        let mut tables = Tables::new(plan)?;
        let mut ready = Vec::with_capacity(plan.work.len());
        for work in &plan.work {
            let tasks: Result<Vec<Ready>> =
                work.tasks.iter().map(|t| self.ready(t, &mut tables)).collect();
            ready.push(tasks.map_err(|e| Failure(format!("{}: {e}", work.label)))?);
        }
        Ok((ready, tables))
    }

    /// Seconds of each work when it follows itself in a graph.
    fn measure_step(&mut self, step: StepId) -> Result<Vec<f64>> {
        let _capturing = capturing();
        self.context.enter()?;
        let main = &self.streams[0];
        let (start, end) = (Event::timed()?, Event::timed()?);
        let mut seconds = vec![];
        // Steps may have been placed in any stream: one workspace must do for all.
        let room = self.workspaces.iter().map(DeviceBuffer::bytes).max().unwrap_or(0);
        if self.workspaces[0].bytes() < room {
            let old = std::mem::replace(&mut self.workspaces[0], DeviceBuffer::new(room)?);
            self.retired.push(old);
        }
        for tasks in &self.steps[step.0].ready {
            let repeat = || {
                let all = (0..REPEATS).flat_map(|_| tasks);
                all.into_iter().try_for_each(|task| self.issue(task, 0))
            };
            let graph = Graph::capture(main, repeat)?;
            let mut least = f64::INFINITY;
            for _ in 0..3 {
                start.record(main)?;
                graph.launch(main)?;
                end.record(main)?;
                end.synchronize()?;
                least = least.min(end.since(&start)?);
            }
            seconds.push(least / REPEATS as f64);
        }
        Ok(seconds)
    }

    fn stage_feeds(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let place = &mut self.staging[self.next % AHEAD];
        // What was here before must be on the GPU before it is written over.
        place.arrived.synchronize()?;
        self.copies.wait(&place.taken)?;
        place.bytes = bytes;
        for replica in 0..replicas {
            if place.host.len() == replica {
                place.host.push(PinnedBuffer::new(bytes)?);
                place.device.push(DeviceBuffer::new(bytes)?);
            }
            if place.host[replica].bytes() < bytes {
                place.taken.synchronize()?;
                place.host[replica] = PinnedBuffer::new(bytes)?;
                place.device[replica] = DeviceBuffer::new(bytes)?;
            }
            let host = &mut place.host[replica].as_mut_slice()[..bytes];
            fill(replica, host);
            if bytes > 0 {
                let (to, from) = (place.device[replica].at(), host.as_ptr().cast());
                cu!(cuMemcpyHtoDAsync_v2(to, from, bytes, self.copies.0))?;
            }
        }
        place.arrived.record(&self.copies)
    }

    fn start_step(&mut self, step: StepId, head: &[u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let stream = &self.streams[0];
        let at = self.next % AHEAD;
        self.next += 1;
        let (place, sent) = (&self.staging[at], &mut self.heads[at]);
        sent.taken.synchronize()?;
        sent.host.as_mut_slice()[..head.len()].copy_from_slice(head);
        stream.wait(&place.arrived)?;
        for (replica, feeds) in place.device.iter().enumerate() {
            let to = self.blocks[&(replica, Block::Inputs)].at();
            let from = sent.host.as_slice().as_ptr().cast();
            cu!(cuMemcpyHtoDAsync_v2(to, from, head.len(), stream.0))?;
            if place.bytes > 0 {
                let behind = to + INPUT_BYTES as u64;
                cu!(cuMemcpyDtoDAsync_v2(behind, feeds.at(), place.bytes, stream.0))?;
            }
        }
        place.taken.record(stream)?;
        sent.taken.record(stream)?;
        self.steps[step.0].graph.launch(stream)?;
        self.done.record(stream)
    }

    fn finish_steps(&mut self, fetches: &mut [&mut [u8]]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let stream = &self.streams[0];
        for (replica, bytes) in fetches.iter().enumerate() {
            if self.fetched.len() == replica {
                self.fetched.push(PinnedBuffer::new(bytes.len())?);
            }
            if self.fetched[replica].bytes() < bytes.len() {
                self.fetched[replica] = PinnedBuffer::new(bytes.len())?;
            }
            if !bytes.is_empty() {
                let from = self.blocks[&(replica, Block::Fetches)].at();
                let to = self.fetched[replica].as_mut_slice().as_mut_ptr().cast();
                cu!(cuMemcpyDtoHAsync_v2(to, from, bytes.len(), stream.0))?;
            }
        }
        stream.synchronize()?;
        for (to, from) in fetches.iter_mut().zip(&self.fetched) {
            to.copy_from_slice(&from.as_slice()[..to.len()]);
        }
        Ok(())
    }

    fn grow(&mut self, replica: usize, block: Block, bytes: usize) -> Result<bool> {
        let _working = working();
        self.context.enter()?;
        let old = self.blocks.get(&(replica, block)).map_or(0, DeviceBuffer::bytes);
        if bytes <= old {
            return Ok(false);
        }
        self.streams[0].synchronize()?;
        let new = DeviceBuffer::new(bytes)?;
        if let Some(old) = self.blocks.get(&(replica, block)) {
            cu!(cuMemcpyDtoDAsync_v2(new.at(), old.at(), old.bytes(), self.streams[0].0))?;
            self.streams[0].synchronize()?;
        }
        let moved = self.blocks.insert((replica, block), new).is_some();
        Ok(moved)
    }

    fn failed(&self, failure: Failure) -> ExecError {
        ExecError::Device { device: self.name.clone(), message: failure.0 }
    }

    /// An allocation that failed. `besides` are bytes that are needed on top of all blocks.
    fn refused(&self, e: Failure, wanted: usize, purpose: &str, besides: usize) -> ExecError {
        if !e.0.contains("OUT_OF_MEMORY") {
            return self.failed(e);
        }
        let free = driver::memory().map_or(0, |(free, _)| free);
        let held: usize = self.blocks.values().map(DeviceBuffer::bytes).sum();
        let available = Some((free + held).saturating_sub(besides));
        let purpose = format!("{purpose} on {}", self.name);
        ExecError::Memory { wanted, purpose, available }
    }

    fn copy_in(&mut self, at: Ptr, bytes: &[u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyHtoD_v2(self.address(at)?, bytes.as_ptr().cast(), bytes.len()))
    }

    fn copy_out(&self, at: Ptr, bytes: &mut [u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address(at)?, bytes.len()))
    }
}

/// The tables of a step, one behind the other.
struct Tables {
    buffer: DeviceBuffer,
    used: usize,
    tapes: Text,
}

impl Tables {
    fn new(plan: &Plan) -> Result<Tables> {
        let tasks = plan.work.iter().flat_map(|w| &w.tasks);
        let words: usize = tasks
            .map(|task| match task {
                Task::Launch(l) => l.args.iter().map(table_words).sum(),
                // Where the library does not take it, a kernel of our own gets its geometry.
                Task::Conv(_) => fallback::TABLE_WORDS,
                _ => 0,
            })
            .sum();
        let tapes = text_of(Source::Tapes, &plan.tapes);
        Ok(Tables { buffer: DeviceBuffer::new(words * 8)?, used: 0, tapes })
    }

    fn text(&self, source: Source) -> Text {
        if source == Source::Tapes { self.tapes } else { text_of(source, "") }
    }

    fn add(&mut self, gpu: &Gpu, words: &[Word]) -> Result<u64> {
        let mut bytes = Vec::with_capacity(words.len() * 8);
        for word in words {
            let bits = match word {
                Word::Ptr(p) => gpu.address(*p)?,
                Word::I64(v) => *v as u64,
                Word::F32(v) => u64::from(v.to_bits()),
            };
            bytes.extend(bits.to_le_bytes());
        }
        let at = self.buffer.at() + self.used as u64;
        self.used += bytes.len();
        cu!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()))?;
        Ok(at)
    }
}

fn table_words(arg: &Arg) -> usize {
    if let Arg::Table(words) = arg { words.len() } else { 0 }
}

impl Machine for Gpu {
    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> std::result::Result<bool, ExecError> {
        self.grow(replica, block, bytes).map_err(|e| self.refused(e, bytes, purpose, 0))
    }

    fn write(&mut self, at: Ptr, bytes: &[u8]) -> std::result::Result<(), ExecError> {
        self.copy_in(at, bytes).map_err(|e| self.failed(e))
    }

    fn read(&self, at: Ptr, bytes: &mut [u8]) -> std::result::Result<(), ExecError> {
        self.copy_out(at, bytes).map_err(|e| self.failed(e))
    }

    fn prepare(&mut self, plan: Plan) -> std::result::Result<StepId, ExecError> {
        let (ready, tables) = self.resolve(&plan).map_err(|e| self.failed(e))?;
        let placed = schedule(&plan.work, self.streams.len());
        let working = working();
        self.grow_workspaces(&ready, &placed)?;
        drop(working);
        let capturing = capturing();
        let graph = Graph::capture(&self.streams[0], || self.record(&ready, &placed));
        drop(capturing);
        let graph = graph.map_err(|e| self.failed(e))?;
        self.steps.push(Prepared { graph, ready, _tables: tables.buffer });
        Ok(StepId(self.steps.len() - 1))
    }

    fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> std::result::Result<(), ExecError> {
        self.stage_feeds(replicas, bytes, fill).map_err(|e| self.failed(e))
    }

    fn start(&mut self, step: StepId, head: &[u8]) -> std::result::Result<(), ExecError> {
        self.start_step(step, head).map_err(|e| self.failed(e))
    }

    fn busy(&self) -> bool {
        self.context.enter().is_ok() && !self.done.passed()
    }

    fn measure(&mut self, step: StepId) -> std::result::Result<Vec<f64>, ExecError> {
        self.measure_step(step).map_err(|e| self.failed(e))
    }

    fn finish(&mut self, fetches: &mut [&mut [u8]]) -> std::result::Result<(), ExecError> {
        self.finish_steps(fetches).map_err(|e| self.failed(e))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _working = working();
        self.context.enter().ok();
        // Freed here, while nobody captures.
        self.steps.clear();
        self.modules.clear();
        (self.cudnn, self.cublas) = (None, None);
        self.blocks.clear();
        self.workspaces.clear();
        self.retired.clear();
        self.staging.clear();
        self.heads.clear();
        self.fetched.clear();
        self.streams.clear();
    }
}
