//! Strings to tokens: standardization, splitting and n-grams, as TensorFlow's string ops do them.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What becomes of a string before it is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standardize {
    /// ASCII letters become lower case, ASCII punctuation is deleted.
    LowerAndStripPunctuation,
    /// ASCII letters become lower case.
    Lower,
    /// ASCII punctuation is deleted.
    StripPunctuation,
}

impl Standardize {
    pub(super) fn apply(self, text: &str) -> String {
        let strips = self != Standardize::Lower;
        let lowers = self != Standardize::StripPunctuation;
        let kept = text.chars().filter(|c| !(strips && c.is_ascii_punctuation()));
        kept.map(|c| if lowers { c.to_ascii_lowercase() } else { c }).collect()
    }
}

/// How a string is split into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// At runs of ASCII whitespace.
    Whitespace,
    /// Into Unicode characters.
    Character,
}

impl Split {
    pub(super) fn apply(self, text: &str) -> Vec<String> {
        let is_space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
        match self {
            Split::Whitespace => {
                text.split(is_space).filter(|part| !part.is_empty()).map(String::from).collect()
            }
            Split::Character => text.chars().map(String::from).collect(),
        }
    }
}

/// The lengths of the n-grams that tokens are joined to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number or a list of them")]
pub enum Ngrams {
    /// All lengths up to this one.
    UpTo(usize),
    /// These lengths.
    Of(Vec<usize>),
}

impl From<usize> for Ngrams {
    fn from(most: usize) -> Ngrams {
        Ngrams::UpTo(most)
    }
}

impl<const N: usize> From<[usize; N]> for Ngrams {
    fn from(lengths: [usize; N]) -> Ngrams {
        Ngrams::Of(lengths.to_vec())
    }
}

/// Maximum length of an n-gram. The shortest sequence with longer ones would have as many tokens.
const MAX_NGRAM: usize = 1000;

impl Ngrams {
    /// The lengths, in order.
    ///
    /// # Errors
    /// A length of 0, or one that is too large.
    pub(super) fn lengths(&self, owner: &str) -> Result<Cow<'_, [usize]>> {
        let lengths: Cow<'_, [usize]> = match self {
            Ngrams::UpTo(most) if *most <= MAX_NGRAM => (1..=*most).collect::<Vec<_>>().into(),
            Ngrams::UpTo(most) => vec![*most].into(),
            Ngrams::Of(lengths) => lengths.into(),
        };
        match lengths.iter().find(|n| !(1..=MAX_NGRAM).contains(*n)) {
            None if !lengths.is_empty() => Ok(lengths),
            bad => {
                let expected = format!("lengths from 1 to {MAX_NGRAM}");
                let received = bad.map_or("none".into(), usize::to_string);
                Err(Error::argument(owner, "ngrams", expected, received))
            }
        }
    }
}

/// Joins tokens to n-grams: for each length all of that length, in order.
pub(super) fn join(tokens: &[String], lengths: &[usize]) -> Vec<String> {
    let of = |n: &usize| tokens.windows(*n).map(|window| window.join(" ")).collect::<Vec<_>>();
    lengths.iter().flat_map(of).collect()
}
