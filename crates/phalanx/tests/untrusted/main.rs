//! Untrusted files: damaged at random (`fuzz`) and crafted as attacks (`malicious`). The global
//! allocator of this program measures memory.

mod fuzz;
mod malicious;
mod meter;
