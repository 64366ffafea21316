//! Two processes that violate the protocol: `mpirun -n 2 faults short|long|panic|late`. The first process
//! prints the error it receives; `tests/mpi/run_mpi_check.sh` compares it.

use phalanx_distributed::ProcessGroup;
use phalanx_distributed::transport::mpi;
use std::time::{Duration, Instant};

/// The number of bytes that the first process expects.
const EXPECTED: usize = 8;

fn main() {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("started by mpirun");
    let rank: usize = rank.parse().expect("a number");
    let fault = std::env::args().nth(1).expect("a fault");
    let peers =
        mpi::join(&format!("rank {rank}"), Duration::from_secs(20), 76).expect("another process");
    match (rank, fault.as_str()) {
        (0, _) => watch(&*peers),
        (_, "short") => send(&*peers, 3),
        (_, "long") => send(&*peers, 16),
        (_, "late") => std::thread::sleep(Duration::from_secs(60)),
        _ => panic!("a process that panics"),
    }
    // The process shuts down at exit.
}

/// Reports the fault of the other process, checks that it is reported again at once, and in the case `late`
/// aborts while another thread waits.
fn watch(peers: &dyn ProcessGroup) {
    let (out, mut into) = ([0; EXPECTED], [0; EXPECTED]);
    if std::env::args().nth(1).as_deref() == Some("late") {
        std::thread::scope(|scope| {
            scope.spawn(|| send(peers, EXPECTED));
            std::thread::sleep(Duration::from_millis(300));
            peers.abort(9);
        });
    }
    let mut exchange = || peers.exchange(&[&[], &out], &mut [&mut [], &mut into]);
    let first = exchange().expect_err("a fault");
    println!("first: {first}");
    let begin = Instant::now();
    assert_eq!(exchange().expect_err("the same"), first);
    assert!(begin.elapsed() < Duration::from_millis(50), "at once");
    println!("again: at once");
}

fn send(peers: &dyn ProcessGroup, bytes: usize) {
    // Whether the other process is still there does not matter.
    let other = 1 - peers.rank();
    let (out, mut into) = (vec![0; bytes], [0; EXPECTED]);
    let mut ways: Vec<(&[u8], &mut [u8])> = vec![(&[], &mut []), (&[], &mut [])];
    ways[other] = (&out, &mut into);
    let (out, mut into): (Vec<&[u8]>, Vec<&mut [u8]>) = ways.into_iter().unzip();
    let _ = peers.exchange(&out, &mut into);
}
