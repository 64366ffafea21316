//! Ops on integers. Keras computes them with 32-bit integers, Phalanx with 32-bit floats, which is the same below 2²⁴. So
//! every op whose result is an integer in Keras checks its operands and its result; see [`Rule`].

use super::OpClass;
use super::context::OpContext;
use crate::error::Result;
use crate::layer::{
    Argument, Arguments, EXACT_INTEGERS, LayerContext, Operand, Outputs, too_large,
};
use crate::registry::Config;
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, NodeId};
use serde_json::Value;

/// Powers below this limit are exact after rounding: 32-bit floats compute them to a few units in the last place.
const EXACT_POWERS: f64 = 1_048_576.0;

/// Factors below this limit are exact in products of matrices, which GPUs may round to 11 bits.
const EXACT_FACTORS: f64 = 2048.0;

/// How large the results of an op on integers can be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Truth values, or indices: constants of any size may be compared.
    Truth,
    /// Elements of the operands. Those of 32-bit integers often stay such.
    Moves,
    /// No larger than the largest operand.
    Bounded,
    /// Larger than the operands. The result is checked.
    Grows,
    /// So large that it may be infinite. The result is checked.
    Explodes,
    /// A sum, whose parts may be larger than the result. It is checked on the magnitudes of the operands.
    Sums,
    /// A sum of products of matrices: as a sum, and its factors have a limit of their own.
    Products,
    /// A power, which is rounded.
    Power,
    /// Exact if the operands are below a limit.
    Below(f64),
}

/// The rule of an op; `None` if its result is a float in Keras.
fn rule(op: &OpClass, config: &Config) -> Option<Rule> {
    Some(match op.name {
        "All" | "AllClose" | "Any" | "Argmax" | "Argmin" | "Argpartition" | "Argsort"
        | "CountNonzero" | "Digitize" | "Equal" | "Greater" | "GreaterEqual" | "InTopK"
        | "IsIn" | "Isclose" | "Isfinite" | "Isinf" | "Isnan" | "Isneginf" | "Isposinf"
        | "Isreal" | "Less" | "LessEqual" | "LogicalAnd" | "LogicalNot" | "LogicalOr"
        | "LogicalXor" | "Nanargmax" | "Nanargmin" | "NotEqual" | "SearchSorted" | "Signbit" => {
            Rule::Truth
        }
        "Append" | "Array" | "ArraySplit" | "BroadcastTo" | "Cast" | "Concatenate" | "Conj"
        | "Conjugate" | "ConvertToTensor" | "Copy" | "Diagonal" | "Dsplit" | "Dstack"
        | "EmptyLike" | "ExpandDims" | "Flip" | "Fliplr" | "Flipud" | "FullLike" | "GetItem"
        | "Hsplit" | "Hstack" | "Imag" | "Moveaxis" | "OnesLike" | "Pad" | "Ravel" | "Real"
        | "Repeat" | "Reshape" | "Roll" | "Rot90" | "Slice" | "SliceUpdate" | "Split"
        | "Squeeze" | "Stack" | "StopGradient" | "Swapaxes" | "Take" | "TakeAlongAxis" | "Tile"
        | "Transpose" | "Tril" | "Triu" | "Unstack" | "Vsplit" | "Vstack" | "ZerosLike" => {
            Rule::Moves
        }
        "Abs" | "Absolute" | "Amax" | "Amin" | "BitwiseAnd" | "BitwiseInvert" | "BitwiseNot"
        | "BitwiseOr" | "BitwiseRightShift" | "BitwiseXor" | "Clip" | "FloorDivide" | "Fmax"
        | "Fmin" | "Fmod" | "Gcd" | "Max" | "Maximum" | "Min" | "Minimum" | "Mod" | "NanToNum"
        | "Nanmax" | "Nanmin" | "Negative" | "Relu" | "Relu6" | "RightShift" | "Round"
        | "SaturateCast" | "Select" | "Sign" | "Sort" | "TopK" | "Trunc" | "UnravelIndex"
        | "Where" => Rule::Bounded,
        "Add" | "Lcm" | "Multiply" | "Outer" | "Ptp" | "Square" | "Subtract" => Rule::Grows,
        "BitwiseLeftShift" | "Cumprod" | "LeftShift" | "Nancumprod" | "Nanprod" | "Prod"
        | "Vander" => Rule::Explodes,
        "Cumsum" | "Nancumsum" | "Nansum" | "Sum" | "Trace" => Rule::Sums,
        "Dot" | "Einsum" | "Inner" | "Matmul" | "Tensordot" | "Vdot" => Rule::Products,
        "Power" => Rule::Power,
        // Differences of two products.
        "Cross" => Rule::Below(EXACT_FACTORS),
        // Each difference may double the numbers.
        "Diff" => match config.get("n").and_then(Value::as_u64).unwrap_or(1).min(24) {
            0 | 1 => Rule::Grows,
            times => Rule::Below(EXACT_INTEGERS / (1u64 << times) as f64),
        },
        _ => return None,
    })
}

/// The operands of a call that decide the type of the result.
#[derive(Default)]
struct Operands {
    tensors: Vec<NodeId>,
    /// The largest magnitude of a number.
    largest: f64,
    /// Whether there are numbers with a fraction, as Python writes floats.
    fractions: bool,
}

impl Operands {
    fn of(cx: &LayerContext<'_>, op: &OpClass) -> Operands {
        let mut found = Operands::default();
        // Conditions choose among values of any type.
        for name in op.arguments.iter().filter(|name| !["condition", "condlist"].contains(*name)) {
            if let Some(argument) = cx.passed(op.arguments, name) {
                found.add(argument);
            }
        }
        if op.arguments == ["args"] {
            cx.arguments().positional.iter().for_each(|argument| found.add(argument));
        }
        found
    }

    fn add(&mut self, argument: &Argument<Operand>) {
        match argument {
            Argument::Tensor(operand) => self.tensors.push(operand.node),
            Argument::Plain(value) => self.add_numbers(value),
            Argument::List(items) => items.iter().for_each(|item| self.add(item)),
            Argument::Dict(entries) => entries.iter().for_each(|(_, item)| self.add(item)),
        }
    }

    fn add_numbers(&mut self, value: &Value) {
        match value {
            Value::Number(number) => {
                self.fractions |= number.is_f64();
                self.largest = self.largest.max(number.as_f64().unwrap_or_default().abs());
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_numbers(item)),
            // An array as Keras serializes it.
            Value::Object(_) => {
                if let Some(value) = value.pointer("/config/value") {
                    self.add_numbers(value);
                }
                let dtype = value.pointer("/config/dtype").and_then(Value::as_str);
                self.fractions |= dtype.is_some_and(|dtype| dtype.contains("float"));
            }
            _ => {}
        }
    }
}

/// The arguments of a call with the magnitudes of its operands.
fn magnitudes(cx: &mut LayerContext<'_>, op: &OpClass) -> Result<Arguments<Operand>> {
    let mut nodes = vec![];
    cx.arguments().for_each_tensor(&mut |operand| nodes.push(operand.node));
    let mut sizes = vec![];
    for node in nodes {
        let g = cx.graph();
        let floats = g.cast(node, DType::F32)?;
        sizes.push((node, g.unary(Unary::Abs, floats)?));
    }
    let mut arguments = cx.arguments().map(|operand| {
        let size = sizes.iter().find(|(node, _)| *node == operand.node);
        Operand { node: size.map_or(operand.node, |(_, size)| *size), mask: operand.mask }
    });
    let operands = if op.arguments == ["args"] { usize::MAX } else { op.arguments.len() };
    arguments.positional.iter_mut().take(operands).for_each(make_positive);
    let named = arguments.named.iter_mut();
    let named = named.filter(|(name, _)| op.arguments.contains(&name.as_str()));
    named.for_each(|(_, argument)| make_positive(argument));
    Ok(arguments)
}

/// Replaces the numbers of an argument by their magnitudes.
fn make_positive(argument: &mut Argument<Operand>) {
    fn numbers(value: &mut Value) {
        match value {
            Value::Number(number) => {
                if let Some(size) = number.as_i64().map(i64::unsigned_abs) {
                    *value = size.into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(numbers),
            Value::Object(_) => {
                if let Some(value) = value.pointer_mut("/config/value") {
                    numbers(value);
                }
            }
            _ => {}
        }
    }
    match argument {
        Argument::Plain(value) => numbers(value),
        Argument::List(items) => items.iter_mut().for_each(make_positive),
        _ => {}
    }
}

/// Appends an op. If its operands are integers, checks that the result is that of 32-bit integers.
pub(super) fn build(cx: &mut LayerContext<'_>, op: &OpClass, config: &Config) -> Result<Outputs> {
    let Some(rule) = rule(op, config) else { return call(cx, op, config) };
    let operands = Operands::of(cx, op);
    let is_integer = |cx: &mut LayerContext<'_>, x: &NodeId| cx.lowering().holds_integers(*x);
    let integers = !operands.tensors.is_empty()
        && !operands.fractions
        && operands.tensors.iter().all(|x| is_integer(cx, x));
    if !integers {
        let outputs = call(cx, op, config)?;
        if rule == Rule::Truth {
            mark(cx, &outputs);
        }
        return Ok(outputs);
    }
    // Layers with 16-bit results would round.
    cx.graph().keep_wide();
    let owner = format!("layer '{}' ({})", cx.name(), op.name);
    if is_cast_to_float(cx, op, config) {
        return floats(cx, op, config);
    }
    let large = operands.largest >= EXACT_INTEGERS
        || rule == Rule::Products && operands.largest >= EXACT_FACTORS;
    if large && !matches!(rule, Rule::Truth | Rule::Moves | Rule::Bounded) {
        return Err(too_large(&owner, operands.largest));
    }
    let outputs = call(cx, op, config)?;
    let is_i32 = |node: &NodeId| cx.ty(*node).dtype == DType::I32;
    if rule == Rule::Moves && outputs.nodes().iter().all(is_i32) {
        return Ok(outputs);
    }
    for x in &operands.tensors {
        cx.lowering().check_integers(&owner, *x, EXACT_INTEGERS, false)?;
    }
    ResultCheck { op, config, rule, large, owner: &owner }.run(cx, &operands.tensors, outputs)
}

/// Checks the results of an op on integers.
struct ResultCheck<'a> {
    op: &'a OpClass,
    config: &'a Config,
    rule: Rule,
    /// Whether a number among the operands is large enough for an inexact result.
    large: bool,
    /// The layer, for messages.
    owner: &'a str,
}

impl ResultCheck<'_> {
    fn run(
        self,
        cx: &mut LayerContext<'_>,
        operands: &[NodeId],
        mut outputs: Outputs,
    ) -> Result<Outputs> {
        let ResultCheck { op, config, rule, large, owner } = self;
        let limit = if rule == Rule::Power { EXACT_POWERS } else { EXACT_INTEGERS };
        let factors = match rule {
            Rule::Products => Some(EXACT_FACTORS),
            Rule::Below(limit) => Some(limit),
            _ => None,
        };
        for x in operands.iter().filter(|_| factors.is_some()) {
            // A limit of its own: the operands are checked for other ops too.
            let x = cx.graph().cast(*x, DType::F32)?;
            cx.lowering().check_integers(owner, x, factors.unwrap_or(limit), false)?;
        }
        let mut checked = outputs.nodes().to_vec();
        match rule {
            Rule::Moves | Rule::Bounded if !large => checked.clear(),
            Rule::Truth => checked.clear(),
            Rule::Moves | Rule::Bounded | Rule::Grows | Rule::Explodes => {}
            Rule::Sums | Rule::Products => {
                let arguments = magnitudes(cx, op)?;
                let sizes = call(&mut cx.with_arguments(&arguments), op, config)?;
                checked = sizes.nodes().to_vec();
            }
            Rule::Power => {
                for node in &mut checked {
                    *node = cx.graph().unary(Unary::Round, *node)?;
                }
                outputs = outputs.with_nodes(checked.clone());
            }
            Rule::Below(_) => checked.clear(),
        }
        for x in checked {
            let infinities =
                matches!(rule, Rule::Explodes | Rule::Power | Rule::Sums | Rule::Products);
            cx.lowering().check_integers(owner, x, limit, infinities)?;
        }
        mark(cx, &outputs);
        Ok(outputs)
    }
}

fn call(cx: &mut LayerContext<'_>, op: &OpClass, config: &Config) -> Result<Outputs> {
    (op.build)(&mut OpContext::new(cx, op.arguments, config))
}

/// Notes that results are integers.
fn mark(cx: &mut LayerContext<'_>, outputs: &Outputs) {
    outputs.nodes().iter().for_each(|node| cx.lowering().mark_integers(*node));
}

/// Whether an op converts its operand to floats.
fn is_cast_to_float(cx: &mut LayerContext<'_>, op: &OpClass, config: &Config) -> bool {
    if !matches!(op.name, "Array" | "Cast" | "ConvertToTensor" | "SaturateCast") {
        return false;
    }
    let dtype = OpContext::new(cx, op.arguments, config).option("dtype");
    dtype.as_str().is_some_and(|dtype| dtype.contains("float"))
}

/// Appends an op whose results are floats from now on, and are rounded as floats.
fn floats(cx: &mut LayerContext<'_>, op: &OpClass, config: &Config) -> Result<Outputs> {
    let outputs = call(cx, op, config)?;
    let mut nodes = outputs.nodes().to_vec();
    for node in &mut nodes {
        // Without a node of its own, it would still be known as integers.
        if cx.lowering().holds_integers(*node) {
            *node = cx.graph().stop_gradient(*node)?;
        }
    }
    Ok(outputs.with_nodes(nodes))
}
