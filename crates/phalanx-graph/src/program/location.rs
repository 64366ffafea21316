//! Values and the memory that holds them.

use crate::graph::{FeedId, ParamId};
use crate::types::Type;

/// A value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Position in the value table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The memory that holds a value. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The host's batch, at the worker's rows.
    Feed(FeedId),
    /// The device's parameter buffer.
    Param(ParamId),
    /// The buffer of a group of weights that is gathered, which takes turns with that of the group before it.
    Gathered {
        /// Index of the group.
        group: usize,
        /// Offset in its buffer.
        offset: usize,
    },
    /// The worker's arena; the bytes are reused once the value is dead.
    Arena(usize),
    /// The worker's shared block, which other workers read; never reused within a step.
    Shared(usize),
    /// The block of rows shared by the workers of a device, at the worker's rows; never reused within
    /// a step.
    Device(usize),
    /// The worker's gradient buffer.
    Gradient(ParamId),
}

/// A value with its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The buffer that holds it.
    pub location: Location,
    /// Elements to skip from `location`: a channel offset inside a wider value.
    pub offset: usize,
    /// Elements from one pixel (a run of the last axis) to the next.
    pub ld: usize,
}

impl Value {
    /// Whether its elements are contiguous in memory.
    pub fn contiguous(&self) -> bool {
        self.ld == self.ty.last()
    }
}

/// Memory of one worker and its device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The arena, reused by liveness.
    pub arena: usize,
    /// The block that other workers read.
    pub shared: usize,
    /// The block of rows shared by the workers of a device.
    pub device: usize,
    /// The largest group of weights that is gathered. Each memory domain has two such blocks.
    pub gathered: usize,
    /// Size of the arena without reuse.
    pub unplanned: usize,
}

/// Weights that are gathered together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightGroup {
    /// Each weight and its offset in the buffer of the group, in bytes.
    pub weights: Vec<(ParamId, usize)>,
    /// Bytes of the buffer.
    pub bytes: usize,
}
