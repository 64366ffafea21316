//! Kernels of a plan, compiled for the host, and their launches.

use super::library::{self, Kernel};
use super::memory::{Bytes, Memory};
use crate::device::Plan;
use crate::launch::{Arg, Launch, Source, Word};
use crate::nvrtc;
use crate::work_item::Task;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Arc;

/// Stack size of a thread, in bytes.
const STACK_BYTES: usize = 128 << 10;

/// One per thread of a block, one to start from, one for the run itself.
const STACKS: usize = 1024 + 2;

/// Maximum dynamic shared memory of a block, in bytes.
const MAX_SHARED: u32 = 227 << 10;

/// Guard bytes after a block's shared memory.
const SHARED_GUARD: usize = 256;

/// The compiled kernels of a plan.
pub(super) type Kernels = BTreeMap<(Source, String), Arc<Kernel>>;

/// The stacks of a block's threads.
pub(super) struct Stacks(Bytes);

impl Stacks {
    pub fn new() -> Stacks {
        Stacks(Bytes::untouched(STACK_BYTES * STACKS))
    }

    /// Runs a kernel thread by thread; in a random order if the seed is not zero.
    pub fn run(
        &mut self,
        l: &Launch,
        kernel: &Kernel,
        memory: &Memory,
        seed: u64,
    ) -> Result<(), String> {
        let mut args = ArgBuffer::new(memory, l)?;
        let mut shared = vec![u128::MAX; (l.shared as usize + SHARED_GUARD).div_ceil(16)];
        let mut error = [0; 1024];
        let launch = library::Launch {
            body: kernel.body,
            args: args.pointers().as_mut_ptr(),
            grid: l.grid,
            threads: l.threads,
            seed,
            shared: shared.as_mut_ptr().cast(),
            shared_bytes: l.shared as usize,
            stacks: self.0.address(),
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
pub(super) fn check(memory: &Memory, l: &Launch, kernel: &Kernel) -> Result<(), String> {
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
pub(super) fn compile(plan: &Plan) -> Result<Kernels, String> {
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
