//! Valid and damaged data files.

use flate2::Compression;
use flate2::write::GzEncoder;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use phalanx::Tensor;
use phalanx::datasets::npy;
use std::io::Write;
use std::path::Path;

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// An IDX file: magic with the rank, sizes, bytes.
fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| out.extend(size.to_be_bytes()));
    out.extend(bytes);
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(vec![]);
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub fn plain(rgb: [u8; 3]) -> DynamicImage {
    RgbImage::from_pixel(20, 14, Rgb(rgb)).into()
}

/// A PNG whose header declares sides of 65,535.
fn huge_png() -> Vec<u8> {
    let mut bytes = encoded(&plain([0; 3]), ImageFormat::Png);
    bytes[16..24].copy_from_slice(&[0, 0, 255, 255, 0, 0, 255, 255]);
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[12..29]);
    let sum = crc.sum().to_be_bytes();
    bytes[29..33].copy_from_slice(&sum);
    bytes
}

/// A directory of damaged files, the `--data` argument and the expected message.
type Damaged = (&'static str, String, &'static str);

/// Writes damaged files, each kind in its own directory.
pub fn damaged(dir: &Path) -> Vec<Damaged> {
    [damaged_mnist(dir), damaged_cifar(dir), damaged_images(dir), damaged_tables(dir)].concat()
}

fn damaged_mnist(dir: &Path) -> Vec<Damaged> {
    let mut cases = vec![];
    let mut mnist = |what: &'static str, file: &str, bytes: Vec<u8>, expected: &'static str| {
        let data = dir.join(what).join("data/mnist");
        for part in ["train", "t10k"] {
            write(&data.join(format!("{part}-images-idx3-ubyte")), &idx(&[2, 28, 28], &[0; 1568]));
            write(&data.join(format!("{part}-labels-idx1-ubyte")), &idx(&[2], &[1, 2]));
        }
        if file.ends_with(".gz") {
            std::fs::remove_file(data.join(file.trim_end_matches(".gz"))).unwrap();
        }
        write(&data.join(file), &bytes);
        cases.push((what, "mnist".to_string(), expected));
    };
    let images = "train-images-idx3-ubyte";
    let labels = "train-labels-idx1-ubyte";
    mnist("idx-magic", images, b"\x89PNG rather than idx".to_vec(), images);
    mnist("idx-empty", images, vec![], images);
    mnist("idx-count", images, idx(&[3, 28, 28], &[0; 1568]), images);
    mnist("idx-rank-0", images, idx(&[], &[]), images);
    mnist("idx-rank-255", images, [&[0, 0, 8, 255][..], &[0; 64]].concat(), images);
    mnist("idx-overflow", images, idx(&[u32::MAX; 3], &[0; 1568]), images);
    mnist("idx-label", labels, idx(&[2], &[1, 10]), "labels below 10");
    mnist("idx-mismatch", labels, idx(&[3], &[1, 2, 3]), "one per image");
    let good = gzip(&idx(&[2, 28, 28], &[7; 1568]));
    mnist("idx-cut-gzip", "train-images-idx3-ubyte.gz", good[..good.len() / 2].to_vec(), images);
    let bomb = gzip(&[idx(&[2, 28, 28], &[]), vec![0; 100 << 20]].concat());
    mnist("idx-bomb", "train-images-idx3-ubyte.gz", bomb, images);
    cases
}

fn damaged_cifar(dir: &Path) -> Vec<Damaged> {
    let mut cases = vec![];
    let mut cifar = |what: &'static str, bytes: &[u8], expected: &'static str| {
        for i in 1..=5 {
            let file = format!("data/cifar-10-batches-bin/data_batch_{i}.bin");
            write(&dir.join(what).join(file), &[0; 3073]);
        }
        write(&dir.join(what).join("data/cifar-10-batches-bin/test_batch.bin"), bytes);
        cases.push((what, "cifar-10".to_string(), expected));
    };
    cifar("cifar-length", &[0; 3074], "records of 3073 bytes");
    cifar("cifar-empty", &[], "test_batch.bin");
    cifar("cifar-label", &[vec![10], vec![0; 3072]].concat(), "labels below 10");
    cases
}

fn damaged_images(dir: &Path) -> Vec<Damaged> {
    let mut cases = vec![];
    let mut folder = |what: &'static str, file: &str, bytes: &[u8], expected: &'static str| {
        let images = dir.join(what).join("images");
        for class in ["a", "b"] {
            let good = encoded(&plain([9; 3]), ImageFormat::Png);
            (0..5).for_each(|i| write(&images.join(format!("{class}/{i}.png")), &good));
        }
        write(&images.join(file), bytes);
        cases.push((what, "images".to_string(), expected));
    };
    let jpeg = encoded(&plain([1, 2, 3]), ImageFormat::Jpeg);
    folder("image-zero-bytes", "a/x.png", &[], "a/x.png: expected a JPEG or PNG");
    folder("image-text", "b/x.jpg", b"a letter", "b/x.jpg: expected a JPEG or PNG");
    folder("image-cut", "a/x.jpg", &jpeg[..jpeg.len() / 3], "a/x.jpg");
    folder("image-huge", "a/x.png", &huge_png(), "a/x.png");

    std::fs::create_dir_all(dir.join("folder-empty/images/a")).unwrap();
    cases.push(("folder-empty", "images".into(), "JPEG or PNG files"));
    let good = encoded(&plain([9; 3]), ImageFormat::Png);
    (0..9).for_each(|i| write(&dir.join(format!("folder-one/images/a/{i}.png")), &good));
    cases.push(("folder-one", "images".into(), "two classes or more"));
    std::fs::create_dir_all(dir.join("folder-loop/images")).unwrap();
    std::os::unix::fs::symlink("a", dir.join("folder-loop/images/a")).unwrap();
    cases.push(("folder-loop", "images".into(), "images/a: Too many levels"));
    cases
}

fn damaged_tables(dir: &Path) -> Vec<Damaged> {
    let mut cases = vec![];
    let mut file = |what: &'static str, name: &str, bytes: &[u8], expected: &'static str| {
        write(&dir.join(what).join(name), bytes);
        cases.push((what, name.to_string(), expected));
    };
    file("npz-text", "x.npz", b"no zip", "an npz (zip) file");
    file("csv-words", "x.csv", b"a,b\nred,1\n", "finite numbers");
    file("csv-empty", "x.csv", b"", "x.csv");
    file("csv-ragged", "x.csv", b"a,b\n1,2\n1,2,3\n", "2 columns");
    let row = "0,".repeat(32 * 32 * 3);
    let table = |label: &str| {
        let names: String = (0..32 * 32 * 3).map(|i| format!("p{i},")).collect();
        format!("{names}label\n{row}{label}\n").into_bytes()
    };
    file("csv-fractions", "x.csv", &table("0.5"), "class numbers or one-hot rows");
    file("csv-negative", "x.csv", &table("-1"), "class numbers from 0 to 65535, received -1");
    let rows = "1,0\n2,1\n".repeat(5);
    file("csv-flat", "x.csv", format!("a,b\n{rows}").as_bytes(), "takes images");
    cases
}

/// Writes two classes, blue and red, as images (one JPEG, one with 16 bits, several sizes), as split directories, as an
/// `.npz`, a table and an array.
pub fn colours(dir: &Path) {
    let shade = |class: usize, i: usize| {
        let (strong, weak) = (200 + i as u8, 10 + 2 * i as u8);
        if class == 0 { [weak, weak, strong] } else { [strong, weak, weak] }
    };
    let mut table = String::from("r,g,b,kind\n");
    let (mut bytes, mut labels) = (vec![], vec![]);
    for (class, name) in ["blue", "red"].into_iter().enumerate() {
        for i in 0..20 {
            let rgb = shade(class, i);
            let mut image = DynamicImage::from(RgbImage::from_pixel(20, 14 + i as u32, Rgb(rgb)));
            if class == 1 && i == 7 {
                image = DynamicImage::from(image.to_rgb16());
            }
            let (format, kind) = match i {
                0 => (ImageFormat::Jpeg, "jpg"),
                _ => (ImageFormat::Png, "png"),
            };
            let part = if i % 5 == 4 { "test" } else { "train" };
            let file = encoded(&image, format);
            write(&dir.join(format!("images/{name}/{i}.{kind}")), &file);
            write(&dir.join(format!("parts/{part}/{name}/{i}.{kind}")), &file);
            let [r, g, b] = rgb.map(|v| f32::from(v) / 255.0);
            table += &format!("{r},{g},{b},{name}\n");
            bytes.extend([rgb; 16].concat());
            labels.push(class as u8);
        }
    }
    std::fs::write(dir.join("table.csv"), table).unwrap();
    let array = |shape: &str, bytes: &[u8]| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}");
        let header = format!("{header:<117}\n");
        [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), bytes].concat()
    };
    let arrays = [("x.npy", array("40, 4, 4, 3", &bytes)), ("y.npy", array("40,", &labels))];
    zip(&dir.join("colours.npz"), &arrays);
    let two: Vec<f32> = [shade(0, 3), shade(1, 3)]
        .iter()
        .flat_map(|rgb| [*rgb; 96].concat())
        .map(f32::from)
        .collect();
    npy::write(&dir.join("x.npy"), &Tensor::new([2, 8, 12, 3], two).unwrap()).unwrap();
}

/// Builds a zip of stored files with UTF-8 names by hand.
pub fn zip(path: &Path, files: &[(&str, Vec<u8>)]) {
    let (mut out, mut directory) = (vec![], vec![]);
    for (name, bytes) in files {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        let at = out.len() as u32;
        let size = (bytes.len() as u32).to_le_bytes();
        let common = [
            &[20, 0, 0, 8, 0, 0, 0, 0, 33, 0][..],
            &crc.sum().to_le_bytes(),
            &size,
            &size,
            &(name.len() as u16).to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        out.extend([b"PK\x03\x04", &common[..], name.as_bytes(), bytes].concat());
        directory.extend(
            [b"PK\x01\x02\x14\0", &common[..], &[0; 10], &at.to_le_bytes(), name.as_bytes()]
                .concat(),
        );
    }
    let (count, start) = (files.len() as u16, out.len() as u32);
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    std::fs::write(path, out).unwrap();
}
