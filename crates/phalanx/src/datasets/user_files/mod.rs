//! Samples from the user's own files: `.npz` archives and `.csv` tables.

mod csv;
mod npz;

pub use csv::{Categories, Csv, Missing, Table, TableEncoding};
pub use npz::{UserData, load_npz, read_arrays, write_arrays};

use crate::data::Samples;
use phalanx_graph::Tensor;

/// Rows of samples: inputs and targets by name, and optional sample weights. The only input or target of
/// a file may be unnamed; its name is then the empty string.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSet {
    /// Inputs of the model. Unsigned bytes stay bytes with values from 0 to 255, as in Keras.
    pub inputs: Vec<(String, Samples)>,
    /// Targets of the model. Integers become `i32`.
    pub targets: Vec<(String, Tensor)>,
    /// One weight per sample.
    pub sample_weight: Option<Vec<f32>>,
    /// Weights of outputs by name, for each sample or each of its positions. An unnamed entry is for all outputs.
    pub output_weights: Vec<(String, Tensor)>,
}

impl SampleSet {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, |(_, samples)| samples.rows())
    }
}
