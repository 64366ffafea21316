//! Element types and shapes.

use super::bytes::Cursor;
use super::{Fault, Result};

/// Maximum rank of an array, as in HDF5 itself.
const MAX_RANK: usize = 32;

/// An element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// IEEE floats of 2, 4 or 8 bytes.
    Float { size: usize, big_endian: bool },
    /// Integers of 1, 2, 4 or 8 bytes.
    Integer { size: usize, signed: bool, big_endian: bool },
    /// Strings of a fixed number of bytes.
    Text { size: usize },
    /// Variable-length strings in the global heap.
    VariableText,
    /// Any other type, with its name.
    Other { name: &'static str, size: usize },
}

impl Type {
    /// Parses a datatype message.
    pub fn parse(data: &[u8]) -> Result<Type> {
        let mut at = Cursor::new(data, 0)?;
        let class = at.u8()? & 0x0f;
        let flags = at.take(3)?;
        let size = at.u32()? as usize;
        if size == 0 {
            return Err(Fault("elements of no bytes".into()));
        }
        let big_endian = flags[0] & 1 != 0;
        let other = |name| Ok(Type::Other { name, size });
        match class {
            0 if [1, 2, 4, 8].contains(&size) => {
                Ok(Type::Integer { size, signed: flags[0] & 0x08 != 0, big_endian })
            }
            1 => float(at, size, flags[0] & 0x41),
            3 => Ok(Type::Text { size }),
            9 if flags[0] & 0x0f == 1 && size == 16 => Ok(Type::VariableText),
            0 => other("integers of unusual size"),
            2 => other("times"),
            4 => other("bit fields"),
            5 => other("opaque bytes"),
            6 => other("records"),
            7 => other("references"),
            8 => other("an enumeration"),
            9 => other("sequences"),
            10 => other("arrays"),
            _ => Err(Fault(format!("element type {class}"))),
        }
    }

    /// Size of an element in bytes.
    pub fn size(&self) -> usize {
        match self {
            Type::Float { size, .. }
            | Type::Integer { size, .. }
            | Type::Text { size }
            | Type::Other { size, .. } => *size,
            Type::VariableText => 16,
        }
    }

    /// Name of the type, for example `f32`.
    pub fn name(&self) -> String {
        match self {
            Type::Float { size, .. } => format!("f{}", size * 8),
            Type::Integer { size, signed: true, .. } => format!("i{}", size * 8),
            Type::Integer { size, .. } => format!("u{}", size * 8),
            Type::Text { .. } | Type::VariableText => "text".into(),
            Type::Other { name, .. } => (*name).into(),
        }
    }

    /// Converts an element to a number.
    pub fn number(&self, element: &[u8]) -> Option<f64> {
        let mut bytes = [0; 8];
        let big = match self {
            Type::Float { big_endian, .. } | Type::Integer { big_endian, .. } => *big_endian,
            _ => return None,
        };
        let target = bytes.get_mut(..element.len())?;
        target.copy_from_slice(element);
        if big {
            target.reverse();
        }
        let raw = u64::from_le_bytes(bytes);
        Some(match self {
            Type::Float { size: 2, .. } => half(raw as u16),
            Type::Float { size: 4, .. } => f64::from(f32::from_bits(raw as u32)),
            Type::Float { .. } => f64::from_bits(raw),
            Type::Integer { size, signed: true, .. } => {
                let unused = 64 - 8 * *size as u32;
                ((raw << unused) as i64 >> unused) as f64
            }
            _ => raw as f64,
        })
    }
}

/// Parses a float type, which must be an IEEE type.
fn float(mut at: Cursor<'_>, size: usize, order: u8) -> Result<Type> {
    let (offset, precision) = (at.u16()?, at.u16()? as usize);
    let parts = (at.u8()?, at.u8()?, at.u8()?, at.u8()?);
    let ieee = match size {
        2 => (10, 5, 0, 10),
        4 => (23, 8, 0, 23),
        8 => (52, 11, 0, 52),
        _ => (0, 0, 0, 0),
    };
    if offset != 0 || precision != size * 8 || parts != ieee || order & 0x40 != 0 {
        return Ok(Type::Other { name: "floats of an unusual kind", size });
    }
    Ok(Type::Float { size, big_endian: order & 1 != 0 })
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
pub(super) fn dataspace(data: &[u8]) -> Result<Option<Vec<usize>>> {
    let mut at = Cursor::new(data, 0)?;
    let (version, rank, _flags) = (at.u8()?, at.u8()? as usize, at.u8()?);
    let kind = at.u8()?;
    match version {
        1 => at.skip(4)?,
        2 if kind == 2 => return Ok(None),
        2 => {}
        _ => return Err(Fault(format!("version {version} of a shape"))),
    }
    if rank > MAX_RANK {
        return Err(Fault(format!("a shape of {rank} axes")));
    }
    let size = |at: &mut Cursor<'_>| {
        let size = at.u64()?;
        usize::try_from(size).map_err(|_| Fault(format!("an axis of {size}")))
    };
    let dims: Vec<usize> = (0..rank).map(|_| size(&mut at)).collect::<Result<_>>()?;
    Ok(Some(dims))
}

/// Number of elements of a shape.
pub(super) fn count(dims: &[usize]) -> Result<usize> {
    let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    count.ok_or_else(|| Fault(format!("a shape of {dims:?}")))
}
