//! Strings to sequences of indices: standardize, split, join n-grams, look up; or to one encoded row per string.
//!
//! Input `(batch,)` or `(batch, 1)` of strings, output `(batch, output_sequence_length)` or `(batch, terms)`. Runs on the
//! host.

use super::encode::{AlwaysFalse, OutputMode};
use super::lookup::Lookup;
use super::string_lookup::{VOCABULARY_KEYS, lookup_options, vocabulary_layer};
use super::tokens::{Ngrams, Split, Standardize, join};
use super::vocabulary::{Counts, OovOptions, Shared, VocabularyOptions};
use super::{Encoding, check_elements, check_keys, options};
use crate::data::{Samples, Text};
use crate::error::{Error, Result};
use crate::layer::{Elements, HostLayer, RowType, VocabularyLayer, one_input};
use crate::model::Shape;
use crate::registry::Config;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use std::iter::repeat_n;

/// The options besides those of the vocabulary.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
struct TextOptions {
    #[serde(deserialize_with = "by_name")]
    standardize: Option<Standardize>,
    #[serde(deserialize_with = "by_name")]
    split: Option<Split>,
    ngrams: Option<Ngrams>,
    output_sequence_length: Option<usize>,
    ragged: AlwaysFalse,
    encoding: Encoding,
}

/// Reads the name of a function of Keras, or none.
fn by_name<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<Option<T>, D::Error> {
    match Value::deserialize(d)? {
        Value::Null => Ok(None),
        Value::Object(_) => Err(de::Error::custom(
            "expected the name of a function of Keras, received a function of Python",
        )),
        name => serde_json::from_value(name).map(Some).map_err(de::Error::custom),
    }
}

const TEXT_KEYS: &[&str] =
    &["standardize", "split", "ngrams", "output_sequence_length", "ragged", "encoding"];

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions {
            standardize: Some(Standardize::LowerAndStripPunctuation),
            split: Some(Split::Whitespace),
            ngrams: None,
            output_sequence_length: None,
            ragged: AlwaysFalse,
            encoding: Encoding::Utf8,
        }
    }
}

/// Maps strings to sequences of indices.
///
/// ```
/// use phalanx::prelude::*;
///
/// let texts = ["foo bar", "bar baz", "Baz, bada boom!"];
/// let vectorize = TextVectorization::new().output_sequence_length(4).adapt(texts)?;
/// assert_eq!(vectorize.get_vocabulary(), ["", "[UNK]", "baz", "bar", "foo", "boom", "bada"]);
/// let indices = vectorize.preprocess(Text::from(["foo qux bar"]))?;
/// assert_eq!(indices.to_tensor().i32().unwrap(), [4, 1, 3, 0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Config")]
pub struct TextVectorization {
    #[serde(flatten)]
    text: TextOptions,
    #[serde(flatten)]
    options: VocabularyOptions<String>,
    #[serde(skip)]
    oov: OovOptions<String>,
    #[serde(skip)]
    learned: Shared<String>,
}

impl Default for TextVectorization {
    fn default() -> TextVectorization {
        TextVectorization {
            text: TextOptions::default(),
            options: VocabularyOptions::default(),
            oov: OovOptions { mask_token: Some(String::new()), ..OovOptions::default() },
            learned: Shared::default(),
        }
    }
}

impl TryFrom<Config> for TextVectorization {
    type Error = String;

    fn try_from(config: Config) -> std::result::Result<TextVectorization, String> {
        check_keys(&config, &[TEXT_KEYS, VOCABULARY_KEYS])?;
        let (text, options) = (options(&config)?, options(&config)?);
        Ok(TextVectorization { text, options, ..TextVectorization::default() })
    }
}

impl TextVectorization {
    /// A layer without a vocabulary that lowers case, strips punctuation and splits at whitespace.
    pub fn new() -> TextVectorization {
        TextVectorization::default()
    }

    lookup_options!(String);

    /// What becomes of a string before it is split; `None` for nothing.
    #[must_use]
    pub fn standardize(mut self, standardize: impl Into<Option<Standardize>>) -> Self {
        self.text.standardize = standardize.into();
        self
    }

    /// How strings are split; `None` if they are tokens.
    #[must_use]
    pub fn split(mut self, split: impl Into<Option<Split>>) -> Self {
        self.text.split = split.into();
        self
    }

    /// The lengths of the n-grams that tokens are joined to: all up to a number, or some.
    #[must_use]
    pub fn ngrams(mut self, ngrams: impl Into<Ngrams>) -> Self {
        self.text.ngrams = Some(ngrams.into());
        self
    }

    /// The length to which sequences are padded with zeros or cut; by default that of the longest one of each batch. A
    /// model compiles its steps again for each length, so a fixed one is faster.
    #[must_use]
    pub fn output_sequence_length(mut self, length: usize) -> Self {
        self.text.output_sequence_length = Some(length);
        self
    }

    fn lookup(&self) -> Lookup<'_, String> {
        Lookup { options: &self.options, oov: &self.oov, learned: &self.learned }
    }

    /// Learns the vocabulary from texts: the most frequent tokens first, of equally frequent ones the last in the
    /// alphabet.
    ///
    /// # Errors
    /// Options that contradict each other, or a layer with a given vocabulary.
    pub fn adapt(self, data: impl Into<Text>) -> Result<TextVectorization> {
        self.adapt_batches([Ok(data.into())])
    }

    /// Like [`adapt`](Self::adapt), batch by batch.
    ///
    /// # Errors
    /// Those of the batches, and as for [`adapt`](Self::adapt).
    pub fn adapt_batches(
        mut self,
        batches: impl IntoIterator<Item = Result<Text>>,
    ) -> Result<TextVectorization> {
        let owner = "TextVectorization";
        let mut counts = Counts::new(self.options.output_mode == OutputMode::TfIdf);
        for batch in batches {
            let batch = batch?;
            self.check_shape(owner, &batch.dims().get(1..).unwrap_or_default().into())?;
            for row in self.rows(&batch) {
                counts.add(self.tokens(owner, row)?);
            }
        }
        self.learned = Shared::default();
        self.lookup().learn(owner, counts)?;
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

    /// Fails unless samples have one string, or several if they are not split.
    fn check_shape(&self, owner: &str, shape: &Shape) -> Result<()> {
        let expected = match (self.text.split, shape.sizes()) {
            (Some(_), [] | [Some(1)]) | (None, [_]) => return Ok(()),
            (Some(_), _) => "one string per sample, (batch,) or (batch, 1)",
            (None, _) => "strings (batch, n), as split is none",
        };
        Err(Error::argument(owner, "input", expected, shape))
    }

    /// The strings of each row.
    fn rows<'a>(&self, text: &'a Text) -> impl ExactSizeIterator<Item = Vec<&'a str>> {
        let width = text.dims().iter().skip(1).product::<usize>().max(1);
        (0..text.len() / width)
            .map(move |row| (row * width..(row + 1) * width).map(|at| text.get(at)).collect())
    }

    /// The tokens of a sample.
    fn tokens(&self, owner: &str, strings: Vec<&str>) -> Result<Vec<String>> {
        let standard = strings.into_iter().map(|string| match self.text.standardize {
            Some(standardize) => standardize.apply(string),
            None => string.to_string(),
        });
        let tokens: Vec<String> = match self.text.split {
            Some(split) => standard.flat_map(|string| split.apply(&string)).collect(),
            None => standard.collect(),
        };
        Ok(match &self.text.ngrams {
            Some(ngrams) => join(&tokens, &ngrams.lengths(owner)?),
            None => tokens,
        })
    }

    /// The number of tokens of a sample that is not split.
    fn unsplit_len(&self, owner: &str, strings: usize) -> Result<usize> {
        Ok(match &self.text.ngrams {
            Some(ngrams) => {
                let lengths = ngrams.lengths(owner)?;
                lengths.iter().map(|n| (strings + 1).saturating_sub(*n)).sum()
            }
            None => strings,
        })
    }

    /// The type of the output; `longest` is the length of sequences without a fixed length, which is open without it.
    fn sized_type(&self, owner: &str, input: &RowType, longest: Option<usize>) -> Result<RowType> {
        let lookup = self.lookup();
        lookup.check(owner)?;
        check_elements(owner, input, Elements::Strings)?;
        self.check_shape(owner, &input.shape)?;
        let (mode, length) = (self.options.output_mode, self.text.output_sequence_length);
        if let (Some(ngrams), None) = (&self.text.ngrams, longest) {
            ngrams.lengths(owner)?;
        }
        if self.options.vocabulary.is_some() {
            lookup.table(owner)?;
        }
        if mode != OutputMode::Int {
            if let Some(length) = length {
                let expected = "none, as the output has no sequences";
                return Err(Error::argument(owner, "output_sequence_length", expected, length));
            }
            if mode == OutputMode::OneHot && self.text.split.is_some() {
                let expected = "another mode for strings that are split, whose lengths differ";
                return Err(Error::argument(owner, "output_mode", expected, mode.name()));
            }
        }
        let length = match (length, longest, self.text.split) {
            (Some(length), _, _) | (None, Some(length), _) => Some(length),
            (None, None, None) => {
                let strings = input.sizes()[0];
                strings.map(|strings| self.unsplit_len(owner, strings)).transpose()?
            }
            (None, None, Some(_)) => None,
        };
        let ty = mode.output_type(owner, &[length], || lookup.depth(owner))?;
        ty.ty().check_limits().map_err(|_| {
            let expected = "a length that can be counted";
            Error::argument(owner, "output_sequence_length", expected, &ty.shape)
        })?;
        Ok(ty)
    }
}

lookup_layer!(TextVectorization);

impl HostLayer for TextVectorization {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        self.sized_type(owner, one_input(owner, inputs)?, None)
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let input = RowType::of(samples);
        check_elements(owner, &input, Elements::Strings)?;
        self.check_shape(owner, &input.shape)?;
        let Some(text) = samples.text() else { unreachable!("the type was checked") };
        let lookup = self.lookup();
        let table = lookup.table(owner)?;
        let indices = |row: Vec<&str>| {
            let tokens = self.tokens(owner, row)?.into_iter();
            let index = |token| Ok(lookup.index(owner, &table, &token)?.unwrap_or(-1));
            tokens.map(index).collect::<Result<Vec<i64>>>()
        };
        let rows = self.rows(text).map(indices).collect::<Result<Vec<Vec<i64>>>>()?;
        let longest = rows.iter().map(Vec::len).max().unwrap_or_default();
        let ty = self.sized_type(owner, &input, Some(longest))?;
        let mode = self.options.output_mode;
        let (padding, most) = match mode {
            OutputMode::Int => (ty.dims()[0], ty.dims()[0]),
            _ => (0, usize::MAX),
        };
        let sized = |row: Vec<i64>| row.into_iter().chain(repeat_n(0, padding)).take(most);
        let mut out = mode.encode(owner, &ty, rows.into_iter().map(|row| Ok(sized(row))))?;
        if let (OutputMode::TfIdf, Some(counts)) = (mode, out.f32_mut()) {
            lookup.weight(owner, counts, ty.dims().last().copied().unwrap_or(1))?;
        }
        Ok(out.into())
    }
}

vocabulary_layer!(TextVectorization, &["_lookup_layer"]);
