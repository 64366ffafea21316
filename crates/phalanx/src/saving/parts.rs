//! Models from parts in memory, as Python Keras hands them over: no file is written or read.

use super::keras::{self, StoredArrays};
use super::load::Load;
use crate::error::{Error, Result};
use crate::model::Model;
use phalanx_graph::Tensor;
use phalanx_hdf5::Values;
use std::collections::HashMap;
use std::path::Path;

/// The name of the source in error messages.
const ORIGIN: &str = "the model";

/// The parts of a `.keras` file, in memory.
///
/// ```
/// use phalanx::prelude::*;
/// use phalanx::saving::ModelParts;
///
/// let model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
/// model.initialize(1)?;
/// let weights = model.weight_paths().into_iter().map(|(path, _)| path).zip(model.get_weights()?);
/// let parts = ModelParts { config: model.to_json(), weights: weights.collect(), ..ModelParts::default() };
/// assert_eq!(Load::new().parts(parts)?.get_weights()?, model.get_weights()?);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ModelParts {
    /// `config.json`: the structure and the compile arguments.
    pub config: String,
    /// The weights under their paths in `model.weights.h5`, such as `layers/dense/vars/0`.
    pub weights: HashMap<String, Tensor>,
    /// Files of the archive besides config and weights, such as vocabularies, by path.
    pub assets: HashMap<String, Vec<u8>>,
    /// The optimizer's number of steps, and its variables after that in Keras' order.
    pub optimizer: Option<(u64, Vec<Tensor>)>,
}

impl StoredArrays for HashMap<String, Tensor> {
    fn count(&self, group: &str) -> usize {
        let of_group = |path: &&String| {
            let rest = path.strip_prefix(group).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|name| !name.contains('/'))
        };
        self.keys().filter(of_group).count()
    }

    fn shape(&self, path: &str) -> Option<Vec<usize>> {
        self.get(path).map(|tensor| tensor.dims().to_vec())
    }

    fn values(&self, path: &str) -> Result<Vec<f32>> {
        let values = self.get(path).and_then(Tensor::f32).map(<[f32]>::to_vec);
        values.ok_or_else(|| Error::argument(ORIGIN, path, "an array of floats", "none"))
    }
}

impl Load {
    /// Builds a model from parts in memory.
    ///
    /// # Errors
    /// A config that does not parse, an unsupported object, which the error names, or weights that do not fit.
    pub fn parts(self, parts: ModelParts) -> Result<Model> {
        let path = Path::new(ORIGIN);
        let config = keras::parse_config(path, parts.config.as_bytes())?;
        let mut model = self.structure(path, &config)?;
        for (layer, values) in keras::read_weights(path, &parts.weights, model.definition())? {
            layer.set_values(values.into_iter());
        }
        keras::set_vocabularies(path, &parts.assets, model.definition())?;
        self.compile_model(path, &mut model, &config, parts.optimizer)?;
        Ok(model)
    }
}

/// Describes every part of a config that is not supported: layers, losses, metrics, the optimizer. An empty list does not
/// promise that the model loads: parts may be supported and not fit each other.
pub fn unsupported(config: &str) -> Vec<String> {
    match keras::parse_config(Path::new(ORIGIN), config.as_bytes()) {
        Ok(config) => keras::unsupported_parts(&config),
        Err(error) => vec![error.to_string()],
    }
}

/// A variable of an optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerVariable {
    /// Dimensions.
    pub dims: Vec<usize>,
    /// The values.
    pub values: OptimizerValues,
}

/// The values of an optimizer's variable.
#[derive(Clone, Debug, PartialEq)]
pub enum OptimizerValues {
    /// Floats.
    F32(Vec<f32>),
    /// Integers, such as the number of steps.
    I32(Vec<i32>),
}

impl super::Training {
    /// The optimizer's variables in Keras' order, the number of steps first.
    pub fn variables(&self) -> Vec<OptimizerVariable> {
        let variable = |(_, dims, values)| {
            let values = match values {
                Values::F32(values) => OptimizerValues::F32(values),
                Values::I32(values) => OptimizerValues::I32(values),
                _ => unreachable!("the variables of optimizers are floats and 32-bit integers"),
            };
            OptimizerVariable { dims, values }
        };
        keras::variables(&self.state).into_iter().map(variable).collect()
    }
}

impl Model {
    /// The weights as Keras' files know them: the path of each in `model.weights.h5`, and its name.
    pub fn weight_paths(&self) -> Vec<(String, String)> {
        keras::weight_paths(self.definition())
    }

    /// The compile arguments and the optimizer's variables of a compiled model.
    ///
    /// # Errors
    /// If the model is not compiled, or the devices cannot be read.
    pub fn optimizer_state(&self) -> Result<super::Training> {
        self.with_session("optimizer_state", |session| session.training())
    }

    /// Sets the optimizer's number of steps and its variables after that, in Keras' order.
    ///
    /// # Errors
    /// If the model is not compiled, or the variables are not those of its optimizer.
    pub fn set_optimizer_state(&mut self, iteration: u64, variables: &[Tensor]) -> Result<()> {
        self.with_session("set_optimizer_state", |session| {
            session.set_training_state(iteration, variables)
        })
    }

    /// Reads a weight by name from the devices of a compiled model.
    ///
    /// # Errors
    /// If the model is not compiled, there is no such weight, or the devices cannot be read.
    pub fn read_weight(&self, name: &str) -> Result<Vec<f32>> {
        self.with_session("read_weight", |session| session.weights.read(name))
    }

    /// Sets weights by name on the devices of a compiled model.
    ///
    /// # Errors
    /// If the model is not compiled, there is no such weight, or its size is another.
    pub fn write_weights(&mut self, weights: &[(String, Vec<f32>)]) -> Result<()> {
        self.with_session("write_weights", |session| {
            session.weights.take_ownership();
            session.weights.write(weights)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    fn trained() -> Model {
        let mut model = Sequential::new()
            .add(Input::new([3]))
            .add(Dense::new(4))
            .add(BatchNormalization::new())
            .add(Dense::new(2))
            .build()
            .unwrap();
        // A learning rate that is exact in 32 bits, as Keras stores it.
        model.compile(Compile::new(Adam::new(1.0 / 1024.0)).loss("mse")).unwrap();
        let x = Tensor::new([4, 3], (0..12).map(|i| i as f32 / 12.0).collect::<Vec<_>>()).unwrap();
        model.train_on_batch(&x, Tensor::zeros([4, 2])).unwrap();
        model
    }

    /// The model as parts.
    fn parts(model: &Model) -> ModelParts {
        let state = model.optimizer_state().unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&model.to_json()).unwrap();
        config["compile_config"] = state.config.clone().into();
        let tensor = |variable: &OptimizerVariable| {
            let values = match &variable.values {
                OptimizerValues::F32(values) => values.clone(),
                OptimizerValues::I32(values) => values.iter().map(|v| *v as f32).collect(),
            };
            Tensor::new(variable.dims.clone(), values).unwrap()
        };
        let variables = state.variables();
        let named: HashMap<String, Tensor> = model.weights().unwrap().into_iter().collect();
        let weight = |(path, name): (String, String)| (path, named[&name].clone());
        ModelParts {
            config: config.to_string(),
            weights: model.weight_paths().into_iter().map(weight).collect(),
            assets: HashMap::new(),
            optimizer: Some((1, variables[1..].iter().map(tensor).collect())),
        }
    }

    #[test]
    fn a_model_in_parts_trains_on_to_the_bit() {
        let mut model = trained();
        let mut copy = Load::new().parts(parts(&model)).unwrap();
        let (x, y) = (Tensor::zeros([2, 3]), Tensor::zeros([2, 2]));
        for model in [&mut model, &mut copy] {
            model.train_on_batch(&x, &y).unwrap();
        }
        assert_eq!(copy.get_weights().unwrap(), model.get_weights().unwrap());
        let variables = |model: &Model| model.optimizer_state().unwrap().variables();
        assert_eq!(variables(&copy), variables(&model));
        assert_eq!(variables(&copy)[0].values, OptimizerValues::I32(vec![2]));
    }

    #[test]
    fn weights_are_written_and_read_on_the_devices() {
        let mut model = trained();
        let (path, name) = model.weight_paths().pop().unwrap();
        assert_eq!((path.as_str(), name.as_str()), ("layers/dense_1/vars/1", "dense_1/bias"));
        model.write_weights(&[(name.clone(), vec![1.5, -2.0])]).unwrap();
        assert_eq!(model.read_weight(&name).unwrap(), [1.5, -2.0]);
        assert_eq!(model.get_weights().unwrap().pop().unwrap().f32().unwrap(), [1.5, -2.0]);
        assert!(model.write_weights(&[("no/such".into(), vec![])]).is_err());
    }

    #[test]
    fn missing_and_misshapen_weights_are_all_named() {
        let mut parts = parts(&trained());
        parts.weights.remove("layers/dense/vars/0");
        parts.weights.insert("layers/dense_1/vars/1".into(), Tensor::zeros([5]));
        let error = Load::new().parts(parts).err().unwrap().to_string();
        assert!(error.contains("1 weights of 'dense' where 2 belong"), "{error}");
        assert!(error.contains("layers/dense_1/vars/1 of 'dense_1' [5] for [2]"), "{error}");
    }

    #[test]
    fn every_unsupported_part_is_named_at_once() {
        let mut config: serde_json::Value =
            serde_json::from_str(&parts(&trained()).config).unwrap();
        assert!(unsupported(&config.to_string()).is_empty());
        let layers = config["config"]["layers"].as_array_mut().unwrap();
        layers[1]["class_name"] = "Lambda".into();
        layers[3]["class_name"] = "Mine".into();
        config["compile_config"]["metrics"] = serde_json::json!(["accuracy", "no_such_metric"]);
        config["compile_config"]["optimizer"]["class_name"] = "Nothing".into();
        let found = unsupported(&config.to_string());
        let text = found.join("; ");
        for part in ["'dense' (Lambda)", "'dense_1' (Mine)", "no_such_metric", "Nothing"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(found.len(), 4, "{text}");
        assert_eq!(unsupported("{").len(), 1);
    }
}
