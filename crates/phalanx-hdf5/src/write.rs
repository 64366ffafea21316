//! Writer for files as h5py makes them by default: version 0 of all structures, contiguous datasets.

use crate::builder::{AttributeValue, GroupBuilder, NewMember, Values};
use crate::bytes::UNDEFINED;
use crate::error::{Error, Result};
use crate::file::SIGNATURE;
use crate::header::{ATTRIBUTE, DATASPACE, DATATYPE, FILL, LAYOUT, SYMBOL_TABLE};
use crate::types::{MAX_RANK, count};

/// Half of the maximum number of entries of a group tree node.
const NODE_K: usize = 16;
/// Half of the maximum number of entries of a symbol table node.
const LEAF_K: usize = 4;
/// Size of the superblock in bytes.
const SUPERBLOCK_BYTES: usize = 96;
/// Default size in bytes of a collection of strings.
const COLLECTION_BYTES: usize = 4096;
/// Maximum number of entries of a collection: indices have 16 bits.
const MAX_STRINGS: u16 = u16::MAX - 1;

/// Maximum size in bytes of a message of a header: sizes have 16 bits and are multiples of eight.
const MAX_MESSAGE_BYTES: usize = 65528;

/// The bytes of a file with this root group.
pub(crate) fn file(root: &GroupBuilder) -> Result<Vec<u8>> {
    let mut writer = Writer { out: vec![0; SUPERBLOCK_BYTES], texts: None };
    let address = writer.group(root)?;
    let end = writer.out.len() as u64;
    let mut block = SIGNATURE.to_vec();
    block.extend([0, 0, 0, 0, 0, 8, 8, 0]);
    block.extend((LEAF_K as u16).to_le_bytes());
    block.extend((NODE_K as u16).to_le_bytes());
    block.extend([0; 4]);
    for number in [0, UNDEFINED, end, UNDEFINED, 0, address] {
        block.extend(number.to_le_bytes());
    }
    block.resize(SUPERBLOCK_BYTES, 0);
    writer.out[..SUPERBLOCK_BYTES].copy_from_slice(&block);
    Ok(writer.out)
}

struct Writer {
    out: Vec<u8>,
    /// The collection of strings being filled.
    texts: Option<Collection>,
}

struct Collection {
    address: usize,
    used: usize,
    size: usize,
    entries: u16,
}

impl Writer {
    fn append(&mut self, bytes: &[u8]) -> u64 {
        self.out.resize(self.out.len().next_multiple_of(8), 0);
        let address = self.out.len() as u64;
        self.out.extend_from_slice(bytes);
        address
    }

    /// Writes a group with everything below it. Returns the address of its header.
    fn group(&mut self, group: &GroupBuilder) -> Result<u64> {
        let mut entries = vec![];
        for (name, member) in &group.members {
            check_name(name)?;
            let address = match member {
                NewMember::Group(group) => self.group(group)?,
                NewMember::Dataset { dims, values } => self.dataset(name, dims, values)?,
            };
            entries.push((name.as_str(), address));
        }
        let (tree, heap) = self.symbols(&entries);
        let mut table = tree.to_le_bytes().to_vec();
        table.extend(heap.to_le_bytes());
        let mut messages = vec![(SYMBOL_TABLE, table)];
        for (name, value) in &group.attributes {
            check_name(name)?;
            messages.push((ATTRIBUTE, self.attribute(name, value)?));
        }
        self.header(&messages)
    }

    fn dataset(&mut self, name: &str, dims: &[usize], values: &Values) -> Result<u64> {
        if dims.len() > MAX_RANK || count(dims) != Ok(values.len()) {
            let n = values.len();
            return Err(Error::NotWritable(format!("{n} values of '{name}' for {dims:?}")));
        }
        let (kind, data): (Vec<u8>, Vec<u8>) = match values {
            Values::F32(v) => (float32(), v.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Values::I32(v) => (int32(), v.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        let size = data.len() as u64;
        let address = if data.is_empty() { UNDEFINED } else { self.append(&data) };
        let mut layout = vec![3, 1];
        layout.extend(address.to_le_bytes());
        layout.extend(size.to_le_bytes());
        // Late allocation, filled if set, no fill value.
        let fill = vec![2, 2, 2, 0];
        let shape = dataspace(dims);
        self.header(&[(DATASPACE, shape), (DATATYPE, kind), (FILL, fill), (LAYOUT, layout)])
    }

    /// Writes a version 1 object header.
    fn header(&mut self, messages: &[(u16, Vec<u8>)]) -> Result<u64> {
        let Ok(n) = u16::try_from(messages.len()) else {
            return Err(Error::NotWritable(format!(
                "{} attributes of a group",
                messages.len() - 1
            )));
        };
        let mut body = vec![];
        for (kind, data) in messages {
            let size = data.len().next_multiple_of(8);
            body.extend(kind.to_le_bytes());
            body.extend((size as u16).to_le_bytes());
            body.extend([0; 4]);
            body.extend_from_slice(data);
            body.resize(body.len().next_multiple_of(8), 0);
        }
        let mut header = vec![1, 0];
        header.extend(n.to_le_bytes());
        header.extend(1u32.to_le_bytes());
        header.extend((body.len() as u32).to_le_bytes());
        header.extend([0; 4]);
        header.extend(body);
        Ok(self.append(&header))
    }

    /// Writes the tree and the heap of names of a group, for sorted entries.
    fn symbols(&mut self, entries: &[(&str, u64)]) -> (u64, u64) {
        let mut names = vec![0; 8];
        let mut level = vec![];
        let mut add_name = |name: &str| {
            let at = names.len() as u64;
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            names.resize(names.len().next_multiple_of(8), 0);
            at
        };
        for leaf in entries.chunks(2 * LEAF_K) {
            let mut node = b"SNOD\x01\0".to_vec();
            node.extend((leaf.len() as u16).to_le_bytes());
            let mut last = 0;
            for (name, address) in leaf {
                last = add_name(name);
                node.extend(last.to_le_bytes());
                node.extend(address.to_le_bytes());
                node.extend([0; 24]);
            }
            node.resize(8 + 2 * LEAF_K * 40, 0);
            level.push((self.append(&node), last));
        }
        let tree = self.tree(level);
        let data = self.append(&names);
        let mut heap = b"HEAP\0\0\0\0".to_vec();
        // No free list.
        for number in [names.len() as u64, 1, data] {
            heap.extend(number.to_le_bytes());
        }
        (tree, self.append(&heap))
    }

    /// Writes the nodes above the leaves. Each leaf comes with the heap offset of its last name.
    fn tree(&mut self, mut level: Vec<(u64, u64)>) -> u64 {
        let size = 24 + (4 * NODE_K + 1) * 8;
        let mut height = 0;
        loop {
            let groups: Vec<&[(u64, u64)]> =
                if level.is_empty() { vec![&[]] } else { level.chunks(2 * NODE_K).collect() };
            let first = self.out.len().next_multiple_of(8);
            let stride = size.next_multiple_of(8);
            let sibling = |i: Option<usize>| {
                i.filter(|i| *i < groups.len()).map_or(UNDEFINED, |i| (first + i * stride) as u64)
            };
            let mut next = vec![];
            let mut before = 0u64;
            for (i, children) in groups.iter().enumerate() {
                let mut node = b"TREE\0".to_vec();
                node.push(height);
                node.extend((children.len() as u16).to_le_bytes());
                node.extend(sibling(i.checked_sub(1)).to_le_bytes());
                node.extend(sibling(Some(i + 1)).to_le_bytes());
                node.extend(before.to_le_bytes());
                for (address, last) in *children {
                    node.extend(address.to_le_bytes());
                    node.extend(last.to_le_bytes());
                    before = *last;
                }
                node.resize(size, 0);
                next.push((self.append(&node), before));
            }
            match next[..] {
                [(root, _)] => return root,
                _ => level = next,
            }
            height += 1;
        }
    }

    /// A version 1 attribute message with variable-length strings.
    fn attribute(&mut self, name: &str, value: &AttributeValue) -> Result<Vec<u8>> {
        let (dims, texts) = match value {
            AttributeValue::String(text) => (vec![], std::slice::from_ref(text)),
            AttributeValue::Strings(texts) => (vec![texts.len()], &texts[..]),
        };
        let (kind, shape) = (variable_text(), dataspace(&dims));
        let mut message = vec![1, 0];
        for size in [name.len() + 1, kind.len(), shape.len()] {
            message.extend((size as u16).to_le_bytes());
        }
        for part in [&[name.as_bytes(), &[0]].concat(), &kind, &shape] {
            message.extend_from_slice(part);
            message.resize(message.len().next_multiple_of(8), 0);
        }
        for text in texts {
            message.extend(self.text(text));
        }
        let fits = message.len() <= MAX_MESSAGE_BYTES
            && texts.iter().all(|text| u32::try_from(text.len()).is_ok());
        match fits {
            true => Ok(message),
            false => Err(Error::NotWritable(format!("attribute '{name}' too large"))),
        }
    }

    /// Stores a string in the global heap. Returns the reference to it.
    fn text(&mut self, text: &str) -> Vec<u8> {
        let padded = text.len().next_multiple_of(8);
        let needed = 16 + padded;
        let fits = |c: &Collection| c.used + needed + 16 <= c.size && c.entries < MAX_STRINGS;
        if !self.texts.as_ref().is_some_and(fits) {
            let size = COLLECTION_BYTES.max(16 + needed + 16);
            let address = self.append(&vec![0; size]) as usize;
            self.out[address..address + 8].copy_from_slice(b"GCOL\x01\0\0\0");
            self.out[address + 8..address + 16].copy_from_slice(&(size as u64).to_le_bytes());
            self.texts = Some(Collection { address, used: 16, size, entries: 0 });
        }
        let Some(collection) = &mut self.texts else { unreachable!("it was just made") };
        collection.entries += 1;
        let (address, index) = (collection.address as u64, collection.entries);
        let at = collection.address + collection.used;
        collection.used += needed;
        let free = (collection.size - collection.used) as u64;
        let mut entry = index.to_le_bytes().to_vec();
        entry.extend([1, 0, 0, 0, 0, 0]);
        entry.extend((text.len() as u64).to_le_bytes());
        entry.extend_from_slice(text.as_bytes());
        entry.resize(needed, 0);
        // Free space is an entry of index 0, whose size includes its header.
        entry.extend([0; 8]);
        entry.extend(free.to_le_bytes());
        self.out[at..at + entry.len()].copy_from_slice(&entry);
        let mut element = (text.len() as u32).to_le_bytes().to_vec();
        element.extend(address.to_le_bytes());
        element.extend(u32::from(index).to_le_bytes());
        element
    }
}

/// Rejects names that a file cannot store.
fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.contains('\0') {
        return Err(Error::NotWritable(format!("the name {name:?}")));
    }
    Ok(())
}

fn dataspace(dims: &[usize]) -> Vec<u8> {
    let mut out = vec![1, dims.len() as u8, 0, 0, 0, 0, 0, 0];
    dims.iter().for_each(|d| out.extend((*d as u64).to_le_bytes()));
    out
}

fn float32() -> Vec<u8> {
    let mut out = vec![0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23];
    out.extend(127u32.to_le_bytes());
    out
}

fn int32() -> Vec<u8> {
    vec![0x10, 0x08, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0]
}

/// UTF-8 strings of variable length: a sequence of bytes.
fn variable_text() -> Vec<u8> {
    let mut out = vec![0x19, 0x01, 0x01, 0, 16, 0, 0, 0];
    out.extend([0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0]);
    out
}
