//! Bytes between processes, which are threads here, in place of what NCCL carries.

use super::Register;
use crate::among::{Gone, Seats};
use crate::control::Carrier;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait looks for processes that are gone.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes on their way, by sender and receiver.
type Letters = HashMap<(usize, usize), VecDeque<Vec<u8>>>;

#[derive(Default)]
struct Post {
    letters: Mutex<Letters>,
    changed: Condvar,
}

impl Post {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process' way to the others.
struct ByPost {
    post: Arc<Post>,
    rank: usize,
    limit: Duration,
    gone: Gone,
}

/// The processes that have these seats' id, one seat each.
pub(crate) fn carrier(seats: &Seats) -> Box<dyn Carrier> {
    static MET: Register<Post> = Register::new();
    let post = MET.find(seats.id, Post::default);
    let (rank, limit, gone) = (seats.first, seats.limit, seats.gone.clone());
    Box::new(ByPost { post, rank, limit, gone })
}

impl Carrier for ByPost {
    fn carry(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), String> {
        let began = Instant::now();
        let mut letters = self.post.letters();
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            letters.entry((self.rank, rank)).or_default().push_back(bytes.to_vec());
        }
        self.post.changed.notify_all();
        for (rank, bytes) in incoming.iter_mut().enumerate().filter(|(_, b)| !b.is_empty()) {
            let letter = loop {
                let queue = letters.get_mut(&(rank, self.rank));
                if let Some(letter) = queue.and_then(VecDeque::pop_front) {
                    break letter;
                }
                if let Some(gone) = (self.gone)() {
                    return Err(gone.to_string());
                }
                if began.elapsed() > self.limit {
                    return Err(format!("no answer for {:.1} s", began.elapsed().as_secs_f64()));
                }
                let waited = self.post.changed.wait_timeout(letters, LOOK);
                letters = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            if letter.len() != bytes.len() {
                let (expected, received) = (bytes.len(), letter.len());
                return Err(format!("expected {expected} bytes, received {received}"));
            }
            bytes.copy_from_slice(&letter);
        }
        Ok(())
    }
}
