//! Datasets: shape, element type, and location of the elements.

use super::bytes::{Cursor, UNDEFINED};
use super::chunks::{self, Chunked, Filter};
use super::header::{self, Message};
use super::types::{Type, count, dataspace};
use super::{Fault, File, Result};
use std::borrow::Cow;

/// An array of a file, decoded on demand.
#[derive(Debug)]
pub(crate) struct Dataset {
    /// Element type.
    pub kind: Type,
    /// Shape.
    pub dims: Vec<usize>,
    layout: Layout,
}

/// Where the elements are stored.
#[derive(Debug)]
enum Layout {
    /// In the header.
    Compact(Vec<u8>),
    /// In one contiguous block.
    Contiguous { address: u64, size: u64 },
    /// In compressed chunks.
    Chunked(Chunked),
}

impl Dataset {
    pub(super) fn parse(messages: &[Message<'_>]) -> Result<Dataset> {
        let find = |kind: u16, what: &str| {
            let found = messages.iter().find(|m| m.kind == kind).map(|m| m.data);
            found.ok_or_else(|| Fault(format!("a dataset without {what}")))
        };
        let kind = Type::parse(find(header::DATATYPE, "an element type")?)?;
        let dims = dataspace(find(header::DATASPACE, "a shape")?)?;
        let dims = dims.unwrap_or_else(|| vec![0]);
        let filters = match messages.iter().find(|m| m.kind == header::FILTERS) {
            Some(message) => chunks::filters(message.data)?,
            None => vec![],
        };
        let layout = layout(find(header::LAYOUT, "a layout")?, dims.len(), filters)?;
        Ok(Dataset { kind, dims, layout })
    }
}

fn layout(data: &[u8], rank: usize, filters: Vec<Filter>) -> Result<Layout> {
    let mut at = Cursor::new(data, 0)?;
    let (version, class) = (at.u8()?, at.u8()?);
    match (version, class) {
        (3..=5, 0) => {
            let size = at.u16()? as usize;
            Ok(Layout::Compact(at.take(size)?.to_vec()))
        }
        (3..=5, 1) => Ok(Layout::Contiguous { address: at.u64()?, size: at.u64()? }),
        (3, 2) => Ok(Layout::Chunked(Chunked::parse(at, rank, filters)?)),
        (4 | 5, 2) => Err(Fault("chunks indexed as HDF5 1.10 does, which are not read".into())),
        _ => Err(Fault(format!("version {version} of a layout, kind {class}"))),
    }
}

impl File {
    /// The raw bytes of a dataset.
    fn raw<'a>(&'a self, dataset: &'a Dataset) -> Result<Cow<'a, [u8]>> {
        let length = count(&dataset.dims)?.checked_mul(dataset.kind.size());
        let length = length.ok_or_else(|| Fault(format!("a shape of {:?}", dataset.dims)))?;
        let short = |found: u64| Fault(format!("{found} bytes for a shape of {:?}", dataset.dims));
        match &dataset.layout {
            Layout::Compact(data) if data.len() >= length => Ok(data[..length].into()),
            Layout::Compact(data) => Err(short(data.len() as u64)),
            _ if length == 0 => Ok(vec![].into()),
            Layout::Contiguous { address, size } => {
                if *address == UNDEFINED {
                    return Err(Fault("a dataset that was never written".into()));
                }
                if *size < length as u64 {
                    return Err(short(*size));
                }
                Ok(Cursor::new(&self.bytes, *address)?.take(length)?.into())
            }
            Layout::Chunked(chunked) => {
                let element = dataset.kind.size();
                Ok(chunked.read(&self.bytes, &dataset.dims, element, length)?.into())
            }
        }
    }

    /// The elements of a dataset as f64.
    pub fn numbers(&self, dataset: &Dataset) -> Result<Vec<f64>> {
        let raw = self.raw(dataset)?;
        let numbers = raw.chunks_exact(dataset.kind.size()).map(|e| dataset.kind.number(e));
        numbers.collect::<Option<_>>().ok_or_else(|| not_numbers(dataset))
    }

    /// The elements of a dataset as f32.
    pub fn floats(&self, dataset: &Dataset) -> Result<Vec<f32>> {
        let raw = self.raw(dataset)?;
        if dataset.kind == (Type::Float { size: 4, big_endian: false }) {
            return Ok(raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        let number = |e: &[u8]| dataset.kind.number(e).map(|n| n as f32);
        let numbers = raw.chunks_exact(dataset.kind.size()).map(number);
        numbers.collect::<Option<_>>().ok_or_else(|| not_numbers(dataset))
    }
}

fn not_numbers(dataset: &Dataset) -> Fault {
    Fault(format!("{} where numbers belong", dataset.kind.name()))
}
