//! The arguments of a call: tensors, plain values and nested structures, by position and by name.

use super::Operand;
use crate::model::Symbol;
use phalanx_graph::NodeId;
use serde_json::Value;

/// One argument. `T` stands for a tensor: its position among the call's inputs, or the value itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<T> {
    /// A tensor.
    Tensor(T),
    /// A number, a string, a shape, or anything else that is known when the model is built.
    Plain(Value),
    /// A list of arguments.
    List(Vec<Argument<T>>),
    /// Arguments by name, in order.
    Dict(Vec<(String, Argument<T>)>),
}

impl<T> Argument<T> {
    /// Calls `visit` for every tensor, in the order in which Keras lists the operands of a call: dicts are sorted by
    /// name.
    pub(crate) fn for_each_tensor<'a>(&'a self, visit: &mut dyn FnMut(&'a T)) {
        match self {
            Argument::Tensor(tensor) => visit(tensor),
            Argument::Plain(_) => {}
            Argument::List(items) => items.iter().for_each(|item| item.for_each_tensor(visit)),
            Argument::Dict(entries) => {
                let mut sorted: Vec<_> = entries.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                sorted.into_iter().for_each(|(_, item)| item.for_each_tensor(visit));
            }
        }
    }

    /// Replaces every tensor.
    pub(crate) fn map<U>(&self, tensor: &mut dyn FnMut(&T) -> U) -> Argument<U> {
        match self {
            Argument::Tensor(t) => Argument::Tensor(tensor(t)),
            Argument::Plain(value) => Argument::Plain(value.clone()),
            Argument::List(items) => {
                Argument::List(items.iter().map(|item| item.map(tensor)).collect())
            }
            Argument::Dict(entries) => Argument::Dict(
                entries.iter().map(|(name, item)| (name.clone(), item.map(tensor))).collect(),
            ),
        }
    }

    /// Whether this is Python's `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Argument::Plain(Value::Null))
    }
}

impl Argument<Operand> {
    /// The node of a tensor.
    pub(crate) fn tensor_node(&self) -> Option<NodeId> {
        match self {
            Argument::Tensor(operand) => Some(operand.node),
            _ => None,
        }
    }
}

impl From<bool> for Argument<Symbol> {
    fn from(value: bool) -> Argument<Symbol> {
        Argument::Plain(value.into())
    }
}

impl From<&Symbol> for Argument<Symbol> {
    fn from(symbol: &Symbol) -> Argument<Symbol> {
        Argument::Tensor(symbol.clone())
    }
}

impl<const N: usize> From<[&Symbol; N]> for Argument<Symbol> {
    fn from(symbols: [&Symbol; N]) -> Argument<Symbol> {
        Argument::List(symbols.into_iter().map(Argument::from).collect())
    }
}

/// The arguments of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments<T> {
    /// By position.
    pub positional: Vec<Argument<T>>,
    /// By name, in order.
    pub named: Vec<(String, Argument<T>)>,
}

impl<T> Default for Arguments<T> {
    fn default() -> Arguments<T> {
        Arguments { positional: vec![], named: vec![] }
    }
}

impl<T> Arguments<T> {
    /// Calls `visit` for every tensor: positional arguments first, then named ones, sorted by name.
    pub(crate) fn for_each_tensor<'a>(&'a self, visit: &mut dyn FnMut(&'a T)) {
        self.positional.iter().for_each(|argument| argument.for_each_tensor(visit));
        let mut sorted: Vec<_> = self.named.iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        sorted.into_iter().for_each(|(_, argument)| argument.for_each_tensor(visit));
    }

    /// The tensors among the positional arguments, in Keras' order.
    pub(crate) fn positional_tensors(&self) -> Vec<&T> {
        let mut tensors = vec![];
        self.positional.iter().for_each(|a| a.for_each_tensor(&mut |tensor| tensors.push(tensor)));
        tensors
    }

    /// Replaces every tensor.
    pub(crate) fn map<U>(&self, mut tensor: impl FnMut(&T) -> U) -> Arguments<U> {
        let tensor: &mut dyn FnMut(&T) -> U = &mut tensor;
        let positional = self.positional.iter().map(|argument| argument.map(tensor)).collect();
        let named = self.named.iter().map(|(name, a)| (name.clone(), a.map(tensor))).collect();
        Arguments { positional, named }
    }

    /// The argument of this name. Python's `None` counts as absent.
    pub fn named(&self, name: &str) -> Option<&Argument<T>> {
        let (_, argument) = self.named.iter().find(|(known, _)| known == name)?;
        Some(argument).filter(|argument| !argument.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_visited_in_keras_order() {
        let arguments = Arguments {
            positional: vec![
                Argument::Plain(1.into()),
                Argument::List(vec![Argument::Tensor("a"), Argument::Tensor("b")]),
                Argument::Dict(vec![
                    ("z".into(), Argument::Tensor("d")),
                    ("y".into(), Argument::Tensor("c")),
                ]),
            ],
            named: vec![
                ("mask".into(), Argument::Tensor("f")),
                ("initial_state".into(), Argument::Tensor("e")),
            ],
        };
        let mut names = vec![];
        arguments.for_each_tensor(&mut |name| names.push(*name));
        assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(arguments.named("mask"), Some(&Argument::Tensor("f")));
        assert!(arguments.named("training").is_none());
    }
}
