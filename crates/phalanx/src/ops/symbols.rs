//! Ops on symbols: arithmetic operators, and calls of any op by its name.

use super::{MODULES, from_config};
use crate::error::{Error, Result};
use crate::layer::{Argument, Arguments, LayerHandle};
use crate::model::{Callee, Symbol};
use crate::registry::Config;
use serde_json::Value;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Calls the op `name`, such as `numpy.Mean`, as `keras.ops` does. `arguments` are those of the call, by position, and
/// `config` those of the constructor.
///
/// ```
/// use phalanx::ops;
/// use phalanx::prelude::*;
/// use serde_json::json;
///
/// let x = Input::new([4, 3]).symbol();
/// let mean = ops::call("numpy.Mean", [(&x).into()], json!({"axis": 1, "keepdims": true}))?;
/// let apart = ops::call("numpy.Subtract", [(&x).into(), (&mean).into()], json!({}))?;
/// let model = Model::new(&x, ops::call("nn.Softmax", [(&apart).into()], json!({}))?)?;
/// assert!(ops::call("numpy.Means", [(&x).into()], json!({})).is_err());
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// # Errors
/// The op is unknown, or `config` is not an object. [`Model::new`](crate::model::Model::new) checks the arguments.
pub fn call<const N: usize>(
    name: &str,
    arguments: [Argument<Symbol>; N],
    config: Value,
) -> Result<Symbol> {
    Ok(record(layer(name, config)?, &arguments))
}

/// The op `name` as a layer; `config` are the arguments of its constructor.
///
/// # Errors
/// The op is unknown, or `config` is not an object.
pub fn layer(name: &str, config: Value) -> Result<LayerHandle> {
    let Value::Object(config) = config else {
        return Err(Error::argument(format!("op '{name}'"), "config", "an object", config));
    };
    let (module, class) = name.rsplit_once('.').unwrap_or(("numpy", name));
    let op = from_config(&format!("{MODULES}{module}"), class, config)?;
    Ok(LayerHandle::new(op, None, true))
}

/// Records the call of an op.
fn record(op: LayerHandle, arguments: &[Argument<Symbol>]) -> Symbol {
    let mut inputs: Vec<Symbol> = vec![];
    let positional = arguments.iter().map(|argument| {
        argument.map(&mut |symbol: &Symbol| {
            inputs.push(symbol.clone());
            inputs.len() - 1
        })
    });
    let arguments = Arguments { positional: positional.collect(), named: vec![] };
    Symbol::with_arguments(Callee::Layer(op), inputs, arguments)
}

/// Records an arithmetic op.
fn arithmetic<const N: usize>(class: &str, arguments: [Argument<Symbol>; N]) -> Symbol {
    let op = layer(class, Config::new().into()).expect("arithmetic ops are in the table");
    record(op, &arguments)
}

impl From<f64> for Argument<Symbol> {
    fn from(value: f64) -> Argument<Symbol> {
        Argument::Plain(value.into())
    }
}

impl From<Symbol> for Argument<Symbol> {
    fn from(symbol: Symbol) -> Argument<Symbol> {
        Argument::Tensor(symbol)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $class:literal, $left:ty, $($right:ty),+) => {
        $(impl $trait<$right> for $left {
            type Output = Symbol;

            fn $method(self, right: $right) -> Symbol {
                arithmetic($class, [self.into(), right.into()])
            }
        })+
    };
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $class:literal;)+) => {$(
        operator!($trait, $method, $class, Symbol, Symbol, &Symbol, f64);
        operator!($trait, $method, $class, &Symbol, Symbol, &Symbol, f64);
        operator!($trait, $method, $class, f64, Symbol, &Symbol);
    )+};
}

operators! {
    Add, add, "Add";
    Sub, sub, "Subtract";
    Mul, mul, "Multiply";
    Div, div, "Divide";
}

impl Neg for Symbol {
    type Output = Symbol;

    fn neg(self) -> Symbol {
        -&self
    }
}

impl Neg for &Symbol {
    type Output = Symbol;

    fn neg(self) -> Symbol {
        arithmetic("Negative", [self.into()])
    }
}
