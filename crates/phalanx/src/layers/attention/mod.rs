//! Attention layers and the projections they are made of.

pub(super) mod dot_attention;
pub(super) mod einsum_dense;
pub(super) mod grouped_query_attention;
pub(super) mod multi_head_attention;
mod projection;
mod scores;

pub use dot_attention::ScoreMode;
