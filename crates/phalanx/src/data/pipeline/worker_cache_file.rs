//! The append-only cache file of one of several workers.

use super::epoch_context::{Item, PartialBatch};
use super::{Cardinality, Element};
use crate::data::{Digest, LocalShard};
use crate::error::{Error, Result};
use crate::saving::open_no_follow;
use phalanx_distributed::warnings::warning;
use phalanx_graph::text::shown;
use phalanx_graph::{DType, Data, Tensor};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// First bytes of a file. Then, little-endian: flags (u64), with bit 0 set if the order follows from a
/// seed and bit 1 set if rows are split as in deterministic mode; that seed (u64) and the path of the
/// pass (u64); the number of elements (u64, all ones if unknown). Then for each element, in any order:
/// its index (u64), its length (u64), a fingerprint of its bytes (u64), and the bytes themselves. These
/// are the rows of the batch and the range of them stored here (3 u64, all ones if the element is not
/// part of a batch), then tensors as in any cache file.
const MAGIC: &[u8; 8] = b"PHXPART1";
const HEADER_BYTES: u64 = 40;
const RECORD_HEADER_BYTES: u64 = 24;
/// Stands for a number that is absent.
const NONE: u64 = u64::MAX;

/// A worker's elements in a file. A record truncated by a crash is dropped.
pub(super) struct WorkerCacheFile {
    file: File,
    path: PathBuf,
    /// File offset of each element's record.
    offsets: HashMap<usize, u64>,
    end: u64,
}

impl WorkerCacheFile {
    /// Opens the file of a worker next to `path`, and recreates it if it was made for other data.
    pub fn open(
        path: &Path,
        shard: &LocalShard,
        of: Option<(u64, u32)>,
        cardinality: Cardinality,
    ) -> Result<WorkerCacheFile> {
        let (LocalShard { replicas, mesh }, mut name) = (shard, path.as_os_str().to_owned());
        name.push(format!(".rows-{}-{}-of-{}", replicas.start, replicas.end, mesh.replicas));
        let path = PathBuf::from(name);
        let io = |e| Error::io(&path, e);
        let mut file = open_no_follow(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::file(&path, "a cache of this worker alone", "one in use"));
            }
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let (seed, path_id) = of.unwrap_or_default();
        let count = match cardinality {
            Cardinality::Known(n) => n as u64,
            Cardinality::Unknown | Cardinality::Infinite => NONE,
        };
        let kind = u64::from(of.is_some()) + 2 * u64::from(mesh.fixed);
        let words = [kind, seed, u64::from(path_id), count];
        let head = [&MAGIC[..], &words.map(u64::to_le_bytes).concat()].concat();
        let mut found = vec![];
        (&mut file).take(HEADER_BYTES).read_to_end(&mut found).map_err(io)?;
        if !found.is_empty() && !found.starts_with(MAGIC) {
            return Err(Error::file(&path, "a cache file of this version", "another file"));
        }
        if found != head {
            if !found.is_empty() {
                let shown = shown(path.display());
                warning!("{shown}: made with another seed or for other data; recreating it");
            }
            file.set_len(0).map_err(io)?;
            file.seek(SeekFrom::Start(0)).map_err(io)?;
            file.write_all(&head).map_err(io)?;
        }
        let mut part = WorkerCacheFile { file, path, offsets: HashMap::new(), end: HEADER_BYTES };
        part.scan().map_err(|e| Error::io(&part.path, e))?;
        Ok(part)
    }

    /// Indexes the records, and drops a truncated one.
    fn scan(&mut self) -> std::io::Result<()> {
        let len = self.file.metadata()?.len();
        while self.end + RECORD_HEADER_BYTES <= len {
            let [number, bytes, _] = self.words(self.end)?;
            let end = (self.end + RECORD_HEADER_BYTES).checked_add(bytes).filter(|end| *end <= len);
            let (Some(end), Ok(number)) = (end, usize::try_from(number)) else { break };
            self.offsets.insert(number, self.end);
            self.end = end;
        }
        self.file.set_len(self.end)
    }

    fn words(&mut self, at: u64) -> std::io::Result<[u64; 3]> {
        let mut bytes = [[0; 8]; 3];
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    pub fn has(&self, at: usize) -> bool {
        self.offsets.contains_key(&at)
    }

    pub fn get(&mut self, at: usize) -> Result<Option<Item>> {
        let Some(place) = self.offsets.get(&at).copied() else { return Ok(None) };
        let [_, len, digest] = self.words(place).map_err(|e| Error::io(&self.path, e))?;
        let mut bytes = vec![];
        let read = (&mut self.file).take(len).read_to_end(&mut bytes);
        read.map_err(|e| Error::io(&self.path, e))?;
        let damaged = || Error::file(&self.path, "whole elements", "a damaged file");
        let (rows, rest) = bytes.split_first_chunk::<24>().ok_or_else(damaged)?;
        if fingerprint(&bytes) != digest {
            return Err(damaged());
        }
        let mut words = rows.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w) as usize);
        let mut word = || words.next().unwrap_or_default();
        let (rows, local) = (word(), word()..word());
        let (mut from, mut left) = (rest, rest.len() as u64);
        let element = decode(&mut from, &mut left, &self.path, true)?.ok_or_else(damaged)?;
        Ok(Some(match rows as u64 {
            NONE => Item::Full(element),
            _ => Item::Partial(PartialBatch { element, rows, local }),
        }))
    }

    pub fn put(&mut self, at: usize, item: &Item) -> Result<()> {
        let (rows, element) = match item {
            Item::Full(element) => ([NONE; 3], element),
            Item::Partial(PartialBatch { element, rows, local }) => {
                ([*rows, local.start, local.end].map(|n| n as u64), element)
            }
            Item::Skipped => return Ok(()),
        };
        let bytes = [rows.map(u64::to_le_bytes).concat(), encode(element)?].concat();
        let words = [at as u64, bytes.len() as u64, fingerprint(&bytes)];
        let record = [words.map(u64::to_le_bytes).concat(), bytes].concat();
        let io = |e| Error::io(&self.path, e);
        self.file.seek(SeekFrom::Start(self.end)).map_err(io)?;
        self.file.write_all(&record).map_err(io)?;
        self.offsets.insert(at, self.end);
        self.end += record.len() as u64;
        Ok(())
    }
}

fn fingerprint(bytes: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.bytes(bytes);
    digest.end()
}

/// Encodes an element.
pub(super) fn encode(element: &Element) -> Result<Vec<u8>> {
    let byte = |n: usize| {
        u8::try_from(n).map_err(|_| Error::argument("cache", "element", "at most 255", n))
    };
    let mut bytes = vec![byte(element.len())?];
    for tensor in element {
        let kind = u8::from(tensor.dtype() == DType::I32);
        bytes.extend([kind, byte(tensor.dims().len())?]);
        bytes.extend(tensor.dims().iter().flat_map(|dim| (*dim as u64).to_le_bytes()));
        match tensor.data() {
            Data::F32(v) => bytes.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Data::I32(v) => bytes.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        }
    }
    Ok(bytes)
}

/// Decodes the next element, of which at most `left` bytes are available. Skips it if it is not wanted.
pub(super) fn decode(
    from: &mut impl Read,
    left: &mut u64,
    path: &Path,
    wanted: bool,
) -> Result<Option<Element>> {
    let mut source = Source { from, left, path };
    let tensors = source.bytes(1)?[0];
    let mut element = vec![];
    for _ in 0..tensors {
        element.extend(source.tensor(wanted)?);
    }
    Ok(wanted.then_some(element))
}

struct Source<'a, R> {
    from: &'a mut R,
    /// Bytes left to read; no length field may exceed it.
    left: &'a mut u64,
    path: &'a Path,
}

impl<R: Read> Source<'_, R> {
    fn truncated(&self) -> Error {
        Error::file(self.path, "whole elements", "a truncated or damaged file")
    }

    fn spend(&mut self, n: u64) -> Result<()> {
        *self.left = self.left.checked_sub(n).ok_or_else(|| self.truncated())?;
        Ok(())
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>> {
        self.spend(n)?;
        let mut bytes = vec![];
        let got = self.from.take(n).read_to_end(&mut bytes);
        match got.map_err(|e| Error::io(self.path, e))? as u64 == n {
            true => Ok(bytes),
            false => Err(self.truncated()),
        }
    }

    fn skip(&mut self, n: u64) -> Result<()> {
        self.spend(n)?;
        let passed = std::io::copy(&mut self.from.take(n), &mut std::io::sink());
        match passed.map_err(|e| Error::io(self.path, e))? == n {
            true => Ok(()),
            false => Err(self.truncated()),
        }
    }

    fn tensor(&mut self, wanted: bool) -> Result<Option<Tensor>> {
        let head = self.bytes(2)?;
        let dims = self.bytes(8 * u64::from(head[1]))?;
        let dims: Option<Vec<usize>> = dims
            .chunks_exact(8)
            .map(|b| usize::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok())
            .collect();
        let damaged = || Error::file(self.path, "tensors", "a damaged header");
        let dims = dims.ok_or_else(damaged)?;
        let size = dims.iter().try_fold(4u64, |n, dim| n.checked_mul(*dim as u64));
        let size = size.ok_or_else(damaged)?;
        if !wanted {
            return self.skip(size).map(|()| None);
        }
        let bytes = self.bytes(size)?;
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let data: Data = match head[0] {
            0 => words.map(f32::from_le_bytes).collect::<Vec<_>>().into(),
            _ => words.map(i32::from_le_bytes).collect::<Vec<_>>().into(),
        };
        let tensor = Tensor::new(dims, data);
        tensor.map(Some).map_err(|_| Error::file(self.path, "tensors", "a bad shape"))
    }
}
