//! Shapes, dtypes and host tensors; the op set; the graph builder and verifier; autodiff; and the
//! passes that compile a model into a static step program. No IO, no threads, no `unsafe`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod autodiff;
mod build;
mod einsum;
mod error;
pub mod functions;
mod geometry;
mod graph;
pub mod loss_scale;
mod lower;
pub mod ops;
pub mod passes;
mod plan;
pub mod profile;
pub mod program;
pub mod rng;
mod step;
mod tensor;
pub mod text;
mod types;
pub mod update;
mod verify;

pub use error::{GraphError, Result};
pub use geometry::{ConvGeom, Depth, Padding, Window};
pub use graph::{FeedId, FeedSpec, Graph, Node, NodeId, ParamId, ParamSpec};
pub use ops::Op;
pub use program::{Mesh, Options, Program};
pub use step::{Fetch, Gradient, Step};
pub use tensor::{Data, Tensor};
pub use types::{DType, MAX_ELEMENTS, MAX_RANK, ModelSpace, Scope, Space, Type, count};
