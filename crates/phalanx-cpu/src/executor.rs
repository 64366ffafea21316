//! The CPU executor: devices with mirrored parameters, workers with their memory, loaded programs.

mod mirror;
mod needs;

use self::needs::{Needs, tape_plans, unsupported};
use crate::between::{self, Between, Meeting};
use crate::kernels::elementwise::TapePlan;
use crate::memory::{Buffer, Heap};
use crate::pool::{Barrier, Pool, Team, pins, usable_cores};
use crate::simd::Isa;
use crate::update::{MAX_SCALARS, MAX_SLOTS};
use crate::worker::{self, Run};
use phalanx_graph::exec::{Batch, ExecError, Executor, ProgramId, StepTimes};
use phalanx_graph::process_group::{Cluster, LocalShard};
use phalanx_graph::profile::Profile;
use phalanx_graph::program::{Mesh, Policy, Program, SHARDS};
use phalanx_graph::{ParamId, ParamSpec};

pub use self::needs::memory_plan;

/// Parameters start at multiples of this many floats, so that slices stay aligned.
const PARAM_ALIGN: usize = 16;

/// Most workers of an executor: more threads than any machine has cores.
const MOST_WORKERS: usize = 1 << 14;

/// How a CPU executor is set up.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Logical devices, that is replicas.
    pub devices: usize,
    /// Workers of each device; 0 shares out the machine's cores.
    pub workers: usize,
    /// Whether the numbers must not depend on `devices` and `workers` ([`Mesh::fixed`]).
    pub fixed: bool,
    /// Instruction set; `None` takes the best.
    pub isa: Option<Isa>,
}

/// Where each parameter lies in a flat buffer.
pub(crate) struct FlatLayout {
    pub offsets: Vec<usize>,
    pub len: usize,
}

impl FlatLayout {
    /// `None` where the floats cannot be addressed.
    fn new(params: &[ParamSpec]) -> Option<FlatLayout> {
        let mut offsets = Vec::with_capacity(params.len());
        let mut len = 0usize;
        for p in params {
            offsets.push(len);
            len = len.checked_add(p.len().checked_next_multiple_of(PARAM_ALIGN)?)?;
        }
        isize::try_from(len.checked_mul(4)?).is_ok().then_some(FlatLayout { offsets, len })
    }
}

/// A replica's memory.
pub(crate) struct Device {
    pub params: Buffer,
    pub slots: Vec<Buffer>,
    /// Rows of activations that its workers share.
    pub rows: Buffer,
    /// Gradients computed in slices over the device's rows.
    pub sliced: Buffer,
    /// This device's share of the gradients, added up for the others to read.
    pub scattered: Buffer,
    /// Reduced gradients, kept where norms or their being finite are needed before the update.
    pub reduced: Buffer,
    /// Sums of gradients over several steps.
    pub accumulated: Buffer,
    pub barrier: Barrier,
}

/// A worker's memory.
pub(crate) struct Worker {
    pub arena: Buffer,
    pub shared: Buffer,
    pub gradients: Buffer,
    pub scratch: Buffer,
    /// Squared norms of this worker's slices of each gradient; at the loss scale's place, whether all
    /// of its slices are finite.
    pub norms: Buffer,
    /// Seconds of each instruction in this step, where they are measured.
    pub seconds: Buffer,
}

/// A program and what was prepared for it.
pub(crate) struct Loaded {
    pub program: Program,
    /// The tape of each instruction that has one.
    pub tapes: Vec<Option<TapePlan>>,
    pub update: Option<TapePlan>,
    /// Where processes meet, and where each gradient lies in what they add up.
    pub meetings: Vec<Meeting>,
    pub packed: Vec<usize>,
    /// Behind which instruction each bucket of gradients is sent, where it is before the update.
    pub sends: Vec<Option<usize>>,
    needs: Needs,
    measured: Measured,
}

/// What profiling found out about a program.
#[derive(Default)]
struct Measured {
    steps: u64,
    rows: usize,
    /// Seconds of each instruction, summed over workers and steps.
    seconds: Vec<f64>,
}

/// Runs programs on the cores of this machine.
pub struct CpuExecutor {
    mesh: Mesh,
    isa: Isa,
    pool: Pool,
    barrier: Barrier,
    params: Vec<ParamSpec>,
    layout: FlatLayout,
    heap: Heap,
    devices: Vec<Device>,
    workers: Vec<Worker>,
    programs: Vec<Loaded>,
    between: Option<Between>,
    fetch_ptrs: Vec<FetchPtr>,
    /// What the last step fetched.
    done: Vec<Vec<f32>>,
    times: StepTimes,
    profiling: bool,
}

/// Where a fetch goes; workers write disjoint rows.
#[derive(Clone, Copy)]
pub(crate) struct FetchPtr(pub *mut f32);

// SAFETY: each worker writes its own rows of a fetch, and one worker the mirrored ones.
unsafe impl Send for FetchPtr {}
// SAFETY: as above.
unsafe impl Sync for FetchPtr {}

impl CpuExecutor {
    /// An executor for a table of parameters.
    pub fn new(options: CpuOptions, params: &[ParamSpec]) -> Result<CpuExecutor, ExecError> {
        CpuExecutor::among(options, params, None)
    }

    /// An executor for this process' devices among those of others.
    pub fn among(
        options: CpuOptions,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<CpuExecutor, ExecError> {
        let isa = options.isa.map_or_else(Isa::detect, Ok)?;
        let devices = options.devices.max(1);
        let own = cluster.as_ref().map_or(Ok(0..devices), |c| c.check(devices))?;
        let all = cluster.as_ref().map_or(devices, Cluster::all_devices);
        let even = cluster.as_ref().is_none_or(|c| c.devices.iter().all(|d| *d == devices));
        let available = usable_cores();
        let workers = match options.workers {
            0 => (available / devices).clamp(1, worker::MAX_WORKERS),
            n => n.min(worker::MAX_WORKERS),
        };
        let mesh = match options.fixed {
            true => Mesh::fixed(all).filter(|_| even).ok_or_else(|| ExecError::Program {
                name: "any".into(),
                reason: format!("{all} devices do not divide {SHARDS} shards evenly"),
            })?,
            false => Mesh::new(all, workers),
        };
        let workers = mesh.workers;
        let here = devices.saturating_mul(workers);
        if here > MOST_WORKERS || all.checked_mul(workers).is_none() {
            let reason = format!("expected at most {MOST_WORKERS} workers, received {here}");
            return Err(ExecError::Program { name: "any".into(), reason });
        }
        let team = Team::new(here);
        let layout = FlatLayout::new(params).ok_or_else(|| ExecError::Memory {
            wanted: usize::MAX,
            purpose: "weights".into(),
            available: None,
        })?;
        let mut heap = Heap::default();
        let mut mine = vec![];
        for _ in 0..devices {
            mine.push(Device {
                params: heap.buffer(layout.len * 4, "weights")?,
                slots: vec![],
                rows: Buffer::empty(),
                sliced: Buffer::empty(),
                scattered: Buffer::empty(),
                reduced: Buffer::empty(),
                accumulated: Buffer::empty(),
                barrier: Barrier::new(workers, team.clone()),
            });
        }
        let mut memories = vec![];
        for _ in 0..here {
            memories.push(Worker {
                arena: Buffer::empty(),
                shared: Buffer::empty(),
                gradients: Buffer::empty(),
                scratch: Buffer::empty(),
                norms: Buffer::empty(),
                seconds: Buffer::empty(),
            });
        }
        let no_thread = |e: std::io::Error| ExecError::Worker {
            worker: here - 1,
            message: format!("the system starts no more threads: {e}"),
        };
        let between = cluster.map(|cluster| Between::new(cluster, mesh, own)).transpose();
        let pool = Pool::new(here, pins(), team.clone()).map_err(no_thread)?;
        Ok(CpuExecutor {
            mesh,
            isa,
            pool,
            barrier: Barrier::new(here, team),
            params: params.to_vec(),
            layout,
            heap,
            devices: mine,
            workers: memories,
            programs: vec![],
            between: between.map_err(no_thread)?,
            fetch_ptrs: vec![],
            done: vec![],
            times: StepTimes::default(),
            profiling: false,
        })
    }

    /// Takes over what the workers measured in a step.
    fn measure(&mut self, id: ProgramId, rows: usize) {
        let loaded = &mut self.programs[id.0];
        let count = loaded.program.instrs().len();
        let measured = &mut loaded.measured;
        if measured.rows != rows {
            *measured = Measured { rows, ..Measured::default() };
        }
        measured.steps += 1;
        measured.seconds.resize(count, 0.0);
        for w in &self.workers {
            // SAFETY: the workers are done; each wrote one number per instruction.
            let seconds = unsafe { std::slice::from_raw_parts(w.seconds.ptr().cast(), count) };
            measured.seconds.iter_mut().zip(seconds).for_each(|(sum, s): (_, &f64)| *sum += s);
        }
    }

    fn range(&self, id: ParamId) -> std::ops::Range<usize> {
        let start = self.layout.offsets[id.index()];
        start..start + self.params[id.index()].len()
    }

    fn check_len(&self, id: ParamId, received: usize) -> Result<(), ExecError> {
        let spec = &self.params[id.index()];
        if spec.len() == received {
            return Ok(());
        }
        Err(ExecError::Param { name: spec.name.clone(), expected: spec.len(), received })
    }
}

/// Replaces a buffer by a larger one when needed; contents do not survive.
pub(crate) fn grow(
    heap: &mut Heap,
    buffer: &mut Buffer,
    bytes: usize,
    purpose: &str,
) -> Result<(), ExecError> {
    if buffer.bytes() < bytes {
        *buffer = Buffer::empty();
        *buffer = heap.buffer(bytes, purpose)?;
    }
    Ok(())
}

impl Executor for CpuExecutor {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn shard(&self) -> LocalShard {
        let whole = LocalShard { mesh: self.mesh, devices: 0..self.mesh.devices };
        self.between.as_ref().map_or(whole, Between::share)
    }

    fn set_flags(&mut self, bits: u64) {
        if let Some(between) = &self.between {
            between.raise(bits);
        }
    }

    fn flags(&self) -> Option<u64> {
        self.between.as_ref().map(Between::raised)
    }

    fn load(&mut self, program: Program) -> Result<ProgramId, ExecError> {
        program.check_executor(self.mesh, &self.params)?;
        program.check_slots(self.programs.iter().map(|p| &p.program))?;
        if program.options().policy != Policy::Float32 {
            let reason = "CPU devices store 32-bit floats".into();
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let rule = program.update().map(|u| &u.rule);
        if rule.is_some_and(|r| r.slots.len() > MAX_SLOTS || r.scalars > MAX_SCALARS) {
            let reason = "its optimizer has too many slots or scalars".into();
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        if let Some(reason) = unsupported(&program) {
            return Err(ExecError::Program { name: program.name().into(), reason });
        }
        let (tapes, update) = tape_plans(&program);
        let (mut meetings, mut packed, mut sends) = (vec![], vec![], vec![]);
        if self.between.is_some() {
            (meetings, packed) = (between::meetings(&program), between::packed(&program));
            sends = between::sends(&program);
        }
        let mut needs = Needs::of(&program, &tapes, update.as_ref());
        needs.totals = between::totals(&meetings);
        needs.host_gradients = packed.last().copied().unwrap_or(0) * 4;
        self.reserve(needs)?;
        if let Some(plan) = program.update() {
            self.make_slots(&plan.rule)?;
        }
        let measured = Measured::default();
        self.programs.push(Loaded {
            program,
            tapes,
            update,
            meetings,
            packed,
            sends,
            needs,
            measured,
        });
        Ok(ProgramId(self.programs.len() - 1))
    }

    /// The whole step: nothing goes on while the caller does something else.
    fn start(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let unknown = || ExecError::Program {
            name: format!("#{}", id.0),
            reason: "it was not loaded here".into(),
        };
        let share = self.shard();
        let own = share.rows(batch.rows);
        let loaded = self.programs.get(id.0).ok_or_else(unknown)?;
        loaded.program.check_own_batch(batch, own.len())?;
        // A program that was refused for want of memory may have left less than the others need.
        self.reserve(loaded.needs)?;
        let loaded = &self.programs[id.0];
        if loaded.program.update().is_some() && batch.accumulate.is_some() {
            for d in &mut self.devices {
                let bytes = self.layout.len * 4;
                grow(&mut self.heap, &mut d.accumulated, bytes, "accumulated gradients")?;
            }
        }
        if self.profiling {
            for w in &mut self.workers {
                grow(
                    &mut self.heap,
                    &mut w.seconds,
                    loaded.program.instrs().len() * 8,
                    "a profile",
                )?;
            }
        }
        self.done.resize_with(loaded.program.fetches().len(), Vec::new);
        self.fetch_ptrs.clear();
        for (plan, out) in loaded.program.fetches().iter().zip(&mut self.done) {
            let rows = if plan.ty.is_rows() { batch.rows } else { 1 };
            out.resize(rows * plan.ty.len(), 0.0);
            self.fetch_ptrs.push(FetchPtr(out.as_mut_ptr()));
        }
        let run = Run {
            loaded,
            batch,
            mesh: self.mesh,
            first: share.devices.start,
            first_row: own.start,
            isa: self.isa,
            layout: &self.layout,
            devices: &self.devices,
            workers: &self.workers,
            barrier: &self.barrier,
            between: self.between.as_ref(),
            failure: std::sync::Mutex::new(None),
            fetches: &self.fetch_ptrs,
            times: std::sync::Mutex::new(StepTimes::default()),
            profiling: self.profiling,
        };
        if let Some(between) = &self.between {
            between.cluster.peers.set_step(batch.step);
        }
        let done = self.pool.run(&|index| worker::run(&run, index));
        if let Err((worker, message)) = done {
            let failure = run.failure.into_inner().unwrap_or_default();
            return Err(failure.unwrap_or(ExecError::Worker { worker, message }));
        }
        if loaded.program.update().is_some() {
            let times = run.times.into_inner().unwrap_or_default();
            self.times.compute += times.compute;
            self.times.reduce += times.reduce;
        }
        if let Some(between) = &self.between {
            for (plan, out) in loaded.program.fetches().iter().zip(&mut self.done) {
                if plan.ty.is_rows() {
                    let done = between.gather_rows(batch.rows, plan.ty.len(), out);
                    done.map_err(|peer| ExecError::Peer { step: batch.step, peer })?;
                }
            }
        }
        if self.profiling {
            self.measure(id, batch.rows);
        }
        Ok(())
    }

    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError> {
        std::mem::swap(fetched, &mut self.done);
        Ok(())
    }

    fn param(&self, id: ParamId) -> Vec<f32> {
        self.devices[0].params.as_floats()[self.range(id)].to_vec()
    }

    fn set_param(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.check_len(id, values.len())?;
        let range = self.range(id);
        for d in &mut self.devices {
            d.params.as_floats_mut()[range.clone()].copy_from_slice(values);
        }
        Ok(())
    }

    fn slots(&self) -> usize {
        self.devices[0].slots.len()
    }

    fn slot(&self, slot: usize, id: ParamId) -> Vec<f32> {
        self.devices[0].slots[slot].as_floats()[self.range(id)].to_vec()
    }

    fn set_slot(&mut self, slot: usize, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.check_len(id, values.len())?;
        let range = self.range(id);
        for d in &mut self.devices {
            d.slots[slot].as_floats_mut()[range.clone()].copy_from_slice(values);
        }
        Ok(())
    }

    fn accumulated(&self, id: ParamId) -> Option<Vec<f32>> {
        let buffer = &self.devices[0].accumulated;
        let begun = buffer.bytes() >= self.layout.len * 4;
        begun.then(|| buffer.as_floats()[self.range(id)].to_vec())
    }

    fn set_accumulated(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.check_len(id, values.len())?;
        let range = self.range(id);
        for d in &mut self.devices {
            grow(&mut self.heap, &mut d.accumulated, self.layout.len * 4, "accumulated gradients")?;
            d.accumulated.as_floats_mut()[range.clone()].copy_from_slice(values);
        }
        Ok(())
    }

    fn check_consistency(&self) -> Result<(), ExecError> {
        self.check_devices()?;
        self.check_processes()
    }

    fn times(&self) -> StepTimes {
        self.times
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        if on {
            self.programs.iter_mut().for_each(|p| p.measured = Measured::default());
        }
    }

    fn profile(&self, id: ProgramId) -> Option<Profile> {
        let Loaded { program, measured, .. } = self.programs.get(id.0)?;
        let workers = self.workers.len() as f64;
        let seconds: Vec<f64> = measured.seconds.iter().map(|s| s / workers).collect();
        let Measured { steps, rows, .. } = *measured;
        (steps > 0).then(|| Profile::new(program, rows, steps, &seconds))
    }
}
