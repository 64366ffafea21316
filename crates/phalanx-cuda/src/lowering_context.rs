//! The context in which an op is lowered: its operands as addresses, for the rows of one replica.

use crate::launch::{Block, Elem, Ptr, Span};
use phalanx_graph::program::{Location, Value, ValueId};
use phalanx_graph::{DType, ParamSpec};
use std::collections::BTreeMap;

/// Byte offsets of feeds and parameters in their blocks.
pub(crate) struct Layout {
    pub feeds: Vec<usize>,
    /// Also the layout of gradients and slots.
    pub params: Vec<usize>,
}

/// An operand or result.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub ptr: Ptr,
    pub elem: Elem,
    /// Dimensions of one row, or of the whole value if it has no row axis.
    pub dims: Vec<usize>,
    /// Elements from one pixel (a run of the last axis) to the next.
    pub ld: usize,
    /// Total elements, over all rows of this replica.
    pub len: usize,
}

impl Operand {
    /// The last dimension, 1 for scalars.
    pub fn last(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// The bytes that it occupies.
    pub fn span(&self) -> Span {
        let (size, last) = (self.elem.bytes(), self.last());
        if self.ld == last || self.pixels() <= 1 {
            return Span::whole(self.ptr, self.len * size);
        }
        let bytes = ((self.pixels() - 1) * self.ld + last) * size;
        Span { at: self.ptr, bytes, width: last * size, pitch: self.ld * size }
    }

    /// Number of runs of the last axis.
    pub fn pixels(&self) -> usize {
        self.len / self.last().max(1)
    }
}

/// Allocates scratch memory while a step is lowered.
#[derive(Default)]
pub(crate) struct Scratch {
    replica: usize,
    used: usize,
    counted: usize,
}

impl Scratch {
    /// Scratch memory of a replica.
    pub fn new(replica: usize) -> Scratch {
        Scratch { replica, used: 0, counted: 0 }
    }

    /// Allocates bytes that are zero before every launch that uses them. The launch must leave them
    /// zero, because other steps use the same bytes.
    pub fn counters(&mut self, bytes: usize) -> Ptr {
        let at = self.counted;
        self.counted += bytes.next_multiple_of(256).max(256);
        Ptr::new(self.replica, Block::Counters, at)
    }

    /// Allocates bytes that nothing else in this step uses. Their initial content is undefined.
    pub fn take(&mut self, bytes: usize) -> Ptr {
        let at = self.used;
        self.used += bytes.next_multiple_of(256).max(256);
        Ptr::new(self.replica, Block::Scratch, at)
    }

    /// Bytes of scratch memory and of counters allocated so far.
    pub fn used(&self) -> (usize, usize) {
        (self.used, self.counted)
    }
}

/// Elided copies: values that are read at the location of another value.
#[derive(Default)]
pub(crate) struct Aliases {
    /// Keyed by the location that the copy would have had.
    places: BTreeMap<(Block, usize), Alias>,
    /// Operands of the current instruction, whose memory its result may overwrite.
    operands: Vec<(ValueId, (Block, usize))>,
}

struct Alias {
    bytes: usize,
    to: (Block, usize),
}

impl Aliases {
    /// Redirects reads of `span` to `to`.
    pub fn insert(&mut self, span: Span, to: (Block, usize)) {
        self.places.insert((span.at.block, span.at.offset), Alias { bytes: span.bytes, to });
    }

    /// Begins an instruction with these operands, which writes `result`.
    pub fn enter(&mut self, operands: Vec<(ValueId, Ptr)>, result: Span) {
        let place = |(id, at): (ValueId, Ptr)| (id, (at.block, at.offset));
        self.operands = operands.into_iter().map(place).collect();
        let at = result.at;
        self.places.retain(|(block, from), alias| {
            let end = at.offset + result.bytes;
            *block != at.block || *from >= end || at.offset >= from + alias.bytes
        });
    }

    /// Ends the current instruction.
    pub fn leave(&mut self) {
        self.operands.clear();
    }

    /// The location of a value that starts `skipped` bytes into its buffer.
    fn find(&self, id: ValueId, own: Ptr, skipped: usize) -> (Block, usize) {
        if let Some((_, at)) = self.operands.iter().find(|(operand, _)| *operand == id) {
            return *at;
        }
        let alias = self.places.get(&(own.block, own.offset - skipped));
        alias.map_or((own.block, own.offset), |a| (a.to.0, a.to.1 + skipped))
    }
}

/// The context of a lowering.
pub(crate) struct LowerCtx<'a> {
    /// The program's values and parameters.
    pub values: &'a [Value],
    pub params: &'a [ParamSpec],
    pub layout: &'a Layout,
    pub aliases: &'a Aliases,
    pub scratch: &'a mut Scratch,
    /// Index of the replica among those that share the GPU.
    pub replica: usize,
    /// Rows of this replica.
    pub rows: usize,
    /// Its first row in the global batch.
    pub first_row: usize,
}

impl<'a> LowerCtx<'a> {
    pub fn value(&self, id: ValueId) -> &'a Value {
        &self.values[id.index()]
    }

    /// A value at the location where it is read, with aliases resolved.
    pub fn operand(&self, id: ValueId) -> Operand {
        let own = self.assigned(id);
        let skipped = self.value(id).offset * own.elem.bytes();
        let (block, at) = self.aliases.find(id, own.ptr, skipped);
        Operand { ptr: Ptr::new(self.replica, block, at), ..own }
    }

    /// A value at the location that the program assigned to it.
    pub fn assigned(&self, id: ValueId) -> Operand {
        let v = self.value(id);
        let elem = match v.ty.dtype {
            DType::F32 => Elem::F32,
            DType::F64 => Elem::F64,
            DType::I32 => Elem::I32,
            DType::Bf16 => Elem::Bf16,
            DType::F16 => Elem::F16,
        };
        let (block, at) = match v.location {
            Location::Feed(f) => (Block::Inputs, self.layout.feeds[f.index()]),
            Location::Param(p) => (Block::Params, self.layout.params[p.index()]),
            Location::Gathered { .. } => unreachable!("`open` rejects a sharded state"),
            Location::Arena(at) => (Block::Arena, at),
            Location::Shared(at) => (Block::Shared, at),
            Location::Device(_) => {
                unreachable!("a GPU's replica has one worker: nothing is shared")
            }
            Location::Gradient(p) => (Block::Gradients, self.layout.params[p.index()]),
        };
        let base = Ptr::new(self.replica, block, at);
        let rows = if v.ty.is_rows() { self.rows } else { 1 };
        Operand {
            ptr: base.add(v.offset * elem.bytes()),
            elem,
            dims: v.ty.dims.clone(),
            ld: v.ld,
            len: v.ty.len() * rows,
        }
    }

    /// Rows of a value: those of this replica, or 1 if it has no row axis.
    pub fn rows_of(&self, id: ValueId) -> usize {
        if self.value(id).ty.is_rows() { self.rows } else { 1 }
    }
}
