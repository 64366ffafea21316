//! The kernels: each works on the rows of one worker, allocates nothing and adds in a fixed order.

pub mod elementwise;
pub mod layout;
pub mod math;
