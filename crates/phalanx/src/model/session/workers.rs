//! Communication between the workers of a job, outside the steps.

use super::Session;
use super::device_weights::SharedExecutor;
use crate::data::{Dataset, Digest, format_digest};
use crate::error::{Error, Result};
use crate::layer::lock;
use crate::model::RunState;
use crate::progress::Verbose;
use crate::saving;
use crate::workers::peer_lost;
use phalanx_distributed::all_gather;
use phalanx_exec::{Cluster, LocalShard};
use serde_json::Value;
use std::path::PathBuf;

/// The workers of a job; only this one if there is no cluster.
pub(crate) struct Workers {
    pub cluster: Option<Cluster>,
    executor: SharedExecutor,
}

/// The flag of a worker that has received a stop request.
const STOP_FLAG: u64 = 1;

impl Workers {
    pub(super) fn new(cluster: Option<Cluster>, executor: SharedExecutor) -> Workers {
        Workers { cluster, executor }
    }

    /// Returns whether there are several workers.
    pub fn is_distributed(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns whether this worker is the chief, which writes files and prints.
    pub fn is_chief(&self) -> bool {
        self.cluster.as_ref().is_none_or(|c| c.peers.rank() == 0)
    }

    /// Returns the verbosity of this worker: `requested` on the chief, otherwise silent.
    pub fn verbose(&self, requested: u8) -> Result<Verbose> {
        Verbose::try_from(if self.is_chief() { requested } else { 0 })
    }

    /// Returns the bytes of every worker, in rank order.
    pub fn all_gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let Some(cluster) = &self.cluster else { return Ok(vec![mine]) };
        all_gather(&*cluster.peers, &mine).map_err(peer_lost)
    }

    /// Returns the chief's bytes.
    fn broadcast(&self, mine: Vec<u8>) -> Result<Vec<u8>> {
        let mine = if self.is_chief() { mine } else { vec![] };
        Ok(self.all_gather(mine)?.swap_remove(0))
    }

    /// Sends the run that the chief resumes to all workers.
    pub fn broadcast_run(&self, found: Option<RunState>) -> Result<Option<RunState>> {
        if !self.is_distributed() {
            return Ok(found);
        }
        let mine = found.clone().map_or(Ok(vec![]), RunState::into_bytes)?;
        let bytes = self.broadcast(mine)?;
        match (self.is_chief(), bytes.is_empty()) {
            (true, _) => Ok(found),
            (false, true) => Ok(None),
            (false, false) => RunState::from_bytes(&bytes).map(Some),
        }
    }

    /// Sends the path at which the chief saved the run to all workers.
    pub fn broadcast_path(&self, path: Option<PathBuf>) -> Result<Option<PathBuf>> {
        if !self.is_distributed() {
            return Ok(path);
        }
        let text = path.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        let bytes = self.broadcast(text.into_bytes())?;
        let text = String::from_utf8_lossy(&bytes);
        Ok((!text.is_empty()).then(|| PathBuf::from(&*text)))
    }

    /// The devices of this worker, and so its rows of every batch.
    pub fn shard(&self) -> LocalShard {
        lock(&self.executor).shard()
    }

    /// The same, if there are several workers.
    pub fn shard_if_several(&self) -> Option<LocalShard> {
        self.is_distributed().then(|| self.shard())
    }

    /// Sends this worker's stop request, if any, to the others along with the next step.
    pub fn set_stop_flag(&self, stop: bool) {
        if let Some(flags) = lock(&self.executor).process_flags() {
            flags.set_flags(if stop { STOP_FLAG } else { 0 });
        }
    }

    /// Returns whether any worker had a stop request before the last step. All workers get the same answer. A
    /// single worker returns `own`.
    pub fn any_worker_stopping(&self, own: bool) -> bool {
        let mut executor = lock(&self.executor);
        executor.process_flags().map_or(own, |all| all.flags() & STOP_FLAG != 0)
    }

    /// Fails if the workers differ. `facts` are names with this worker's values.
    pub fn check_equal(&self, facts: &[(String, String)]) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let mine = serde_json::to_vec(facts).map_err(|e| Error::config("workers", e))?;
        let all = all_gather(&*cluster.peers, &mine).map_err(peer_lost)?;
        let read = |bytes: &Vec<u8>| -> Vec<(String, String)> {
            serde_json::from_slice(bytes).unwrap_or_default()
        };
        let chief = read(&all[0]);
        for (rank, other) in all.iter().enumerate().skip(1) {
            let other = read(other);
            let same = |at: &usize| chief.get(*at) == other.get(*at);
            let Some(at) = (0..chief.len().max(other.len())).find(|at| !same(at)) else { continue };
            let value = |list: &[(String, String)], rank: usize| {
                let value = list.get(at).map_or("nothing", |fact| fact.1.as_str());
                format!("{value} on {}", cluster.peers.name(rank))
            };
            let name = chief.get(at).or(other.get(at)).map_or("", |fact| fact.0.as_str());
            let (expected, received) = (value(&chief, 0), value(&other, rank));
            return Err(Error::argument("workers", name, expected, received));
        }
        Ok(())
    }
}

impl Session {
    /// Returns names and values that must be equal on all workers. `data` comes before entries that depend on
    /// it, such as metadata about the data and adapted weights, so that an error names the cause.
    pub(crate) fn fingerprint(&self, data: &[(&str, String)]) -> Result<Vec<(String, String)>> {
        let digest = |text: String| {
            let mut digest = Digest::default();
            digest.bytes(text.as_bytes());
            format!("{:016x}", digest.end())
        };
        let notes: Vec<String> = self.def.notes().iter().map(|(k, v)| format!("{k}={v}")).collect();
        let timeout = self.workers.cluster.as_ref().and_then(|c| c.peers.timeout());
        let executor = lock(&self.executor);
        let mut weights = Digest::default();
        for weight in &self.weights.all {
            weights.floats(&executor.param(weight.param)?);
        }
        let mut facts = vec![("version".to_string(), env!("CARGO_PKG_VERSION").to_string())];
        facts.extend(data.iter().map(|(name, value)| (name.to_string(), value.clone())));
        let is_custom = self.objective.custom.is_some();
        let session_facts = [
            ("model", format!("{} {}", self.def.name, digest(saving::structure(&self.def)))),
            (
                if is_custom { "training step" } else { "losses and metrics" },
                digest(Value::Object(self.objective.described.clone()).to_string()),
            ),
            ("seed", self.state.seed.to_string()),
            ("deterministic mode", executor.mesh().fixed.to_string()),
            ("precision", format!("{:?}", self.programs.placement.policy)),
            ("collective timeout", timeout.map_or("none".into(), |t| format!("{t:?}"))),
            ("weights", format!("{:016x}", weights.end())),
            ("notes of the model", digest(notes.join("\n"))),
            ("optimizer", self.objective.optimizer.class_name().into()),
        ];
        let backend_facts = self.programs.placement.backend.fingerprint();
        let named = |(name, value): (&str, String)| (name.to_string(), value);
        facts.extend(backend_facts.into_iter().map(named));
        facts.extend(session_facts.map(named));
        for other in self.objective.custom.iter().flat_map(|custom| &custom.optimizers) {
            let class = other.optimizer.as_ref().map(|optimizer| optimizer.class_name());
            facts.extend(class.map(|class| (format!("optimizer '{}'", other.name), class.into())));
        }
        let options = self.objective.optimizer_options().into_iter();
        facts.extend(
            options.map(|(name, value)| (format!("optimizer's {name}"), value.to_string())),
        );
        Ok(facts)
    }

    /// Fails if the workers would evaluate or predict with different data or models.
    pub(crate) fn check_same_inputs(&self, data: &dyn Dataset) -> Result<()> {
        if !self.workers.is_distributed() {
            return Ok(());
        }
        let facts = [
            ("global batch size", data.batch_size().to_string()),
            ("samples", data.len().map_or("unknown".into(), |n| n.to_string())),
            ("data", format_digest(data.digest()).unwrap_or_else(|| "unknown".into())),
        ];
        self.workers.check_equal(&self.fingerprint(&facts)?)
    }
}
