//! Rows of samples in their compact original form.

use super::{Arrays, External, Text};
use crate::error::{Error, Result};
use crate::model::{IntoDataset, Source};
use phalanx_graph::{DType, Data, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Images stored as bytes; a pixel has the value `byte / divisor`.
///
/// This takes a quarter of the memory of floats: the training images of CIFAR-10 take 154 MB instead of
/// 614 MB.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    dims: Vec<usize>,
    bytes: Arc<Vec<u8>>,
    divisor: f32,
    /// Subtracted from every sample, element by element.
    offset: Option<Arc<Vec<f32>>>,
}

impl Pixels {
    /// Creates images from bytes; `dims` has the batch dimension first. A divisor of 255 gives values in
    /// `[0, 1]`, a divisor of 1 the byte values.
    ///
    /// # Errors
    /// Returns `None` if the number of bytes is not the product of the dimensions.
    pub fn new(dims: impl Into<Vec<usize>>, bytes: Vec<u8>, divisor: f32) -> Option<Pixels> {
        let dims = dims.into();
        let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        (len == bytes.len() && !dims.is_empty()).then(|| {
            let bytes = Arc::new(bytes);
            Pixels { dims, bytes, divisor, offset: None }
        })
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, and the offset subtracted from every sample, if any.
    pub(super) fn shared(&self) -> (&Arc<Vec<u8>>, Option<&Arc<Vec<f32>>>) {
        (&self.bytes, self.offset.as_ref())
    }

    /// The divisor of every byte.
    pub(super) fn divisor(&self) -> f32 {
        self.divisor
    }

    /// Replaces the divisor.
    pub fn divided_by(mut self, divisor: f32) -> Pixels {
        self.divisor = divisor;
        self
    }

    /// Converts consecutive samples, starting at sample `first`, until `to` is full.
    pub(super) fn convert(&self, first: usize, to: &mut [f32]) {
        let width: usize = self.dims.iter().skip(1).product();
        for (to, byte) in to.iter_mut().zip(&self.bytes[first * width..]) {
            *to = f32::from(*byte) / self.divisor;
        }
        if let Some(offset) = &self.offset {
            for sample in to.chunks_exact_mut(offset.len().max(1)) {
                sample.iter_mut().zip(&**offset).for_each(|(to, offset)| *to -= offset);
            }
        }
    }
}

/// Rows of samples: a tensor, bytes that are converted to floats when a batch is made, or strings. Clones
/// share the data.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    /// Floats or integers.
    Tensor(Arc<Tensor>),
    /// Images stored as bytes.
    Pixels(Pixels),
    /// Strings, for models with inputs of strings. As numbers, they are the numbers of the strings.
    Text(Text),
    /// Memory that another library owns.
    External(External),
}

impl From<Tensor> for Samples {
    fn from(tensor: Tensor) -> Samples {
        Samples::Tensor(Arc::new(tensor))
    }
}

impl From<&Tensor> for Samples {
    fn from(tensor: &Tensor) -> Samples {
        tensor.clone().into()
    }
}

impl From<Arc<Tensor>> for Samples {
    fn from(tensor: Arc<Tensor>) -> Samples {
        Samples::Tensor(tensor)
    }
}

impl From<&Samples> for Samples {
    fn from(samples: &Samples) -> Samples {
        samples.clone()
    }
}

impl From<Pixels> for Samples {
    fn from(pixels: Pixels) -> Samples {
        Samples::Pixels(pixels)
    }
}

impl From<Text> for Samples {
    fn from(text: Text) -> Samples {
        Samples::Text(text)
    }
}

impl From<&Text> for Samples {
    fn from(text: &Text) -> Samples {
        Samples::Text(text.clone())
    }
}

impl Samples {
    /// Dimensions, batch dimension first.
    pub fn dims(&self) -> &[usize] {
        match self {
            Samples::Tensor(tensor) => tensor.dims(),
            Samples::Pixels(pixels) => &pixels.dims,
            Samples::Text(text) => text.dims(),
            Samples::External(external) => external.dims(),
        }
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.dims().first().copied().unwrap_or(1)
    }

    /// Number of elements per sample.
    pub fn row_len(&self) -> usize {
        self.dims().iter().skip(1).product()
    }

    /// Type of the elements in a batch.
    pub fn dtype(&self) -> DType {
        match self {
            Samples::Tensor(tensor) => tensor.dtype(),
            Samples::Pixels(_) => DType::F32,
            Samples::Text(_) => DType::I32,
            Samples::External(external) => external.dtype(),
        }
    }

    /// The strings, if the samples are strings.
    pub fn text(&self) -> Option<&Text> {
        match self {
            Samples::Text(text) => Some(text),
            Samples::Tensor(_) | Samples::Pixels(_) | Samples::External(_) => None,
        }
    }

    /// Changes the dimensions. Returns `None` if the number of elements differs.
    pub fn reshape(self, dims: impl Into<Vec<usize>>) -> Option<Samples> {
        match self {
            Samples::Tensor(tensor) => {
                let tensor = Arc::unwrap_or_clone(tensor).reshape(dims).ok()?;
                Some(tensor.into())
            }
            Samples::Pixels(pixels) => {
                let dims = dims.into();
                let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
                let same_rows = dims.first() == pixels.dims.first() || pixels.offset.is_none();
                let fits = len == pixels.bytes.len() && !dims.is_empty() && same_rows;
                fits.then_some(Samples::Pixels(Pixels { dims, ..pixels }))
            }
            Samples::Text(text) => text.reshape(dims).map(Samples::Text),
            external @ Samples::External(_) => external.copied().reshape(dims),
        }
    }

    /// All samples as one tensor. Shares the tensor if there is one, and converts bytes to floats.
    pub fn to_tensor(&self) -> Arc<Tensor> {
        match self {
            Samples::Tensor(tensor) => tensor.clone(),
            Samples::Pixels(pixels) => {
                let mut tensor = Tensor::zeros(pixels.dims.clone());
                if let Some(values) = tensor.f32_mut() {
                    pixels.convert(0, values);
                }
                Arc::new(tensor)
            }
            Samples::Text(text) => text.numbers().clone(),
            Samples::External(external) => Arc::new(external.copy_rows(0, self.rows())),
        }
    }

    /// The same samples; external memory is copied.
    fn copied(self) -> Samples {
        match self {
            Samples::External(_) => self.to_tensor().into(),
            other => other,
        }
    }

    /// Copies a range of samples. Returns `None` if it is out of bounds.
    pub fn slice_rows(&self, range: Range<usize>) -> Option<Samples> {
        if range.start > range.end || range.end > self.rows() || self.dims().is_empty() {
            return None;
        }
        Some(match self {
            Samples::Tensor(tensor) => tensor.slice_rows(range).into(),
            Samples::Text(text) => text.slice_rows(range).into(),
            Samples::External(external) => external.copy_rows(range.start, range.len()).into(),
            Samples::Pixels(pixels) => {
                let width = self.row_len();
                let mut part = pixels.clone();
                part.dims[0] = range.len();
                let bytes = &pixels.bytes[range.start * width..range.end * width];
                part.bytes = Arc::new(bytes.to_vec());
                part.into()
            }
        })
    }

    /// Copies the given samples in the given order. Returns `None` if an index is out of bounds.
    pub fn select_rows(&self, rows: &[usize]) -> Option<Samples> {
        if self.dims().is_empty() || rows.iter().any(|row| *row >= self.rows()) {
            return None;
        }
        Some(match self {
            Samples::Tensor(tensor) => tensor.select_rows(rows).into(),
            Samples::Text(text) => text.select_rows(rows).into(),
            Samples::External(_) => self.to_tensor().select_rows(rows).into(),
            Samples::Pixels(pixels) => {
                let width = self.row_len();
                let mut part = pixels.clone();
                part.dims[0] = rows.len();
                let bytes = rows.iter().flat_map(|r| &pixels.bytes[r * width..(r + 1) * width]);
                part.bytes = Arc::new(bytes.copied().collect());
                part.into()
            }
        })
    }

    /// Divides every element by `divisor`, then adds `offset`. Integers become floats; strings stay unchanged.
    pub fn rescale(self, divisor: f32, offset: f32) -> Samples {
        match self {
            Samples::Pixels(pixels) => {
                let pixels = Pixels { divisor, offset: None, ..pixels };
                if offset == 0.0 {
                    return pixels.into();
                }
                let width = pixels.dims.iter().skip(1).product();
                Pixels { offset: Some(Arc::new(vec![-offset; width])), ..pixels }.into()
            }
            Samples::Tensor(tensor) => {
                let value = |x: f32| x / divisor + offset;
                let values: Vec<f32> = match tensor.data() {
                    Data::F32(v) => v.iter().map(|x| value(*x)).collect(),
                    Data::I32(v) => v.iter().map(|x| value(*x as f32)).collect(),
                };
                Tensor::new(tensor.dims(), values).expect("as many elements").into()
            }
            text @ Samples::Text(_) => text,
            external @ Samples::External(_) => external.copied().rescale(divisor, offset),
        }
    }

    /// Images as byte values 0 to 255, as `load_data` of Keras returns them. Other samples stay
    /// unchanged.
    pub fn raw(self) -> Samples {
        match self {
            Samples::Pixels(pixels) => Pixels { divisor: 1.0, offset: None, ..pixels }.into(),
            other => other,
        }
    }

    /// The mean over all samples, in the shape of one sample: `np.mean(x, axis=0)`.
    pub fn mean(&self) -> Tensor {
        let width = self.row_len();
        let (mut sums, mut row) = (vec![0f64; width], vec![0f32; width]);
        for i in 0..self.rows() {
            self.read_row(i, &mut row);
            sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let n = self.rows().max(1) as f64;
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / n) as f32).collect();
        let dims = self.dims().get(1..).unwrap_or_default();
        Tensor::new(dims, mean).expect("one element per element of a sample")
    }

    /// Subtracts an array in the shape of one sample, such as the mean of the training samples.
    pub fn subtract(self, mean: &Tensor) -> Result<Samples> {
        let wrong = |received: String| {
            let shape = self.dims().get(1..).unwrap_or_default();
            Error::argument("subtract", "mean", format!("floats {shape:?}"), received)
        };
        let Some(offset) = mean.f32().filter(|o| o.len() == self.row_len()) else {
            return Err(wrong(format!("{} {:?}", mean.dtype(), mean.dims())));
        };
        match self {
            Samples::Pixels(mut pixels) => {
                let mut total = offset.to_vec();
                if let Some(before) = &pixels.offset {
                    total.iter_mut().zip(before.iter()).for_each(|(o, b)| *o += b);
                }
                pixels.offset = Some(Arc::new(total));
                Ok(pixels.into())
            }
            Samples::Tensor(ref tensor) if tensor.f32().is_none() => {
                Err(wrong("samples of integers".into()))
            }
            Samples::Text(_) => Err(wrong("samples of strings".into())),
            external @ Samples::External(_) => external.copied().subtract(mean),
            Samples::Tensor(tensor) => {
                let mut tensor = Arc::unwrap_or_clone(tensor);
                let width = offset.len().max(1);
                for row in tensor.f32_mut().unwrap_or_default().chunks_exact_mut(width) {
                    row.iter_mut().zip(offset).for_each(|(x, o)| *x -= o);
                }
                Ok(tensor.into())
            }
        }
    }

    /// Writes the elements of a sample to `to` as floats.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn read_row(&self, row: usize, to: &mut [f32]) {
        let (width, start) = (self.row_len(), row * self.row_len());
        let mut copy = |tensor: &Tensor| match tensor.data() {
            Data::F32(from) => to[..width].copy_from_slice(&from[start..start + width]),
            Data::I32(from) => {
                for (to, from) in to[..width].iter_mut().zip(&from[start..]) {
                    *to = *from as f32;
                }
            }
        };
        match self {
            Samples::Tensor(tensor) => copy(tensor),
            Samples::Text(text) => copy(text.numbers()),
            Samples::Pixels(pixels) => pixels.convert(row, &mut to[..width]),
            Samples::External(external) => external.read_f32(start, &mut to[..width]),
        }
    }
}

impl IntoDataset for (Samples, Tensor) {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self.0, self.1)?))
    }
}

impl IntoDataset for (&Samples, &Tensor) {
    fn into_source(self) -> Result<Source> {
        (self.0.clone(), self.1.clone()).into_source()
    }
}

impl IntoDataset for &(Samples, Tensor) {
    fn into_source(self) -> Result<Source> {
        self.clone().into_source()
    }
}

impl IntoDataset for (Text, Tensor) {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self.0, self.1)?))
    }
}

impl IntoDataset for (&Text, &Tensor) {
    fn into_source(self) -> Result<Source> {
        (self.0.clone(), self.1.clone()).into_source()
    }
}

impl IntoDataset for Text {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self, ())?))
    }
}

impl IntoDataset for &Text {
    fn into_source(self) -> Result<Source> {
        self.clone().into_source()
    }
}

impl IntoDataset for Samples {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Arrays(Arrays::new(self, ())?))
    }
}

impl IntoDataset for &Samples {
    fn into_source(self) -> Result<Source> {
        self.clone().into_source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_as_floats() {
        let pixels = Pixels::new([2, 3], vec![0, 51, 255, 102, 1, 2], 255.0).unwrap();
        let samples = Samples::from(pixels.clone());
        let tensor = samples.to_tensor();
        assert_eq!(&tensor.f32().unwrap()[..4], [0.0, 0.2, 1.0, 0.4]);
        let mut row = [0.0; 3];
        samples.read_row(1, &mut row);
        assert_eq!(row, [0.4, 1.0 / 255.0, 2.0 / 255.0]);
        samples.clone().raw().read_row(0, &mut row);
        assert_eq!(row, [0.0, 51.0, 255.0]);
        samples.slice_rows(1..2).unwrap().raw().read_row(0, &mut row);
        assert_eq!(row, [102.0, 1.0, 2.0]);
        assert!(samples.slice_rows(1..3).is_none());
        assert_eq!(samples.clone().reshape([2, 1, 3]).unwrap().dims(), [2, 1, 3]);
        assert!(samples.reshape([5]).is_none());
        assert!(Pixels::new([2, 3], vec![0; 5], 1.0).is_none());
        assert!(Pixels::new([usize::MAX, 3], vec![0; 5], 1.0).is_none());
    }

    #[test]
    fn rows_are_selected_and_rescaled_as_bytes_and_as_numbers() {
        let bytes = Samples::from(Pixels::new([3, 2], vec![0, 51, 255, 102, 4, 6], 255.0).unwrap());
        let ints = Samples::from(Tensor::new([3, 2], vec![0, 51, 255, 102, 4, 6]).unwrap());
        for samples in [bytes, ints] {
            let picked = samples.select_rows(&[2, 0]).unwrap();
            assert_eq!(picked.dtype(), samples.dtype());
            let scaled = picked.rescale(2.0, -1.0).to_tensor();
            assert_eq!(scaled.f32().unwrap(), [1.0, 2.0, -1.0, 24.5]);
            assert!(samples.select_rows(&[3]).is_none());
        }
    }

    #[test]
    fn the_mean_of_the_samples_is_taken_from_each() {
        let bytes = Samples::from(Pixels::new([2, 2], vec![1, 2, 3, 6], 1.0).unwrap());
        let floats = Samples::from(Arc::unwrap_or_clone(bytes.to_tensor()));
        for samples in [bytes, floats] {
            let mean = samples.mean();
            assert_eq!((mean.dims(), mean.f32().unwrap()), (&[2][..], &[2.0, 4.0][..]));
            let centred = samples.subtract(&mean).unwrap();
            assert_eq!(centred.to_tensor().f32().unwrap(), [-1.0, -2.0, 1.0, 2.0]);
            let mut row = [0.0; 2];
            centred.read_row(1, &mut row);
            assert_eq!(row, [1.0, 2.0]);
            assert!(centred.subtract(&Tensor::zeros([3])).is_err());
        }
    }
}
