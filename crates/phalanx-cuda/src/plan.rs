//! What a program takes of a replica's memory: known before there is a GPU, and what an executor reserves.

use crate::cx::Layout;
use crate::inputs::INPUT_BYTES;
use crate::launch::Block;
use crate::lower::{self, Facts, FromTable, Replica, Request};
use crate::machine::{AHEAD, Plan};
use crate::schedule::{STREAMS, schedule};
use crate::task::{Task, Work};
use crate::{autotune, cublas};
use phalanx_graph::ParamSpec;
use phalanx_graph::program::Program;

/// Parameters, feeds and fetches start at multiples of this many bytes, and no block is smaller.
pub(crate) const ALIGN: usize = 256;

/// What copies of the inputs on their way are for.
pub(crate) const INPUT_COPIES: &str = "input copies";

/// What memory that the vendor's libraries compute in is for.
pub(crate) const WORKSPACES: &str = "library workspaces";

/// A block of memory and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub block: Block,
    pub bytes: usize,
    pub purpose: &'static str,
}

impl Room {
    pub fn new(block: Block, bytes: usize, purpose: &'static str) -> Room {
        Room { block, bytes: bytes.max(ALIGN), purpose }
    }
}

/// Where a program's feeds and fetches lie, and the blocks it needs.
pub(crate) struct Rooms {
    pub layout: Layout,
    /// Bytes of a replica's inputs.
    pub inputs: usize,
    /// Where each fetch begins, and where the last ends.
    pub fetches: Vec<usize>,
    pub fetch_bytes: usize,
    /// Bytes of all parameters.
    flat: usize,
}

/// How a step is run, besides its rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Way<'a> {
    /// Whether there are other GPUs to add with.
    pub joined: bool,
    /// The samples that its rows are of, if not from the host.
    pub from: Option<FromTable<'a>>,
    /// Under gradient accumulation, whether the sum is applied.
    pub accumulate: Option<bool>,
}

/// Byte offsets of parts that follow one another, and the end.
fn stack(sizes: impl Iterator<Item = usize>, from: usize) -> (Vec<usize>, usize) {
    let mut end = from;
    let mut offsets = vec![];
    for bytes in sizes {
        offsets.push(end);
        end += bytes.next_multiple_of(ALIGN);
    }
    (offsets, end)
}

/// Where each parameter lies, in bytes, and the end of the last.
pub(crate) fn flat(params: &[ParamSpec]) -> (Vec<usize>, usize) {
    stack(params.iter().map(|p| p.len() * 4), 0)
}

impl Rooms {
    pub fn of(program: &Program) -> Rooms {
        let max_rows = program.options().mesh.max_rows(program.options().max_batch);
        let bytes = |ty: &phalanx_graph::Type| {
            ty.len() * ty.dtype.bytes() * if ty.is_rows() { max_rows } else { 1 }
        };
        let (feeds, inputs) = stack(program.feeds().iter().map(|f| bytes(&f.ty)), INPUT_BYTES);
        let (fetches, fetch_bytes) = stack(program.fetches().iter().map(|f| bytes(&f.ty)), 0);
        let (params, flat) = flat(program.params());
        Rooms { layout: Layout { feeds, params }, inputs, fetches, fetch_bytes, flat }
    }

    /// The blocks that a program needs whatever the rows of a batch.
    pub fn blocks(&self, program: &Program) -> Vec<Room> {
        let mut rooms = vec![
            Room::new(Block::Params, self.flat, "weights"),
            Room::new(Block::Inputs, self.inputs, "inputs"),
            Room::new(Block::Fetches, self.fetch_bytes, "results"),
            Room::new(Block::Arena, program.memory().arena, "activations"),
            Room::new(Block::Shared, program.memory().shared, "statistics"),
        ];
        if let Some(plan) = program.update() {
            rooms.push(Room::new(Block::Gradients, self.flat, "gradients"));
            let slots = 0..plan.rule.slots.len();
            rooms.extend(slots.map(|i| Room::new(Block::Slot(i), self.flat, "optimizer slots")));
        }
        rooms
    }

    /// The works of the largest batch, all replicas on one GPU, and their bytes of scratch
    /// memory and of counters.
    pub fn lower(&self, program: &Program, way: Way<'_>) -> (Plan, (usize, usize)) {
        let (mesh, rows) = (program.options().mesh, program.options().max_batch);
        let replica = |local: usize| {
            let range = mesh.device_rows(rows, local);
            Replica { local, rows: range.len(), first_row: range.start }
        };
        let replicas: Vec<Replica> = (0..mesh.devices).map(replica).collect();
        lower::lower(&Request {
            program,
            layout: &self.layout,
            facts: &Facts::of(program, mesh.devices == 1),
            replicas: &replicas,
            rows,
            fetches: &self.fetches,
            accumulate: way.accumulate,
            joined: way.joined,
            from: way.from,
        })
    }
}

/// The bytes that each stream's products may compute in, at most. How much of them the libraries take
/// shows only on the GPU.
pub(crate) fn workspaces(works: &[Work]) -> Vec<usize> {
    let mut most = vec![0; STREAMS + 1];
    for (work, place) in works.iter().zip(schedule(works, STREAMS)) {
        let bytes = |task: &Task| match task {
            Task::Conv(conv) => autotune::most_workspace(conv),
            Task::Gemm(_) => cublas::WORKSPACE,
            Task::Launch(_) | Task::Clear(_) | Task::Reduce(_) => 0,
        };
        let wanted = work.tasks.iter().map(bytes).max().unwrap_or(0);
        most[place.stream] = wanted.max(most[place.stream]);
    }
    most
}

/// What a program, compiled for a mesh of one worker per device, takes of each replica's memory, by purpose
/// and in bytes; `gathers` where gradients are accumulated over steps. Of `library workspaces` it is the
/// most that is allowed, which replicas on one GPU share. What the driver and the vendor's libraries take
/// for themselves comes on top.
pub fn memory_plan(program: &Program, gathers: bool) -> Vec<(&'static str, usize)> {
    let rooms = Rooms::of(program);
    let mut blocks = rooms.blocks(program);
    let (plan, (scratch, counters)) = rooms.lower(program, Way::default());
    blocks.push(Room::new(Block::Scratch, scratch, "partial sums"));
    blocks.push(Room::new(Block::Counters, counters, "partial sums"));
    if gathers && program.update().is_some() {
        blocks.push(Room::new(Block::Gathered, rooms.flat, "accumulated gradients"));
    }
    let mut parts: Vec<(&'static str, usize)> = vec![];
    for room in blocks {
        match parts.iter_mut().find(|(purpose, _)| *purpose == room.purpose) {
            Some((_, bytes)) => *bytes += room.bytes,
            None => parts.push((room.purpose, room.bytes)),
        }
    }
    parts.push((INPUT_COPIES, AHEAD * (rooms.inputs - INPUT_BYTES)));
    parts.push((WORKSPACES, workspaces(&plan.work).iter().sum()));
    parts
}
