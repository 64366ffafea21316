//! Directories of images with one sub-directory per class.

use super::flow::Images;
use super::image_file::{self, MAX_SIDE};
use super::{Digest, ImageDataGenerator, ImageFlow, LabelBinarizer, Pixels, Samples, Subset};
use crate::error::{Error, Result};
use crate::memory;
use phalanx_graph::Tensor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of files in a directory of images.
const MAX_FILES: usize = 10_000_000;
/// Maximum nesting of directories within a class.
const MAX_DEPTH: usize = 16;

/// Number of color channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorMode {
    /// One channel.
    Grayscale,
    /// Red, green and blue.
    #[default]
    Rgb,
}

impl ColorMode {
    pub(super) fn channels(self) -> usize {
        match self {
            ColorMode::Grayscale => 1,
            ColorMode::Rgb => 3,
        }
    }
}

/// JPEG and PNG files in one directory per class, read on demand.
///
/// Classes are numbered in the order of their names. Images are rotated according to their EXIF
/// orientation, resized bilinearly, and have values from 0 to 255.
///
/// ```no_run
/// # use phalanx::data::ImageFolder;
/// let folder = ImageFolder::open("flowers")?.target_size(64, 64)?;
/// println!("{} images of {:?}", folder.len(), folder.class_names());
/// let (x, y) = folder.load()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    directory: PathBuf,
    classes: Vec<String>,
    files: Vec<(PathBuf, u32)>,
    height: u32,
    width: u32,
    color_mode: ColorMode,
}

impl ImageFolder {
    /// Lists classes and their files in the order of their names.
    ///
    /// # Errors
    /// A directory without classes or images, or a build without the feature `images`.
    pub fn open(directory: impl Into<PathBuf>) -> Result<ImageFolder> {
        image_file::check_support()?;
        let directory = directory.into();
        let mut classes = vec![];
        for path in entries(&directory)? {
            // Skipping an unreadable class would renumber the classes after it.
            if std::fs::metadata(&path).map_err(|e| Error::io(&path, e))?.is_dir() {
                classes.push(path);
            }
        }
        if classes.is_empty() {
            let expected = "a directory for each class of images";
            return Err(Error::file(&directory, expected, "no directories"));
        }
        let mut files = vec![];
        for (class, path) in classes.iter().enumerate() {
            collect(path, class as u32, 0, &mut files)?;
        }
        if files.is_empty() {
            let expected = "JPEG or PNG files in its class directories";
            return Err(Error::file(&directory, expected, "none"));
        }
        let name =
            |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let classes = classes.iter().map(name).collect();
        let (height, width, color_mode) = (256, 256, ColorMode::Rgb);
        Ok(ImageFolder { directory, classes, files, height, width, color_mode })
    }

    /// Sets the size to which images are resized; the default is 256 by 256.
    pub fn target_size(mut self, height: usize, width: usize) -> Result<ImageFolder> {
        let side = |n: usize| u32::try_from(n).ok().filter(|n| (1..=MAX_SIDE).contains(n));
        match (side(height), side(width)) {
            (Some(height), Some(width)) => (self.height, self.width) = (height, width),
            _ => {
                let expected = format!("sides of 1 to {MAX_SIDE}");
                let received = format!("{height}x{width}");
                return Err(Error::argument("ImageFolder", "target_size", expected, received));
            }
        }
        Ok(self)
    }

    /// Sets color or grayscale.
    pub fn color_mode(mut self, color_mode: ColorMode) -> ImageFolder {
        self.color_mode = color_mode;
        self
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are no images. Always false, because `open` requires at least one.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The class names, in the order of their indices.
    pub fn class_names(&self) -> &[String] {
        &self.classes
    }

    /// The class index of every image, `[n]`.
    pub fn labels(&self) -> Tensor {
        let labels: Vec<i32> = self.files.iter().map(|(_, class)| *class as i32).collect();
        Tensor::new([labels.len()], labels).expect("one label per file")
    }

    /// Indices of the images of a subset. The first `validation_split` of each class is the validation
    /// subset.
    pub fn rows(&self, subset: Subset, validation_split: f64) -> Vec<u32> {
        let mut rows = vec![];
        let mut start = 0;
        while start < self.files.len() {
            let class = self.files[start].1;
            let n = self.files[start..].iter().take_while(|(_, c)| *c == class).count();
            let validation = (n as f64 * validation_split.clamp(0.0, 1.0)) as usize;
            let part = match subset {
                Subset::Validation => start..start + validation,
                Subset::Training => start + validation..start + n,
            };
            rows.extend(part.map(|row| row as u32));
            start += n;
        }
        rows
    }

    /// Loads all images as bytes with values from 0 to 1, and their labels. Decodes on all cores.
    pub fn load(&self) -> Result<(Samples, Tensor)> {
        let size = self.image_bytes();
        let total = size.checked_mul(self.len());
        let Some((total, mut bytes)) = total.and_then(|n| Some((n, memory::reserve(n)?))) else {
            let received = format!("{} images of {size} bytes", self.len());
            return Err(Error::file(&self.directory, "images that fit into memory", received));
        };
        bytes.resize(total, 0u8);
        let threads = crate::usable_cores().clamp(1, self.len());
        let chunk_len = self.len().div_ceil(threads);
        // Report the first image that fails, regardless of thread timing.
        let failed = AtomicUsize::new(usize::MAX);
        let decode = |first: usize, part: &mut [u8]| -> Result<()> {
            for (i, to) in part.chunks_exact_mut(size).enumerate() {
                if failed.load(Ordering::Relaxed) < first + i {
                    break;
                }
                let image = self.decode(first + i).inspect_err(|_| {
                    failed.fetch_min(first + i, Ordering::Relaxed);
                })?;
                to.copy_from_slice(&image);
            }
            Ok(())
        };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let parts = bytes.chunks_mut(chunk_len * size).enumerate();
            let threads: Vec<_> =
                parts.map(|(t, part)| scope.spawn(move || decode(t * chunk_len, part))).collect();
            let panicked = || Error::file(&self.directory, "readable images", "a decoder's panic");
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        results.into_iter().collect::<Result<()>>()?;
        let pixels = Pixels::new(self.dims(), bytes, 255.0).expect("every image has its bytes");
        Ok((pixels.into(), self.labels()))
    }

    fn channels(&self) -> usize {
        self.color_mode.channels()
    }

    fn image_bytes(&self) -> usize {
        self.height as usize * self.width as usize * self.channels()
    }

    pub(super) fn decode(&self, row: usize) -> Result<Vec<u8>> {
        let size = Some((self.height, self.width));
        Ok(image_file::decode(&self.files[row].0, size, self.color_mode)?.bytes)
    }
}

impl Images for ImageFolder {
    fn dims(&self) -> Vec<usize> {
        vec![self.len(), self.height as usize, self.width as usize, self.channels()]
    }

    fn read(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let image = self.decode(row)?;
        to.iter_mut().zip(image).for_each(|(to, byte)| *to = f32::from(byte));
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        for (path, class) in &self.files {
            let name = path.strip_prefix(&self.directory).unwrap_or(path);
            digest.bytes(name.as_os_str().as_encoded_bytes());
            digest.word(u64::from(*class));
        }
        digest.end()
    }
}

/// The entries of a directory sorted by name, without hidden ones.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e| Error::io(directory, e);
    let mut paths = vec![];
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
        if paths.len() > MAX_FILES {
            return Err(Error::file(directory, format!("at most {MAX_FILES} files"), "more"));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Adds the images of a class, including those in nested directories. Linked directories are not
/// followed, so there are no loops.
fn collect(at: &Path, class: u32, depth: usize, files: &mut Vec<(PathBuf, u32)>) -> Result<()> {
    for path in entries(at)? {
        let linked = std::fs::symlink_metadata(&path).map_err(|e| Error::io(&path, e))?;
        if linked.is_dir() {
            if depth >= MAX_DEPTH {
                let expected = format!("at most {MAX_DEPTH} directories within a class");
                return Err(Error::file(&path, expected, "one more"));
            }
            collect(&path, class, depth + 1, files)?;
        } else if is_image(&path) {
            files.push((path, class));
            if files.len() > MAX_FILES {
                return Err(Error::file(at, format!("at most {MAX_FILES} files"), "more"));
            }
        }
    }
    Ok(())
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    extension.is_some_and(|e| ["jpg", "jpeg", "png"].contains(&&*e))
}

/// The targets that a flow yields for the images of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassMode {
    /// One-hot rows.
    #[default]
    Categorical,
    /// Two classes as a column of 0 and 1.
    Binary,
    /// Class indices.
    Sparse,
    /// No targets.
    None,
}

/// The arguments of [`ImageDataGenerator::flow_from_directory`], with Keras' defaults.
#[derive(Clone, Debug)]
pub struct FromDirectory {
    /// Height and width to which images are resized.
    pub target_size: (usize, usize),
    /// Color or grayscale.
    pub color_mode: ColorMode,
    /// Form of the targets.
    pub class_mode: ClassMode,
    /// Batch size.
    pub batch_size: usize,
    /// Whether to shuffle in every epoch.
    pub shuffle: bool,
    /// The subset of the generator's `validation_split` to show.
    pub subset: Option<Subset>,
}

impl Default for FromDirectory {
    fn default() -> FromDirectory {
        FromDirectory {
            target_size: (256, 256),
            color_mode: ColorMode::Rgb,
            class_mode: ClassMode::Categorical,
            batch_size: 32,
            shuffle: true,
            subset: None,
        }
    }
}

impl ImageDataGenerator {
    /// Batches of images in a directory with one sub-directory per class. The first `validation_split`
    /// of each class is the validation subset.
    pub fn flow_from_directory(
        &self,
        directory: impl Into<PathBuf>,
        arguments: FromDirectory,
    ) -> Result<ImageFlow> {
        let (height, width) = arguments.target_size;
        let folder = ImageFolder::open(directory)?
            .target_size(height, width)?
            .color_mode(arguments.color_mode);
        let classes = folder.class_names().len();
        let numbers = || folder.files.iter().map(|(_, class)| *class);
        let targets = match arguments.class_mode {
            ClassMode::Categorical => {
                vec![super::to_categorical(&folder.labels(), Some(classes))?]
            }
            ClassMode::Binary if classes != 2 => {
                let owner = "flow_from_directory";
                return Err(Error::argument(owner, "class_mode", "two classes", classes));
            }
            ClassMode::Binary => vec![LabelBinarizer::fit([0, 1]).transform(numbers())?],
            ClassMode::Sparse => vec![folder.labels()],
            ClassMode::None => vec![],
        };
        let rows = arguments.subset.map(|subset| folder.rows(subset, self.validation_split));
        let flow = self.flow_images(Arc::new(folder), targets, arguments.batch_size)?;
        let flow = flow.shuffle(arguments.shuffle).workers(crate::usable_cores());
        match rows {
            Some(rows) => flow.with_rows(rows),
            None => Ok(flow),
        }
    }
}

#[cfg(all(test, feature = "images"))]
#[path = "folder_tests.rs"]
mod tests;
