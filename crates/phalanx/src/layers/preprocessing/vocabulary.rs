//! Vocabularies: the options of the layers that have one, and the table of its tokens.

use super::encode::{AlwaysFalse, OutputMode};
use super::hash::Salt;
use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

/// A term of a vocabulary: a string or an integer.
pub(super) trait Token:
    Clone + Eq + Ord + Hash + Debug + Send + Sync + Serialize + DeserializeOwned + 'static
{
    /// Whether tokens are strings, which are always hashed.
    const IS_STRING: bool;

    /// Reads a term of a file.
    fn parse(term: &str) -> Option<Self>;

    /// The text that files hold and that is hashed.
    fn to_text(&self) -> String;

    /// The remainder that chooses a bucket without a hash.
    fn remainder(&self, buckets: i64) -> i64;
}

impl Token for String {
    const IS_STRING: bool = true;

    fn parse(term: &str) -> Option<String> {
        Some(term.into())
    }

    fn to_text(&self) -> String {
        self.clone()
    }

    fn remainder(&self, _: i64) -> i64 {
        0
    }
}

impl Token for i64 {
    const IS_STRING: bool = false;

    fn parse(term: &str) -> Option<i64> {
        term.trim().parse().ok()
    }

    fn to_text(&self) -> String {
        self.to_string()
    }

    fn remainder(&self, buckets: i64) -> i64 {
        self.rem_euclid(buckets.max(1))
    }
}

/// The options of every layer with a vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "T: Token"))]
pub(super) struct VocabularyOptions<T> {
    pub max_tokens: Option<usize>,
    pub output_mode: OutputMode,
    pub sparse: AlwaysFalse,
    pub pad_to_max_tokens: bool,
    pub idf_weights: Option<Vec<f64>>,
    #[serde(deserialize_with = "terms")]
    pub vocabulary: Option<Vec<T>>,
    pub vocabulary_size: Option<usize>,
}

impl<T> Default for VocabularyOptions<T> {
    fn default() -> VocabularyOptions<T> {
        VocabularyOptions {
            max_tokens: None,
            output_mode: OutputMode::Int,
            sparse: AlwaysFalse,
            pad_to_max_tokens: false,
            idf_weights: None,
            vocabulary: None,
            vocabulary_size: None,
        }
    }
}

/// Reads the terms of a vocabulary. A path is refused: a file must not make a program read other files.
fn terms<'de, T: Token, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<Option<Vec<T>>, D::Error> {
    match Value::deserialize(d)? {
        Value::Null => Ok(None),
        Value::String(_) => {
            Err(de::Error::custom("a path to a file is refused: expected a list of terms"))
        }
        list => serde_json::from_value(list).map(Some).map_err(de::Error::custom),
    }
}

/// How integers out of the vocabulary are put into buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OovMethod {
    /// The remainder of the division by the number of buckets.
    #[default]
    Floormod,
    /// A hash.
    Farmhash,
}

/// The options for tokens out of the vocabulary, and for the direction of the lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "T: Token, OovOptions<T>: Default"))]
pub(super) struct OovOptions<T> {
    pub num_oov_indices: usize,
    pub oov_token: Option<T>,
    pub mask_token: Option<T>,
    pub invert: bool,
    /// Written only if it is not the default, which the first versions of Keras 3 do not know.
    #[serde(skip_serializing_if = "is_default")]
    pub oov_method: OovMethod,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<Salt>,
}

fn is_default(method: &OovMethod) -> bool {
    *method == OovMethod::default()
}

impl<T> OovOptions<T> {
    /// One index for all tokens out of the vocabulary, which is read back as `oov_token`.
    pub fn new(oov_token: T) -> OovOptions<T> {
        OovOptions {
            num_oov_indices: 1,
            oov_token: Some(oov_token),
            mask_token: None,
            invert: false,
            oov_method: OovMethod::Floormod,
            salt: None,
        }
    }
}

impl Default for OovOptions<String> {
    fn default() -> OovOptions<String> {
        OovOptions::new("[UNK]".into())
    }
}

impl Default for OovOptions<i64> {
    fn default() -> OovOptions<i64> {
        OovOptions::new(-1)
    }
}

/// The tokens of a vocabulary, without special ones.
#[derive(Debug)]
pub(super) struct Table<T> {
    pub tokens: Vec<T>,
    positions: HashMap<T, usize>,
}

impl<T: Token> Table<T> {
    /// A table of different tokens.
    ///
    /// # Errors
    /// A token that occurs twice.
    pub fn new(owner: &str, tokens: Vec<T>) -> Result<Table<T>> {
        let mut positions = HashMap::with_capacity(tokens.len());
        for (at, token) in tokens.iter().enumerate() {
            if positions.insert(token.clone(), at).is_some() {
                let received = format!("'{}' twice", phalanx_graph::text::shown(token.to_text()));
                return Err(Error::argument(owner, "vocabulary", "each term once", received));
            }
        }
        Ok(Table { tokens, positions })
    }

    /// The position of a token.
    pub fn position<Q: ?Sized + Hash + Eq>(&self, token: &Q) -> Option<usize>
    where
        T: std::borrow::Borrow<Q>,
    {
        self.positions.get(token).copied()
    }
}

/// What a layer learns: its vocabulary and the weights of its terms.
#[derive(Debug)]
struct Learned<T> {
    table: Option<Arc<Table<T>>>,
    idf: Option<Arc<Vec<f32>>>,
}

/// What a layer learns. Clones of a layer share it.
#[derive(Clone, Debug)]
pub(super) struct Shared<T>(Arc<RwLock<Learned<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Arc::new(RwLock::new(Learned { table: None, idf: None })))
    }
}

impl<T> Shared<T> {
    pub fn table(&self) -> Option<Arc<Table<T>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).table.clone()
    }

    pub fn idf(&self) -> Option<Arc<Vec<f32>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).idf.clone()
    }

    pub fn set_table(&self, table: Arc<Table<T>>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).table = Some(table);
    }

    pub fn set_idf(&self, idf: Vec<f32>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).idf = Some(Arc::new(idf));
    }
}

/// Counts of tokens and of the documents that contain them.
pub(super) struct Counts<T> {
    tokens: HashMap<T, u64>,
    documents: HashMap<T, u64>,
    total: u64,
    by_document: bool,
}

impl<T: Token> Counts<T> {
    /// No tokens yet. Documents are counted only if `by_document`.
    pub fn new(by_document: bool) -> Counts<T> {
        Counts { tokens: HashMap::new(), documents: HashMap::new(), total: 0, by_document }
    }

    /// Adds the tokens of a document.
    pub fn add(&mut self, tokens: impl IntoIterator<Item = T>) {
        self.total += 1;
        let mut seen = std::collections::HashSet::new();
        for token in tokens {
            if self.by_document && seen.insert(token.clone()) {
                *self.documents.entry(token.clone()).or_default() += 1;
            }
            *self.tokens.entry(token).or_default() += 1;
        }
    }

    /// The most frequent tokens, at most `most`; of equally frequent ones the largest first.
    pub fn into_vocabulary(mut self, special: &[&T], most: Option<usize>) -> (Vec<T>, Vec<f32>) {
        self.tokens.retain(|token, _| !special.contains(&token));
        let mut sorted: Vec<(T, u64)> = self.tokens.into_iter().collect();
        sorted.sort_by(|a, b| (b.1, &b.0).cmp(&(a.1, &a.0)));
        sorted.truncate(most.unwrap_or(usize::MAX));
        let tokens: Vec<T> = sorted.into_iter().map(|(token, _)| token).collect();
        let idf = |token: &T| {
            let documents = self.documents.get(token).copied().unwrap_or_default();
            (1.0 + self.total as f64 / (1.0 + documents as f64)).ln() as f32
        };
        let idf = if self.by_document { tokens.iter().map(idf).collect() } else { vec![] };
        (tokens, idf)
    }
}
