//! `phalanx predict`: the class of images, or outputs for an array.

use crate::args::Predict;
use crate::origin::Origin;
use crate::paths;
use crate::subject::Subject;
use crate::terminal;
use anyhow::{Context, Result, bail};
use phalanx::data::{Pixels, Samples, read_image};
use phalanx::datasets::npy;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;
use std::path::Path;

/// Predicts and prints, or writes.
pub fn run(args: &Predict) -> Result<()> {
    paths::check_file("--output", args.output.as_deref(), &["npy"])?;
    if args.top == 0 {
        bail!("--top: expected 1 or more, received 0");
    }
    let strategy = args.place.workers()?;
    let chief = strategy.is_chief();
    let file = paths::weights(&args.file)?;
    let subject = Subject::saved(&file, args.model.as_ref())?;
    let origin = subject.usual();
    let mut model = subject.compiled(&origin, strategy.into())?;
    if let (Some(input), Some(output)) = (&args.input, &args.output) {
        let outputs = array(&mut model, &subject, &origin, input)?;
        return if chief { Ok(npy::write(output, &outputs)?) } else { Ok(()) };
    }
    for path in &args.images {
        let image = image(path, &subject, &origin)?;
        let outputs = model.predict(Arrays::new(image, ())?)?;
        let chances = subject.probabilities(outputs.f32().unwrap_or_default());
        let mut ranked: Vec<(usize, f64)> = chances.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let words: Vec<String> = ranked
            .iter()
            .take(args.top)
            .map(|(class, p)| format!("{} {p:.4}", shown(&origin.classes[*class])))
            .collect();
        if chief {
            writeln!(terminal::stdout(), "{}: {}", shown(path.display()), words.join(", "))?;
        }
    }
    Ok(())
}

/// One image as the network takes it: in its size, in colour or in shades of grey.
fn image(path: &Path, subject: &Subject, origin: &Origin) -> Result<Samples> {
    let image = read_image(path)?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    let [to_height, to_width, channels] = origin.input[..] else {
        bail!("{}: the network takes {:?}, no images", shown(path.display()), origin.input);
    };
    let bytes = match channels {
        1 => image.into_luma8().into_raw(),
        3 => image.into_rgb8().into_raw(),
        _ => bail!("{}: the network takes {channels} channels", shown(path.display())),
    };
    let pixels = Pixels::new([1, height, width, channels], bytes, 255.0).context("a byte each")?;
    let sized = Samples::from(pixels).resize(to_height, to_width)?;
    subject.feed(origin, &sized).with_context(|| shown(path.display()).to_string())
}

/// The network's outputs for an array of samples.
fn array(model: &mut Model, subject: &Subject, origin: &Origin, input: &Path) -> Result<Tensor> {
    let named = || shown(input.display()).to_string();
    let samples = match npy::read(input)? {
        Samples::Pixels(pixels) => pixels.divided_by(255.0).into(),
        other => other,
    };
    if samples.dims().is_empty() || samples.rows() == 0 {
        bail!("{}: expected samples in rows, received {:?}", named(), samples.dims());
    }
    let (wanted, each) = (&origin.input[..], &samples.dims()[1..]);
    let flat = each == [wanted.iter().product::<usize>()];
    let grey = wanted.strip_suffix(&[1]).is_some_and(|image| image == each);
    if each != wanted && !flat && !grey {
        bail!("{}: expected samples of {wanted:?}, received {each:?}", named());
    }
    let shaped = subject.feed(origin, &samples).with_context(named)?;
    Ok(model.predict(Arrays::new(shaped, ())?)?)
}
