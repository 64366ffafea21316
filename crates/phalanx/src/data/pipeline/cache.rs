//! Caches: elements of the first pass are stored for later passes.

use super::epoch_context::{EpochContext, Item};
use super::worker_cache_file::{WorkerCacheFile, decode, encode};
use super::{Cardinality, Elements, PipelineStep};
use crate::data::LocalShard;
use crate::error::{Error, Result};
use crate::saving::{AtomicFile, open_file};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type ShardStore = (Option<Arc<LocalShard>>, Arc<Mutex<Stored>>);

/// Elements by index, in memory or in a file per worker. A pass produces the elements that are missing,
/// exactly as the first pass would have.
pub(super) struct Cache {
    inner: Arc<dyn PipelineStep>,
    /// Prefix of the workers' file names.
    file: Option<PathBuf>,
    /// Whether elements depend on the pass that produced them.
    shuffled: bool,
    /// Stored elements per shard. Threads may act as workers.
    stored: Mutex<Vec<ShardStore>>,
}

/// The elements that one worker has stored.
struct Stored {
    /// Seed and path of the pass that produced them, if these matter.
    of: Option<(u64, u32)>,
    /// Number of elements, once a pass has reached its end.
    end: Option<usize>,
    store: Store,
}

enum Store {
    Memory(Vec<Option<Item>>),
    File(WorkerCacheFile),
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
    pub fn in_memory(inner: Arc<dyn PipelineStep>, shuffled: bool) -> Cache {
        Cache { inner, file: None, shuffled, stored: Mutex::default() }
    }

    /// The elements stored by this worker. Discards those of an unfinished pass with another seed.
    fn stored(&self, context: &EpochContext) -> Result<Arc<Mutex<Stored>>> {
        let of = self.shuffled.then_some((context.seed, context.path));
        let mut all = lock(&self.stored);
        let usable = |stored: &Stored| stored.of == of || stored.end.is_some();
        if let Some((_, stored)) = all.iter().find(|(shard, _)| *shard == context.shard)
            && usable(&lock(stored))
        {
            return Ok(stored.clone());
        }
        all.retain(|(shard, _)| *shard != context.shard);
        let store = match (&self.file, &context.shard) {
            (Some(path), Some(shard)) => {
                Store::File(WorkerCacheFile::open(path, shard, of, self.inner.cardinality())?)
            }
            _ => Store::Memory(vec![]),
        };
        let stored = Arc::new(Mutex::new(Stored { of, end: None, store }));
        all.push((context.shard.clone(), stored.clone()));
        Ok(stored)
    }
}

impl PipelineStep for Cache {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let stored = self.stored(&context)?;
        let guard = lock(&stored);
        let whole =
            guard.end.filter(|end| (0..*end).all(|at| !context.wants(at) || guard.store.has(at)));
        let inner = match whole {
            Some(_) => None,
            None => {
                let (seed, path) = guard.of.unwrap_or((context.seed, context.path));
                let known = match self.inner.cardinality() {
                    Cardinality::Known(n) => n,
                    Cardinality::Unknown | Cardinality::Infinite => guard.end.unwrap_or(0),
                };
                let there: Vec<bool> = (0..known).map(|at| guard.store.has(at)).collect();
                let wanted = context.wanted.clone();
                // Cached elements must not depend on where a run was resumed.
                let first = EpochContext { seed, path, epoch: 0, ..context.clone() };
                let missing = move |at: usize| {
                    !there.get(at).copied().unwrap_or(false)
                        && wanted.as_ref().is_none_or(|wanted| wanted(at))
                };
                Some(self.inner.open(first.with_wanted(missing))?)
            }
        };
        drop(guard);
        Ok(Box::new(CacheElements { inner, stored, context, at: 0 }))
    }
}

struct CacheElements {
    /// `None` if all needed elements are cached.
    inner: Option<Box<dyn Elements>>,
    stored: Arc<Mutex<Stored>>,
    context: EpochContext,
    at: usize,
}

impl Elements for CacheElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let made = match &mut self.inner {
            None => Some(Item::Skipped),
            Some(inner) => inner.next()?,
        };
        let (at, mut stored) = (self.at, lock(&self.stored));
        let Some(made) =
            made.filter(|_| self.inner.is_some() || stored.end.is_none_or(|end| at < end))
        else {
            stored.end.get_or_insert(at);
            return Ok(None);
        };
        self.at += 1;
        if let Item::Skipped = made {
            return match self.context.wants(at) {
                true => Ok(Some(stored.store.get(at)?.unwrap_or(Item::Skipped))),
                false => Ok(Some(Item::Skipped)),
            };
        }
        if !stored.store.has(at) {
            stored.store.put(at, &made)?;
        }
        Ok(Some(made))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        if self.inner.is_none() {
            self.at = self.at.saturating_add(elements);
            return Ok(());
        }
        // Skipped elements are still produced, because the next pass needs them.
        for _ in 0..elements {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// First bytes of a cache file. Then, little-endian: for each element its number of tensors (u8), for
/// each tensor its type (u8: 0 f32, 1 i32), rank (u8), dimensions (u64) and elements.
const MAGIC: &[u8; 8] = b"PHXCACH1";

/// A cache file of a single process. If it does not exist, several workers have a file each.
pub(super) struct FileCache {
    path: PathBuf,
    worker_caches: Cache,
}

impl FileCache {
    pub fn new(inner: Arc<dyn PipelineStep>, path: PathBuf, shuffled: bool) -> FileCache {
        let file = Some(path.clone());
        FileCache { path, worker_caches: Cache { inner, file, shuffled, stored: Mutex::default() } }
    }
}

impl PipelineStep for FileCache {
    fn cardinality(&self) -> Cardinality {
        self.worker_caches.cardinality()
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        if std::fs::exists(&self.path).map_err(|e| Error::io(&self.path, e))? {
            return Ok(Box::new(Reading::new(&self.path, context)?));
        }
        if context.shard.is_some() {
            return self.worker_caches.open(context);
        }
        let inner = self.worker_caches.inner.open(EpochContext { epoch: 0, ..context })?;
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
            Some(Item::Full(element)) => {
                if let Some(writer) = &mut self.writer {
                    writer.write(&encode(element)?)?;
                }
            }
            // Only a process that needs all elements writes a file.
            Some(Item::Partial(_) | Item::Skipped) => self.writer = None,
            None => {
                if let Some(writer) = self.writer.take() {
                    writer.finish()?;
                }
            }
        }
        Ok(next)
    }
}

/// A cache file being written. A pass that does not reach its end leaves none.
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
    /// Bytes left in the file; no length field may exceed it.
    left: u64,
    context: EpochContext,
    at: usize,
}

impl Reading {
    fn new(path: &Path, context: EpochContext) -> Result<Reading> {
        let mut file = open_file(path, "a cache file")?;
        let left = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let truncated = || Error::file(path, "whole elements", "a truncated or damaged file");
        let mut magic = [0; MAGIC.len()];
        let left = left.checked_sub(magic.len() as u64).ok_or_else(truncated)?;
        file.read_exact(&mut magic).map_err(|e| Error::io(path, e))?;
        if magic != *MAGIC {
            return Err(Error::file(path, "a cache file of this version", "another file"));
        }
        Ok(Reading { file: BufReader::new(file), path: path.into(), left, context, at: 0 })
    }
}

impl Elements for Reading {
    fn next(&mut self) -> Result<Option<Item>> {
        if self.left == 0 {
            return Ok(None);
        }
        let wanted = self.context.wants(self.at);
        self.at += 1;
        let element = decode(&mut self.file, &mut self.left, &self.path, wanted)?;
        Ok(Some(element.map_or(Item::Skipped, Item::Full)))
    }
}
