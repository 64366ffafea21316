//! The parsers, each with valid files to start from.

use super::models;
use super::mutate::mutated;
use flate2::Compression;
use flate2::write::GzEncoder;
use image::ImageFormat;
use phalanx::data::{ColorMode, read_image};
use phalanx::datasets::{Categories, Csv, Missing, cifar, load_npz, mnist, npy};
use phalanx::prelude::*;
use serde_json::{Map, Value};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

/// Whether bytes are accepted.
type Parse = dyn Fn(&[u8]) -> bool;
/// Wraps a part into a complete file.
type Wrap = dyn Fn(&[u8]) -> Vec<u8>;

/// A parser.
pub struct Target {
    pub name: &'static str,
    pub seeds: Vec<Seed>,
    pub parse: Box<Parse>,
}

/// A valid file: the part to mutate, the mutation, and the rest of the file.
pub struct Seed {
    part: Vec<u8>,
    mutate: fn(&[u8], u64) -> Vec<u8>,
    file: Box<Wrap>,
}

impl Seed {
    /// A part of a file.
    pub fn inside(
        part: Vec<u8>,
        mutate: fn(&[u8], u64) -> Vec<u8>,
        file: impl Fn(&[u8]) -> Vec<u8> + 'static,
    ) -> Seed {
        Seed { part, mutate, file: Box::new(file) }
    }

    /// The valid file.
    pub fn valid(&self) -> Vec<u8> {
        (self.file)(&self.part)
    }

    /// A mutated file.
    pub fn damaged(&self, number: u64) -> Vec<u8> {
        (self.file)(&(self.mutate)(&self.part, number))
    }
}

impl From<Vec<u8>> for Seed {
    fn from(file: Vec<u8>) -> Seed {
        Seed::inside(file, mutated, <[u8]>::to_vec)
    }
}

/// A parser of a file with this name.
pub fn of_file(
    name: &'static str,
    file: &'static str,
    seeds: Vec<impl Into<Seed>>,
    parse: impl Fn(&Path) -> bool + 'static,
) -> Target {
    let directory = tempfile::tempdir().unwrap();
    let parse = move |bytes: &[u8]| {
        let path = directory.path().join(file);
        std::fs::write(&path, bytes).unwrap();
        parse(&path)
    };
    let seeds = seeds.into_iter().map(Into::into).collect();
    Target { name, seeds, parse: Box::new(parse) }
}

/// The content that a function writes to a file of this name.
pub fn written(file: &str, write: impl FnOnce(&Path)) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(file);
    write(&path);
    std::fs::read(path).unwrap()
}

pub fn targets() -> Vec<Target> {
    let mut all =
        vec![weights(), array(), archive(), table(), picture(), digits(), photos(), run()];
    all.extend(configs());
    all.extend(models::targets());
    all
}

fn network() -> Model {
    let dense = Dense::new(3).activation("relu");
    let model =
        Sequential::new().add(Input::new([4])).add(dense).add(BatchNormalization::new()).build();
    let model = model.unwrap();
    model.initialize(1).unwrap();
    model
}

fn weights() -> Target {
    let seed = written("a.safetensors", |path| network().save_weights(path).unwrap());
    of_file("weights", "a.safetensors", vec![seed], |path| network().load_weights(path).is_ok())
}

fn run() -> Target {
    let model = || {
        let mut model = network();
        model.compile(Compile::new("adam").loss("mse")).unwrap();
        model
    };
    let data = || (Tensor::zeros([4, 4]), Tensor::zeros([4, 3]));
    let fit = move |directory: &Path, epochs: usize| {
        let backup = BackupAndRestore::new(directory).delete_checkpoint(false);
        let fit = Fit::new().epochs(epochs).verbose(0).callback(backup);
        model().fit(data(), fit).is_ok()
    };
    let directory = tempfile::tempdir().unwrap();
    assert!(fit(directory.path(), 1));
    let file = "step-0000000001.safetensors";
    let seed = std::fs::read(directory.path().join(file)).unwrap();
    of_file("run", file, vec![seed], move |path| fit(path.parent().unwrap(), 1))
}

fn array() -> Target {
    let tensor = |dims: &[usize]| Tensor::new(dims, vec![0.5; dims.iter().product()]).unwrap();
    let save = |dims: &[usize]| written("a.npy", |path| npy::write(path, &tensor(dims)).unwrap());
    let seeds = vec![save(&[3, 4]), save(&[2, 2, 2, 1]), save(&[5])];
    of_file("npy", "a.npy", seeds, |path| npy::read(path).is_ok())
}

fn archive() -> Target {
    let part = |dims: &[usize]| {
        let tensor = Tensor::new(dims, vec![1.0; dims.iter().product()]).unwrap();
        written("a.npy", |path| npy::write(path, &tensor).unwrap())
    };
    let build = |method| {
        let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        for (name, dims) in [("x.npy", &[6, 3][..]), ("y.npy", &[6])] {
            zip.start_file(name, options).unwrap();
            zip.write_all(&part(dims)).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    let seeds =
        vec![build(zip::CompressionMethod::Stored), build(zip::CompressionMethod::Deflated)];
    of_file("npz", "a.npz", seeds, |path| load_npz(path).is_ok())
}

fn table() -> Target {
    let seeds =
        vec![b"a,b,label\n1,2,0\n3.5,-4,1\n".to_vec(), b"\"a\",\"b\"\r\n1e3,0\r\n2,1\r\n".to_vec()];
    of_file("csv", "a.csv", seeds, |path| {
        let filled = Csv::new().categories(Categories::OneHot).missing(Missing::Mean);
        Csv::new().load(path).is_ok() | filled.load(path).is_ok()
    })
}

fn picture() -> Target {
    let image = image::DynamicImage::ImageRgb8(image::RgbImage::from_fn(9, 7, |x, y| {
        image::Rgb([x as u8 * 20, y as u8 * 30, 99])
    }));
    let encode = |format| {
        let mut bytes = Cursor::new(vec![]);
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    };
    let seeds = vec![encode(ImageFormat::Png), encode(ImageFormat::Jpeg)];
    of_file("image", "a.png", seeds, |path| read_image(path, ColorMode::Rgb).is_ok())
}

/// An idx file: magic, dimensions, bytes.
fn idx(dims: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|d| d.to_be_bytes()));
    bytes.extend(vec![1; dims.iter().product::<u32>() as usize]);
    bytes
}

fn digits() -> Target {
    let (images, labels) = (idx(&[3, 28, 28]), idx(&[3]));
    let gzip = |bytes: &[u8]| {
        let mut out = GzEncoder::new(vec![], Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let place = |directory: &Path, name: &str| -> PathBuf { directory.join(name) };
    let seeds = vec![images.clone(), gzip(&images)];
    of_file("idx", "seed", seeds, move |path| {
        let directory = path.parent().unwrap();
        std::fs::copy(path, place(directory, "train-images-idx3-ubyte.gz")).unwrap();
        std::fs::write(place(directory, "t10k-images-idx3-ubyte"), &images).unwrap();
        for name in ["train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"] {
            std::fs::write(place(directory, name), &labels).unwrap();
        }
        mnist::load(Some(directory)).is_ok()
    })
}

fn photos() -> Target {
    let record: Vec<u8> = [vec![3], vec![7; 3072]].concat();
    let seed = record.repeat(2);
    of_file("cifar", "data_batch_1.bin", vec![seed.clone()], move |path| {
        let directory = path.parent().unwrap();
        for name in ["data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"] {
            std::fs::write(directory.join(format!("{name}.bin")), &seed).unwrap();
        }
        cifar::load(Some(directory)).is_ok()
    })
}

/// Parses `{"class_name": …, "config": {…}}`.
fn config(
    name: &'static str,
    seeds: &[Value],
    read: fn(&str, Map<String, Value>) -> bool,
) -> Target {
    let seeds = seeds.iter().map(|s| s.to_string().into_bytes().into()).collect();
    let parse = move |bytes: &[u8]| {
        let Ok(Value::Object(mut object)) = serde_json::from_slice(bytes) else { return false };
        let class = object.remove("class_name");
        match (class, object.remove("config")) {
            (Some(Value::String(class)), Some(Value::Object(config))) => read(&class, config),
            _ => false,
        }
    };
    Target { name, seeds, parse: Box::new(parse) }
}

fn configs() -> Vec<Target> {
    let of = |class: &str, config: Map<String, Value>| serde_json::json!({"class_name": class, "config": config});
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Conv2D::new(3, 3).strides(2).padding("same").activation("relu")),
        Box::new(BatchNormalization::new().momentum(0.5)),
        Box::new(Dense::new(4).kernel_initializer("he_normal")),
        Box::new(MaxPooling2D::new(2)),
    ];
    let layers: Vec<Value> = layers.iter().map(|l| of(l.class_name(), l.config())).collect();
    let optimizers: Vec<Box<dyn Optimizer>> =
        vec![Box::new(Adam::default()), Box::new(SGD::new(CosineDecay::new(0.1, 5)).momentum(0.9))];
    let optimizers: Vec<Value> =
        optimizers.iter().map(|o| of(o.class_name(), o.config())).collect();
    vec![
        config("layer", &layers, |c, m| phalanx::layers::from_config(c, m).is_ok()),
        config("optimizer", &optimizers, |c, m| phalanx::optimizers::from_config(c, &m).is_ok()),
    ]
}
