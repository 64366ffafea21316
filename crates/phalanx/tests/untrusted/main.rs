//! Files that nobody vouches for: damaged at random (`fuzz`) and built to attack (`malicious`). The allocator of this
//! program measures memory.

mod fuzz;
mod malicious;
mod meter;
