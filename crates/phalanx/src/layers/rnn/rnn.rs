//! A recurrent layer with any cell, and stacks of cells.

use super::cell::{self, Cell, DeclaredCell, Step};
use super::gru::GRUCell;
use super::lstm::LSTMCell;
use super::options::{self, RnnOptions};
use super::simple_rnn::SimpleRNNCell;
use crate::config;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::layers::nested::NestedLayer;
use crate::model::snake_case;
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// A recurrent layer with a cell of choice.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::{GRUCell, LSTMCell, RNN, StackedRNNCells};
///
/// let stack = StackedRNNCells::new().add(LSTMCell::new(8)).add(GRUCell::new(4));
/// let layer = RNN::new(stack).return_sequences(true);
/// assert_eq!(layer.config()["cell"]["class_name"], "StackedRNNCells");
/// ```
#[derive(Clone, Debug)]
pub struct RNN {
    options: RnnOptions,
    cell: SharedCell,
}

/// A cell and its name.
#[derive(Clone, Debug)]
pub struct SharedCell {
    cell: Arc<dyn Cell>,
    name: String,
    trainable: bool,
}

macro_rules! shared_cell {
    ($($cell:ident),+) => {$(
        impl From<$cell> for SharedCell {
            fn from(cell: $cell) -> SharedCell {
                let name = snake_case(cell.class_name());
                SharedCell { cell: Arc::new(cell), name, trainable: true }
            }
        }
    )+};
}
shared_cell!(LSTMCell, GRUCell, SimpleRNNCell, StackedRNNCells);

impl SharedCell {
    fn parse(value: &Value) -> Result<SharedCell, String> {
        fn read<C: Cell + for<'a> Deserialize<'a> + 'static>(
            config: &Config,
        ) -> Result<Arc<dyn Cell>, String> {
            let cell = C::deserialize(Value::Object(config.clone())).map_err(|e| e.to_string())?;
            Ok(Arc::new(cell))
        }
        let NestedLayer { class, name, trainable, config } = NestedLayer::parse(value)?;
        let cell = match class.as_str() {
            "LSTMCell" => read::<LSTMCell>(&config)?,
            "GRUCell" => read::<GRUCell>(&config)?,
            "SimpleRNNCell" => read::<SimpleRNNCell>(&config)?,
            "StackedRNNCells" => read::<StackedRNNCells>(&config)?,
            _ => {
                let known = "LSTMCell, GRUCell, SimpleRNNCell or StackedRNNCells";
                return Err(format!("expected {known}, received {class:?}"));
            }
        };
        Ok(SharedCell { cell, name, trainable })
    }

    fn to_value(&self) -> Value {
        let (class, config) = (self.cell.class_name().to_string(), self.cell.config());
        let (name, trainable) = (self.name.clone(), self.trainable);
        NestedLayer { class, name, trainable, config }.to_value()
    }
}

impl Layer for SharedCell {
    fn class_name(&self) -> &'static str {
        self.cell.class_name()
    }

    fn config(&self) -> Config {
        self.cell.config()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        self.cell.call(cx, inputs)
    }
}

impl Cell for SharedCell {
    fn states(&self) -> usize {
        self.cell.states()
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        self.cell.declare(cx, input)
    }
}

impl RNN {
    /// Runs a cell over a sequence.
    pub fn new(cell: impl Into<SharedCell>) -> RNN {
        RNN { options: RnnOptions::default(), cell: cell.into() }
    }

    super::option_setters!();
}

impl Layer for RNN {
    fn class_name(&self) -> &'static str {
        "RNN"
    }

    fn config(&self) -> Config {
        let mut config = config::write(&self.options);
        config.insert("cell".into(), self.cell.to_value());
        config
    }

    fn signature(&self) -> &'static [&'static str] {
        options::SIGNATURE
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        self.options.activity_regularizer.get()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        options::call(cx, &self.options, &self.cell, inputs)
    }
}

super::recurrent_layer!(RNN);

impl<'de> Deserialize<'de> for RNN {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<RNN, D::Error> {
        let mut options = Config::deserialize(d)?;
        let cell = options.remove("cell").unwrap_or_default();
        let options = RnnOptions::deserialize(Value::Object(options)).map_err(de::Error::custom)?;
        // A list of cells is a stack of them.
        let cell = match &cell {
            Value::Array(_) => {
                let object =
                    json!({ "class_name": "StackedRNNCells", "config": { "cells": cell } });
                SharedCell::parse(&object)
            }
            cell => SharedCell::parse(cell),
        };
        Ok(RNN { options, cell: cell.map_err(|e| de::Error::custom(format!("cell: {e}")))? })
    }
}

/// Cells that each take the output of the previous one.
#[derive(Clone, Debug, Default)]
pub struct StackedRNNCells {
    cells: Vec<SharedCell>,
}

impl StackedRNNCells {
    /// A stack without cells.
    pub fn new() -> StackedRNNCells {
        StackedRNNCells::default()
    }

    /// Adds a cell.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, cell: impl Into<SharedCell>) -> StackedRNNCells {
        self.cells.push(cell.into());
        self
    }
}

impl<'de> Deserialize<'de> for StackedRNNCells {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<StackedRNNCells, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            cells: Vec<Value>,
        }
        let cells = Keys::deserialize(d)?.cells;
        // A cell that is a stack itself would have nested states.
        if cells.iter().any(|c| c.get("class_name") == Some(&"StackedRNNCells".into())) {
            return Err(de::Error::custom("cells: expected cells, received a stack of cells"));
        }
        let cells = cells.iter().map(SharedCell::parse).collect::<Result<_, _>>();
        Ok(StackedRNNCells { cells: cells.map_err(de::Error::custom)? })
    }
}

struct Declared<'a> {
    cells: Vec<Box<dyn DeclaredCell + 'a>>,
    states: Vec<usize>,
}

impl Layer for StackedRNNCells {
    fn class_name(&self) -> &'static str {
        "StackedRNNCells"
    }

    fn config(&self) -> Config {
        let cells: Vec<Value> = self.cells.iter().map(SharedCell::to_value).collect();
        Config::from_iter([("cells".to_string(), cells.into())])
    }

    fn signature(&self) -> &'static [&'static str] {
        cell::SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        cell::call(cx, self)
    }
}

impl Cell for StackedRNNCells {
    fn states(&self) -> usize {
        self.cells.iter().map(Cell::states).sum()
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        if self.cells.is_empty() {
            return Err(cx.argument("cells", "1 or more", 0));
        }
        let mut input = input.to_vec();
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut cells: Vec<Box<dyn DeclaredCell + '_>> = vec![];
        for cell in &self.cells {
            let class = cell.class_name();
            let count = counts.entry(class).or_default();
            let number = if *count == 0 { String::new() } else { format!("_{count}") };
            *count += 1;
            let attribute = format!("cells/{}{number}", snake_case(class));
            let declared =
                cx.in_sublayer(&attribute, cell.trainable, |cx| cell.declare(cx, &input))?;
            input = declared.output();
            cells.push(declared);
        }
        let states = self.cells.iter().map(Cell::states).collect();
        Ok(Box::new(Declared { cells, states }))
    }
}

impl DeclaredCell for Declared<'_> {
    fn output(&self) -> Vec<usize> {
        self.cells.last().map(|cell| cell.output()).unwrap_or_default()
    }

    fn state_dims(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<Vec<Vec<usize>>> {
        let dims = self.cells.iter().map(|cell| cell.state_dims(cx, x));
        Ok(dims.collect::<Result<Vec<_>>>()?.concat())
    }

    fn project(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
        self.cells[0].project(cx, x)
    }

    fn step(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        states: &[Option<NodeId>],
    ) -> Result<Step> {
        let mut step = Step { output: x, states: vec![] };
        let mut states = states;
        for (i, (cell, count)) in self.cells.iter().zip(&self.states).enumerate() {
            let x = if i == 0 { x } else { cell.project(cx, step.output)? };
            let (own, rest) = states.split_at(*count);
            let Step { output, states: new } = cell.step(cx, x, own)?;
            step.output = output;
            step.states.extend(new);
            states = rest;
        }
        Ok(step)
    }
}
