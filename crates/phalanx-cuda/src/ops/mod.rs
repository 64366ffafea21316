//! From an op to kernel launches: one file per family, beside its kernels in `kernels/`.

pub(crate) mod axes;
pub(crate) mod index;
pub(crate) mod layout;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod sample;
pub(crate) mod softmax;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
