//! What the tests against Python Keras share: the fixture reader, the runner and the comparison.

pub mod trainer;

use phalanx_cpu::reference::{self, Bindings, Context, Value as RefValue};
use phalanx_cpu::simd::Isa;
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_graph::exec::{Batch, Executor, FeedData};
use phalanx_graph::{
    Data, Fetch, Graph, NodeId, Op, Options, ParamId, Program, Scope, Space, Step, Tensor,
};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::PathBuf;

/// A file of `tests/fixtures`, made by `tests/python/make_fixtures.py`.
pub struct Fixture {
    cases: Vec<Value>,
    tensors: HashMap<String, Tensor>,
}

/// One case of a fixture and its tensors.
pub struct Case<'a> {
    fixture: &'a Fixture,
    /// The case's entry in the list of cases.
    pub json: &'a Value,
    /// Its name.
    pub name: &'a str,
}

impl Fixture {
    /// Reads `tests/fixtures/<group>.safetensors`.
    pub fn load(group: &str) -> Fixture {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let path = root.join(format!("{group}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        let metadata = header.metadata().as_ref().expect("metadata");
        let cases = serde_json::from_str(&metadata["cases"]).expect("a list of cases");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
        let tensors = file.iter().map(|(name, view)| {
            let words = view.data().chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
            let data: Data = match view.dtype() {
                safetensors::Dtype::F32 => words.map(f32::from_le_bytes).collect::<Vec<_>>().into(),
                safetensors::Dtype::I32 => words.map(i32::from_le_bytes).collect::<Vec<_>>().into(),
                other => panic!("{name}: unexpected dtype {other:?}"),
            };
            (name.to_string(), Tensor::new(view.shape(), data).expect("the shape's elements"))
        });
        Fixture { cases, tensors: tensors.collect() }
    }

    /// The cases in order.
    pub fn cases(&self) -> impl Iterator<Item = Case<'_>> {
        self.cases.iter().map(|json| {
            let name = json["name"].as_str().expect("a case has a name");
            Case { fixture: self, json, name }
        })
    }
}

impl<'a> Case<'a> {
    /// Keras' class name.
    pub fn class_name(&self) -> &'a str {
        self.json["class_name"].as_str().expect("a case has a class name")
    }

    /// Keras' config.
    pub fn config(&self) -> &'a Map<String, Value> {
        self.json["config"].as_object().expect("a case has a config")
    }

    /// The tensor `<case>/<field>`, if there is one.
    pub fn find(&self, field: &str) -> Option<&'a Tensor> {
        self.fixture.tensors.get(&format!("{}/{field}", self.name))
    }

    /// The tensor `<case>/<field>`.
    pub fn tensor(&self, field: &str) -> &'a Tensor {
        self.find(field).unwrap_or_else(|| panic!("{}/{field} is missing", self.name))
    }

    /// The floats of `<case>/<field>`.
    pub fn f32(&self, field: &str) -> &'a [f32] {
        self.tensor(field).f32().unwrap_or_else(|| panic!("{}/{field} is not f32", self.name))
    }
}

/// What a graph is run on.
#[derive(Clone, Copy, Debug)]
pub enum Runner {
    /// The plain evaluator, in f64.
    Reference,
    /// The CPU executor, in f32, with this many workers; the portable kernels if not the best.
    Cpu { workers: usize, portable: bool },
}

/// Everything a fixture is checked on.
pub const RUNNERS: [Runner; 4] = [
    Runner::Reference,
    Runner::Cpu { workers: 1, portable: false },
    Runner::Cpu { workers: 2, portable: false },
    Runner::Cpu { workers: 1, portable: true },
];

/// Evaluates nodes of a graph in f64, with feeds and parameters in the order of its tables.
pub fn run(
    graph: &Graph,
    outputs: &[NodeId],
    feeds: &[Tensor],
    params: &[Tensor],
) -> Vec<Vec<f64>> {
    run_on(Runner::Reference, graph, outputs, feeds, params)
}

/// Evaluates nodes of a graph on a runner; partial sums come whole.
pub fn run_on(
    runner: Runner,
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
    if let Runner::Cpu { workers, portable } = runner {
        let isa = portable.then_some(Isa::PORTABLE);
        let mut cpu =
            CpuExecutor::new(CpuOptions { devices: 1, workers, fixed: false, isa }, graph.params())
                .expect("an executor");
        return run_cpu(&mut cpu, graph, outputs, feeds, params, rows);
    }
    let values = |tensors: &[Tensor]| tensors.iter().map(to_reference).collect();
    let bindings = Bindings { feeds: values(feeds), params: values(params) };
    let context = Context { rows, seed: 1, step: 0 };
    let results = reference::evaluate(graph, outputs, &bindings, &context);
    results.into_iter().map(from_reference).collect()
}

fn run_cpu(
    cpu: &mut CpuExecutor,
    graph: &Graph,
    outputs: &[NodeId],
    feeds: &[Tensor],
    params: &[Tensor],
    rows: usize,
) -> Vec<Vec<f64>> {
    let mut step = Step::new("test", graph.clone());
    for output in outputs {
        let node = match graph.ty(*output).space {
            Space::Partial => {
                let whole = Op::AllReduce { scope: Scope::All };
                step.graph.push(whole, &[*output]).expect("a partial sum")
            }
            _ => *output,
        };
        step.fetches.push(Fetch { name: "output".into(), node });
    }
    let options = Options::new(cpu.mesh(), rows);
    let id = cpu.load(Program::compile(step, options).expect("a program")).expect("it loads");
    for (i, param) in params.iter().enumerate() {
        let values = param.f32().expect("parameters are floats");
        cpu.set_param(ParamId(i as u32), values).expect("values that fit");
    }
    let feeds: Vec<FeedData<'_>> = feeds.iter().map(feed_data).collect();
    let batch = Batch {
        rows,
        feeds: &feeds,
        seed: 1,
        step: 0,
        scalars: &[],
        accumulate: None,
        staged: false,
    };
    let mut fetched = vec![];
    cpu.run(id, &batch, &mut fetched).expect("it runs");
    fetched.into_iter().map(|v| v.into_iter().map(f64::from).collect()).collect()
}

/// A tensor as an executor takes it.
pub fn feed_data(tensor: &Tensor) -> FeedData<'_> {
    match tensor.data() {
        Data::F32(v) => FeedData::F32(v),
        Data::I32(v) => FeedData::I32(v),
    }
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

/// Fails unless a config is Keras'. Numbers compare as numbers; keys in `apart` may be on one side
/// only.
pub fn assert_config(
    what: &str,
    received: &Map<String, Value>,
    keras: &Map<String, Value>,
    apart: &[&str],
) {
    for key in keras.keys().chain(received.keys()) {
        match (received.get(key), keras.get(key)) {
            (Some(r), Some(k)) => assert!(same(r, k), "{what}: {key}: expected {k}, received {r}"),
            _ => assert!(apart.contains(&key.as_str()), "{what}: {key} is on one side only"),
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
