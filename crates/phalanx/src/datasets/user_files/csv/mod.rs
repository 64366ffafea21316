//! CSV tables: numeric and categorical columns as inputs, targets and weights.

mod columns;
mod encoding;
mod scan;

pub use encoding::{Categories, Missing, TableEncoding};

use super::SampleSet;
use crate::error::{Error, Result};
use crate::saving::open_file;
use ::csv::{Position, ReaderBuilder, StringRecord};
use columns::{grouped, inputs};
use encoding::{Column, Kind, Role, parse_number};
use phalanx_graph::text::{escape, truncate};
use scan::Scan;
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;

/// The expected content of a file, for error messages.
const TABLE: &str = "a table";
/// Maximum number of columns of a table, and of encoded values.
const MAX_COLUMNS: usize = 1_000_000;
const MAX_VALUES: usize = 1 << 31;
/// Maximum number of characters of a cell, and of column names, quoted in an error.
const MAX_CELL_SHOWN: usize = 40;
const MAX_NAMES_SHOWN: usize = 20;

/// The layout of a table. By default the first line holds column names, commas separate columns, the
/// last column is the label, and all others are numbers.
///
/// ```no_run
/// # use phalanx::datasets::{Categories, Csv, Missing};
/// let iris = Csv::new().label("species").load("iris.csv")?;
/// let houses = Csv::new()
///     .label("price")
///     .categories(Categories::OneHot)
///     .missing(Missing::Mean)
///     .load("houses.csv")?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Csv {
    labels: Vec<String>,
    weight: Option<String>,
    header: bool,
    separator: u8,
    categories: Option<Categories>,
    missing: Option<Missing>,
    inputs: Vec<String>,
    /// The inputs of strings, by name.
    text_inputs: Vec<String>,
    outputs: Vec<String>,
    encoding: Option<TableEncoding>,
}

impl Default for Csv {
    fn default() -> Csv {
        Csv {
            labels: vec![],
            weight: None,
            header: true,
            separator: b',',
            categories: None,
            missing: None,
            inputs: vec![],
            text_inputs: vec![],
            outputs: vec![],
            encoding: None,
        }
    }
}

/// A table in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The samples.
    pub set: SampleSet,
    /// For each target, its class names; empty if it is numeric.
    pub classes: Vec<Vec<String>>,
    /// The encoding of the columns.
    pub encoding: TableEncoding,
    /// Number of rows dropped because of missing values.
    pub dropped: usize,
}

impl Csv {
    /// The default layout: a header line, commas, the label in the last column.
    pub fn new() -> Csv {
        Csv::default()
    }

    /// Sets the label column by its name or 0-based index. Further calls add columns to the target.
    pub fn label(mut self, column: impl Into<String>) -> Csv {
        self.labels.push(column.into());
        self
    }

    /// Sets the column of sample weights.
    pub fn sample_weight(mut self, column: impl Into<String>) -> Csv {
        self.weight = Some(column.into());
        self
    }

    /// Whether the first line holds column names.
    pub fn header(mut self, header: bool) -> Csv {
        self.header = header;
        self
    }

    /// Sets the separator between columns.
    pub fn separator(mut self, separator: u8) -> Csv {
        self.separator = separator;
        self
    }

    /// Sets the encoding of categorical columns. Without it, words in an input column are an error.
    pub fn categories(mut self, categories: Categories) -> Csv {
        self.categories = Some(categories);
        self
    }

    /// Sets the handling of missing values. Without it, they are an error.
    pub fn missing(mut self, missing: Missing) -> Csv {
        self.missing = Some(missing);
        self
    }

    /// Sets the names of the model's inputs. A column belongs to the input `NAME` if it is named `NAME`,
    /// `NAME_…` or `NAME.…`.
    pub fn inputs(mut self, names: impl Into<Vec<String>>) -> Csv {
        self.inputs = names.into();
        self
    }

    /// Sets the inputs that take strings: their columns stay text. The only input of a model is named by the empty string.
    pub fn text_inputs(mut self, names: impl Into<Vec<String>>) -> Csv {
        self.text_inputs = names.into();
        self
    }

    /// Sets the names of the model's outputs. Columns are matched as by [`Csv::inputs`].
    pub fn outputs(mut self, names: impl Into<Vec<String>>) -> Csv {
        self.outputs = names.into();
        self
    }

    /// Uses the encoding of an earlier table: the same categories and the same replacements for missing
    /// values.
    pub fn encoding(mut self, encoding: TableEncoding) -> Csv {
        self.header = encoding.header;
        self.encoding = Some(encoding);
        self
    }

    /// Reads a table. A label column of integers becomes `i32`, of other numbers `f32`. Words are
    /// classes in alphabetical order.
    ///
    /// # Errors
    /// A file that is not a table, or an invalid cell; the error gives its line and column as a
    /// spreadsheet names them.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Table> {
        let path = path.as_ref();
        let encoding = match &self.encoding {
            Some(encoding) => encoding.clone(),
            None => {
                let names = self.names(path)?;
                let roles = self.roles(path, &names)?;
                let order = self.label_order(&names);
                let scan = Scan::read(self, path, names, &roles)?;
                scan.encoding(self, path, roles)?.with_labels_in(&order)
            }
        };
        self.read(path, encoding)
    }

    /// Reads the inputs of a table that may lack labels, with the encoding of an earlier table.
    ///
    /// # Errors
    /// See [`Csv::load`].
    pub fn load_inputs(&self, path: impl AsRef<Path>, encoding: &TableEncoding) -> Result<Table> {
        let csv = Csv { header: encoding.header, ..self.clone() };
        csv.read(path.as_ref(), encoding.inputs_only())
    }

    fn reader(&self, path: &Path) -> Result<::csv::Reader<File>> {
        let file = open_file(path, TABLE)?;
        let mut builder = ReaderBuilder::new();
        builder.has_headers(self.header).delimiter(self.separator).trim(::csv::Trim::Headers);
        Ok(builder.from_reader(file))
    }

    /// The column names; indices if the table has no header.
    fn names(&self, path: &Path) -> Result<Vec<String>> {
        // Those of an encoding are checked one by one.
        self.column_names(path, if self.encoding.is_some() { 1 } else { 2 })
    }

    /// The column names of a table with at least `min` columns.
    fn column_names(&self, path: &Path, min: usize) -> Result<Vec<String>> {
        let mut reader = self.reader(path)?;
        // Without a header, this is the first row.
        let first = reader.headers().map_err(|e| damaged(path, e))?.clone();
        if !(min..=MAX_COLUMNS).contains(&first.len()) && !first.is_empty() {
            let label = if min > 1 { ", one of them the label" } else { "" };
            let expected = format!("{min} to {MAX_COLUMNS} columns{label}");
            return Err(Error::file(path, expected, first.len()));
        }
        if !self.header {
            return Ok((0..first.len()).map(|i| i.to_string()).collect());
        }
        if !first.is_empty() && first.iter().all(|cell| parse_number(cell).is_some()) {
            let received = "a first line of numbers (a table without names is read by header(false) or --no-header)";
            return Err(Error::file(path, "a first line with the columns' names", received));
        }
        let names: Vec<String> = first.iter().map(String::from).collect();
        let mut seen = HashSet::new();
        match names.iter().find(|name| !seen.insert(name.as_str())) {
            Some(name) => {
                let received = format!("two columns '{}'", cell(name));
                Err(Error::file(path, "a name of its own for each column", received))
            }
            None => Ok(names),
        }
    }

    /// The role of each column.
    fn roles(&self, path: &Path, names: &[String]) -> Result<Vec<Role>> {
        let find = |wanted: &str, what: &str| {
            let named = names.iter().position(|name| name == wanted);
            let numbered = || wanted.parse().ok().filter(|n: &usize| *n < names.len());
            named.or_else(numbered).ok_or_else(|| {
                let expected = format!("a column '{}' for the {what}", cell(wanted));
                Error::file(path, expected, shown(names))
            })
        };
        let labels: Vec<usize> =
            self.labels.iter().map(|label| find(label, "label")).collect::<Result<_>>()?;
        let weight = self.weight.as_deref().map(|w| find(w, "sample weight")).transpose()?;
        let twice = labels.iter().enumerate().find(|(i, at)| labels[..*i].contains(at));
        if let Some((_, at)) =
            twice.or(labels.iter().enumerate().find(|(_, at)| weight == Some(**at)))
        {
            let received = format!("'{}' twice", cell(&names[*at]));
            return Err(Error::file(path, "each column once as label or sample weight", received));
        }
        if labels.is_empty() && weight.is_some_and(|at| at + 1 == names.len()) {
            let received = "the last column as sample weight";
            return Err(Error::file(path, "the label named too", received));
        }
        let label = self.label_of_one_output(names, &labels, weight);
        let mut roles = vec![];
        for (at, name) in names.iter().enumerate() {
            let owner = |owners: &[String]| owner(name, owners);
            roles.push(if weight == Some(at) {
                Role::Weight
            } else if self.inputs.is_empty() && self.outputs.is_empty() {
                let last = labels.is_empty() && at + 1 == names.len();
                match labels.contains(&at) || last {
                    true => Role::Target(String::new()),
                    false => Role::Input(String::new()),
                }
            } else {
                let input = match self.inputs.is_empty() {
                    true => Some(String::new()),
                    false => owner(&self.inputs),
                };
                let output = match &self.outputs[..] {
                    [] => labels.contains(&at).then(String::new),
                    [one] if label.contains(&at) => Some(one.clone()),
                    [_] => None,
                    several => owner(several),
                };
                match (input, output) {
                    (Some(input), Some(output))
                        if input.len() > output.len() && self.outputs.len() > 1 =>
                    {
                        Role::Input(input)
                    }
                    (_, Some(output)) => Role::Target(output),
                    (Some(input), None) => Role::Input(input),
                    (None, None) => {
                        let owners: Vec<String> =
                            self.inputs.iter().chain(&self.outputs).cloned().collect();
                        let expected = format!(
                            "columns named after the model's inputs and outputs ({})",
                            shown(&owners)
                        );
                        let received = format!("a column '{}'", cell(name));
                        return Err(Error::file(path, expected, received));
                    }
                }
            });
        }
        self.check_roles(path, roles)
    }

    /// The names of the label columns in the order in which they were given.
    fn label_order(&self, names: &[String]) -> Vec<String> {
        let name = |label: &String| {
            let numbered = || label.parse().ok().and_then(|n: usize| names.get(n)).cloned();
            names.iter().find(|name| *name == label).cloned().or_else(numbered)
        };
        self.labels.iter().filter_map(name).collect()
    }

    /// The label columns of a model with one output: those set explicitly, those named after the output,
    /// or else the last column that is not named after an input.
    fn label_of_one_output(
        &self,
        names: &[String],
        labels: &[usize],
        weight: Option<usize>,
    ) -> Vec<usize> {
        if !labels.is_empty() || self.outputs.len() != 1 {
            return labels.to_vec();
        }
        let mut all = (0..names.len()).filter(|at| Some(*at) != weight);
        let after = |names: &'_ str, owners: &[String]| owner(names, owners).is_some();
        let own: Vec<usize> = all
            .clone()
            .filter(|at| after(&names[*at], &self.outputs) && !self.inputs.contains(&names[*at]))
            .collect();
        match own.is_empty() {
            true => all.rfind(|at| !after(&names[*at], &self.inputs)).into_iter().collect(),
            false => own,
        }
    }

    /// Checks that every input and output has a column.
    fn check_roles(&self, path: &Path, roles: Vec<Role>) -> Result<Vec<Role>> {
        let unnamed = [String::new()];
        let or_unnamed = |names: &'_ [String]| match names.is_empty() {
            true => unnamed.to_vec(),
            false => names.to_vec(),
        };
        let inputs = or_unnamed(&self.inputs).into_iter().map(Role::Input);
        let outputs = or_unnamed(&self.outputs).into_iter().map(Role::Target);
        for wanted in inputs.chain(outputs) {
            if !roles.is_empty() && !roles.contains(&wanted) {
                return Err(Error::file(path, format!("a column for {wanted}"), "none"));
            }
        }
        Ok(roles)
    }

    /// Reads all rows with an encoding.
    fn read(&self, path: &Path, encoding: TableEncoding) -> Result<Table> {
        let places = encoding.positions(path, &self.column_names(path, 1)?)?;
        let mut texts: Vec<Vec<String>> = vec![vec![]; encoding.columns.len()];
        let mut values: Vec<Vec<f32>> = vec![vec![]; encoding.columns.len()];
        let (mut rows, mut dropped, mut total) = (0usize, 0usize, 0usize);
        let mut next_check = 1 << 20;
        let width: usize = encoding.columns.iter().map(Column::width).sum();
        for record in self.reader(path)?.records() {
            let record = record.map_err(|e| damaged(path, e))?;
            let missing = |(column, at): (&Column, &usize)| column.is_missing(text(&record, *at));
            if encoding.drops_rows && encoding.columns.iter().zip(&places).any(missing) {
                dropped += 1;
                continue;
            }
            let columns = encoding.columns.iter().zip(&places);
            for ((column, at), (values, texts)) in columns.zip(values.iter_mut().zip(&mut texts)) {
                if column.kind == Kind::Text {
                    // Whitespace belongs to a string, which takes its bytes and its own size.
                    let string = record.get(*at).unwrap_or_default();
                    total = total.saturating_add((string.len() + size_of::<String>()) / 4);
                    texts.push(string.to_string());
                    continue;
                }
                let received = text(&record, *at);
                column.push(received, values).map_err(|expected| {
                    let location = cell_location(*at, &column.name, record.position(), self.header);
                    let received = match received {
                        "" => format!("an empty cell in {location}"),
                        other => format!("\"{}\" in {location}", cell(other)),
                    };
                    Error::file(path, expected, received)
                })?;
            }
            (rows, total) = (rows + 1, total.saturating_add(width));
            if total > MAX_VALUES {
                return Err(Error::file(path, format!("at most {MAX_VALUES} numbers"), "more"));
            }
            // Values are held twice, as read and grouped, and a growing vector may double.
            if total >= next_check {
                next_check = total.saturating_mul(2);
                if total.saturating_mul(4 * size_of::<f32>()) > crate::free_memory() {
                    let received = format!("{rows} rows of {width} numbers and more");
                    return Err(Error::file(path, "a table that fits into memory", received));
                }
            }
        }
        if rows == 0 {
            let received = if dropped > 0 { "only rows with missing values" } else { "none" };
            return Err(Error::file(path, "at least one row", received));
        }
        let set =
            SampleSet { inputs: inputs(&encoding, &values, &texts, rows)?, ..SampleSet::default() };
        let targets = grouped(&encoding, &values, rows, |role| match role {
            Role::Target(name) => Some(name),
            _ => None,
        })?;
        let weight = encoding.columns.iter().position(|column| column.role == Role::Weight);
        let classes = targets.iter().map(|(_, _, classes)| classes.clone()).collect();
        let targets = targets.into_iter().map(|(name, y, _)| (name, y)).collect();
        let sample_weight = weight.map(|at| std::mem::take(&mut values[at]));
        Ok(Table { set: SampleSet { targets, sample_weight, ..set }, classes, encoding, dropped })
    }
}

/// The longest of the names that a column's name begins with.
fn owner(column: &str, names: &[String]) -> Option<String> {
    let owns = |name: &&String| {
        column.strip_prefix(name.as_str()).is_some_and(|rest| {
            rest.is_empty() || (!name.is_empty() && rest.starts_with(['_', '.']))
        })
    };
    names.iter().filter(owns).max_by_key(|name| name.len()).cloned()
}

/// A cell of a row, which may be too short, without whitespace around it.
fn text(record: &StringRecord, at: usize) -> &str {
    record.get(at).unwrap_or_default().trim()
}

fn damaged(path: &Path, error: ::csv::Error) -> Error {
    match error.into_kind() {
        ::csv::ErrorKind::Io(e) => Error::io(path, e),
        ::csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.map_or(0, |pos| pos.line());
            Error::file(path, format!("{expected_len} columns"), format!("{len} in line {line}"))
        }
        ::csv::ErrorKind::Utf8 { pos, .. } => {
            let line = pos.map_or(String::new(), |pos| format!(" in line {}", pos.line()));
            Error::file(path, "UTF-8 text", format!("other bytes{line}"))
        }
        _ => Error::file(path, TABLE, "something else"),
    }
}

/// The location of a cell as a spreadsheet names it: line, column letters and column name.
fn cell_location(at: usize, name: &str, position: Option<&Position>, named: bool) -> String {
    let line = position.map_or(0, Position::line);
    let name = if named { format!(" ({})", cell(name)) } else { String::new() };
    format!("line {line}, column {}{name}", letters(at))
}

/// Column letters: A to Z, then AA and so on.
fn letters(at: usize) -> String {
    let last = char::from(b'A' + (at % 26) as u8);
    match at / 26 {
        0 => last.to_string(),
        more => letters(more - 1) + &last.to_string(),
    }
}

/// The text of a cell for an error, shortened and escaped.
fn cell(text: &str) -> String {
    escape(&truncate(text, MAX_CELL_SHOWN)).into_owned()
}

fn shown(names: &[String]) -> String {
    let known: Vec<String> = names.iter().take(MAX_NAMES_SHOWN).map(|name| cell(name)).collect();
    match names.len() {
        0 => "none".into(),
        n if n > MAX_NAMES_SHOWN => format!("{} and {} more", known.join(", "), n - known.len()),
        _ => known.join(", "),
    }
}

#[cfg(test)]
mod tests;
