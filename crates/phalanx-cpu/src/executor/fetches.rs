//! The results that a step returns to the host.

use phalanx_graph::program::Program;

/// The fetches of a step.
#[derive(Default)]
pub(super) struct Fetches {
    /// The values, by fetch.
    pub values: Vec<Vec<f32>>,
    /// Where the workers write them.
    pub destinations: Vec<FetchPtr>,
}

/// Destination of a fetch; workers write disjoint rows.
#[derive(Clone, Copy)]
pub(crate) struct FetchPtr(pub *mut f32);

// SAFETY: each worker writes its own rows of a fetch; only one worker writes mirrored values.
unsafe impl Send for FetchPtr {}
// SAFETY: as above.
unsafe impl Sync for FetchPtr {}

impl Fetches {
    /// Sizes the values for a batch of `rows` rows.
    pub fn prepare(&mut self, program: &Program, rows: usize) {
        self.values.resize_with(program.fetches().len(), Vec::new);
        self.destinations.clear();
        for (plan, out) in program.fetches().iter().zip(&mut self.values) {
            let rows = if plan.ty.is_rows() { rows } else { 1 };
            out.resize(rows * plan.ty.len(), 0.0);
            self.destinations.push(FetchPtr(out.as_mut_ptr()));
        }
    }
}
