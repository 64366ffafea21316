//! A kernel launch as plain data: the kernel, its threads and its arguments. Launches can be
//! printed, compiled without a GPU and compared in tests.

use std::fmt;

/// A block of a replica's memory. Every replica has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Block {
    /// Inputs that the host writes at every step: [`crate::inputs`], then the feeds.
    Inputs,
    /// Weights, in the flat layout.
    Params,
    /// Activations, reused by liveness.
    Arena,
    /// Sums and statistics, which stay in place for the whole step.
    Shared,
    /// Gradients, in the flat layout.
    Gradients,
    /// Gradients accumulated over steps, in the flat layout.
    Accumulated,
    /// An optimizer slot, in the flat layout.
    Slot(usize),
    /// Temporary data within one step: partial sums, packed filters, tables.
    Scratch,
    /// Counters, which are zero before and after every kernel.
    Counters,
    /// Values to be copied to the host.
    Fetches,
    /// A column of a resident dataset, by number, or the offset that is subtracted from its rows.
    /// All replicas read the block of the first.
    Resident(usize),
    /// Inputs of the steps of a launch, in order: [`crate::resident_dataset`].
    StepList,
    /// Fetches of these steps.
    Results,
}

/// An address inside a block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ptr {
    /// Index of the replica among those that share the GPU.
    pub replica: usize,
    pub block: Block,
    pub offset: usize,
}

impl Ptr {
    pub fn new(replica: usize, block: Block, offset: usize) -> Ptr {
        Ptr { replica, block, offset }
    }

    /// The largest power of two up to 256 that divides the address. Blocks are aligned to 256
    /// bytes.
    pub fn alignment(self) -> u32 {
        1 << self.offset.trailing_zeros().min(8)
    }

    /// The address `bytes` further on.
    pub fn add(self, bytes: usize) -> Ptr {
        Ptr { offset: self.offset + bytes, ..self }
    }
}

impl fmt::Display for Ptr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.replica > 0 {
            write!(f, "{}/", self.replica)?;
        }
        write!(f, "{:?}+{}", self.block, self.offset)
    }
}

/// Element type of a value in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Elem {
    F32,
    F64,
    I32,
    Bf16,
    F16,
}

impl Elem {
    pub fn bytes(self) -> usize {
        match self {
            Elem::F64 => 8,
            Elem::F32 | Elem::I32 => 4,
            Elem::Bf16 | Elem::F16 => 2,
        }
    }

    /// Its type name in the kernels.
    pub fn c_name(self) -> &'static str {
        match self {
            Elem::F32 => "float",
            Elem::F64 => "double",
            Elem::I32 => "int",
            Elem::Bf16 => "bf16",
            Elem::F16 => "half",
        }
    }
}

/// The source file of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A file of `kernels/`, by name without its extension.
    File(&'static str),
    /// Generated at load time from the program's tapes.
    Tapes,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Source::File(name) => name,
            Source::Tapes => "tapes",
        }
    }
}

/// An entry of a table, eight bytes each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Word {
    Ptr(Ptr),
    I64(i64),
    /// In the first four bytes.
    F32(f32),
}

impl From<Ptr> for Word {
    fn from(p: Ptr) -> Word {
        Word::Ptr(p)
    }
}

impl From<usize> for Word {
    fn from(v: usize) -> Word {
        Word::I64(v as i64)
    }
}

impl From<f32> for Word {
    fn from(v: f32) -> Word {
        Word::F32(v)
    }
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    /// Constants in device memory; the kernel receives their address.
    Table(Vec<Word>),
    Ptr(Ptr),
    /// A null pointer: an optional operand that is absent.
    Null,
    I32(i32),
    I64(i64),
    F32(f32),
}

impl From<Vec<Word>> for Arg {
    fn from(words: Vec<Word>) -> Arg {
        Arg::Table(words)
    }
}

impl From<Ptr> for Arg {
    fn from(p: Ptr) -> Arg {
        Arg::Ptr(p)
    }
}

impl From<Option<Ptr>> for Arg {
    fn from(p: Option<Ptr>) -> Arg {
        p.map_or(Arg::Null, Arg::Ptr)
    }
}

impl From<i32> for Arg {
    fn from(v: i32) -> Arg {
        Arg::I32(v)
    }
}

impl From<bool> for Arg {
    fn from(v: bool) -> Arg {
        Arg::I32(i32::from(v))
    }
}

/// Sizes and strides are `long long` in kernels.
impl From<usize> for Arg {
    fn from(v: usize) -> Arg {
        Arg::I64(v as i64)
    }
}

impl From<f32> for Arg {
    fn from(v: f32) -> Arg {
        Arg::F32(v)
    }
}

/// Bytes that a task reads or writes: a whole range, or the first `width` of every `pitch` bytes in
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub at: Ptr,
    pub bytes: usize,
    pub width: usize,
    pub pitch: usize,
}

impl Span {
    /// Every byte of a range.
    pub fn whole(at: Ptr, bytes: usize) -> Span {
        Span { at, bytes, width: bytes, pitch: bytes }
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        let (a, b) = (self.at, other.at);
        (a.replica, a.block) == (b.replica, b.block)
            && a.offset < b.offset + other.bytes
            && b.offset < a.offset + self.bytes
            && !self.interleaves(other)
    }

    /// Whether two interleave without overlapping, like the parts of a concatenation.
    fn interleaves(&self, other: &Span) -> bool {
        if self.pitch != other.pitch || self.width == self.pitch || other.width == other.pitch {
            return false;
        }
        let pitch = self.pitch as i64;
        let apart = (other.at.offset as i64 - self.at.offset as i64).rem_euclid(pitch);
        apart >= self.width as i64 && apart + other.width as i64 <= pitch
    }
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    pub source: Source,
    /// The kernel's C++ name: `max_pool<float>`.
    pub kernel: String,
    pub grid: [u32; 3],
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    pub args: Vec<Arg>,
}

impl Launch {
    /// A launch with one thread for each of `items`.
    pub fn over(source: &'static str, kernel: impl Into<String>, items: usize) -> Launch {
        let threads = 256;
        let blocks = items.div_ceil(threads).clamp(1, MAX_BLOCKS);
        Launch::blocks(source, kernel, blocks, threads as u32)
    }

    /// A launch with a fixed number of blocks.
    pub fn blocks(
        source: &'static str,
        kernel: impl Into<String>,
        blocks: usize,
        threads: u32,
    ) -> Launch {
        Launch {
            source: Source::File(source),
            kernel: kernel.into(),
            grid: [blocks as u32, 1, 1],
            threads,
            shared: 0,
            args: vec![],
        }
    }

    /// Appends an argument, in the kernel's order.
    pub fn arg(mut self, arg: impl Into<Arg>) -> Launch {
        self.args.push(arg.into());
        self
    }
}

/// Maximum blocks of a launch. Kernels use a grid-stride loop, so more blocks gain nothing.
pub(crate) const MAX_BLOCKS: usize = 132 * 16;

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <<<{:?}, {}>>>(", self.kernel, self.grid, self.threads)?;
        for (i, arg) in self.args.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match arg {
                Arg::Table(words) => write!(f, "{comma}table of {}", words.len())?,
                Arg::Ptr(p) => write!(f, "{comma}{p}")?,
                Arg::Null => write!(f, "{comma}null")?,
                Arg::I32(v) => write!(f, "{comma}{v}")?,
                Arg::I64(v) => write!(f, "{comma}{v}")?,
                Arg::F32(v) => write!(f, "{comma}{v}")?,
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_concatenation_do_not_overlap() {
        let part = |offset, width| Span {
            at: Ptr::new(0, Block::Arena, offset),
            bytes: 9 * 100 + width,
            width,
            pitch: 100,
        };
        assert!(!part(0, 40).overlaps(&part(40, 60)));
        assert!(!part(40, 60).overlaps(&part(0, 40)));
        assert!(part(0, 41).overlaps(&part(40, 60)));
        let all = Span::whole(Ptr::new(0, Block::Arena, 0), 1000);
        assert!(all.overlaps(&part(40, 60)) && part(0, 40).overlaps(&all));
        assert!(!all.overlaps(&Span::whole(Ptr::new(1, Block::Arena, 0), 1000)));
    }
}
