//! Alarms: a process that has waited too long raises one, so that all can tell who is missing.

use super::world::POLL_INTERVAL;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::point_to_point::Source;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process waits for the alarms of others.
pub(super) const ALARM_GRACE: Duration = Duration::from_millis(1500);

/// The alarms of all processes.
pub(super) struct Alarms {
    comm: SimpleCommunicator,
    rank: usize,
    /// By rank, whether the process has raised an alarm.
    raised: Mutex<Vec<bool>>,
}

impl Alarms {
    pub fn new(comm: SimpleCommunicator, rank: usize, size: usize) -> Alarms {
        Alarms { comm, rank, raised: Mutex::new(vec![false; size]) }
    }

    /// By rank, whether the process has raised an alarm so far.
    pub fn poll(&self) -> Vec<bool> {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((message, _)) = self.comm.any_process().immediate_matched_probe_with_tag(0) {
            let (_, status) = message.matched_receive::<u8>();
            raised[status.source_rank() as usize] = true;
        }
        raised.clone()
    }

    /// Raises the alarm of this process, waits for those of the others, and returns the ranks without one.
    pub fn raise_and_wait(&self) -> Vec<usize> {
        static ALARM: [u8; 1] = [0];
        let (comm, kind) = (self.comm.as_raw(), u8::equivalent_datatype().as_raw());
        for rank in (0..self.poll().len()).filter(|r| *r != self.rank) {
            // SAFETY: the byte is static. The request is never waited for and is left to MPI.
            unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let from = ALARM.as_ptr().cast();
                ffi::MPI_Isend(from, 1, kind, rank as i32, 0, comm, &mut request);
            }
        }
        let since = Instant::now();
        loop {
            let alarms = self.poll();
            let silent: Vec<usize> =
                (0..alarms.len()).filter(|r| !alarms[*r] && *r != self.rank).collect();
            if silent.is_empty() || since.elapsed() > ALARM_GRACE {
                return silent;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
