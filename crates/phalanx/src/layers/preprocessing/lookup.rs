//! The index of a token in a vocabulary: mask, out-of-vocabulary indices, tokens in their order.

use super::encode::OutputMode;
use super::hash;
use super::vocabulary::{Counts, OovMethod, OovOptions, Shared, Table, Token, VocabularyOptions};
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of indices for tokens out of the vocabulary.
const MAX_OOV_INDICES: usize = 1 << 24;

/// A layer's options and what it has learned.
pub(super) struct Lookup<'a, T> {
    pub options: &'a VocabularyOptions<T>,
    pub oov: &'a OovOptions<T>,
    pub learned: &'a Shared<T>,
}

impl<T: Token> Lookup<'_, T> {
    /// The first index of tokens out of the vocabulary.
    fn oov_start(&self) -> usize {
        usize::from(self.oov.mask_token.is_some() && self.options.output_mode == OutputMode::Int)
    }

    /// The index of the first token of the vocabulary.
    fn token_start(&self) -> usize {
        self.oov_start().saturating_add(self.oov.num_oov_indices)
    }

    /// Fails if options contradict each other.
    pub fn check(&self, owner: &str) -> Result<()> {
        let fail = |argument: &str, expected: &str, received: String| {
            Err(Error::argument(owner, argument, expected, received))
        };
        let (options, oov) = (self.options, self.oov);
        if let Some(max @ 0..=1) = options.max_tokens {
            return fail("max_tokens", "2 or more", max.to_string());
        }
        if options.pad_to_max_tokens && options.max_tokens.is_none() {
            return fail("max_tokens", "a number, as pad_to_max_tokens is set", "none".into());
        }
        if oov.num_oov_indices > MAX_OOV_INDICES {
            let expected = format!("at most {MAX_OOV_INDICES}");
            return fail("num_oov_indices", &expected, oov.num_oov_indices.to_string());
        }
        if oov.invert && options.output_mode != OutputMode::Int {
            return fail("output_mode", "int, as invert is set", options.output_mode.name().into());
        }
        if oov.salt.is_some() && !T::IS_STRING && oov.oov_method == OovMethod::Floormod {
            return fail("oov_method", "farmhash, as salt is set", "floormod".into());
        }
        let weighted = options.output_mode == OutputMode::TfIdf;
        if options.idf_weights.is_some() && !weighted {
            let received = options.output_mode.name().into();
            return fail("output_mode", "tf_idf, as there are idf_weights", received);
        }
        if options.vocabulary.is_some() && options.idf_weights.is_none() && weighted {
            return fail("idf_weights", "one for each term of the vocabulary", "none".into());
        }
        Ok(())
    }

    /// The vocabulary.
    ///
    /// # Errors
    /// There is none, or the given one is refused.
    pub fn table(&self, owner: &str) -> Result<Arc<Table<T>>> {
        if let Some(table) = self.learned.table() {
            return Ok(table);
        }
        let Some(vocabulary) = &self.options.vocabulary else {
            let expected = "one that is given or learned by adapt()";
            return Err(Error::argument(owner, "vocabulary", expected, "none"));
        };
        self.set(owner, vocabulary, self.options.idf_weights.as_deref())?;
        self.table(owner)
    }

    /// Replaces the vocabulary. Special tokens may precede the terms.
    pub fn set(&self, owner: &str, terms: &[T], idf: Option<&[f64]>) -> Result<()> {
        let fail = |expected: String, received: String| {
            Err(Error::argument(owner, "vocabulary", expected, received))
        };
        if terms.is_empty() {
            return fail("at least one term".into(), "none".into());
        }
        let (oov_start, token_start) = (self.oov_start(), self.token_start());
        let special = |(at, term): (usize, &T)| match at < oov_start {
            true => self.oov.mask_token.as_ref() == Some(term),
            false => self.oov.oov_token.as_ref() == Some(term),
        };
        let has_special =
            terms.len() >= token_start && terms[..token_start].iter().enumerate().all(special);
        let tokens = if has_special { &terms[token_start..] } else { terms };
        let table = Table::new(owner, tokens.to_vec())?;
        let reserved = [&self.oov.mask_token, &self.oov.oov_token];
        for token in reserved.into_iter().take(1 + usize::from(self.oov.invert)).flatten() {
            if table.position(token).is_some() {
                let token = phalanx_graph::text::shown(token.to_text()).to_string();
                let expected = format!("the reserved token '{token}' at the start or not at all");
                return fail(expected, "it among the terms".into());
            }
        }
        let size = token_start.saturating_add(tokens.len());
        if self.options.max_tokens.is_some_and(|most| size > most) || i32::try_from(size).is_err() {
            let most = self.options.max_tokens.unwrap_or(i32::MAX as usize);
            return fail(format!("at most {most} terms, as max_tokens says"), size.to_string());
        }
        self.check_size(owner, size)?;
        if let Some(idf) = idf {
            if idf.len() != terms.len() {
                let expected = format!("{}, one for each term", terms.len());
                return Err(Error::argument(owner, "idf_weights", expected, idf.len()));
            }
            let mean = idf.iter().sum::<f64>() / idf.len() as f64;
            let front = if has_special { 0 } else { token_start };
            let mut all = vec![mean as f32; front];
            all.extend(idf.iter().map(|weight| *weight as f32));
            self.learned.set_idf(self.padded(all));
        }
        self.learned.set_table(Arc::new(table));
        Ok(())
    }

    /// Weights of terms, padded with zeros if the output is padded.
    fn padded(&self, mut weights: Vec<f32>) -> Vec<f32> {
        if let (true, Some(most)) = (self.options.pad_to_max_tokens, self.options.max_tokens) {
            weights.resize(most.max(weights.len()), 0.0);
        }
        weights
    }

    /// Fails if a vocabulary has another size than the output was built for.
    fn check_size(&self, owner: &str, size: usize) -> Result<()> {
        let free = self.options.output_mode == OutputMode::Int || self.options.pad_to_max_tokens;
        match self.options.vocabulary_size {
            Some(expected) if expected != size && !free => {
                let expected = format!("{expected} terms, as the layer's output was built for");
                Err(Error::argument(owner, "vocabulary", expected, size))
            }
            _ => Ok(()),
        }
    }

    /// Learns the vocabulary from counts.
    pub fn learn(&self, owner: &str, counts: Counts<T>) -> Result<()> {
        self.check(owner)?;
        if self.options.vocabulary.is_some() {
            let received = "a vocabulary that was given";
            return Err(Error::argument(owner, "adapt", "a layer without a vocabulary", received));
        }
        let special: Vec<&T> =
            [&self.oov.mask_token, &self.oov.oov_token].into_iter().flatten().collect();
        let start = self.token_start();
        let most = self.options.max_tokens.map(|most| most.saturating_sub(start));
        let (tokens, weights) = counts.into_vocabulary(&special, most);
        if i32::try_from(start + tokens.len()).is_err() {
            return Err(Error::argument(owner, "adapt", "fewer than 2³¹ terms", tokens.len()));
        }
        if self.options.output_mode == OutputMode::TfIdf {
            let mean = weights.iter().sum::<f32>() / weights.len() as f32;
            let mut all = vec![mean; start];
            all.extend(weights);
            self.learned.set_idf(self.padded(all));
        }
        self.learned.set_table(Arc::new(Table::new(owner, tokens)?));
        Ok(())
    }

    /// The number of indices, special ones included; `None` without a vocabulary.
    pub fn size(&self) -> Option<usize> {
        let given = || self.options.vocabulary.as_ref().and_then(|_| self.table("").ok());
        let learned = self.learned.table().or_else(given);
        learned.map(|table| self.token_start().saturating_add(table.tokens.len()))
    }

    /// The number of categories of an encoded output.
    pub fn depth(&self, owner: &str) -> Result<usize> {
        if let (true, Some(most)) = (self.options.pad_to_max_tokens, self.options.max_tokens) {
            return Ok(most);
        }
        match self.size().or(self.options.vocabulary_size) {
            Some(size) => Ok(size),
            None => {
                let table = self.table(owner)?;
                Ok(self.token_start().saturating_add(table.tokens.len()))
            }
        }
    }

    /// The terms by index, special ones included.
    pub fn terms(&self) -> Vec<T> {
        let oov_indices = self.oov.num_oov_indices.min(MAX_OOV_INDICES);
        let oov = std::iter::repeat_n(&self.oov.oov_token, oov_indices);
        let mask = std::iter::repeat_n(&self.oov.mask_token, self.oov_start());
        let special = mask.chain(oov).filter_map(Option::clone);
        let table = self.table("").ok();
        special.chain(table.iter().flat_map(|table| table.tokens.iter().cloned())).collect()
    }

    /// The index of a token; `None` for a mask token of an encoded output, which does not count.
    ///
    /// # Errors
    /// A token out of the vocabulary, if there is no index for it.
    pub fn index(&self, owner: &str, table: &Table<T>, token: &T) -> Result<Option<i64>> {
        if self.oov.mask_token.as_ref() == Some(token) {
            return Ok((self.options.output_mode == OutputMode::Int).then_some(0));
        }
        if let Some(position) = table.position(token) {
            return Ok(Some((self.token_start() + position) as i64));
        }
        let buckets = self.oov.num_oov_indices;
        let bucket = match buckets {
            0 => {
                let expected = "tokens of the vocabulary, as num_oov_indices is 0";
                let received = format!("'{}'", phalanx_graph::text::shown(token.to_text()));
                return Err(Error::argument(owner, "input", expected, received));
            }
            1 => 0,
            _ if !T::IS_STRING && self.oov.oov_method == OovMethod::Floormod => {
                token.remainder(buckets as i64)
            }
            _ => {
                let text = token.to_text();
                hash::bucket(text.as_bytes(), self.oov.salt, buckets as u64) as i64
            }
        };
        Ok(Some(self.oov_start() as i64 + bucket))
    }

    /// The token of an index.
    ///
    /// # Errors
    /// An index without a token, if there is no token for it.
    pub fn token(&self, owner: &str, table: &Table<T>, index: i64) -> Result<T> {
        let found = match (index, &self.oov.mask_token) {
            (0, Some(mask)) => Some(mask.clone()),
            _ => usize::try_from(index)
                .ok()
                .and_then(|index| index.checked_sub(self.token_start()))
                .and_then(|position| table.tokens.get(position).cloned()),
        };
        found.or_else(|| self.oov.oov_token.clone()).ok_or_else(|| {
            Error::argument(owner, "input", "indices of terms, as there is no oov_token", index)
        })
    }

    /// Multiplies the counts of terms by their weights.
    pub fn weight(&self, owner: &str, counts: &mut [f32], depth: usize) -> Result<()> {
        let weights = self.learned.idf().filter(|weights| weights.len() == depth);
        let Some(weights) = weights else {
            let received = self.learned.idf().map_or("none".into(), |w| w.len().to_string());
            return Err(Error::argument(owner, "idf_weights", format!("{depth}"), received));
        };
        for row in counts.chunks_exact_mut(depth.max(1)) {
            row.iter_mut().zip(&**weights).for_each(|(count, weight)| *count *= weight);
        }
        Ok(())
    }

    /// The terms as files hold them; `None` if the config holds them.
    pub fn file_terms(&self) -> Option<Vec<String>> {
        let learned = self.options.vocabulary.is_none().then(|| self.learned.table())?;
        learned.map(|_| self.terms().iter().map(Token::to_text).collect())
    }

    /// Sets the terms of a file.
    pub fn set_file_terms(&self, owner: &str, terms: &[&str]) -> Result<()> {
        let parse = |term: &&str| {
            T::parse(term).ok_or_else(|| {
                let received = phalanx_graph::text::shown(term).to_string();
                Error::argument(owner, "vocabulary", "whole numbers", received)
            })
        };
        let terms = terms.iter().map(parse).collect::<Result<Vec<T>>>()?;
        self.set(owner, &terms, None)
    }

    /// The entries of a config that holds what was learned.
    pub fn config_entries(&self) -> Vec<(&'static str, Value)> {
        let mut entries = vec![];
        if self.options.vocabulary.is_none() && self.learned.table().is_some() {
            entries.push(("vocabulary", json!(self.terms())));
            let idf = self.learned.idf().filter(|_| self.options.output_mode == OutputMode::TfIdf);
            let len = self.size().unwrap_or_default();
            entries.extend(idf.map(|idf| ("idf_weights", json!(idf[..len.min(idf.len())]))));
        }
        entries
    }
}
