//! Communication with other processes through the system's MPI library. It is linked through `mpi` (rsmpi), the one
//! maintained binding, which works with every implementation and exposes the raw calls.

mod alarms;
mod exit;
mod message;
mod world;

pub use world::join;
