//! Conversion of targets to the form that a loss takes. Targets are converted only without loss, and the header reports it.

use crate::data::MAX_CLASSES;
use anyhow::{Result, bail};
use phalanx::Data;
use phalanx::data::to_categorical;
use phalanx::prelude::*;

/// Losses that compare class probabilities.
const CATEGORICAL: [&str; 2] = ["CategoricalCrossentropy", "KLDivergence"];
const SPARSE: &str = "SparseCategoricalCrossentropy";
const BINARY: &str = "BinaryCrossentropy";
/// In place of the class of a loss, for an output without one.
pub const NO_LOSS: &str = "no loss";

/// An output of a model, and the class of its loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The name of the output layer.
    pub name: String,
    /// Dimensions of a sample.
    pub dims: Vec<usize>,
    /// Keras' class name of its loss, or [`NO_LOSS`].
    pub loss: &'static str,
}

/// Converted targets, and a description of the conversion.
pub struct Targets {
    /// One row per sample.
    pub values: Tensor,
    /// The description, for the header.
    pub form: String,
}

impl Output {
    /// Converts targets to the form this output's loss takes. `classes` is the number of classes of the data, if defined.
    ///
    /// # Errors
    /// If the targets cannot be converted without loss.
    pub fn targets(&self, y: &Tensor, classes: Option<usize>) -> Result<Targets> {
        let unchanged = || Targets { values: y.clone(), form: form(y, classes) };
        let row = y.dims().get(1..).unwrap_or_default();
        let last = self.dims.last().copied().unwrap_or(1);
        self.check_classes(classes)?;
        if self.loss == NO_LOSS {
            // Its metrics decide.
            return Ok(unchanged());
        }
        if self.loss == SPARSE {
            let lead = &self.dims[..self.dims.len().saturating_sub(1)];
            if !same_shape(row, lead) {
                bail!(
                    "{}: expected class numbers as {SPARSE} takes them, received rows of {row:?} (those are for \
                     categorical_crossentropy)",
                    self.label()
                );
            }
            return Ok(unchanged());
        }
        if same_shape(row, &self.dims) {
            return Ok(unchanged());
        }
        let has_indices = same_shape(row, &self.dims[..self.dims.len().saturating_sub(1)]);
        let integral = match y.data() {
            Data::I32(_) => true,
            Data::F32(v) => v.iter().all(|v| v.fract() == 0.0),
        };
        let converts = CATEGORICAL.contains(&self.loss) || classes.is_some();
        if has_indices && integral && last > 1 && converts && self.dims.len() == 1 {
            let values = to_categorical(y, Some(last))?;
            return Ok(Targets {
                values,
                form: format!("class numbers as one-hot rows of {last}"),
            });
        }
        bail!(
            "{}: expected targets of {:?}, as {} compares, received {row:?}",
            self.label(),
            self.dims,
            self.loss
        )
    }

    /// Rejects data with more classes than the output has.
    fn check_classes(&self, classes: Option<usize>) -> Result<()> {
        let max = match (self.loss, &self.dims[..]) {
            (SPARSE, _) => self.dims.last().copied(),
            (BINARY, [1]) => Some(2),
            (_, [n]) if *n > 1 => Some(*n),
            _ => None,
        };
        match (classes, max) {
            (Some(received), Some(max)) if received > max => {
                bail!("{}: expected at most {max} classes, received {received}", self.label())
            }
            _ => Ok(()),
        }
    }

    /// Rejects text targets, which are classes, for a regression loss.
    pub fn check_words(&self) -> Result<()> {
        match self.loss {
            "MeanSquaredError" | "MeanAbsoluteError" | "Huber" => bail!(
                "{}: expected numbers, as {} compares, received a text column",
                self.label(),
                self.loss
            ),
            _ => Ok(()),
        }
    }

    /// Checks that the targets of [`BINARY`] are from 0 to 1: fails if the loss was inferred, otherwise warns.
    pub fn check_binary(&self, y: &Tensor, inferred: bool) -> Result<()> {
        let outside = match y.data() {
            Data::I32(v) => v.iter().find(|v| !(0..=1).contains(*v)).map(|v| *v as f32),
            Data::F32(v) => v.iter().find(|v| !(0.0..=1.0).contains(*v)).copied(),
        };
        match outside.filter(|_| self.loss == BINARY) {
            Some(value) if inferred => bail!(
                "{}: the file has no loss, and {BINARY} takes targets from 0 to 1, received {value}; add --loss",
                self.label()
            ),
            Some(value) => {
                tracing::warn!(
                    "{}: {BINARY} takes targets from 0 to 1, received {value}",
                    self.label()
                );
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn label(&self) -> String {
        format!("output '{}'", self.name)
    }
}

/// Describes targets that are not converted.
fn form(y: &Tensor, classes: Option<usize>) -> String {
    let row = y.dims().get(1..).unwrap_or_default();
    match (y.data(), classes, y.row_len()) {
        (Data::I32(_), Some(_), 1) => "class numbers".into(),
        (Data::I32(_), None, 1) => "whole numbers as they are".into(),
        (_, _, 1) => "numbers as they are".into(),
        _ => format!("{row:?} as they are"),
    }
}

/// Whether dimensions agree, ignoring axes of size one.
pub fn same_shape(a: &[usize], b: &[usize]) -> bool {
    let sizes = |dims: &[usize]| dims.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
    sizes(a) == sizes(b)
}

/// Class indices `[n]` from indices, from a column of them, or from one-hot rows.
///
/// # Errors
/// On anything else: soft labels, several labels, fractions.
pub fn class_numbers(y: &Tensor) -> Result<Targets> {
    let (rows, width) = (y.rows(), y.row_len());
    let expected = "expected class numbers or one-hot rows, since the network is a classifier";
    let floats: Vec<f32> = match y.data() {
        Data::I32(v) => v.iter().map(|v| *v as f32).collect(),
        Data::F32(v) => v.clone(),
    };
    if width != 1 {
        if width > MAX_CLASSES {
            bail!("expected at most {MAX_CLASSES} classes, received one-hot rows of {width}");
        }
        if y.dims().len() != 2 {
            bail!("{expected}, received targets of {:?}", &y.dims()[1..]);
        }
        let mut numbers = Vec::with_capacity(rows);
        for (i, row) in floats.chunks_exact(width).enumerate() {
            let one = row.iter().position(|v| *v == 1.0);
            let Some(one) = one.filter(|_| row.iter().filter(|v| **v != 0.0).count() == 1) else {
                bail!(
                    "{expected}, received rows of {width} numbers of which row {i} is not one-hot (a model file with \
                     a loss of its own takes them as they are)"
                );
            };
            numbers.push(one as i32);
        }
        let form = format!("one-hot rows of {width} as class numbers");
        return Ok(Targets { values: Tensor::new([rows], numbers)?, form });
    }
    if let Some(other) = floats.iter().find(|v| v.fract() != 0.0 || v.abs() > 1e9) {
        bail!("{expected}, received {other}");
    }
    let out_of_range = |class: &&f32| **class < 0.0 || **class >= MAX_CLASSES as f32;
    if let Some(class) = floats.iter().find(out_of_range) {
        bail!("expected class numbers from 0 to {}, received {class}", MAX_CLASSES - 1);
    }
    let numbers: Vec<i32> = floats.iter().map(|v| *v as i32).collect();
    Ok(Targets { values: Tensor::new([rows], numbers)?, form: "class numbers".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(dims: &[usize], loss: &'static str) -> Output {
        Output { name: "out".into(), dims: dims.into(), loss }
    }

    fn floats(dims: &[usize]) -> Tensor {
        let len = dims.iter().product::<usize>();
        Tensor::new(dims, (0..len).map(|i| i as f32 / 10.0).collect::<Vec<f32>>()).unwrap()
    }

    #[test]
    fn targets_of_a_regression_are_never_made_one_hot() {
        for (dims, loss) in [
            (&[4][..], "MeanSquaredError"),
            (&[4], "BinaryCrossentropy"),
            (&[4], "CategoricalCrossentropy"),
            (&[8, 8, 3], "MeanAbsoluteError"),
            (&[1], "MeanSquaredError"),
        ] {
            let y = floats(&[&[3], dims].concat());
            let fed = output(dims, loss).targets(&y, None).unwrap();
            assert_eq!(fed.values, y, "{loss}");
        }
        let column = floats(&[3]);
        assert_eq!(output(&[1], "MeanSquaredError").targets(&column, None).unwrap().values, column);
    }

    #[test]
    fn class_numbers_become_one_hot_where_the_loss_compares_probabilities() {
        let y = Tensor::new([2], vec![2, 0]).unwrap();
        let fed = output(&[3], "CategoricalCrossentropy").targets(&y, None).unwrap();
        assert_eq!(fed.values.f32().unwrap(), [0., 0., 1., 1., 0., 0.]);
        assert_eq!(fed.form, "class numbers as one-hot rows of 3");
        // Targets of a regression are not class indices.
        let error = output(&[3], "MeanSquaredError").targets(&y, None).err().unwrap().to_string();
        assert!(
            error.contains("expected targets of [3], as MeanSquaredError compares, received []")
        );
        assert!(
            output(&[3], "MeanSquaredError").targets(&y, Some(3)).is_ok(),
            "class indices are converted"
        );
    }

    #[test]
    fn a_loss_on_class_numbers_refuses_rows_of_probabilities() {
        let sparse = output(&[3], "SparseCategoricalCrossentropy");
        let error = sparse.targets(&floats(&[2, 3]), None).err().unwrap().to_string();
        assert!(error.contains("expected class numbers as SparseCategorical"), "{error}");
        let maps = output(&[4, 4, 3], "SparseCategoricalCrossentropy");
        let y = Tensor::new([1, 4, 4], vec![2; 16]).unwrap();
        assert_eq!(maps.targets(&y, None).unwrap().values, y);
        let error = sparse.targets(&Tensor::new([1], vec![0]).unwrap(), Some(10)).err().unwrap();
        assert!(error.to_string().contains("at most 3 classes, received 10"), "{error}");
        let two = output(&[1], "BinaryCrossentropy");
        let error = two.targets(&Tensor::new([1], vec![0]).unwrap(), Some(3)).err().unwrap();
        assert!(error.to_string().contains("at most 2 classes, received 3"), "{error}");
    }

    #[test]
    fn soft_labels_and_several_labels_are_not_taken_for_classes() {
        let one_hot = Tensor::new([2, 3], vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(class_numbers(&one_hot).unwrap().values.i32().unwrap(), [1, 2]);
        let column = Tensor::new([2, 1], vec![3.0, 0.0]).unwrap();
        assert_eq!(class_numbers(&column).unwrap().values.i32().unwrap(), [3, 0]);
        for rows in [[0.2, 0.8], [1.0, 1.0], [0.0, 0.0], [0.0, 2.0]] {
            let error = class_numbers(&Tensor::new([1, 2], rows.to_vec()).unwrap()).err().unwrap();
            assert!(error.to_string().contains("row 0 is not one-hot"), "{error}");
        }
        let half = class_numbers(&Tensor::new([1], vec![0.5]).unwrap()).err().unwrap().to_string();
        assert!(half.contains("received 0.5"), "{half}");
        for bad in [-1, 1 << 20] {
            assert!(class_numbers(&Tensor::new([1], vec![bad]).unwrap()).is_err());
        }
    }
}
