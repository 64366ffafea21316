//! Arguments that select, read, split and scale data.

use crate::network::DataParser;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Help text of `--data`.
pub const DATA_HELP: &str = "glyphs (generated), mnist, fashion-mnist, cifar-10, cifar-100, a directory with \
                             one sub-directory of images per class, an .npz (x, y; or x_train, y_train; optionally \
                             x_val, y_val, x_test, y_test and sample_weight; x_NAME, y_NAME for several inputs or \
                             outputs) or a .csv (a header row, the label in the last column; text if the \
                             model takes strings, columns named after its inputs if it has several)";

/// `phalanx data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// List the datasets and where their files are
    List,
    /// Download the files of a dataset unless they are already present
    Fetch {
        /// mnist, fashion-mnist, cifar-10, cifar-100
        #[arg(value_parser = DataParser, hide_possible_values = true)]
        name: String,
    },
    /// Describe a dataset or your own files: samples, shape, classes
    Info {
        #[arg(help = DATA_HELP, value_parser = DataParser, hide_possible_values = true)]
        data: String,
    },
}

/// Height and width of images, as in `64` or `48x64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (height, width) = text.split_once('x').unwrap_or((text, text));
        let side = |text: &str| text.parse().ok().filter(|n| (1..=4096).contains(n));
        match (side(height), side(width)) {
            (Some(height), Some(width)) => Ok(Size { height, width }),
            _ => Err("expected sides of 1 to 4096, as in 64 or 48x64".into()),
        }
    }
}

/// The shape of a sample, as in `128x3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape(Vec<usize>);

impl std::str::FromStr for InputShape {
    type Err = String;

    fn from_str(text: &str) -> Result<InputShape, String> {
        let size = |text: &str| text.parse().ok().filter(|n| *n > 0);
        let sizes: Option<Vec<usize>> = text.split('x').map(size).collect();
        sizes.map(InputShape).ok_or_else(|| "expected sizes above 0, as in 128x3".into())
    }
}

/// Sizes that a model file leaves open.
#[derive(Clone, Debug, ClapArgs)]
pub struct ShapeArgs {
    /// Shape of a sample, as in 128x3, if the model file leaves sizes open; once for each input (default: as recorded in the file)
    #[arg(long, value_name = "SIZES")]
    input_shape: Vec<InputShape>,
}

impl ShapeArgs {
    /// The dimensions of a sample of each input, if given.
    pub fn dims(&self) -> Vec<Vec<usize>> {
        self.input_shape.iter().map(|shape| shape.0.clone()).collect()
    }
}

/// A factor and an offset for inputs, as in `1/255` or `1/127.5,-1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rescale {
    /// The divisor of the inputs.
    pub divisor: f32,
    /// Added after the division.
    #[serde(default)]
    pub offset: f32,
}

impl std::str::FromStr for Rescale {
    type Err = String;

    fn from_str(text: &str) -> Result<Rescale, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|v| v.is_finite());
        let (scale, offset) = text.split_once(',').unwrap_or((text, "0"));
        let (numerator, denominator) = scale.split_once('/').unwrap_or((scale, "1"));
        let divisor = number(numerator).zip(number(denominator)).map(|(n, d)| d / n);
        let divisor = divisor.map(|d| d as f32).filter(|d| d.is_finite() && *d != 0.0);
        match divisor.zip(number(offset)) {
            Some((divisor, offset)) => Ok(Rescale { divisor, offset: offset as f32 }),
            None => {
                Err("expected a factor and, if any, an offset, as in 1/255 or 1/127.5,-1".into())
            }
        }
    }
}

/// How text columns of a table are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CategoriesArg {
    /// A column of 0 and 1 for each distinct value
    OneHot,
    /// The index of the value in alphabetical order
    Index,
}

/// How missing values of a table are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MissingArg {
    /// The mean of the column; in text columns a category of their own
    Mean,
    /// Zero; in text columns a category of their own
    Zero,
    /// Drop the row
    Drop,
}

/// How data are read, split and scaled.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct DataArgs {
    /// Hold out this fraction of the rows for testing: the last rows, or the last of each class in a directory
    #[arg(long, value_name = "SHARE")]
    pub test_split: Option<f64>,
    /// Multiply all inputs by a factor and add an offset, as in --rescale=1/127.5,-1; without a value, 1/255. It is saved with the model
    #[arg(long, value_name = "FACTOR[,OFFSET]", num_args = 0..=1, require_equals = true, default_missing_value = "1/255")]
    pub rescale: Option<Rescale>,
    /// Columns of a .csv to predict, by name or by index from 0 (default: the last)
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub label: Vec<String>,
    /// The column of a .csv that holds the sample weights
    #[arg(long, value_name = "COLUMN")]
    pub sample_weight: Option<String>,
    /// How to encode text in the input columns of a .csv
    #[arg(long, value_enum)]
    pub categories: Option<CategoriesArg>,
    /// How to replace missing values in a .csv
    #[arg(long, value_enum)]
    pub missing: Option<MissingArg>,
    /// The .csv has no header row
    #[arg(long)]
    pub no_header: bool,
    /// Replace the loss of a model file: mse, mae, binary_crossentropy and so on
    #[arg(long)]
    pub loss: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_may_be_fractions() {
        let rescale = |text: &str| text.parse::<Rescale>().ok().map(|r| (r.divisor, r.offset));
        assert_eq!(rescale("1/255"), Some((255.0, 0.0)));
        assert_eq!(rescale("1/127.5,-1"), Some((127.5, -1.0)));
        assert_eq!(rescale("2"), Some((0.5, 0.0)));
        for bad in ["", "0", "1/0", "nan", "1/255,inf", "a", "1//2", "1e-60"] {
            assert_eq!(rescale(bad), None, "{bad}");
        }
    }
}
