//! `phalanx predict`: the class of images, or outputs for an array.

use crate::args::Predict;
use crate::network::Network;
use crate::paths;
use crate::prepare::Origin;
use anyhow::{Context, Result, bail};
use phalanx::data::{Pixels, Samples, read_image};
use phalanx::datasets::npy;
use phalanx::prelude::*;
use std::io::Write;
use std::path::Path;

/// Predicts and prints, or writes.
pub fn run(args: &Predict) -> Result<()> {
    paths::check_file("--output", args.output.as_deref(), &["npy"])?;
    if args.top == 0 {
        bail!("--top: expected 1 or more, received 0");
    }
    let strategy = args.place.strategy()?;
    let file = paths::weights(&args.file)?;
    let origin = match Origin::read(&file, args.model)? {
        Some(origin) => origin,
        None => Origin::usual(Origin::network_of(&file, args.model)?),
    };
    let network = origin.network()?;
    let mut model = origin.build()?;
    model.compile(network.compile(strategy))?;
    model.load_weights(&file)?;
    if let (Some(input), Some(output)) = (&args.input, &args.output) {
        return array(&mut model, &origin, input, output);
    }
    for path in &args.images {
        let image = image(path, &origin)?;
        let scores = model.predict(Arrays::new(image, ())?)?;
        let mut ranked = probabilities(network, scores.f32().unwrap_or_default());
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let words: Vec<String> = ranked
            .iter()
            .take(args.top)
            .map(|(class, p)| format!("{} {p:.4}", origin.classes[*class]))
            .collect();
        writeln!(std::io::stdout().lock(), "{}: {}", path.display(), words.join(", "))?;
    }
    Ok(())
}

/// Every class with its probability.
fn probabilities(network: Network, scores: &[f32]) -> Vec<(usize, f64)> {
    let scores = scores.iter().map(|score| f64::from(*score));
    if !network.logits() {
        return scores.enumerate().collect();
    }
    let most = scores.clone().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.clone().map(|score| (score - most).exp()).sum();
    scores.map(|score| (score - most).exp() / total).enumerate().collect()
}

/// One image as the network takes it: in its size, in colour or in shades of grey.
fn image(path: &Path, origin: &Origin) -> Result<Samples> {
    let image = read_image(path)?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    let [to_height, to_width, channels] = origin.input[..] else {
        bail!("{}: the network takes {:?}, no images", path.display(), origin.input);
    };
    let bytes = match channels {
        1 => image.into_luma8().into_raw(),
        3 => image.into_rgb8().into_raw(),
        _ => bail!("{}: the network takes {channels} channels", path.display()),
    };
    let pixels = Pixels::new([1, height, width, channels], bytes, 255.0).context("a byte each")?;
    let sized = Samples::from(pixels).resize(to_height, to_width)?;
    origin.shape(&sized).with_context(|| path.display().to_string())
}

/// The network's outputs for an array of samples, as an array.
fn array(model: &mut Model, origin: &Origin, input: &Path, output: &Path) -> Result<()> {
    let named = || input.display().to_string();
    let samples = match npy::read(input)? {
        Samples::Pixels(pixels) => pixels.divided_by(255.0).into(),
        other => other,
    };
    if samples.dims().is_empty() || samples.rows() == 0 {
        bail!("{}: expected samples in rows, received {:?}", named(), samples.dims());
    }
    let shaped = origin.shape(&samples).with_context(named)?;
    npy::write(output, &model.predict(Arrays::new(shaped, ())?)?)?;
    Ok(())
}
