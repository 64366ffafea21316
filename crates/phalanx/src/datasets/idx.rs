//! The idx format of MNIST: big-endian magic, one length per dimension, one byte per element; plain or
//! gzipped.

use crate::error::{Error, Result};
use crate::saving::open_file;
use flate2::read::MultiGzDecoder;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

/// Maximum number of samples in a file. The largest of the family (EMNIST) has 814,255 images.
const MAX_SAMPLES: usize = 1_000_000;

/// Maximum compression ratio of deflate.
const MAX_INFLATION: u64 = 1032;

/// Images or labels, one sample after the other.
#[derive(Debug)]
pub struct Idx {
    /// Number of samples.
    pub samples: usize,
    /// The bytes of all samples.
    pub bytes: Vec<u8>,
}

/// Reads a file of samples with the dimensions `sample`: `[28, 28]` for images, `[]` for labels. The
/// header bounds the memory, and the file size bounds what the header may announce.
pub fn read(path: &Path, sample: &[usize]) -> Result<Idx> {
    let fail = |source| Error::io(path, source);
    let file = open_file(path, "an idx file")?;
    let size = file.metadata().map_err(fail)?.len();
    let mut file = BufReader::new(file);
    let mut start = [0; 2];
    let gzipped = read_up_to(&mut file, &mut start).map_err(fail)? == 2 && start == [0x1f, 0x8b];
    file.rewind().map_err(fail)?;
    let most = size.saturating_mul(if gzipped { MAX_INFLATION } else { 1 });
    let source: &mut dyn Read = if gzipped { &mut MultiGzDecoder::new(file) } else { &mut file };
    parse(path, source, sample, most)
}

fn parse(path: &Path, source: &mut dyn Read, sample: &[usize], most: u64) -> Result<Idx> {
    let fail = |e: io::Error| match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::file(path, "a whole gzip stream", "a truncated one"),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            Error::file(path, "a gzip stream", format!("a damaged one ({e})"))
        }
        _ => Error::io(path, e),
    };
    let rank = 1 + sample.len();
    let mut header = vec![0; 4 + 4 * rank];
    let got = read_up_to(source, &mut header).map_err(fail)?;
    let word = |i: usize| {
        let bytes = header.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok());
        u32::from_be_bytes(bytes.unwrap_or_default())
    };
    let magic = 0x0800 + rank as u32;
    if got >= 4 && word(0) != magic {
        return Err(Error::file(path, format!("idx magic {magic}"), word(0)));
    }
    if got < header.len() {
        let expected = format!("an idx header of {} bytes", header.len());
        return Err(Error::file(path, expected, format!("{got} bytes")));
    }
    for (i, dim) in sample.iter().enumerate() {
        if word(2 + i) as usize != *dim {
            let received: Vec<u32> = (2..=rank).map(word).collect();
            let expected = format!("samples of dimensions {sample:?}");
            return Err(Error::file(path, expected, format!("{received:?}")));
        }
    }
    let samples = word(1) as usize;
    if samples == 0 || samples > MAX_SAMPLES {
        return Err(Error::file(path, format!("1 to {MAX_SAMPLES} samples"), samples));
    }
    let len = sample.iter().try_fold(samples, |n, dim| n.checked_mul(*dim));
    let len = len.filter(|n| *n as u64 <= most).ok_or_else(|| {
        let received = format!("a file that cannot hold more than {most} bytes");
        Error::file(path, format!("{samples} samples as its header says"), received)
    })?;
    let mut bytes = vec![];
    source.take(len as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() != len {
        let received = match bytes.len() > len {
            true => "more".into(),
            false => format!("{} bytes", bytes.len()),
        };
        let expected = format!("{len} bytes of data as its header says");
        return Err(Error::file(path, expected, received));
    }
    Ok(Idx { samples, bytes })
}

/// Reads until the buffer is full or the source ends.
fn read_up_to(source: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn header(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Reads the bytes as a file of 2x2 images.
    fn read_bytes(bytes: &[u8]) -> Result<Idx> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images");
        std::fs::write(&path, bytes).unwrap();
        read(&path, &[2, 2])
    }

    #[test]
    fn plain_and_gzipped_files_are_read() {
        let whole = [header(&[2051, 2, 2, 2]), (1..=8).collect()].concat();
        for bytes in [whole.clone(), gzip(&whole)] {
            let idx = read_bytes(&bytes).unwrap();
            assert_eq!((idx.samples, &idx.bytes[..]), (2, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
        }
    }

    #[test]
    fn damaged_files_give_an_error_that_names_them() {
        let data = |words: &[u32], n: usize| [header(words), vec![0; n]].concat();
        let whole = data(&[2051, 2, 2, 2], 8);
        let mut bad_sum = gzip(&whole);
        let at = bad_sum.len() - 8;
        bad_sum[at] ^= 1;
        let bomb = gzip(&data(&[2051, 2, 2, 2], 10_000_000));
        let huge = data(&[2051, u32::MAX, 2, 2], 8);
        let cases = [
            (vec![], "an idx header"),
            (vec![0, 0], "an idx header"),
            (data(&[2049, 8], 8), "idx magic 2051, received 2049"),
            (header(&[2051, 2]), "idx header of 16 bytes, received 8 bytes"),
            (data(&[2051, 2, 28, 28], 8), "dimensions [2, 2], received [28, 28]"),
            (data(&[2051, 2, u32::MAX, u32::MAX], 8), "dimensions [2, 2]"),
            (data(&[2051, 0, 2, 2], 0), "1 to 1000000 samples, received 0"),
            (huge.clone(), "received 4294967295"),
            (gzip(&huge), "received 4294967295"),
            (data(&[2051, 900_000, 2, 2], 8), "cannot hold more than 24 bytes"),
            (data(&[2051, 2, 2, 2], 7), "8 bytes of data as its header says, received 7 bytes"),
            (data(&[2051, 2, 2, 2], 9), "received more"),
            (gzip(&whole)[..20].to_vec(), "a whole gzip stream, received a truncated one"),
            (bad_sum, "a gzip stream, received a damaged one"),
            (bomb, "received more"),
            (vec![0x1f, 0x8b], "gzip stream"),
            ([vec![0x1f, 0x8b], vec![0xff; 40]].concat(), "gzip stream"),
        ];
        for (bytes, expected) in cases {
            let message = read_bytes(&bytes).unwrap_err().to_string();
            assert!(message.contains("/images: expected"), "{message}");
            assert!(message.contains(expected), "{message} should say {expected}");
        }
    }

    #[test]
    fn what_is_not_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path(), &[]).unwrap_err().to_string().contains("received a directory"));
        let missing = read(&dir.path().join("none"), &[]).unwrap_err().to_string();
        assert!(missing.contains("none: No such file"), "{missing}");
        #[cfg(unix)]
        assert!(read(Path::new("/dev/zero"), &[]).is_err());
    }
}
