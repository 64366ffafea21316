//! The context of an op: the arguments of its call and its constructor.

use crate::error::{Error, Result};
use crate::layer::{Argument, Arguments, Layer, LayerContext, Operand};
use crate::registry::Config;
use phalanx_graph::{DType, Graph, NodeId, Type};
use serde_json::Value;

/// The largest number of elements of an array in a call.
const MAX_CONSTANT: usize = 1 << 24;

/// The largest size in an argument.
const MAX_SIZE: usize = 1 << 24;

/// The context of an op: the graph, the arguments of the call and the config.
pub(super) struct OpContext<'a, 'b> {
    cx: &'a mut LayerContext<'b>,
    signature: &'static [&'static str],
    config: &'a Config,
}

/// The context of an op that is called.
pub(super) type OpCall<'a, 'b, 'c> = &'c mut OpContext<'a, 'b>;

/// A node, or why the graph refuses it.
pub(super) type GraphResult = phalanx_graph::Result<NodeId>;

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

    /// The context of the layer that the op is.
    pub fn layer(&mut self) -> &mut LayerContext<'b> {
        self.cx
    }

    /// The dimensions of a value, without the batch.
    pub fn dims(&self, x: NodeId) -> Vec<usize> {
        self.cx.dims(x)
    }

    /// The number of axes of a value. Rows count the batch; other values have no batch.
    pub fn rank(&self, x: NodeId) -> usize {
        let ty = self.cx.ty(x);
        ty.dims.len() + usize::from(ty.is_rows())
    }

    /// Whether a value has one entry per sample.
    pub fn is_rows(&self, x: NodeId) -> bool {
        self.cx.ty(x).is_rows()
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

    /// A value as floats, if the call has it.
    pub fn optional(&mut self, name: &str) -> Result<Option<NodeId>> {
        if self.passed(name).is_none() { Ok(None) } else { self.tensor(name).map(Some) }
    }

    /// Values as floats that broadcast together.
    pub fn operands<const N: usize>(&mut self, names: [&str; N]) -> Result<[NodeId; N]> {
        let mut nodes = vec![];
        for name in names {
            nodes.push(self.tensor(name)?);
        }
        self.align(&mut nodes)?;
        Ok(std::array::from_fn(|i| nodes[i]))
    }

    /// A list of values as floats.
    pub fn tensors(&mut self, name: &str) -> Result<Vec<NodeId>> {
        let items = match self.passed(name) {
            Some(Argument::List(items)) => items.clone(),
            Some(Argument::Plain(Value::Array(items))) => {
                items.iter().cloned().map(Argument::Plain).collect()
            }
            _ => return Err(self.argument(name, "a list of tensors", "something else")),
        };
        self.values(name, &items)
    }

    /// All positional arguments as floats.
    pub fn positional(&mut self) -> Result<Vec<NodeId>> {
        let items = self.cx.arguments().positional.clone();
        self.values("operands", &items)
    }

    fn values(&mut self, name: &str, items: &[Argument<Operand>]) -> Result<Vec<NodeId>> {
        if items.is_empty() {
            return Err(self.argument(name, "at least one tensor", "none"));
        }
        let mut out = vec![];
        for item in items {
            let node = self.value(name, item)?;
            out.push(self.graph().cast(node, DType::F32)?);
        }
        Ok(out)
    }

    /// Aligns values for broadcasting as NumPy does, whose shapes count the samples: rows must have as many axes as
    /// other rows, and a leading axis of size one of other values stands for the batch.
    pub fn align(&mut self, nodes: &mut [NodeId]) -> Result<()> {
        let ranks = nodes.iter().filter(|x| self.is_rows(**x)).map(|x| self.dims(*x).len());
        let Some(rank) = ranks.max() else { return Ok(()) };
        for x in nodes.iter_mut() {
            let dims = self.dims(*x);
            let fits = match (self.is_rows(*x), dims.split_first()) {
                (true, _) => dims.len() == rank,
                (false, Some((1, rest))) if rest.len() == rank => {
                    *x = self.graph().reshape(*x, rest)?;
                    true
                }
                _ => dims.len() <= rank,
            };
            if !fits {
                let expected = format!("tensors of {} axes with the same batch", rank + 1);
                return Err(self.argument("operands", &expected, self.cx.ty(*x).shape_text()));
            }
        }
        Ok(())
    }

    /// The first output of a layer without weights. `config` are the layer's arguments.
    pub fn call_layer(&mut self, class: &str, config: Config, x: NodeId) -> Result<NodeId> {
        let layer: Box<dyn Layer> = crate::layers::from_config(class, config)?;
        let positional = vec![Argument::Tensor(x.into())];
        let arguments = Arguments { positional, named: vec![] };
        let outputs = self.cx.call_sublayer("layer", &*layer, true, &arguments)?;
        match outputs.first() {
            Some(operand) => Ok(operand.node),
            None => Err(self.argument("outputs", "one", "none")),
        }
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
        Type::mirrored(dims.clone()).check_limits()?;
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

    /// Whether the constructor has an argument, also if it is null.
    pub fn config_has(&self, name: &str) -> bool {
        self.config.contains_key(name)
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

    /// One whole number of at least `min`.
    pub fn size(&self, name: &str, min: usize) -> Result<usize> {
        let value = self.option(name);
        let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
        let size = size.filter(|n| *n >= min && *n <= MAX_SIZE);
        size.ok_or_else(|| self.argument(name, &format!("{min} to {MAX_SIZE}"), value))
    }

    /// Two sizes of at least `min`: one number for both, or a list.
    pub fn pair(&self, name: &str, default: usize, min: usize) -> Result<[usize; 2]> {
        let list = self.integers(name)?.unwrap_or_else(|| vec![default as i64]);
        let sizes: Vec<usize> = list.iter().filter_map(|n| usize::try_from(*n).ok()).collect();
        let sizes = match sizes[..] {
            [both] if list.len() == 1 => Some([both; 2]),
            [first, second] if list.len() == 2 => Some([first, second]),
            _ => None,
        };
        let sizes = sizes.filter(|s| s.iter().all(|n| *n >= min && *n <= MAX_SIZE));
        let expected = format!("one or two numbers from {min} to {MAX_SIZE}");
        sizes.ok_or_else(|| self.argument(name, &expected, format!("{list:?}")))
    }

    /// Converts an axis of a value with `rank` axes, which may be negative.
    pub fn position(&self, axis: i64, rank: usize) -> Result<usize> {
        let positive = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        if !(0..rank as i64).contains(&positive) {
            return Err(self.argument("axis", &format!("one of {rank} axes"), axis));
        }
        Ok(positive as usize)
    }

    /// The dimension that an axis means. The batch is none.
    pub fn dim(&self, x: NodeId, axis: i64) -> Result<usize> {
        let at = self.position(axis, self.rank(x))?;
        let dim = at.checked_sub(usize::from(self.is_rows(x)));
        dim.ok_or_else(|| self.argument("axis", "an axis other than the batch", axis))
    }

    /// The dimension that the option `axis` means.
    pub fn axis(&self, x: NodeId, default: i64) -> Result<usize> {
        match self.integers("axis")?.as_deref() {
            None => self.dim(x, default),
            Some([axis]) => self.dim(x, *axis),
            Some(axes) => Err(self.argument("axis", "one axis", format!("{axes:?}"))),
        }
    }

    /// The dimension that the option `axis` means. Without it, a value that is not rows is flattened.
    pub fn axis_or_flat(&mut self, x: NodeId) -> Result<(NodeId, usize)> {
        match self.integers("axis")? {
            Some(_) => Ok((x, self.axis(x, 0)?)),
            None => Ok((self.flat(x)?, 0)),
        }
    }

    /// All elements on one axis. Rows cannot be flattened, because the batch would be part of it.
    pub fn flat(&mut self, x: NodeId) -> Result<NodeId> {
        if self.is_rows(x) {
            return Err(self.argument("axis", "an axis other than the batch", "all axes"));
        }
        let len = self.cx.ty(x).len();
        Ok(self.graph().reshape(x, &[len])?)
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
