//! Elements kept from the first pass for those that follow.

use super::part_file::{PartFile, decode, encode};
use super::pass::{Item, Pass};
use super::{Cardinality, Elements, Step};
use crate::data::LocalShard;
use crate::error::{Error, Result};
use crate::saving::{AtomicFile, open_file};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Keeper = (Option<Arc<LocalShard>>, Arc<Mutex<Kept>>);

/// Elements by their numbers, in memory or in a file of the worker's own. A pass makes those that are
/// missing, as the first pass would have made them.
pub(super) struct Cache {
    inner: Arc<dyn Step>,
    /// The name that files of workers begin with.
    file: Option<PathBuf>,
    /// Whether elements depend on the pass they were made in.
    shuffled: bool,
    /// What there is, for each share: threads may stand for workers.
    kept: Mutex<Vec<Keeper>>,
}

/// What one worker has.
struct Kept {
    /// The seed and the path of the pass that it is from, where they matter.
    of: Option<(u64, u32)>,
    /// How many elements there are, once a pass has come to its end.
    end: Option<usize>,
    store: Store,
}

enum Store {
    Memory(Vec<Option<Item>>),
    File(PartFile),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    fn has(&self, at: usize) -> bool {
        match self {
            Store::Memory(items) => items.get(at).is_some_and(Option::is_some),
            Store::File(file) => file.has(at),
        }
    }

    fn get(&mut self, at: usize) -> Result<Option<Item>> {
        match self {
            Store::Memory(items) => Ok(items.get(at).cloned().flatten()),
            Store::File(file) => file.get(at),
        }
    }

    fn put(&mut self, at: usize, item: &Item) -> Result<()> {
        match self {
            Store::Memory(items) => {
                if items.len() <= at {
                    items.resize(at + 1, None);
                }
                items[at] = Some(item.clone());
                Ok(())
            }
            Store::File(file) => file.put(at, item),
        }
    }
}

impl Cache {
    pub fn in_memory(inner: Arc<dyn Step>, shuffled: bool) -> Cache {
        Cache { inner, file: None, shuffled, kept: Mutex::default() }
    }

    /// What this worker has. An unfinished pass with another seed leaves nothing that could be used.
    fn kept(&self, pass: &Pass) -> Result<Arc<Mutex<Kept>>> {
        let of = self.shuffled.then_some((pass.seed, pass.path));
        let mut all = lock(&self.kept);
        let usable = |kept: &Kept| kept.of == of || kept.end.is_some();
        if let Some((_, kept)) = all.iter().find(|(share, _)| *share == pass.share)
            && usable(&lock(kept))
        {
            return Ok(kept.clone());
        }
        all.retain(|(share, _)| *share != pass.share);
        let store = match (&self.file, &pass.share) {
            (Some(path), Some(share)) => {
                Store::File(PartFile::open(path, share, of, self.inner.cardinality())?)
            }
            _ => Store::Memory(vec![]),
        };
        let kept = Arc::new(Mutex::new(Kept { of, end: None, store }));
        all.push((pass.share.clone(), kept.clone()));
        Ok(kept)
    }
}

impl Step for Cache {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>> {
        let kept = self.kept(&pass)?;
        let held = lock(&kept);
        let whole =
            held.end.filter(|end| (0..*end).all(|at| !pass.wants(at) || held.store.has(at)));
        let inner = match whole {
            Some(_) => None,
            None => {
                let (seed, path) = held.of.unwrap_or((pass.seed, pass.path));
                let known = match self.inner.cardinality() {
                    Cardinality::Known(n) => n,
                    Cardinality::Unknown | Cardinality::Infinite => held.end.unwrap_or(0),
                };
                let there: Vec<bool> = (0..known).map(|at| held.store.has(at)).collect();
                let wanted = pass.wanted.clone();
                // What is kept must not depend on where a run was taken up.
                let first = Pass { seed, path, epoch: 0, ..pass.clone() };
                let missing = move |at: usize| {
                    !there.get(at).copied().unwrap_or(false)
                        && wanted.as_ref().is_none_or(|wanted| wanted(at))
                };
                Some(self.inner.open(first.with_wanted(missing))?)
            }
        };
        drop(held);
        Ok(Box::new(CacheElements { inner, kept, pass, at: 0 }))
    }
}

struct CacheElements {
    /// Nothing where all that is needed is there.
    inner: Option<Box<dyn Elements>>,
    kept: Arc<Mutex<Kept>>,
    pass: Pass,
    at: usize,
}

impl Elements for CacheElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let made = match &mut self.inner {
            None => Some(Item::LeftOut),
            Some(inner) => inner.next()?,
        };
        let (at, mut kept) = (self.at, lock(&self.kept));
        let Some(made) =
            made.filter(|_| self.inner.is_some() || kept.end.is_none_or(|end| at < end))
        else {
            kept.end.get_or_insert(at);
            return Ok(None);
        };
        self.at += 1;
        if let Item::LeftOut = made {
            return match self.pass.wants(at) {
                true => Ok(Some(kept.store.get(at)?.unwrap_or(Item::LeftOut))),
                false => Ok(Some(Item::LeftOut)),
            };
        }
        if !kept.store.has(at) {
            kept.store.put(at, &made)?;
        }
        Ok(Some(made))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        if self.inner.is_none() {
            self.at = self.at.saturating_add(elements);
            return Ok(());
        }
        // What is passed over is made all the same: the next pass wants it.
        for _ in 0..elements {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// First bytes of a cache file. Then, little-endian: for each element its number of tensors
/// (u8), for each tensor its type (u8: 0 f32, 1 i32), rank (u8), dimensions (u64) and elements.
const MAGIC: &[u8; 8] = b"PHXCACH1";

/// A file of a single process; several workers have one each, unless it is there.
pub(super) struct InFile {
    path: PathBuf,
    parts: Cache,
}

impl InFile {
    pub fn new(inner: Arc<dyn Step>, path: PathBuf, shuffled: bool) -> InFile {
        let file = Some(path.clone());
        InFile { path, parts: Cache { inner, file, shuffled, kept: Mutex::default() } }
    }
}

impl Step for InFile {
    fn cardinality(&self) -> Cardinality {
        self.parts.cardinality()
    }

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>> {
        if std::fs::exists(&self.path).map_err(|e| Error::io(&self.path, e))? {
            return Ok(Box::new(Reading::new(&self.path, pass)?));
        }
        if pass.share.is_some() {
            return self.parts.open(pass);
        }
        let inner = self.parts.inner.open(Pass { epoch: 0, ..pass })?;
        let writer = Writing::new(&self.path)?;
        Ok(Box::new(Recording { inner, writer: Some(writer) }))
    }
}

struct Recording {
    inner: Box<dyn Elements>,
    writer: Option<Writing>,
}

impl Elements for Recording {
    fn next(&mut self) -> Result<Option<Item>> {
        let next = self.inner.next()?;
        match &next {
            Some(Item::Made(element)) => {
                if let Some(writer) = &mut self.writer {
                    writer.write(&encode(element)?)?;
                }
            }
            // A file is written by a process that needs everything.
            Some(Item::Part(_) | Item::LeftOut) => self.writer = None,
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

    fn finish(self) -> Result<()> {
        self.file.finish().map_err(|e| Error::io(&self.path, e))
    }
}

struct Reading {
    file: BufReader<File>,
    path: PathBuf,
    /// Bytes not yet read; nothing in the file can be longer.
    left: u64,
    pass: Pass,
    at: usize,
}

impl Reading {
    fn new(path: &Path, pass: Pass) -> Result<Reading> {
        let mut file = open_file(path, "a cache file")?;
        let left = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let cut = || Error::file(path, "whole elements", "a truncated or damaged file");
        let mut magic = [0; MAGIC.len()];
        let left = left.checked_sub(magic.len() as u64).ok_or_else(cut)?;
        file.read_exact(&mut magic).map_err(|e| Error::io(path, e))?;
        if magic != *MAGIC {
            return Err(Error::file(path, "a cache file of this version", "another file"));
        }
        Ok(Reading { file: BufReader::new(file), path: path.into(), left, pass, at: 0 })
    }
}

impl Elements for Reading {
    fn next(&mut self) -> Result<Option<Item>> {
        if self.left == 0 {
            return Ok(None);
        }
        let wanted = self.pass.wants(self.at);
        self.at += 1;
        let element = decode(&mut self.file, &mut self.left, &self.path, wanted)?;
        Ok(Some(element.map_or(Item::LeftOut, Item::Made)))
    }
}
