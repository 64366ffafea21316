//! Communication with other processes through MPI. With the feature `mpi` this crate links the system's MPI
//! library through `mpi` (rsmpi), the one maintained binding, which works with every implementation and exposes
//! the raw calls. Without the feature the crate contains only [`AVAILABLE`].
#![deny(missing_docs)]

#[cfg(feature = "mpi")]
mod message;
#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{abort, join, name, shutdown, watch};

/// Whether this crate was built with MPI.
pub const AVAILABLE: bool = cfg!(feature = "mpi");
