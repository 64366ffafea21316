//! What the tests against Python Keras share: the fixture reader, the runner and the comparison.
#![allow(dead_code)] // every test binary uses its part

use phalanx_cpu::reference::{self, Bindings, Context, Value as RefValue};
use phalanx_graph::{Data, Graph, NodeId, Tensor};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::PathBuf;

/// A file of `tests/fixtures`, made by `tests/python/make_fixtures.py`.
pub struct Fixture {
    /// The cases in order.
    pub cases: Vec<Case>,
}

/// One case of a fixture and its tensors.
pub struct Case {
    /// The case's entry in the list of cases.
    pub json: Value,
    tensors: HashMap<String, Tensor>,
}

impl Fixture {
    /// Reads `tests/fixtures/<group>.safetensors`.
    pub fn load(group: &str) -> Fixture {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let path = root.join(format!("{group}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        let metadata = header.metadata().as_ref().expect("metadata");
        let list: Vec<Value> = serde_json::from_str(&metadata["cases"]).expect("a list of cases");
        let mut cases: Vec<Case> =
            list.into_iter().map(|json| Case { json, tensors: HashMap::new() }).collect();
        let index: HashMap<String, usize> =
            cases.iter().enumerate().map(|(i, case)| (case.name().to_string(), i)).collect();
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
        for (name, view) in file.iter() {
            let words = view.data().chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
            let data: Data = match view.dtype() {
                safetensors::Dtype::F32 => words.map(f32::from_le_bytes).collect::<Vec<_>>().into(),
                safetensors::Dtype::I32 => words.map(i32::from_le_bytes).collect::<Vec<_>>().into(),
                other => panic!("{name}: unexpected dtype {other:?}"),
            };
            let tensor = Tensor::new(view.shape(), data).expect("the shape's elements");
            let (case, field) = name.split_once('/').expect("<case>/<field>");
            cases[index[case]].tensors.insert(field.into(), tensor);
        }
        Fixture { cases }
    }
}

impl Case {
    /// Its name.
    pub fn name(&self) -> &str {
        self.text("name")
    }

    /// A string of its entry, such as `class_name`.
    pub fn text(&self, key: &str) -> &str {
        self.json[key].as_str().unwrap_or_else(|| panic!("a case has no {key}"))
    }

    /// Keras' config.
    pub fn config(&self) -> &Map<String, Value> {
        self.json["config"].as_object().expect("a case has a config")
    }

    /// The tensor `<case>/<field>`, if there is one.
    pub fn get(&self, field: &str) -> Option<&Tensor> {
        self.tensors.get(field)
    }

    /// The tensor `<case>/<field>`.
    pub fn tensor(&self, field: &str) -> &Tensor {
        self.get(field).unwrap_or_else(|| panic!("{}/{field} is missing", self.name()))
    }

    /// The tensors `<case>/<field>/0`, `<case>/<field>/1`, ….
    pub fn list(&self, field: &str) -> Vec<&Tensor> {
        (0..).map_while(|i| self.get(&format!("{field}/{i}"))).collect()
    }

    /// The floats of `<case>/<field>`.
    pub fn floats(&self, field: &str) -> &[f32] {
        self.tensor(field).f32().unwrap_or_else(|| panic!("{}/{field} is not f32", self.name()))
    }
}

/// Evaluates nodes of a graph with feeds and parameters in the order of its tables.
pub fn run(
    graph: &Graph,
    outputs: &[NodeId],
    feeds: &[Tensor],
    params: &[Tensor],
) -> Vec<Vec<f64>> {
    graph.verify("test").expect("a sound graph");
    let specs = graph.feeds().iter().zip(feeds);
    let rows = specs.clone().find(|(spec, _)| spec.ty.is_rows()).map_or(1, |(_, t)| t.rows());
    for (spec, tensor) in specs {
        let lead = if spec.ty.is_rows() { vec![rows] } else { vec![] };
        assert_eq!(tensor.dims(), [lead, spec.ty.dims.clone()].concat(), "feed {}", spec.name);
    }
    let values = |tensors: &[Tensor]| tensors.iter().map(to_reference).collect();
    let bindings = Bindings { feeds: values(feeds), params: values(params) };
    let context = Context { rows, seed: 1, step: 0 };
    let results = reference::evaluate(graph, outputs, &bindings, &context);
    results.into_iter().map(from_reference).collect()
}

fn to_reference(tensor: &Tensor) -> RefValue {
    match tensor.data() {
        Data::F32(v) => RefValue::float(tensor.dims(), v.iter().map(|x| f64::from(*x)).collect()),
        Data::I32(v) => RefValue::int(tensor.dims(), v.clone()),
    }
}

fn from_reference(value: RefValue) -> Vec<f64> {
    match value.data {
        reference::Data::Float(v) => v,
        reference::Data::Int(v) => v.into_iter().map(f64::from).collect(),
    }
}

/// The largest difference, relative to the element expected or to a tenth of the largest one:
/// Keras computes in f32, where small elements are what is left of large ones. NaN if any is.
pub fn difference(received: &[f64], expected: &[f32]) -> f64 {
    assert_eq!(received.len(), expected.len(), "number of elements");
    let largest = expected.iter().fold(0.0_f64, |m, e| m.max(f64::from(e.abs())));
    received.iter().zip(expected).fold(0.0, |worst: f64, (r, e)| {
        let e = f64::from(*e);
        let d = (r - e).abs() / e.abs().max(0.1 * largest).max(1e-7);
        if d.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(d) }
    })
}

/// Fails unless the elements are those expected, up to `tolerance`.
pub fn assert_close(what: &str, received: &[f64], expected: &[f32], tolerance: f64) {
    let d = difference(received, expected);
    assert!(
        d <= tolerance,
        "{what}: differs by {d:.2e}\nexpected {expected:?}\nreceived {received:?}"
    );
}

/// Fails unless a config has what Keras' has. Numbers compare as numbers; keys in `without` may be
/// missing.
pub fn assert_config(
    what: &str,
    received: &Map<String, Value>,
    keras: &Map<String, Value>,
    without: &[&str],
) {
    for (key, expected) in keras {
        match received.get(key) {
            None => assert!(without.contains(&key.as_str()), "{what}: key {key} is missing"),
            Some(value) => assert!(same(value, expected), "{what}: {key}: {expected} != {value}"),
        }
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && b.iter().all(|(key, b)| a.get(key).is_some_and(|a| same(a, b)))
        }
        _ => a == b,
    }
}
