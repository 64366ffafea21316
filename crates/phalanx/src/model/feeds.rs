//! The feeds of a step.

use super::definition::Definition;
use super::shape::Shape;
use phalanx_graph::{DType, Space, Type};
use std::ops::Deref;

/// A value that a step is fed with.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
}

impl Fed {
    /// An input of a model without a host stage.
    pub fn input(def: &Definition, i: usize) -> Fed {
        let input = def.input(i);
        Fed { name: def.input_name(i), dtype: input.dtype, shape: input.known_shape() }
    }

    /// The type of rows of these sizes.
    pub fn ty(&self, sizes: &[usize]) -> Type {
        Type::new(self.dtype, Space::Rows, sizes)
    }
}

/// All values that a step is fed with, in order.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    all: Vec<Fed>,
    /// The size that stands for open ones where an example is needed.
    pub example: usize,
}

impl Feeds {
    pub fn new(all: Vec<Fed>) -> Feeds {
        Feeds { all, example: 1 }
    }
}

impl Deref for Feeds {
    type Target = [Fed];

    fn deref(&self) -> &[Fed] {
        &self.all
    }
}
