//! Custom layers, losses, metrics and activations: against Keras' file, written and read back, and refused.

use crate::common::difference_to_scale;
use crate::examples::custom_layer::{self, Coverage, Pinball};
use phalanx::custom::*;
use phalanx::prelude::*;
use phalanx::{losses, metrics};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The class `Scale` of `tests/python/custom_models.py`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    factor: f64,
}

impl Layer for Scale {
    fn class_name(&self) -> &'static str {
        "my>Scale"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let features = cx.ty(inputs[0]).last();
        let gain = cx.weight(WeightSpec::new("gain", &[features], Initializer::Ones {}))?;
        let seen = WeightSpec::new("seen", &[], Initializer::Zeros {}).non_trainable();
        let seen = cx.weight(seen)?;
        if cx.training() {
            let more = cx.graph().offset(seen, 1.0)?;
            cx.assign(1, more);
        }
        let scaled = cx.graph().mul(inputs[0], gain)?;
        Ok(cx.graph().scale(scaled, self.factor)?.into())
    }
}

/// The class `Block`: two dense layers inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    units: usize,
}

impl Layer for Block {
    fn class_name(&self) -> &'static str {
        "my>Block"
    }

    fn config(&self) -> Config {
        to_config(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let mut x = Operand::from(inputs[0]);
        for (attribute, activation) in [("first", "relu"), ("second", "linear")] {
            let dense = Dense::new(self.units).activation(activation);
            let arguments = Arguments { positional: vec![Argument::Tensor(x)], named: vec![] };
            x = cx.call_sublayer(attribute, &dense, true, &arguments)?[0];
        }
        Ok(x.node.into())
    }
}

/// Alternates between `value` and `-value`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Alternating {
    value: f64,
}

impl CustomObject for Alternating {
    fn class_name(&self) -> &'static str {
        "my>Alternating"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomInitializer for Alternating {
    fn fill(&self, values: &mut [f32], _: &[usize], _: &mut Stream) {
        for (i, value) in values.iter_mut().enumerate() {
            *value = if i % 2 == 0 { self.value as f32 } else { -self.value as f32 };
        }
    }
}

/// `factor · (Σw)²`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct SquaredSum {
    factor: f64,
}

impl CustomObject for SquaredSum {
    fn class_name(&self) -> &'static str {
        "my>SquaredSum"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomRegularizer for SquaredSum {
    fn penalty(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        let axes: Vec<usize> = (0..g.ty(weight).dims.len()).collect();
        let sum = g.sum_axes(weight, &axes)?;
        let sum = g.reshape(sum, &[])?;
        let square = g.unary(Unary::Square, sum)?;
        Ok(g.scale(square, self.factor)?)
    }
}

/// Weights between `-limit` and `limit`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clip {
    limit: f64,
}

impl Default for Clip {
    fn default() -> Clip {
        Clip { limit: 0.01 }
    }
}

impl CustomObject for Clip {
    fn class_name(&self) -> &'static str {
        "my>Clip"
    }

    fn config(&self) -> Config {
        to_config(self)
    }
}

impl CustomConstraint for Clip {
    fn project(&self, g: &mut Graph, weight: NodeId) -> Result<NodeId> {
        Ok(g.clamp(weight, -self.limit, self.limit)?)
    }
}

fn bent(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let half = g.scale(x, 0.5)?;
    let relu = g.relu(half)?;
    Ok(g.add(half, relu)?)
}

fn quartic(g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let error = g.sub(y_true, y_pred)?;
    let square = g.unary(Unary::Square, error)?;
    let fourth = g.unary(Unary::Square, square)?;
    Ok(g.mean_row(fourth)?)
}

/// Registers the classes. Registering them again changes nothing.
pub fn register() {
    register_layer::<Scale>("my>Scale").unwrap();
    register_layer::<Block>("my>Block").unwrap();
    custom_layer::register().unwrap();
    register_initializer::<Alternating>("my>Alternating").unwrap();
    register_regularizer::<SquaredSum>("my>SquaredSum").unwrap();
    register_constraint::<Clip>("my>Clip").unwrap();
    register_activation("my>bent", bent).unwrap();
    register_loss_function("my>quartic", quartic).unwrap();
}

fn fixture(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join(format!("{name}.keras"))
}

fn config(path: &Path) -> Value {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut text = String::new();
    archive.by_name("config.json").unwrap().read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn data(case: &crate::common::Case<'_>) -> (Tensor, Tensor) {
    (case.tensor("x").clone(), case.tensor("y").clone())
}

#[test]
fn files_with_registered_classes_predict_and_train_as_in_keras() {
    register();
    let fixture_file = crate::common::Fixture::load("custom");
    for case in fixture_file.cases() {
        let (x, y) = data(&case);
        let mut model = load_model(fixture(&format!("custom_{}", case.name))).unwrap();
        let found = model.predict(&x).unwrap();
        let apart = difference_to_scale(found.f32().unwrap(), case.f32("output"));
        assert!(apart < 1e-5, "{}: {apart:.1e}", case.name);
        for (step, expected) in case.f32("losses").iter().enumerate() {
            let logs = model.train_on_batch(&x, &y).unwrap();
            let loss = logs.get("loss").unwrap();
            let apart = (loss - f64::from(*expected)).abs() / f64::from(*expected);
            assert!(apart < 1e-4, "{}: step {step}: {loss} {expected}", case.name);
        }
        let logs = model.evaluate_with((&x, &y), Inference::new().batch_size(3)).unwrap();
        for (i, expected) in case.f32("metrics").iter().enumerate() {
            let name = case.json["metrics"][i].as_str().unwrap();
            let value = logs.get(name).unwrap_or_else(|| panic!("{name} is not in {logs}"));
            assert!(
                (value - f64::from(*expected)).abs() < 1e-4 * f64::from(expected.abs()).max(0.1)
            );
        }
        for (i, (weight, expected)) in
            model.get_weights().unwrap().iter().zip(case.list("after")).enumerate()
        {
            let apart = difference_to_scale(weight.f32().unwrap(), expected.f32().unwrap());
            assert!(apart < 1e-4, "{}: weight {i}: {apart:.1e}", case.name);
        }
    }
}

#[test]
fn saving_writes_what_keras_writes() {
    register();
    let directory = tempfile::tempdir().unwrap();
    for name in ["custom_classes", "custom_functions", "custom_weights"] {
        let original = config(&fixture(name));
        let model = load_model(fixture(name)).unwrap();
        let path = directory.path().join(format!("{name}.keras"));
        model.save(&path).unwrap();
        let written = config(&path);
        let layers = |config: &Value| config["config"]["layers"].as_array().unwrap().clone();
        for (ours, keras) in layers(&written).iter().zip(layers(&original)) {
            for key in ["class_name", "registered_name"] {
                assert_eq!(ours[key], keras[key], "{name}: {key} of {keras}");
            }
            // Python finds a registered class without its module.
            let module = if keras["registered_name"].is_null() {
                keras["module"].clone()
            } else {
                Value::Null
            };
            assert_eq!(ours["module"], module, "{name}: module of {keras}");
            let activation = |value: &Value| value["config"]["activation"]["config"].clone();
            assert_eq!(activation(ours), activation(&keras));
            for key in ["kernel_initializer", "kernel_regularizer", "bias_constraint"] {
                if !keras["config"][key]["registered_name"].is_string() {
                    continue;
                }
                for entry in ["class_name", "config", "registered_name"] {
                    let of = |layer: &Value| layer["config"][key][entry].clone();
                    assert_eq!(of(ours), of(&keras), "{name}: {key}/{entry}");
                }
            }
        }
        for key in ["loss", "metrics"] {
            let keras = &original["compile_config"][key];
            assert_eq!(written["compile_config"][key], *keras, "{name}: {key}");
        }
        let (x, _) = data(&crate::common::Fixture::load("custom").cases().next().unwrap());
        for file in ["again.keras", "again.h5"] {
            let path = directory.path().join(file);
            model.save(&path).unwrap();
            let again = load_model(&path).unwrap();
            assert_eq!(again.predict(&x).unwrap(), model.predict(&x).unwrap(), "{file}");
        }
    }
}

#[test]
fn a_model_built_here_has_the_compile_config_of_keras() {
    register();
    let original = config(&fixture("custom_classes"));
    let mut model = Sequential::new().add(Input::new([3])).add(Dense::new(2)).build().unwrap();
    let loss = Pinball { quantile: 0.9, ..Pinball::default() };
    model.compile(Compile::new("adam").loss(loss).metrics([Coverage::default()])).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.keras");
    model.save(&path).unwrap();
    let written = config(&path);
    let mut loss = original["compile_config"]["loss"].clone();
    loss["module"] = Value::Null;
    assert_eq!(written["compile_config"]["loss"], loss);
    let metric = &written["compile_config"]["metrics"][0];
    assert_eq!(metric["registered_name"], "example>Coverage");
    model.compile(Compile::new("adam").loss("my>quartic").metrics(["my>quartic"])).unwrap();
    model.save(&path).unwrap();
    let function = json!({ "module": "builtins", "class_name": "function",
                           "config": "my>quartic", "registered_name": "function" });
    assert_eq!(config(&path)["compile_config"]["loss"], function);
    assert_eq!(config(&path)["compile_config"]["metrics"], json!([function]));
}

#[test]
fn a_custom_layer_trains_on_replicas_and_inside_other_layers() {
    register();
    let run = |replicas: usize| {
        let mut model = Sequential::new()
            .add(Input::new([4, 3]))
            .add(TimeDistributed::new(Scale { factor: 2.0 }))
            .add(Flatten::new())
            .add(Block { units: 5 })
            .add(
                Dense::new(5)
                    .kernel_initializer(Initializer::custom(Alternating { value: 0.2 }))
                    .kernel_regularizer(Regularizer::custom(SquaredSum { factor: 0.1 }))
                    .bias_constraint("my>Clip"),
            )
            .build()
            .unwrap();
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        model.compile(Compile::new("adam").loss("mse").strategy(strategy)).unwrap();
        let mut rng = phalanx::Stream::new(1, 0, 0, 0);
        let x = Tensor::new([7, 4, 3], (0..84).map(|_| rng.unit() as f32).collect::<Vec<_>>());
        let history = model.fit(
            (x.unwrap(), Tensor::zeros([7, 5])),
            Fit::new().epochs(2).batch_size(5).verbose(0),
        );
        (model, history.unwrap().get("loss").unwrap().to_vec())
    };
    let (model, one) = run(1);
    let (_, three) = run(3);
    assert!(one.iter().zip(&three).all(|(a, b)| (a - b).abs() < 1e-6), "{one:?} {three:?}");
    let names: Vec<String> = model.layers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["time_distributed", "flatten", "block", "dense"]);
    let bias = model.get_weights().unwrap().pop().unwrap();
    assert!(bias.f32().unwrap().iter().all(|b| b.abs() <= 0.01), "{bias:?}");
    assert!(model.summary().to_string().contains("block (Block)"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nested.keras");
    model.save(&path).unwrap();
    let loaded = load_model(&path).unwrap();
    assert_eq!(loaded.get_weights().unwrap(), model.get_weights().unwrap());
}

#[test]
fn names_must_be_those_of_no_keras_class() {
    let error = register_layer::<Scale>("Dense").unwrap_err().to_string();
    assert!(error.contains("expected a name that Keras does not have"), "{error}");
    for name in ["", "a>", ">b", "a>b>c", "a b"] {
        let error = register_loss::<Pinball>(name).unwrap_err().to_string();
        assert!(error.contains("package>Name"), "{error}");
    }
    assert!(register_activation("relu", bent).is_err());
    let error = losses::get("other>Loss").unwrap_err().to_string();
    assert!(error.contains("register_loss::<Loss>(\"other>Loss\")"), "{error}");
    let any = Type::rows([2]);
    let error = metrics::get("other>Metric", &any, &any).unwrap_err().to_string();
    assert!(error.contains("register_metric::<Metric>(\"other>Metric\")"), "{error}");
}

#[test]
fn initializers_regularizers_and_constraints_are_checked() {
    register();
    let regularizer = || Regularizer::custom(SquaredSum { factor: 0.1 });
    assert_eq!(regularizer(), regularizer());
    assert_ne!(regularizer(), Regularizer::custom(SquaredSum { factor: 0.2 }));
    let error = register_initializer::<Alternating>("HeNormal").unwrap_err().to_string();
    assert!(error.contains("expected a name that Keras does not have"), "{error}");
    let object = |name: &str| {
        json!({ "module": "mine", "class_name": name, "config": {},
                "registered_name": format!("other>{name}") })
    };
    let error = serde_json::from_value::<Initializer>(object("Ramp")).unwrap_err().to_string();
    assert!(error.contains("register_initializer::<Ramp>(\"other>Ramp\")"), "{error}");
    let error = serde_json::from_value::<Constraint>(object("Box")).unwrap_err().to_string();
    assert!(error.contains("register_constraint::<Box>(\"other>Box\")"), "{error}");
    let function = json!({ "module": "builtins", "class_name": "function", "config": "my>ramp",
                           "registered_name": "function" });
    let error = serde_json::from_value::<Regularizer>(function).unwrap_err().to_string();
    assert!(error.contains("received the function 'my>ramp'"), "{error}");
    let unknown = json!({ "module": null, "class_name": "Clip", "config": { "size": 1 },
                          "registered_name": "my>Clip" });
    let error = serde_json::from_value::<Constraint>(unknown).unwrap_err().to_string();
    assert!(error.contains("size"), "{error}");
    let layer = Dense::new(2).activity_regularizer(regularizer());
    let built = Sequential::new().add(Input::new([2])).add(layer).build();
    let error = built.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("activity_regularizer: expected l1, l2 or l1_l2"), "{error}");
}

#[test]
fn what_is_not_registered_is_refused_with_what_to_do() {
    register();
    let refusals = [
        ("custom_unregistered", "register_layer::<Unknown>(\"my>Unknown\")"),
        ("custom_plain", "register_layer::<Plain>(\"Plain\")"),
        ("custom_lambda", "received 'Lambda'"),
        ("custom_function", "register_activation(\"my>unknown\", unknown)"),
    ];
    for (name, expected) in refusals {
        let error = load_model(fixture(name)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let lambda = load_model(fixture("custom_lambda")).map(|_| ()).unwrap_err().to_string();
    assert!(lambda.contains("register_keras_serializable"), "{lambda}");
}
