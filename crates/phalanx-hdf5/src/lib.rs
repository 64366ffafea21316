//! Reads and writes HDF5 files, as far as model files of Keras and h5py use the format. In safe Rust,
//! without the C library.
//!
//! A [`File`] is parsed from bytes; a [`GroupBuilder`] makes the bytes of a new one. The crate itself
//! opens nothing.
//!
//! ```
//! use phalanx_hdf5::{File, GroupBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("phalanx-hdf5-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! let path = directory.join("weights.h5");
//! let mut root = GroupBuilder::new();
//! root.dataset("layers/dense/kernel", &[2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! root.dataset("iterations", &[], vec![100i32]);
//! root.group("layers/dense").attribute("name", "dense");
//! std::fs::write(&path, root.to_bytes()?)?;
//!
//! let file = File::from_bytes(std::fs::read(&path)?)?;
//! let layer = file.root().group("layers/dense")?;
//! let kernel = layer.dataset("kernel")?;
//! assert_eq!(kernel.shape(), [2, 3]);
//! assert_eq!(kernel.element_type().to_string(), "f32");
//! assert_eq!(kernel.read_f32()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! assert_eq!(layer.attribute("name").map(|name| name.read_string()), Some(Ok("dense".into())));
//! assert_eq!(file.root().dataset("iterations")?.read_f64()?, [100.0]);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is read
//!
//! - Superblocks of versions 0 to 3 and object headers of both versions.
//! - Groups as symbol tables or as links, compact or dense.
//! - Datasets that are contiguous, compact, or chunked with a version 1 B-tree, with the filters
//!   shuffle, deflate and Fletcher-32 (whose checksums are skipped, not verified).
//! - Attributes of groups.
//! - Integers, IEEE floats of 16, 32 and 64 bits in either byte order, and strings. Other types are
//!   listed, but their elements are not read.
//!
//! Attributes of datasets, named types, the chunk indices of HDF5 1.10 and links to elsewhere are not
//! read. Links are never followed.
//!
//! # What is written
//!
//! What h5py writes by default: groups as symbol tables, contiguous datasets of `f32` and `i32`, and
//! string attributes of groups. The same content gives the same bytes.
//!
//! # Untrusted files
//!
//! A file may be damaged or malicious. Every address and size is checked against the file, cycles and
//! overlapping objects are rejected, and the number of objects ([`MAX_OBJECTS`]), the depth of groups and
//! the ratio of compression are limited. No file causes a panic.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attribute;
mod builder;
mod bytes;
mod chunks;
mod dataset;
mod dense;
mod error;
mod file;
mod group;
mod header;
mod heap;
mod types;
mod walk;
mod write;

pub use attribute::Attribute;
pub use builder::{AttributeValue, GroupBuilder, Values};
pub use dataset::Dataset;
pub use error::{Error, Result};
pub use file::File;
pub use group::{Group, Member};
pub use types::ElementType;
pub use walk::MAX_OBJECTS;

/// Compiles and runs the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
