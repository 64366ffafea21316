//! A training run between two steps: all it needs to go on as if nothing had happened.

use super::run_setup::Setup;
use super::session::{Tally, TrainState, is_weight};
use crate::callbacks::CallbackState;
use crate::error::{Error, Result};
use crate::history::History;
use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of what a header says. Version 1 repeated the notes, which are passed over there.
const VERSION: u32 = 2;

/// Where in its data a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Batches of it that are done.
    pub batch: usize,
    /// Samples of it that are done.
    pub rows: usize,
    /// Which pass over the data is under way, and how many of its batches are done.
    pub pass: u64,
    pub taken: usize,
}

/// A training run between two steps: weights, optimizer, counters, place in the data, history and
/// what its callbacks remember.
#[derive(Clone, Debug)]
pub struct RunState {
    pub(crate) header: Header,
    /// What the model says of itself in files.
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) callbacks: Vec<(String, CallbackState)>,
}

/// All but the tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub position: Position,
    pub counters: TrainState,
    pub tally: Tally,
    pub history: History,
    /// Seconds of the epoch so far.
    pub seconds: f64,
    /// Whether a callback has ended the run.
    pub stopped: bool,
    #[serde(flatten)]
    pub setup: Setup,
}

/// As in files.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    run: Header,
    callbacks: Vec<(String, Value)>,
}

impl RunState {
    /// The epoch that is under way, or comes next, from 0.
    pub fn epoch(&self) -> usize {
        self.header.position.epoch
    }

    /// Batches of the epoch that are done.
    pub fn batch(&self) -> usize {
        self.header.position.batch
    }

    /// Training steps done.
    pub fn step(&self) -> u64 {
        self.header.counters.steps
    }

    /// The epochs that are done.
    pub fn history(&self) -> &History {
        &self.header.history
    }

    /// The model's weights by name.
    pub fn weights(&self) -> impl Iterator<Item = &(String, Tensor)> {
        self.tensors.iter().filter(|(name, _)| is_weight(name))
    }

    /// Whether every number in it is one.
    pub fn is_finite(&self) -> bool {
        self.tensors.iter().all(|(_, tensor)| tensor.is_finite())
    }

    /// A text and named tensors, which together with the notes are the whole state.
    pub(crate) fn into_parts(self) -> Result<(String, Vec<(String, Tensor)>)> {
        let mut tensors = self.tensors;
        let mut callbacks = vec![];
        for (i, (name, state)) in self.callbacks.into_iter().enumerate() {
            let named = |(n, tensor)| (format!("{}{n}", prefix(i)), tensor);
            tensors.extend(state.tensors.into_iter().map(named));
            callbacks.push((name, state.values));
        }
        let written = Written { version: VERSION, run: self.header, callbacks };
        let text = serde_json::to_string(&written);
        Ok((text.map_err(|e| Error::config("run state", e))?, tensors))
    }

    /// The state of its parts.
    pub(crate) fn from_parts(
        text: &str,
        notes: BTreeMap<String, String>,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<RunState> {
        let wrong = |e: serde_json::Error| Error::config("run state", e);
        let version: Version = serde_json::from_str(text).map_err(wrong)?;
        if !(1..=VERSION).contains(&version.version) {
            let received = format!("version {} (from a newer Phalanx?)", version.version);
            let expected = format!("1 to {VERSION}");
            return Err(Error::argument("run state", "version", expected, received));
        }
        let written: Written = serde_json::from_str(text).map_err(wrong)?;
        let mut callbacks: Vec<(String, CallbackState)> = written
            .callbacks
            .into_iter()
            .map(|(name, values)| (name, CallbackState { values, tensors: vec![] }))
            .collect();
        let mut mine = vec![];
        'tensors: for (name, tensor) in tensors {
            for (i, (_, state)) in callbacks.iter_mut().enumerate() {
                if let Some(short) = name.strip_prefix(&prefix(i)) {
                    state.tensors.push((short.into(), tensor));
                    continue 'tensors;
                }
            }
            mine.push((name, tensor));
        }
        Ok(RunState { header: written.run, notes, tensors: mine, callbacks })
    }
}

/// A state on its way to another worker: all but the tensors' numbers, which follow.
#[derive(Serialize, Deserialize)]
struct Sent {
    text: String,
    notes: BTreeMap<String, String>,
    tensors: Vec<(String, Vec<usize>)>,
}

impl RunState {
    /// The state as bytes for another worker of this version.
    pub(crate) fn into_bytes(mut self) -> Result<Vec<u8>> {
        let notes = std::mem::take(&mut self.notes);
        let (text, tensors) = self.into_parts()?;
        let named = |(name, t): &(String, Tensor)| (name.clone(), t.dims().to_vec());
        let sent = Sent { text, notes, tensors: tensors.iter().map(named).collect() };
        let head = serde_json::to_vec(&sent).map_err(|e| Error::config("run state", e))?;
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head);
        for (_, tensor) in &tensors {
            bytes.extend(tensor.f32().unwrap_or_default().iter().flat_map(|v| v.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// The state that another worker sent.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<RunState> {
        let short = || Error::config("run state", "a part of it is missing");
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (head, mut rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let sent: Sent = serde_json::from_slice(head).map_err(|e| Error::config("run state", e))?;
        let mut tensors = vec![];
        for (name, dims) in sent.tensors {
            let len = dims.iter().try_fold(4usize, |n, d| n.checked_mul(*d)).ok_or_else(short)?;
            let (own, others) = rest.split_at_checked(len).ok_or_else(short)?;
            let (numbers, _) = own.as_chunks::<4>();
            let values: Vec<f32> = numbers.iter().map(|v| f32::from_le_bytes(*v)).collect();
            tensors.push((name, Tensor::new(dims, values)?));
            rest = others;
        }
        RunState::from_parts(&sent.text, sent.notes, tensors)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Begins the names of a callback's tensors.
fn prefix(callback: usize) -> String {
    format!("@callback/{callback}/")
}
