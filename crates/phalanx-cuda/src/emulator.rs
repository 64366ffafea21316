//! A GPU emulated on the host, to test kernels and plans without a GPU. Kernels run thread by
//! thread, products as plain loops. The emulator detects errors that a GPU would not report:
//! barriers that not all threads reach, writes outside of blocks, work items that access undeclared
//! memory, and arguments whose types differ from the kernel's. With a seed, work items, blocks and
//! threads run in a random valid order.

mod all_reduce;
mod inventory;
mod library;
mod mailbox;
mod memory;
mod narrow;
mod order;
mod products;
#[cfg(test)]
mod tests;

use crate::device::{ArgLists, GpuDevice, MAX_STAGED_STEPS, Plan, StepId};
use crate::devices::GpuInfo;
use crate::executor::GpuExecutor;
use crate::launch::{Arg, Block, Launch, Ptr, Source, Word};
use crate::nvrtc;
use crate::plan::{INPUT_COPIES, WORKSPACES, workspaces};
use crate::process_group::{NcclId, RankAssignment, peer_timeout};
use crate::work_item::{Task, WorkItem};
use all_reduce::{AllReduceGroup, Link};
use library::Kernel;
use memory::{Bytes, Memory};
use order::Random;
use phalanx_graph::ParamSpec;
use phalanx_graph::exec::{ExecError, Executor};
use phalanx_graph::process_group::Cluster;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

pub use crate::inputs::INPUT_BYTES;
pub use inventory::KernelInventory;
pub(crate) use mailbox::transport;

/// Stack size of a thread, in bytes.
const STACK_BYTES: usize = 128 << 10;
/// One per thread of a block, one to start from, one for the run itself.
const STACKS: usize = 1024 + 2;
/// Maximum dynamic shared memory of a block, in bytes.
const MAX_SHARED: u32 = 227 << 10;
/// Steps per launch in tests.
const STEPS_PER_LAUNCH: usize = 3;
/// Guard bytes after a block's shared memory.
const SHARED_GUARD: usize = 256;

/// Creates an executor with replicas on one emulated GPU.
///
/// # Errors
/// There is not enough memory.
pub fn executor(
    replicas: usize,
    seed: Option<u64>,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let names = (0..replicas).map(|part| format!("emulated:0/{part}")).collect();
    Ok(Box::new(GpuExecutor::new(vec![(EmulatedGpu::new(seed), names)], params, None)?))
}

/// Creates an executor with several emulated GPUs; `replicas` is the number of replicas on each. A
/// single GPU reduces with itself, on the same code path as several.
///
/// # Errors
/// There is not enough memory.
pub fn joined_executor(
    replicas: &[usize],
    seed: Option<u64>,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    open(names(replicas), true, seed, params, None)
}

/// Like [`joined_executor`], for the GPUs of one process of a cluster.
///
/// # Errors
/// There is not enough memory, or another process was lost.
pub fn cluster_executor(
    replicas: &[usize],
    seed: Option<u64>,
    params: &[ParamSpec],
    cluster: Cluster,
) -> Result<Box<dyn Executor>, ExecError> {
    open(names(replicas), true, seed, params, Some(cluster))
}

fn names(replicas: &[usize]) -> Vec<Vec<String>> {
    let each = replicas.iter().enumerate();
    each.map(|(gpu, n)| (0..*n).map(|part| format!("emulated:{gpu}/{part}")).collect()).collect()
}

/// Creates an executor with an emulated GPU for each list of replicas. If `joined`, they reduce
/// with each other, and with those of other processes.
pub(crate) fn open(
    replicas: Vec<Vec<String>>,
    joined: bool,
    seed: Option<u64>,
    params: &[ParamSpec],
    cluster: Option<Cluster>,
) -> Result<Box<dyn Executor>, ExecError> {
    let gpus = replicas.len();
    let assignment =
        cluster.as_ref().map(|c| RankAssignment::exchange(&c.peers, gpus, || Ok(make_id())));
    let assignment = assignment.transpose()?;
    let first = assignment.as_ref().map_or(0, |assignment| assignment.first);
    let group = match &assignment {
        Some(assignment) => AllReduceGroup::of(assignment),
        None => Arc::new(AllReduceGroup::new(gpus, Duration::MAX)),
    };
    let device = |(at, names): (usize, Vec<String>)| {
        let link = Link { group: group.clone(), rank: first + at, remote: assignment.is_some() };
        let gpu = EmulatedGpu::new(seed.map(|seed| seed + at as u64));
        (EmulatedGpu { link: joined.then_some(link), ..gpu }, names)
    };
    let devices = replicas.into_iter().enumerate().map(device).collect();
    Ok(Box::new(GpuExecutor::new(devices, params, cluster)?))
}

/// Creates an executor with replicas on one emulated GPU with `memory` bytes of memory.
///
/// # Errors
/// There is not enough memory.
pub fn small_executor(
    replicas: usize,
    memory: usize,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let names = (0..replicas).map(|part| format!("emulated:0/{part}")).collect();
    let gpu = EmulatedGpu { capacity: memory, ..EmulatedGpu::new(None) };
    Ok(Box::new(GpuExecutor::new(vec![(gpu, names)], params, None)?))
}

static INSTALLED: OnceLock<Vec<GpuInfo>> = OnceLock::new();

/// Installs `gpus` emulated GPUs in place of the real ones of this process.
pub fn install(gpus: usize) {
    let gpu = |index| GpuInfo { index, name: "emulated GPU".into(), memory: 1 << 30 };
    INSTALLED.get_or_init(|| (0..gpus).map(gpu).collect());
}

/// The emulated GPUs that replace the real ones, if installed.
pub(crate) fn installed() -> Option<&'static [GpuInfo]> {
    INSTALLED.get().map(Vec::as_slice)
}

/// Creates a unique id by which the emulated GPUs of several processes find each other.
pub(crate) fn make_id() -> NcclId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut id = [0; 128];
    id[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    id
}

/// Objects that processes share, by id.
struct Registry<T>(OnceLock<Mutex<HashMap<NcclId, Weak<T>>>>);

impl<T> Registry<T> {
    const fn new() -> Registry<T> {
        Registry(OnceLock::new())
    }

    /// The object with this id. The first caller creates it.
    fn find(&self, id: NcclId, make: impl FnOnce() -> T) -> Arc<T> {
        let held = self.0.get_or_init(Mutex::default).lock();
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, one| one.strong_count() > 0);
        held.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
            let one = Arc::new(make());
            held.insert(id, Arc::downgrade(&one));
            one
        })
    }
}

/// An emulated GPU.
pub(crate) struct EmulatedGpu {
    memory: Memory,
    /// Memory in bytes.
    capacity: usize,
    /// Bytes of each staged copy of the inputs that a GPU would hold, and the index of the next
    /// one.
    copies: [usize; MAX_STAGED_STEPS],
    next: usize,
    /// Bytes of each stream's library workspace.
    workspaces: Vec<usize>,
    steps: Vec<Option<Step>>,
    stacks: Bytes,
    random: Option<Random>,
    /// How often a block was relocated.
    relocations: usize,
    /// Membership in a group of GPUs that reduce with each other, if any.
    link: Option<Link>,
}

/// A prepared step.
struct Step {
    plan: Plan,
    /// For each work item, the items that must run before it.
    dependencies: Vec<Vec<usize>>,
    kernels: Kernels,
    relocations: usize,
}

type Kernels = BTreeMap<(Source, String), Arc<Kernel>>;

impl EmulatedGpu {
    /// Without a seed, everything runs in program order; with one, in a random valid order.
    pub fn new(seed: Option<u64>) -> EmulatedGpu {
        EmulatedGpu {
            memory: Memory::default(),
            capacity: usize::MAX,
            copies: [0; MAX_STAGED_STEPS],
            next: 0,
            workspaces: vec![],
            steps: vec![],
            stacks: Bytes::untouched(STACK_BYTES * STACKS),
            random: seed.map(Random::new),
            relocations: 0,
            link: None,
        }
    }

    fn failed(&self, message: String) -> ExecError {
        match self.link.as_ref().is_some_and(Link::lost) {
            true => peer_timeout(message),
            false => failed(message),
        }
    }

    /// Bytes held besides blocks.
    fn non_block_bytes(&self) -> usize {
        self.copies.iter().chain(&self.workspaces).sum()
    }

    /// Fails if `held` exceeds the memory.
    fn check_capacity(&self, held: usize, wanted: usize, purpose: &str) -> Result<(), ExecError> {
        if held <= self.capacity {
            return Ok(());
        }
        let purpose = format!("{purpose} on the emulated GPU");
        Err(ExecError::Memory { wanted, purpose, available: Some(self.capacity) })
    }

    fn work(&mut self, work: &WorkItem, kernels: &Kernels) -> Result<(), String> {
        let hidden = self.memory.hide(work);
        let done = work.tasks.iter().try_for_each(|task| self.task(task, kernels));
        let restored = self.memory.restore(hidden);
        done.and(restored).map_err(|e| format!("{}: {e}", work.label))
    }

    fn task(&mut self, task: &Task, kernels: &Kernels) -> Result<(), String> {
        match task {
            Task::Launch(l) => {
                let kernel = &kernels[&(l.source, l.kernel.clone())];
                let done = self.launch(l, kernel).and_then(|()| self.memory.check_guards());
                done.map_err(|e| format!("{l}: {e}"))
            }
            Task::Gemm(g) => products::gemm(&mut self.memory, g),
            Task::Conv(c) => products::conv(&mut self.memory, c),
            Task::Clear(span) => products::clear(&mut self.memory, span),
            Task::Reduce(parts) => {
                let link = self.link.as_ref().ok_or("there is no other GPU to reduce with")?;
                link.group.add(link.rank, &mut self.memory, parts)
            }
        }
    }

    fn launch(&mut self, l: &Launch, kernel: &Kernel) -> Result<(), String> {
        let mut args = ArgBuffer::new(&self.memory, l)?;
        let mut shared = vec![u128::MAX; (l.shared as usize + SHARED_GUARD).div_ceil(16)];
        let mut error = [0; 1024];
        let launch = library::Launch {
            body: kernel.body,
            args: args.pointers().as_mut_ptr(),
            grid: l.grid,
            threads: l.threads,
            seed: self.random.as_mut().map_or(0, |r| r.next() | 1),
            shared: shared.as_mut_ptr().cast(),
            shared_bytes: l.shared as usize,
            stacks: self.stacks.address(),
            stack_bytes: STACK_BYTES,
            error: error.as_mut_ptr(),
            error_bytes: error.len(),
        };
        // SAFETY: the kernel's arguments were checked against its signature, and everything the
        // launch points to outlives it. What the kernel does with its pointers is what is tested
        // here.
        if unsafe { (kernel.run)(&launch) } == 0 {
            // SAFETY: the message is zero-terminated.
            return Err(unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy().into_owned());
        }
        let used = (l.shared as usize).div_ceil(16);
        match shared[used..].iter().all(|v| *v == u128::MAX) {
            true => Ok(()),
            false => Err(format!("writes past its {} bytes of shared memory", l.shared)),
        }
    }
}

/// The arguments of a launch, in memory.
struct ArgBuffer {
    values: Vec<u64>,
    pointers: Vec<*mut std::ffi::c_void>,
    /// Tables that values point to.
    _tables: Vec<Vec<u64>>,
}

impl ArgBuffer {
    fn new(memory: &Memory, l: &Launch) -> Result<ArgBuffer, String> {
        let (mut values, mut tables) = (vec![], vec![]);
        for arg in &l.args {
            values.push(match arg {
                Arg::Ptr(p) => memory.address(*p)?,
                Arg::Null => 0,
                Arg::I32(v) => u64::from(v.cast_unsigned()),
                Arg::I64(v) => v.cast_unsigned(),
                Arg::F32(v) => u64::from(v.to_bits()),
                Arg::Table(words) => {
                    tables.push(table(memory, words)?);
                    tables[tables.len() - 1].as_ptr() as u64
                }
            });
        }
        Ok(ArgBuffer { values, pointers: vec![], _tables: tables })
    }

    fn pointers(&mut self) -> &mut [*mut std::ffi::c_void] {
        self.pointers = self.values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        &mut self.pointers
    }
}

fn table(memory: &Memory, words: &[Word]) -> Result<Vec<u64>, String> {
    let word = |w: &Word| match w {
        Word::Ptr(p) => memory.address(*p),
        Word::I64(v) => Ok(v.cast_unsigned()),
        Word::F32(v) => Ok(u64::from(v.to_bits())),
    };
    words.iter().map(word).collect()
}

/// Fails if a GPU would reject the launch, or its arguments do not match the kernel.
fn check(memory: &Memory, l: &Launch, kernel: &Kernel) -> Result<(), String> {
    let code = |arg: &Arg| match arg {
        Arg::Ptr(_) | Arg::Null | Arg::Table(_) => 'p',
        Arg::I32(_) => 'i',
        Arg::I64(_) => 'l',
        Arg::F32(_) => 'f',
    };
    let signature: String = l.args.iter().map(code).collect();
    if signature != kernel.signature {
        let expected = &kernel.signature;
        return Err(format!("{l}: expected arguments '{expected}', received '{signature}'"));
    }
    let [x, y, z] = l.grid;
    let fits = x > 0 && (1..=65535).contains(&y) && (1..=65535).contains(&z);
    if !fits || x > i32::MAX as u32 || !(1..=1024).contains(&l.threads) || l.shared > MAX_SHARED {
        return Err(format!(
            "{l}: more or fewer blocks, threads or shared memory than a GPU takes"
        ));
    }
    ArgBuffer::new(memory, l).map(|_| ()).map_err(|e| format!("{l}: {e}"))
}

/// Compiles the kernels of a plan. Kernels of files are compiled one by one, so that plans share
/// them.
fn kernels(plan: &Plan) -> Result<Kernels, String> {
    let source = |of: Source| nvrtc::source(of, &plan.tapes).map_err(|e| e.0);
    let mut found = Kernels::new();
    let mut tapes = vec![];
    for task in plan.work_items.iter().flat_map(|w| &w.tasks) {
        let Task::Launch(l) = task else { continue };
        match l.source {
            Source::Tapes => tapes.push(l.kernel.as_str()),
            Source::File(_) => {
                let key = (l.source, l.kernel.clone());
                if !found.contains_key(&key) {
                    let compiled = library::kernels(&source(l.source)?, &[&l.kernel])?;
                    found.extend(compiled.into_iter().map(|k| (key.clone(), k)));
                }
            }
        }
    }
    tapes.sort_unstable();
    tapes.dedup();
    if !tapes.is_empty() {
        let compiled = library::kernels(&source(Source::Tapes)?, &tapes)?;
        found.extend(tapes.iter().map(|n| (Source::Tapes, (*n).to_owned())).zip(compiled));
    }
    Ok(found)
}

fn failed(message: String) -> ExecError {
    ExecError::Device { device: "emulated GPU".into(), message }
}

impl GpuDevice for EmulatedGpu {
    fn joined(&self) -> bool {
        self.link.is_some()
    }

    fn abort(&mut self) {
        self.link.iter().for_each(|link| link.group.abort());
    }

    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> Result<bool, ExecError> {
        let held = self.memory.total_bytes_with(replica, block, bytes) + self.non_block_bytes();
        self.check_capacity(held, bytes, purpose)?;
        let moved = self.memory.reserve(replica, block, bytes);
        self.relocations += usize::from(moved);
        Ok(moved)
    }

    fn write(&mut self, at: Ptr, bytes: &[u8]) -> Result<(), ExecError> {
        let to = self.memory.bytes_mut(at, bytes.len()).map_err(failed)?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: Ptr, bytes: &mut [u8]) -> Result<(), ExecError> {
        bytes.copy_from_slice(self.memory.bytes(at, bytes.len()).map_err(failed)?);
        Ok(())
    }

    fn prepare(&mut self, plan: Plan) -> Result<StepId, ExecError> {
        let kernels = kernels(&plan).map_err(failed)?;
        for work in &plan.work_items {
            for task in &work.tasks {
                let Task::Launch(l) = task else { continue };
                let kernel = &kernels[&(l.source, l.kernel.clone())];
                check(&self.memory, l, kernel)
                    .map_err(|e| failed(format!("{}: {e}", work.label)))?;
            }
        }
        let each = workspaces(&plan.work_items);
        self.workspaces.resize(each.len(), 0);
        let grown: Vec<usize> =
            self.workspaces.iter().zip(&each).map(|(own, new)| *new.max(own)).collect();
        let more = grown.iter().sum::<usize>() - self.workspaces.iter().sum::<usize>();
        let held = self.memory.total_bytes() + self.non_block_bytes() + more;
        self.check_capacity(held, each.iter().sum(), WORKSPACES)?;
        self.workspaces = grown;
        let dependencies = order::dependencies(&plan.work_items);
        self.steps.push(Some(Step { plan, dependencies, kernels, relocations: self.relocations }));
        Ok(StepId(self.steps.len() - 1))
    }

    /// There is nothing to capture, but GPUs that reduce with each other must all call this at the
    /// same time.
    fn capture(&mut self, _step: StepId) -> Result<(), ExecError> {
        let Some(link) = &self.link else { return Ok(()) };
        let arrived = link.group.add(link.rank, &mut self.memory, &[]);
        arrived.map_err(|message| self.failed(message))
    }

    fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError> {
        let own = self.copies[self.next % MAX_STAGED_STEPS];
        let grown = own.max(replicas * bytes);
        let held = self.memory.total_bytes() + self.non_block_bytes() + grown - own;
        self.check_capacity(held, bytes, INPUT_COPIES)?;
        self.copies[self.next % MAX_STAGED_STEPS] = grown;
        for replica in 0..replicas {
            let at = Ptr::new(replica, Block::Inputs, INPUT_BYTES);
            fill(replica, self.memory.bytes_mut(at, bytes).map_err(failed)?);
        }
        Ok(())
    }

    fn start(&mut self, step: StepId, head: &[u8]) -> Result<(), ExecError> {
        self.next += usize::from(!head.is_empty());
        let index = step.0;
        let step = self
            .steps
            .get(index)
            .and_then(Option::as_ref)
            .ok_or_else(|| failed(format!("no step {index}")))?;
        if step.relocations != self.relocations {
            return Err(failed(format!("step {index} was prepared before a block moved")));
        }
        let items = match &mut self.random {
            Some(random) => order::random_order(&step.dependencies, random),
            None => (0..step.plan.work_items.len()).collect(),
        };
        let (work, kernels) = (step.plan.work_items.clone(), step.kernels.clone());
        self.memory.poison_arenas();
        let replicas = if head.is_empty() { 0..0 } else { self.memory.replicas() };
        for replica in replicas {
            self.write(Ptr::new(replica, Block::Inputs, 0), head)?;
        }
        let done = items.into_iter().try_for_each(|i| self.work(&work[i], &kernels));
        done.map_err(|message| self.failed(message))
    }

    fn start_steps(
        &mut self,
        step: StepId,
        steps: usize,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError> {
        for replica in 0..lists.replicas {
            let at = Ptr::new(replica, Block::StepList, 0);
            fill(replica, self.memory.bytes_mut(at, lists.bytes).map_err(failed)?);
        }
        (0..steps).try_for_each(|_| self.start(step, &[]))
    }

    fn steps_per_launch(&self, _step: StepId) -> usize {
        STEPS_PER_LAUNCH
    }

    fn forget(&mut self, step: StepId) {
        self.steps[step.0] = None;
    }

    fn free(&mut self, replica: usize, block: Block) {
        self.memory.free(replica, block);
    }

    fn free_memory(&self) -> Option<usize> {
        Some(self.capacity.saturating_sub(self.memory.total_bytes() + self.non_block_bytes()))
    }

    fn finish(&mut self, from: Block, fetches: &mut [&mut [u8]]) -> Result<(), ExecError> {
        for (replica, bytes) in fetches.iter_mut().enumerate() {
            if !bytes.is_empty() {
                self.read(Ptr::new(replica, from, 0), bytes)?;
            }
        }
        Ok(())
    }
}
