//! The encoding of a table's columns as numbers, serializable so that a model file can store it.

use super::{MAX_NAMES_SHOWN, cell, shown};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Cells that count as missing, case-insensitively.
const MISSING: [&str; 6] = ["", "na", "n/a", "nan", "null", "none"];

/// How to encode a categorical column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Categories {
    /// One column of 0 and 1 per category.
    OneHot,
    /// The index of the category in alphabetical order, as for an `Embedding`.
    Index,
}

/// How to handle a missing value: an empty cell, `NA`, `NaN`, `null` or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// Replace it by the mean of its column; in a categorical column, by a separate category.
    Mean,
    /// Replace it by zero; in a categorical column, by a separate category.
    Zero,
    /// Drop its row.
    Drop,
}

/// The role of a column, with the name of the model's input or output, if any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    Input(String),
    Target(String),
    Weight,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Input(name) if name.is_empty() => write!(f, "the input"),
            Role::Input(name) => write!(f, "the input '{}'", cell(name)),
            Role::Target(name) if name.is_empty() => write!(f, "the label"),
            Role::Target(name) => write!(f, "the output '{}'", cell(name)),
            Role::Weight => write!(f, "the sample weight"),
        }
    }
}

/// How to encode the cells of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// A number, with the replacement for missing values.
    Number(Option<f32>),
    /// A one-hot vector over these categories.
    OneHot(Vec<String>),
    /// The index of one of these categories.
    Index(Vec<String>),
    /// The string itself, for an input of strings.
    Text,
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Column {
    pub name: String,
    pub role: Role,
    pub kind: Kind,
}

/// The encoding of a table: its categories and the replacements for missing values. A model file stores
/// it, so that other tables are encoded in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableEncoding {
    pub(super) columns: Vec<Column>,
    /// Whether to drop rows with missing values.
    pub(super) drops_rows: bool,
    /// Whether the first line holds column names.
    pub(super) header: bool,
}

/// Parses a finite number.
pub(super) fn parse_number(text: &str) -> Option<f32> {
    text.parse::<f32>().ok().filter(|v| v.is_finite())
}

/// Whether a cell is missing.
pub(super) fn is_missing(text: &str) -> bool {
    text.len() <= 4 && MISSING.iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

impl Column {
    /// Number of values per cell.
    pub fn width(&self) -> usize {
        match &self.kind {
            Kind::OneHot(words) => words.len(),
            Kind::Number(_) | Kind::Index(_) | Kind::Text => 1,
        }
    }

    /// Whether a cell is missing in this column.
    pub fn is_missing(&self, text: &str) -> bool {
        let known = match &self.kind {
            Kind::Number(_) => false,
            // An empty string is one.
            Kind::Text => true,
            Kind::OneHot(words) | Kind::Index(words) => find(words, text).is_some(),
        };
        is_missing(text) && !known
    }

    /// Appends the values of a cell. The error tells what was expected.
    pub fn push(&self, text: &str, values: &mut Vec<f32>) -> std::result::Result<(), String> {
        let known = |words: &[String]| {
            // If missing cells are a category, its name is the empty word.
            let word = if is_missing(text) && find(words, text).is_none() { "" } else { text };
            find(words, word).ok_or_else(|| match words.len() > MAX_NAMES_SHOWN {
                true => format!("one of the {} words known for this column", words.len()),
                false => format!("one of the words {}", shown(words)),
            })
        };
        match &self.kind {
            Kind::Number(fill) => match (parse_number(text), fill) {
                (Some(value), _) => values.push(value),
                (None, Some(fill)) if is_missing(text) => values.push(*fill),
                (None, _) if is_missing(text) => {
                    return Err(
                        "a value in each cell (or a choice of what becomes of missing ones: \
                                --missing mean, zero or drop)"
                            .into(),
                    );
                }
                (None, _) => return Err("finite numbers".into()),
            },
            Kind::Index(words) => values.push(known(words)? as f32),
            // Strings are kept apart.
            Kind::Text => {}
            Kind::OneHot(words) => {
                let at = known(words)?;
                values.extend((0..words.len()).map(|i| f32::from(u8::from(i == at))));
            }
        }
        Ok(())
    }
}

/// The index of a word in a sorted list.
fn find(words: &[String], word: &str) -> Option<usize> {
    words.binary_search_by(|known| known.as_str().cmp(word)).ok()
}

impl TableEncoding {
    /// Reorders the label columns. Other columns keep their order.
    pub(super) fn with_labels_in(mut self, order: &[String]) -> TableEncoding {
        let rank = |column: &Column| match column.role {
            Role::Target(_) => order.iter().position(|name| *name == column.name).unwrap_or(0),
            Role::Input(_) | Role::Weight => 0,
        };
        self.columns.sort_by_key(rank);
        self
    }

    /// The encoding without targets and weights.
    pub(super) fn inputs_only(&self) -> TableEncoding {
        let inputs = self.columns.iter().filter(|c| matches!(c.role, Role::Input(_)));
        TableEncoding { columns: inputs.cloned().collect(), drops_rows: false, header: self.header }
    }

    /// The positions of the columns in a table with these names.
    pub(super) fn positions(&self, path: &Path, names: &[String]) -> Result<Vec<usize>> {
        let find = |column: &Column| {
            names.iter().position(|name| *name == column.name).ok_or_else(|| {
                let expected = format!("a column '{}' for {}", cell(&column.name), column.role);
                Error::file(path, expected, shown(names))
            })
        };
        self.columns.iter().map(find).collect()
    }
}
