//! Attributes: small arrays attached to groups and datasets.

use super::bytes::{Cursor, utf8};
use super::types::{Type, count, dataspace};
use super::{Fault, File, Result};

/// An attribute, decoded on demand.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub kind: Type,
    /// Shape; `None` if the attribute is empty.
    dims: Option<Vec<usize>>,
    data: Vec<u8>,
}

impl Attribute {
    /// Parses an attribute message. Also returns the name.
    pub(super) fn parse(message: &[u8]) -> Result<(String, Attribute)> {
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
            _ => return Err(Fault(format!("version {version} of an attribute"))),
        };
        if version > 1 && flags & 3 != 0 {
            return Err(Fault("an attribute of a shared (named) type, which is not read".into()));
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
        let kind = Type::parse(part(sizes[1])?)?;
        let dims = dataspace(part(sizes[2])?)?;
        let elements = dims.as_deref().map_or(Ok(0), count)?;
        let length = elements.checked_mul(kind.size());
        let length = length.ok_or_else(|| Fault(format!("attribute '{name}' too large")))?;
        let data = at.take(length)?.to_vec();
        Ok((name, Attribute { kind, dims, data }))
    }
}

impl File {
    /// The strings of an attribute, in order.
    pub fn texts(&self, attribute: &Attribute) -> Result<Vec<String>> {
        let elements = attribute.data.chunks_exact(attribute.kind.size());
        match &attribute.kind {
            Type::Text { .. } => elements.map(fixed).collect(),
            Type::VariableText => {
                // Elements may refer to the same string, so their total length is bounded.
                let mut left = self.bytes.len();
                let mut one = |element: &[u8]| {
                    let text = self.heaps.borrow_mut().text(&self.bytes, element)?;
                    let rest = left.checked_sub(text.len());
                    left = rest.ok_or_else(|| Fault("more text than the file is long".into()))?;
                    Ok(text)
                };
                elements.map(&mut one).collect()
            }
            // h5py writes an empty list as an empty array of floats.
            _ if attribute.data.is_empty() => Ok(vec![]),
            other => Err(Fault(format!("{} where text belongs", other.name()))),
        }
    }

    /// The only string of an attribute.
    pub fn text(&self, attribute: &Attribute) -> Result<String> {
        match <[String; 1]>::try_from(self.texts(attribute)?) {
            Ok([text]) => Ok(text),
            Err(texts) => Err(Fault(format!("{} texts where one belongs", texts.len()))),
        }
    }

    /// Shape and value of an attribute, for display.
    pub fn show(&self, attribute: &Attribute) -> String {
        if matches!(attribute.kind, Type::Text { .. } | Type::VariableText) {
            let texts = self.texts(attribute);
            return texts.map_or_else(|fault| fault.0, |texts| texts.join(", "));
        }
        let elements = attribute.data.chunks_exact(attribute.kind.size());
        let numbers: Option<Vec<String>> =
            elements.map(|e| attribute.kind.number(e).map(|n| n.to_string())).collect();
        match (numbers, &attribute.dims) {
            (Some(numbers), Some(_)) => numbers.join(", "),
            _ => attribute.kind.name(),
        }
    }
}

/// A fixed-size string, padded with zeros.
fn fixed(element: &[u8]) -> Result<String> {
    let end = element.iter().position(|b| *b == 0).unwrap_or(element.len());
    utf8(&element[..end])
}
