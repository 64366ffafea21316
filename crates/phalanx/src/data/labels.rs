//! Class labels as indices and as one-hot rows.

use crate::error::{Error, Result};
use crate::memory;
use phalanx_graph::{Data, Tensor};

/// Maximum number of elements of one-hot labels: 4 GiB.
const MAX_ELEMENTS: usize = 1 << 30;

/// Converts class indices to one-hot rows, like Keras' `to_categorical`: `[n]` becomes `[n,
/// num_classes]`. The default for `num_classes` is one more than the largest class.
///
/// ```
/// use phalanx::{Tensor, data::to_categorical};
///
/// let y = Tensor::new([3], vec![0i32, 2, 1]).unwrap();
/// let one_hot = to_categorical(&y, None)?;
/// assert_eq!(one_hot.f32().unwrap(), [1., 0., 0., 0., 0., 1., 0., 1., 0.]);
/// # Ok::<(), phalanx::Error>(())
/// ```
pub fn to_categorical(y: &Tensor, num_classes: Option<usize>) -> Result<Tensor> {
    let wrong = |expected: String, received: String| {
        Err(Error::argument("to_categorical", "y", expected, received))
    };
    let mut classes = Vec::with_capacity(y.len());
    for row in 0..y.len() {
        let class = match y.data() {
            Data::I32(v) => usize::try_from(v[row]).ok(),
            Data::F32(v) => (v[row] >= 0.0 && v[row].fract() == 0.0).then_some(v[row] as usize),
        };
        match class {
            Some(class) if num_classes.is_none_or(|n| class < n) => classes.push(class),
            _ => {
                let received = match y.data() {
                    Data::I32(v) => v[row].to_string(),
                    Data::F32(v) => v[row].to_string(),
                };
                let most = num_classes.map_or(String::new(), |n| format!(" below {n}"));
                let expected = format!("classes from 0 up{most}");
                return wrong(expected, format!("{received} at index {row}"));
            }
        }
    }
    let width = num_classes.unwrap_or_else(|| classes.iter().max().map_or(0, |c| c + 1));
    one_hot(y.dims(), &classes, width)
}

/// Rows of `width` elements with a 1 at each class. A last dimension of 1 is replaced.
fn one_hot(dims: &[usize], classes: &[usize], width: usize) -> Result<Tensor> {
    let len = classes.len().checked_mul(width).filter(|n| *n <= MAX_ELEMENTS);
    let Some(len) = len else {
        let received = format!("{} labels of {width} classes", classes.len());
        let expected = format!("at most {MAX_ELEMENTS} elements");
        return Err(Error::argument("to_categorical", "num_classes", expected, received));
    };
    let Some(mut values) = memory::reserve::<f32>(len) else {
        let received = format!("{} labels of {width} classes", classes.len());
        let expected = "one-hot rows that fit into memory";
        return Err(Error::argument("to_categorical", "num_classes", expected, received));
    };
    values.resize(len, 0.0);
    for (row, class) in classes.iter().enumerate() {
        values[row * width + class] = 1.0;
    }
    let mut dims = dims.to_vec();
    if dims.len() > 1 && dims.last() == Some(&1) {
        dims.pop();
    }
    dims.push(width);
    Tensor::new(dims, values).map_err(|_| Error::config("to_categorical", "too many labels"))
}

/// Converts labels of any type to one-hot rows and back, like scikit-learn's `LabelBinarizer`. As there,
/// two classes make one column of 0 and 1.
///
/// ```
/// use phalanx::data::LabelBinarizer;
///
/// let lb = LabelBinarizer::fit(["ship", "cat", "dog", "cat"]);
/// assert_eq!(lb.classes(), ["cat", "dog", "ship"]);
/// let y = lb.transform(["dog", "cat"])?;
/// assert_eq!(y.f32().unwrap(), [0., 1., 0., 1., 0., 0.]);
/// assert_eq!(lb.inverse_transform(&y)?, ["dog", "cat"]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelBinarizer<T> {
    classes: Vec<T>,
}

impl<T: Ord + Clone + std::fmt::Debug> LabelBinarizer<T> {
    /// Collects the distinct classes.
    pub fn fit(labels: impl IntoIterator<Item = T>) -> LabelBinarizer<T> {
        let mut classes: Vec<T> = labels.into_iter().collect();
        classes.sort();
        classes.dedup();
        LabelBinarizer { classes }
    }

    /// The classes, in the order of the columns.
    pub fn classes(&self) -> &[T] {
        &self.classes
    }

    /// The column index of each label.
    pub fn indices(&self, labels: impl IntoIterator<Item = T>) -> Result<Vec<usize>> {
        let find = |label: T| {
            self.classes.binary_search(&label).map_err(|_| {
                let expected = format!("one of the {} classes fitted", self.classes.len());
                Error::argument("LabelBinarizer", "labels", expected, format!("{label:?}"))
            })
        };
        labels.into_iter().map(find).collect()
    }

    /// One row per label.
    pub fn transform(&self, labels: impl IntoIterator<Item = T>) -> Result<Tensor> {
        let indices = self.indices(labels)?;
        if self.classes.len() == 2 {
            let values: Vec<f32> = indices.iter().map(|i| *i as f32).collect();
            return Tensor::new([values.len(), 1], values)
                .map_err(|_| Error::config("LabelBinarizer", "too many labels"));
        }
        one_hot(&[indices.len()], &indices, self.classes.len())
    }

    /// The class of the largest element of each row; with two classes, whether the value exceeds 0.5.
    pub fn inverse_transform(&self, y: &Tensor) -> Result<Vec<T>> {
        let width = if self.classes.len() == 2 { 1 } else { self.classes.len() };
        let Some(values) = y.f32().filter(|_| width > 0 && y.row_len() == width) else {
            let (expected, received) = (format!("floats [n, {width}]"), format!("{:?}", y.dims()));
            return Err(Error::argument("LabelBinarizer", "y", expected, received));
        };
        let class = |row: &[f32]| match row {
            [one] => usize::from(*one > 0.5 && self.classes.len() == 2),
            _ => (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap_or(0),
        };
        Ok(values.chunks_exact(width).map(|row| self.classes[class(row)].clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_must_be_numbers_in_range() {
        let y = |v: Vec<i32>| Tensor::new([v.len(), 1], v).unwrap();
        assert_eq!(to_categorical(&y(vec![1, 0]), Some(3)).unwrap().dims(), [2, 3]);
        let message = to_categorical(&y(vec![1, -1]), None).unwrap_err().to_string();
        assert!(message.contains("received -1 at index 1"), "{message}");
        let message = to_categorical(&y(vec![3]), Some(3)).unwrap_err().to_string();
        assert!(message.contains("below 3, received 3 at index 0"), "{message}");
        assert!(to_categorical(&y(vec![i32::MAX]), None).is_err());
        assert!(to_categorical(&Tensor::new([1], vec![f32::NAN]).unwrap(), None).is_err());
    }

    #[test]
    fn two_classes_make_one_column() {
        let lb = LabelBinarizer::fit([5, 3, 5]);
        let y = lb.transform([5, 3]).unwrap();
        assert_eq!((y.dims(), y.f32().unwrap()), (&[2, 1][..], &[1.0, 0.0][..]));
        assert_eq!(lb.inverse_transform(&y).unwrap(), [5, 3]);
        assert!(lb.transform([4]).unwrap_err().to_string().contains("received 4"));
    }
}
