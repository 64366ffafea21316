//! Checksums of weights, for comparing runs.

use crate::error::Result;
use crate::model::Model;
use phalanx_graph::Tensor;
use sha2::{Digest, Sha256};

/// Number of values hashed at a time.
const CHUNK: usize = 4096;

impl Model {
    /// SHA-256 over name, shape and bytes of every weight, in order. Equal only for bit-identical
    /// weights.
    pub fn weights_sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for (name, tensor) in self.weights()? {
            update(&mut hash, &name, &tensor);
        }
        Ok(hex(hash))
    }
}

/// Adds the name, shape and bytes of a tensor.
pub(super) fn update(hash: &mut Sha256, name: &str, tensor: &Tensor) {
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    for d in tensor.dims() {
        hash.update((*d as u64).to_le_bytes());
    }
    let mut bytes = Vec::with_capacity(CHUNK * 4);
    for chunk in tensor.f32().unwrap_or_default().chunks(CHUNK) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|v| v.to_le_bytes()));
        hash.update(&bytes);
    }
}

/// The hash in hexadecimal.
pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
