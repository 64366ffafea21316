//! Process groups whose processes are threads, to test multi-process executors on one machine.

use phalanx_distributed::{PeerError, ProcessGroup, barrier};
use phalanx_exec::{
    Batch, Cluster, ExecError, Executor, FeedData, LocalShard, ProcessFlags, Profiling, ProgramId,
    ProgramTable, ResidentData, Staging, StateId, StepTimes, check_batch,
};
use phalanx_graph::program::Program;
use phalanx_graph::update::UpdateRule;
use phalanx_graph::{FeedSpec, Mesh};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Default time limit of an exchange.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// A member of a process group of threads.
pub struct ThreadPeer {
    rank: usize,
    timeout: Duration,
    to: Vec<Mutex<Sender<Vec<u8>>>>,
    from: Vec<Mutex<Receiver<Vec<u8>>>>,
}

/// A group of `size` threads.
pub fn thread_peers(size: usize) -> Vec<ThreadPeer> {
    thread_peers_with_timeout(size, DEFAULT_TIMEOUT)
}

/// A group of `size` threads whose exchanges are limited to `timeout`.
pub fn thread_peers_with_timeout(size: usize, timeout: Duration) -> Vec<ThreadPeer> {
    let peer = |rank| ThreadPeer { rank, timeout, to: vec![], from: vec![] };
    let mut all: Vec<ThreadPeer> = (0..size).map(peer).collect();
    for sender in 0..size {
        for receiver in 0..size {
            let (to, from) = channel();
            all[sender].to.push(Mutex::new(to));
            all[receiver].from.push(Mutex::new(from));
        }
    }
    all
}

impl ProcessGroup for ThreadPeer {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} (a thread)")
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    fn set_step(&self, _step: u64) {}

    fn lost_peer(&self) -> Option<PeerError> {
        None
    }

    fn watch(&self, _stop_requested: Arc<AtomicBool>) {}

    fn shutdown(&self) -> Result<(), PeerError> {
        barrier(self)
    }

    fn abort(&self, _code: u8) {}

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        let lost = |rank: usize, message: &str| PeerError {
            name: self.name(rank),
            message: message.into(),
        };
        assert_eq!((outgoing.len(), incoming.len()), (self.size(), self.size()));
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(r, _)| *r != self.rank) {
            let to = self.to[rank].lock().expect("one call at a time");
            to.send(bytes.to_vec()).map_err(|_| lost(rank, "gone"))?;
        }
        for (rank, bytes) in incoming.iter_mut().enumerate().filter(|(r, _)| *r != self.rank) {
            let from = self.from[rank].lock().expect("one call at a time");
            let received = from.recv_timeout(self.timeout).map_err(|_| lost(rank, "no answer"))?;
            assert_eq!(received.len(), bytes.len(), "rank {rank} sent another size");
            bytes.copy_from_slice(&received);
        }
        Ok(())
    }
}

/// The clusters of processes with the given number of devices each.
pub fn clusters(replicas: &[usize]) -> Vec<Cluster> {
    clusters_with_timeout(replicas, DEFAULT_TIMEOUT)
}

/// Like [`clusters`], with exchanges limited to `timeout`.
pub fn clusters_with_timeout(replicas: &[usize], timeout: Duration) -> Vec<Cluster> {
    let cluster = |p: ThreadPeer| Cluster { peers: Arc::new(p), replicas: replicas.to_vec() };
    thread_peers_with_timeout(replicas.len(), timeout).into_iter().map(cluster).collect()
}

/// The given rows of a batch's feeds.
pub fn local_feeds<'a>(
    specs: &[FeedSpec],
    feeds: &[FeedData<'a>],
    rows: Range<usize>,
) -> Vec<FeedData<'a>> {
    let select_rows = |(feed, data): (&FeedSpec, &FeedData<'a>)| {
        let range = rows.start * feed.ty.len()..rows.end * feed.ty.len();
        match data {
            _ if !feed.ty.is_rows() => *data,
            FeedData::F32(v) => FeedData::F32(&v[range]),
            FeedData::I32(v) => FeedData::I32(&v[range]),
        }
    };
    specs.iter().zip(feeds).map(select_rows).collect()
}

/// The executors of several processes as a single executor: each gets its rows of a batch, and all must
/// fetch the same bits.
pub struct JoinedProcesses {
    processes: Vec<Mutex<Box<dyn Executor>>>,
    programs: ProgramTable<Arc<Program>>,
    fetched: Vec<Vec<f32>>,
}

impl JoinedProcesses {
    /// A job of these executors, ordered by rank.
    pub fn new(executors: Vec<Box<dyn Executor>>) -> JoinedProcesses {
        let processes = executors.into_iter().map(Mutex::new).collect();
        JoinedProcesses { processes, programs: ProgramTable::default(), fetched: vec![] }
    }

    /// Calls `query` on the first executor.
    fn first<T>(&self, query: impl FnOnce(&dyn Executor) -> T) -> T {
        query(&**self.processes[0].lock().expect("one call at a time"))
    }

    /// Calls `run` on all executors concurrently.
    fn all<T: Send>(
        &self,
        run: impl Fn(&mut dyn Executor) -> Result<T, ExecError> + Sync,
    ) -> Result<Vec<T>, ExecError> {
        let on = |e: &Mutex<Box<dyn Executor>>| run(&mut **e.lock().expect("one call at a time"));
        std::thread::scope(|scope| {
            let on = &on;
            let threads: Vec<_> =
                self.processes.iter().map(|e| scope.spawn(move || on(e))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        })
    }
}

impl Executor for JoinedProcesses {
    fn mesh(&self) -> Mesh {
        self.first(|e| e.mesh())
    }

    /// The devices of all processes.
    fn shard(&self) -> LocalShard {
        let mesh = self.mesh();
        LocalShard { mesh, replicas: 0..mesh.replicas }
    }

    fn load(&mut self, program: Arc<Program>) -> Result<ProgramId, ExecError> {
        let ids = self.all(|e| e.load(program.clone()))?;
        self.programs.insert(program);
        Ok(ids[0])
    }

    fn unload(&mut self, id: ProgramId) {
        self.processes.iter_mut().for_each(|e| e.get_mut().expect("no panic").unload(id));
        self.programs.remove(id);
    }

    fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        self.all(|e| e.create_slots(rule)).map(|_| ())
    }

    fn start(&mut self, id: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError> {
        let unknown = || ExecError::Program { name: String::new(), reason: "not loaded".into() };
        let program = self.programs.get(id).ok_or_else(unknown)?;
        // An invalid batch is rejected for all processes.
        check_batch(program, batch)?;
        let mut fetched = self.all(|e| {
            let feeds = local_feeds(program.feeds(), batch.feeds, e.shard().rows(batch.rows));
            let mut fetched = vec![];
            e.run(id, &Batch { feeds: &feeds, ..*batch }, &mut fetched)?;
            Ok(fetched)
        })?;
        let bits =
            |f: &Vec<Vec<f32>>| -> Vec<u32> { f.iter().flatten().map(|v| v.to_bits()).collect() };
        for other in &fetched[1..] {
            assert_eq!(bits(&fetched[0]), bits(other), "processes fetched different bits");
        }
        self.fetched = fetched.swap_remove(0);
        Ok(())
    }

    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError> {
        std::mem::swap(fetched, &mut self.fetched);
        Ok(())
    }

    /// Steps run to completion in `start`.
    fn in_flight(&self) -> bool {
        false
    }

    fn slots(&self) -> usize {
        self.first(|e| e.slots())
    }

    fn read(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError> {
        // All processes take part, since they may have divided the state.
        let mut all = self.all(|e| e.read(id))?;
        let bits = |v: &Option<Vec<f32>>| -> Vec<u32> {
            v.iter().flatten().map(|v| v.to_bits()).collect()
        };
        for other in &all[1..] {
            assert_eq!(bits(&all[0]), bits(other), "processes read different bits");
        }
        Ok(all.swap_remove(0))
    }

    fn write(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError> {
        self.all(|e| e.write(id, values)).map(|_| ())
    }

    fn check_consistency(&self) -> Result<(), ExecError> {
        self.all(|e| e.check_consistency()).map(|_| ())
    }

    fn times(&self) -> StepTimes {
        self.first(|e| e.times())
    }

    fn staging(&mut self) -> Option<&mut dyn Staging> {
        None
    }

    fn resident_data(&mut self) -> Option<&mut dyn ResidentData> {
        None
    }

    fn profiling(&mut self) -> Option<&mut dyn Profiling> {
        None
    }

    fn process_flags(&mut self) -> Option<&mut dyn ProcessFlags> {
        None
    }
}
