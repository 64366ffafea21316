//! Files of Python Keras, as `tests/python/cross_check.py` creates them in `$PHALANX_CROSS_CHECK`:
//! `<name>.keras`, the same model as `<name>.python.h5` unless that format cannot hold it, and `<name>.safetensors` with inputs `x<i>`,
//! predictions `p<i>` and, for training, targets `y<i>`. Every model is loaded, evaluated, saved in
//! every format and trained for three steps. The script then checks the saved files. `resnet50_*.h5` are
//! weight files in the layouts of the official ones. Without the directory the tests do nothing.

use phalanx::data::Arrays;
use phalanx::prelude::*;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum deviation of a prediction, relative to the largest value.
const TOLERANCE: f32 = 1e-5;
/// Training steps.
const STEPS: usize = 3;

pub(crate) fn tensors(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let words = view.data().as_chunks::<4>().0.iter();
        let data: Data = match view.dtype() {
            Dtype::F32 => words.map(|w| f32::from_le_bytes(*w)).collect::<Vec<_>>().into(),
            Dtype::I32 => words.map(|w| i32::from_le_bytes(*w)).collect::<Vec<_>>().into(),
            other => panic!("{name}: unexpected type {other:?}"),
        };
        (name.to_string(), Tensor::new(view.shape(), data).unwrap())
    };
    file.iter().map(read).collect()
}

/// The tensors `x0`, `x1`, …
fn numbered(tensors: &BTreeMap<String, Tensor>, letter: char) -> Vec<Tensor> {
    (0..).map_while(|i| tensors.get(&format!("{letter}{i}")).cloned()).collect()
}

fn compare(what: &str, expected: &Tensor, received: &Tensor) -> std::result::Result<(), String> {
    compare_within(TOLERANCE, what, expected, received)
}

/// Compares with a tolerance relative to the largest value, or to 1 if all are smaller.
pub(crate) fn compare_within(
    tolerance: f32,
    what: &str,
    expected: &Tensor,
    received: &Tensor,
) -> std::result::Result<(), String> {
    if expected.dims() != received.dims() {
        return Err(format!("{what}: {:?} for {:?}", received.dims(), expected.dims()));
    }
    let (e, r) = (expected.f32().unwrap(), received.f32().unwrap());
    let scale = e.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let off = e.iter().zip(r).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if off <= tolerance * scale { Ok(()) } else { Err(format!("{what}: off by {off} of {scale}")) }
}

/// Takes one model through all checks.
fn check(path: &Path) -> std::result::Result<(), String> {
    let said = |e: phalanx::Error| e.to_string();
    let tensors = tensors(&path.with_extension("safetensors"));
    let (x, y, p) = (numbered(&tensors, 'x'), numbered(&tensors, 'y'), numbered(&tensors, 'p'));
    let mut model = load_model(path).map_err(said)?;
    let ask = |model: &mut Model, what: &str| {
        let arrays = Arrays::new(x.clone(), ()).map_err(said)?;
        let outputs = model.predict_all(arrays).map_err(said)?;
        assert_eq!(outputs.len(), p.len(), "{what}");
        p.iter().zip(&outputs).try_for_each(|(p, output)| compare(what, p, output))
    };
    ask(&mut model, "predictions")?;
    let old = path.with_extension("python.h5");
    let legacy = old.exists();
    if legacy {
        ask(&mut load_model(&old).map_err(said)?, "predictions of the legacy file")?;
    }
    let to = |ending: &str| path.with_extension(ending);
    for ending in ["back.keras", "back.h5"].into_iter().filter(|e| legacy || *e != "back.h5") {
        model.save(to(ending)).map_err(said)?;
        ask(&mut load_model(to(ending)).map_err(said)?, ending)?;
    }
    for ending in ["weights.h5", "named.h5", "weights.safetensors"] {
        model.save_weights(to(ending)).map_err(said)?;
        let mut again = Load::new().compile(false).model(path).map_err(said)?;
        let zeros = again.get_weights().map_err(said)?.iter().map(zero).collect::<Vec<_>>();
        again.set_weights(&zeros).map_err(said)?;
        again.load_weights(to(ending)).map_err(said)?;
        ask(&mut again, ending)?;
    }
    let bytes = std::fs::read(to("back.keras")).unwrap();
    load_model(to("back.keras")).map_err(said)?.save(to("again.keras")).map_err(said)?;
    if std::fs::read(to("again.keras")).unwrap() != bytes {
        return Err("a second round trip gave another file".into());
    }
    if !y.is_empty() {
        let rows = y[0].dims()[0] / STEPS;
        let arrays = Arrays::new(x.clone(), y).map_err(said)?;
        let fit = Fit::new().epochs(1).batch_size(rows).shuffle(false).verbose(0);
        model.fit(arrays, fit).map_err(said)?;
        model.save(to("trained.keras")).map_err(said)?;
    }
    Ok(())
}

fn zero(tensor: &Tensor) -> Tensor {
    Tensor::new(tensor.dims(), vec![0.0; tensor.len()]).unwrap()
}

/// The files of the cross check with a given suffix and no other dot.
pub(crate) fn files(ending: &str) -> Vec<PathBuf> {
    let directory = std::env::var_os("PHALANX_CROSS_CHECK").expect("PHALANX_CROSS_CHECK is set");
    let directory = PathBuf::from(directory);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| {
        let name = p.file_name().unwrap().to_string_lossy().to_string();
        name.ends_with(ending) && name.matches('.').count() == 1
    });
    files.sort();
    files
}

#[ignore = "needs files of Python Keras: tests/python/cross_check.py runs it"]
#[test]
fn models_of_python_keras() {
    crate::custom::register();
    let models = files(".keras");
    let mut faults = vec![];
    for path in &models {
        if let Err(fault) = check(path) {
            faults.push(format!("{}: {fault}", path.file_stem().unwrap().display()));
        }
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), models.len(), faults.join("\n"));
}

#[ignore = "needs files of Python Keras: tests/python/cross_check.py runs it"]
#[test]
fn weight_files_of_resnet50() {
    for path in files(".h5") {
        let name = path.file_stem().unwrap().to_string_lossy().to_string();
        let tensors = tensors(&path.with_extension("safetensors"));
        let (x, expected) = (&tensors["x0"], &tensors["p0"]);
        let classes = name.ends_with("_top").then_some(10);
        let model = applications::resnet50_from(&path, [32, 32, 3], classes).unwrap();
        let output = model.predict(applications::resnet50_preprocess(x).unwrap()).unwrap();
        compare(&name, expected, &output).unwrap();
        if classes.is_some() {
            // The top of a file is skipped if none is wanted.
            applications::resnet50_from(&path, [32, 32, 3], None).unwrap();
            let error = applications::resnet50_from(&path, [32, 32, 3], Some(7)).err().unwrap();
            assert!(error.to_string().contains("[2048, 10] for [2048, 7]"), "{error}");
        }
    }
}
