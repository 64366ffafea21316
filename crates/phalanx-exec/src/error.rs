//! Errors of executors.

use phalanx_distributed::PeerError;
use phalanx_graph::text::part;
use thiserror::Error;

/// An error from loading or running a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A feed whose size or type differs from the program's.
    #[error("feed '{}': expected {expected}, received {received}", part(name))]
    Feed {
        /// The feed.
        name: String,
        /// Its type and size.
        expected: String,
        /// The size and type that were passed.
        received: String,
    },
    /// A parameter with the wrong number of elements.
    #[error("parameter {}: expected {expected} elements, received {received}", part(name))]
    Param {
        /// The parameter.
        name: String,
        /// Its number of elements.
        expected: usize,
        /// The number of elements that were passed.
        received: usize,
    },
    /// A program that is incompatible with the executor.
    #[error("program '{}' does not fit this executor: {reason}", part(name))]
    Program {
        /// The program.
        name: String,
        /// Why.
        reason: String,
    },
    /// An instruction set that this processor does not support.
    #[error(
        "PHALANX_ISA: expected one that this processor has ({available}), received '{}'",
        part(received)
    )]
    InstructionSet {
        /// The supported instruction sets.
        available: String,
        /// The requested one.
        received: String,
    },
    /// Replicas whose state is no longer bitwise identical.
    #[error("replicas drifted apart: '{}' differs between {first} and {second}", part(param))]
    Drift {
        /// The parameter.
        param: String,
        /// A device.
        first: String,
        /// Another device.
        second: String,
    },
    /// An allocation that failed.
    #[error("out of memory: {wanted} bytes for {purpose}")]
    Memory {
        /// The requested bytes.
        wanted: usize,
        /// The use of the memory.
        purpose: String,
        /// The total bytes available to a replica, including those already allocated, if known.
        available: Option<usize>,
    },
    /// A device failure, after which the executor cannot continue.
    #[error("{device}: {message}")]
    Device {
        /// The device.
        device: String,
        /// The cause.
        message: String,
    },
    /// The loss of another process, after which the job cannot continue.
    #[error("step {step}: {peer}")]
    Peer {
        /// The step in flight.
        step: u64,
        /// The lost process and the cause.
        peer: PeerError,
    },
    /// A worker failure, after which the executor cannot continue.
    #[error("worker {worker} failed: {message}")]
    Worker {
        /// The worker.
        worker: usize,
        /// The cause.
        message: String,
    },
}

impl From<PeerError> for ExecError {
    /// The loss of a process outside a step.
    fn from(peer: PeerError) -> ExecError {
        ExecError::Peer { step: 0, peer }
    }
}

impl From<phalanx_distributed::Error> for ExecError {
    fn from(error: phalanx_distributed::Error) -> ExecError {
        match error {
            phalanx_distributed::Error::Peer(peer) => peer.into(),
            phalanx_distributed::Error::Device { device, message } => {
                ExecError::Device { device, message }
            }
            other => {
                ExecError::Device { device: "process group".into(), message: other.to_string() }
            }
        }
    }
}
