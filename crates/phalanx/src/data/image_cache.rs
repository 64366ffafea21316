//! Images of a folder, decoded on first use and cached up to a memory budget.

use super::ImageFolder;
use crate::error::Result;
use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The images of a folder as bytes, by index. Each file is decoded on first use and cached until the
/// budget is exhausted. Images that are not cached are decoded every time.
///
/// ```no_run
/// # use phalanx::data::ImageFolder;
/// let images = ImageFolder::open("flowers")?.target_size(64, 64)?.cache(1 << 30);
/// println!("{} bytes", images.bytes(7)?.len());
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct ImageCache {
    folder: ImageFolder,
    cached: Vec<OnceLock<Box<[u8]>>>,
    /// Remaining budget in bytes.
    budget: AtomicUsize,
    decoded: AtomicUsize,
}

impl ImageCache {
    pub(super) fn new(folder: ImageFolder, budget: usize) -> ImageCache {
        let cached = (0..folder.len()).map(|_| OnceLock::new()).collect();
        ImageCache { folder, cached, budget: budget.into(), decoded: 0.into() }
    }

    /// The folder of the images.
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// The pixels of an image, row by row, channels last.
    ///
    /// # Errors
    /// A file that cannot be read or is not an image.
    ///
    /// # Panics
    /// If `image` is out of bounds.
    pub fn bytes(&self, image: usize) -> Result<Cow<'_, [u8]>> {
        if let Some(bytes) = self.cached[image].get() {
            return Ok(Cow::Borrowed(bytes));
        }
        let bytes = self.folder.decode(image)?;
        self.decoded.fetch_add(1, Ordering::Relaxed);
        let spend = |budget: usize| budget.checked_sub(bytes.len());
        if self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return Ok(Cow::Owned(bytes));
        }
        Ok(Cow::Borrowed(self.cached[image].get_or_init(|| bytes.into())))
    }

    /// Number of files decoded so far.
    pub fn decoded(&self) -> usize {
        self.decoded.load(Ordering::Relaxed)
    }
}

impl ImageFolder {
    /// Decodes images on first use and caches up to `bytes` bytes of them.
    pub fn cache(self, bytes: usize) -> ImageCache {
        ImageCache::new(self, bytes)
    }
}
