//! The inputs of a step.

/// The elements of a feed on the host: all rows of the global batch (with several processes, only
/// the rows of this process), or one mirrored value.
#[derive(Clone, Copy, Debug)]
pub enum FeedData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
}

impl FeedData<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            FeedData::F32(v) => v.len(),
            FeedData::I32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Gradient accumulation: how this step contributes to an update over several steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accumulate {
    /// Whether this step resets the sum.
    pub first: bool,
    /// Weight of this step's gradient in the sum.
    pub weight: f32,
    /// On the last step, the factor that turns the sum into a mean; `None` on the others.
    pub apply: Option<f32>,
}

/// The inputs of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Rows of the global batch.
    pub rows: usize,
    /// One entry per feed of the program, with the rows of this executor's devices only.
    pub feeds: &'a [FeedData<'a>],
    /// The run's seed.
    pub seed: u64,
    /// The step number, which random numbers are derived from.
    pub step: u64,
    /// The optimizer's scalars for this step.
    pub scalars: &'a [f32],
    /// Gradient accumulation, if enabled.
    pub accumulate: Option<Accumulate>,
    /// Whether the feeds were already uploaded by [`Staging::stage`](crate::Staging::stage).
    pub staged: bool,
}
