//! A value over the whole batch: dimensions, the rows first if any, and elements in row-major order.

/// The elements of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Floats of any width in the graph.
    Float(Vec<f64>),
    /// Integers.
    Int(Vec<i32>),
}

/// A dense row-major array.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Dimensions, including the leading rows of a rows value.
    pub dims: Vec<usize>,
    /// Elements.
    pub data: Data,
}

impl Value {
    /// A float value.
    ///
    /// # Panics
    /// If the number of elements does not match the dimensions.
    pub fn float(dims: impl Into<Vec<usize>>, data: Vec<f64>) -> Value {
        let dims = dims.into();
        assert_eq!(dims.iter().product::<usize>(), data.len(), "elements of {dims:?}");
        Value { dims, data: Data::Float(data) }
    }

    /// An integer value.
    ///
    /// # Panics
    /// If the number of elements does not match the dimensions.
    pub fn int(dims: impl Into<Vec<usize>>, data: Vec<i32>) -> Value {
        let dims = dims.into();
        assert_eq!(dims.iter().product::<usize>(), data.len(), "elements of {dims:?}");
        Value { dims, data: Data::Int(data) }
    }

    /// A value with the same number in every element.
    pub fn fill(dims: impl Into<Vec<usize>>, number: f64) -> Value {
        let dims = dims.into();
        let len = dims.iter().product();
        Value::float(dims, vec![number; len])
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last dimension, 1 for scalars.
    pub fn last(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// The floats.
    ///
    /// # Panics
    /// If the value holds integers.
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            Data::Int(_) => panic!("floats expected, received integers"),
        }
    }

    /// The floats, mutable.
    ///
    /// # Panics
    /// If the value holds integers.
    pub fn floats_mut(&mut self) -> &mut [f64] {
        match &mut self.data {
            Data::Float(v) => v,
            Data::Int(_) => panic!("floats expected, received integers"),
        }
    }

    /// The integers.
    ///
    /// # Panics
    /// If the value holds floats.
    pub fn ints(&self) -> &[i32] {
        match &self.data {
            Data::Int(v) => v,
            Data::Float(_) => panic!("integers expected, received floats"),
        }
    }

    /// A value of other dimensions. `source` gives the position of each element in `self`, or `None` for zero.
    pub(super) fn moved(
        &self,
        dims: Vec<usize>,
        source: impl Fn(&[usize]) -> Option<Vec<usize>>,
    ) -> Value {
        let len: usize = dims.iter().product();
        let from: Vec<Option<usize>> = (0..len)
            .map(|i| source(&position(&dims, i)).map(|at| offset(&self.dims, &at)))
            .collect();
        let data = match &self.data {
            Data::Float(v) => Data::Float(take(v, &from)),
            Data::Int(v) => Data::Int(take(v, &from)),
        };
        Value { dims, data }
    }
}

fn take<T: Copy + Default>(v: &[T], from: &[Option<usize>]) -> Vec<T> {
    from.iter().map(|i| i.map_or_else(T::default, |i| v[i])).collect()
}

/// The position, axis by axis, of element `i` of a row-major array.
pub(super) fn position(dims: &[usize], i: usize) -> Vec<usize> {
    let mut rest = i;
    let mut at = vec![0; dims.len()];
    for (a, d) in at.iter_mut().zip(dims).rev() {
        *a = rest % d;
        rest /= d;
    }
    at
}

/// The element of a row-major array at a position.
pub(super) fn offset(dims: &[usize], at: &[usize]) -> usize {
    dims.iter().zip(at).fold(0, |i, (d, a)| i * d + a)
}
