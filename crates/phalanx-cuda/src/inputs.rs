//! The head of a replica's inputs: values besides the feeds that change from step to step. Kernels
//! read them from memory, so that one captured graph serves all steps.

/// Maximum scalars of an optimizer.
pub(crate) const MAX_SCALARS: usize = 16;

/// Must match `struct Inputs` of `kernels/prelude.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Inputs {
    /// The run's seed.
    pub seed: u64,
    /// Step counter, for random numbers.
    pub step: u64,
    /// The optimizer's scalars.
    pub scalars: [f32; MAX_SCALARS],
    /// With gradient accumulation, 0 on the step that starts a new sum, otherwise 1.
    pub keep: f32,
    /// The weight of this step's gradient in the sum.
    pub weight: f32,
    /// The factor that turns the sum into a mean.
    pub mean: f32,
    pub unused: f32,
}

impl Inputs {
    /// The head of a step without gradient accumulation.
    pub fn new(seed: u64, step: u64, scalars: &[f32]) -> Inputs {
        let mut inputs = Inputs { seed, step, ..Inputs::default() };
        inputs.scalars[..scalars.len()].copy_from_slice(scalars);
        inputs
    }

    pub fn to_bytes(self) -> [u8; size_of::<Inputs>()] {
        // SAFETY: only numbers, without padding between them.
        unsafe { std::mem::transmute(self) }
    }
}

/// Bytes before the first feed.
pub const INPUT_BYTES: usize = 256;

const _: () = assert!(size_of::<Inputs>() <= INPUT_BYTES);
