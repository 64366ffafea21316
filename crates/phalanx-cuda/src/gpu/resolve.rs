//! Resolution of a step's tasks: addresses, functions of compiled kernels, plans of libraries.

use super::kernels::{Function, Kernels, Tables, TapesHash};
use super::libraries::Libraries;
use super::memory::Memory;
use crate::cublas::GemmPlan;
use crate::cudnn::ConvPlan;
use crate::device::Plan;
use crate::fallback;
use crate::launch::{Arg, Elem, Launch};
use crate::work_item::{Conv, Gemm, ReducePart, Task};
use cudarc::driver::sys::CUfunction_attribute;
use phalanx_cuda_driver::driver::{Failure, Result, Stream, cu};
use phalanx_cuda_driver::libs::{Lib, find};
use phalanx_distributed::transport::nccl::{DataType, Reduction};
use phalanx_distributed::warnings::warning;
use std::sync::Once;

/// A task with all addresses and plans resolved.
pub(super) enum ResolvedTask {
    Launch { function: Function, grid: [u32; 3], threads: u32, shared: u32, args: Vec<u64> },
    Gemm { plan: GemmPlan, at: [u64; 3], key: String },
    Conv { plan: ConvPlan, at: [u64; 3] },
    Clear { at: u64, bytes: usize },
    Reduce(Vec<Reduction>),
}

impl ResolvedTask {
    /// Bytes of library workspace that it needs.
    pub fn workspace(&self) -> usize {
        match self {
            ResolvedTask::Gemm { plan, .. } => plan.workspace(),
            ResolvedTask::Conv { plan, .. } => plan.workspace,
            ResolvedTask::Launch { .. } | ResolvedTask::Clear { .. } | ResolvedTask::Reduce(_) => 0,
        }
    }
}

/// Warns, once, that cuDNN does not compute every convolution.
fn warn_of_plain_kernel() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        let library = find(Lib::Cudnn).map(|found| found.path.display().to_string());
        let library = library.unwrap_or_else(|missing| missing.to_string());
        warning!(
            "cuDNN ({library}) has no engine for a convolution of this model: a plain kernel computes it, which may be \
             many times slower"
        );
    });
}

/// The type of elements as NCCL names it.
fn data_type(elem: Elem) -> DataType {
    match elem {
        Elem::I32 => DataType::I32,
        Elem::F16 => DataType::F16,
        Elem::F32 => DataType::F32,
        Elem::F64 => DataType::F64,
        Elem::Bf16 => DataType::Bf16,
    }
}

/// Resolves the tasks of one step.
pub(super) struct Resolver<'a> {
    pub memory: &'a Memory,
    pub kernels: &'a mut Kernels,
    pub libraries: &'a mut Libraries,
    /// The stream on which convolutions are measured.
    pub stream: &'a Stream,
    pub tapes_hash: TapesHash,
    /// The tables of the step's launches.
    pub tables: Tables,
}

impl Resolver<'_> {
    /// Compiles the kernels of a step and resolves the tasks of its work items.
    pub fn step(&mut self, plan: &Plan) -> Result<Vec<Vec<ResolvedTask>>> {
        let launches =
            plan.work_items.iter().flat_map(|w| &w.tasks).filter_map(|task| match task {
                Task::Launch(l) => Some(l),
                _ => None,
            });
        self.kernels.compile(self.tapes_hash, &plan.tapes, launches)?;
        let mut ready = Vec::with_capacity(plan.work_items.len());
        for work in &plan.work_items {
            let tasks: Result<Vec<ResolvedTask>> =
                work.tasks.iter().map(|t| self.task(t)).collect();
            ready.push(tasks.map_err(|e| Failure(format!("{}: {e}", work.label)))?);
        }
        Ok(ready)
    }

    fn task(&mut self, task: &Task) -> Result<ResolvedTask> {
        match task {
            Task::Launch(l) => self.launch(l),
            Task::Conv(conv) => self.conv(conv),
            Task::Gemm(gemm) => self.gemm(gemm),
            Task::Clear(span) => {
                Ok(ResolvedTask::Clear { at: self.memory.address(span.at)?, bytes: span.bytes })
            }
            Task::Reduce(parts) => {
                let sum = |ReducePart { from, to, elem, len }: &ReducePart| {
                    let (from, to) = (self.memory.address(*from)?, self.memory.address(*to)?);
                    Ok(Reduction { from, to, elem: data_type(*elem), len: *len })
                };
                parts.iter().map(sum).collect::<Result<_>>().map(ResolvedTask::Reduce)
            }
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<ResolvedTask> {
        let function = self.kernels.find(self.tapes_hash, launch)?;
        let mut args = Vec::with_capacity(launch.args.len());
        for arg in &launch.args {
            args.push(match arg {
                Arg::Table(words) => self.tables.add(self.memory, words)?,
                Arg::Ptr(p) => self.memory.address(*p)?,
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

    fn conv(&mut self, conv: &Conv) -> Result<ResolvedTask> {
        let address = |at| self.memory.address(at);
        let at = [address(conv.x.at)?, address(conv.w.0)?, address(conv.y.at)?];
        match self.libraries.plan_conv(conv, at, self.stream)? {
            Some(plan) => Ok(ResolvedTask::Conv { plan, at }),
            None => {
                warn_of_plain_kernel();
                let launch = fallback::launch(conv);
                self.kernels.compile(self.tapes_hash, "", [&launch].into_iter())?;
                self.launch(&launch)
            }
        }
    }

    fn gemm(&mut self, gemm: &Gemm) -> Result<ResolvedTask> {
        let address = |at| self.memory.address(at);
        let at = [address(gemm.a.at)?, address(gemm.b.at)?, address(gemm.c.at)?];
        let bias = gemm.bias.map(address).transpose()?;
        let (plan, key) = self.libraries.plan_gemm(gemm, bias)?;
        Ok(ResolvedTask::Gemm { plan, at, key })
    }
}
