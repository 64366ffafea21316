//! Layers that run on the host: preprocessing of strings, categories and numbers before a step.

use crate::data::Samples;
use crate::error::{Error, Result};
use crate::model::Shape;
use phalanx_graph::{DType, Space, Type};
use serde_json::Value;
use std::fmt;

/// What a value on the host is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Floats.
    Floats,
    /// Integers.
    Integers,
    /// Strings.
    Strings,
}

/// The type of one sample of a value on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowType {
    /// Its elements.
    pub elements: Elements,
    /// Its shape. A size is open if every batch may have another one.
    pub shape: Shape,
}

impl RowType {
    /// A sample of this shape.
    pub fn new(elements: Elements, shape: impl Into<Shape>) -> RowType {
        RowType { elements, shape: shape.into() }
    }

    /// The sizes of the shape; `None` for open ones.
    pub(crate) fn sizes(&self) -> &[Option<usize>] {
        self.shape.sizes()
    }

    /// The dimensions of samples, with 1 for open ones.
    pub(crate) fn dims(&self) -> Vec<usize> {
        self.shape.with_open(1)
    }

    /// The type of the rows of samples.
    pub(crate) fn of(samples: &Samples) -> RowType {
        let elements = match (samples.text(), samples.dtype()) {
            (Some(_), _) => Elements::Strings,
            (None, DType::I32) => Elements::Integers,
            (None, _) => Elements::Floats,
        };
        RowType::new(elements, samples.dims().get(1..).unwrap_or_default())
    }

    /// The type in a graph, where strings are their numbers. Open sizes are 1.
    pub(crate) fn ty(&self) -> Type {
        let dtype = match self.elements {
            Elements::Floats => DType::F32,
            Elements::Integers | Elements::Strings => DType::I32,
        };
        Type::new(dtype, Space::Rows, self.dims())
    }
}

impl fmt::Display for RowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = match self.elements {
            Elements::Floats => "floats",
            Elements::Integers => "integers",
            Elements::Strings => "strings",
        };
        write!(f, "{elements} {}", self.shape)
    }
}

/// The computation of a layer on the host. `owner` names the layer in errors.
pub trait HostLayer {
    /// Checks the layer's config and returns the type of its output for inputs of these types.
    ///
    /// # Errors
    /// Options or inputs that the layer refuses.
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType>;

    /// Computes the output for some rows.
    ///
    /// # Errors
    /// Values that the layer refuses.
    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples>;

    /// Whether the layer can also run on the devices.
    fn runs_on_devices(&self) -> bool {
        false
    }
}

/// The vocabulary of a layer, which `.keras` files hold beside the config.
pub trait VocabularyLayer {
    /// The terms as files list them, mask and out-of-vocabulary tokens first; `None` if the config has them, or if there
    /// are none.
    fn terms(&self) -> Option<Vec<String>>;

    /// Replaces the terms.
    ///
    /// # Errors
    /// Terms that are no vocabulary of this layer.
    fn set_terms(&self, owner: &str, terms: &[&str]) -> Result<()>;

    /// The inverse document frequency of every term, if the layer weights by it.
    fn idf_weights(&self) -> Option<Vec<f32>>;

    /// Replaces the inverse document frequencies.
    fn set_idf_weights(&self, weights: Vec<f32>);

    /// Whether the layer's output is weighted by inverse document frequencies, which files hold with the weights.
    fn has_idf_weights(&self) -> bool;

    /// The sublayers under which files list the vocabulary too.
    fn sublayers(&self) -> &'static [&'static str] {
        &[]
    }

    /// The entries of a config that holds the vocabulary.
    fn config_entries(&self) -> Vec<(&'static str, Value)>;
}

/// The error of a layer that cannot run on the devices.
pub(crate) fn host_only(owner: &str) -> Error {
    let expected = "values that reach it from the model's inputs through preprocessing layers only, as it runs on the host";
    Error::argument(owner, "input", expected, "a value that the devices compute")
}

/// The only input of a layer.
pub(crate) fn one_input<'a, T>(owner: &str, inputs: &'a [T]) -> Result<&'a T> {
    match inputs {
        [one] => Ok(one),
        _ => Err(Error::argument(owner, "inputs", "1", inputs.len())),
    }
}
