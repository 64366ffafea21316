//! NumPy's `.npy` files: a header that is a Python literal, then the elements in C order.

use crate::data::{Pixels, Samples};
use crate::error::{Error, Result};
use crate::memory;
use crate::saving::{open_file, write_atomic};
use phalanx_graph::text::brief;
use phalanx_graph::{Data, Tensor};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum length of a header in bytes; NumPy's own readers accept less.
const MAX_HEADER_BYTES: usize = 1 << 16;
const MAX_DIMENSIONS: usize = 32;

/// Reads an array. Unsigned bytes stay bytes, other integers become `i32`, floats become `f32`.
///
/// # Errors
/// A damaged file, an unsupported element type, Fortran order, or integers beyond 32 bits.
pub fn read(path: &Path) -> Result<Samples> {
    let file = open_file(path, "an npy file")?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?.len();
    parse(path, &mut BufReader::new(file), size)
}

/// Writes a tensor like NumPy's `save`. The file appears atomically.
pub fn write(path: &Path, tensor: &Tensor) -> Result<()> {
    write_atomic(path, |out| write_to(out, tensor))
}

/// Writes a tensor in NumPy's format.
pub(super) fn write_to(out: &mut dyn Write, tensor: &Tensor) -> io::Result<()> {
    let dims: Vec<String> = tensor.dims().iter().map(|d| format!("{d},")).collect();
    let kind = if tensor.i32().is_some() { "<i4" } else { "<f4" };
    let shape = match tensor.dims().len() {
        1 => dims.concat(),
        _ => dims.join(" ").trim_end_matches(',').to_string(),
    };
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements start at a multiple of 64 bytes.
    let padding = 63 - (10 + header.len()) % 64;
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(io::Error::other)?;
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    match tensor.data() {
        Data::F32(v) => v.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
        Data::I32(v) => v.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
    }
}

/// Reads an array from a source of at most `most` bytes. `path` names it in errors.
pub(super) fn parse(path: &Path, source: &mut dyn Read, most: u64) -> Result<Samples> {
    let mut start = [0; 8];
    read_exact(path, source, &mut start)?;
    if start[..6] != *MAGIC {
        return Err(Error::file(path, "a NumPy array", "another kind of file"));
    }
    let length = match start[6] {
        1 => {
            let mut bytes = [0; 2];
            read_exact(path, source, &mut bytes)?;
            usize::from(u16::from_le_bytes(bytes))
        }
        2 | 3 => {
            let mut bytes = [0; 4];
            read_exact(path, source, &mut bytes)?;
            u32::from_le_bytes(bytes) as usize
        }
        other => return Err(Error::file(path, "npy version 1, 2 or 3", other)),
    };
    if length > MAX_HEADER_BYTES {
        return Err(Error::file(path, format!("a header below {MAX_HEADER_BYTES} bytes"), length));
    }
    let mut header = vec![0; length];
    read_exact(path, source, &mut header)?;
    let header = String::from_utf8_lossy(&header);
    let Some((kind, fortran, dims)) = parse_header(&header) else {
        return Err(Error::file(path, "an npy header", format!("{:?}", brief(header.trim()))));
    };
    if fortran && dims.len() > 1 {
        let expected = "an array in C order (numpy.ascontiguousarray makes one)";
        return Err(Error::file(path, expected, "one in Fortran order"));
    }
    let Some(width) = width(&kind) else {
        let expected = "elements of type f2, f4, f8, i1 to i8, u1 to u8 or b1";
        return Err(Error::file(path, expected, brief(&kind)));
    };
    let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let size = len.and_then(|n| n.checked_mul(width)).filter(|n| *n as u64 <= most);
    let Some(size) = size else {
        let received = format!("a file that cannot hold more than {most} bytes");
        return Err(Error::file(path, format!("an array {dims:?} as its header says"), received));
    };
    // Unsigned bytes are kept; other types become 4-byte numbers.
    let made = if kind.ends_with("u1") { 0 } else { 4 * (size / width) };
    memory::check_file(path, size as u64 + made as u64)?;
    let mut bytes = vec![];
    source.take(size as u64 + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if bytes.len() != size {
        let received = if bytes.len() > size { "more".into() } else { bytes.len().to_string() };
        return Err(Error::file(path, format!("{size} bytes of elements"), received));
    }
    convert(path, &kind, dims, bytes)
}

fn read_exact(path: &Path, source: &mut dyn Read, buffer: &mut [u8]) -> Result<()> {
    source.read_exact(buffer).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Error::file(path, "an npy header", "the end of the file")
        }
        _ => Error::io(path, e),
    })
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`
fn parse_header(text: &str) -> Option<(String, bool, Vec<usize>)> {
    let after = |key: &str| {
        let at = text.find(&format!("'{key}'"))? + key.len() + 2;
        Some(text[at..].trim_start().strip_prefix(':')?.trim_start())
    };
    let descr = after("descr")?.strip_prefix('\'')?;
    let descr = descr[..descr.find('\'')?].to_string();
    let order = after("fortran_order")?;
    let fortran = order.starts_with("True");
    if !fortran && !order.starts_with("False") {
        return None;
    }
    let shape = after("shape")?.strip_prefix('(')?;
    let shape = &shape[..shape.find(')')?];
    let mut dims = vec![];
    for dim in shape.split(',').map(str::trim).filter(|dim| !dim.is_empty()) {
        dims.push(dim.parse().ok()?);
    }
    (dims.len() <= MAX_DIMENSIONS).then_some((descr, fortran, dims))
}

/// Size in bytes of an element of a supported type.
fn width(kind: &str) -> Option<usize> {
    let (order, kind) = kind.split_at_checked(1)?;
    let width = match kind {
        "u1" | "i1" | "b1" => return ["|", "<", "=", ">"].contains(&order).then_some(1),
        "f2" | "i2" | "u2" => 2,
        "f4" | "i4" | "u4" => 4,
        "f8" | "i8" | "u8" => 8,
        _ => return None,
    };
    ["<", "=", ">"].contains(&order).then_some(width)
}

fn convert(path: &Path, kind: &str, dims: Vec<usize>, mut bytes: Vec<u8>) -> Result<Samples> {
    if let (true, Some(width)) = (kind.starts_with('>'), width(kind)) {
        // The file is big-endian.
        bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    let mut outside = None;
    let mut whole = |value: i128| {
        i32::try_from(value).unwrap_or_else(|_| {
            outside.get_or_insert(value);
            0
        })
    };
    macro_rules! words {
        ($type:ty) => {
            bytes
                .chunks_exact(size_of::<$type>())
                .map(|b| <$type>::from_le_bytes(b.try_into().expect("chunks of its size")))
        };
    }
    let data: Data = match &kind[1..] {
        "u1" if !dims.is_empty() => {
            let pixels = Pixels::new(dims, bytes, 1.0);
            return pixels
                .map(Samples::from)
                .ok_or_else(|| Error::file(path, "elements for its shape", "another number"));
        }
        "f2" => words!(u16).map(half).collect::<Vec<f32>>().into(),
        "f4" => words!(f32).collect::<Vec<f32>>().into(),
        "f8" => words!(f64).map(|x| x as f32).collect::<Vec<f32>>().into(),
        "i1" => words!(i8).map(i32::from).collect::<Vec<i32>>().into(),
        "i2" => words!(i16).map(i32::from).collect::<Vec<i32>>().into(),
        "i4" => words!(i32).collect::<Vec<i32>>().into(),
        "u2" => words!(u16).map(i32::from).collect::<Vec<i32>>().into(),
        "u4" => words!(u32).map(|x| whole(x.into())).collect::<Vec<i32>>().into(),
        "i8" => words!(i64).map(|x| whole(x.into())).collect::<Vec<i32>>().into(),
        "u8" => words!(u64).map(|x| whole(x.into())).collect::<Vec<i32>>().into(),
        _ => bytes.iter().map(|b| i32::from(*b)).collect::<Vec<i32>>().into(),
    };
    if let Some(value) = outside {
        return Err(Error::file(path, "integers of 32 bits", value));
    }
    let tensor = Tensor::new(dims, data);
    tensor
        .map(Samples::from)
        .map_err(|_| Error::file(path, "elements for its shape", "another number"))
}

/// Converts a half-precision float.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn npy(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (header.len() as u16).to_le_bytes();
        [&MAGIC[..], &[1, 0], &length, header.as_bytes(), data].concat()
    }

    fn read_bytes(bytes: &[u8]) -> Result<Samples> {
        parse(Path::new("x.npy"), &mut &bytes[..], bytes.len() as u64)
    }

    #[test]
    fn element_types_are_converted() {
        let tensor =
            |kind: &str, data: &[u8]| read_bytes(&npy(kind, "(2,)", data)).unwrap().to_tensor();
        assert_eq!(tensor("|u1", &[3, 255]).f32().unwrap(), [3.0, 255.0]);
        let long = [(-7i64).to_le_bytes(), 9i64.to_le_bytes()].concat();
        assert_eq!(tensor("<i8", &long).i32().unwrap(), [-7, 9]);
        assert_eq!(tensor("<i2", &[1, 0, 0xff, 0xff]).i32().unwrap(), [1, -1]);
        assert_eq!(tensor("|b1", &[0, 1]).i32().unwrap(), [0, 1]);
        assert_eq!(tensor("<f2", &[0, 0x3c, 0, 0xc1]).f32().unwrap(), [1.0, -2.5]);
        let doubles = [0.5f64.to_le_bytes(), 2f64.to_le_bytes()].concat();
        assert_eq!(tensor("<f8", &doubles).f32().unwrap(), [0.5, 2.0]);
        assert_eq!(read_bytes(&npy("<f4", "()", &[0; 4])).unwrap().dims(), [0usize; 0]);
    }

    /// Such arrays were refused.
    #[test]
    fn big_endian_arrays_are_read() {
        let tensor =
            |kind: &str, data: &[u8]| read_bytes(&npy(kind, "(2,)", data)).unwrap().to_tensor();
        assert_eq!(tensor(">f2", &[0x3c, 0, 0xc1, 0]).f32().unwrap(), [1.0, -2.5]);
        let floats = [0.25f32.to_be_bytes(), (-3f32).to_be_bytes()].concat();
        assert_eq!(tensor(">f4", &floats).f32().unwrap(), [0.25, -3.0]);
        let doubles = [0.5f64.to_be_bytes(), 2f64.to_be_bytes()].concat();
        assert_eq!(tensor(">f8", &doubles).f32().unwrap(), [0.5, 2.0]);
        assert_eq!(tensor(">i2", &[0, 1, 0xff, 0xfe]).i32().unwrap(), [1, -2]);
        assert_eq!(tensor(">u2", &[0, 1, 0xff, 0xfe]).i32().unwrap(), [1, 65534]);
        let whole = [7i32.to_be_bytes(), (-70000i32).to_be_bytes()].concat();
        assert_eq!(tensor(">i4", &whole).i32().unwrap(), [7, -70000]);
        let long = [(-7i64).to_be_bytes(), 9i64.to_be_bytes()].concat();
        assert_eq!(tensor(">i8", &long).i32().unwrap(), [-7, 9]);
    }

    #[test]
    fn arrays_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        for dims in [vec![], vec![4], vec![2, 3], vec![1, 2, 2]] {
            let n = dims.iter().product::<usize>();
            let tensor = Tensor::new(dims, (0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
            write(&path, &tensor).unwrap();
            assert_eq!(*read(&path).unwrap().to_tensor(), tensor);
        }
    }

    #[test]
    fn damaged_arrays_are_refused() {
        let beyond = npy("<i8", "(1,)", &[0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]);
        let mut fortran = npy("<f4", "(2, 2)", &[0; 16]);
        let at = fortran.windows(5).position(|w| w == b"False").unwrap();
        fortran[at..at + 5].copy_from_slice(b"True ");
        for (bytes, expected) in [
            (vec![], "the end of the file"),
            (b"PK\x03\x04aaaaaaaa".to_vec(), "another kind of file"),
            (b"\x93NUMPY\x09\x00".to_vec(), "npy version"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "a header below"),
            (npy("<f4", "(2,)", &[0; 7]), "8 bytes of elements, received 7"),
            (npy("<f4", "(2,)", &[0; 9]), "received more"),
            (npy(">f4", "(2,)", &[0; 7]), "8 bytes of elements, received 7"),
            (npy(">c8", "(2,)", &[0; 8]), "received >c8"),
            (npy("!f4", "(2,)", &[0; 8]), "received !f4"),
            (npy("|O", "(2,)", &[0; 8]), "received |O"),
            (npy("<c8", "(2,)", &[0; 8]), "received <c8"),
            (npy("<f4", "(18446744073709551615, 2)", &[0; 8]), "as its header says"),
            (npy("<f4", "(99999999999,)", &[0; 8]), "cannot hold more than"),
            (npy("<f4", "(-1,)", &[0; 8]), "an npy header"),
            (npy("<f4", "nothing", &[0; 8]), "an npy header"),
            (beyond, "integers of 32 bits"),
            (fortran, "C order"),
        ] {
            let message = read_bytes(&bytes).unwrap_err().to_string();
            assert!(message.contains("x.npy: expected"), "{message}");
            assert!(message.contains(expected), "{message} should say {expected}");
        }
    }
}
