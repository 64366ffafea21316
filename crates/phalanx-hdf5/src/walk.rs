//! The traversal of a file's structure. Groups have their members in symbol tables (v1 B-tree, local heap)
//! or as link messages.

use crate::attribute::AttributeNode;
use crate::bytes::{Cursor, UNDEFINED, utf8};
use crate::dataset::DatasetNode;
use crate::dense::{self, Index};
use crate::error::{Result, damaged, unsupported};
use crate::group::{GroupNode, Node};
use crate::header::{self, Message};
use std::collections::{BTreeMap, HashSet};

/// Maximum number of groups and datasets of a file.
pub const MAX_OBJECTS: usize = 1 << 18;
/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;
/// Maximum length in bytes of a path inside a file.
const MAX_PATH: usize = 4096;
/// Cache type of soft links in symbol tables.
const SOFT: u32 = 2;

/// A traversal of the structure of a file.
pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    /// Objects and tree nodes visited so far. None may occur twice.
    seen: HashSet<u64>,
    /// Bytes of headers and names read so far, bounded so that overlapping ones cannot add up.
    read: usize,
    /// Groups and datasets visited so far.
    nodes: usize,
}

impl<'a> Walk<'a> {
    pub fn new(bytes: &'a [u8]) -> Walk<'a> {
        Walk { bytes, seen: HashSet::new(), read: 0, nodes: 0 }
    }

    fn enter(&mut self, address: u64) -> Result<()> {
        if self.seen.insert(address) {
            return Ok(());
        }
        Err(damaged(format!("two links to the object at {address}")))
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        self.read += bytes;
        if self.read <= 2 * self.bytes.len() {
            return Ok(());
        }
        Err(damaged("objects that overlap"))
    }

    /// Reads the group or dataset at an address. `path` is the length of its path in bytes.
    pub fn node(&mut self, address: u64, depth: usize, path: usize) -> Result<Node> {
        self.enter(address)?;
        self.nodes += 1;
        if self.nodes > MAX_OBJECTS {
            return Err(unsupported(format!("more than {MAX_OBJECTS} groups and datasets")));
        }
        if depth > MAX_DEPTH {
            return Err(unsupported(format!("groups more than {MAX_DEPTH} deep")));
        }
        let messages = header::messages(self.bytes, address)?;
        self.count(messages.iter().map(|m| m.data.len() + 8).sum())?;
        if messages.iter().any(|m| m.kind == header::LAYOUT) {
            return Ok(Node::Dataset(DatasetNode::parse(&messages)?));
        }
        let attributes = self.attributes(&messages)?;
        let group = [header::SYMBOL_TABLE, header::LINK_INFO, header::LINK, header::GROUP_INFO];
        if !messages.iter().any(|m| group.contains(&m.kind)) {
            return Err(damaged(format!("neither a group nor a dataset at {address}")));
        }
        let mut members = BTreeMap::new();
        for (name, address) in self.links(&messages)? {
            let path = path + 1 + name.len();
            if path > MAX_PATH {
                return Err(unsupported(format!("a path of {path} bytes")));
            }
            let node = match address {
                Some(address) => self.node(address, depth + 1, path)?,
                None => Node::Link,
            };
            if members.insert(name.clone(), node).is_some() {
                return Err(damaged(format!("'{name}' twice in a group")));
            }
        }
        Ok(Node::Group(GroupNode { attributes, members }))
    }

    /// Names and addresses of the members of a group. Links to elsewhere have no address.
    fn links(&mut self, messages: &[Message<'_>]) -> Result<Vec<(String, Option<u64>)>> {
        let mut out = vec![];
        for message in messages {
            let mut at = Cursor::new(message.data, 0)?;
            match message.kind {
                header::SYMBOL_TABLE => {
                    let (tree, heap) = (at.u64()?, at.u64()?);
                    let names = local_heap(self.bytes, heap)?;
                    self.symbols(tree, names, None, &mut out)?;
                }
                header::LINK => out.push(link(at)?),
                header::LINK_INFO => {
                    at.skip(1)?;
                    let flags = at.u8()?;
                    at.skip(if flags & 1 != 0 { 8 } else { 0 })?;
                    for message in self.heap_messages(&mut at, Index::Links)? {
                        out.push(link(Cursor::new(&message, 0)?)?);
                    }
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// The messages stored in a separate heap instead of the header.
    fn heap_messages(&mut self, at: &mut Cursor<'_>, index: Index) -> Result<Vec<Vec<u8>>> {
        let (heap, tree) = (at.u64()?, at.u64()?);
        if heap == UNDEFINED || tree == UNDEFINED {
            return Ok(vec![]);
        }
        self.enter(heap)?;
        self.enter(tree)?;
        let messages = dense::messages(self.bytes, heap, tree, index)?;
        self.count(messages.iter().map(Vec::len).sum())?;
        Ok(messages)
    }

    fn attributes(&mut self, messages: &[Message<'_>]) -> Result<BTreeMap<String, AttributeNode>> {
        let mut out = BTreeMap::new();
        for message in messages {
            match message.kind {
                header::ATTRIBUTE => out.extend([AttributeNode::parse(message.data)?]),
                header::ATTRIBUTE_INFO => {
                    let mut at = Cursor::new(message.data, 0)?;
                    at.skip(1)?;
                    let flags = at.u8()?;
                    at.skip(if flags & 1 != 0 { 2 } else { 0 })?;
                    for message in self.heap_messages(&mut at, Index::Attributes)? {
                        out.extend([AttributeNode::parse(&message)?]);
                    }
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// Collects the entries below a node of a group's tree.
    fn symbols(
        &mut self,
        address: u64,
        names: &[u8],
        level: Option<u8>,
        out: &mut Vec<(String, Option<u64>)>,
    ) -> Result<()> {
        self.enter(address)?;
        let mut at = Cursor::new(self.bytes, address)?;
        if level == Some(0) {
            return self.table(at, names, out);
        }
        at.signature(b"TREE")?;
        let (kind, height) = (at.u8()?, at.u8()?);
        if kind != 0 || level.is_some_and(|level| height != level - 1) {
            return Err(damaged("a group's tree of another kind"));
        }
        let used = at.u16()?;
        at.skip(16)?;
        for _ in 0..used {
            at.skip(8)?;
            let child = at.u64()?;
            self.symbols(child, names, Some(height), out)?;
        }
        Ok(())
    }

    /// The entries of one symbol table node.
    fn table(
        &mut self,
        mut at: Cursor<'_>,
        names: &[u8],
        out: &mut Vec<(String, Option<u64>)>,
    ) -> Result<()> {
        at.signature(b"SNOD")?;
        at.skip(2)?;
        for _ in 0..at.u16()? {
            let (name, address, cache) = (at.u64()?, at.u64()?, at.u32()?);
            at.skip(20)?;
            let name = Cursor::new(names, name)?.text()?;
            self.count(name.len())?;
            out.push((name, (cache != SOFT).then_some(address)));
        }
        Ok(())
    }
}

/// The names in a local heap.
fn local_heap(bytes: &[u8], address: u64) -> Result<&[u8]> {
    let mut at = Cursor::new(bytes, address)?;
    at.signature(b"HEAP")?;
    at.skip(4)?;
    let size = at.u64()?;
    at.skip(8)?;
    let size = usize::try_from(size).map_err(|_| damaged("a heap too long"))?;
    Cursor::new(bytes, at.u64()?)?.take(size)
}

/// Parses a link message.
fn link(mut at: Cursor<'_>) -> Result<(String, Option<u64>)> {
    let (version, flags) = (at.u8()?, at.u8()?);
    if version != 1 {
        return Err(unsupported(format!("version {version} of a link")));
    }
    let kind = if flags & 0x08 != 0 { at.u8()? } else { 0 };
    at.skip(if flags & 0x04 != 0 { 8 } else { 0 })?;
    at.skip(if flags & 0x10 != 0 { 1 } else { 0 })?;
    let length = at.unsigned(1 << (flags & 3))?;
    let length = usize::try_from(length).map_err(|_| damaged("a name too long"))?;
    let name = utf8(at.take(length)?)?;
    Ok((name, if kind == 0 { Some(at.u64()?) } else { None }))
}
