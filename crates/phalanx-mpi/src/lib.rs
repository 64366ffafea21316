//! Other processes by way of MPI. With the feature `mpi` this links the system's MPI library through
//! `mpi` (rsmpi), the one binding that is kept up, works with every implementation, and leaves the raw
//! calls at hand; without it the crate is empty but for [`AVAILABLE`].
#![deny(missing_docs)]

#[cfg(feature = "mpi")]
mod message;
#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{abort, join, leave, name, watch};

/// Whether this was built with MPI.
pub const AVAILABLE: bool = cfg!(feature = "mpi");
