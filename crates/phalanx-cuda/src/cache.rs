//! Files that save time the next time: compiled kernels, chosen plans. Losing them costs seconds, so
//! every trouble with them is passed over.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

const CHECKSUM: usize = 32;

/// Where compiled kernels and chosen plans are kept: `PHALANX_CACHE`, or the user's cache folder.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("PHALANX_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("phalanx")))
        .or_else(|| set("HOME").map(|d| d.join(".cache/phalanx")))
}

/// What was kept under a key, if it is whole.
pub(crate) fn read(kind: &str, key: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(folder()?.join(kind).join(key)).ok()?;
    let (checksum, content) = bytes.split_at_checked(CHECKSUM)?;
    (Sha256::digest(content).as_slice() == checksum).then(|| content.to_vec())
}

/// Keeps bytes under a key; whoever reads sees all of them or none.
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
