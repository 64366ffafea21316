//! How the columns of a table become numbers, as data that a model's file can keep.

use super::{MAX_NAMES_SHOWN, cell, shown};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Cells that count as missing, whatever their case.
const MISSING: [&str; 6] = ["", "na", "n/a", "nan", "null", "none"];

/// How a column of words becomes numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Categories {
    /// A column of 0 and 1 for each word.
    OneHot,
    /// The word's number in alphabetical order, as for an `Embedding`.
    Index,
}

/// What becomes of a missing value: an empty cell, `NA`, `NaN`, `null` or `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The mean of its column; in a column of words, a category of its own.
    Mean,
    /// Zero; in a column of words, a category of its own.
    Zero,
    /// Its row is left out.
    Drop,
}

/// What a column is for, with the name of the model's input or output if that has one.
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

/// How a column's cells become numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Numbers, with what stands in the place of missing ones.
    Number(Option<f32>),
    /// A number for each of these words, 0 or 1.
    OneHot(Vec<String>),
    /// The number of one of these words.
    Index(Vec<String>),
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Column {
    pub name: String,
    pub role: Role,
    pub kind: Kind,
}

/// How the columns of a table became numbers: its words and what stands for missing values. A model's file keeps it, so
/// that another table is read in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableEncoding {
    pub(super) columns: Vec<Column>,
    /// Whether rows with missing values are left out.
    pub(super) drops_rows: bool,
    /// Whether the first line holds names.
    pub(super) header: bool,
}

/// A finite number.
pub(super) fn parse_number(text: &str) -> Option<f32> {
    text.parse::<f32>().ok().filter(|v| v.is_finite())
}

/// Whether a cell holds no value.
pub(super) fn is_missing(text: &str) -> bool {
    text.len() <= 4 && MISSING.iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

impl Column {
    /// Numbers that a cell becomes.
    pub fn width(&self) -> usize {
        match &self.kind {
            Kind::OneHot(words) => words.len(),
            Kind::Number(_) | Kind::Index(_) => 1,
        }
    }

    /// Whether a cell holds no value that this column can take.
    pub fn is_missing(&self, text: &str) -> bool {
        let known = match &self.kind {
            Kind::Number(_) => false,
            Kind::OneHot(words) | Kind::Index(words) => find(words, text).is_some(),
        };
        is_missing(text) && !known
    }

    /// Appends a cell's numbers, or says what was expected of it.
    pub fn push(&self, text: &str, values: &mut Vec<f32>) -> std::result::Result<(), String> {
        let known = |words: &[String]| {
            // Missing cells are a category if there was one, under the empty word.
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
            Kind::OneHot(words) => {
                let at = known(words)?;
                values.extend((0..words.len()).map(|i| f32::from(u8::from(i == at))));
            }
        }
        Ok(())
    }
}

/// The place of a word among sorted ones.
fn find(words: &[String], word: &str) -> Option<usize> {
    words.binary_search_by(|known| known.as_str().cmp(word)).ok()
}

impl TableEncoding {
    /// The same with the label columns in another order; the others keep theirs.
    pub(super) fn with_labels_in(mut self, order: &[String]) -> TableEncoding {
        let rank = |column: &Column| match column.role {
            Role::Target(_) => order.iter().position(|name| *name == column.name).unwrap_or(0),
            Role::Input(_) | Role::Weight => 0,
        };
        self.columns.sort_by_key(rank);
        self
    }

    /// The same without targets and weights.
    pub(super) fn inputs_only(&self) -> TableEncoding {
        let inputs = self.columns.iter().filter(|c| matches!(c.role, Role::Input(_)));
        TableEncoding { columns: inputs.cloned().collect(), drops_rows: false, header: self.header }
    }

    /// Where the columns are in a table with these names.
    pub(super) fn places(&self, path: &Path, names: &[String]) -> Result<Vec<usize>> {
        let find = |column: &Column| {
            names.iter().position(|name| *name == column.name).ok_or_else(|| {
                let expected = format!("a column '{}' for {}", cell(&column.name), column.role);
                Error::file(path, expected, shown(names))
            })
        };
        self.columns.iter().map(find).collect()
    }
}
