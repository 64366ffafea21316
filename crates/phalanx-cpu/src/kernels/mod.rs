//! The kernels. Each processes the rows of one worker, allocates nothing and sums in a fixed order.

pub mod conv;
pub mod cumulative;
pub mod dot;
pub mod elementwise;
pub mod index;
pub mod layer_norm;
pub mod layout;
pub mod math;
pub mod matmul;
pub mod matrix;
pub mod norm;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod sample;
pub mod softmax;
pub mod take;
pub(crate) mod tile;
