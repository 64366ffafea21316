//! Compiled kernels, and the constant tables of launches.

use super::memory::Memory;
use crate::device::Plan;
use crate::fallback;
use crate::launch::{Arg, Launch, Source, Word};
use crate::nvrtc;
use crate::work_item::Task;
use cudarc::driver::sys::CUfunction;
use phalanx_cuda_driver::driver::{self, DeviceBuffer, Failure, Module, Result};
use std::collections::{BTreeMap, HashMap};

/// A kernel's function in a loaded module.
#[derive(Clone, Copy)]
pub(super) struct Function(pub CUfunction);

// SAFETY: functions belong to a module of the same owner.
unsafe impl Send for Function {}

/// Distinguishes kernels of the same name: each plan has its own tape kernels.
#[derive(Clone, Copy)]
pub(super) struct TapesHash {
    tapes: u64,
}

impl TapesHash {
    pub fn of(plan: &Plan) -> TapesHash {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        plan.tapes.hash(&mut hasher);
        TapesHash { tapes: hasher.finish() }
    }

    fn key(self, source: Source, kernel: &str) -> (Source, u64, String) {
        (source, if source == Source::Tapes { self.tapes } else { 0 }, kernel.into())
    }
}

/// The kernels compiled so far.
pub(super) struct Kernels {
    functions: HashMap<(Source, u64, String), Function>,
    modules: Vec<Module>,
    capability: i32,
}

impl Kernels {
    /// For GPUs of a compute capability.
    pub fn new(capability: i32) -> Kernels {
        Kernels { functions: HashMap::new(), modules: vec![], capability }
    }

    pub fn find(&self, tapes_hash: TapesHash, launch: &Launch) -> Result<Function> {
        let found = self.functions.get(&tapes_hash.key(launch.source, &launch.kernel));
        found.copied().ok_or_else(|| Failure(format!("{} was not compiled", launch.kernel)))
    }

    /// Compiles missing kernels, source by source.
    pub fn compile<'a>(
        &mut self,
        tapes_hash: TapesHash,
        tapes: &str,
        launches: impl Iterator<Item = &'a Launch>,
    ) -> Result<()> {
        let mut missing: BTreeMap<Source, Vec<String>> = BTreeMap::new();
        for l in launches {
            if !self.functions.contains_key(&tapes_hash.key(l.source, &l.kernel)) {
                missing.entry(l.source).or_default().push(l.kernel.clone());
            }
        }
        for names in missing.values_mut() {
            names.sort();
            names.dedup();
        }
        let capability = self.capability;
        let compiled = std::thread::scope(|scope| {
            let jobs: Vec<_> = missing
                .iter()
                .map(|(source, names)| {
                    let job = scope.spawn(move || {
                        let text = nvrtc::source(*source, tapes)?;
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
                self.functions.insert(tapes_hash.key(source, &kernel), function);
            }
            self.modules.push(module);
        }
        Ok(())
    }

    /// Unloads all kernels.
    pub fn clear(&mut self) {
        self.functions.clear();
        self.modules.clear();
    }
}

/// The tables of a step, stored consecutively.
pub(super) struct Tables {
    pub buffer: DeviceBuffer,
    used: usize,
}

impl Tables {
    pub fn new(plan: &Plan) -> Result<Tables> {
        let tasks = plan.work_items.iter().flat_map(|w| &w.tasks);
        let words: usize = tasks
            .map(|task| match task {
                Task::Launch(l) => l.args.iter().map(table_words).sum(),
                // If cuDNN does not support it, the fallback kernel receives its geometry in a
                // table.
                Task::Conv(_) => fallback::TABLE_WORDS,
                _ => 0,
            })
            .sum();
        Ok(Tables { buffer: DeviceBuffer::new(words * 8)?, used: 0 })
    }

    pub fn add(&mut self, memory: &Memory, words: &[Word]) -> Result<u64> {
        let mut bytes = Vec::with_capacity(words.len() * 8);
        for word in words {
            let bits = match word {
                Word::Ptr(p) => memory.address(*p)?,
                Word::I64(v) => *v as u64,
                Word::F32(v) => u64::from(v.to_bits()),
            };
            bytes.extend(bits.to_le_bytes());
        }
        let at = self.buffer.at() + self.used as u64;
        self.used += bytes.len();
        driver::copy_to_device(at, &bytes)?;
        Ok(at)
    }
}

fn table_words(arg: &Arg) -> usize {
    if let Arg::Table(words) = arg { words.len() } else { 0 }
}
