//! NVIDIA's libraries and the driver's objects. Nothing is linked: [`libs`] finds and opens a library when it is
//! first needed, so programs also build and run on machines without a GPU. [`driver`] has owned handles of
//! contexts, memory, streams, events, modules and graphs.
#![deny(missing_docs)]

pub mod driver;
pub mod libs;

pub use cudarc;
