//! Attributes: small arrays attached to groups.

use crate::File;
use crate::bytes::{Cursor, utf8};
use crate::error::{Error, Result, damaged, unsupported};
use crate::types::{ElementType, count, dataspace};
use std::fmt;

/// An attribute as it is parsed.
#[derive(Debug)]
pub(crate) struct AttributeNode {
    element_type: ElementType,
    /// Shape; `None` if the attribute is empty.
    dims: Option<Vec<usize>>,
    data: Vec<u8>,
}

impl AttributeNode {
    /// Parses an attribute message. Also returns the name.
    pub fn parse(message: &[u8]) -> Result<(String, AttributeNode)> {
        let mut at = Cursor::new(message, 0)?;
        let (version, flags) = (at.u8()?, at.u8()?);
        let sizes = [at.u16()? as usize, at.u16()? as usize, at.u16()? as usize];
        let padded = match version {
            1 => true,
            2 => false,
            3 => {
                at.skip(1)?;
                false
            }
            _ => return Err(unsupported(format!("version {version} of an attribute"))),
        };
        if version > 1 && flags & 3 != 0 {
            return Err(unsupported("an attribute of a shared (named) type, which is not read"));
        }
        let mut part = |size: usize| {
            let part = at.take(size)?;
            if padded {
                at.pad(size)?;
            }
            Ok(part)
        };
        let name = part(sizes[0])?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        let name = utf8(&name[..end])?;
        let element_type = ElementType::parse(part(sizes[1])?)?;
        let dims = dataspace(part(sizes[2])?)?;
        let elements = dims.as_deref().map_or(Ok(0), count)?;
        let length = elements.checked_mul(element_type.size());
        let length = length.ok_or_else(|| damaged(format!("attribute '{name}' too large")))?;
        let data = at.take(length)?.to_vec();
        Ok((name, AttributeNode { element_type, dims, data }))
    }
}

/// An attribute of a group: a name with a small array, decoded on demand. Its [`Display`](fmt::Display)
/// lists the elements.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'f> {
    file: &'f File,
    node: &'f AttributeNode,
}

impl<'f> Attribute<'f> {
    pub(crate) fn new(file: &'f File, node: &'f AttributeNode) -> Attribute<'f> {
        Attribute { file, node }
    }

    /// The element type.
    pub fn element_type(self) -> &'f ElementType {
        &self.node.element_type
    }

    /// The strings of the attribute, in order.
    ///
    /// # Errors
    /// [`Error::WrongType`] for elements that are not strings. Strings that are damaged.
    pub fn read_strings(self) -> Result<Vec<String>> {
        match self.element_type() {
            ElementType::FixedString { .. } => self.elements().map(fixed).collect(),
            ElementType::VariableString => {
                // Elements may refer to the same string, so their total length is bounded.
                let bytes = &self.file.bytes;
                let mut left = bytes.len();
                let mut one = |element: &[u8]| {
                    let text = self.file.heaps().text(bytes, element)?;
                    let rest = left.checked_sub(text.len());
                    left = rest.ok_or_else(|| damaged("more text than the file is long"))?;
                    Ok(text)
                };
                self.elements().map(&mut one).collect()
            }
            // h5py writes an empty list as an empty array of floats.
            _ if self.node.data.is_empty() => Ok(vec![]),
            other => {
                let (expected, found) = ("text belongs", other.to_string());
                Err(Error::WrongType { expected, found })
            }
        }
    }

    /// The only string of the attribute.
    ///
    /// # Errors
    /// [`Error::WrongType`] for elements that are not strings, or another number of strings. A string
    /// that is damaged.
    pub fn read_string(self) -> Result<String> {
        match <[String; 1]>::try_from(self.read_strings()?) {
            Ok([text]) => Ok(text),
            Err(texts) => {
                let (expected, found) = ("one belongs", format!("{} texts", texts.len()));
                Err(Error::WrongType { expected, found })
            }
        }
    }

    /// The numbers of the attribute, in order.
    ///
    /// # Errors
    /// [`Error::WrongType`] for elements that are not numbers.
    pub fn read_f64(self) -> Result<Vec<f64>> {
        self.element_type().numbers(&self.node.data)
    }

    fn elements(self) -> std::slice::ChunksExact<'f, u8> {
        self.node.data.chunks_exact(self.node.element_type.size())
    }
}

impl fmt::Display for Attribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.element_type().is_string() {
            return match self.read_strings() {
                Ok(texts) => f.write_str(&texts.join(", ")),
                Err(error) => error.fmt(f),
            };
        }
        match (self.read_f64(), &self.node.dims) {
            (Ok(numbers), Some(_)) => {
                let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
                f.write_str(&numbers.join(", "))
            }
            _ => self.element_type().fmt(f),
        }
    }
}

/// A fixed-size string, padded with zeros.
fn fixed(element: &[u8]) -> Result<String> {
    let end = element.iter().position(|b| *b == 0).unwrap_or(element.len());
    utf8(&element[..end])
}
