//! Columns of strings.

use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Rows of strings. Equal strings are stored once: a column is a list of strings, and for each element the number of its
/// string. Clones share both.
///
/// ```
/// use phalanx::data::Text;
///
/// let colours = Text::from(["red", "blue", "red"]);
/// assert_eq!((colours.dims(), colours.get(2)), (&[3][..], "red"));
/// assert_eq!(colours.strings().len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// The number of each element's string, in the shape of the column.
    numbers: Arc<Tensor>,
    strings: Arc<Vec<String>>,
}

impl Text {
    /// Strings of a shape, whose first dimension is the batch.
    ///
    /// # Errors
    /// The number of strings is not the product of the dimensions, or there are 2³¹ different ones.
    pub fn new<S: AsRef<str>>(
        dims: impl Into<Vec<usize>>,
        strings: impl IntoIterator<Item = S>,
    ) -> Result<Text> {
        let (mut known, mut distinct, mut numbers) = (HashMap::new(), vec![], vec![]);
        for string in strings {
            let string = string.as_ref();
            let number = match known.get(string) {
                Some(number) => *number,
                None => {
                    let number = i32::try_from(distinct.len()).map_err(|_| {
                        Error::argument("Text", "strings", "fewer than 2³¹ different ones", "more")
                    })?;
                    distinct.push(string.to_string());
                    known.insert(string.to_string(), number);
                    number
                }
            };
            numbers.push(number);
        }
        let dims = dims.into();
        let (wanted, received) = (format!("{dims:?}"), numbers.len());
        let numbers = Tensor::new(dims, numbers).map_err(|_| {
            Error::argument("Text", "strings", format!("those of the shape {wanted}"), received)
        })?;
        Ok(Text { numbers: Arc::new(numbers), strings: Arc::new(distinct) })
    }

    /// A column from the numbers of its strings; `None` if a number has no string.
    pub(crate) fn from_numbers(
        numbers: impl Into<Arc<Tensor>>,
        strings: Arc<Vec<String>>,
    ) -> Option<Text> {
        let numbers = numbers.into();
        let known = |n: &i32| usize::try_from(*n).is_ok_and(|n| n < strings.len());
        numbers.i32()?.iter().all(known).then_some(Text { numbers, strings })
    }

    /// Dimensions, batch dimension first.
    pub fn dims(&self) -> &[usize] {
        self.numbers.dims()
    }

    /// The different strings.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The different strings, to share.
    pub(crate) fn shared_strings(&self) -> &Arc<Vec<String>> {
        &self.strings
    }

    /// The number of each element's string.
    pub(crate) fn numbers(&self) -> &Arc<Tensor> {
        &self.numbers
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// An element, in row-major order.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn get(&self, element: usize) -> &str {
        let numbers = self.numbers.i32().unwrap_or_default();
        &self.strings[numbers[element] as usize]
    }

    /// All elements, in row-major order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let numbers = self.numbers.i32().unwrap_or_default();
        numbers.iter().map(|number| self.strings[*number as usize].as_str())
    }

    /// Changes the dimensions; `None` if the number of elements differs.
    pub fn reshape(self, dims: impl Into<Vec<usize>>) -> Option<Text> {
        let numbers = Arc::unwrap_or_clone(self.numbers).reshape(dims).ok()?;
        Some(Text { numbers: Arc::new(numbers), strings: self.strings })
    }

    /// A range of rows, which must exist.
    pub(crate) fn slice_rows(&self, rows: Range<usize>) -> Text {
        let numbers = Arc::new(self.numbers.slice_rows(rows));
        Text { numbers, strings: self.strings.clone() }
    }

    /// These rows, which must exist.
    pub(super) fn select_rows(&self, rows: &[usize]) -> Text {
        let numbers = Arc::new(self.numbers.select_rows(rows));
        Text { numbers, strings: self.strings.clone() }
    }
}

impl<S: AsRef<str>> FromIterator<S> for Text {
    /// One string for each row.
    ///
    /// # Panics
    /// If there are 2³¹ different strings.
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Text {
        let all: Vec<S> = strings.into_iter().collect();
        Text::new([all.len()], &all).expect("one string for each row")
    }
}

impl<S: AsRef<str>> From<Vec<S>> for Text {
    fn from(strings: Vec<S>) -> Text {
        strings.into_iter().collect()
    }
}

impl<S: AsRef<str>> From<&[S]> for Text {
    fn from(strings: &[S]) -> Text {
        strings.iter().collect()
    }
}

impl<S: AsRef<str>, const N: usize> From<[S; N]> for Text {
    fn from(strings: [S; N]) -> Text {
        strings.into_iter().collect()
    }
}

impl From<&Text> for Text {
    fn from(text: &Text) -> Text {
        text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_a_shape_and_rows() {
        let text = Text::new([3, 2], ["a", "b", "", "a", "é", "b"]).unwrap();
        assert_eq!(text.strings(), ["a", "b", "", "é"]);
        assert!(text.iter().eq(["a", "b", "", "a", "é", "b"]));
        assert!(text.slice_rows(1..2).iter().eq(["", "a"]));
        assert!(text.select_rows(&[2, 0]).iter().eq(["é", "b", "a", "b"]));
        assert_eq!(text.clone().reshape([6]).unwrap().dims(), [6]);
        assert!(text.reshape([5]).is_none());
        let error = Text::new([2, 2], ["a"]).unwrap_err().to_string();
        assert_eq!(error, "Text: strings: expected those of the shape [2, 2], received 1");
    }

    #[test]
    fn a_number_without_a_string_is_refused() {
        let numbers = |values: Vec<i32>| Tensor::new([values.len()], values).unwrap();
        let strings = Arc::new(vec!["a".to_string()]);
        assert!(Text::from_numbers(numbers(vec![0, 0]), strings.clone()).is_some());
        assert!(Text::from_numbers(numbers(vec![0, 1]), strings.clone()).is_none());
        assert!(Text::from_numbers(numbers(vec![-1]), strings).is_none());
    }
}
