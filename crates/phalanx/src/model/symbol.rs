//! Symbolic values, to which layers are applied while a model is built.
//!
//! Applying a layer only records the call. [`Model::new`](super::Model::new) checks the shapes and reports errors, so
//! the calls themselves need no error handling.

use super::definition::Definition;
use super::shape::Shape;
use super::structure::IoStructure;
use crate::layer::{Argument, Arguments, InputsForm, Layer, LayerHandle};
use phalanx_graph::{DType, Space, Type};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An input of a model: the shape of one sample.
#[derive(Clone, Debug)]
pub struct Input {
    /// The shape of one sample.
    pub shape: Shape,
    /// Element type; of strings, that of their numbers.
    pub dtype: DType,
    /// Whether the elements are strings.
    pub text: bool,
    /// The element type in files, if it is another: `int64` or `bool`, for example.
    pub declared: Option<&'static str>,
    /// The name set by the user, if any.
    pub name: Option<String>,
    /// The size of every batch, if it is fixed. Only stateful layers ask for it.
    pub batch_size: Option<usize>,
    /// Whether Keras accepts `None` for it.
    pub optional: bool,
    /// The sizes that [`Model::with_input_shapes`](super::Model::with_input_shapes) gave to the shape. Files still
    /// leave its open sizes open.
    pub given: Option<Vec<usize>>,
}

impl Input {
    /// Creates a float input of the given shape, without the batch dimension. A size that is `None` is open: every batch
    /// may have another one.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let sequences = Input::new([None, Some(32)]).symbol();
    /// let model = Model::new(&sequences, LSTM::new(8).apply(&sequences))?;
    /// assert_eq!(model.input_shapes()[0].to_string(), "(None, None, 32)");
    /// assert_eq!(model.predict(Tensor::zeros([2, 5, 32]))?.dims(), [2, 8]);
    /// assert_eq!(model.predict(Tensor::zeros([2, 9, 32]))?.dims(), [2, 8]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn new(shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        Input {
            shape,
            dtype: DType::F32,
            text: false,
            declared: None,
            name: None,
            batch_size: None,
            optional: false,
            given: None,
        }
    }

    /// Makes the elements integers, for embeddings.
    pub fn integers(mut self) -> Input {
        self.dtype = DType::I32;
        self
    }

    /// Makes the elements strings, for layers such as [`TextVectorization`](crate::layers::TextVectorization).
    pub fn strings(mut self) -> Input {
        (self.dtype, self.text) = (DType::I32, true);
        self
    }

    /// Fixes the size of the batches, which stateful recurrent layers need.
    pub fn batch_size(mut self, batch_size: usize) -> Input {
        self.batch_size = Some(batch_size);
        self
    }

    /// Names the input.
    pub fn named(mut self, name: &str) -> Input {
        self.name = Some(name.into());
        self
    }

    /// The shape of one sample, with the sizes that were given.
    pub(crate) fn known_shape(&self) -> Shape {
        self.given.as_ref().map_or_else(|| self.shape.clone(), |sizes| sizes[..].into())
    }

    /// The type of rows of these sizes.
    pub(crate) fn ty(&self, sizes: &[usize]) -> Type {
        Type::new(self.dtype, Space::Rows, sizes)
    }

    /// Returns the symbol to apply layers to.
    pub fn symbol(self) -> Symbol {
        Symbol::new(Callee::Input(self), vec![])
    }
}

/// The target of a call.
#[derive(Clone, Debug)]
pub(crate) enum Callee {
    Input(Input),
    Layer(LayerHandle),
    Model(Arc<Definition>),
}

impl Callee {
    /// Passes `count` tensors in the form that the callee takes.
    fn positional(&self, count: usize) -> Vec<Argument<usize>> {
        let tensors: Vec<usize> = (0..count).collect();
        let form = match self {
            Callee::Input(_) => InputsForm::Single,
            Callee::Layer(layer) => layer.layer().inputs_form(),
            Callee::Model(inner) => match &inner.input_structure {
                IoStructure::Single => InputsForm::Single,
                IoStructure::List => InputsForm::List,
                IoStructure::Dict(names) => {
                    let tensors = tensors.into_iter().map(Argument::Tensor);
                    return vec![Argument::Dict(names.iter().cloned().zip(tensors).collect())];
                }
                IoStructure::Nested(tree) => return vec![tree.argument(&mut tensors.into_iter())],
            },
        };
        form.positional(tensors)
    }
}

/// One recorded call.
#[derive(Debug)]
pub(crate) struct Call {
    pub callee: Callee,
    /// The tensors among the arguments, in Keras' order.
    pub inputs: Vec<Symbol>,
    /// The arguments, whose tensors are positions in `inputs`.
    pub arguments: Arguments<usize>,
    /// Unique and increasing. Files list the calls of a shared layer in this order.
    pub sequence: u64,
    /// For a call of a model: the model's inner calls applied to `inputs`, by sequence number. Computed on
    /// first use.
    pub inlined: OnceLock<HashMap<u64, Symbol>>,
}

impl Drop for Call {
    /// Drops a chain of calls iteratively: recursion would overflow the stack on a long chain.
    fn drop(&mut self) {
        let mut symbols = std::mem::take(&mut self.inputs);
        while let Some(symbol) = symbols.pop() {
            if let Some(mut call) = Arc::into_inner(symbol.call) {
                symbols.append(&mut call.inputs);
            }
        }
    }
}

/// A symbolic value of a model under construction.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub(crate) call: Arc<Call>,
    pub(crate) output: usize,
}

impl Symbol {
    /// Records a call on `inputs`, passed in the form that the callee takes.
    pub(crate) fn new(callee: Callee, inputs: Vec<Symbol>) -> Symbol {
        let positional = callee.positional(inputs.len());
        Symbol::with_arguments(callee, inputs, Arguments { positional, named: vec![] })
    }

    /// Records a call. The tensors of `arguments` are positions in `inputs`.
    pub(crate) fn with_arguments(
        callee: Callee,
        inputs: Vec<Symbol>,
        arguments: Arguments<usize>,
    ) -> Symbol {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let inlined = OnceLock::new();
        Symbol { call: Arc::new(Call { callee, inputs, arguments, sequence, inlined }), output: 0 }
    }

    /// Returns another output of the same call, for layers with several outputs.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let x = Input::new([8]).symbol();
    /// let y = Dense::new(4).apply(&x);
    /// assert!(Model::new(&x, y.output(0)).is_ok());
    /// assert!(Model::new(&x, y.output(1)).is_err());
    /// ```
    #[must_use]
    pub fn output(&self, index: usize) -> Symbol {
        Symbol { output: index, ..self.clone() }
    }

    /// Returns the identity of the call that produced it.
    pub(crate) fn id(&self) -> *const Call {
        Arc::as_ptr(&self.call)
    }
}

/// One or several symbols, as the arguments of a layer.
pub trait Symbols {
    /// Returns the symbols in order.
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

/// Application of layers to symbols. A layer applied by value is used once; a [`LayerHandle`] may be applied
/// several times, with shared weights.
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

    /// Records a call with named arguments, as Python's `layer(x, mask=mask)`.
    fn apply_with<const N: usize>(
        self,
        inputs: impl Symbols,
        named: [(&str, Argument<Symbol>); N],
    ) -> Symbol;
}

impl<L: Layer> Apply for L {
    fn apply(self, inputs: impl Symbols) -> Symbol {
        LayerHandle::from(self).apply(inputs)
    }

    fn apply_with<const N: usize>(
        self,
        inputs: impl Symbols,
        named: [(&str, Argument<Symbol>); N],
    ) -> Symbol {
        LayerHandle::from(self).apply_with(inputs, named)
    }
}

impl Apply for &LayerHandle {
    fn apply(self, inputs: impl Symbols) -> Symbol {
        Symbol::new(Callee::Layer(self.clone()), inputs.symbols())
    }

    fn apply_with<const N: usize>(
        self,
        inputs: impl Symbols,
        named: [(&str, Argument<Symbol>); N],
    ) -> Symbol {
        let mut inputs = inputs.symbols();
        let callee = Callee::Layer(self.clone());
        let positional = callee.positional(inputs.len());
        let mut named = named.to_vec();
        named.sort_by_key(|(name, _)| *name);
        let named = named.into_iter().map(|(name, argument)| {
            let argument = argument.map(&mut |symbol: &Symbol| {
                inputs.push(symbol.clone());
                inputs.len() - 1
            });
            (name.to_string(), argument)
        });
        let arguments = Arguments { positional, named: named.collect() };
        Symbol::with_arguments(callee, inputs, arguments)
    }
}
