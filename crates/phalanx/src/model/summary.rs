//! `summary()`: layers, output shapes, parameter counts and activation memory as a table.

use super::definition::Definition;
use super::shape::ValueType;
use super::symbol::Callee;
use crate::layer::LayerHandle;
use phalanx_graph::text::{escape, shown};
use std::fmt;
use std::sync::Arc;

/// Stands for the memory of a value with open sizes.
const OPEN: &str = "-";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name and class, `dense (Dense)`.
    pub layer: String,
    /// Output shape, `(None, 10)`.
    pub shape: String,
    /// Parameters of the layer, counted at its first call.
    pub params: usize,
    /// Bytes of the output for one sample, unless a size is open.
    pub activation: Option<usize>,
    /// The layers whose outputs it is called on.
    pub inputs: Vec<String>,
}

/// The summary table of a model. Its `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The model's name.
    pub name: String,
    /// One row per call.
    pub rows: Vec<Row>,
    /// Number of trainable parameters.
    pub trainable: usize,
    /// Number of other parameters: frozen layers and moving statistics.
    pub non_trainable: usize,
}

impl Summary {
    pub(crate) fn new(def: &Definition) -> Summary {
        let mut counted = vec![false; def.members.len()];
        let rows = def
            .calls
            .iter()
            .map(|model_call| {
                let member = &def.members[model_call.member];
                let (class, params) = match &member.callee {
                    Callee::Input(_) => ("InputLayer", 0),
                    Callee::Layer(layer) => (layer.layer().class_name(), count(layer).0),
                    Callee::Model(inner) => {
                        ("Model", inner.layers().iter().map(|(_, l)| count(l).0).sum())
                    }
                };
                let first = !std::mem::replace(&mut counted[model_call.member], true);
                let inputs = model_call.call.inputs.iter().filter_map(|s| {
                    let from = def.calls.iter().find(|p| Arc::ptr_eq(&p.call, &s.call))?;
                    Some(def.members[from.member].name.clone())
                });
                Row {
                    layer: format!("{} ({class})", member.name),
                    shape: model_call.types[0].shape_text(),
                    params: if first { params } else { 0 },
                    activation: model_call.types.iter().map(ValueType::bytes).sum(),
                    inputs: inputs.collect(),
                }
            })
            .collect();
        let (mut total, mut trainable) = (0, 0);
        for (_, layer) in def.layers() {
            let (of_layer, trained) = count(&layer);
            (total, trainable) = (total + of_layer, trainable + trained);
        }
        Summary { name: def.name.clone(), rows, trainable, non_trainable: total - trainable }
    }

    /// Returns the total number of parameters.
    pub fn total(&self) -> usize {
        self.trainable + self.non_trainable
    }

    /// Returns the bytes of all outputs for one sample, unless a size is open.
    pub fn activation_bytes(&self) -> Option<usize> {
        self.rows.iter().map(|r| r.activation).sum()
    }
}

/// Returns the number of all and of trainable parameters of a layer.
fn count(layer: &LayerHandle) -> (usize, usize) {
    let frozen = !layer.trainable();
    let weights = layer.weights();
    let len = |trainable_only: bool| {
        weights
            .iter()
            .filter(|w| !trainable_only || (w.spec.trainable && !frozen))
            .map(|w| w.spec.dims.iter().product::<usize>())
            .sum()
    };
    (len(false), len(true))
}

/// Formats `1234567` as `1,234,567`.
pub(crate) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a number of bytes with a suitable unit.
pub(crate) fn bytes(n: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.2} {}", units[unit]) }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let branched = self.rows.iter().enumerate().any(|(i, r)| {
            let before = i.checked_sub(1).map(|p| self.rows[p].layer.split(" (").next());
            r.inputs.len() > 1 || r.inputs.first().is_some_and(|x| before != Some(Some(x.as_str())))
        });
        let mut table: Vec<Vec<String>> = vec![
            ["Layer (type)", "Output Shape", "Param #", "Activations", "Connected to"]
                .map(String::from)
                .to_vec(),
        ];
        for r in &self.rows {
            table.push(vec![
                escape(&r.layer).into_owned(),
                r.shape.clone(),
                thousands(r.params),
                r.activation.map_or(OPEN.into(), bytes),
                escape(&r.inputs.join(", ")).into_owned(),
            ]);
        }
        if !branched {
            table.iter_mut().for_each(|row| row.truncate(4));
        }
        let columns = table[0].len();
        let widths: Vec<usize> = (0..columns)
            .map(|c| table.iter().map(|row| row[c].chars().count()).max().unwrap_or(0))
            .collect();
        let rule = |l: &str, m: &str, r: &str, fill: &str| {
            let parts: Vec<String> = widths.iter().map(|w| fill.repeat(w + 2)).collect();
            format!("{l}{}{r}", parts.join(m))
        };
        writeln!(f, "Model: \"{}\"", shown(&self.name))?;
        writeln!(f, "{}", rule("┏", "┳", "┓", "━"))?;
        for (i, row) in table.iter().enumerate() {
            let bar = if i == 0 { "┃" } else { "│" };
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(c, (text, w))| {
                    let pad = " ".repeat(w - text.chars().count());
                    let right = i > 0 && (c == 2 || c == 3);
                    if right { format!(" {pad}{text} ") } else { format!(" {text}{pad} ") }
                })
                .collect();
            writeln!(f, "{bar}{}{bar}", cells.join(bar))?;
            if i == 0 {
                writeln!(f, "{}", rule("┡", "╇", "┩", "━"))?;
            }
        }
        writeln!(f, "{}", rule("└", "┴", "┘", "─"))?;
        let line = |n: usize| format!("{} ({})", thousands(n), bytes(n * 4));
        writeln!(f, " Total params: {}", line(self.total()))?;
        writeln!(f, " Trainable params: {}", line(self.trainable))?;
        writeln!(f, " Non-trainable params: {}", line(self.non_trainable))?;
        let activations = self.activation_bytes().map_or("depend on open sizes".into(), bytes);
        write!(f, " Activations per sample: {activations}")
    }
}
