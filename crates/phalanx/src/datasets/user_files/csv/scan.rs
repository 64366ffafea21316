//! The first pass over a table, which determines the types of its columns.

use super::encoding::{Column, Kind, Role, TableEncoding, is_missing, parse_number};
use super::{Categories, Csv, Missing, cell, cell_location, damaged, text};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum number of distinct words in a column.
const MAX_WORDS: usize = 1 << 16;
/// Maximum length of a word in bytes. A word may become a class name.
const MAX_WORD_BYTES: usize = 1000;
/// Maximum number of columns that categories may expand to.
const MAX_ENCODED_COLUMNS: usize = 1 << 20;

/// Statistics of the cells of a column.
#[derive(Clone, Debug, Default)]
struct ColumnStats {
    /// Sum and count of the numbers.
    sum: f64,
    numbers: u64,
    missing: bool,
    /// All distinct words.
    words: BTreeSet<String>,
    /// The first cell that is not a number: its text and location.
    first_word: Option<(String, String)>,
}

/// Statistics of the columns of a table.
pub(super) struct Scan {
    names: Vec<String>,
    stats: Vec<ColumnStats>,
}

impl Scan {
    /// Reads a table once.
    pub fn read(csv: &Csv, path: &Path, names: Vec<String>, roles: &[Role]) -> Result<Scan> {
        let mut stats = vec![ColumnStats::default(); names.len()];
        for record in csv.reader(path)?.records() {
            let record = record.map_err(|e| damaged(path, e))?;
            for (at, (stats, role)) in stats.iter_mut().zip(roles).enumerate() {
                if csv.is_text(role) {
                    continue;
                }
                let text = text(&record, at);
                if is_missing(text) {
                    stats.missing = true;
                    continue;
                }
                match parse_number(text) {
                    None if text.parse::<f32>().is_ok() => {
                        let location = cell_location(at, &names[at], record.position(), csv.header);
                        let received = format!("\"{}\" in {location}", cell(text));
                        return Err(Error::file(path, "finite numbers", received));
                    }
                    Some(value) => {
                        stats.sum += f64::from(value);
                        stats.numbers += 1;
                    }
                    None if stats.first_word.is_none() => {
                        let location = cell_location(at, &names[at], record.position(), csv.header);
                        stats.first_word = Some((cell(text), location));
                    }
                    None => {}
                }
                if stats.first_word.is_some() && csv.takes_words(role) {
                    stats.add(path, &names[at], text)?;
                }
            }
        }
        Ok(Scan { names, stats })
    }

    /// Chooses the encoding of each column.
    pub fn encoding(self, csv: &Csv, path: &Path, roles: Vec<Role>) -> Result<TableEncoding> {
        let drops_rows = csv.missing == Some(Missing::Drop);
        let mut columns = vec![];
        for ((name, role), stats) in self.names.into_iter().zip(roles).zip(self.stats) {
            let kind = match &stats.first_word {
                _ if csv.is_text(&role) => Kind::Text,
                Some((text, location)) if !csv.takes_words(&role) => {
                    let expected = match role {
                        Role::Input(_) => {
                            "finite numbers (or a choice of how words become numbers: \
                                           --categories one-hot or index)"
                        }
                        Role::Target(_) => "finite numbers in several label columns",
                        Role::Weight => "finite numbers as sample weights",
                    };
                    let received = format!("\"{text}\" in {location}");
                    return Err(Error::file(path, expected, received));
                }
                Some((text, location)) if stats.numbers > 0 => {
                    let expected = "numbers or words in a column, not both";
                    let received = format!("\"{text}\" in {location} among numbers");
                    return Err(Error::file(path, expected, received));
                }
                Some(_) => {
                    let mut words: Vec<String> = stats.words.into_iter().collect();
                    let own_category = matches!(role, Role::Input(_)) && !drops_rows;
                    if stats.missing && own_category && csv.missing.is_some() {
                        words.insert(0, String::new());
                    }
                    match (&role, csv.categories) {
                        (Role::Input(_), Some(Categories::OneHot)) => Kind::OneHot(words),
                        _ => Kind::Index(words),
                    }
                }
                None => Kind::Number(match (csv.missing, &role) {
                    (Some(Missing::Mean), Role::Input(_)) => {
                        Some((stats.sum / stats.numbers.max(1) as f64) as f32)
                    }
                    (Some(Missing::Zero), Role::Input(_)) => Some(0.0),
                    _ => None,
                }),
            };
            columns.push(Column { name, role, kind });
        }
        let width: usize = columns.iter().map(Column::width).sum();
        if width > columns.len().max(MAX_ENCODED_COLUMNS) {
            let expected = format!("words that become at most {MAX_ENCODED_COLUMNS} columns");
            return Err(Error::file(path, expected, width));
        }
        Ok(TableEncoding { columns, drops_rows, header: csv.header })
    }
}

impl ColumnStats {
    fn add(&mut self, path: &Path, name: &str, text: &str) -> Result<()> {
        if self.words.contains(text) {
            return Ok(());
        }
        if text.len() > MAX_WORD_BYTES {
            let expected = format!("words of at most {MAX_WORD_BYTES} bytes");
            let received = format!("\"{}\" in column '{}'", cell(text), cell(name));
            return Err(Error::file(path, expected, received));
        }
        self.words.insert(text.into());
        if self.words.len() > MAX_WORDS {
            let expected =
                format!("at most {MAX_WORDS} different words in column '{}'", cell(name));
            return Err(Error::file(path, expected, "more"));
        }
        Ok(())
    }
}

impl Csv {
    /// Whether a column of this role belongs to an input of strings.
    pub(super) fn is_text(&self, role: &Role) -> bool {
        matches!(role, Role::Input(name) if self.text_inputs.contains(name))
    }

    /// Whether a column of this role may hold words: inputs if configured, and a label of one column.
    fn takes_words(&self, role: &Role) -> bool {
        match role {
            Role::Input(_) => self.categories.is_some(),
            Role::Target(_) => self.labels.len() <= 1,
            Role::Weight => false,
        }
    }
}
