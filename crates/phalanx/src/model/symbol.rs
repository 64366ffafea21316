//! Symbolic values: what layers are applied to while a model is described.
//!
//! Applying a layer only records the call; shapes are checked, and errors reported, when the
//! [`Model`](super::Model) is built, so descriptions need no error handling of their own.

use super::definition::Definition;
use crate::layer::{Layer, LayerHandle};
use phalanx_graph::{DType, Space, Type};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An input of a model: the shape of one sample.
#[derive(Clone, Debug)]
pub struct Input {
    /// Dimensions of one sample.
    pub dims: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// The name given.
    pub name: Option<String>,
}

impl Input {
    /// A float input of the given shape, without the batch.
    pub fn new(dims: impl Into<Vec<usize>>) -> Input {
        Input { dims: dims.into(), dtype: DType::F32, name: None }
    }

    /// Integers instead of floats, for embeddings.
    pub fn integers(mut self) -> Input {
        self.dtype = DType::I32;
        self
    }

    /// Gives the input a name.
    pub fn named(mut self, name: &str) -> Input {
        self.name = Some(name.into());
        self
    }

    /// The type of its rows.
    pub(crate) fn ty(&self) -> Type {
        Type::new(self.dtype, Space::Rows, self.dims.clone())
    }

    /// The symbol layers are applied to.
    pub fn symbol(self) -> Symbol {
        Symbol::new(Callee::Input(self), vec![])
    }
}

/// What a call calls.
#[derive(Clone, Debug)]
pub(crate) enum Callee {
    Input(Input),
    Layer(LayerHandle),
    Model(Arc<Definition>),
}

/// One recorded call.
#[derive(Debug)]
pub(crate) struct Call {
    pub callee: Callee,
    pub inputs: Vec<Symbol>,
    /// Every call's own; grows, and files list the calls of a shared layer in this order.
    pub sequence: u64,
    /// Of a model's call: the model's own calls on these inputs by their numbers, once somebody
    /// asked for one.
    pub inlined: OnceLock<HashMap<u64, Symbol>>,
}

impl Drop for Call {
    /// A chain of calls is taken apart link by link: a long one would overflow the stack.
    fn drop(&mut self) {
        let mut symbols = std::mem::take(&mut self.inputs);
        while let Some(symbol) = symbols.pop() {
            if let Some(mut call) = Arc::into_inner(symbol.call) {
                symbols.append(&mut call.inputs);
            }
        }
    }
}

/// A value of the model being described.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub(crate) call: Arc<Call>,
    pub(crate) output: usize,
}

impl Symbol {
    pub(crate) fn new(callee: Callee, inputs: Vec<Symbol>) -> Symbol {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        Symbol {
            call: Arc::new(Call { callee, inputs, sequence, inlined: OnceLock::new() }),
            output: 0,
        }
    }

    /// Identity of the call that made it.
    pub(crate) fn id(&self) -> *const Call {
        Arc::as_ptr(&self.call)
    }
}

/// What layers may be applied to: one symbol or several.
pub trait Symbols {
    /// The symbols, in order.
    fn symbols(self) -> Vec<Symbol>;
}

impl Symbols for &Symbol {
    fn symbols(self) -> Vec<Symbol> {
        vec![self.clone()]
    }
}

impl Symbols for Symbol {
    fn symbols(self) -> Vec<Symbol> {
        vec![self]
    }
}

impl Symbols for Vec<Symbol> {
    fn symbols(self) -> Vec<Symbol> {
        self
    }
}

impl Symbols for &[Symbol] {
    fn symbols(self) -> Vec<Symbol> {
        self.to_vec()
    }
}

impl<const N: usize> Symbols for [&Symbol; N] {
    fn symbols(self) -> Vec<Symbol> {
        self.into_iter().cloned().collect()
    }
}

impl<const N: usize> Symbols for [Symbol; N] {
    fn symbols(self) -> Vec<Symbol> {
        self.into()
    }
}

/// Applying layers to symbols. A layer that is applied by value is used once; one kept as a
/// [`LayerHandle`] may be applied again and again, with the same weights.
///
/// ```
/// use phalanx::prelude::*;
///
/// let (left, right) = (Input::new([8]).symbol(), Input::new([8]).symbol());
/// let encoder = Dense::new(4).named("encoder");
/// let both = Concatenate::new().apply([encoder.apply(&left), encoder.apply(&right)]);
/// let model = Model::new([&left, &right], &both)?;
/// assert_eq!(model.count_params(), 8 * 4 + 4);
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait Apply {
    /// Records a call of this layer.
    fn apply(self, inputs: impl Symbols) -> Symbol;
}

impl<L: Layer> Apply for L {
    fn apply(self, inputs: impl Symbols) -> Symbol {
        LayerHandle::from(self).apply(inputs)
    }
}

impl Apply for &LayerHandle {
    fn apply(self, inputs: impl Symbols) -> Symbol {
        Symbol::new(Callee::Layer(self.clone()), inputs.symbols())
    }
}
