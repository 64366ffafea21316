//! Serialization of a model's structure as Keras' `config.json`.

use super::assets::vocabulary_file;
use super::order::{ListEntry, identity, is_chain, order};
use crate::custom;
use crate::layer::{Argument, Arguments, LayerHandle};
use crate::layers::nested::{dtype_value, for_each_policy, policy_value};
use crate::model::{
    Call, Callee, Definition, Input, IoStructure, ModelCall, Shape, Symbol, ValueType,
};
use crate::ops;
use phalanx_graph::DType;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// The two serialization formats of Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::saving) enum Style {
    /// With modules, as in `.keras`, whose archive holds vocabularies beside the config.
    Archive,
    /// The same with vocabularies in the config.
    Version3,
    /// Classes and configs only, as in legacy `.h5`.
    Legacy,
}

impl Style {
    fn has_modules(self) -> bool {
        self != Style::Legacy
    }
}

/// The model as an object, without compile arguments.
pub(in crate::saving) fn model(def: &Definition, style: Style) -> Value {
    Writer { style, shared: shared(def) }.model(def)
}

/// A layer as an object of an archive.
pub(super) fn layer_object(name: &str, layer: &LayerHandle) -> Value {
    Writer { style: Style::Archive, shared: HashMap::new() }.layer(name, layer).into()
}

/// The layers that several models of a file share, each with its number.
fn shared(def: &Definition) -> HashMap<*const (), usize> {
    fn count(def: &Definition, uses: &mut Vec<(*const (), usize)>) {
        for member in &def.members {
            match &member.callee {
                Callee::Input(_) => {}
                Callee::Layer(layer) => {
                    let id = identity(layer);
                    match uses.iter_mut().find(|(known, _)| *known == id) {
                        Some((_, n)) => *n += 1,
                        None => uses.push((id, 1)),
                    }
                }
                Callee::Model(inner) => count(inner, uses),
            }
        }
    }
    let mut uses = vec![];
    count(def, &mut uses);
    let several = uses.into_iter().filter(|(_, n)| *n > 1);
    several.enumerate().map(|(number, (id, _))| (id, number + 1)).collect()
}

/// Keras' name of an element type.
fn dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::I32 => "int32",
        _ => "float32",
    }
}

/// The shape of a batch, in which open sizes are null.
fn shape(batch: Option<usize>, shape: &Shape) -> Value {
    let axes = std::iter::once(&batch).chain(shape.sizes());
    axes.map(|size| size.map_or(Value::Null, Value::from)).collect()
}

struct Writer {
    style: Style,
    shared: HashMap<*const (), usize>,
}

impl Writer {
    fn object(&self, module: &str, class: &str, config: Value) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("class_name".into(), class.into());
        object.insert("config".into(), config);
        if self.style.has_modules() {
            object.insert("module".into(), module.into());
            // Classes that Keras does not export are registered under their own name.
            let exported = matches!(module, "keras" | "keras.layers");
            let registered = if exported { Value::Null } else { class.into() };
            object.insert("registered_name".into(), registered);
        }
        object
    }

    /// An object of a custom class. Legacy files have the registered name in place of the class.
    fn custom(&self, mut object: Map<String, Value>) -> Map<String, Value> {
        if self.style == Style::Legacy {
            let name = object.remove("registered_name").unwrap_or_default();
            object.remove("module");
            object.insert("class_name".into(), name);
        }
        object
    }

    fn model(&self, def: &Definition) -> Value {
        Value::Object(if is_chain(def) { self.sequential(def) } else { self.functional(def) })
    }

    fn sequential(&self, def: &Definition) -> Map<String, Value> {
        let input = shape(def.batch_size(), &def.input(0).shape);
        let layers: Vec<Value> =
            def.members.iter().map(|m| self.callee(&m.name, &m.callee).into()).collect();
        let config = json!({
            "name": def.name, "trainable": trainable(def), "dtype": policy_value(def.dtype_policy()), "layers": layers,
            "build_input_shape": input,
        });
        let mut object = self.object("keras", "Sequential", config);
        if self.style.has_modules() {
            object.insert("build_config".into(), json!({ "input_shape": input }));
        }
        object
    }

    fn functional(&self, def: &Definition) -> Map<String, Value> {
        let nodes = Nodes::new(def);
        let layers: Vec<Value> = order(def)
            .into_iter()
            .map(|entry| {
                let (name, mut layer) = match entry {
                    ListEntry::Member(i) => {
                        let member = &def.members[i];
                        (member.name.clone(), self.callee(&member.name, &member.callee))
                    }
                    ListEntry::Unused(i) => {
                        let name = def.input_name(i);
                        let layer = self.input(&name, def.input(i));
                        (name, layer)
                    }
                };
                let inbound = match entry {
                    ListEntry::Member(i) => nodes.inbound(i),
                    ListEntry::Unused(_) => vec![],
                };
                layer.insert("name".into(), name.into());
                layer.insert("inbound_nodes".into(), inbound.into());
                layer.into()
            })
            .collect();
        let tensors = |symbols: &[Symbol], form: &IoStructure| {
            let ends: Vec<Value> = symbols.iter().map(|s| nodes.end(s)).collect();
            match (form, &ends[..]) {
                (IoStructure::Single, [end]) => end.clone(),
                (IoStructure::Nested(tree), _) => tree.with_values(&mut ends.into_iter()),
                (IoStructure::Dict(names), _) => {
                    names.iter().cloned().zip(ends).collect::<Map<_, _>>().into()
                }
                _ => ends.into(),
            }
        };
        let config = json!({
            "name": def.name, "trainable": trainable(def), "layers": layers,
            "input_layers": tensors(&def.inputs, &def.input_structure),
            "output_layers": tensors(&def.outputs, &def.output_structure),
        });
        let mut object = self.object("keras.src.models.functional", "Functional", config);
        if self.style.has_modules() {
            object.insert("build_config".into(), json!({ "input_shape": null }));
        }
        object
    }

    fn callee(&self, name: &str, callee: &Callee) -> Map<String, Value> {
        match callee {
            Callee::Input(input) => self.input(name, input),
            Callee::Layer(layer) => self.layer(name, layer),
            Callee::Model(inner) => match self.model(inner) {
                Value::Object(mut object) => {
                    // Its name in the enclosing model.
                    object["config"]["name"] = name.into();
                    if self.style.has_modules() {
                        object.insert("compile_config".into(), json!({}));
                    }
                    object
                }
                _ => Map::new(),
            },
        }
    }

    fn input(&self, name: &str, input: &Input) -> Map<String, Value> {
        let dtype = match input.declared {
            Some(declared) => declared,
            None if input.text => "string",
            None => dtype(input.dtype),
        };
        let mut config = json!({ "batch_shape": shape(input.batch_size, &input.shape), "dtype": dtype,
                                 "sparse": false, "name": name });
        if input.optional {
            config["optional"] = true.into();
        }
        self.object("keras.layers", "InputLayer", config)
    }

    fn layer(&self, name: &str, layer: &LayerHandle) -> Map<String, Value> {
        let mut config = layer.layer().config();
        let (module, class) = (layer.layer().module(), layer.layer().class_name());
        config.insert("name".into(), name.into());
        if ops::is_op(module) {
            return self.object(module, class, config.into());
        }
        if let Some(vocabulary) = layer.layer().vocabulary()
            && (self.style != Style::Archive || vocabulary_file(layer.layer()).is_none())
        {
            let entries = vocabulary.config_entries().into_iter();
            config.extend(entries.map(|(key, value)| (key.to_string(), value)));
        }
        let dtype = layer.layer().dtype();
        if class.starts_with("SpatialDropout")
            || matches!(class, "Discretization" | "HashedCrossing")
        {
            // Keras' own layer accepts no more than this.
            config.insert("dtype".into(), dtype.into());
        } else {
            config.insert("trainable".into(), layer.trainable().into());
            let policy = match dtype {
                "float32" => policy_value(layer.dtype_policy().unwrap_or_default()),
                other => dtype_value(other),
            };
            for value in config.values_mut() {
                for_each_policy(value, &mut |dtype| *dtype = policy.clone());
            }
            config.insert("dtype".into(), policy);
        }
        let mut object = match custom::object(module, class, config) {
            Value::Object(object) if object["registered_name"] == class => self.custom(object),
            object => self.object(module, class, object["config"].clone()),
        };
        if let Some(number) = self.shared.get(&identity(layer)) {
            object.insert("shared_object_id".into(), (*number).into());
        }
        object
    }
}

/// A model is trainable if any of its layers is, or if it has none.
fn trainable(def: &Definition) -> bool {
    let layers = def.layers();
    layers.is_empty() || layers.iter().any(|(_, layer)| layer.trainable())
}

/// The calls of a functional model, numbered as in Keras.
struct Nodes<'a> {
    def: &'a Definition,
    /// For each call: its member, and its index among the calls of that member.
    indices: HashMap<*const Call, (usize, usize)>,
    /// The calls of each member.
    calls: Vec<Vec<&'a ModelCall>>,
    /// The size of every batch, if it is fixed.
    batch: Option<usize>,
}

impl<'a> Nodes<'a> {
    fn new(def: &'a Definition) -> Nodes<'a> {
        let mut calls: Vec<Vec<&ModelCall>> = def.members.iter().map(|_| vec![]).collect();
        def.calls.iter().for_each(|placed| calls[placed.member].push(placed));
        let mut indices = HashMap::new();
        for (member, calls) in calls.iter_mut().enumerate() {
            calls.sort_by_key(|placed| placed.call.sequence);
            for (number, placed) in calls.iter().enumerate() {
                indices.insert(Arc::as_ptr(&placed.call), (member, number));
            }
        }
        Nodes { def, indices, calls, batch: def.batch_size() }
    }

    /// The member and index of a call. An unused input is in no call.
    fn node_index(&self, symbol: &Symbol) -> (String, usize) {
        match self.indices.get(&symbol.id()) {
            Some((member, number)) => (self.def.members[*member].name.clone(), *number),
            None => {
                let unused = self.def.inputs.iter().position(|s| s.id() == symbol.id());
                (unused.map_or(String::new(), |i| self.def.input_name(i)), 0)
            }
        }
    }

    /// An input or output of the model. Keras numbers the calls of functional models from 1 here.
    fn end(&self, symbol: &Symbol) -> Value {
        let (name, number) = self.node_index(symbol);
        let functional = matches!(&symbol.call.callee, Callee::Model(inner) if !is_chain(inner));
        json!([name, number + usize::from(functional), symbol.output])
    }

    fn inbound(&self, member: usize) -> Vec<Value> {
        let calls = self.calls[member].iter().filter(|p| !p.call.inputs.is_empty());
        calls
            .map(|model_call| {
                let Arguments { positional, named } =
                    model_call.call.arguments.map(|i| self.tensor(&model_call.call.inputs[*i]));
                let args: Vec<Value> = positional.into_iter().map(argument).collect();
                let kwargs: Map<String, Value> =
                    named.into_iter().map(|(name, value)| (name, argument(value))).collect();
                json!({ "args": args, "kwargs": kwargs })
            })
            .collect()
    }

    fn tensor(&self, symbol: &Symbol) -> Value {
        let (name, number) = self.node_index(symbol);
        let ty = self.ty(symbol);
        let dtype = match &symbol.call.callee {
            Callee::Input(input) if input.text => "string",
            _ => dtype(ty.dtype()),
        };
        json!({ "class_name": "__keras_tensor__", "config": {
            "shape": shape(self.batch, &ty.shape()), "dtype": dtype,
            "keras_history": [name, number, symbol.output],
        }})
    }

    fn ty(&self, symbol: &Symbol) -> ValueType {
        if let Callee::Model(inner) = &symbol.call.callee {
            return inner.output_types[symbol.output].clone();
        }
        let (member, number) = self.indices[&symbol.id()];
        self.calls[member][number].types[symbol.output].clone()
    }
}

/// A serialized argument of a call.
fn argument(argument: Argument<Value>) -> Value {
    match argument {
        Argument::Tensor(value) | Argument::Plain(value) => value,
        Argument::List(items) => items.into_iter().map(self::argument).collect(),
        Argument::Dict(entries) => {
            let entries = entries.into_iter().map(|(name, item)| (name, self::argument(item)));
            Value::Object(entries.collect())
        }
    }
}
