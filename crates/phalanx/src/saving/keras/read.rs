//! Deserialization of a model's structure from Keras' `config.json`, or from the attributes of a legacy
//! `.h5`.
//!
//! All objects are looked up in Phalanx' own registries. An unknown class, option or module is an error,
//! so nothing in a file can run code or access anything outside it.

use super::graph::Graph;
use crate::custom;
use crate::error::{Error, Result};
use crate::layer::LayerHandle;
use crate::layers;
use crate::layers::nested::{POLICIES, for_each_policy, parse_policy, policy_name};
use crate::model::{Callee, Definition, Input, ModelKind, Symbol};
use crate::ops;
use phalanx_graph::{DType, text};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of layers in a file; checks between layers are quadratic.
const MAX_LAYERS: usize = 20_000;

/// Maximum number of layer calls after nested models are expanded.
const MAX_CALLS: usize = 50_000;
/// Maximum nesting of models.
pub(super) const MAX_DEPTH: usize = 32;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 1000;

/// The names allowed for layers, because they are part of paths in files.
pub(in crate::saving) const PLAIN_NAME: &str =
    "letters without '/' and control characters, 1000 bytes at most";

/// Whether a layer may have this name in a file.
pub(in crate::saving) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.contains(|c: char| c == '/' || c.is_control())
}

/// Deserializes a model.
pub(in crate::saving) fn model(object: &Value) -> Result<Definition> {
    let mut reader = Reader { shared: HashMap::new(), sizes: HashMap::new(), layers: 0 };
    let object = Object::parse("model", object)?;
    match object.class {
        "Sequential" => reader.sequential(&object).map(|(model, _)| model),
        "Functional" | "Model" => reader.functional(&object).map(|(model, _)| model),
        other => {
            let known = vec!["Sequential".into(), "Functional".into()];
            Err(Error::Unknown { kind: "model", name: other.into(), known })
        }
    }
}

/// Whether a module belongs to Keras.
pub(super) fn is_keras(module: &str) -> bool {
    module == "keras" || module.starts_with("keras.")
}

/// A serialized object.
pub(super) struct Object<'a> {
    pub class: &'a str,
    pub module: &'a str,
    pub config: &'a Map<String, Value>,
    whole: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    /// Checks that the value names a Keras class and has a config.
    pub fn parse(what: &str, value: &'a Value) -> Result<Object<'a>> {
        let wrong = |expected: &str, received: &Value| {
            Error::argument(what, "config", expected, brief(received))
        };
        let whole = value.as_object().ok_or_else(|| wrong("an object", value))?;
        let class = whole.get("class_name").unwrap_or(&Value::Null);
        let class = class.as_str().ok_or_else(|| wrong("a class_name", class))?;
        let module = whole.get("module").filter(|module| !module.is_null());
        let class = custom::class_and_package(what, whole, class)?.unwrap_or(class);
        let config = whole.get("config").unwrap_or(&Value::Null);
        let config = config.as_object().ok_or_else(|| wrong("a config", config))?;
        let module = module.and_then(Value::as_str).unwrap_or_default();
        Ok(Object { class, module, config, whole })
    }

    fn name(&self) -> Option<&'a str> {
        let name = |map: &'a Map<String, Value>| map.get("name").and_then(Value::as_str);
        name(self.whole).or(name(self.config))
    }
}

/// The start of a value, for display.
pub(super) fn brief(value: &Value) -> String {
    text::brief(&value.to_string()).into_owned()
}

struct Reader {
    /// Objects that other objects of the file refer to by number.
    shared: HashMap<u64, Callee>,
    /// Sizes of the nested models.
    sizes: HashMap<*const Definition, Size>,
    layers: usize,
}

/// The expanded size of a model: a short file can describe a huge model.
#[derive(Clone, Copy, Default)]
struct Size {
    calls: usize,
    depth: usize,
}

impl Reader {
    /// Deserializes an input, a layer or a nested model.
    fn callee(&mut self, value: &Value) -> Result<(String, Callee)> {
        self.layers += 1;
        if self.layers > MAX_LAYERS {
            let received = format!("more than {MAX_LAYERS}");
            return Err(Error::argument("model", "layers", format!("{MAX_LAYERS}"), received));
        }
        let object = Object::parse("layer", value)?;
        let name = object.name().map(str::to_string);
        let number = object.whole.get("shared_object_id").and_then(Value::as_u64);
        let callee = match number.and_then(|n| self.shared.get(&n)) {
            Some(known) => known.clone(),
            None => match object.class {
                "InputLayer" => Callee::Input(input(&object)?),
                "Sequential" => {
                    let (model, size) = self.sequential(&object)?;
                    self.nested(model, size)
                }
                "Functional" | "Model" => {
                    let (model, size) = self.functional(&object)?;
                    self.nested(model, size)
                }
                _ => Callee::Layer(layer_or_op(&object)?),
            },
        };
        if let Some(number) = number {
            self.shared.insert(number, callee.clone());
        }
        let name = name.ok_or_else(|| {
            Error::argument(format!("layer '{}'", object.class), "config", "a name", "none")
        })?;
        if !is_plain_name(&name) {
            let owner = format!("layer '{}'", object.class);
            return Err(Error::argument(owner, "name", PLAIN_NAME, format!("{name:?}")));
        }
        Ok((name, callee))
    }

    fn nested(&mut self, model: Definition, size: Size) -> Callee {
        let model = Arc::new(model);
        self.sizes.insert(Arc::as_ptr(&model), size);
        Callee::Model(model)
    }

    /// The size of a model that makes these calls, with their counts.
    fn size<'b>(
        &self,
        owner: &str,
        calls: impl IntoIterator<Item = (&'b Callee, usize)>,
    ) -> Result<Size> {
        let mut size = Size::default();
        for (callee, times) in calls {
            let inner = match callee {
                Callee::Model(model) => self.sizes.get(&Arc::as_ptr(model)).copied(),
                _ => None,
            };
            let inner = inner.unwrap_or_default();
            size.calls = size.calls.saturating_add(times.saturating_mul(inner.calls + 1));
            size.depth = size.depth.max(inner.depth + 1);
        }
        for (what, most, received) in
            [("calls of layers", MAX_CALLS, size.calls), ("models deep", MAX_DEPTH, size.depth)]
        {
            if received > most {
                return Err(Error::argument(owner, what, format!("{most} at most"), received));
            }
        }
        Ok(size)
    }

    fn sequential(&mut self, object: &Object<'_>) -> Result<(Definition, Size)> {
        let name = object.name().unwrap_or("sequential");
        let owner = format!("model '{name}'");
        let empty = Value::Null;
        let list = object.config.get("layers").unwrap_or(&empty);
        let list = list
            .as_array()
            .filter(|list| !list.is_empty())
            .ok_or_else(|| Error::argument(&owner, "layers", "a list of layers", brief(list)))?;
        let callees = list.iter().map(|value| Ok(self.callee(value)?.1));
        let callees = callees.collect::<Result<Vec<Callee>>>()?;
        let size = self.size(&owner, callees.iter().map(|callee| (callee, 1)))?;
        let mut symbols: Option<(Symbol, Symbol)> = None;
        for callee in callees {
            let (first, last) = match (symbols, callee) {
                (None, Callee::Input(input)) => {
                    let symbol = input.symbol();
                    (symbol.clone(), symbol)
                }
                (Some(_), Callee::Input(_)) => {
                    let received = "another one further down";
                    return Err(Error::argument(owner, "InputLayer", "one, first", received));
                }
                (None, callee) => {
                    let input = first_input(&owner, object, list, &callee)?.symbol();
                    (input.clone(), Symbol::new(callee, vec![input]))
                }
                (Some((first, last)), callee) => (first, Symbol::new(callee, vec![last])),
            };
            symbols = Some((first, last));
        }
        let Some((first, last)) = symbols else { unreachable!("the list is not empty") };
        Ok((Definition::new(name, ModelKind::Sequential, vec![first], vec![last])?, size))
    }

    fn functional(&mut self, object: &Object<'_>) -> Result<(Definition, Size)> {
        let name = object.name().unwrap_or("functional");
        let owner = format!("model '{name}'");
        let get = |key: &str| object.config.get(key).unwrap_or(&Value::Null);
        let list = get("layers").as_array().ok_or_else(|| {
            Error::argument(&owner, "layers", "a list of layers", brief(get("layers")))
        })?;
        let mut graph = Graph::new(&owner);
        for value in list {
            let (name, callee) = self.callee(value)?;
            graph.add(name, callee, value)?;
        }
        let size = self.size(&owner, graph.calls())?;
        graph.connect()?;
        let (inputs, input_structure) = graph.ends("input_layers", get("input_layers"))?;
        let (outputs, output_structure) = graph.ends("output_layers", get("output_layers"))?;
        let mut def = Definition::new(name, ModelKind::Functional, inputs, outputs)?;
        (def.input_structure, def.output_structure) = (input_structure, output_structure);
        Ok((def, size))
    }
}

/// The input of a chain without input layer, from the shape with which its first layer or the chain
/// itself was built.
fn first_input(owner: &str, object: &Object<'_>, list: &[Value], callee: &Callee) -> Result<Input> {
    if let Callee::Model(inner) = callee {
        return Ok(inner.input(0).clone());
    }
    let of_first = list[0].get("config").and_then(|config| config.get("batch_input_shape"));
    let shape = of_first.or(object.config.get("build_input_shape")).unwrap_or(&Value::Null);
    input_of_shape(owner, shape)
}

/// An input from a shape whose first size is that of the batch. Sizes that are null are open.
fn input_of_shape(owner: &str, shape: &Value) -> Result<Input> {
    let wrong = || {
        let expected = "[batch or null, ..] with the sizes of a sample";
        Error::argument(owner, "input shape", expected, brief(shape))
    };
    let Some([batch, sizes @ ..]) = shape.as_array().map(Vec::as_slice) else {
        return Err(wrong());
    };
    let size = |size: &Value| match size {
        Value::Null => Ok(None),
        size => size.as_u64().and_then(|n| usize::try_from(n).ok()).map(Some).ok_or_else(wrong),
    };
    let mut input = Input::new(sizes.iter().map(size).collect::<Result<Vec<Option<usize>>>>()?);
    input.batch_size = size(batch)?;
    if input.batch_size == Some(0) {
        return Err(wrong());
    }
    Ok(input)
}

pub(super) fn input(object: &Object<'_>) -> Result<Input> {
    let name = object.name().unwrap_or("input");
    let owner = format!("layer '{name}'");
    for key in ["sparse", "ragged"] {
        if object.config.get(key).is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false))) {
            return Err(Error::argument(owner, key, "false", "true"));
        }
    }
    let null = Value::Null;
    let shape = object.config.get("batch_shape").or(object.config.get("batch_input_shape"));
    let mut input = input_of_shape(&owner, shape.unwrap_or(&null))?.named(name);
    input.optional = object.config.get("optional").and_then(Value::as_bool).unwrap_or_default();
    if object.config.get("dtype").and_then(policy_name) == Some("string") {
        return Ok(input.strings());
    }
    let dtype = object.config.get("dtype").map_or(Some("float32"), policy_name);
    let Some((name, dtype)) = dtype.and_then(declared_type) else {
        let received = dtype.unwrap_or("another kind of value");
        let expected = "string, bool, integers, float32 or floats of 16 bits";
        return Err(Error::argument(owner, "dtype", expected, received));
    };
    input.dtype = dtype;
    input.declared = Some(name).filter(|name| !matches!(*name, "float32" | "int32"));
    Ok(input)
}

/// The element type of an input and the one that stands for it.
fn declared_type(dtype: &str) -> Option<(&'static str, DType)> {
    INPUT_TYPES.iter().find(|(name, _)| *name == dtype).copied()
}

/// The element type that stands for that of an input.
pub(super) fn input_type(dtype: &str) -> Option<DType> {
    declared_type(dtype).map(|(_, dtype)| dtype)
}

/// The element types of inputs, and those that stand for them. Layers compute in 32-bit floats, and truth values are 0
/// and 1.
const INPUT_TYPES: [(&str, DType); 11] = [
    ("float32", DType::F32),
    ("float16", DType::F32),
    ("bfloat16", DType::F32),
    ("bool", DType::F32),
    ("int32", DType::I32),
    ("int64", DType::I32),
    ("int16", DType::I32),
    ("int8", DType::I32),
    ("uint8", DType::I32),
    ("uint16", DType::I32),
    ("uint32", DType::I32),
];

/// Deserializes a layer or a call of `keras.ops`.
pub(super) fn layer_or_op(object: &Object<'_>) -> Result<LayerHandle> {
    if !ops::is_op(object.module) {
        return layer(object);
    }
    let mut config = object.config.clone();
    config.remove("name");
    let op = ops::from_config(object.module, object.class, config)?;
    Ok(LayerHandle::new(op, object.name().map(str::to_string), true))
}

/// Deserializes a layer.
pub(super) fn layer(object: &Object<'_>) -> Result<LayerHandle> {
    let name = object.name().unwrap_or(object.class);
    let owner = || format!("layer '{name}'");
    let mut config = object.config.clone();
    let dtype = config.remove("dtype");
    // Some layers of integers have a type of their own, which is checked below.
    let is_integer = matches!(dtype.as_ref().and_then(policy_name), Some("int32" | "int64"));
    let policy = parse_policy(dtype.as_ref().filter(|_| !is_integer))
        .map_err(|received| Error::argument(owner(), "dtype", POLICIES, received))?;
    let mut other = None;
    for value in config.values_mut() {
        for_each_policy(value, &mut |dtype| {
            if parse_policy(Some(dtype)) != Ok(policy) {
                other = Some(brief(dtype));
            }
        });
    }
    if let Some(other) = other {
        let expected = format!("{}, as the layer itself has", policy.name());
        return Err(Error::argument(owner(), "dtype of its inner layer", expected, other));
    }
    let trainable = match config.remove("trainable") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(trainable)) => trainable,
        Some(other) => {
            return Err(Error::argument(owner(), "trainable", "true or false", brief(&other)));
        }
    };
    config.remove("batch_input_shape");
    // Older versions write the only axis of a batch normalization as a list.
    if let Some(Value::Array(axes)) = config.get("axis")
        && let ([axis], "BatchNormalization") = (&axes[..], object.class)
    {
        let axis = axis.clone();
        config.insert("axis".into(), axis);
    }
    let layer = layers::from_config(object.class, config).map_err(|error| match error {
        Error::Config { owner: class, message } => {
            Error::config(format!("layer '{name}' ({class})"), message)
        }
        other => other,
    })?;
    if is_integer != (layer.dtype() == "int64") && dtype.is_some() {
        let expected = if layer.dtype() == "int64" { "int32 or int64" } else { POLICIES };
        let received = dtype.as_ref().map(brief).unwrap_or_default();
        return Err(Error::argument(owner(), "dtype", expected, received));
    }
    Ok(LayerHandle::new(layer, Some(name.into()), trainable).with_dtype_policy(policy))
}
