//! Several processes that run one program: how they are started ([`launch`]), how they find each other
//! ([`rendezvous`]), how they exchange bytes ([`ProcessGroup`]) and what carries the bytes ([`transport`]: MPI or
//! NCCL).
//!
//! Executors need a single primitive, an all-to-all exchange of bytes. They build their reductions on top of it,
//! in the order of the ranks.
#![deny(missing_docs)]

mod barrier;
mod error;
mod group;
pub mod launch;
mod rank_assignment;
pub mod rendezvous;
pub mod transport;
pub mod warnings;

pub use barrier::{AbortableBarrier, Aborted};
pub use error::{Error, PeerError, Result};
pub use group::{ProcessGroup, all_gather, barrier, digest};
pub use rank_assignment::{LivenessProbe, NcclId, RankAssignment};

#[doc(hidden)]
pub use tracing;
