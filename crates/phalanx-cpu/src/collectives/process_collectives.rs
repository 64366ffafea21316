//! Collectives between processes.
//!
//! Each process first sums over its own workers. Then the processes exchange their partial sums, and each
//! adds them in rank order, so that all hold the same bits. On a fixed mesh the shards of a process are a
//! complete subtree of the summation tree that a single process would use.

use super::async_reduce::{JobKind, ReduceThread};
use super::exchange_layout::{BucketLayout, GroupLayout};
use super::exchanges::{bytes, bytes_mut, doubles, doubles_mut, floats, floats_mut, split_ranges};
use super::{sum_slices, sum_sources, weighted_mean};
use crate::executor::{ProcessBytes, grow};
use crate::memory::{Buffer, Heap};
use crate::worker::WorkerCtx;
use phalanx_distributed::{PeerError, all_gather};
use phalanx_exec::{Cluster, ExecError, LocalShard, ProcessFlags};
use phalanx_graph::program::{Instr, Program, ValueId};
use phalanx_graph::{DType, Mesh, Scope};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The executor's side of the collectives between processes.
pub(crate) struct ProcessCollectives {
    /// Declared before the buffers because fields are dropped in order. After an aborted step the thread
    /// may still have a bucket in flight, and it must end before the gradients are freed.
    reduce_thread: ReduceThread,
    pub cluster: Cluster,
    mesh: Mesh,
    /// The replicas of this process, as stated at start-up. They do not depend on the peers.
    own_replicas: Range<usize>,
    /// Results of a step's collectives, read by all workers of this process.
    results: Buffer,
    /// Gradients summed over this process, then over all, in the order of the update plan.
    pub gradients: Buffer,
    /// Groups of weights that were gathered from all processes; they take turns.
    pub gathered: [Buffer; 2],
    /// Workers that have summed their part of the current bucket.
    workers_done: AtomicUsize,
    /// The answer of the last call of [`check_all`](Self::check_all).
    all_true: AtomicBool,
    /// The job that fills each buffer of weights.
    gather_jobs: [AtomicU64; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: Vec<u64>,
    /// By rank.
    incoming: Vec<Vec<u64>>,
    /// The flags that this process sends with the next step.
    next_flags: u64,
    /// The flags of all processes in the last step, combined by OR.
    flags: u64,
}

/// The collectives after one barrier, exchanged in one message.
pub(crate) struct FusedCollective {
    /// Index of the barrier instruction.
    barrier: usize,
    parts: Vec<Collective>,
}

struct Collective {
    /// Index of the instruction.
    instr: usize,
    input: ValueId,
    /// Whether this is a mean over replicas instead of a sum over workers.
    mean: bool,
    len: usize,
    dtype: DType,
    /// Offset of its result in `results`, in words of eight bytes.
    offset: usize,
}

impl Collective {
    /// Words of the result.
    fn words(&self) -> usize {
        (self.len * self.dtype.bytes()).div_ceil(8)
    }

    /// Words that a process with `replicas` replicas sends.
    fn sent_words(&self, replicas: usize) -> usize {
        if self.mean { self.words() * replicas } else { self.words() }
    }
}

/// The fused collectives of a program, in order. The last one before an update is kept even if it has
/// nothing to reduce, because it carries the flags.
pub(crate) fn fused_collectives(program: &Program) -> Vec<FusedCollective> {
    let mut fused: Vec<FusedCollective> = vec![];
    let mut offset = 0;
    for (at, instr) in program.instrs().iter().enumerate() {
        let (input, mean) = match instr {
            Instr::Barrier(Scope::All) => {
                fused.push(FusedCollective { barrier: at, parts: vec![] });
                continue;
            }
            Instr::AllReduce { scope: Scope::All, input, .. } => (*input, false),
            Instr::ReplicaMean { input, .. } => (*input, true),
            _ => continue,
        };
        let ty = &program.value(input).ty;
        let part = Collective { instr: at, input, mean, len: ty.len(), dtype: ty.dtype, offset };
        offset += part.words();
        // A barrier over all devices precedes every collective over all devices.
        if let Some(last) = fused.last_mut() {
            last.parts.push(part);
        }
    }
    let last = fused.pop();
    fused.retain(|f| !f.parts.is_empty());
    fused.extend(last.filter(|f| program.update().is_some() || !f.parts.is_empty()));
    fused
}

/// Bytes of the results of all collectives.
pub(crate) fn result_bytes(fused: &[FusedCollective]) -> usize {
    fused.iter().flat_map(|f| &f.parts).map(|p| p.words() * 8).sum()
}

impl ProcessFlags for ProcessCollectives {
    fn set_flags(&mut self, bits: u64) {
        self.state().next_flags = bits;
    }

    fn flags(&self) -> u64 {
        self.state().flags
    }
}

impl ProcessCollectives {
    /// The collectives of the process that owns `own_replicas` of the mesh.
    pub fn new(
        cluster: Cluster,
        mesh: Mesh,
        own_replicas: Range<usize>,
    ) -> std::io::Result<ProcessCollectives> {
        Ok(ProcessCollectives {
            reduce_thread: ReduceThread::start(cluster.peers.clone(), mesh.fixed)?,
            cluster,
            mesh,
            own_replicas,
            results: Buffer::empty(),
            gradients: Buffer::empty(),
            gathered: [Buffer::empty(), Buffer::empty()],
            workers_done: AtomicUsize::new(0),
            all_true: AtomicBool::new(false),
            gather_jobs: [AtomicU64::new(0), AtomicU64::new(0)],
            state: Mutex::default(),
        })
    }

    /// Reserves the buffers.
    pub fn reserve(&mut self, heap: &mut Heap, bytes: ProcessBytes) -> Result<(), ExecError> {
        // An aborted step may have left a bucket in flight. The next step reports its error, if any.
        let _ = self.reduce_thread.flush();
        grow(heap, &mut self.results, bytes.collective_results, "sums between processes")?;
        for buffer in &mut self.gathered {
            grow(heap, buffer, bytes.gathered, "gathered weights")?;
        }
        grow(heap, &mut self.gradients, bytes.gradients, "gradients of the host")
    }

    pub fn shard(&self) -> LocalShard {
        LocalShard { mesh: self.mesh, replicas: self.own_replicas.clone() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fused collective after the barrier at index `barrier`, if any. One worker of the process passes
    /// it to [`reduce`](Self::reduce).
    pub fn after_barrier(fused: &[FusedCollective], barrier: usize) -> Option<&FusedCollective> {
        fused.iter().find(|f| f.barrier == barrier)
    }

    /// Reduces a fused collective over all processes.
    pub fn reduce(&self, ctx: &WorkerCtx<'_>, fused: &FusedCollective) -> Result<(), PeerError> {
        // All processes must make their exchanges in the same order.
        self.reduce_thread.flush()?;
        let (rank, size) = (self.cluster.peers.rank(), self.cluster.peers.size());
        let mut state = self.state();
        let State { outgoing, incoming, next_flags, .. } = &mut *state;
        let words = |replicas: usize| -> usize {
            1 + fused.parts.iter().map(|p| p.sent_words(replicas)).sum::<usize>()
        };
        outgoing.clear();
        outgoing.resize(words(self.cluster.replicas[rank]), 0);
        outgoing[0] = std::mem::take(next_flags);
        let mut at = 1;
        for part in &fused.parts {
            let sent = part.sent_words(self.cluster.replicas[rank]);
            self.reduce_locally(ctx, part, &mut outgoing[at..at + sent]);
            at += sent;
        }
        incoming.resize_with(size, Vec::new);
        for (message, replicas) in incoming.iter_mut().zip(&self.cluster.replicas) {
            message.resize(words(*replicas), 0);
        }
        let out = vec![bytes(&outgoing[..]); size];
        let mut into: Vec<&mut [u8]> = incoming.iter_mut().map(|v| bytes_mut(v)).collect();
        self.cluster.peers.exchange(&out, &mut into)?;
        incoming[rank].copy_from_slice(outgoing);
        state.flags = state.incoming.iter().fold(0, |all, message| all | message[0]);
        self.combine(ctx, fused, &state.incoming);
        Ok(())
    }

    /// Writes this process's contribution to a collective.
    fn reduce_locally(&self, ctx: &WorkerCtx<'_>, part: &Collective, to: &mut [u64]) {
        let (value, mesh) = (ctx.value(part.input), self.mesh);
        let own = self.own_replicas.clone();
        // SAFETY: the sources are shared blocks, complete since the barrier before this.
        unsafe {
            if part.mean {
                for (to, replica) in to.chunks_exact_mut(part.words()).zip(own) {
                    let from: *const f32 = ctx.address(value, replica, 0).cast();
                    let from = std::slice::from_raw_parts(from, part.len);
                    floats_mut(to)[..part.len].copy_from_slice(from);
                }
                return;
            }
            let sources = own.flat_map(|d| (0..mesh.workers).map(move |w| (d, w)));
            let sources = sources.map(|(d, w)| ctx.address(value, d, w));
            match part.dtype {
                DType::F64 => sum_sources(mesh, sources.map(|s| s.cast()), doubles_mut(to)),
                _ => {
                    let out = &mut floats_mut(to)[..part.len];
                    sum_sources(mesh, sources.map(|s| s.cast()), out);
                }
            }
        }
    }

    /// Combines the messages of all processes, indexed by rank, into the results.
    fn combine(&self, ctx: &WorkerCtx<'_>, fused: &FusedCollective, messages: &[Vec<u64>]) {
        let mut at = vec![1; messages.len()];
        for part in &fused.parts {
            let contribution = |rank: usize| {
                let sent = part.sent_words(self.cluster.replicas[rank]);
                &messages[rank][at[rank]..at[rank] + sent]
            };
            let inputs: Vec<&[u64]> = (0..messages.len()).map(contribution).collect();
            // SAFETY: `load` reserved memory for every result, and no worker reads it before the barrier
            // after this.
            let result = unsafe {
                let to = self.results.ptr().cast::<u64>().add(part.offset);
                std::slice::from_raw_parts_mut(to, part.words())
            };
            match (part.mean, part.dtype) {
                (true, _) => self.mean(ctx, part, &inputs, &mut floats_mut(result)[..part.len]),
                (false, DType::F64) => {
                    let inputs: Vec<&[f64]> = inputs.iter().map(|p| doubles(p)).collect();
                    sum_slices(self.mesh.fixed, &inputs, doubles_mut(result));
                }
                (false, _) => {
                    let inputs: Vec<&[f32]> =
                        inputs.iter().map(|p| &floats(p)[..part.len]).collect();
                    sum_slices(self.mesh.fixed, &inputs, &mut floats_mut(result)[..part.len]);
                }
            }
            for (at, replicas) in at.iter_mut().zip(&self.cluster.replicas) {
                *at += part.sent_words(*replicas);
            }
        }
    }

    /// The mean over all replicas, weighted by their rows.
    fn mean(&self, ctx: &WorkerCtx<'_>, part: &Collective, inputs: &[&[u64]], out: &mut [f32]) {
        let replicas = inputs.iter().flat_map(|p| p.chunks_exact(part.words())).map(floats);
        weighted_mean(self.mesh, ctx.run.batch.rows, replicas, out);
    }

    /// The result of the collective at instruction `instr`, if processes reduced it.
    pub fn result(&self, fused: &[FusedCollective], instr: usize) -> Option<*const u8> {
        let part = fused.iter().flat_map(|f| &f.parts).find(|p| p.instr == instr)?;
        // SAFETY: inside the block, as above.
        Some(unsafe { self.results.ptr().add(part.offset * 8).cast_const() })
    }

    /// Called by each of `workers` workers after it summed its part of a bucket. The last call submits the
    /// bucket. `sums` is the state's `reduced` buffer if it is to receive the sums.
    pub fn finish_bucket(&self, bucket: &BucketLayout, sums: Option<*mut f32>, workers: usize) {
        // A barrier before the next bucket keeps workers from calling this for it too early.
        if self.workers_done.fetch_add(1, Ordering::AcqRel) + 1 == workers {
            self.workers_done.store(0, Ordering::Relaxed);
            // SAFETY: no worker touches the bucket before `flush`.
            unsafe { self.submit_reduction(bucket, sums) };
        }
    }

    /// Submits a bucket that this process has summed.
    ///
    /// # Safety
    /// No worker touches the bucket, or its places in `sums`, before [`flush`](Self::flush) or [`wait`](Self::wait).
    pub unsafe fn submit_reduction(&self, bucket: &BucketLayout, sums: Option<*mut f32>) {
        let kind = match (bucket.scattered, sums) {
            (true, Some(buffer)) => JobKind::ReduceScatter(Some((buffer, bucket.sums.clone()))),
            (true, None) => JobKind::ReduceScatter(None),
            (false, _) => JobKind::AllReduce,
        };
        // SAFETY: the caller's contract.
        unsafe { self.submit(kind, bucket) };
    }

    /// Submits a bucket of which each process has written its part.
    ///
    /// # Safety
    /// As [`submit_reduction`](Self::submit_reduction).
    pub unsafe fn submit_gather(&self, bucket: &BucketLayout) {
        // SAFETY: the caller's contract.
        unsafe { self.submit(JobKind::AllGather, bucket) };
    }

    unsafe fn submit(&self, kind: JobKind, bucket: &BucketLayout) {
        // SAFETY: the bucket lies inside the buffer; the rest is the caller's contract.
        unsafe {
            let first = self.gradients.f32().add(bucket.start);
            self.reduce_thread.submit(kind, (first, bucket.len()), bucket.parts.clone());
        }
    }

    /// Waits until at most `left` submitted jobs are unfinished.
    pub fn wait(&self, left: usize) -> Result<(), PeerError> {
        self.reduce_thread.wait(left)
    }

    /// Waits until a group of weights is complete, and submits the next one. `weights` is this process's part of all
    /// weights.
    ///
    /// # Safety
    /// No worker reads the weights of the group before this one any more.
    pub unsafe fn gather_weights(
        &self,
        groups: &[Arc<GroupLayout>],
        group: usize,
        weights: *const f32,
    ) -> Result<(), PeerError> {
        let submit = |group: usize| {
            let Some(layout) = groups.get(group) else { return };
            let to = self.gathered[group % 2].f32();
            let kind = JobKind::GatherWeights { weights, to, layout: layout.clone() };
            // SAFETY: weights change only in the update, which waits for all jobs. The buffer belonged to the group two
            // turns earlier.
            let ticket = unsafe { self.reduce_thread.submit(kind, (to, 0), [].into()) };
            self.gather_jobs[group % 2].store(ticket, Ordering::Relaxed);
        };
        if group == 0 {
            submit(0);
        }
        self.reduce_thread.wait_for(self.gather_jobs[group % 2].load(Ordering::Relaxed))?;
        submit(group + 1);
        Ok(())
    }

    /// Whether `mine` holds on all processes; [`all_true`](Self::all_true) returns it.
    pub fn check_all(&self, mine: bool) -> Result<(), PeerError> {
        self.reduce_thread.flush()?;
        let all = all_gather(&*self.cluster.peers, &[u8::from(mine)])?;
        self.all_true.store(all.iter().all(|answer| *answer == [1]), Ordering::Release);
        Ok(())
    }

    /// The answer of the last call of [`check_all`](Self::check_all).
    pub fn all_true(&self) -> bool {
        self.all_true.load(Ordering::Acquire)
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.cluster.peers.rank()
    }

    /// Fills a table of which each process has computed the ranges that `parts` returns for its rank.
    pub fn gather_doubles<I: Iterator<Item = Range<usize>>>(
        &self,
        table: &mut [f64],
        parts: impl Fn(usize) -> I,
    ) -> Result<(), PeerError> {
        self.reduce_thread.flush()?;
        let mine: Vec<u8> =
            parts(self.rank()).flat_map(|r| &table[r]).flat_map(|v| v.to_le_bytes()).collect();
        let all = all_gather(&*self.cluster.peers, &mine)?;
        for (rank, bytes) in all.iter().enumerate() {
            let (values, _) = bytes.as_chunks::<8>();
            for (at, value) in parts(rank).flatten().zip(values) {
                table[at] = f64::from_le_bytes(*value);
            }
        }
        Ok(())
    }

    /// Waits for all submitted buckets.
    pub fn flush(&self) -> Result<(), PeerError> {
        self.reduce_thread.flush()
    }

    /// All-gathers the rows of a fetch.
    pub fn gather_rows(&self, rows: usize, width: usize, all: &mut [f32]) -> Result<(), PeerError> {
        let peers = &*self.cluster.peers;
        let range = |rank: usize| {
            let rows = self.mesh.rows_of(rows, self.cluster.replicas_of(rank));
            rows.start * width..rows.end * width
        };
        let own = all[range(peers.rank())].to_vec();
        let mut into = split_ranges(all, (0..peers.size()).map(range));
        let mut into: Vec<&mut [u8]> = into.iter_mut().map(|v| bytes_mut(v)).collect();
        peers.exchange(&vec![bytes(&own); peers.size()], &mut into)
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchanges::ALLGATHER_MAX_FLOATS;
    use super::super::test_group::TestGroup;
    use super::*;
    use std::time::Duration;

    /// The state after a worker panics in the backward pass: one bucket is in flight. The buffer is so large
    /// that the system unmaps it as soon as it is freed.
    fn aborted_step(exchanges: &Arc<AtomicUsize>) -> (Heap, ProcessCollectives) {
        let counted = exchanges.clone();
        // Exchanges take a while and read every byte that is sent.
        let exchange = move |out: &[&[u8]], into: &mut [&mut [u8]]| {
            std::thread::sleep(Duration::from_millis(100));
            into[1].fill(out[1].iter().fold(0, |all, byte| all | byte));
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let peers = Arc::new(TestGroup { rank: 0, exchange });
        let cluster = Cluster { peers, replicas: vec![1, 1] };
        // Enough floats for two rounds of exchanges.
        let floats = if cfg!(miri) { 2 * ALLGATHER_MAX_FLOATS } else { 1 << 20 };
        let mut heap = Heap::default();
        let mut collectives = ProcessCollectives::new(cluster, Mesh::new(2, 1), 0..1).unwrap();
        collectives.gradients = heap.buffer(floats * 4, "a test").unwrap();
        let parts = [0..floats / 2, floats / 2..floats].into();
        let bucket = BucketLayout { start: 0, parts, scattered: false, sums: [].into() };
        collectives.finish_bucket(&bucket, None, 1);
        // Let the thread start with it.
        std::thread::sleep(Duration::from_millis(20));
        (heap, collectives)
    }

    #[test]
    fn gradients_outlive_a_bucket_in_flight() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        drop(aborted_step(&exchanges));
        assert_eq!(exchanges.load(Ordering::SeqCst), 2, "both rounds ended before the drop did");
    }

    #[test]
    fn gradients_outlive_a_bucket_in_flight_when_the_step_panics() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        let step = || {
            let _state = aborted_step(&exchanges);
            panic!("a worker in backward");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).is_err());
        assert_eq!(exchanges.load(Ordering::SeqCst), 2);
    }
}
