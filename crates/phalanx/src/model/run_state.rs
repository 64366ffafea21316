//! The complete state of a training run between two steps, from which it can resume exactly.

use super::run_config::RunConfig;
use super::session::{Tally, TrainState, is_weight};
use crate::callbacks::CallbackState;
use crate::error::{Error, Result};
use crate::history::History;
use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the header. Version 1 also contained the metadata, which is ignored when read.
const VERSION: u32 = 2;

/// The position of a run in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Completed batches of the epoch.
    pub batch: usize,
    /// Completed samples of the epoch.
    pub rows: usize,
    /// The current pass over the data. It may differ from the epoch if `steps_per_epoch` is set.
    pub pass: u64,
    /// Completed batches of the pass.
    pub taken: usize,
}

/// The state of a training run between two steps: weights, optimizer state, counters, position in the data,
/// history and the state of the callbacks.
#[derive(Clone, Debug)]
pub struct RunState {
    pub(crate) header: Header,
    /// The model's metadata in files.
    pub(crate) notes: BTreeMap<String, String>,
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) callbacks: Vec<(String, CallbackState)>,
}

/// The state of a run without tensors and callbacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub position: Position,
    pub counters: TrainState,
    pub tally: Tally,
    pub history: History,
    /// Elapsed seconds of the current epoch.
    pub seconds: f64,
    /// Whether a callback has ended the run.
    pub stopped: bool,
    #[serde(flatten)]
    pub config: RunConfig,
}

/// The JSON text in files.
#[derive(Serialize, Deserialize)]
struct StoredRun {
    version: u32,
    run: Header,
    callbacks: Vec<(String, Value)>,
}

impl RunState {
    /// Returns the current or next epoch, counted from 0.
    pub fn epoch(&self) -> usize {
        self.header.position.epoch
    }

    /// Returns the number of completed batches of the epoch.
    pub fn batch(&self) -> usize {
        self.header.position.batch
    }

    /// Returns the number of completed training steps.
    pub fn step(&self) -> u64 {
        self.header.counters.steps
    }

    /// Returns the history of completed epochs.
    pub fn history(&self) -> &History {
        &self.header.history
    }

    /// Returns the model's weights by name.
    pub fn weights(&self) -> impl Iterator<Item = &(String, Tensor)> {
        self.tensors.iter().filter(|(name, _)| is_weight(name))
    }

    /// Returns whether all tensors are finite.
    pub fn is_finite(&self) -> bool {
        self.tensors.iter().all(|(_, tensor)| tensor.is_finite())
    }

    /// Splits the state into a text and named tensors. The metadata is stored separately.
    pub(crate) fn into_parts(self) -> Result<(String, Vec<(String, Tensor)>)> {
        let mut tensors = self.tensors;
        let mut callbacks = vec![];
        for (i, (name, state)) in self.callbacks.into_iter().enumerate() {
            let named = |(n, tensor)| (format!("{}{n}", prefix(i)), tensor);
            tensors.extend(state.tensors.into_iter().map(named));
            callbacks.push((name, state.values));
        }
        let stored = StoredRun { version: VERSION, run: self.header, callbacks };
        let text = serde_json::to_string(&stored);
        Ok((text.map_err(|e| Error::config("run state", e))?, tensors))
    }

    /// Rebuilds the state from its parts.
    pub(crate) fn from_parts(
        text: &str,
        notes: BTreeMap<String, String>,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<RunState> {
        let invalid = |e: serde_json::Error| Error::config("run state", e);
        let version: Version = serde_json::from_str(text).map_err(invalid)?;
        if !(1..=VERSION).contains(&version.version) {
            let received = format!("version {} (from a newer Phalanx?)", version.version);
            let expected = format!("1 to {VERSION}");
            return Err(Error::argument("run state", "version", expected, received));
        }
        let stored: StoredRun = serde_json::from_str(text).map_err(invalid)?;
        let mut callbacks: Vec<(String, CallbackState)> = stored
            .callbacks
            .into_iter()
            .map(|(name, values)| (name, CallbackState { values, tensors: vec![] }))
            .collect();
        let mut own_tensors = vec![];
        'tensors: for (name, tensor) in tensors {
            for (i, (_, state)) in callbacks.iter_mut().enumerate() {
                if let Some(short) = name.strip_prefix(&prefix(i)) {
                    state.tensors.push((short.into(), tensor));
                    continue 'tensors;
                }
            }
            own_tensors.push((name, tensor));
        }
        Ok(RunState { header: stored.run, notes, tensors: own_tensors, callbacks })
    }
}

/// The head of a state sent to another worker; the tensors' values follow it.
#[derive(Serialize, Deserialize)]
struct MessageHead {
    text: String,
    notes: BTreeMap<String, String>,
    tensors: Vec<(String, Vec<usize>)>,
}

impl RunState {
    /// Serializes the state for another worker of the same version.
    pub(crate) fn into_bytes(mut self) -> Result<Vec<u8>> {
        let notes = std::mem::take(&mut self.notes);
        let (text, tensors) = self.into_parts()?;
        let named = |(name, t): &(String, Tensor)| (name.clone(), t.dims().to_vec());
        let head = MessageHead { text, notes, tensors: tensors.iter().map(named).collect() };
        let head = serde_json::to_vec(&head).map_err(|e| Error::config("run state", e))?;
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head);
        for (_, tensor) in &tensors {
            bytes.extend(tensor.f32().unwrap_or_default().iter().flat_map(|v| v.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// Deserializes a state received from another worker.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<RunState> {
        let truncated = || Error::config("run state", "a part of it is missing");
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(truncated)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (head, mut rest) = rest.split_at_checked(length).ok_or_else(truncated)?;
        let head: MessageHead =
            serde_json::from_slice(head).map_err(|e| Error::config("run state", e))?;
        let mut tensors = vec![];
        for (name, dims) in head.tensors {
            let len =
                dims.iter().try_fold(4usize, |n, d| n.checked_mul(*d)).ok_or_else(truncated)?;
            let (bytes, remaining) = rest.split_at_checked(len).ok_or_else(truncated)?;
            let (numbers, _) = bytes.as_chunks::<4>();
            let values: Vec<f32> = numbers.iter().map(|v| f32::from_le_bytes(*v)).collect();
            tensors.push((name, Tensor::new(dims, values)?));
            rest = remaining;
        }
        RunState::from_parts(&head.text, head.notes, tensors)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Returns the prefix of the names of a callback's tensors.
fn prefix(callback: usize) -> String {
    format!("@callback/{callback}/")
}
