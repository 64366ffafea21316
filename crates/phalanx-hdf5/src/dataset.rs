//! Datasets: shape, element type, and location of the elements.

use crate::File;
use crate::bytes::{Cursor, UNDEFINED};
use crate::chunks::{self, Chunked, Filter};
use crate::error::{Result, damaged, unsupported};
use crate::header::{self, Message};
use crate::types::{ElementType, count, dataspace};
use std::borrow::Cow;

/// A dataset as it is parsed.
#[derive(Debug)]
pub(crate) struct DatasetNode {
    element_type: ElementType,
    dims: Vec<usize>,
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

impl DatasetNode {
    pub fn parse(messages: &[Message<'_>]) -> Result<DatasetNode> {
        let find = |kind: u16, what: &str| {
            let found = messages.iter().find(|m| m.kind == kind).map(|m| m.data);
            found.ok_or_else(|| damaged(format!("a dataset without {what}")))
        };
        let element_type = ElementType::parse(find(header::DATATYPE, "an element type")?)?;
        let dims = dataspace(find(header::DATASPACE, "a shape")?)?;
        let dims = dims.unwrap_or_else(|| vec![0]);
        let filters = match messages.iter().find(|m| m.kind == header::FILTERS) {
            Some(message) => chunks::filters(message.data)?,
            None => vec![],
        };
        let layout = layout(find(header::LAYOUT, "a layout")?, dims.len(), filters)?;
        Ok(DatasetNode { element_type, dims, layout })
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
        (4 | 5, 2) => Err(unsupported("chunks indexed as HDF5 1.10 does, which are not read")),
        _ => Err(unsupported(format!("version {version} of a layout, kind {class}"))),
    }
}

/// An array of a file, decoded on demand.
#[derive(Clone, Copy, Debug)]
pub struct Dataset<'f> {
    file: &'f File,
    node: &'f DatasetNode,
}

impl<'f> Dataset<'f> {
    pub(crate) fn new(file: &'f File, node: &'f DatasetNode) -> Dataset<'f> {
        Dataset { file, node }
    }

    /// The element type.
    pub fn element_type(self) -> &'f ElementType {
        &self.node.element_type
    }

    /// The size of each axis. A scalar has none.
    pub fn shape(self) -> &'f [usize] {
        &self.node.dims
    }

    /// The elements as `f64`, in row-major order.
    ///
    /// # Errors
    /// [`Error::WrongType`](crate::Error::WrongType) for elements that are not numbers. Data that are
    /// damaged or larger than the file can hold.
    pub fn read_f64(self) -> Result<Vec<f64>> {
        self.element_type().numbers(&self.raw()?)
    }

    /// The elements as `f32`, in row-major order, rounded if necessary.
    ///
    /// # Errors
    /// As for [`read_f64`](Dataset::read_f64).
    pub fn read_f32(self) -> Result<Vec<f32>> {
        let raw = self.raw()?;
        let element_type = self.element_type();
        if *element_type == (ElementType::Float { size: 4, big_endian: false }) {
            return Ok(raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        let number = |element: &[u8]| element_type.number(element).map(|n| n as f32);
        let numbers = raw.chunks_exact(element_type.size()).map(number);
        numbers.collect::<Option<_>>().ok_or_else(|| element_type.not_numbers())
    }

    /// The bytes of all elements.
    fn raw(self) -> Result<Cow<'f, [u8]>> {
        let DatasetNode { element_type, dims, layout } = self.node;
        let bytes = &self.file.bytes;
        let length = count(dims)?.checked_mul(element_type.size());
        let length = length.ok_or_else(|| damaged(format!("a shape of {dims:?}")))?;
        let short = |found: u64| damaged(format!("{found} bytes for a shape of {dims:?}"));
        match layout {
            Layout::Compact(data) if data.len() >= length => Ok(data[..length].into()),
            Layout::Compact(data) => Err(short(data.len() as u64)),
            _ if length == 0 => Ok(vec![].into()),
            Layout::Contiguous { address, size } => {
                if *address == UNDEFINED {
                    return Err(damaged("a dataset that was never written"));
                }
                if *size < length as u64 {
                    return Err(short(*size));
                }
                Ok(Cursor::new(bytes, *address)?.take(length)?.into())
            }
            Layout::Chunked(chunked) => {
                Ok(chunked.read(bytes, dims, element_type.size(), length)?.into())
            }
        }
    }
}
