//! The structure of a model's inputs or outputs.

use super::symbol::Symbol;
use crate::layer::Argument;
use serde_json::{Map, Value};

/// The structure of a model's inputs or outputs, as in model files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IoStructure {
    /// A single tensor.
    Single,
    /// A list.
    List,
    /// A dict with these keys, in order.
    Dict(Vec<String>),
    /// Lists and dicts in each other.
    Nested(IoTree),
}

/// Lists and dicts of tensors. Keras lists the tensors in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IoTree {
    /// A tensor.
    Tensor,
    /// A list.
    List(Vec<IoTree>),
    /// A dict, sorted by its keys.
    Dict(Vec<(String, IoTree)>),
}

/// A step of a path: the key of a dict, or the position in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    Key(String),
    Position(usize),
}

/// The text of a path, such as `left/0`.
pub(crate) fn path_text(path: &[PathStep]) -> String {
    let step = |step: &PathStep| match step {
        PathStep::Key(key) => key.clone(),
        PathStep::Position(position) => position.to_string(),
    };
    path.iter().map(step).collect::<Vec<_>>().join("/")
}

impl IoStructure {
    pub fn for_symbols(symbols: &[Symbol]) -> IoStructure {
        if symbols.len() == 1 { IoStructure::Single } else { IoStructure::List }
    }

    /// The structure of a tree.
    pub fn of_tree(tree: IoTree) -> IoStructure {
        let is_tensor = |tree: &IoTree| *tree == IoTree::Tensor;
        match tree {
            IoTree::Tensor => IoStructure::Single,
            IoTree::List(items) if items.iter().all(is_tensor) => IoStructure::List,
            IoTree::Dict(entries) if entries.iter().all(|(_, tree)| is_tensor(tree)) => {
                IoStructure::Dict(entries.into_iter().map(|(key, _)| key).collect())
            }
            nested => IoStructure::Nested(nested),
        }
    }

    /// The paths of the tensors, in order; `None` if they have none, because there is one tensor or a list.
    pub fn paths(&self) -> Option<Vec<Vec<PathStep>>> {
        match self {
            IoStructure::Single | IoStructure::List => None,
            IoStructure::Dict(keys) => {
                Some(keys.iter().map(|key| vec![PathStep::Key(key.clone())]).collect())
            }
            IoStructure::Nested(tree) => {
                let mut paths = vec![];
                tree.add_paths(&mut vec![], &mut paths);
                Some(paths)
            }
        }
    }
}

impl IoTree {
    /// Number of tensors.
    pub fn len(&self) -> usize {
        match self {
            IoTree::Tensor => 1,
            IoTree::List(items) => items.iter().map(IoTree::len).sum(),
            IoTree::Dict(entries) => entries.iter().map(|(_, tree)| tree.len()).sum(),
        }
    }

    fn add_paths(&self, at: &mut Vec<PathStep>, paths: &mut Vec<Vec<PathStep>>) {
        let mut below = |step: PathStep, tree: &IoTree| {
            at.push(step);
            tree.add_paths(at, paths);
            at.pop();
        };
        match self {
            IoTree::Tensor => paths.push(at.clone()),
            IoTree::List(items) => {
                let items = items.iter().enumerate();
                items.for_each(|(i, tree)| below(PathStep::Position(i), tree));
            }
            IoTree::Dict(entries) => {
                entries.iter().for_each(|(key, tree)| below(PathStep::Key(key.clone()), tree));
            }
        }
    }

    /// The structure with these tensors, in order, as the argument of a call.
    pub fn argument(&self, tensors: &mut impl Iterator<Item = usize>) -> Argument<usize> {
        match self {
            IoTree::Tensor => Argument::Tensor(tensors.next().unwrap_or_default()),
            IoTree::List(items) => {
                Argument::List(items.iter().map(|tree| tree.argument(tensors)).collect())
            }
            IoTree::Dict(entries) => {
                let entry = |(key, tree): &(String, IoTree)| (key.clone(), tree.argument(tensors));
                Argument::Dict(entries.iter().map(entry).collect())
            }
        }
    }

    /// The structure with these values, in order, as JSON.
    pub fn with_values(&self, values: &mut impl Iterator<Item = Value>) -> Value {
        match self {
            IoTree::Tensor => values.next().unwrap_or_default(),
            IoTree::List(items) => items.iter().map(|tree| tree.with_values(values)).collect(),
            IoTree::Dict(entries) => {
                let entry =
                    |(key, tree): &(String, IoTree)| (key.clone(), tree.with_values(values));
                entries.iter().map(entry).collect::<Map<_, _>>().into()
            }
        }
    }
}
