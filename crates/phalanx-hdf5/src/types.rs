//! Element types and shapes.

use crate::bytes::Cursor;
use crate::error::{Error, Result, damaged, unsupported};
use std::fmt;

/// Maximum rank of an array, as in HDF5 itself.
pub(crate) const MAX_RANK: usize = 32;

/// The type of the elements of a dataset or an attribute. Its [`Display`](fmt::Display) is a short name, for
/// example `f32`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE floats.
    Float {
        /// Size in bytes: 2, 4 or 8.
        size: usize,
        /// Whether the most significant byte comes first.
        big_endian: bool,
    },
    /// Integers.
    Integer {
        /// Size in bytes: 1, 2, 4 or 8.
        size: usize,
        /// Whether they have a sign.
        signed: bool,
        /// Whether the most significant byte comes first.
        big_endian: bool,
    },
    /// Strings of a fixed size, padded with zeros.
    FixedString {
        /// Size in bytes.
        size: usize,
    },
    /// Strings of variable length.
    VariableString,
    /// Any other type, whose elements are not read.
    Other {
        /// A description.
        name: &'static str,
        /// Size in bytes.
        size: usize,
    },
}

impl ElementType {
    /// Parses a datatype message.
    pub(crate) fn parse(data: &[u8]) -> Result<ElementType> {
        let mut at = Cursor::new(data, 0)?;
        let class = at.u8()? & 0x0f;
        let flags = at.take(3)?;
        let size = at.u32()? as usize;
        if size == 0 {
            return Err(damaged("elements of no bytes"));
        }
        let big_endian = flags[0] & 1 != 0;
        let other = |name| Ok(ElementType::Other { name, size });
        match class {
            0 if [1, 2, 4, 8].contains(&size) => {
                Ok(ElementType::Integer { size, signed: flags[0] & 0x08 != 0, big_endian })
            }
            1 => float(at, size, flags[0] & 0x41),
            3 => Ok(ElementType::FixedString { size }),
            9 if flags[0] & 0x0f == 1 && size == 16 => Ok(ElementType::VariableString),
            0 => other("integers of unusual size"),
            2 => other("times"),
            4 => other("bit fields"),
            5 => other("opaque bytes"),
            6 => other("records"),
            7 => other("references"),
            8 => other("an enumeration"),
            9 => other("sequences"),
            10 => other("arrays"),
            _ => Err(unsupported(format!("element type {class}"))),
        }
    }

    /// Size of an element in bytes.
    pub fn size(&self) -> usize {
        match self {
            ElementType::Float { size, .. }
            | ElementType::Integer { size, .. }
            | ElementType::FixedString { size }
            | ElementType::Other { size, .. } => *size,
            ElementType::VariableString => 16,
        }
    }

    /// Whether the elements are strings.
    pub(crate) fn is_string(&self) -> bool {
        matches!(self, ElementType::FixedString { .. } | ElementType::VariableString)
    }

    /// Converts elements to numbers.
    pub(crate) fn numbers(&self, elements: &[u8]) -> Result<Vec<f64>> {
        let numbers = elements.chunks_exact(self.size()).map(|element| self.number(element));
        numbers.collect::<Option<_>>().ok_or_else(|| self.not_numbers())
    }

    /// The error for elements that are not numbers.
    pub(crate) fn not_numbers(&self) -> Error {
        Error::WrongType { expected: "numbers belong", found: self.to_string() }
    }

    /// Converts an element to a number.
    pub(crate) fn number(&self, element: &[u8]) -> Option<f64> {
        let mut bytes = [0; 8];
        let big = match self {
            ElementType::Float { big_endian, .. } | ElementType::Integer { big_endian, .. } => {
                *big_endian
            }
            _ => return None,
        };
        let target = bytes.get_mut(..element.len())?;
        target.copy_from_slice(element);
        if big {
            target.reverse();
        }
        let raw = u64::from_le_bytes(bytes);
        Some(match self {
            ElementType::Float { size: 2, .. } => half(raw as u16),
            ElementType::Float { size: 4, .. } => f64::from(f32::from_bits(raw as u32)),
            ElementType::Float { .. } => f64::from_bits(raw),
            ElementType::Integer { size, signed: true, .. } => {
                let unused = 64 - 8 * *size as u32;
                ((raw << unused) as i64 >> unused) as f64
            }
            _ => raw as f64,
        })
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementType::Float { size, .. } => write!(f, "f{}", size * 8),
            ElementType::Integer { size, signed: true, .. } => write!(f, "i{}", size * 8),
            ElementType::Integer { size, .. } => write!(f, "u{}", size * 8),
            ElementType::FixedString { .. } | ElementType::VariableString => f.write_str("text"),
            ElementType::Other { name, .. } => f.write_str(name),
        }
    }
}

/// Parses a float type, which must be an IEEE type.
fn float(mut at: Cursor<'_>, size: usize, order: u8) -> Result<ElementType> {
    let (offset, precision) = (at.u16()?, at.u16()? as usize);
    let parts = (at.u8()?, at.u8()?, at.u8()?, at.u8()?);
    let ieee = match size {
        2 => (10, 5, 0, 10),
        4 => (23, 8, 0, 23),
        8 => (52, 11, 0, 52),
        _ => (0, 0, 0, 0),
    };
    if offset != 0 || precision != size * 8 || parts != ieee || order & 0x40 != 0 {
        return Ok(ElementType::Other { name: "floats of an unusual kind", size });
    }
    Ok(ElementType::Float { size, big_endian: order & 1 != 0 })
}

/// Converts a 16-bit float.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = ((bits >> 10) & 0x1f, f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(i32::from(exponent) - 15),
    };
    if bits & 0x8000 != 0 { -size } else { size }
}

/// The dimensions in a dataspace message; `None` for an empty dataspace.
pub(crate) fn dataspace(data: &[u8]) -> Result<Option<Vec<usize>>> {
    let mut at = Cursor::new(data, 0)?;
    let (version, rank, _flags) = (at.u8()?, at.u8()? as usize, at.u8()?);
    let kind = at.u8()?;
    match version {
        1 => at.skip(4)?,
        2 if kind == 2 => return Ok(None),
        2 => {}
        _ => return Err(unsupported(format!("version {version} of a shape"))),
    }
    if rank > MAX_RANK {
        return Err(unsupported(format!("a shape of {rank} axes")));
    }
    let size = |at: &mut Cursor<'_>| {
        let size = at.u64()?;
        usize::try_from(size).map_err(|_| damaged(format!("an axis of {size}")))
    };
    let dims: Vec<usize> = (0..rank).map(|_| size(&mut at)).collect::<Result<_>>()?;
    Ok(Some(dims))
}

/// Number of elements of a shape.
pub(crate) fn count(dims: &[usize]) -> Result<usize> {
    let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    count.ok_or_else(|| damaged(format!("a shape of {dims:?}")))
}
