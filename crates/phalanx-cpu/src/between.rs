//! Sums between processes. What the host's own workers have is added up first; then every process gets
//! what the others have and adds it in the order of the ranks, so that all hold the same bits. Where the
//! mesh is fixed, a process' shards are a whole branch of the tree that one process alone would add up.

use crate::courier::Courier;
use crate::memory::{Buffer, Heap};
use crate::worker::{self, Ctx};
use phalanx_graph::exec::ExecError;
use phalanx_graph::process_group::{Cluster, LocalShard, PeerError, ProcessGroup};
use phalanx_graph::program::{GradientPlan, Instr, Location, Program, ValueId, split_range};
use phalanx_graph::{DType, Mesh, ParamId, Scope};
use std::ops::{Add, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Up to this many floats everyone sends all to everyone; above, each adds up a part for the others.
const WHOLE: usize = 4096;

/// What an executor has for other processes.
pub(crate) struct Between {
    /// In front of the buffers: fields are dropped in this order, and its thread, which may have a bucket
    /// in hand where a step was broken off, must have ended before the gradients are freed.
    courier: Courier,
    pub cluster: Cluster,
    mesh: Mesh,
    /// The devices of this process: what it said when it started, whatever its peers say later.
    own: Range<usize>,
    /// Results of the collectives of a step, for the host's workers to read.
    totals: Buffer,
    /// The host's gradients, in the order of the update plan.
    pub gradients: Buffer,
    /// Workers that have added up their part of the bucket under way.
    arrived: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: Vec<u64>,
    /// By rank.
    incoming: Vec<Vec<u64>>,
    parts: Vec<f32>,
    /// What this process raises with the next step, and what any did in the last.
    raise: u64,
    raised: u64,
}

/// Collectives that stand behind one barrier and travel together.
pub(crate) struct Meeting {
    /// The barrier.
    at: usize,
    entries: Vec<Entry>,
}

struct Entry {
    /// The instruction.
    at: usize,
    input: ValueId,
    /// A mean over devices instead of a sum.
    mean: bool,
    len: usize,
    dtype: DType,
    /// Where its result lies among the totals, in words of eight bytes.
    offset: usize,
}

impl Entry {
    /// Words of the result.
    fn words(&self) -> usize {
        (self.len * self.dtype.bytes()).div_ceil(8)
    }

    /// Words that a process of so many devices sends.
    fn sent(&self, devices: usize) -> usize {
        if self.mean { self.words() * devices } else { self.words() }
    }
}

/// The meetings of a program, in order. The last one in front of an update is held even with nothing to
/// add up: bits that processes raise travel with it.
pub(crate) fn meetings(program: &Program) -> Vec<Meeting> {
    let mut meetings: Vec<Meeting> = vec![];
    let mut offset = 0;
    for (at, instr) in program.instrs().iter().enumerate() {
        let (input, mean) = match instr {
            Instr::Barrier(Scope::All) => {
                meetings.push(Meeting { at, entries: vec![] });
                continue;
            }
            Instr::AllReduce { scope: Scope::All, input, .. } => (*input, false),
            Instr::ReplicaMean { input, .. } => (*input, true),
            _ => continue,
        };
        let ty = &program.value(input).ty;
        let entry = Entry { at, input, mean, len: ty.len(), dtype: ty.dtype, offset };
        offset += entry.words();
        // A collective over all stands behind a barrier over all.
        if let Some(meeting) = meetings.last_mut() {
            meeting.entries.push(entry);
        }
    }
    let last = meetings.pop();
    meetings.retain(|m| !m.entries.is_empty());
    meetings.extend(last.filter(|m| program.update().is_some() || !m.entries.is_empty()));
    meetings
}

/// Bytes of the results of all collectives.
pub(crate) fn totals(meetings: &[Meeting]) -> usize {
    meetings.iter().flat_map(|m| &m.entries).map(|e| e.words() * 8).sum()
}

/// Where each gradient starts in the host's buffer, and how long that is.
pub(crate) fn packed(program: &Program) -> Vec<usize> {
    let mut offsets = vec![0];
    for g in program.update().into_iter().flat_map(|plan| &plan.gradients) {
        let len = program.params()[g.param.index()].len();
        offsets.push(offsets.last().copied().unwrap_or(0) + len);
    }
    offsets
}

impl Between {
    /// For the process that has the devices `own` of the mesh.
    pub fn new(cluster: Cluster, mesh: Mesh, own: Range<usize>) -> std::io::Result<Between> {
        Ok(Between {
            courier: Courier::start(cluster.peers.clone(), mesh.fixed)?,
            cluster,
            mesh,
            own,
            totals: Buffer::empty(),
            gradients: Buffer::empty(),
            arrived: AtomicUsize::new(0),
            state: Mutex::default(),
        })
    }

    /// Makes room for so many bytes of totals and of gradients.
    pub fn reserve(
        &mut self,
        heap: &mut Heap,
        totals: usize,
        gradients: usize,
    ) -> Result<(), ExecError> {
        if self.gradients.bytes() < gradients {
            // A step that was broken off may have left a bucket on its way; how that ends is for the
            // next step.
            let _ = self.courier.idle();
        }
        crate::executor::grow(heap, &mut self.totals, totals, "sums between processes")?;
        crate::executor::grow(heap, &mut self.gradients, gradients, "gradients of the host")
    }

    pub fn share(&self) -> LocalShard {
        LocalShard { mesh: self.mesh, devices: self.own.clone() }
    }

    pub fn raise(&self, bits: u64) {
        self.state().raise = bits;
    }

    pub fn raised(&self) -> u64 {
        self.state().raised
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether processes meet behind this barrier; one of the host's workers then calls
    /// [`meet`](Self::meet).
    pub fn meeting(meetings: &[Meeting], at: usize) -> Option<&Meeting> {
        meetings.iter().find(|m| m.at == at)
    }

    /// Adds up a meeting's collectives over all processes.
    pub fn meet(&self, ctx: &Ctx<'_>, meeting: &Meeting) -> Result<(), PeerError> {
        // Exchanges come in the same order everywhere.
        self.courier.idle()?;
        let (rank, size) = (self.cluster.peers.rank(), self.cluster.peers.size());
        let mut state = self.state();
        let State { outgoing, incoming, raise, .. } = &mut *state;
        let words = |devices: usize| -> usize {
            1 + meeting.entries.iter().map(|e| e.sent(devices)).sum::<usize>()
        };
        outgoing.clear();
        outgoing.resize(words(self.cluster.devices[rank]), 0);
        outgoing[0] = std::mem::take(raise);
        let mut at = 1;
        for entry in &meeting.entries {
            let sent = entry.sent(self.cluster.devices[rank]);
            self.own_part(ctx, entry, &mut outgoing[at..at + sent]);
            at += sent;
        }
        incoming.resize_with(size, Vec::new);
        for (part, devices) in incoming.iter_mut().zip(&self.cluster.devices) {
            part.resize(words(*devices), 0);
        }
        let out = vec![bytes(&outgoing[..]); size];
        let mut into: Vec<&mut [u8]> = incoming.iter_mut().map(|v| bytes_mut(v)).collect();
        self.cluster.peers.exchange(&out, &mut into)?;
        incoming[rank].copy_from_slice(outgoing);
        state.raised = state.incoming.iter().fold(0, |all, part| all | part[0]);
        self.conclude(ctx, meeting, &state.incoming);
        Ok(())
    }

    /// What this process has of a collective.
    fn own_part(&self, ctx: &Ctx<'_>, entry: &Entry, to: &mut [u64]) {
        let (value, mesh) = (ctx.value(entry.input), self.mesh);
        let own = self.own.clone();
        // SAFETY: sources are shared blocks that were finished before the barrier in front of this.
        unsafe {
            if entry.mean {
                for (to, device) in to.chunks_exact_mut(entry.words()).zip(own) {
                    let from: *const f32 = ctx.address(value, device, 0).cast();
                    let from = std::slice::from_raw_parts(from, entry.len);
                    floats_mut(to)[..entry.len].copy_from_slice(from);
                }
                return;
            }
            let sources = own.flat_map(|d| (0..mesh.workers).map(move |w| (d, w)));
            let sources = sources.map(|(d, w)| ctx.address(value, d, w));
            match entry.dtype {
                DType::F64 => worker::add_up(mesh, sources.map(|s| s.cast()), doubles_mut(to)),
                _ => {
                    let out = &mut floats_mut(to)[..entry.len];
                    worker::add_up(mesh, sources.map(|s| s.cast()), out);
                }
            }
        }
    }

    /// Makes totals of what all processes have.
    fn conclude(&self, ctx: &Ctx<'_>, meeting: &Meeting, parts: &[Vec<u64>]) {
        let mut at = vec![1; parts.len()];
        for entry in &meeting.entries {
            let part = |rank: usize| {
                let sent = entry.sent(self.cluster.devices[rank]);
                &parts[rank][at[rank]..at[rank] + sent]
            };
            let parts: Vec<&[u64]> = (0..parts.len()).map(part).collect();
            // SAFETY: room for every entry was made when the program was loaded; nobody reads it before
            // the barrier behind this.
            let total = unsafe {
                let to = self.totals.ptr().cast::<u64>().add(entry.offset);
                std::slice::from_raw_parts_mut(to, entry.words())
            };
            match (entry.mean, entry.dtype) {
                (true, _) => self.mean(ctx, entry, &parts, &mut floats_mut(total)[..entry.len]),
                (false, DType::F64) => {
                    let parts: Vec<&[f64]> = parts.iter().map(|p| doubles(p)).collect();
                    add_parts(self.mesh.fixed, &parts, doubles_mut(total));
                }
                (false, _) => {
                    let parts: Vec<&[f32]> =
                        parts.iter().map(|p| &floats(p)[..entry.len]).collect();
                    add_parts(self.mesh.fixed, &parts, &mut floats_mut(total)[..entry.len]);
                }
            }
            for (at, devices) in at.iter_mut().zip(&self.cluster.devices) {
                *at += entry.sent(*devices);
            }
        }
    }

    /// The mean over all devices, weighted by their rows.
    fn mean(&self, ctx: &Ctx<'_>, entry: &Entry, parts: &[&[u64]], out: &mut [f32]) {
        let devices = parts.iter().flat_map(|p| p.chunks_exact(entry.words())).map(floats);
        worker::weighted_mean(self.mesh, ctx.run.batch.rows, devices, out);
    }

    /// The result of a collective that was met for.
    pub fn total(&self, meetings: &[Meeting], at: usize) -> Option<*const u8> {
        let entry = meetings.iter().flat_map(|m| &m.entries).find(|e| e.at == at)?;
        // SAFETY: inside the block, as above.
        Some(unsafe { self.totals.ptr().add(entry.offset * 8).cast_const() })
    }

    /// Adds up floats over all processes, in place, behind whatever is on its way.
    pub fn sum(&self, values: &mut [f32]) -> Result<(), PeerError> {
        self.courier.idle()?;
        sum(&*self.cluster.peers, self.mesh.fixed, values, &mut self.state().parts)
    }

    /// Counts the workers that have added up their part of a bucket; the last sends it on its way.
    pub fn send(&self, bucket: Range<usize>, workers: usize) {
        // Nobody comes to the next bucket before all have been here: there is a barrier in front of it.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == workers {
            self.arrived.store(0, Ordering::Relaxed);
            // SAFETY: the bucket lies inside the buffer; nobody touches it before `arrive`.
            unsafe { self.courier.take(self.gradients.f32().add(bucket.start), bucket.len()) };
        }
    }

    /// Waits for all buckets that are on their way.
    pub fn arrive(&self) -> Result<(), PeerError> {
        self.courier.idle()
    }

    /// Completes the rows of a fetch with those of the other processes.
    pub fn gather_rows(&self, rows: usize, width: usize, all: &mut [f32]) -> Result<(), PeerError> {
        let peers = &*self.cluster.peers;
        let range = |rank: usize| {
            let rows = self.mesh.rows_of(rows, self.cluster.devices_of(rank));
            rows.start * width..rows.end * width
        };
        let own = all[range(peers.rank())].to_vec();
        let mut into = ranges(all, (0..peers.size()).map(range));
        let mut into: Vec<&mut [u8]> = into.iter_mut().map(|v| bytes_mut(v)).collect();
        peers.exchange(&vec![bytes(&own); peers.size()], &mut into)
    }
}

/// Adds up floats over all processes, in place: each adds up a part, in the order of the ranks, and hands
/// it to the others. `room` is for what comes in.
pub(crate) fn sum(
    peers: &dyn ProcessGroup,
    tree: bool,
    values: &mut [f32],
    room: &mut Vec<f32>,
) -> Result<(), PeerError> {
    let (rank, size, len) = (peers.rank(), peers.size(), values.len());
    let whole = len <= WHOLE;
    let range = |r: usize| if whole { 0..len } else { split_range(0..len, size, r) };
    let mine = range(rank);
    room.resize(size * mine.len(), 0.0);
    let mut into = cut(room, mine.len(), size);
    into[rank].copy_from_slice(&values[mine.clone()]);
    let out: Vec<&[u8]> = (0..size).map(|r| bytes(&values[range(r)])).collect();
    peers.exchange(&out, &mut into.iter_mut().map(|v| bytes_mut(v)).collect::<Vec<_>>())?;
    let parts: Vec<&[f32]> = into.iter().map(|v| &**v).collect();
    add_parts(tree, &parts, &mut values[mine.clone()]);
    if whole {
        return Ok(());
    }
    let own = &mut room[..mine.len()];
    own.copy_from_slice(&values[mine]);
    let mut into = ranges(values, (0..size).map(range));
    let mut into: Vec<&mut [u8]> = into.iter_mut().map(|v| bytes_mut(v)).collect();
    peers.exchange(&vec![bytes(own); size], &mut into)
}

/// Whether gradients travel during backward: `PHALANX_OVERLAP=0` sends all of them behind it.
pub fn overlaps() -> bool {
    std::env::var("PHALANX_OVERLAP").map_or(true, |v| v != "0")
}

/// Where in a program each bucket of gradients is finished on every worker, as far as enough is computed
/// behind it to send it meanwhile.
pub(crate) fn sends(program: &Program) -> Vec<Option<usize>> {
    let Some(plan) = program.update() else { return vec![] };
    if !overlaps() {
        return vec![None; plan.buckets.len()];
    }
    let writes = |instr: &Instr, param: ParamId| match instr {
        Instr::Compute { output, .. } | Instr::Copy { output, .. } => {
            program.value(*output).location == Location::Gradient(param)
        }
        _ => false,
    };
    let finished = |g: &GradientPlan| {
        let last = program.instrs().iter().rposition(|i| writes(i, g.param));
        last.filter(|_| !g.sliced)
    };
    let bucket = |range: &Range<usize>| {
        let all: Option<Vec<usize>> = plan.gradients[range.clone()].iter().map(finished).collect();
        let last = all?.into_iter().max()?;
        worker::has_compute(&program.instrs()[last + 1..]).then_some(last)
    };
    let mut found: Vec<Option<usize>> = plan.buckets.iter().map(bucket).collect();
    // Buckets leave in their order, on every process alike.
    let mut before = 0;
    for at in &mut found {
        *at = at.map(|at| at.max(before));
        before = at.unwrap_or(before);
    }
    found
}

/// Ranges that follow one another, as slices of their own.
fn ranges(mut values: &mut [f32], parts: impl Iterator<Item = Range<usize>>) -> Vec<&mut [f32]> {
    let mut out = vec![];
    for part in parts {
        let (first, rest) = values.split_at_mut(part.len());
        out.push(first);
        values = rest;
    }
    out
}

fn cut(values: &mut [f32], len: usize, parts: usize) -> Vec<&mut [f32]> {
    ranges(values, (0..parts).map(|i| i * len..(i + 1) * len))
}

/// `out = Σ parts`: in order, or as a tree.
pub(crate) fn add_parts<T: Copy + Add<Output = T>>(tree: bool, parts: &[&[T]], out: &mut [T]) {
    match parts {
        [a, b, c, d] if tree => {
            let sum = |i: usize| (a[i] + b[i]) + (c[i] + d[i]);
            out.iter_mut().enumerate().for_each(|(i, o)| *o = sum(i));
        }
        [a, b, c, d, e, f, g, h] if tree => {
            let sum = |i: usize| ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
            out.iter_mut().enumerate().for_each(|(i, o)| *o = sum(i));
        }
        [first, rest @ ..] => {
            out.copy_from_slice(first);
            for part in rest {
                out.iter_mut().zip(*part).for_each(|(o, v)| *o = *o + *v);
            }
        }
        [] => {}
    }
}

/// Types without padding or forbidden bits.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u64 {}

fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers are bytes, and those need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; any bytes make a number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

fn floats(words: &[u64]) -> &[f32] {
    // SAFETY: a word holds two floats, which need less alignment, and any bits are a float.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 2) }
}

fn floats_mut(words: &mut [u64]) -> &mut [f32] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}

fn doubles(words: &[u64]) -> &[f64] {
    // SAFETY: as above, word by word.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

fn doubles_mut(words: &mut [u64]) -> &mut [f64] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    /// Another process that takes its time, then reads what it is sent and answers with as much.
    struct Slow(Arc<AtomicUsize>);

    impl ProcessGroup for Slow {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            2
        }

        fn name(&self, rank: usize) -> String {
            format!("rank {rank}")
        }

        fn exchange(&self, out: &[&[u8]], into: &mut [&mut [u8]]) -> Result<(), PeerError> {
            std::thread::sleep(Duration::from_millis(100));
            into[1].fill(out[1].iter().fold(0, |all, byte| all | byte));
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    /// Gradients of a size that the system takes back at once, one bucket of them on its way: what a
    /// worker leaves that panics in backward.
    fn broken_off(exchanges: &Arc<AtomicUsize>) -> (Heap, Between) {
        let cluster = Cluster { peers: Arc::new(Slow(exchanges.clone())), devices: vec![1, 1] };
        // More than one message takes, at least.
        let floats = if cfg!(miri) { 2 * WHOLE } else { 1 << 20 };
        let mut heap = Heap::default();
        let mut between = Between::new(cluster, Mesh::new(2, 1), 0..1).unwrap();
        between.gradients = heap.buffer(floats * 4, "a test").unwrap();
        between.send(0..floats, 1);
        // The courier has it in hand.
        std::thread::sleep(Duration::from_millis(20));
        (heap, between)
    }

    #[test]
    fn gradients_outlive_a_bucket_on_its_way() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        drop(broken_off(&exchanges));
        assert_eq!(exchanges.load(Ordering::SeqCst), 2, "both rounds ended before the drop did");
    }

    #[test]
    fn gradients_outlive_a_bucket_where_the_step_panics() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        let step = || {
            let _held = broken_off(&exchanges);
            panic!("a worker in backward");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).is_err());
        assert_eq!(exchanges.load(Ordering::SeqCst), 2);
    }
}
