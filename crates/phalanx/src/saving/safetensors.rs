//! Weights in `.safetensors` files: tensors named `layer/weight`, and metadata that identify the writer.

use super::run_checkpoints::{CHECKSUM, RUN};
use super::{Entry, MAX_ARRAYS, Weights, open_file};
use crate::error::{Error, Result};
use crate::model::is_weight;
use phalanx_graph::{Data, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The expected format, for error messages.
const EXPECTED: &str = "a .safetensors file";
/// Version of the metadata: names, layouts, keys.
const VERSION: &str = "1";
/// Maximum length of a header in bytes. That of a model with a million weights is shorter.
const MAX_HEADER: u64 = 100_000_000;
/// Metadata key of the model's structure.
pub(super) const CONFIG: &str = "config";
/// Bytes before the header.
const PREFIX: u64 = 8;

/// Writes weights and additional metadata. Tensors are sorted by name, so that equal weights make equal
/// files.
pub(super) fn write(
    out: &mut dyn Write,
    model: &str,
    notes: BTreeMap<String, String>,
    weights: &Weights,
) -> io::Result<()> {
    let mut order: Vec<&(String, Tensor)> = weights.iter().collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    let mut infos = Vec::with_capacity(order.len());
    let mut offset = 0;
    for (name, tensor) in &order {
        let dtype = match tensor.data() {
            Data::F32(_) => Dtype::F32,
            Data::I32(_) => Dtype::I32,
        };
        let end = offset + tensor.data().len() * 4;
        let info = TensorInfo { dtype, shape: tensor.dims().to_vec(), data_offsets: (offset, end) };
        infos.push((name.clone(), info));
        offset = end;
    }
    let tensors = Metadata::new(None, infos).map_err(io::Error::other)?;
    let header = header(model, notes, &tensors)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, tensor) in order {
        match tensor.data() {
            Data::F32(values) => write_values(out, values, |v| v.to_le_bytes())?,
            Data::I32(values) => write_values(out, values, |v| v.to_le_bytes())?,
        }
    }
    Ok(())
}

/// All metadata of a file: the given entries, and those common to all files.
pub(super) fn metadata(
    model: &str,
    mut notes: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    for (key, value) in [
        ("format", "phalanx"),
        ("format_version", VERSION),
        ("model", model),
        ("phalanx_version", env!("CARGO_PKG_VERSION")),
    ] {
        notes.insert(key.into(), value.into());
    }
    notes
}

/// The header as the crate writes it, with sorted metadata keys.
fn header(model: &str, notes: BTreeMap<String, String>, tensors: &Metadata) -> io::Result<Vec<u8>> {
    let metadata = serde_json::to_string(&metadata(model, notes))?;
    let tensors = serde_json::to_string(tensors)?;
    let rest = tensors.strip_prefix('{').unwrap_or(&tensors);
    let comma = if rest == "}" { "" } else { "," };
    let mut header = format!("{{\"__metadata__\":{metadata}{comma}{rest}").into_bytes();
    header.resize(header.len().next_multiple_of(PREFIX as usize), b' ');
    Ok(header)
}

fn write_values<T: Copy>(
    out: &mut dyn Write,
    values: &[T],
    bytes: fn(T) -> [u8; 4],
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(4096 * 4);
    for chunk in values.chunks(4096) {
        buffer.clear();
        buffer.extend(chunk.iter().flat_map(|v| bytes(*v)));
        out.write_all(&buffer)?;
    }
    Ok(())
}

/// An open file whose header has been validated against the file size.
#[derive(Debug)]
pub(super) struct SafeTensors {
    path: PathBuf,
    file: BufReader<File>,
    /// Offset of the first tensor.
    start: u64,
    header: Metadata,
}

/// Opens a file. Allocations never exceed what the file size justifies.
pub(super) fn open(path: &Path) -> Result<SafeTensors> {
    let io = |source| Error::io(path, source);
    let wrong = |received: String| Error::file(path, EXPECTED, received);
    let mut file = BufReader::new(open_file(path, EXPECTED)?);
    let size = file.get_ref().metadata().map_err(io)?.len();
    let mut prefix = [0; PREFIX as usize];
    if size < PREFIX {
        return Err(wrong(format!("{size} bytes")));
    }
    file.read_exact(&mut prefix).map_err(io)?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER || length > size - PREFIX {
        return Err(wrong(format!("a header of {length} bytes in a file of {size}")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(io)?;
    let broken = |error| wrong(format!("a header that does not parse: {error}"));
    let Keys(count) = serde_json::from_slice(&text).map_err(broken)?;
    if count > MAX_ARRAYS {
        return Err(Error::file(path, format!("at most {MAX_ARRAYS} tensors"), count));
    }
    let header: Metadata = serde_json::from_slice(&text).map_err(broken)?;
    let (expected, received) = (header.data_len() as u64, size - PREFIX - length);
    if expected != received {
        let received = format!("{received} bytes");
        return Err(Error::file(path, format!("{expected} bytes of tensors"), received));
    }
    Ok(SafeTensors { path: path.into(), file, start: PREFIX + length, header })
}

/// The number of keys of an object, counted before values are built.
struct Keys(usize);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Keys, D::Error> {
        from.deserialize_map(Counter)
    }
}

struct Counter;

impl<'de> Visitor<'de> for Counter {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Keys, A::Error> {
        let mut count = 0;
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Keys(count))
    }
}

impl SafeTensors {
    /// Rejects files of newer versions.
    pub(super) fn check_version(&self) -> Result<()> {
        match self.note("format_version").filter(|v| v != VERSION) {
            None => Ok(()),
            Some(version) => {
                let expected = format!("format version {VERSION}");
                Err(Error::file(&self.path, expected, format!("version {version}")))
            }
        }
    }

    /// The metadata, sorted by key.
    pub(super) fn metadata(&self) -> BTreeMap<String, String> {
        self.header.metadata().clone().unwrap_or_default().into_iter().collect()
    }

    /// The metadata set by the user, without the entries common to all files.
    pub(super) fn notes(&self) -> BTreeMap<String, String> {
        let mut notes = self.metadata();
        metadata("", BTreeMap::new()).keys().for_each(|key| drop(notes.remove(key)));
        [CONFIG, RUN, CHECKSUM].iter().for_each(|key| drop(notes.remove(*key)));
        notes
    }

    /// The metadata entry of a key.
    pub(super) fn note(&self, key: &str) -> Option<String> {
        self.header.metadata().as_ref()?.get(key).cloned()
    }

    /// The structure stored in the metadata, if any.
    pub(super) fn config(&self) -> Result<Option<Value>> {
        let parse = |text: String| super::json::parse(text.as_bytes());
        let wrong = |error| Error::file(&self.path, "JSON in the metadata's config", error);
        self.note(CONFIG).map(parse).transpose().map_err(wrong)
    }

    /// The names and dimensions of the f32 tensors.
    pub(super) fn floats(&self) -> Vec<(String, Vec<usize>)> {
        let float = |(name, info): (String, &TensorInfo)| {
            (info.dtype == Dtype::F32).then(|| (name, info.shape.clone()))
        };
        self.header.tensors().into_iter().filter_map(float).collect()
    }

    /// The values of an f32 tensor.
    pub(super) fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let Some(info) = self.header.info(name).filter(|i| i.dtype == Dtype::F32) else {
            return Err(Error::file(&self.path, format!("f32 weight '{name}'"), "none"));
        };
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        let position = SeekFrom::Start(self.start + start as u64);
        let read = self.file.seek(position).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|source| Error::io(&self.path, source))?;
        let number = |b: &[u8; 4]| f32::from_le_bytes(*b);
        Ok(bytes.as_chunks().0.iter().map(number).collect())
    }
}

impl SafeTensors {
    /// The weights, by name.
    pub(super) fn entries(&self) -> HashMap<String, Entry> {
        let entry = |info: &TensorInfo| Entry {
            dtype: info.dtype.to_string().to_lowercase(),
            dims: info.shape.clone(),
        };
        // The state of a run holds more than weights.
        let run = self.note(RUN).is_some();
        let tensors = self.header.tensors().into_iter();
        let weights = tensors.filter(|(name, _)| !run || is_weight(name));
        weights.map(|(name, info)| (name, entry(info))).collect()
    }
}
