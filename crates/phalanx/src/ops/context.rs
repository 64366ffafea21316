//! How an op reads the arguments of its call and its constructor.

use crate::error::{Error, Result};
use crate::layer::{Argument, LayerContext, Operand};
use crate::registry::Config;
use phalanx_graph::{DType, Graph, NodeId};
use serde_json::Value;

/// The largest number of elements of an array in a call.
const MAX_CONSTANT: usize = 1 << 24;

/// The context of an op: the graph, the arguments of the call and the config.
pub(super) struct OpContext<'a, 'b> {
    cx: &'a mut LayerContext<'b>,
    signature: &'static [&'static str],
    config: &'a Config,
}

impl<'a, 'b> OpContext<'a, 'b> {
    pub fn new(
        cx: &'a mut LayerContext<'b>,
        signature: &'static [&'static str],
        config: &'a Config,
    ) -> OpContext<'a, 'b> {
        OpContext { cx, signature, config }
    }

    /// The graph to append to.
    pub fn graph(&mut self) -> &mut Graph {
        self.cx.graph()
    }

    /// The dimensions of a value, without the batch.
    pub fn dims(&self, x: NodeId) -> Vec<usize> {
        self.cx.dims(x)
    }

    /// An error about an argument.
    pub fn argument(&self, argument: &str, expected: &str, received: impl ToString) -> Error {
        self.cx.argument(argument, expected, received)
    }

    /// The argument of a call, by position or name.
    pub fn passed(&self, name: &str) -> Option<&Argument<Operand>> {
        self.cx.passed(self.signature, name)
    }

    /// A value as floats: a tensor, a number or an array.
    pub fn tensor(&mut self, name: &str) -> Result<NodeId> {
        let node = self.any_tensor(name)?;
        Ok(self.graph().cast(node, DType::F32)?)
    }

    /// A value of any element type.
    pub fn any_tensor(&mut self, name: &str) -> Result<NodeId> {
        match self.passed(name).cloned() {
            Some(argument) => self.value(name, &argument),
            None => Err(self.argument(name, "a tensor", "none")),
        }
    }

    /// A list of values as floats.
    pub fn tensors(&mut self, name: &str) -> Result<Vec<NodeId>> {
        let Some(Argument::List(items)) = self.passed(name).cloned() else {
            return Err(self.argument(name, "a list of tensors", "something else"));
        };
        let mut out = vec![];
        for item in &items {
            let node = self.value(name, item)?;
            out.push(self.graph().cast(node, DType::F32)?);
        }
        Ok(out)
    }

    fn value(&mut self, name: &str, argument: &Argument<Operand>) -> Result<NodeId> {
        match argument {
            Argument::Tensor(operand) => Ok(operand.node),
            Argument::Plain(value) => self.constant(name, value),
            _ => Err(self.argument(name, "a tensor or a number", "a list of tensors")),
        }
    }

    /// A number, a list of numbers, or an array as Keras serializes it.
    fn constant(&mut self, name: &str, value: &Value) -> Result<NodeId> {
        let array = match value.get("class_name").and_then(Value::as_str) {
            Some("__numpy__" | "__tensor__") => value.pointer("/config/value"),
            Some(_) => None,
            None => Some(value),
        };
        let wrong = |cx: &Self| {
            cx.argument(
                name,
                "a tensor, a number or an array",
                phalanx_graph::text::brief(&value.to_string()),
            )
        };
        let array = array.ok_or_else(|| wrong(self))?;
        if let Some(number) = number(array) {
            return Ok(self.graph().scalar(number));
        }
        let (mut dims, mut values) = (vec![], vec![]);
        flatten(array, 0, &mut dims, &mut values).ok_or_else(|| wrong(self))?;
        // The batch axis of a constant has one entry.
        if let [1, rest @ ..] = &dims[..] {
            dims = rest.to_vec();
        }
        if dims.is_empty() {
            return Ok(self.graph().scalar(f64::from(values[0])));
        }
        Ok(self.cx.constant(name, &dims, values))
    }

    /// An argument of the constructor, or of the call; `Null` if absent.
    pub fn option(&self, name: &str) -> Value {
        let of_call = match self.passed(name) {
            Some(Argument::Plain(value)) => Some(value),
            _ => None,
        };
        of_call.or_else(|| self.config.get(name)).cloned().unwrap_or_default()
    }

    /// A flag, false if absent.
    pub fn flag(&self, name: &str) -> bool {
        self.option(name) == Value::Bool(true)
    }

    /// A number, or a default.
    pub fn number_or(&self, name: &str, default: f64) -> Result<f64> {
        match self.option(name) {
            Value::Null => Ok(default),
            value => number(&value).ok_or_else(|| self.argument(name, "a number", value)),
        }
    }

    /// Whole numbers: one, or a list.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let value = self.option(name);
        let numbers = match &value {
            Value::Null => return Ok(None),
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|n| vec![n]),
        };
        numbers.map(Some).ok_or_else(|| self.argument(name, "whole numbers", &value))
    }

    /// Converts an axis, which counts the batch as 0 and may be negative, to an axis of one sample; `None` is the
    /// batch. `rank` includes the batch.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<Option<usize>> {
        let positive = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        if !(0..rank as i64).contains(&positive) {
            return Err(self.argument("axis", &format!("one of {rank} axes"), axis));
        }
        Ok((positive as usize).checked_sub(1))
    }

    /// The axis of a sample that an axis of the argument `name` means.
    pub fn sample_axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let found = self.axis(axis, rank)?;
        found.ok_or_else(|| self.argument("axis", "an axis other than the batch", axis))
    }
}

/// A number; Python also writes `true` and `false`.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(true) => Some(1.0),
        Value::Bool(false) => Some(0.0),
        other => other.as_f64(),
    }
}

/// Flattens nested lists of numbers. All lists of a level have the same length.
fn flatten(value: &Value, level: usize, dims: &mut Vec<usize>, out: &mut Vec<f32>) -> Option<()> {
    match value {
        Value::Array(items) => {
            match dims.get(level) {
                None => dims.push(items.len()),
                Some(len) if *len == items.len() => {}
                Some(_) => return None,
            }
            if level > 15 || items.is_empty() {
                return None;
            }
            items.iter().try_for_each(|item| flatten(item, level + 1, dims, out))
        }
        other => {
            out.push(number(other)? as f32);
            (level == dims.len() && out.len() <= MAX_CONSTANT).then_some(())
        }
    }
}
