//! The reaction to a step with a loss or weights that are not finite.

use std::fmt::Debug;

/// Steps undone in a row before the run ends.
const MAX_UNDONE: u32 = 100;

/// What `fit` does about a loss or weights that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNan {
    /// End the run with an error that names the step.
    #[default]
    Raise,
    /// End the run as a callback would.
    Stop,
    /// Warn once, naming the step, and go on as Keras does.
    Warn,
    /// Undo the step, warn, and go on with the next batch. Every step then keeps a copy of the
    /// weights. A long row of such steps ends the run all the same.
    Skip,
}

/// The policy of a run, and the steps undone in a row.
#[derive(Debug)]
pub(super) struct NanGuard {
    pub policy: OnNan,
    undone: u32,
    /// Whether the run has warned.
    warned: bool,
}

impl NanGuard {
    pub fn new(policy: OnNan) -> NanGuard {
        NanGuard { policy, undone: 0, warned: false }
    }

    /// Whether to warn, which happens once.
    pub fn warn_now(&mut self) -> bool {
        !std::mem::replace(&mut self.warned, true)
    }

    /// Counts a step that was finite.
    pub fn step_was_finite(&mut self) {
        self.undone = 0;
    }

    /// Counts a step that was not finite; returns whether the run may go on.
    pub fn undo(&mut self) -> bool {
        self.undone += 1;
        self.undone <= MAX_UNDONE
    }
}
