//! Images of a folder that are read when they are first needed, and kept as far as there is room.

use super::ImageFolder;
use crate::error::Result;
use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The images of a folder as bytes, by their numbers. Each file is decoded when somebody first asks for
/// it, and kept up to so many bytes in all; what has no room is decoded every time.
///
/// ```no_run
/// # use phalanx::data::ImageFolder;
/// let images = ImageFolder::open("flowers")?.target_size(64, 64)?.keep(1 << 30);
/// println!("{} bytes", images.bytes(7)?.len());
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct KeptImages {
    folder: ImageFolder,
    kept: Vec<OnceLock<Box<[u8]>>>,
    /// Bytes that there is room for.
    room: AtomicUsize,
    decoded: AtomicUsize,
}

impl KeptImages {
    pub(super) fn new(folder: ImageFolder, room: usize) -> KeptImages {
        let kept = (0..folder.len()).map(|_| OnceLock::new()).collect();
        KeptImages { folder, kept, room: room.into(), decoded: 0.into() }
    }

    /// The folder they are from.
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// The pixels of an image, row by row, channels last.
    ///
    /// # Errors
    /// A file that cannot be read or is no image.
    ///
    /// # Panics
    /// When there is no such image.
    pub fn bytes(&self, image: usize) -> Result<Cow<'_, [u8]>> {
        if let Some(bytes) = self.kept[image].get() {
            return Ok(Cow::Borrowed(bytes));
        }
        let bytes = self.folder.decode(image)?;
        self.decoded.fetch_add(1, Ordering::Relaxed);
        let spend = |room: usize| room.checked_sub(bytes.len());
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return Ok(Cow::Owned(bytes));
        }
        Ok(Cow::Borrowed(self.kept[image].get_or_init(|| bytes.into())))
    }

    /// How often a file was decoded so far.
    pub fn decoded(&self) -> usize {
        self.decoded.load(Ordering::Relaxed)
    }
}

impl ImageFolder {
    /// The images, read when they are needed and kept as far as they fit into so many bytes.
    pub fn keep(self, bytes: usize) -> KeptImages {
        KeptImages::new(self, bytes)
    }
}
