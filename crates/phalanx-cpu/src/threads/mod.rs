//! Worker threads: the pool, barriers, pinning to cores and the handling of denormal floats.

mod barrier;
mod denormals;
mod pinning;
mod pool;

pub(crate) use self::barrier::{Barrier, Team};
pub(crate) use self::denormals::FlushToZeroGuard;
pub(crate) use self::pinning::pinning_enabled;
pub use self::pinning::{cores, restricted_cores, share_cores, usable_cores};
pub(crate) use self::pool::Pool;
