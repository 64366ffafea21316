//! Data in the form a model takes.

use crate::args::{DataArgs, Size};
use crate::data::{self, Loaded, Part, Reading, Request, numbered};
use crate::feed::Feed;
use crate::model_file::{Goal, ModelFile};
use crate::network::Network;
use crate::origin::{Origin, Scale, check_sample};
use crate::subject::{Kind, Subject};
use crate::targets::{alike, class_numbers};
use anyhow::{Context, Result, bail};
use phalanx::data::{ImageFlow, Samples};
use phalanx::model::{IntoDataset, Source};
use phalanx::prelude::*;
use phalanx::text::shown;

/// Rows of samples in the form a model takes.
pub struct Set {
    /// One for each input, in the model's order.
    inputs: Vec<Feed>,
    /// One for each output, in the model's order.
    targets: Vec<Tensor>,
    sample_weight: Option<Vec<f32>>,
}

/// Data in the form a model takes.
pub struct Prepared {
    /// To train on.
    pub train: Set,
    /// To validate on, if there are such rows.
    pub validation: Option<Set>,
    /// To test on, if there are such rows.
    pub test: Option<Set>,
    /// The classes of the rows of [`Prepared::evaluated`], where they have one each.
    pub labels: Option<Vec<i32>>,
    /// Their name or path.
    pub name: String,
    /// The first input of the same rows as it came, to show.
    pub pictures: Feed,
    /// What was done to them.
    pub origin: Origin,
    /// What the model is trained for.
    pub goal: Goal,
    /// Keras' names of the losses.
    pub losses: Vec<&'static str>,
    /// How the targets of each output are fed.
    pub forms: Vec<String>,
    /// What was done to the rows.
    pub notices: Vec<String>,
    /// The inputs' dimensions as they came, where there is one.
    pub came: Vec<usize>,
    /// Whether the model's file says that it was trained on these data.
    pub trained_on: bool,
}

/// What is asked of data.
pub struct Asked<'a> {
    /// A dataset's name, or a path.
    pub name: &'a str,
    /// How they are read.
    pub args: &'a DataArgs,
    /// The size that images are brought to.
    pub size: Option<Size>,
    /// Whether images are read in shades of grey.
    pub grey: bool,
    /// The share of the training rows to validate on.
    pub validation_split: Option<f64>,
}

impl<'a> Asked<'a> {
    /// Data by name, as they are.
    pub fn plain(name: &'a str, args: &'a DataArgs) -> Asked<'a> {
        Asked { name, args, size: None, grey: false, validation_split: None }
    }
}

impl Set {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, Feed::rows)
    }

    /// The only input.
    pub fn input(&self) -> Result<&Feed> {
        match &self.inputs[..] {
            [one] => Ok(one),
            several => bail!("expected a model with one input, received {}", several.len()),
        }
    }

    /// All samples in their order.
    pub fn in_order(&self, batch: usize) -> Result<Source> {
        self.batches(false, batch)
    }

    /// All samples; whether arrays are shuffled is up to `fit`.
    pub fn batches(&self, shuffle: bool, batch: usize) -> Result<Source> {
        if let [Feed::Files(_)] = self.inputs[..] {
            let flow = self.flow(&ImageDataGenerator::new(), batch)?;
            return Ok(flow.shuffle(shuffle).into_source()?);
        }
        let samples = |feed: &Feed| match feed {
            Feed::Memory(samples) => Ok(samples.clone()),
            Feed::Files(_) => bail!("a directory of images is one input"),
        };
        let inputs = self.inputs.iter().map(samples).collect::<Result<Vec<Samples>>>()?;
        let arrays = Arrays::new(inputs, self.targets.clone())?.batch(batch)?;
        Ok(Source::Arrays(match &self.sample_weight {
            Some(weights) => arrays.sample_weight(weights)?,
            None => arrays,
        }))
    }

    /// Images, augmented.
    pub fn flow(&self, augment: &ImageDataGenerator, batch: usize) -> Result<ImageFlow> {
        if self.sample_weight.is_some() {
            bail!("--augment: expected data without sample weights");
        }
        let [target] = &self.targets[..] else {
            bail!("--augment: expected one target, received {}", self.targets.len());
        };
        if target.dims().len() > 2 {
            let dims = &target.dims()[1..];
            bail!("--augment: expected targets that stay when images move, received {dims:?}");
        }
        self.input()?.flow(augment, target, batch)
    }
}

impl Prepared {
    /// The rows to evaluate: those to test on, or all there are.
    pub fn evaluated(&self) -> &Set {
        self.test.as_ref().unwrap_or(&self.train)
    }
}

/// Loads a dataset for a model that was trained before.
pub fn load(
    subject: &Subject,
    origin: &Origin,
    asked: &Asked<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Prepared> {
    let reading = Reading::sized(&origin.input, None, false);
    let request = request(subject, asked, reading.by(workers.num_workers()), origin.table.as_ref());
    if let (Some(flag), Some(_)) = (asked.args.table_flag(), &origin.table) {
        bail!(
            "{flag}: the model keeps how its table was read, and another way would change its numbers"
        );
    }
    let mut loaded = data::load(&request)?;
    if let (Some(classes), most @ 1..) = (&loaded.classes, origin.classes.len())
        && classes.len() > most
    {
        let (name, received) = (asked.name, classes.len());
        bail!("--data {}: expected at most {most} classes, received {received}", shown(name));
    }
    if !loaded.align(&origin.classes)? {
        let (expected, received) = (
            data::list(&origin.classes),
            data::list(loaded.classes.as_deref().unwrap_or_default()),
        );
        bail!(
            "--data {}: expected the classes that the model tells apart, {expected}, received {received}",
            shown(asked.name)
        );
    }
    // The rows that were held back from training, unless told otherwise.
    let stored = origin.test_split.filter(|_| origin.is_of(asked.name) && loaded.test.is_none());
    let loaded = loaded.split(asked.args.test_split.or(stored), None)?;
    let origin = origin.clone().rescaled(asked.args.rescale);
    finish(subject, origin, asked, loaded)
}

/// Loads a dataset and fits it and the model to each other: a network's input becomes a sample and its
/// outputs the classes; a file's model has its own, and images are brought to its size.
pub fn prepare(
    subject: &Subject,
    asked: &Asked<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Prepared> {
    let &Asked { name, args, size, grey, validation_split } = asked;
    let reading = match &subject.kind {
        Kind::Network(network) => Reading::of(&network.usual_input(), size, grey),
        Kind::File(file) => {
            let before = subject.origin.as_ref().filter(|before| !before.input.is_empty());
            let input = before.map_or_else(|| file.image(), |before| before.input.clone());
            Reading::sized(&input, size, grey)
        }
    };
    let reading = reading.by(workers.num_workers());
    // A table is read as the one before, unless told otherwise.
    let before = subject.origin.as_ref().filter(|_| args.table_flag().is_none());
    let table = before.and_then(|before| before.table.as_ref());
    let mut loaded = data::load(&request(subject, asked, reading, table))?;
    if !loaded.images && (size.is_some() || grey) {
        let flag = if size.is_some() { "--image-size" } else { "--grayscale" };
        bail!("{flag}: expected images, received --data {}", shown(name));
    }
    if grey && loaded.arrays {
        bail!("--grayscale: expected a directory of images, received --data {}", shown(name));
    }
    if let (Kind::File(_), Some(before)) = (&subject.kind, &subject.origin)
        && !loaded.align(&before.classes)?
    {
        loaded.notices.push("other classes take the place of those it was trained on".into());
    }
    if let Some(classes) = loaded.classes.as_ref().filter(|classes| classes.len() < 2) {
        let received = data::list(classes);
        bail!("--data {}: expected two classes or more, received {received}", shown(name));
    }
    // A recipe's validation rows are those of its tutorial's data.
    let recipe = subject.validation_share().filter(|_| loaded.by_name);
    loaded = loaded.split(args.test_split, validation_split.or(recipe))?;
    let origin = match &subject.kind {
        Kind::Network(network) => for_network(*network, subject, &loaded, asked, workers),
        Kind::File(file) => for_file(file, subject, &loaded, asked),
    };
    let origin = origin.with_context(|| format!("--data {}", shown(name)))?;
    let (data, test_split) = (name.into(), args.test_split.filter(|share| *share != 0.0));
    let resized = size.is_some() && loaded.arrays;
    let origin = Origin { data, test_split, table: loaded.table.clone(), resized, ..origin };
    finish(subject, origin, asked, loaded)
}

fn request<'a>(
    subject: &Subject,
    asked: &Asked<'a>,
    reading: Reading,
    table: Option<&'a phalanx::datasets::TableEncoding>,
) -> Request<'a> {
    let (inputs, outputs) = subject.names();
    Request { name: asked.name, reading, args: asked.args, inputs, outputs, table }
}

fn finish(
    subject: &Subject,
    mut origin: Origin,
    asked: &Asked<'_>,
    loaded: Loaded,
) -> Result<Prepared> {
    let name = asked.name;
    let named = || format!("--data {}", shown(name));
    check_sample(&origin.input).with_context(named)?;
    let (goal, losses) = subject.goal(asked.args.loss.as_deref(), &loaded)?;
    if let Kind::File(file) = &subject.kind
        && origin.classes.is_empty()
    {
        origin.classes = file.class_names(&losses, loaded.classes.as_ref());
    }
    check_targets(subject, &losses, &loaded, &goal).with_context(named)?;
    let classes = loaded.classes.as_ref().map(Vec::len);
    let checks_shape = loaded.arrays
        && matches!(&subject.kind, Kind::File(_) if origin.network.is_none() && !origin.resized);
    let mut forms = vec![];
    let mut set = |part: &Part| -> Result<Set> {
        let (input_names, output_names) = subject.names();
        let given = by_name("x", &part.inputs, &input_names)?;
        let dims = subject.dims(&origin.input);
        // Several inputs go in as they are; a single one may be reshaped, resized and scaled.
        let inputs = match (&given[..], &dims[..]) {
            ([one], [dims]) => {
                if checks_shape {
                    check_shape(&one.dims(), &origin.input)?;
                }
                vec![one.fed(&origin, dims)?]
            }
            (several, _) => several.iter().map(|feed| feed.raw()).collect(),
        };
        let given = by_name("y", &part.targets, &output_names)?;
        let targets = subject.targets(&losses, &given, classes)?;
        forms = targets.iter().map(|target| target.form.clone()).collect();
        let targets = targets.into_iter().map(|target| target.values).collect();
        Ok(Set { inputs, targets, sample_weight: part.sample_weight.clone() })
    };
    let of = |part: &Option<Part>, set: &mut dyn FnMut(&Part) -> Result<Set>| {
        part.as_ref().map(set).transpose()
    };
    let train = set(&loaded.train).with_context(named)?;
    let validation = of(&loaded.validation, &mut set).with_context(named)?;
    let test = of(&loaded.test, &mut set).with_context(named)?;
    let evaluated = loaded.test.as_ref().unwrap_or(&loaded.train);
    let labels = match &evaluated.targets[..] {
        [(_, y)] if !origin.classes.is_empty() => {
            class_numbers(y).ok().and_then(|t| Some(t.values.i32()?.to_vec()))
        }
        _ => None,
    };
    let pictures = evaluated.inputs[0].1.clone();
    let came = match &loaded.train.inputs[..] {
        [(_, x)] => x.dims(),
        _ => vec![],
    };
    let trained_on = subject.origin.as_ref().is_some_and(|origin| origin.is_of(name));
    let (name, notices) = (name.into(), loaded.notices);
    Ok(Prepared {
        train,
        validation,
        test,
        labels,
        name,
        pictures,
        origin,
        goal,
        losses,
        forms,
        notices,
        came,
        trained_on,
    })
}

/// Words need a loss on classes, and a loss on two classes needs targets from 0 to 1.
fn check_targets(
    subject: &Subject,
    losses: &[&'static str],
    loaded: &Loaded,
    goal: &Goal,
) -> Result<()> {
    let Kind::File(file) = &subject.kind else { return Ok(()) };
    let chosen = matches!(goal, Goal::Chosen { .. });
    let outputs = file.with_losses(losses);
    for (i, (name, y)) in loaded.train.targets.iter().enumerate() {
        let by_name = outputs.iter().find(|output| output.name == *name);
        let Some(output) = by_name.or(outputs.get(i)) else { continue };
        if loaded.words.get(i) == Some(&true) {
            output.check_words()?;
        }
        if loaded.classes.is_none() {
            output.check_binary(y, chosen)?;
        }
    }
    Ok(())
}

/// Columns in a model's order. The only one needs no name.
fn by_name<T: Clone>(role: &str, given: &[(String, T)], wanted: &[String]) -> Result<Vec<T>> {
    if let ([(name, one)], [only]) = (given, wanted)
        && (name.is_empty() || name == only)
    {
        return Ok(vec![one.clone()]);
    }
    let array = |name: &String| match name.is_empty() {
        true => role.to_string(),
        false => format!("{role}_{name}"),
    };
    let listed = |names: Vec<String>| names.join(", ");
    let fail = || {
        let expected = listed(wanted.iter().map(array).collect());
        let received = listed(given.iter().map(|(name, _)| array(name)).collect());
        anyhow::anyhow!("expected {expected}, as the model names them, received {received}")
    };
    if given.len() != wanted.len() {
        return Err(fail());
    }
    let find =
        |name: &String| given.iter().find(|(given, _)| given == name).map(|(_, v)| v.clone());
    wanted.iter().map(|name| find(name).ok_or_else(fail)).collect()
}

/// A network's origin. With weights of a file, images are scaled as those want them.
fn for_network(
    network: Network,
    subject: &Subject,
    loaded: &Loaded,
    asked: &Asked<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Origin> {
    let ([(_, x)], [(_, y)]) = (&loaded.train.inputs[..], &loaded.train.targets[..]) else {
        bail!("expected one input and one target for {}, received several", network.name());
    };
    let input = input(network, &x.dims(), loaded.images, asked.size)?;
    let classes = match &loaded.classes {
        Some(classes) => classes.clone(),
        None => {
            let parts = [Some(&loaded.train), loaded.validation.as_ref(), loaded.test.as_ref()];
            let mut most = y.row_len().max(1) as i32 - 1;
            for part in parts.into_iter().flatten() {
                let labels = class_numbers(&part.targets[0].1)?.values;
                most =
                    most.max(labels.i32().unwrap_or_default().iter().copied().max().unwrap_or(0));
            }
            numbered(most as usize + 1)
        }
    };
    if classes.len() < 2 {
        bail!("expected two classes or more, received {classes:?}");
    }
    let origin = Origin::unnamed("", input, classes).named(Some(network));
    if asked.args.rescale.is_some() {
        return Ok(origin.rescaled(asked.args.rescale));
    }
    if let Some(before) = subject.origin.as_ref().filter(|before| before.input == origin.input) {
        return Ok(Origin { mean: before.mean.clone(), scale: before.scale, ..origin });
    }
    if subject.of_imagenet() {
        if origin.input.last() != Some(&3) {
            let received = &origin.input;
            bail!("ImageNet's weights take images [height, width, 3], received {received:?}");
        }
        return Ok(Origin { scale: Scale::Imagenet, ..origin });
    }
    if !network.centred() {
        return Ok(Origin { scale: Scale::Unit, ..origin });
    }
    let mean = x.mean(&origin, workers)?;
    Ok(Origin { mean: Some(mean), ..origin })
}

/// The origin of a file's model, which is fed as it was before, or as Keras would feed it.
fn for_file(
    file: &ModelFile,
    subject: &Subject,
    loaded: &Loaded,
    asked: &Asked<'_>,
) -> Result<Origin> {
    let scale = asked.args.rescale.map(Scale::Rescale);
    by_name("x", &loaded.train.inputs, &subject.names().0)?;
    let [(_, x)] = &loaded.train.inputs[..] else {
        if asked.args.rescale.is_some() || asked.size.is_some() {
            bail!("--rescale and --image-size: expected a model with one input");
        }
        return Ok(Origin::unnamed("", vec![], vec![]));
    };
    let mut own = x.dims();
    if let (Some(size), true) = (asked.size, loaded.images) {
        own[..2].copy_from_slice(&[size.height, size.width]);
    }
    let input = file.input_for(&own, loaded.images);
    if let (Some(size), &[height, width, ..]) = (asked.size, &input[..])
        && (size.height, size.width) != (height, width)
    {
        let Size { height: h, width: w } = size;
        bail!("--image-size: expected {height}x{width}, as the model takes, received {h}x{w}");
    }
    let origin = Origin::unnamed("", input, vec![]);
    let cells = |origin: &Origin| origin.input.iter().product::<usize>();
    Ok(match (&subject.origin, scale) {
        (_, Some(scale)) => Origin { scale, ..origin },
        (Some(before), None) if cells(before) == cells(&origin) => {
            Origin { mean: before.mean.clone(), scale: before.scale, ..origin }
        }
        _ => origin,
    })
}

/// Arrays must have the shape that the model takes: axes of size one apart, and flat or not.
pub fn check_shape(own: &[usize], input: &[usize]) -> Result<()> {
    let flat = [own, input].iter().any(|dims| dims.len() == 1)
        && own.iter().product::<usize>() == input.iter().product::<usize>();
    if alike(own, input) || flat {
        return Ok(());
    }
    bail!("expected samples of {input:?}, received {own:?}")
}

/// The dimensions of a network's input for samples of these.
fn input(network: Network, own: &[usize], images: bool, size: Option<Size>) -> Result<Vec<usize>> {
    let usual = network.usual_input();
    let image = match *own {
        [height, width] if images => Some([height, width, 1]),
        [height, width, channels] if images => Some([height, width, channels]),
        _ => None,
    };
    let sized = |[height, width, channels]: [usize; 3]| match size {
        Some(size) => [size.height, size.width, channels],
        None => [height, width, channels],
    };
    match (network.least_side(), image.map(sized)) {
        (None, Some(image)) => Ok(image.to_vec()),
        (None, None) => Ok(own.to_vec()),
        (Some(least), Some(image)) if image[0].min(image[1]) >= least => Ok(image.to_vec()),
        (Some(least), Some(_)) if size.is_some() => {
            bail!("--image-size: {} takes sides of {least} and more", network.name())
        }
        (Some(_), Some(image)) => Ok(vec![usual[0], usual[1], image[2]]),
        // Flat rows of pixels, as in tables of digits.
        (Some(_), None) if own.iter().product::<usize>() == usual.iter().product::<usize>() => {
            Ok(usual)
        }
        (Some(_), None) => bail!(
            "{} takes images [height, width, channels], received {own:?}; mnist-mlp takes any",
            network.name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_not_turned_or_resized_to_fit() {
        assert!(check_shape(&[28, 28], &[28, 28, 1]).is_ok());
        assert!(check_shape(&[28, 28, 1], &[784]).is_ok());
        for other in [[4, 2], [3, 2], [2, 5]] {
            assert!(check_shape(&other, &[2, 4]).is_err(), "{other:?}");
        }
    }

    #[test]
    fn columns_are_matched_by_name_and_a_single_one_needs_none() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let given = [("b".to_string(), 2), ("a".to_string(), 1)];
        assert_eq!(by_name("x", &given, &names(&["a", "b"])).unwrap(), [1, 2]);
        assert_eq!(by_name("x", &[(String::new(), 7)], &names(&["a"])).unwrap(), [7]);
        let error = by_name("y", &given[..1], &names(&["a"])).unwrap_err().to_string();
        assert_eq!(error, "expected y_a, as the model names them, received y_b");
        assert!(by_name("y", &given, &names(&["a"])).is_err());
        assert!(by_name("y", &given, &names(&["a", "c"])).is_err());
    }
}
