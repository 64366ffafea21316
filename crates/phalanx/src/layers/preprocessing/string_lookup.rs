//! The index of a string in a vocabulary: mask, out-of-vocabulary indices, then the terms in their order; inverted, the
//! string of an index.
//!
//! Input `(batch, ..)` of strings, output as `output_mode` says. Runs on the host.

use super::encode::OutputMode;
use super::hash::Salt;
use super::lookup::Lookup;
use super::vocabulary::{Counts, OovOptions, Shared, VocabularyOptions};
use super::{Encoding, check_elements, check_keys, integers, option, options};
use crate::data::{Samples, Text};
use crate::error::Result;
use crate::layer::{Elements, HostLayer, RowType, VocabularyLayer, one_input};
use crate::registry::Config;
use serde::{Deserialize, Serialize};

/// The keys of every layer with a vocabulary.
pub(super) const VOCABULARY_KEYS: &[&str] = &[
    "max_tokens",
    "output_mode",
    "sparse",
    "pad_to_max_tokens",
    "idf_weights",
    "vocabulary",
    "vocabulary_size",
];
/// The keys of lookups.
pub(super) const OOV_KEYS: &[&str] =
    &["num_oov_indices", "oov_token", "mask_token", "invert", "oov_method", "salt"];

/// Maps strings to indices.
///
/// ```
/// use phalanx::prelude::*;
///
/// let lookup = StringLookup::new().adapt(["b", "a", "a", "c"])?;
/// assert_eq!(lookup.get_vocabulary(), ["[UNK]", "a", "c", "b"]);
/// let indices = lookup.preprocess(Text::from(["c", "d"]))?;
/// assert_eq!(indices.to_tensor().i32().unwrap(), [2, 0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Config")]
pub struct StringLookup {
    #[serde(flatten)]
    options: VocabularyOptions<String>,
    #[serde(flatten)]
    oov: OovOptions<String>,
    encoding: Encoding,
    #[serde(skip)]
    learned: Shared<String>,
}

impl TryFrom<Config> for StringLookup {
    type Error = String;

    fn try_from(config: Config) -> std::result::Result<StringLookup, String> {
        check_keys(&config, &[VOCABULARY_KEYS, OOV_KEYS, &["encoding"]])?;
        Ok(StringLookup {
            options: options(&config)?,
            oov: options(&config)?,
            encoding: option(&config, "encoding")?,
            learned: Shared::default(),
        })
    }
}

/// The builder methods of lookups of tokens of a type.
macro_rules! lookup_options {
    ($token:ty) => {
        /// The maximum size of the vocabulary, special tokens included.
        #[must_use]
        pub fn max_tokens(mut self, max_tokens: usize) -> Self {
            self.options.max_tokens = Some(max_tokens);
            self
        }

        /// The form of the output; defaults to indices.
        #[must_use]
        pub fn output_mode(mut self, output_mode: OutputMode) -> Self {
            self.options.output_mode = output_mode;
            self
        }

        /// Whether an encoded output has `max_tokens` categories even if the vocabulary is smaller.
        #[must_use]
        pub fn pad_to_max_tokens(mut self, pad_to_max_tokens: bool) -> Self {
            self.options.pad_to_max_tokens = pad_to_max_tokens;
            self
        }

        /// The terms of the vocabulary. Special tokens may precede them.
        #[must_use]
        pub fn vocabulary<S: Into<$token>>(
            mut self,
            vocabulary: impl IntoIterator<Item = S>,
        ) -> Self {
            self.options.vocabulary = Some(vocabulary.into_iter().map(Into::into).collect());
            self.learned = Shared::default();
            self
        }

        /// The weight of every given term, for [`OutputMode::TfIdf`].
        #[must_use]
        pub fn idf_weights(mut self, idf_weights: impl Into<Vec<f64>>) -> Self {
            self.options.idf_weights = Some(idf_weights.into());
            self
        }
    };
}
pub(super) use lookup_options;

/// The builder methods for tokens out of the vocabulary.
macro_rules! oov_options {
    ($token:ty) => {
        /// The number of indices for tokens out of the vocabulary, which a hash chooses among. With 0 they are errors.
        #[must_use]
        pub fn num_oov_indices(mut self, num_oov_indices: usize) -> Self {
            self.oov.num_oov_indices = num_oov_indices;
            self
        }

        /// The token that an inverted lookup returns for indices out of the vocabulary.
        #[must_use]
        pub fn oov_token(mut self, oov_token: impl Into<$token>) -> Self {
            self.oov.oov_token = Some(oov_token.into());
            self
        }

        /// The token of padding, which has the index 0, or does not count in an encoded output.
        #[must_use]
        pub fn mask_token(mut self, mask_token: impl Into<$token>) -> Self {
            self.oov.mask_token = Some(mask_token.into());
            self
        }

        /// Whether to map indices to tokens.
        #[must_use]
        pub fn invert(mut self, invert: bool) -> Self {
            self.oov.invert = invert;
            self
        }

        /// The key of a strong hash for tokens out of the vocabulary.
        #[must_use]
        pub fn salt(mut self, salt: impl Into<Salt>) -> Self {
            self.oov.salt = Some(salt.into());
            self
        }
    };
}
pub(super) use oov_options;

impl StringLookup {
    /// A lookup without a vocabulary, with one index for strings out of it.
    pub fn new() -> StringLookup {
        StringLookup::default()
    }

    lookup_options!(String);
    oov_options!(String);

    fn lookup(&self) -> Lookup<'_, String> {
        Lookup { options: &self.options, oov: &self.oov, learned: &self.learned }
    }

    /// Learns the vocabulary: the most frequent strings first, of equally frequent ones the last in the alphabet.
    ///
    /// # Errors
    /// Options that contradict each other, or a layer with a given vocabulary.
    pub fn adapt(self, data: impl Into<Text>) -> Result<StringLookup> {
        self.adapt_batches([Ok(data.into())])
    }

    /// Like [`adapt`](Self::adapt), batch by batch.
    ///
    /// # Errors
    /// Those of the batches, and as for [`adapt`](Self::adapt).
    pub fn adapt_batches(
        mut self,
        batches: impl IntoIterator<Item = Result<Text>>,
    ) -> Result<StringLookup> {
        let mut counts = Counts::new(self.options.output_mode == OutputMode::TfIdf);
        for batch in batches {
            let batch = batch?;
            let width = batch.dims().iter().skip(1).product::<usize>().max(1);
            for row in 0..batch.len() / width {
                let tokens = (row * width..(row + 1) * width).map(|at| batch.get(at).to_string());
                counts.add(tokens);
            }
        }
        self.learned = Shared::default();
        self.lookup().learn("StringLookup", counts)?;
        Ok(self)
    }

    /// The terms by index, special tokens included; only those if there is no vocabulary.
    pub fn get_vocabulary(&self) -> Vec<String> {
        self.lookup().terms()
    }

    /// The number of indices, special ones included; `None` without a vocabulary.
    pub fn vocabulary_size(&self) -> Option<usize> {
        self.lookup().size()
    }
}

lookup_layer!(StringLookup);

impl HostLayer for StringLookup {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let input = one_input(owner, inputs)?;
        let lookup = self.lookup();
        lookup.check(owner)?;
        if self.options.vocabulary.is_some() {
            lookup.table(owner)?;
        }
        if self.oov.invert {
            if input.elements == Elements::Strings {
                check_elements(owner, input, Elements::Integers)?;
            }
            return Ok(RowType::new(Elements::Strings, input.sizes()));
        }
        check_elements(owner, input, Elements::Strings)?;
        self.options.output_mode.output_type(owner, input.sizes(), || lookup.depth(owner))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let ty = self.output_type(owner, &[RowType::of(samples)])?;
        let lookup = self.lookup();
        let table = lookup.table(owner)?;
        if self.oov.invert {
            let tokens = integers(owner, samples)?.into_iter();
            let tokens = tokens.map(|index| lookup.token(owner, &table, index));
            let tokens = tokens.collect::<Result<Vec<String>>>()?;
            return Ok(Text::new(samples.dims(), tokens)?.into());
        }
        let Some(text) = samples.text() else { unreachable!("the type was checked") };
        let index = |string: &str| {
            let index = lookup.index(owner, &table, &string.to_string())?;
            Ok(index.unwrap_or(-1))
        };
        let each = text.iter().map(index).collect::<Result<Vec<i64>>>()?;
        let rows = each.chunks_exact(samples.row_len().max(1)).map(|row| Ok(row.iter().copied()));
        let mode = self.options.output_mode;
        let mut out = mode.encode(owner, &ty, rows)?;
        if let (OutputMode::TfIdf, Some(counts)) = (mode, out.f32_mut()) {
            lookup.weight(owner, counts, ty.dims().last().copied().unwrap_or(1))?;
        }
        Ok(out.into())
    }
}

/// The methods of a layer whose `lookup()` has its vocabulary.
macro_rules! vocabulary_layer {
    ($class:ty $(, $sublayers:expr)?) => {
        impl VocabularyLayer for $class {
            fn terms(&self) -> Option<Vec<String>> {
                self.lookup().file_terms()
            }

            fn set_terms(&self, owner: &str, terms: &[&str]) -> Result<()> {
                self.lookup().set_file_terms(owner, terms)
            }

            fn idf_weights(&self) -> Option<Vec<f32>> {
                let lookup = self.lookup();
                // A given vocabulary is read when it is first used.
                lookup.size();
                lookup.learned.idf().map(|weights| weights.to_vec())
            }

            fn set_idf_weights(&self, weights: Vec<f32>) {
                self.lookup().learned.set_idf(weights);
            }

            fn has_idf_weights(&self) -> bool {
                self.options.output_mode == OutputMode::TfIdf
            }

            $(fn sublayers(&self) -> &'static [&'static str] {
                $sublayers
            })?

            fn config_entries(&self) -> Vec<(&'static str, serde_json::Value)> {
                self.lookup().config_entries()
            }
        }
    };
}
pub(super) use vocabulary_layer;

vocabulary_layer!(StringLookup);
