//! Files, and the superblock at their beginning.

use crate::Group;
use crate::bytes::Cursor;
use crate::error::{Result, damaged, unsupported};
use crate::group::{GroupNode, Node};
use crate::heap::Heaps;
use crate::walk::Walk;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First bytes of every file.
pub(crate) const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// A file in memory. Its structure is parsed, its datasets are decoded on demand.
#[derive(Debug)]
pub struct File {
    pub(crate) bytes: Vec<u8>,
    heaps: Mutex<Heaps>,
    root: GroupNode,
}

impl File {
    /// Parses the structure of a file.
    ///
    /// # Errors
    /// A file that is damaged or uses a part of HDF5 that is not read.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<File> {
        let root = root_address(&bytes)?;
        match Walk::new(&bytes).node(root, 0, 0)? {
            Node::Group(root) => Ok(File { bytes, heaps: Mutex::default(), root }),
            other => Err(damaged(format!("{} where the root group belongs", other.kind()))),
        }
    }

    /// The root group.
    pub fn root(&self) -> Group<'_> {
        Group::new(self, &self.root)
    }

    /// The strings of the file.
    pub(crate) fn heaps(&self) -> MutexGuard<'_, Heaps> {
        self.heaps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Address of the root group.
fn root_address(bytes: &[u8]) -> Result<u64> {
    if !bytes.starts_with(SIGNATURE) {
        return Err(damaged("a file that does not start as HDF5 does"));
    }
    let mut at = Cursor::new(bytes, 8)?;
    let version = at.u8()?;
    let sizes = |offsets: u8, lengths: u8| match (offsets, lengths) {
        (8, 8) => Ok(()),
        _ => Err(unsupported(format!("addresses of {offsets} and lengths of {lengths} bytes"))),
    };
    let base = match version {
        0 | 1 => {
            at.skip(4)?;
            sizes(at.u8()?, at.u8()?)?;
            at.skip(if version == 0 { 9 } else { 13 })?;
            let base = at.u64()?;
            // Free space, end of file, driver, and the name of the root.
            at.skip(32)?;
            base
        }
        2 | 3 => {
            sizes(at.u8()?, at.u8()?)?;
            at.skip(1)?;
            let base = at.u64()?;
            at.skip(16)?;
            base
        }
        _ => return Err(unsupported(format!("version {version} of the superblock"))),
    };
    if base != 0 {
        return Err(unsupported(format!("a file that starts at byte {base}")));
    }
    at.u64()
}
