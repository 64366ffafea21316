//! The index of an integer in a vocabulary: mask, out-of-vocabulary indices, then the terms in their order; inverted, the
//! integer of an index.
//!
//! Input `(batch, ..)` of integers, output as `output_mode` says. Runs on the host.

use super::encode::OutputMode;
use super::hash::Salt;
use super::lookup::Lookup;
use super::string_lookup::{
    OOV_KEYS, VOCABULARY_KEYS, lookup_options, oov_options, vocabulary_layer,
};
use super::vocabulary::{Counts, OovMethod, OovOptions, Shared, VocabularyOptions};
use super::{check_elements, check_keys, integers, option, options};
use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{Elements, HostLayer, RowType, VocabularyLayer, one_input};
use crate::registry::Config;
use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

/// The type of the terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum VocabularyType {
    #[default]
    #[serde(rename = "int64")]
    Int64,
}

/// Maps integers to indices.
///
/// ```
/// use phalanx::prelude::*;
///
/// let lookup = IntegerLookup::new().vocabulary([12, 36, 42]);
/// let indices = lookup.preprocess(Tensor::new([3], vec![42, 12, 7])?)?;
/// assert_eq!(indices.to_tensor().i32().unwrap(), [3, 1, 0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Config")]
pub struct IntegerLookup {
    #[serde(flatten)]
    options: VocabularyOptions<i64>,
    #[serde(flatten)]
    oov: OovOptions<i64>,
    vocabulary_dtype: VocabularyType,
    #[serde(skip)]
    learned: Shared<i64>,
}

impl TryFrom<Config> for IntegerLookup {
    type Error = String;

    fn try_from(config: Config) -> std::result::Result<IntegerLookup, String> {
        check_keys(&config, &[VOCABULARY_KEYS, OOV_KEYS, &["vocabulary_dtype"]])?;
        Ok(IntegerLookup {
            options: options(&config)?,
            oov: options(&config)?,
            vocabulary_dtype: option(&config, "vocabulary_dtype")?,
            learned: Shared::default(),
        })
    }
}

impl IntegerLookup {
    /// A lookup without a vocabulary, with one index for integers out of it.
    pub fn new() -> IntegerLookup {
        IntegerLookup::default()
    }

    lookup_options!(i64);
    oov_options!(i64);

    /// How integers out of the vocabulary are put into several indices; defaults to the remainder.
    #[must_use]
    pub fn oov_method(mut self, oov_method: OovMethod) -> IntegerLookup {
        self.oov.oov_method = oov_method;
        self
    }

    fn lookup(&self) -> Lookup<'_, i64> {
        Lookup { options: &self.options, oov: &self.oov, learned: &self.learned }
    }

    /// Learns the vocabulary: the most frequent integers first, of equally frequent ones the largest.
    ///
    /// # Errors
    /// Options that contradict each other, or a layer with a given vocabulary.
    pub fn adapt(self, data: &Tensor) -> Result<IntegerLookup> {
        self.adapt_batches([Ok(data.clone())])
    }

    /// Like [`adapt`](Self::adapt), batch by batch.
    ///
    /// # Errors
    /// Those of the batches, and as for [`adapt`](Self::adapt).
    pub fn adapt_batches(
        mut self,
        batches: impl IntoIterator<Item = Result<Tensor>>,
    ) -> Result<IntegerLookup> {
        let mut counts = Counts::new(self.options.output_mode == OutputMode::TfIdf);
        for batch in batches {
            let batch = batch?;
            let width = batch.row_len().max(1);
            let values = integers("IntegerLookup", &batch.into())?;
            values.chunks(width).for_each(|row| counts.add(row.iter().copied()));
        }
        self.learned = Shared::default();
        self.lookup().learn("IntegerLookup", counts)?;
        Ok(self)
    }

    /// The terms by index, special tokens included; only those if there is no vocabulary.
    pub fn get_vocabulary(&self) -> Vec<i64> {
        self.lookup().terms()
    }

    /// The number of indices, special ones included; `None` without a vocabulary.
    pub fn vocabulary_size(&self) -> Option<usize> {
        self.lookup().size()
    }
}

lookup_layer!(IntegerLookup);

impl HostLayer for IntegerLookup {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let input = one_input(owner, inputs)?;
        let lookup = self.lookup();
        lookup.check(owner)?;
        if self.options.vocabulary.is_some() {
            lookup.table(owner)?;
        }
        if input.elements == Elements::Strings {
            check_elements(owner, input, Elements::Integers)?;
        }
        if self.oov.invert {
            return Ok(RowType::new(Elements::Integers, input.sizes()));
        }
        self.options.output_mode.output_type(owner, input.sizes(), || lookup.depth(owner))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let ty = self.output_type(owner, &[RowType::of(samples)])?;
        let lookup = self.lookup();
        let table = lookup.table(owner)?;
        let values = integers(owner, samples)?;
        if self.oov.invert {
            let token = |index: i64| {
                let token = lookup.token(owner, &table, index)?;
                i32::try_from(token)
                    .map_err(|_| Error::argument(owner, "vocabulary", "terms of 32 bits", token))
            };
            let tokens = values.into_iter().map(token).collect::<Result<Vec<i32>>>()?;
            return Ok(Tensor::new(samples.dims(), tokens)?.into());
        }
        let index = |value: &i64| Ok(lookup.index(owner, &table, value)?.unwrap_or(-1));
        let each = values.iter().map(index).collect::<Result<Vec<i64>>>()?;
        let rows = each.chunks_exact(samples.row_len().max(1)).map(|row| Ok(row.iter().copied()));
        let mode = self.options.output_mode;
        let mut out = mode.encode(owner, &ty, rows)?;
        if let (OutputMode::TfIdf, Some(counts)) = (mode, out.f32_mut()) {
            lookup.weight(owner, counts, ty.dims().last().copied().unwrap_or(1))?;
        }
        Ok(out.into())
    }
}

vocabulary_layer!(IntegerLookup);
