//! The emulated GPU as a device.

use super::all_reduce::Membership;
use super::launch::{self, Kernels, Stacks};
use super::memory::Memory;
use super::order::{self, Random};
use super::products;
use crate::collectives::peer_timeout;
use crate::device::{ArgLists, GpuDevice, MAX_STAGED_STEPS, Plan, StepId};
use crate::inputs::INPUT_BYTES;
use crate::launch::{Block, Ptr};
use crate::plan::{INPUT_COPIES, WORKSPACES, workspaces};
use crate::work_item::{Task, WorkItem};
use phalanx_exec::ExecError;

/// Steps per launch in tests.
const STEPS_PER_LAUNCH: usize = 3;

/// An emulated GPU.
pub(crate) struct EmulatedGpu {
    pub(super) memory: Memory,
    /// Memory in bytes.
    pub(super) capacity: usize,
    /// Bytes of each staged copy of the inputs that a GPU would hold, and the index of the next
    /// one.
    copies: [usize; MAX_STAGED_STEPS],
    next: usize,
    /// Bytes of each stream's library workspace.
    workspaces: Vec<usize>,
    steps: Vec<Option<Step>>,
    stacks: Stacks,
    random: Option<Random>,
    /// How often a block was relocated.
    relocations: usize,
    /// Membership in a group of GPUs that reduce with each other, if any.
    pub(super) link: Option<Membership>,
}

/// A prepared step.
struct Step {
    plan: Plan,
    /// For each work item, the items that must run before it.
    dependencies: Vec<Vec<usize>>,
    kernels: Kernels,
    relocations: usize,
}

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
            stacks: Stacks::new(),
            random: seed.map(Random::new),
            relocations: 0,
            link: None,
        }
    }

    fn failed(&self, message: String) -> ExecError {
        match self.link.as_ref().is_some_and(Membership::lost) {
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
                let seed = self.random.as_mut().map_or(0, |r| r.next() | 1);
                let done = self.stacks.run(l, kernel, &self.memory, seed);
                let done = done.and_then(|()| self.memory.check_guards());
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
        let kernels = launch::compile(&plan).map_err(failed)?;
        for work in &plan.work_items {
            for task in &work.tasks {
                let Task::Launch(l) = task else { continue };
                let kernel = &kernels[&(l.source, l.kernel.clone())];
                launch::check(&self.memory, l, kernel)
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
