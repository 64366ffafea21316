//! The cache on disk for compiled kernels. Losing it costs only seconds, so all errors are ignored.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

const CHECKSUM_BYTES: usize = 32;

/// The folder of compiled kernels: `PHALANX_CACHE`, or the user's cache folder.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("PHALANX_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("phalanx")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/phalanx")))
}

/// Reads the content of a key, if its checksum matches.
pub(crate) fn read(kind: &str, key: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(folder()?.join(kind).join(key)).ok()?;
    let (checksum, content) = bytes.split_at_checked(CHECKSUM_BYTES)?;
    (Sha256::digest(content).as_slice() == checksum).then(|| content.to_vec())
}

/// Stores content under a key. Readers see all of it or nothing.
pub(crate) fn write(kind: &str, key: &str, content: &[u8]) {
    let Some(folder) = folder().map(|f| f.join(kind)) else { return };
    let temporary = folder.join(format!("{key}.{}", std::process::id()));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::File::create(&temporary))
        .and_then(|mut file| {
            file.write_all(&Sha256::digest(content))?;
            file.write_all(content)
        })
        .and_then(|()| std::fs::rename(&temporary, folder.join(key)));
    if let Err(e) = written {
        std::fs::remove_file(&temporary).ok();
        tracing::debug!("the cache in {} cannot be written: {e}", folder.display());
    }
}
