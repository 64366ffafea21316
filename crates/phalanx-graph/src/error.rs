//! Errors from building, differentiating and compiling graphs.

use crate::text::part;
use thiserror::Error;

/// An error from building, differentiating or compiling a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GraphError {
    /// Incompatible sizes, types or spaces.
    #[error(
        "{}{}: expected {}, received {}",
        at(layer),
        part(what),
        part(expected),
        part(received)
    )]
    Mismatch {
        /// The layer at fault; empty outside layers.
        layer: String,
        /// The quantity that was checked, in user terms.
        what: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        received: String,
    },
    /// The derivative of an op that has none was requested.
    #[error("{}{} has no derivative", at(layer), part(op))]
    NotDifferentiable {
        /// The layer at fault.
        layer: String,
        /// The op.
        op: String,
    },
    /// A pass violated an invariant that `verify` checks: a compiler bug, not a user error.
    #[error("internal compiler error in {pass}: {}", part(message))]
    Internal {
        /// The pass or check that detected it.
        pass: String,
        /// The violated invariant.
        message: String,
    },
}

fn at(layer: &str) -> String {
    if layer.is_empty() { String::new() } else { format!("layer '{}': ", part(layer)) }
}

impl GraphError {
    /// A mismatch without a layer; [`in_layer`](GraphError::in_layer) adds the name.
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

    /// An [`Internal`](GraphError::Internal) error.
    pub fn internal(pass: &str, message: impl Into<String>) -> GraphError {
        GraphError::Internal { pass: pass.into(), message: message.into() }
    }

    /// Sets the layer's name, unless an inner layer is already set.
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

/// A result with a [`GraphError`].
pub type Result<T, E = GraphError> = std::result::Result<T, E>;
