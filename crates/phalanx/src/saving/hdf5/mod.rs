//! The part of HDF5 that model files use, read and written.
//!
//! Read: groups of either style, datasets (whole, compact, or in chunks with shuffle, deflate and
//! checksums), attributes with numbers and strings, as h5py writes them. Nothing is believed: every
//! address and size is checked against the file, structures that meet themselves are refused, and
//! links to elsewhere are never followed. Written: what h5py writes by default (symbol tables,
//! contiguous datasets), the same bytes for the same content.

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
/// How deep groups may lie in each other.
const MAX_DEPTH: usize = 64;

/// Bytes of a path inside a file.
const MAX_PATH: usize = 4096;

/// What is wrong with a file, as what was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub String);

type Result<T> = std::result::Result<T, Fault>;

/// A file, read whole; datasets are decoded when asked for.
#[derive(Debug)]
pub(crate) struct File {
    bytes: Vec<u8>,
    heaps: RefCell<heap::Heaps>,
    /// The outermost group.
    pub root: Group,
}

/// A group of a file.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Its attributes.
    pub attributes: BTreeMap<String, Attribute>,
    /// What it holds.
    pub members: BTreeMap<String, Node>,
}

/// What a group holds.
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
    /// Reads the structure of a file.
    pub fn new(bytes: Vec<u8>) -> Result<File> {
        let root = root(&bytes)?;
        let mut walk = group::Walk { bytes: &bytes, seen: HashSet::new(), read: 0, nodes: 0 };
        match walk.node(root, 0, 0)? {
            Node::Group(root) => Ok(File { bytes, heaps: RefCell::default(), root }),
            other => Err(Fault(format!("{} where the root group belongs", other.kind()))),
        }
    }

    /// Whether bytes start as a file does.
    pub fn starts(bytes: &[u8]) -> bool {
        bytes.starts_with(SIGNATURE)
    }
}

/// Address of the root group.
fn root(bytes: &[u8]) -> Result<u64> {
    if !File::starts(bytes) {
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
            // Free space, end of file, driver, and the root's name.
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
    /// A group further down, by its path.
    pub fn group(&self, path: &str) -> Result<&Group> {
        match self.find(path) {
            None if path.is_empty() => Ok(self),
            Some(Node::Group(group)) => Ok(group),
            other => Err(missing("group", path, other)),
        }
    }

    /// A dataset further down, by its path.
    pub fn dataset(&self, path: &str) -> Result<&Dataset> {
        match self.find(path) {
            Some(Node::Dataset(dataset)) => Ok(dataset),
            other => Err(missing("dataset", path, other)),
        }
    }

    /// Whatever is at a path.
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

    /// Every dataset below with its path, in order.
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
