//! A fingerprint of the weights, to compare runs by.

use crate::error::Result;
use crate::model::Model;
use sha2::{Digest, Sha256};

impl Model {
    /// SHA-256 over every weight's name, shape and bytes, in order: equal for equal bits alone.
    pub fn weights_sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for (name, tensor) in self.weights()? {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            for d in tensor.dims() {
                hash.update((*d as u64).to_le_bytes());
            }
            for v in tensor.f32().unwrap_or_default() {
                hash.update(v.to_le_bytes());
            }
        }
        Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
    }
}
