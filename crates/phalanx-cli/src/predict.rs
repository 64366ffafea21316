//! `phalanx predict`: classifies images, or computes outputs for arrays.

use crate::args::{DataArgs, Predict};
use crate::context::RunContext;
use crate::model_file::{LossSource, Purpose};
use crate::model_spec::{ModelKind, ModelSpec};
use crate::paths;
use crate::prepare::check_shape;
use crate::preprocessing::Preprocessing;
use crate::terminal;
use anyhow::{Context, Result, bail};
use phalanx::data::{ColorMode, Samples, read_image};
use phalanx::datasets::{npy, read_arrays, write_arrays};
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;
use std::path::Path;

/// Predicts, and prints or writes the outputs.
pub fn run(args: &Predict, context: &RunContext) -> Result<()> {
    paths::check_file("--output", args.output.as_deref(), &["npy", "npz"])?;
    if args.top == 0 {
        bail!("--top: expected 1 or more, received 0");
    }
    let strategy = context.worker_strategy(&args.device_args)?;
    let chief = strategy.is_chief();
    let file = paths::resolve_weights(&args.file)?;
    let spec = ModelSpec::from_file(&file, args.model.as_ref())?;
    let preprocessing = spec.default_preprocessing();
    if args.rescale.is_some() && spec.io_names().0.len() > 1 {
        bail!("--rescale: expected a model with one input");
    }
    let mut preprocessing = preprocessing.rescaled(args.rescale);
    let mut inputs = vec![];
    match &args.input {
        Some(input) => {
            inputs = load_inputs(input, &spec, &mut preprocessing)
                .with_context(|| input.display().to_string())?;
        }
        None => {
            spec.give_sizes(&args.shapes)?;
            if spec.preprocessing.is_none() {
                preprocessing = spec.default_preprocessing().rescaled(args.rescale);
            }
        }
    }
    let model = spec.compiled_model(
        &preprocessing,
        &LossSource::Stored,
        Purpose::Predict,
        strategy.into(),
    )?;
    if let Some(output) = &args.output {
        let mut arguments = Inference::new();
        if let Some(batch) = spec.stateful_batch_size() {
            arguments = arguments.batch_size(batch);
        }
        let outputs = model.predict_with(Arrays::new(inputs, ())?, arguments)?;
        return if chief { write(output, &model.output_names(), outputs) } else { Ok(()) };
    }
    for path in &args.images {
        let image = load_image(path, &spec, &preprocessing)?;
        let outputs = model.predict_all(Arrays::new(image, ())?)?;
        let line = describe(args, &spec, &preprocessing, &outputs)?;
        if chief {
            writeln!(terminal::stdout(), "{}: {line}", shown(path.display()))?;
        }
    }
    Ok(())
}

/// The most probable classes with their probabilities, or the raw outputs if the model is not a classifier.
fn describe(
    args: &Predict,
    spec: &ModelSpec,
    preprocessing: &Preprocessing,
    outputs: &[Tensor],
) -> Result<String> {
    let [output] = outputs else {
        bail!(
            "expected a model with one output; --input and --output write those of {}",
            outputs.len()
        );
    };
    if output.dims().len() > 2 {
        let dims = &output.dims()[1..];
        bail!(
            "expected a model whose output is a row of numbers, received {dims:?}; --input and --output write it"
        );
    }
    let numbers = output.f32().unwrap_or_default();
    if preprocessing.classes.is_empty() {
        let values: Vec<String> = numbers.iter().map(|v| format!("{v:.4}")).collect();
        return Ok(values.join(", "));
    }
    let mut ranked: Vec<(usize, f64)> =
        spec.probabilities(numbers).into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let named = |(class, p): &(usize, f64)| {
        let name = preprocessing.classes.get(*class).map_or("?", String::as_str);
        format!("{} {p:.4}", shown(name))
    };
    Ok(ranked.iter().take(args.top).map(named).collect::<Vec<_>>().join(", "))
}

/// Writes one array to a .npy, or the outputs by name to an .npz.
fn write(path: &Path, names: &[String], outputs: Vec<Tensor>) -> Result<()> {
    let archive = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npz"));
    match &outputs[..] {
        _ if archive => {
            let named: Vec<_> = names.iter().cloned().zip(outputs).collect();
            Ok(write_arrays(path, &named)?)
        }
        [one] => Ok(npy::write(path, one)?),
        several => {
            bail!("--output: expected an .npz for {} outputs, received a .npy", several.len())
        }
    }
}

/// Loads an image and converts it to the model's size and color mode.
fn load_image(path: &Path, spec: &ModelSpec, preprocessing: &Preprocessing) -> Result<Samples> {
    let shown = path.display();
    let [height, width, channels] = preprocessing.input[..] else {
        bail!("{shown}: the model takes {:?}, no images", preprocessing.input);
    };
    let color_mode = match channels {
        1 => ColorMode::Grayscale,
        3 => ColorMode::Rgb,
        _ => bail!("{shown}: the model takes {channels} channels"),
    };
    let sized = Samples::from(read_image(path, color_mode)?).resize(height, width)?;
    preprocess(spec, preprocessing, &sized).with_context(|| shown.to_string())
}

/// Preprocesses samples of the only input.
fn preprocess(
    spec: &ModelSpec,
    preprocessing: &Preprocessing,
    samples: &Samples,
) -> Result<Samples> {
    let dims = spec.dims(&preprocessing.input).concat();
    let samples = preprocessing.apply(samples)?;
    let dims = [&[samples.rows()], &dims[..]].concat();
    samples.reshape(dims).context("reshaping samples")
}

/// Loads the samples of a file, one array for each input of the model.
fn load_inputs(
    path: &Path,
    spec: &ModelSpec,
    preprocessing: &mut Preprocessing,
) -> Result<Vec<Samples>> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    let given = match (extension.as_deref(), &preprocessing.table) {
        (Some("npz"), _) => read_arrays(path)?,
        (Some("csv"), Some(table)) => {
            DataArgs::default().csv().load_inputs(path, table)?.set.inputs
        }
        (Some("csv"), None) if !spec.text_inputs().is_empty() => {
            let csv = spec.table_inputs().of_table(DataArgs::default().csv(), path)?;
            csv.load_columns(path)?.set.inputs
        }
        (Some("csv"), None) => {
            bail!("expected a model that was trained on a table, or a .npy or .npz")
        }
        _ => vec![(String::new(), npy::read(path)?)],
    };
    let (names, _) = spec.io_names();
    // The keys of a dict of inputs come before the names of their layers.
    let is_given = |name: &String| {
        given.iter().any(|(array, _)| array == name || *array == format!("x_{name}"))
    };
    let paths = spec.input_paths().filter(|paths| paths.iter().all(is_given));
    let wanted = paths.unwrap_or(&names);
    let is_unnamed = |array: &str| array.is_empty() || array == "x";
    let mut chosen = vec![];
    for name in wanted {
        let matches = |array: &str| array == name || array == format!("x_{name}");
        let found = given.iter().position(|(array, _)| matches(array));
        let found =
            found.or(given.iter().position(|(array, _)| is_unnamed(array) && names.len() == 1));
        chosen.push(found.with_context(|| {
            let listed: Vec<String> =
                given.iter().map(|(name, _)| shown(name).to_string()).collect();
            let one = if names.len() == 1 { " or x" } else { "" };
            format!(
                "expected arrays named {}{one}, received {}",
                spec.input_paths().unwrap_or(&names).join(", "),
                listed.join(", ")
            )
        })?);
    }
    let unused = |at: &usize| !chosen.contains(at);
    let unused: Vec<String> =
        (0..given.len()).filter(unused).map(|at| shown(&given[at].0).to_string()).collect();
    if !unused.is_empty() {
        tracing::warn!("{}: not used: {}", shown(path.display()), unused.join(", "));
    }
    for at in &chosen {
        let (name, samples) = &given[*at];
        if samples.dims().is_empty() || samples.rows() == 0 {
            bail!("expected samples in rows, received {:?} as '{}'", samples.dims(), shown(name));
        }
    }
    if let ModelKind::File(file) = &spec.kind
        && file.has_open_sizes()
    {
        let dims = |at: &usize| given[*at].1.dims()[1..].to_vec();
        file.give_sizes(&chosen.iter().map(dims).collect::<Vec<_>>())?;
        if let [_] = chosen[..] {
            preprocessing.input = spec.dims(&preprocessing.input).concat();
        }
    }
    if let [at] = chosen[..] {
        let samples = &given[at].1;
        if !preprocessing.resized {
            check_shape(&samples.dims()[1..], &preprocessing.input)?;
        }
        return Ok(vec![preprocess(spec, preprocessing, samples)?]);
    }
    Ok(chosen.into_iter().map(|at| given[at].1.clone().raw()).collect())
}
