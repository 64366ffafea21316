//! Errors of graph building and compiling.

use crate::text::part;
use thiserror::Error;

/// What went wrong while a graph was built, differentiated or compiled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GraphError {
    /// Sizes or spaces that do not fit together.
    #[error(
        "{}{}: expected {}, received {}",
        at(layer),
        part(what),
        part(expected),
        part(received)
    )]
    Mismatch {
        /// The layer at fault, empty outside layers.
        layer: String,
        /// What was being checked, in the user's words.
        what: String,
        /// What would have been right.
        expected: String,
        /// What was there.
        received: String,
    },
    /// A derivative was asked of something that has none.
    #[error("{}{} has no derivative", at(layer), part(op))]
    NotDifferentiable {
        /// The layer at fault.
        layer: String,
        /// The op.
        op: String,
    },
    /// A pass broke a rule that `verify` checks: a bug of the compiler, not of the user.
    #[error("internal compiler error in {pass}: {}", part(message))]
    Internal {
        /// The pass or check that noticed.
        pass: String,
        /// What was wrong.
        message: String,
    },
}

fn at(layer: &str) -> String {
    if layer.is_empty() { String::new() } else { format!("layer '{}': ", part(layer)) }
}

impl GraphError {
    /// A mismatch not yet tied to a layer; the graph adds the layer's name.
    pub fn mismatch(
        what: impl Into<String>,
        expected: impl Into<String>,
        received: impl Into<String>,
    ) -> GraphError {
        GraphError::Mismatch {
            layer: String::new(),
            what: what.into(),
            expected: expected.into(),
            received: received.into(),
        }
    }

    /// A compiler bug.
    pub fn internal(pass: &str, message: impl Into<String>) -> GraphError {
        GraphError::Internal { pass: pass.into(), message: message.into() }
    }

    /// Names the layer, unless an inner one is named already.
    pub fn in_layer(mut self, name: &str) -> GraphError {
        match &mut self {
            GraphError::Mismatch { layer, .. } | GraphError::NotDifferentiable { layer, .. }
                if layer.is_empty() =>
            {
                *layer = name.into();
            }
            _ => {}
        }
        self
    }
}

/// Result of graph work.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;
