//! Samples from the user's own files: `.npz` and `.csv`.

use super::npy;
use crate::data::{LabelBinarizer, Samples};
use crate::error::{Error, Result};
use crate::memory;
use crate::saving::open_file;
use phalanx_graph::text::brief;
use phalanx_graph::{Data, Tensor};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// What files are, for who gets another.
const NPZ: &str = "an npz (zip) file";
const TABLE: &str = "a table";
/// A zip's deflate packs at most about 1,032 bytes into one.
const MOST_INFLATED: u64 = 1_100;
/// Columns and rows a table may have.
const MOST_COLUMNS: usize = 1_000_000;
const MOST_VALUES: usize = 1 << 31;
/// Bytes of a label: they name classes, which are printed and kept with a model.
const MOST_LABEL: usize = 1000;

/// Inputs and labels from files of the user's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Own {
    /// What the model learns from.
    pub train: (Samples, Tensor),
    /// What it has never seen, where the file has such.
    pub test: Option<(Samples, Tensor)>,
    /// Names of the classes, where labels were words.
    pub classes: Vec<String>,
}

/// Arrays from an `.npz`: `x` and `y`, or `x_train`, `y_train` and, if there, `x_test`, `y_test` as
/// in Keras' `mnist.npz`. Unsigned bytes count from 0 to 1 as inputs (see [`Samples::raw`]);
/// integer labels become `i32`.
pub fn load_npz(path: &Path) -> Result<Own> {
    let file = open_file(path, NPZ)?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?.len();
    if size == 0 {
        return Err(Error::file(path, NPZ, "an empty file"));
    }
    let damaged = |e: zip::result::ZipError| Error::file(path, NPZ, e);
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let names: Vec<String> = archive.file_names().map(String::from).collect();
    let has = |name: &str| names.iter().any(|n| n == &format!("{name}.npy"));
    let mut part = |x: &str, y: &str| -> Result<(Samples, Tensor)> {
        let mut array = |name: &str| {
            let mut entry = archive.by_name(&format!("{name}.npy")).map_err(damaged)?;
            let most = entry.compressed_size().min(size).saturating_mul(MOST_INFLATED);
            let most = most.min(entry.size());
            let named = PathBuf::from(format!("{}:{name}", path.display()));
            npy::parse(&named, &mut entry, most)
        };
        let (inputs, labels) = (unit(array(x)?), whole(&array(y)?));
        let rows = inputs.dims().first().copied();
        if rows.is_none() || labels.dims().first().copied() != rows {
            let received = format!("{:?} and {:?}", inputs.dims(), labels.dims());
            return Err(Error::file(path, format!("as many rows in {x} as in {y}"), received));
        }
        if rows == Some(0) {
            return Err(Error::file(path, format!("at least one sample in {x}"), "none"));
        }
        Ok((inputs, labels))
    };
    let classes = vec![];
    if has("x_train") && has("y_train") {
        let train = part("x_train", "y_train")?;
        let test = (has("x_test") && has("y_test")).then(|| part("x_test", "y_test"));
        return Ok(Own { train, test: test.transpose()?, classes });
    }
    if has("x") && has("y") {
        return Ok(Own { train: part("x", "y")?, test: None, classes });
    }
    let expected = "arrays x and y, or x_train, y_train, x_test and y_test";
    let received = names.iter().take(20).map(|n| brief(n)).collect::<Vec<_>>().join(", ");
    Err(Error::file(path, expected, if received.is_empty() { "none".into() } else { received }))
}

/// Bytes as numbers from 0 to 1.
fn unit(samples: Samples) -> Samples {
    match samples {
        Samples::Pixels(pixels) => pixels.divided_by(255.0).into(),
        other => other,
    }
}

/// Bytes as class numbers.
fn whole(samples: &Samples) -> Tensor {
    match samples {
        Samples::Pixels(pixels) => {
            let labels: Vec<i32> = pixels.bytes().iter().map(|b| i32::from(*b)).collect();
            Tensor::new(samples.dims(), labels).expect("one label per byte")
        }
        Samples::Tensor(tensor) => Tensor::clone(tensor),
    }
}

/// How a table is laid out.
///
/// ```no_run
/// # use phalanx::datasets::Csv;
/// let data = Csv::new().label("species").load("iris.csv")?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Csv {
    label: Option<String>,
    header: bool,
    separator: u8,
}

impl Default for Csv {
    fn default() -> Csv {
        Csv { label: None, header: true, separator: b',' }
    }
}

impl Csv {
    /// A first line of names, commas between columns, the label in the last one.
    pub fn new() -> Csv {
        Csv::default()
    }

    /// The column of the label, by its name or its number from 0.
    pub fn label(mut self, column: impl Into<String>) -> Csv {
        self.label = Some(column.into());
        self
    }

    /// Whether the first line holds names.
    pub fn header(mut self, header: bool) -> Csv {
        self.header = header;
        self
    }

    /// What stands between columns.
    pub fn separator(mut self, separator: u8) -> Csv {
        self.separator = separator;
        self
    }

    /// Reads a table: all other columns are numbers. Labels that are whole numbers become class
    /// numbers, other numbers stay, words are numbered in their order.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Own> {
        let path = path.as_ref();
        let file = open_file(path, TABLE)?;
        // A number of four bytes takes two in the file, with what stands between.
        memory::check_file(path, 2 * file.metadata().map_err(|e| Error::io(path, e))?.len())?;
        let damaged = |e: csv::Error| match e.into_kind() {
            csv::ErrorKind::Io(e) => Error::io(path, e),
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                let line = pos.map_or(0, |pos| pos.line());
                let expected = format!("{expected_len} columns");
                Error::file(path, expected, format!("{len} in line {line}"))
            }
            csv::ErrorKind::Utf8 { .. } => Error::file(path, "UTF-8 text", "other bytes"),
            _ => Error::file(path, TABLE, "something else"),
        };
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(self.header)
            .delimiter(self.separator)
            .trim(csv::Trim::All)
            .from_reader(file);
        let names = match self.header {
            true => reader.headers().map_err(damaged)?.clone(),
            false => csv::StringRecord::new(),
        };
        let (mut values, mut labels, mut width, mut at) = (vec![], vec![], 0, 0);
        for record in reader.records() {
            let record = record.map_err(damaged)?;
            if labels.is_empty() {
                width = record.len();
                at = self.column(path, &names, width)?;
            }
            for (column, text) in record.iter().enumerate() {
                let line = || record.position().map_or(0, |pos| pos.line());
                if column == at && text.len() > MOST_LABEL {
                    let received = format!("{:?} in line {}", brief(text), line());
                    let expected = format!("labels of at most {MOST_LABEL} bytes");
                    return Err(Error::file(path, expected, received));
                }
                if column == at {
                    labels.push(text.to_string());
                    continue;
                }
                let Some(value) = text.parse::<f32>().ok().filter(|v| v.is_finite()) else {
                    let text = brief(text);
                    let received = format!("{text:?} in line {}, column {column}", line());
                    return Err(Error::file(path, "finite numbers", received));
                };
                values.push(value);
            }
            if values.len() > MOST_VALUES {
                return Err(Error::file(path, format!("at most {MOST_VALUES} numbers"), "more"));
            }
        }
        let rows = labels.len();
        if rows == 0 {
            return Err(Error::file(path, "at least one row", "none"));
        }
        let x = Tensor::new([rows, width - 1], values)
            .map_err(|_| Error::file(path, "a number for each column", "too few"))?;
        let (y, classes) = numbered(&labels)?;
        Ok(Own { train: (x.into(), y), test: None, classes })
    }

    /// The number of the label's column.
    fn column(&self, path: &Path, names: &csv::StringRecord, width: usize) -> Result<usize> {
        if !(2..=MOST_COLUMNS).contains(&width) {
            let expected = format!("2 to {MOST_COLUMNS} columns, one of them the label");
            return Err(Error::file(path, expected, width));
        }
        let Some(label) = &self.label else { return Ok(width - 1) };
        let named = names.iter().position(|name| name == label);
        let numbered = || label.parse().ok().filter(|n| *n < width);
        named.or_else(numbered).ok_or_else(|| {
            let known = names.iter().take(20).map(brief).collect::<Vec<_>>().join(", ");
            let received = if known.is_empty() { format!("{width} columns") } else { known };
            Error::file(path, format!("a column '{label}' for the label"), received)
        })
    }
}

/// Labels as numbers, and the names of those that are words.
fn numbered(labels: &[String]) -> Result<(Tensor, Vec<String>)> {
    let ints: Option<Vec<i32>> = labels.iter().map(|text| text.parse().ok()).collect();
    let floats = || labels.iter().map(|text| text.parse().ok()).collect::<Option<Vec<f32>>>();
    let (data, classes): (Data, Vec<String>) = if let Some(ints) = ints {
        (ints.into(), vec![])
    } else if let Some(floats) = floats().filter(|v| v.iter().all(|x| x.is_finite())) {
        (floats.into(), vec![])
    } else {
        let words = LabelBinarizer::fit(labels.iter().cloned());
        let numbers = words.indices(labels.iter().cloned())?;
        let numbers: Vec<i32> = numbers.into_iter().map(|n| n as i32).collect();
        (numbers.into(), words.classes().to_vec())
    };
    let tensor = Tensor::new([labels.len()], data).expect("one number per label");
    Ok((tensor, classes))
}

#[cfg(test)]
mod tests {
    use super::super::npy::tests::npy;
    use super::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    fn npz(arrays: &[(&str, Vec<u8>)], method: zip::CompressionMethod) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut zip = zip::ZipWriter::new(file.reopen().unwrap());
        for (name, bytes) in arrays {
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(format!("{name}.npy"), options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        file
    }

    fn message<T>(result: Result<T>) -> String {
        result.err().expect("an error").to_string()
    }

    #[test]
    fn npz_with_one_part_or_two() {
        let x = || npy("|u1", "(2, 2)", &[0, 51, 255, 102]);
        let y = || npy("|u1", "(2,)", &[1, 0]);
        for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
            let one = load_npz(npz(&[("x", x()), ("y", y())], method).path()).unwrap();
            assert_eq!(one.train.0.to_tensor().f32().unwrap(), [0.0, 0.2, 1.0, 0.4]);
            assert_eq!(one.train.1.i32().unwrap(), [1, 0]);
            assert!(one.test.is_none());
            let names = ["x_train", "y_train", "x_test", "y_test"];
            let arrays: Vec<_> = names.into_iter().zip([x(), y(), x(), y()]).collect();
            let two = load_npz(npz(&arrays, method).path()).unwrap();
            assert_eq!(two.test, Some(one.train));
        }
    }

    #[test]
    fn damaged_npz_files_are_named() {
        let stored = zip::CompressionMethod::Stored;
        let x = || npy("<f4", "(2, 1)", &[0; 8]);
        let short = npz(&[("x", x()), ("y", npy("|u1", "(3,)", &[0; 3]))], stored);
        assert!(message(load_npz(short.path())).contains("as many rows in x as in y"));
        let rows = npz(&[("x", npy("<f4", "(0, 1)", &[])), ("y", npy("|u1", "(0,)", &[]))], stored);
        assert!(message(load_npz(rows.path())).contains("at least one sample in x, received none"));
        let none = npz(&[("a", x())], stored);
        assert!(message(load_npz(none.path())).contains("received a.npy"));
        // A shape bomb, and a bomb of zeros whose header is honest about too little.
        let deflated = zip::CompressionMethod::Deflated;
        let bomb = npy("<f4", "(99999999999,)", &[0; 1_000_000]);
        let bomb = npz(&[("x", bomb), ("y", x())], deflated);
        assert!(message(load_npz(bomb.path())).contains(":x: expected"));
        let zeros = npz(&[("x", npy("<f4", "(2,)", &[0; 1_000_000])), ("y", x())], deflated);
        assert!(message(load_npz(zeros.path())).contains("received more"));
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [&b""[..], b"PK\x03\x04", b"no zip at all"] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(message(load_npz(file.path())).contains("an npz (zip) file"));
        }
        assert!(message(load_npz(Path::new("/"))).contains("received a directory"));
    }

    fn csv(text: &str, table: Csv) -> Result<Own> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        table.load(file.path())
    }

    #[test]
    fn tables_become_inputs_and_labels() {
        let data = csv("a,b,kind\n1,2,dog\n3, 4.5 ,cat\n", Csv::new()).unwrap();
        assert_eq!(data.train.0.to_tensor().f32().unwrap(), [1.0, 2.0, 3.0, 4.5]);
        assert_eq!(data.train.1.i32().unwrap(), [1, 0]);
        assert_eq!(data.classes, ["cat", "dog"]);
        let data = csv("7;1;2\n8;3;4\n", Csv::new().header(false).separator(b';').label("0"));
        assert_eq!(data.unwrap().train.1.i32().unwrap(), [7, 8]);
        let data = csv("a,b\n1,0.5\n2,1.5\n", Csv::new().label("b")).unwrap();
        assert_eq!(data.train.1.f32().unwrap(), [0.5, 1.5]);
    }

    #[test]
    fn a_field_of_any_length_makes_a_short_error() {
        let long = "x".repeat(50_000_000);
        let field = message(csv(&format!("a,b\n{long},2\n"), Csv::new()));
        assert!(field.contains("xxx… (50000000 bytes)\" in line 2, column 0"), "{}", field.len());
        let label = message(csv(&format!("a,b\n1,{long}\n"), Csv::new()));
        assert!(label.contains("labels of at most 1000 bytes, received \"xxx"), "{}", label.len());
        let name = message(csv(&format!("{long},b\n1,2\n"), Csv::new().label("c")));
        assert!(name.contains("… (50000000 bytes), b"), "{}", name.len());
        let wanted = message(csv("a,b\n1,2\n", Csv::new().label(long)));
        for said in [field, label, name, wanted] {
            assert!(said.len() < 5000, "{}", said.len());
        }
    }

    #[test]
    fn bad_tables_are_named_with_their_line() {
        for (text, expected) in [
            ("", "at least one row"),
            ("a,b\n", "at least one row"),
            ("a\n1\n", "2 to 1000000 columns"),
            ("a,b\n1,2\n1\n", "2 columns, received 1 in line 3"),
            ("a,b\n1,2\nx,2\n", "finite numbers, received \"x\" in line 3, column 0"),
            ("a,b\nnan,2\n", "finite numbers"),
            ("a,b\n,2\n", "finite numbers"),
        ] {
            let said = message(csv(text, Csv::new()));
            assert!(said.contains(expected), "{said} should say {expected}");
        }
        let said = message(csv("a,b\n1,2\n", Csv::new().label("c")));
        assert!(said.contains("a column 'c' for the label, received a, b"), "{said}");
    }
}
