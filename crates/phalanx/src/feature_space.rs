//! `FeatureSpace`: preprocessing and encoding of tables with columns of different kinds.

use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{Elements, LayerExt, LayerHandle};
use crate::layers::{
    CategoryEncoding, Discretization, HashedCrossing, Hashing, IntegerLookup, Normalization,
    Rescaling, StringLookup, TFDConcat, TFDIdentity, TextVectorization,
};
use crate::model::{Apply, Input, Model, Symbol};
use phalanx_graph::{Data, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// Rows of a batch in which preprocessors learn.
const ADAPT_BATCH: usize = 32;
/// Keras' default number of bins of crossed features.
const CROSSING_DIM: usize = 32;

/// The layer that preprocesses a feature.
#[derive(Clone, Debug)]
pub(crate) enum Preprocessor {
    Identity,
    Rescaling(Rescaling),
    Normalization(Normalization),
    Discretization(Discretization, Option<usize>),
    IntegerLookup(IntegerLookup),
    StringLookup(StringLookup),
    Hashing(Hashing, usize),
    TextVectorization(TextVectorization),
    /// Another layer, which does not learn.
    Layer(LayerHandle),
}

/// The form of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureOutput {
    /// An integer, for an `Embedding`.
    Int,
    /// A one-hot row.
    OneHot,
    /// Floats as the preprocessor gives them.
    Float,
}

/// A column of a table and how it becomes numbers.
///
/// ```
/// use phalanx::feature_space::{Feature, FeatureOutput};
///
/// let city = Feature::string_categorical().output_mode(FeatureOutput::Int);
/// let bins = Feature::float_discretized(8);
/// # let _ = (city, bins);
/// ```
#[derive(Clone, Debug)]
pub struct Feature {
    pub(crate) elements: Elements,
    pub(crate) preprocessor: Preprocessor,
    pub(crate) output: FeatureOutput,
}

impl Feature {
    fn new(elements: Elements, preprocessor: Preprocessor, output: FeatureOutput) -> Feature {
        Feature { elements, preprocessor, output }
    }

    /// Floats as they are.
    pub fn float() -> Feature {
        Feature::new(Elements::Floats, Preprocessor::Identity, FeatureOutput::Float)
    }

    /// Floats times `scale` plus `offset`.
    pub fn float_rescaled(scale: f64, offset: f64) -> Feature {
        let layer = Preprocessor::Rescaling(Rescaling::new(scale).offset(offset));
        Feature::new(Elements::Floats, layer, FeatureOutput::Float)
    }

    /// Floats minus their mean, divided by their standard deviation.
    pub fn float_normalized() -> Feature {
        let layer = Preprocessor::Normalization(Normalization::new());
        Feature::new(Elements::Floats, layer, FeatureOutput::Float)
    }

    /// Floats in `num_bins` bins with about as many samples each.
    pub fn float_discretized(num_bins: usize) -> Feature {
        let layer = Discretization::with_bins(num_bins);
        let layer = Preprocessor::Discretization(layer, Some(num_bins));
        Feature::new(Elements::Floats, layer, FeatureOutput::OneHot)
    }

    /// Integers that are categories.
    pub fn integer_categorical() -> Feature {
        Feature::of_integers(IntegerLookup::new())
    }

    /// Integers that a lookup with other options makes categories of.
    pub fn of_integers(lookup: IntegerLookup) -> Feature {
        let layer = Preprocessor::IntegerLookup(lookup);
        Feature::new(Elements::Integers, layer, FeatureOutput::OneHot)
    }

    /// Strings that are categories.
    pub fn string_categorical() -> Feature {
        Feature::of_strings(StringLookup::new())
    }

    /// Strings that a lookup with other options makes categories of.
    pub fn of_strings(lookup: StringLookup) -> Feature {
        let layer = Preprocessor::StringLookup(lookup);
        Feature::new(Elements::Strings, layer, FeatureOutput::OneHot)
    }

    /// Strings that a hash puts into `num_bins` bins.
    pub fn string_hashed(num_bins: usize) -> Feature {
        let layer = Preprocessor::Hashing(Hashing::new(num_bins), num_bins);
        Feature::new(Elements::Strings, layer, FeatureOutput::OneHot)
    }

    /// Integers that a hash puts into `num_bins` bins.
    pub fn integer_hashed(num_bins: usize) -> Feature {
        let layer = Preprocessor::Hashing(Hashing::new(num_bins), num_bins);
        Feature::new(Elements::Integers, layer, FeatureOutput::OneHot)
    }

    /// Texts as encoded rows.
    pub fn text(vectorization: TextVectorization) -> Feature {
        let layer = Preprocessor::TextVectorization(vectorization);
        Feature::new(Elements::Strings, layer, FeatureOutput::Float)
    }

    /// The form of the feature; categories are one-hot rows by default.
    #[must_use]
    pub fn output_mode(mut self, output: FeatureOutput) -> Feature {
        self.output = output;
        self
    }

    /// Learns from a column.
    fn adapt(&mut self, name: &str, column: &Samples) -> Result<()> {
        let strings = self.elements == Elements::Strings;
        if column.text().is_some() != strings {
            let (expected, received) =
                if strings { ("strings", "numbers") } else { ("numbers", "strings") };
            return Err(Error::argument("FeatureSpace", name, expected, received));
        }
        let rows = column.rows();
        let starts = (0..rows).step_by(ADAPT_BATCH);
        let batches = starts.filter_map(|at| column.slice_rows(at..rows.min(at + ADAPT_BATCH)));
        let tensors = batches.clone().map(|batch| Ok(Tensor::clone(&batch.to_tensor())));
        let texts = batches.clone().filter_map(|batch| batch.text().cloned().map(Ok));
        match &mut self.preprocessor {
            Preprocessor::Normalization(layer) => {
                let floats: Vec<f32> = match column.to_tensor().data() {
                    Data::F32(values) => values.clone(),
                    Data::I32(values) => values.iter().map(|v| *v as f32).collect(),
                };
                let column = Tensor::new([rows, floats.len() / rows.max(1)], floats)?;
                *layer = layer.clone().adapt(&column)?;
            }
            Preprocessor::Discretization(layer, _) if layer.bin_boundaries().is_none() => {
                *layer = layer.clone().adapt_batches(tensors)?;
            }
            Preprocessor::IntegerLookup(layer) if layer.vocabulary_size().is_none() => {
                *layer = layer.clone().adapt_batches(tensors)?;
            }
            Preprocessor::StringLookup(layer) if layer.vocabulary_size().is_none() => {
                *layer = layer.clone().adapt_batches(texts)?;
            }
            Preprocessor::TextVectorization(layer) if layer.vocabulary_size().is_none() => {
                *layer = layer.clone().adapt_batches(texts)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The layer, and the number of its categories if it gives integers.
    pub(crate) fn layer(&self, name: &str) -> (LayerHandle, Option<usize>) {
        let name = format!("{name}_preprocessor");
        match &self.preprocessor {
            Preprocessor::Identity => (TFDIdentity::new().named(&name), None),
            Preprocessor::Rescaling(layer) => (layer.clone().named(&name), None),
            Preprocessor::Normalization(layer) => (layer.clone().named(&name), None),
            Preprocessor::TextVectorization(layer) => (layer.clone().named(&name), None),
            Preprocessor::Discretization(layer, bins) => (layer.clone().named(&name), *bins),
            Preprocessor::Hashing(layer, bins) => (layer.clone().named(&name), Some(*bins)),
            Preprocessor::IntegerLookup(layer) => {
                (layer.clone().named(&name), layer.vocabulary_size())
            }
            Preprocessor::StringLookup(layer) => {
                (layer.clone().named(&name), layer.vocabulary_size())
            }
            Preprocessor::Layer(layer) => (layer.clone(), None),
        }
    }
}

/// Features that are combined.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cross {
    feature_names: Vec<String>,
    crossing_dim: usize,
    output_mode: FeatureOutput,
}

impl Cross {
    /// The names of the features, joined.
    pub fn name(&self) -> String {
        self.feature_names.join("_X_")
    }
}

/// The inputs of a model, and its encoded features with their names.
type Encoded = (Vec<Symbol>, Vec<(String, Symbol)>);

/// The form of all encoded features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureSpaceOutput {
    /// One row of all features.
    #[default]
    Concat,
    /// Each feature for itself.
    Dict,
}

/// Preprocessing and encoding of a table, column by column: Keras' `FeatureSpace`.
///
/// ```
/// use phalanx::feature_space::{Feature, FeatureSpace};
/// use phalanx::prelude::*;
///
/// let age = Tensor::new([4], vec![30.0f32, 40.0, 50.0, 60.0])?;
/// let city = Text::from(["Rome", "Oslo", "Rome", "Bern"]);
/// let table: [(&str, Samples); 2] = [("age", age.into()), ("city", city.into())];
/// let space = FeatureSpace::new()
///     .feature("age", Feature::float_normalized())
///     .feature("city", Feature::string_categorical())
///     .adapt(table.clone())?;
/// let features = space.model()?;
/// assert_eq!(features.output_shapes(), [[1 + 4]]);
/// let outputs = Dense::new(1).apply(&space.encoded_features()[0].1);
/// let model = Model::new(space.inputs(), &outputs)?;
/// let columns: Vec<Samples> = table.into_iter().map(|(_, column)| column).collect();
/// assert_eq!(model.predict(Arrays::new(columns, ())?)?.dims(), [4, 1]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FeatureSpace {
    pub(crate) features: Vec<(String, Feature)>,
    pub(crate) crosses: Vec<Cross>,
    pub(crate) output: FeatureSpaceOutput,
    /// The model's inputs and encoded features, once the features have learned.
    symbols: Option<Encoded>,
}

impl FeatureSpace {
    /// No features, which are to be concatenated.
    pub fn new() -> FeatureSpace {
        FeatureSpace::default()
    }

    /// Adds a feature by the name of its column.
    #[must_use]
    pub fn feature(mut self, name: impl Into<String>, feature: Feature) -> FeatureSpace {
        self.features.push((name.into(), feature));
        self
    }

    /// Adds the combination of categories, which a hash puts into 32 bins.
    #[must_use]
    pub fn cross<S: Into<String>>(self, features: impl IntoIterator<Item = S>) -> FeatureSpace {
        self.cross_with(features, CROSSING_DIM, FeatureOutput::OneHot)
    }

    /// Adds the combination of categories with a number of bins, one-hot or as an integer.
    #[must_use]
    pub fn cross_with<S: Into<String>>(
        mut self,
        features: impl IntoIterator<Item = S>,
        crossing_dim: usize,
        output_mode: FeatureOutput,
    ) -> FeatureSpace {
        let feature_names = features.into_iter().map(Into::into).collect();
        self.crosses.push(Cross { feature_names, crossing_dim, output_mode });
        self
    }

    /// Whether the encoded features are concatenated or separate.
    #[must_use]
    pub fn output_mode(mut self, output: FeatureSpaceOutput) -> FeatureSpace {
        self.output = output;
        self
    }

    /// Learns vocabularies, bins and statistics from the columns of a table, in batches of 32 rows as Keras does.
    ///
    /// # Errors
    /// A feature without a column, a column of the wrong kind, or options that a layer refuses.
    pub fn adapt<N: AsRef<str>, S: Into<Samples>>(
        mut self,
        table: impl IntoIterator<Item = (N, S)>,
    ) -> Result<FeatureSpace> {
        let table: Vec<(N, Samples)> =
            table.into_iter().map(|(name, column)| (name, column.into())).collect();
        for (name, feature) in &mut self.features {
            let column = table.iter().find(|(known, _)| known.as_ref() == name.as_str());
            let Some((_, column)) = column.filter(|(_, column)| !column.dims().is_empty()) else {
                return Err(Error::argument("FeatureSpace", name.as_str(), "a column", "none"));
            };
            feature.adapt(name, column)?;
        }
        self.adapted()
    }

    /// The space of features that have learned.
    pub(crate) fn adapted(mut self) -> Result<FeatureSpace> {
        let encoded = self.build()?;
        self.symbols = Some(encoded);
        // Layers of other classes are not trained, and files do not hold their weights.
        let model = self.model()?;
        let layers = model.definition().layers();
        match layers.iter().find(|(_, layer)| !layer.weights().is_empty()) {
            Some((name, _)) => {
                let owner = format!("layer '{name}'");
                Err(Error::argument(owner, "FeatureSpace", "a layer without weights", "weights"))
            }
            None => Ok(self),
        }
    }

    /// Applies the layers. Returns the inputs and the encoded features.
    fn build(&self) -> Result<Encoded> {
        let owner = "FeatureSpace";
        if self.features.is_empty() {
            return Err(Error::argument(owner, "features", "at least one", "none"));
        }
        let (mut inputs, mut values) = (vec![], vec![]);
        for (name, feature) in &self.features {
            let input = Input::new([1]).named(name);
            let input = match feature.elements {
                Elements::Floats => input,
                Elements::Integers => input.integers(),
                Elements::Strings => input.strings(),
            };
            let input = input.symbol();
            let (layer, categories) = feature.layer(name);
            values.push((name.clone(), layer.apply(&input), categories, feature.output));
            inputs.push(input);
        }
        let mut crossed = vec![];
        let by_name: HashMap<String, Symbol> =
            values.iter().map(|(name, symbol, ..)| (name.clone(), symbol.clone())).collect();
        for Cross { feature_names, crossing_dim, output_mode } in &self.crosses {
            let name = feature_names.join("_X_");
            let find = |wanted: &String| {
                by_name.get(wanted).cloned().ok_or_else(|| {
                    Error::argument(owner, "crosses", "features of the space", wanted)
                })
            };
            let symbols = feature_names.iter().map(find).collect::<Result<Vec<Symbol>>>()?;
            let layer = HashedCrossing::new(*crossing_dim).named(&name);
            crossed.push((name, layer.apply(symbols), Some(*crossing_dim), *output_mode));
        }
        values.sort_by(|a, b| a.0.cmp(&b.0));
        crossed.sort_by(|a, b| a.0.cmp(&b.0));
        let mut encoded = vec![];
        for (name, symbol, categories, output) in values.into_iter().chain(crossed) {
            let symbol = match (output, categories) {
                (FeatureOutput::OneHot, Some(categories)) => {
                    CategoryEncoding::new(categories).apply(&symbol)
                }
                (FeatureOutput::OneHot, None) => {
                    let expected = "another form for a feature without categories";
                    return Err(Error::argument(owner, name, expected, "one-hot"));
                }
                (FeatureOutput::Int, Some(_)) if self.output == FeatureSpaceOutput::Concat => {
                    let expected = "one-hot categories, as the features are concatenated";
                    return Err(Error::argument(owner, name, expected, "integers"));
                }
                _ => symbol,
            };
            encoded.push((name, symbol));
        }
        if self.output == FeatureSpaceOutput::Concat {
            let symbols: Vec<Symbol> = encoded.into_iter().map(|(_, symbol)| symbol).collect();
            encoded = vec![("features".into(), TFDConcat::new(-1).apply(symbols))];
        }
        Ok((inputs, encoded))
    }

    /// The inputs of a model, one per feature in their order; none before [`adapt`](Self::adapt).
    pub fn inputs(&self) -> &[Symbol] {
        self.symbols.as_ref().map_or(&[], |(inputs, _)| inputs)
    }

    /// The encoded features with their names, features before crosses in the order of the alphabet, or a single
    /// concatenated one; none before [`adapt`](Self::adapt).
    pub fn encoded_features(&self) -> &[(String, Symbol)] {
        self.symbols.as_ref().map_or(&[], |(_, encoded)| encoded)
    }

    /// The model that encodes a table.
    ///
    /// # Errors
    /// Features that have not learned.
    pub fn model(&self) -> Result<Model> {
        if self.symbols.is_none() {
            return Err(Error::argument("FeatureSpace", "features", "adapt(table) first", "none"));
        }
        let outputs: Vec<Symbol> =
            self.encoded_features().iter().map(|(_, symbol)| symbol.clone()).collect();
        Model::with_name("features", self.inputs(), outputs)
    }

    /// Loads the `FeatureSpace` of a `.keras` file. [`load_model`](crate::saving::load_model) loads its model.
    ///
    /// # Errors
    /// A damaged file, another object than a feature space, or an unsupported layer, which the error names.
    pub fn load(path: impl AsRef<Path>) -> Result<FeatureSpace> {
        crate::saving::load_feature_space(path.as_ref())
    }

    /// Writes a `.keras` file, which Keras loads as a `FeatureSpace`.
    ///
    /// ```
    /// # use phalanx::feature_space::{Feature, FeatureSpace};
    /// # use phalanx::prelude::*;
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("space.keras");
    /// let city = Text::from(["Rome", "Oslo", "Rome", "Bern"]);
    /// let space = FeatureSpace::new().feature("city", Feature::string_categorical());
    /// space.adapt([("city", &city)])?.save(&path)?;
    /// let loaded = FeatureSpace::load(&path)?.model()?;
    /// assert_eq!(loaded.predict(&city)?.dims(), [4, 4]);
    /// assert_eq!(load_model(&path)?.input_names(), ["city"]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// Features that have not learned, another extension, or a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        // It has learned if there is a model.
        self.model()?;
        crate::saving::save_feature_space(self, path.as_ref())
    }
}
