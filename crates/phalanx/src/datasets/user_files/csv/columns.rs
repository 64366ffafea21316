//! The columns of a table as inputs and targets, and tables that are read without an encoding.

use super::encoding::{Column, Kind, Role, TableEncoding};
use super::{Csv, Table, owner};
use crate::data::{Samples, Text};
use crate::error::{Error, Result};
use phalanx_graph::{Data, Tensor};
use std::path::Path;

impl Csv {
    /// Whether a table has a column for every input of these names, which may also be keys of a dict of inputs or paths as
    /// `left/0`. Columns are matched as by [`Csv::inputs`].
    ///
    /// ```no_run
    /// # use phalanx::datasets::Csv;
    /// # fn example(model: &phalanx::prelude::Model) -> Result<(), phalanx::Error> {
    /// let (csv, names) = (Csv::new(), model.input_names());
    /// let keys = model.input_paths().unwrap_or_default();
    /// let keyed = csv.has_columns_for("data.csv", &keys)?;
    /// let table = csv.inputs(if keyed { keys } else { names }).load("data.csv")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A file that is not a table.
    pub fn has_columns_for(&self, path: impl AsRef<Path>, names: &[String]) -> Result<bool> {
        let columns = self.column_names(path.as_ref(), 1)?;
        let owners: Vec<String> =
            columns.iter().filter_map(|column| owner(column, names)).collect();
        Ok(!names.is_empty() && names.iter().all(|name| owners.contains(name)))
    }

    /// Reads the inputs of a table without an encoding: its columns are strings or numbers, as [`Csv::text_inputs`] says.
    /// Columns are matched by [`Csv::inputs`]; others are left out.
    ///
    /// # Errors
    /// See [`Csv::load`].
    pub fn load_columns(&self, path: impl AsRef<Path>) -> Result<Table> {
        let path = path.as_ref();
        let names = self.column_names(path, 1)?;
        let owned: Vec<Option<String>> =
            names.iter().map(|name| owner(name, &self.inputs)).collect();
        let only = match &self.inputs[..] {
            [] => Some(String::new()),
            [only] if owned.iter().all(Option::is_none) => Some(only.clone()),
            _ => None,
        };
        let mut columns = vec![];
        for (name, owned) in names.into_iter().zip(owned) {
            let Some(input) = owned.or(only.clone()) else { continue };
            let role = Role::Input(input);
            let kind = if self.is_text(&role) { Kind::Text } else { Kind::Number(None) };
            columns.push(Column { name, role, kind });
        }
        for input in &self.inputs {
            if !columns.iter().any(|column| column.role == Role::Input(input.clone())) {
                let expected = format!("a column for {}", Role::Input(input.clone()));
                return Err(Error::file(path, expected, "none"));
            }
        }
        self.read(path, TableEncoding { columns, drops_rows: false, header: self.header })
    }
}

/// The inputs by name: numbers, or strings.
pub(super) fn inputs(
    encoding: &TableEncoding,
    values: &[Vec<f32>],
    texts: &[Vec<String>],
    rows: usize,
) -> Result<Vec<(String, Samples)>> {
    let mut inputs = vec![];
    let numbers = grouped(encoding, values, rows, |role| match role {
        Role::Input(name) => Some(name),
        _ => None,
    })?;
    for (name, tensor, _) in numbers {
        let is_text =
            |column: &Column| column.role == Role::Input(name.clone()) && column.kind == Kind::Text;
        let columns: Vec<&Vec<String>> = encoding
            .columns
            .iter()
            .zip(texts)
            .filter(|(column, _)| is_text(column))
            .map(|(_, texts)| texts)
            .collect();
        let samples: Samples = match columns.len() {
            0 => tensor.into(),
            width => {
                let cells = (0..rows).flat_map(|row| columns.iter().map(move |c| &c[row]));
                Text::new([rows, width], cells)?.into()
            }
        };
        inputs.push((name, samples));
    }
    Ok(inputs)
}

/// Groups the columns of each input or target, and collects class names.
pub(super) fn grouped<'a>(
    encoding: &'a TableEncoding,
    values: &[Vec<f32>],
    rows: usize,
    role: impl Fn(&'a Role) -> Option<&'a String>,
) -> Result<Vec<(String, Tensor, Vec<String>)>> {
    let mut names: Vec<&String> = vec![];
    for name in encoding.columns.iter().filter_map(|column| role(&column.role)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let group = |name: &String| {
        let of = |column: &'a Column| role(&column.role) == Some(name);
        let parts: Vec<(&Column, &Vec<f32>)> =
            encoding.columns.iter().zip(values).filter(|(column, _)| of(column)).collect();
        let is_target = matches!(parts.first(), Some((Column { role: Role::Target(_), .. }, _)));
        let width: usize = parts.iter().map(|(column, _)| column.width()).sum();
        let mut all = Vec::with_capacity(rows.saturating_mul(width));
        for row in 0..rows {
            for (column, values) in &parts {
                let each = column.width();
                // Strings are not here.
                all.extend(values.get(row * each..(row + 1) * each).unwrap_or(&[0.0]));
            }
        }
        let whole = |v: &f32| v.fract() == 0.0 && v.abs() < 16_777_216.0;
        let data: Data = match is_target && all.iter().all(whole) {
            true => all.iter().map(|v| *v as i32).collect::<Vec<i32>>().into(),
            false => all.into(),
        };
        let dims = if is_target && width == 1 { vec![rows] } else { vec![rows, width] };
        let classes = match &parts[..] {
            [(Column { kind: Kind::Index(words), .. }, _)] if is_target => words.clone(),
            _ => vec![],
        };
        Ok((name.clone(), Tensor::new(dims, data)?, classes))
    };
    names.into_iter().map(group).collect()
}
