//! Samples from the user's own files: `.npz` archives and `.csv` tables.

mod csv;
mod npz;

pub use csv::{Categories, Csv, Missing, Table, TableEncoding};
pub use npz::{UserData, load_npz, read_arrays, write_arrays};

use crate::data::Samples;
use phalanx_graph::Tensor;

/// Rows of samples: inputs and targets by name, and a weight for each sample if there are any. The only input or
/// target of a file may have no name: it is then the empty string.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSet {
    /// What the model is given. Unsigned bytes stay bytes and count from 0 to 255, as Keras feeds them.
    pub inputs: Vec<(String, Samples)>,
    /// What it should make of them. Integers become `i32`.
    pub targets: Vec<(String, Tensor)>,
    /// One weight per sample.
    pub sample_weight: Option<Vec<f32>>,
}

impl SampleSet {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, |(_, samples)| samples.rows())
    }
}
