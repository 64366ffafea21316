//! The model as a TensorFlow graph for TensorBoard's graph tab, with a node per call of a layer and nested
//! models as scopes.
//!
//! Field numbers are those of TensorFlow's `graph.proto`, `node_def.proto`, `attr_value.proto` and
//! `tensor_shape.proto`.

use super::proto::Message;
use crate::layer::LayerHandle;
use crate::model::{Callee, Definition, ValueType};
use phalanx_graph::DType;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// `GraphDef` of a model.
pub(super) fn graph_def(model: &Definition) -> Message {
    let mut graph = Graph::default();
    graph.add(model, "", None);
    let versions = Message::new().int(1, 22);
    graph.nodes.iter().fold(Message::new(), |def, node| def.message(1, node)).message(4, &versions)
}

#[derive(Default)]
struct Graph {
    nodes: Vec<Message>,
    taken: HashSet<String>,
}

impl Graph {
    /// Adds the calls of a model and returns the nodes of its outputs. For a nested model, `given` are the
    /// nodes it is called on.
    fn add(&mut self, model: &Definition, scope: &str, given: Option<&[String]>) -> Vec<String> {
        let mut made: HashMap<*const _, Vec<String>> = HashMap::new();
        for model_call in &model.calls {
            let call = &model_call.call;
            let inputs: Vec<String> = call
                .inputs
                .iter()
                .filter_map(|s| made.get(&s.id())?.get(s.output).cloned())
                .collect();
            let name = format!("{scope}{}", model.members[model_call.member].name);
            let outputs = match &call.callee {
                Callee::Input(_) => {
                    let position = model.inputs.iter().position(|s| s.id() == Arc::as_ptr(call));
                    let outer = given.zip(position).and_then(|(nodes, at)| nodes.get(at).cloned());
                    vec![
                        outer.unwrap_or_else(|| {
                            self.node(name, None, &inputs, &model_call.types[0])
                        }),
                    ]
                }
                Callee::Layer(layer) => {
                    let node = self.node(name, Some(layer), &inputs, &model_call.types[0]);
                    let others = (1..model_call.types.len()).map(|i| format!("{node}:{i}"));
                    std::iter::once(node.clone()).chain(others).collect()
                }
                Callee::Model(inner) => {
                    let scope = self.free(name);
                    self.add(inner, &format!("{scope}/"), Some(&inputs))
                }
            };
            made.insert(Arc::as_ptr(call), outputs);
        }
        let output = |s: &crate::model::Symbol| made.get(&s.id())?.get(s.output).cloned();
        model.outputs.iter().filter_map(output).collect()
    }

    /// Adds a `NodeDef` and returns its name. Repeated calls of a layer get a number.
    fn node(
        &mut self,
        name: String,
        layer: Option<&LayerHandle>,
        inputs: &[String],
        ty: &ValueType,
    ) -> String {
        let name = self.free(name);
        let class = layer.map_or("InputLayer", |layer| layer.layer().class_name());
        let params: usize = layer.map_or(0, |layer| {
            layer.weights().iter().map(|w| w.spec.dims.iter().product::<usize>()).sum()
        });
        let node = Message::new().text(1, &name).text(2, class);
        let node = inputs.iter().fold(node, |node, input| node.text(3, input));
        let dtype = match ty.dtype() {
            DType::F32 => 1,
            DType::F64 => 2,
            DType::I32 => 3,
            DType::Bf16 => 14,
            DType::F16 => 19,
        };
        let shapes = Message::new().message(7, &shape(ty));
        let node = attribute(node, "keras_class", &Message::new().text(2, class));
        let node = attribute(node, "dtype", &Message::new().int(6, dtype));
        let node = attribute(node, "params", &Message::new().int(3, params as i64));
        self.nodes.push(attribute(node, "_output_shapes", &Message::new().message(1, &shapes)));
        name
    }

    fn free(&mut self, base: String) -> String {
        let mut name = base.clone();
        let mut number = 0;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }
}

/// Adds to `NodeDef.attr`.
fn attribute(node: Message, key: &str, value: &Message) -> Message {
    node.message(5, &Message::new().text(1, key).message(2, value))
}

/// `TensorShapeProto` with an unknown number of rows; open sizes are unknown too.
fn shape(ty: &ValueType) -> Message {
    let rows = ty.is_rows().then_some(-1);
    let shape = ty.shape();
    let sizes = shape.sizes().iter().map(|size| size.map_or(-1, |n| n as i64));
    let dims = rows.into_iter().chain(sizes);
    dims.fold(Message::new(), |shape, size| shape.message(2, &Message::new().int(1, size)))
}
