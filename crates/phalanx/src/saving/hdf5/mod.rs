//! Reader and writer for the subset of HDF5 that model files use.
//!
//! Reading supports groups of both styles, datasets (contiguous, compact, or chunked with shuffle,
//! deflate and checksums), and attributes with numbers and strings, as h5py writes them. Files are not
//! trusted: every address and size is checked against the file, cycles are rejected, and links to
//! elsewhere are never followed. Writing produces what h5py writes by default (symbol tables, contiguous
//! datasets), with the same bytes for the same content.

mod attribute;
mod bytes;
mod chunks;
mod dataset;
mod dense;
mod group;
mod header;
mod heap;
mod types;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use attribute::Attribute;
pub(crate) use dataset::Dataset;
pub(crate) use write::{Content, Text, Values, write};

use bytes::Cursor;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

/// First bytes of every file.
const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";
/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;

/// Maximum length in bytes of a path inside a file.
const MAX_PATH: usize = 4096;

/// What is wrong with a file, phrased as what was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub String);

type Result<T> = std::result::Result<T, Fault>;

/// A file in memory. Datasets are decoded on demand.
#[derive(Debug)]
pub(crate) struct File {
    bytes: Vec<u8>,
    heaps: RefCell<heap::Heaps>,
    /// The root group.
    pub root: Group,
}

/// A group of a file.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Attributes of the group.
    pub attributes: BTreeMap<String, Attribute>,
    /// Members of the group.
    pub members: BTreeMap<String, Node>,
}

/// A member of a group.
#[derive(Debug)]
pub(crate) enum Node {
    /// Another group.
    Group(Group),
    /// An array.
    Dataset(Dataset),
    /// A soft or external link, which is never followed.
    Link,
}

impl Node {
    fn kind(&self) -> &'static str {
        match self {
            Node::Group(_) => "a group",
            Node::Dataset(_) => "a dataset",
            Node::Link => "a link to elsewhere",
        }
    }
}

impl File {
    /// Parses the structure of a file.
    pub fn new(bytes: Vec<u8>) -> Result<File> {
        let root = root(&bytes)?;
        let mut walk = group::Walk { bytes: &bytes, seen: HashSet::new(), read: 0, nodes: 0 };
        match walk.node(root, 0, 0)? {
            Node::Group(root) => Ok(File { bytes, heaps: RefCell::default(), root }),
            other => Err(Fault(format!("{} where the root group belongs", other.kind()))),
        }
    }

    /// Whether bytes start with the signature of HDF5.
    pub fn has_signature(bytes: &[u8]) -> bool {
        bytes.starts_with(SIGNATURE)
    }
}

/// Address of the root group.
fn root(bytes: &[u8]) -> Result<u64> {
    if !File::has_signature(bytes) {
        return Err(Fault("a file that does not start as HDF5 does".into()));
    }
    let mut at = Cursor::new(bytes, 8)?;
    let version = at.u8()?;
    let sizes = |offsets: u8, lengths: u8| match (offsets, lengths) {
        (8, 8) => Ok(()),
        _ => Err(Fault(format!("addresses of {offsets} and lengths of {lengths} bytes"))),
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
        _ => return Err(Fault(format!("version {version} of the superblock"))),
    };
    if base != 0 {
        return Err(Fault(format!("a file that starts at byte {base}")));
    }
    at.u64()
}

impl Group {
    /// A group below this one, by path.
    pub fn group(&self, path: &str) -> Result<&Group> {
        match self.find(path) {
            None if path.is_empty() => Ok(self),
            Some(Node::Group(group)) => Ok(group),
            other => Err(missing("group", path, other)),
        }
    }

    /// A dataset below this one, by path.
    pub fn dataset(&self, path: &str) -> Result<&Dataset> {
        match self.find(path) {
            Some(Node::Dataset(dataset)) => Ok(dataset),
            other => Err(missing("dataset", path, other)),
        }
    }

    /// The node at a path.
    pub fn find(&self, path: &str) -> Option<&Node> {
        let mut group = self;
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let node = group.members.get(part)?;
            match node {
                _ if parts.peek().is_none() => return Some(node),
                Node::Group(next) => group = next,
                _ => return None,
            }
        }
        None
    }

    /// All datasets below with their paths, in order.
    pub fn datasets(&self) -> Vec<(String, &Dataset)> {
        let mut out = vec![];
        for (name, node) in &self.members {
            match node {
                Node::Dataset(dataset) => out.push((name.clone(), dataset)),
                Node::Group(group) => {
                    let below = group.datasets().into_iter();
                    out.extend(below.map(|(path, dataset)| (format!("{name}/{path}"), dataset)));
                }
                Node::Link => {}
            }
        }
        out
    }
}

fn missing(what: &str, path: &str, found: Option<&Node>) -> Fault {
    let found = found.map_or("nothing", Node::kind);
    Fault(format!("{found} where the {what} '{path}' belongs"))
}
