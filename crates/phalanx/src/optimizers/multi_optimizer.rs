//! Different optimizers for different weights, chosen by the weights' paths.

use super::{Common, Optimizer, TrainedWeight, WeightSlot, WeightUpdate, from_config, patterns};
use crate::error::{Error, Result};
use crate::saving::{self, optimizer_object};
use phalanx_graph::NodeId;
use phalanx_graph::update::Slot;
use serde_json::{Map, Value, json};

const CLASS: &str = "MultiOptimizer";
const MAP: &str = "OptimizerMap";

/// Which optimizer updates a weight: the one whose path or regular expression matches the whole path of the weight, or
/// the default.
///
/// ```
/// use phalanx::optimizers::{Adam, MultiOptimizer, Optimizer, OptimizerMap, SGD};
///
/// let map = OptimizerMap::new(SGD::new(0.1)).with("encoder/.*", Adam::new(1e-3));
/// assert!(MultiOptimizer::new(map).validate().is_ok());
/// ```
#[derive(Debug)]
pub struct OptimizerMap {
    default: Box<dyn Optimizer>,
    by_path: Vec<(String, Box<dyn Optimizer>)>,
    /// The paths in the order of the file they were read from.
    file_order: Option<Vec<String>>,
}

impl OptimizerMap {
    /// A map that gives every weight to one optimizer.
    pub fn new(default_optimizer: impl Optimizer + 'static) -> OptimizerMap {
        let default = Box::new(default_optimizer);
        OptimizerMap { default, by_path: vec![], file_order: None }
    }

    /// Gives weights to another optimizer. `path` is a whole path, such as `dense/kernel`, or a regular expression that
    /// matches it. Paths in a `Sequential` model start with the model's name.
    #[must_use]
    pub fn with(mut self, path: &str, optimizer: impl Optimizer + 'static) -> OptimizerMap {
        self.by_path.push((path.into(), Box::new(optimizer)));
        self
    }

    fn config(&self) -> Value {
        let object = |optimizer: &dyn Optimizer| optimizer_object(optimizer, None);
        let entry = |(path, o): &(String, Box<dyn Optimizer>)| (path.clone(), object(&**o));
        let by_path: Map<String, Value> = self.by_path.iter().map(entry).collect();
        let config =
            json!({ "default_optimizer": object(&*self.default), "optimizer_map": by_path });
        let Value::Object(config) = config else { unreachable!("it is written as an object") };
        saving::object("keras.optimizers", MAP, config)
    }

    fn read(value: &Value) -> Result<OptimizerMap> {
        let class = value.get("class_name").and_then(Value::as_str).unwrap_or_default();
        let config = value.get("config").and_then(Value::as_object).filter(|_| class == MAP);
        let Some(config) = config else {
            let expected = "an OptimizerMap (a Python function cannot be read)";
            return Err(Error::argument(CLASS, "optimizer_map", expected, class));
        };
        let optimizer = |value: Option<&Value>| {
            let class = value.and_then(|v| v.get("class_name")).and_then(Value::as_str);
            let config = value.and_then(|v| v.get("config")).and_then(Value::as_object);
            let missing = || Error::argument(MAP, "optimizers", "an optimizer", "none");
            let (class, config) = class.zip(config).ok_or_else(missing)?;
            from_config(class, config)
        };
        let default = optimizer(config.get("default_optimizer"))?;
        let by_path = match config.get("optimizer_map") {
            Some(Value::Object(map)) => map
                .iter()
                .map(|(path, value)| Ok((path.clone(), optimizer(Some(value))?)))
                .collect::<Result<_>>()?,
            None | Some(Value::Null) => vec![],
            Some(other) => {
                return Err(Error::argument(MAP, "optimizer_map", "optimizers by path", other));
            }
        };
        let texts = |list: &Vec<Value>| list.iter().map(|v| Some(v.as_str()?.into())).collect();
        let file_order = config.get("order").and_then(Value::as_array).and_then(texts);
        Ok(OptimizerMap { default, by_path, file_order })
    }
}

/// Different optimizers for different weights. Each has its own learning rate, clipping and average of the weights.
///
/// The learning rate of a run in progress cannot be set, as in Keras.
#[derive(Debug)]
pub struct MultiOptimizer {
    common: Common,
    map: OptimizerMap,
}

impl MultiOptimizer {
    /// Joins the optimizers of a map.
    pub fn new(mut optimizer_map: OptimizerMap) -> MultiOptimizer {
        // The order of files: keys of JSON objects are sorted.
        optimizer_map.by_path.sort_by(|a, b| a.0.cmp(&b.0));
        let mut common = Common::new("multi_optimizer", 0.0);
        common.gradient_accumulation_steps =
            optimizer_map.default.common().gradient_accumulation_steps;
        MultiOptimizer { common, map: optimizer_map }
    }

    /// Reads a Keras config.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Optimizer>> {
        let map = OptimizerMap::read(config.get("optimizer_map").unwrap_or(&Value::Null))?;
        let mut optimizer = MultiOptimizer::new(map);
        if let Some(name) = config.get("name").and_then(Value::as_str) {
            optimizer.common.name = name.into();
        }
        optimizer.common.loss_scale_factor =
            config.get("loss_scale_factor").and_then(Value::as_f64);
        optimizer.validate()?;
        Ok(Box::new(optimizer))
    }
}

impl Optimizer for MultiOptimizer {
    fn class_name(&self) -> &'static str {
        CLASS
    }

    fn config(&self) -> Map<String, Value> {
        let entries = [
            ("optimizer_map", self.map.config()),
            ("loss_scale_factor", self.common.loss_scale_factor.into()),
            ("name", self.common.name.clone().into()),
        ];
        entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn updates_whole_weights(&self) -> bool {
        true
    }

    fn optimizers(&self) -> Vec<&dyn Optimizer> {
        let by_path = self.map.by_path.iter().map(|(_, optimizer)| &**optimizer);
        by_path.chain([&*self.map.default]).collect()
    }

    fn optimizer_of(&self, of: &TrainedWeight) -> Result<usize> {
        let by_path = &self.map.by_path;
        if let Some(exact) = by_path.iter().position(|(path, _)| *path == of.path) {
            return Ok(exact);
        }
        let mut found = vec![];
        for (i, (pattern, _)) in by_path.iter().enumerate() {
            if patterns::compile_whole(MAP, "path", pattern)?.is_match(&of.path) {
                found.push(i);
            }
        }
        match found[..] {
            [] => Ok(by_path.len()),
            [one] => Ok(one),
            _ => {
                let names: Vec<&str> = found.iter().map(|i| by_path[*i].0.as_str()).collect();
                let expected = format!("one that matches weight '{}'", of.path);
                Err(Error::argument(MAP, "paths", expected, names.join(", ")))
            }
        }
    }

    fn file_order(&self) -> Vec<usize> {
        let by_path = &self.map.by_path;
        let position = |path: &String| by_path.iter().position(|(known, _)| known == path);
        let given = self.map.file_order.as_ref();
        let order: Option<Vec<usize>> =
            given.and_then(|paths| paths.iter().map(position).collect());
        let order = order.filter(|order| order.len() == by_path.len());
        let order = order.unwrap_or_else(|| (0..by_path.len()).collect());
        order.into_iter().chain([by_path.len()]).collect()
    }

    fn rule_name(&self) -> String {
        let names: Vec<String> = self.optimizers().iter().map(|o| o.rule_name()).collect();
        format!("{CLASS}({})", names.join(", "))
    }

    fn slots(&self) -> Vec<Slot> {
        vec![]
    }

    fn weight_slots(&self, of: &TrainedWeight) -> Vec<WeightSlot> {
        self.optimizer_of(of).map_or(vec![], |i| self.optimizers()[i].weight_slots(of))
    }

    fn update(
        &self,
        of: &TrainedWeight,
        u: &mut WeightUpdate<'_>,
    ) -> Result<(NodeId, Vec<NodeId>)> {
        self.optimizers()[self.optimizer_of(of)?].update(of, u)
    }

    fn step_scalars(&self, _: f64, _: u64) -> Vec<f64> {
        vec![]
    }

    fn validate(&self) -> Result<()> {
        for (i, (path, _)) in self.map.by_path.iter().enumerate() {
            patterns::compile_whole(MAP, "path", path)?;
            if i > 0 && self.map.by_path[i - 1].0 == *path {
                return Err(Error::argument(MAP, "paths", "each once", format!("'{path}' twice")));
            }
        }
        for optimizer in self.optimizers() {
            if optimizer.inner().is_some() || !optimizer.optimizers().is_empty() {
                let expected = "optimizers that stand for themselves";
                return Err(Error::argument(
                    CLASS,
                    "optimizer_map",
                    expected,
                    optimizer.class_name(),
                ));
            }
            optimizer.validate()?;
            let (own, steps) = (
                self.common.gradient_accumulation_steps,
                optimizer.common().gradient_accumulation_steps,
            );
            if own != steps {
                let text = |s: Option<u64>| s.map_or("none".to_string(), |s| s.to_string());
                let (argument, received) = ("gradient_accumulation_steps", text(steps));
                let expected = format!("the same for all optimizers ({})", text(own));
                return Err(Error::argument(CLASS, argument, expected, received));
            }
        }
        Ok(())
    }
}
