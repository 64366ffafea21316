//! Named arrays of an `.npz` archive.

use super::SampleSet;
use crate::data::Samples;
use crate::datasets::npy;
use crate::error::{Error, Result};
use crate::saving::{open_file, write_atomic};
use phalanx_distributed::warnings::warning;
use phalanx_graph::Tensor;
use phalanx_graph::text::{MAX_QUOTED, escape, truncate};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The expected content of a file, for error messages.
const NPZ: &str = "an npz (zip) file";
/// Maximum compression ratio; that of deflate is about 1,032.
const MAX_INFLATION: u64 = 1_100;
/// Maximum number of array names quoted in an error.
const MAX_NAMES_SHOWN: usize = 20;

/// The arrays of a user's file, by dataset split.
#[derive(Clone, Debug, PartialEq)]
pub struct UserData {
    /// Training samples: all rows, unless the file has named splits.
    pub train: SampleSet,
    /// Validation samples, if any.
    pub validation: Option<SampleSet>,
    /// Test samples, if any.
    pub test: Option<SampleSet>,
}

/// The split to which an array belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SplitName {
    /// Named without a split: `x`, `y`.
    Whole,
    Train,
    Validation,
    Test,
}

/// The role of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Input,
    Target,
    Weight,
}

const ROLES: [(&str, Role); 3] =
    [("x", Role::Input), ("y", Role::Target), ("sample_weight", Role::Weight)];
const SPLITS: [(&str, SplitName); 3] =
    [("train", SplitName::Train), ("val", SplitName::Validation), ("test", SplitName::Test)];

/// Parses the name of an array into split, role and the name of the model's input or output, if any.
fn parse_name(array: &str) -> Option<(SplitName, Role, &str)> {
    let after = |text: &'static str, name: &'_ str| -> Option<usize> {
        let rest = name.strip_prefix(text)?;
        (rest.is_empty() || rest.starts_with('_')).then_some(text.len())
    };
    let (role, rest) =
        ROLES.iter().find_map(|(text, role)| Some((*role, &array[after(text, array)?..])))?;
    let Some(rest) = rest.strip_prefix('_') else { return Some((SplitName::Whole, role, "")) };
    let part = SPLITS.iter().find_map(|(text, part)| Some((*part, &rest[after(text, rest)?..])));
    let (part, name) = part.unwrap_or((SplitName::Whole, rest));
    let name = name.strip_prefix('_').unwrap_or(name);
    (!name.is_empty() || part != SplitName::Whole).then_some((part, role, name))
}

/// Loads the arrays of an `.npz`: `x` and `y`, or `x_train` and `y_train`, and optionally `x_val`,
/// `y_val`, `x_test` and `y_test`. A model with several inputs or outputs takes `x_NAME` and `y_NAME`,
/// or `x_train_NAME` and so on. `sample_weight`, `sample_weight_train`, … weight the loss of the
/// samples, or of each position of a sample if they have more axes. `sample_weight_NAME` does so for one output.
///
/// # Errors
/// A damaged file, or arrays with different numbers of rows.
pub fn load_npz(path: &Path) -> Result<UserData> {
    let mut parts: BTreeMap<SplitName, SampleSet> = BTreeMap::new();
    let (mut names, mut unused) = (vec![], vec![]);
    for (name, array) in read_selected(path, |name| parse_name(name).is_some())? {
        names.push(name.clone());
        let (Some(array), Some((part, role, name))) = (array, parse_name(&name)) else {
            unused.push(name);
            continue;
        };
        let set = parts.entry(part).or_default();
        match role {
            Role::Input => set.inputs.push((name.into(), array)),
            Role::Target => set.targets.push((name.into(), integers(&array))),
            Role::Weight => {
                let weights = weights(path, &array)?;
                match weights.f32().filter(|_| name.is_empty() && weights.row_len() == 1) {
                    Some(values) => set.sample_weight = Some(values.to_vec()),
                    None => set.output_weights.push((name.into(), weights)),
                }
            }
        }
    }
    let mut whole = parts.remove(&SplitName::Whole);
    // Weights without a split belong to the training rows.
    if let (Some(set), Some(train)) = (&mut whole, parts.get_mut(&SplitName::Train))
        && set.inputs.is_empty()
        && set.targets.is_empty()
        && train.sample_weight.is_none()
        && train.output_weights.is_empty()
    {
        train.sample_weight = set.sample_weight.take();
        train.output_weights = std::mem::take(&mut set.output_weights);
        whole = None;
    }
    let train = match (whole, parts.remove(&SplitName::Train)) {
        (Some(set), None) | (None, Some(set)) if !set.inputs.is_empty() => set,
        (Some(_), Some(_)) => {
            let received = shown(&names);
            return Err(Error::file(path, "either x and y or x_train and y_train", received));
        }
        _ => {
            let expected = "arrays x and y, or x_train and y_train";
            return Err(Error::file(path, expected, shown(&names)));
        }
    };
    let (validation, test) = (parts.remove(&SplitName::Validation), parts.remove(&SplitName::Test));
    for (part, set) in [("", Some(&train)), ("_val", validation.as_ref()), ("_test", test.as_ref())]
    {
        set.map_or(Ok(()), |set| check(path, part, set))?;
    }
    if !unused.is_empty() {
        warning!("{}: not used: {}", path.display(), shown(&unused));
    }
    Ok(UserData { train, validation, test })
}

/// Reads all arrays of an `.npz` by name, in file order.
///
/// # Errors
/// A damaged file.
pub fn read_arrays(path: &Path) -> Result<Vec<(String, Samples)>> {
    let arrays = read_selected(path, |_| true)?;
    Ok(arrays.into_iter().filter_map(|(name, array)| Some((name, array?))).collect())
}

/// Writes an `.npz` like NumPy's `savez`. The file appears atomically.
///
/// # Errors
/// A file that cannot be written.
pub fn write_arrays(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_atomic(path, |out| {
        let mut zip = zip::ZipWriter::new_stream(out);
        for (name, tensor) in arrays {
            let options = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .large_file(true);
            zip.start_file(format!("{name}.npy"), options)?;
            npy::write_to(&mut zip, tensor)?;
        }
        zip.finish()?;
        Ok(())
    })
}

/// Reads the arrays whose names are wanted, and only the names of the others.
fn read_selected(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Option<Samples>)>> {
    let file = open_file(path, NPZ)?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?.len();
    if size == 0 {
        return Err(Error::file(path, NPZ, "an empty file"));
    }
    let damaged = |e: zip::result::ZipError| Error::file(path, NPZ, e);
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
    let mut arrays = vec![];
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(damaged)?;
        let Some(name) = entry.name().strip_suffix(".npy").map(String::from) else { continue };
        if !wanted(&name) {
            arrays.push((name, None));
            continue;
        }
        let most = entry.compressed_size().min(size).saturating_mul(MAX_INFLATION);
        let most = most.min(entry.size());
        let named = PathBuf::from(format!("{}:{name}", path.display()));
        let array = npy::parse(&named, &mut entry, most)?;
        arrays.push((name, Some(array)));
    }
    Ok(arrays)
}

/// Checks that a split has targets, and that its arrays have the same number of rows.
fn check(path: &Path, part: &str, set: &SampleSet) -> Result<()> {
    if set.inputs.is_empty() || set.targets.is_empty() {
        let (there, missing) = if set.inputs.is_empty() { ("y", "x") } else { ("x", "y") };
        let expected = format!("an array {missing}{part} beside {there}{part}");
        return Err(Error::file(path, expected, "none"));
    }
    let inputs = set.inputs.iter().map(|(name, x)| ("x", name, x.dims().first().copied()));
    let targets = set.targets.iter().map(|(name, y)| ("y", name, y.dims().first().copied()));
    let weights = set.sample_weight.iter().map(Vec::len);
    let no_name = String::new();
    let weights = weights.map(|n| ("sample_weight", &no_name, Some(n)));
    let of_outputs = set.output_weights.iter();
    let of_outputs = of_outputs.map(|(name, w)| ("sample_weight", name, w.dims().first().copied()));
    let rows = set.inputs[0].1.dims().first().copied();
    for (role, name, received) in inputs.chain(targets).chain(weights).chain(of_outputs) {
        if rows.is_none() || received != rows {
            let separator = if name.is_empty() { "" } else { "_" };
            let count = |n: Option<usize>| n.map_or("a single number".into(), |n| n.to_string());
            let expected = format!(
                "as many rows in {role}{part}{separator}{name} as in the first input, {}",
                count(rows)
            );
            return Err(Error::file(path, expected, count(received)));
        }
    }
    if rows == Some(0) {
        return Err(Error::file(path, format!("at least one sample in x{part}"), "none"));
    }
    Ok(())
}

fn shown(names: &[String]) -> String {
    let known: Vec<String> = names
        .iter()
        .take(MAX_NAMES_SHOWN)
        .map(|name| escape(&truncate(name, MAX_QUOTED)).into_owned())
        .collect();
    match names.len() {
        0 => "none".into(),
        n if n > MAX_NAMES_SHOWN => format!("{} and {} more", known.join(", "), n - known.len()),
        _ => known.join(", "),
    }
}

/// Converts bytes to integers.
fn integers(samples: &Samples) -> Tensor {
    match samples {
        Samples::Pixels(pixels) => {
            let labels: Vec<i32> = pixels.bytes().iter().map(|b| i32::from(*b)).collect();
            Tensor::new(samples.dims(), labels).expect("one label per byte")
        }
        Samples::Tensor(_) | Samples::Text(_) | Samples::External(_) => {
            Tensor::clone(&samples.to_tensor())
        }
    }
}

/// Finite weights of samples, or of their positions.
fn weights(path: &Path, samples: &Samples) -> Result<Tensor> {
    let width = samples.row_len();
    if width == 0 || samples.dims().is_empty() {
        let received = format!("{:?}", samples.dims());
        return Err(Error::file(path, "numbers for every sample in sample_weight", received));
    }
    let mut weights = vec![0.0; samples.rows() * width];
    for (row, weight) in weights.chunks_exact_mut(width).enumerate() {
        samples.read_row(row, weight);
    }
    if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
        let received = format!("{} in row {}", weights[at], at / width);
        return Err(Error::file(path, "finite numbers in sample_weight", received));
    }
    Ok(Tensor::new(samples.dims(), weights)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::npy::tests::npy;
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
    fn names_are_parsed_into_split_role_and_input() {
        assert_eq!(parse_name("x"), Some((SplitName::Whole, Role::Input, "")));
        assert_eq!(parse_name("y_test"), Some((SplitName::Test, Role::Target, "")));
        assert_eq!(parse_name("x_val_left"), Some((SplitName::Validation, Role::Input, "left")));
        assert_eq!(parse_name("x_valve"), Some((SplitName::Whole, Role::Input, "valve")));
        assert_eq!(parse_name("sample_weight_train"), Some((SplitName::Train, Role::Weight, "")));
        for other in ["", "xs", "x_", "labels", "sample", "yes"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_of_an_npz_are_not_divided_by_255() {
        let x = || npy("|u1", "(2, 2)", &[0, 51, 255, 102]);
        let y = || npy("|u1", "(2,)", &[1, 0]);
        for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
            let one = load_npz(npz(&[("x", x()), ("y", y())], method).path()).unwrap();
            assert_eq!(one.train.inputs[0].1.to_tensor().f32().unwrap(), [0.0, 51.0, 255.0, 102.0]);
            assert_eq!(one.train.targets[0].1.i32().unwrap(), [1, 0]);
            assert!(one.test.is_none() && one.validation.is_none());
            let names = ["x_train", "y_train", "x_test", "y_test", "x_val", "y_val"];
            let arrays: Vec<_> = names.into_iter().zip([x(), y(), x(), y(), x(), y()]).collect();
            let three = load_npz(npz(&arrays, method).path()).unwrap();
            assert_eq!(three.test.as_ref(), Some(&one.train));
            assert_eq!(three.validation, Some(one.train));
        }
    }

    #[test]
    fn several_inputs_and_weights_are_found_by_name() {
        let column = || npy("<f4", "(2, 1)", &[0; 8]);
        let weight = npy("<f4", "(2,)", &[1.5f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
        let arrays = [
            ("x_left", column()),
            ("x_right", column()),
            ("y_sum", column()),
            ("y_sign", column()),
            ("sample_weight", weight),
        ];
        let set = load_npz(npz(&arrays, zip::CompressionMethod::Stored).path()).unwrap().train;
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let inputs: Vec<String> = set.inputs.into_iter().map(|(name, _)| name).collect();
        let targets: Vec<String> = set.targets.into_iter().map(|(name, _)| name).collect();
        assert_eq!((inputs, targets), (names(&["left", "right"]), names(&["sum", "sign"])));
        assert_eq!(set.sample_weight, Some(vec![1.5, 2.0]));
        let weight = || npy("<f4", "(2,)", &[0; 8]);
        let parts = [("x_train", column()), ("y_train", column()), ("sample_weight", weight())];
        let set = load_npz(npz(&parts, zip::CompressionMethod::Stored).path()).unwrap().train;
        assert_eq!(
            set.sample_weight,
            Some(vec![0.0, 0.0]),
            "weights are those of the training rows"
        );
        let parts = [("x", column()), ("y_a", column()), ("sample_weight_a", weight())];
        let set = load_npz(npz(&parts, zip::CompressionMethod::Stored).path()).unwrap().train;
        assert_eq!(set.output_weights, [("a".to_string(), Tensor::zeros([2]))]);
        let of_steps = npy("<f4", "(2, 3)", &[0; 24]);
        let parts = [("x", column()), ("y", column()), ("sample_weight", of_steps)];
        let set = load_npz(npz(&parts, zip::CompressionMethod::Stored).path()).unwrap().train;
        assert_eq!(set.output_weights, [(String::new(), Tensor::zeros([2, 3]))]);
        let short = npy("<f4", "(1, 3)", &[0; 12]);
        let parts = [("x", column()), ("y_a", column()), ("sample_weight_a", short)];
        let said = message(load_npz(npz(&parts, zip::CompressionMethod::Stored).path()));
        assert!(
            said.contains("as many rows in sample_weight_a as in the first input, 2"),
            "{said}"
        );
    }

    #[test]
    fn arrays_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("y.npz");
        let arrays = [
            ("sum".to_string(), Tensor::new([2, 2], vec![1.0, 2.0, 3.0, 4.0]).unwrap()),
            ("sign".to_string(), Tensor::new([2], vec![1i32, -1]).unwrap()),
        ];
        write_arrays(&path, &arrays).unwrap();
        let read = read_arrays(&path).unwrap();
        let read: Vec<_> =
            read.into_iter().map(|(n, x)| (n, Tensor::clone(&x.to_tensor()))).collect();
        assert_eq!(read, arrays);
    }

    #[test]
    fn damaged_npz_files_are_named() {
        let stored = zip::CompressionMethod::Stored;
        let x = || npy("<f4", "(2, 1)", &[0; 8]);
        let said = |arrays: &[(&str, Vec<u8>)]| message(load_npz(npz(arrays, stored).path()));
        let short = said(&[("x", x()), ("y", npy("|u1", "(3,)", &[0; 3]))]);
        assert!(
            short.contains("as many rows in y as in the first input, 2, received 3"),
            "{short}"
        );
        let rows = said(&[("x", npy("<f4", "(0, 1)", &[])), ("y", npy("|u1", "(0,)", &[]))]);
        assert!(rows.contains("at least one sample in x, received none"), "{rows}");
        assert!(said(&[("a", x())]).contains("received a"));
        assert!(said(&[("x", x())]).contains("an array y beside x"));
        assert!(said(&[("x", x()), ("y", x()), ("x_test", x())]).contains("y_test beside x_test"));
        let both = said(&[("x", x()), ("y", x()), ("x_train", x()), ("y_train", x())]);
        assert!(both.contains("either x and y or x_train and y_train"), "{both}");
        let nan = npy("<f4", "(2,)", &[0, 0, 192, 127, 0, 0, 0, 0]);
        let nan = said(&[("x", x()), ("y", x()), ("sample_weight", nan)]);
        assert!(nan.contains("finite numbers in sample_weight, received NaN in row 0"), "{nan}");
        // A shape bomb, and a bomb of zeros whose header understates its size.
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
}
