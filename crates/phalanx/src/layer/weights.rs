//! The weights of a layer: their declaration, their host values and where the newest values are.

use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::regularizers::Regularizer;
use phalanx_graph::ParamId;
use phalanx_graph::rng::Stream;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// The declaration of a weight.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Name inside the layer, unique there: `kernel`, or `cell/kernel` for a weight of a sublayer.
    pub name: String,
    /// The sublayer that it belongs to, as a path of Keras' attributes such as `forward_layer/cell`; empty for the
    /// layer's own weights.
    pub sublayer: String,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Initializer of the values.
    pub initializer: Initializer,
    /// The shape that the initializer sees, if it is not `dims`: a kernel of several input and output axes starts as a matrix.
    pub initial_dims: Option<Vec<usize>>,
    /// Elements that start at one instead, such as the bias of an LSTM's forget gate.
    pub ones: Option<Range<usize>>,
    /// Penalty on the values, if any.
    pub regularizer: Option<Regularizer>,
    /// Projection applied after every update, if any.
    pub constraint: Option<Constraint>,
    /// Whether the optimizer updates it; false for moving statistics.
    pub trainable: bool,
    /// Whether files list the weight of a sublayer among the layer's own weights too.
    pub listed_twice: bool,
}

impl WeightSpec {
    /// Creates a trainable weight without regularizer or constraint.
    pub fn new(name: &str, dims: &[usize], initializer: Initializer) -> WeightSpec {
        WeightSpec {
            name: name.into(),
            sublayer: String::new(),
            dims: dims.to_vec(),
            initializer,
            initial_dims: None,
            ones: None,
            regularizer: None,
            constraint: None,
            trainable: true,
            listed_twice: false,
        }
    }

    /// Draws the first values.
    pub(crate) fn sample(&self, rng: &mut Stream) -> Vec<f32> {
        let dims = self.initial_dims.as_ref().unwrap_or(&self.dims);
        let mut values = self.initializer.sample(dims, rng);
        if let Some(ones) = self.ones.clone().and_then(|ones| values.get_mut(ones)) {
            ones.fill(1.0);
        }
        values
    }

    /// Sets the regularizer.
    pub fn regularizer(mut self, regularizer: Option<Regularizer>) -> WeightSpec {
        self.regularizer = regularizer;
        self
    }

    /// Sets the constraint.
    pub fn constraint(mut self, constraint: Option<Constraint>) -> WeightSpec {
        self.constraint = constraint;
        self
    }

    /// Excludes the weight from the optimizer's updates.
    pub fn non_trainable(mut self) -> WeightSpec {
        self.trainable = false;
        self
    }
}

/// A weight and its host values, once initialized or loaded.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The declaration.
    pub spec: WeightSpec,
    /// The values; `None` until a model is initialized.
    pub values: Option<Vec<f32>>,
}

/// Weight storage outside the layers: the devices of a compiled model. Models that share layers read each other's
/// weights through it.
pub(crate) trait WeightStore: Send + Sync {
    /// Returns the values of a parameter.
    fn read(&self, param: ParamId) -> Result<Vec<f32>>;
}

/// The store that holds the newest values of a layer's weights.
pub(super) struct Owner {
    pub store: Weak<dyn WeightStore>,
    pub params: Vec<ParamId>,
}

impl Owner {
    pub fn is(&self, store: &Arc<dyn WeightStore>) -> bool {
        std::ptr::addr_eq(self.store.as_ptr(), Arc::as_ptr(store))
    }
}

impl Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("params", &self.params).finish_non_exhaustive()
    }
}
