//! Messages between processes, which are threads here, in place of NCCL.

use phalanx_distributed::transport::Transport;
use phalanx_distributed::{LivenessProbe, RankAssignment};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait checks for lost processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Messages in transit, by sender and receiver.
type Messages = HashMap<(usize, usize), VecDeque<Vec<u8>>>;

#[derive(Default)]
pub(super) struct Mailbox {
    messages: Mutex<Messages>,
    changed: Condvar,
}

impl Mailbox {
    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transport of one process.
pub(super) struct MailboxTransport {
    mailbox: Arc<Mailbox>,
    rank: usize,
    timeout: Duration,
    lost_peer: LivenessProbe,
}

impl MailboxTransport {
    /// The transport of the process with this rank.
    pub fn new(mailbox: Arc<Mailbox>, assignment: &RankAssignment) -> MailboxTransport {
        let RankAssignment { first, timeout, lost_peer, .. } = assignment.clone();
        MailboxTransport { mailbox, rank: first, timeout, lost_peer }
    }
}

impl Transport for MailboxTransport {
    fn exchange(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), String> {
        let began = Instant::now();
        let mut messages = self.mailbox.messages();
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            messages.entry((self.rank, rank)).or_default().push_back(bytes.to_vec());
        }
        self.mailbox.changed.notify_all();
        for (rank, bytes) in incoming.iter_mut().enumerate().filter(|(_, b)| !b.is_empty()) {
            let message = loop {
                let queue = messages.get_mut(&(rank, self.rank));
                if let Some(message) = queue.and_then(VecDeque::pop_front) {
                    break message;
                }
                if let Some(lost) = (self.lost_peer)() {
                    return Err(lost.to_string());
                }
                if began.elapsed() > self.timeout {
                    return Err(format!("no answer for {:.1} s", began.elapsed().as_secs_f64()));
                }
                let waited = self.mailbox.changed.wait_timeout(messages, POLL_INTERVAL);
                messages = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            if message.len() != bytes.len() {
                let (expected, received) = (bytes.len(), message.len());
                return Err(format!("expected {expected} bytes, received {received}"));
            }
            bytes.copy_from_slice(&message);
        }
        Ok(())
    }
}
