//! Shapes whose sizes may be open.

use crate::layer::RowType;
use phalanx_graph::{DType, Type};
use std::fmt;

/// The shape of one sample, without the batch. A size is open if it is `None`: every batch may have another one.
///
/// ```
/// use phalanx::prelude::*;
///
/// let sequence = Shape::from([None, Some(32)]);
/// assert_eq!(sequence.to_string(), "(None, None, 32)");
/// assert_eq!(sequence.known(), None);
/// assert_eq!(Shape::from([28, 28]).known(), Some(vec![28, 28]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape(Vec<Option<usize>>);

impl Shape {
    /// Returns the sizes.
    pub fn sizes(&self) -> &[Option<usize>] {
        &self.0
    }

    /// Returns the sizes if none is open.
    pub fn known(&self) -> Option<Vec<usize>> {
        self.0.iter().copied().collect()
    }

    /// Returns whether a size is open.
    pub fn is_open(&self) -> bool {
        self.0.contains(&None)
    }

    /// Returns the sizes, with `size` for open ones.
    pub(crate) fn with_open(&self, size: usize) -> Vec<usize> {
        self.0.iter().map(|known| known.unwrap_or(size)).collect()
    }

    /// Returns whether samples of these sizes have this shape.
    pub(crate) fn accepts(&self, sizes: &[usize]) -> bool {
        let fits = |(known, size): (&Option<usize>, &usize)| known.is_none_or(|n| n == *size);
        self.0.len() == sizes.len() && self.0.iter().zip(sizes).all(fits)
    }

    /// Returns the sizes of samples of these dimensions. As in Keras, a last axis of size one may be missing or added.
    pub fn sizes_of(&self, dims: &[usize]) -> Option<Vec<usize>> {
        let mut sizes = dims.to_vec();
        if sizes.len() + 1 == self.0.len() {
            sizes.push(1);
        } else if sizes.len() == self.0.len() + 1 && sizes.last() == Some(&1) {
            sizes.pop();
        }
        self.accepts(&sizes).then_some(sizes)
    }
}

impl From<Vec<Option<usize>>> for Shape {
    fn from(sizes: Vec<Option<usize>>) -> Shape {
        Shape(sizes)
    }
}

impl<const N: usize> From<[Option<usize>; N]> for Shape {
    fn from(sizes: [Option<usize>; N]) -> Shape {
        Shape(sizes.into())
    }
}

impl From<&[Option<usize>]> for Shape {
    fn from(sizes: &[Option<usize>]) -> Shape {
        Shape(sizes.into())
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape(sizes.iter().map(|size| Some(*size)).collect())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Shape {
        sizes[..].into()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        sizes[..].into()
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(sizes: &[usize; N]) -> Shape {
        sizes[..].into()
    }
}

impl PartialEq<Vec<usize>> for Shape {
    fn eq(&self, other: &Vec<usize>) -> bool {
        self.0.iter().copied().eq(other.iter().copied().map(Some))
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.0.iter().copied().eq(other.iter().copied().map(Some))
    }
}

/// The shape with its batch, as Keras prints it.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |size: &Option<usize>| size.map_or("None".into(), |n| n.to_string());
        let sizes: Vec<String> = self.0.iter().map(size).collect();
        match sizes.is_empty() {
            true => write!(f, "(None,)"),
            false => write!(f, "(None, {})", sizes.join(", ")),
        }
    }
}

/// The type of a value of a model: that of one batch, and the axes whose sizes differ from batch to batch.
#[derive(Clone, Debug)]
pub(crate) struct ValueType {
    ty: Type,
    open: Vec<bool>,
}

impl ValueType {
    /// The type of a value that is the same in all batches.
    pub fn known(ty: Type) -> ValueType {
        let open = vec![false; ty.dims.len()];
        ValueType { ty, open }
    }

    /// The type of a value of the host.
    pub fn of_host(row: &RowType) -> ValueType {
        let open = row.sizes().iter().map(Option::is_none).collect();
        ValueType { ty: row.ty(), open }
    }

    /// The type of a value that has these types in two batches. `None` if they differ in more than their sizes.
    pub fn of_two(first: Type, second: &Type) -> Option<ValueType> {
        let same_rank = first.dims.len() == second.dims.len();
        if !same_rank || (first.dtype, first.space) != (second.dtype, second.space) {
            return None;
        }
        let open = first.dims.iter().zip(&second.dims).map(|(a, b)| a != b).collect();
        Some(ValueType { ty: first, open })
    }

    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    pub fn is_rows(&self) -> bool {
        self.ty.is_rows()
    }

    /// The shape of one sample.
    pub fn shape(&self) -> Shape {
        let sizes = self.ty.dims.iter().zip(&self.open);
        Shape(sizes.map(|(size, open)| (!open).then_some(*size)).collect())
    }

    /// The shape as Keras prints it.
    pub fn shape_text(&self) -> String {
        match self.is_rows() && self.open.contains(&true) {
            true => self.shape().to_string(),
            false => self.ty.shape_text(),
        }
    }

    /// The bytes of one sample, unless a size is open.
    pub fn bytes(&self) -> Option<usize> {
        let known = !self.open.contains(&true);
        known.then(|| self.ty.len() * self.ty.dtype.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_samples_fill_open_ones() {
        let shape = Shape::from([None, Some(3)]);
        assert_eq!(shape.sizes_of(&[7, 3]), Some(vec![7, 3]));
        assert_eq!(shape.sizes_of(&[7, 3, 1]), Some(vec![7, 3]));
        assert_eq!(shape.sizes_of(&[7, 4]), None);
        assert_eq!(shape.sizes_of(&[7]), None);
        assert_eq!(Shape::from([None, Some(1)]).sizes_of(&[7]), Some(vec![7, 1]));
        assert_eq!(Shape::from([None]).sizes_of(&[7, 1]), Some(vec![7]));
        assert_eq!(Shape::default().to_string(), "(None,)");
    }

    #[test]
    fn axes_that_differ_are_open() {
        let ty = ValueType::of_two(Type::rows([4, 8]), &Type::rows([6, 8])).unwrap();
        assert_eq!((ty.shape_text(), ty.bytes()), ("(None, None, 8)".into(), None));
        assert!(ValueType::of_two(Type::rows([4]), &Type::rows([4, 1])).is_none());
        assert!(ValueType::of_two(Type::rows([4]), &Type::mirrored([4])).is_none());
        assert_eq!(ValueType::known(Type::rows([2, 3])).bytes(), Some(24));
    }
}
