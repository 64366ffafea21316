//! Elements kept from the first pass for those that follow.

use super::{Cardinality, Element, Elements, Pass, Step};
use crate::error::{Error, Result};
use crate::saving::{AtomicFile, open_file};
use phalanx_graph::{DType, Data, Tensor};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

type Kept = Arc<Mutex<Option<Arc<Vec<Element>>>>>;

pub(super) struct InMemory {
    inner: Arc<dyn Step>,
    kept: Kept,
}

impl InMemory {
    pub fn new(inner: Arc<dyn Step>) -> InMemory {
        InMemory { inner, kept: Kept::default() }
    }
}

impl Step for InMemory {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(match kept {
            Some(kept) => Box::new(Again { kept, at: 0 }),
            None => {
                let (inner, kept) = (self.inner.open(pass.first())?, self.kept.clone());
                Box::new(Keeping { inner, so_far: vec![], kept })
            }
        })
    }
}

struct Again {
    kept: Arc<Vec<Element>>,
    at: usize,
}

impl Elements for Again {
    fn next(&mut self) -> Result<Option<Element>> {
        let element = self.kept.get(self.at).cloned();
        self.at = self.at.saturating_add(1);
        Ok(element)
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        Ok(())
    }
}

struct Keeping {
    inner: Box<dyn Elements>,
    so_far: Vec<Element>,
    kept: Kept,
}

impl Elements for Keeping {
    fn next(&mut self) -> Result<Option<Element>> {
        let next = self.inner.next()?;
        match &next {
            Some(element) => self.so_far.push(element.clone()),
            None => {
                let whole = Arc::new(std::mem::take(&mut self.so_far));
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.get_or_insert(whole);
            }
        }
        Ok(next)
    }
}

/// First bytes of a cache file. Then, little-endian: for each element its number of tensors
/// (u8), for each tensor its type (u8: 0 f32, 1 i32), rank (u8), dimensions (u64) and elements.
const MAGIC: &[u8; 8] = b"PHXCACH1";

pub(super) struct InFile {
    pub inner: Arc<dyn Step>,
    pub path: PathBuf,
}

impl Step for InFile {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>> {
        if self.path.exists() {
            return Ok(Box::new(Reading::new(&self.path)?));
        }
        let inner = self.inner.open(pass.first())?;
        let writer = Writing::new(&self.path)?;
        Ok(Box::new(Recording { inner, writer: Some(writer) }))
    }
}

struct Recording {
    inner: Box<dyn Elements>,
    writer: Option<Writing>,
}

impl Elements for Recording {
    fn next(&mut self) -> Result<Option<Element>> {
        let next = self.inner.next()?;
        match &next {
            Some(element) => {
                if let Some(writer) = &mut self.writer {
                    writer.element(element)?;
                }
            }
            None => {
                if let Some(writer) = self.writer.take() {
                    writer.finish()?;
                }
            }
        }
        Ok(next)
    }
}

/// A cache file under way; a pass that does not end leaves none.
struct Writing {
    file: AtomicFile,
    path: PathBuf,
}

impl Writing {
    fn new(path: &Path) -> Result<Writing> {
        let file = AtomicFile::create(path).map_err(|e| Error::io(path, e))?;
        let mut writing = Writing { file, path: path.into() };
        writing.write(MAGIC)?;
        Ok(writing)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))
    }

    fn element(&mut self, element: &Element) -> Result<()> {
        let byte = |n: usize| {
            u8::try_from(n).map_err(|_| Error::argument("cache", "element", "at most 255", n))
        };
        self.write(&[byte(element.len())?])?;
        for tensor in element {
            let kind = u8::from(tensor.dtype() == DType::I32);
            self.write(&[kind, byte(tensor.dims().len())?])?;
            for dim in tensor.dims() {
                self.write(&(*dim as u64).to_le_bytes())?;
            }
            let bytes: Vec<u8> = match tensor.data() {
                Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            self.write(&bytes)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.file.finish().map_err(|e| Error::io(&self.path, e))
    }
}

struct Reading {
    file: BufReader<File>,
    path: PathBuf,
    /// Bytes not yet read; nothing in the file can be longer.
    left: u64,
}

impl Reading {
    fn new(path: &Path) -> Result<Reading> {
        let file = open_file(path, "a cache file")?;
        let left = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let mut reading = Reading { file: BufReader::new(file), path: path.into(), left };
        if reading.bytes(8)? != MAGIC {
            return Err(Error::file(path, "a cache file of this version", "another file"));
        }
        Ok(reading)
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>> {
        let cut = || Error::file(&self.path, "whole elements", "a truncated or damaged file");
        self.left = self.left.checked_sub(n).ok_or_else(cut)?;
        let mut bytes = vec![];
        let got = (&mut self.file).take(n).read_to_end(&mut bytes);
        if got.map_err(|e| Error::io(&self.path, e))? as u64 != n {
            return Err(cut());
        }
        Ok(bytes)
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let head = self.bytes(2)?;
        let dims = self.bytes(8 * u64::from(head[1]))?;
        let dims: Option<Vec<usize>> = dims
            .chunks_exact(8)
            .map(|b| usize::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok())
            .collect();
        let damaged = || Error::file(&self.path, "tensors", "a damaged header");
        let dims = dims.ok_or_else(damaged)?;
        let size = dims.iter().try_fold(4u64, |n, dim| n.checked_mul(*dim as u64));
        let size = size.ok_or_else(damaged)?;
        let bytes = self.bytes(size)?;
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let data: Data = match head[0] {
            0 => words.map(f32::from_le_bytes).collect::<Vec<_>>().into(),
            _ => words.map(i32::from_le_bytes).collect::<Vec<_>>().into(),
        };
        Tensor::new(dims, data).map_err(|_| Error::file(&self.path, "tensors", "a bad shape"))
    }
}

impl Elements for Reading {
    fn next(&mut self) -> Result<Option<Element>> {
        if self.left == 0 {
            return Ok(None);
        }
        let tensors = self.bytes(1)?[0];
        (0..tensors).map(|_| self.tensor()).collect::<Result<_>>().map(Some)
    }
}
