use super::*;
use crate::data::{Dataset, HostBatch, Prefetch};
use image::{Rgb, RgbImage};

/// `n` images of 8x6 per class, each of a single color.
fn folder(classes: &[(&str, usize)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (c, (class, n)) in classes.iter().enumerate() {
        std::fs::create_dir(dir.path().join(class)).unwrap();
        for i in 0..*n {
            let image = RgbImage::from_pixel(8, 6, Rgb([c as u8 * 100, i as u8, 7]));
            image.save(dir.path().join(class).join(format!("{i:03}.png"))).unwrap();
        }
    }
    dir
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn classes_are_directories() {
    let dir = folder(&[("cat", 3), ("dog", 2)]);
    std::fs::write(dir.path().join("cat/notes.txt"), "not an image").unwrap();
    std::fs::create_dir(dir.path().join("dog/more")).unwrap();
    RgbImage::new(3, 3).save(dir.path().join("dog/more/x.JPG")).unwrap();
    let folder = ImageFolder::open(dir.path()).unwrap().target_size(4, 5).unwrap();
    assert_eq!(folder.class_names(), ["cat", "dog"]);
    assert_eq!(folder.labels().i32().unwrap(), [0, 0, 0, 1, 1, 1]);
    let (x, y) = folder.load().unwrap();
    assert_eq!((x.dims(), y.rows()), (&[6, 4, 5, 3][..], 6));
    let mut image = vec![0.0; 60];
    x.raw().read_row(4, &mut image);
    assert_eq!(image[..3], [100.0, 1.0, 7.0]);
    let grey = folder.color_mode(ColorMode::Grayscale);
    assert_eq!(grey.load().unwrap().0.dims(), [6, 4, 5, 1]);
}

#[test]
fn flow_from_directory_splits_each_class() {
    let dir = folder(&[("a", 4), ("b", 8)]);
    let generator = ImageDataGenerator::new().rescale(1.0 / 255.0).validation_split(0.25);
    let flow = |subset, class_mode| {
        let arguments = FromDirectory {
            target_size: (6, 8),
            class_mode,
            batch_size: 5,
            shuffle: false,
            subset: Some(subset),
            ..FromDirectory::default()
        };
        generator.flow_from_directory(dir.path(), arguments).unwrap()
    };
    let validation = flow(Subset::Validation, ClassMode::Sparse);
    assert_eq!((validation.len(), validation.batches()), (Some(3), Some(1)));
    let mut batch = HostBatch::default();
    assert!(validation.epoch(0, 0, 0).unwrap().next(&mut batch).unwrap());
    assert_eq!(batch.targets[0].i32().unwrap(), [0, 1, 1]);
    assert_eq!(batch.inputs[0].f32().unwrap()[0], 0.0);
    assert!((batch.inputs[0].f32().unwrap()[6 * 8 * 3] - 100.0 / 255.0).abs() < 1e-6);
    let train = flow(Subset::Training, ClassMode::Categorical);
    assert_eq!(train.len(), Some(9));
    assert!(train.epoch(0, 0, 1).unwrap().next(&mut batch).unwrap());
    assert_eq!(batch.targets[0].dims(), [5, 2]);
    let binary = flow(Subset::Training, ClassMode::Binary);
    assert!(binary.epoch(0, 0, 0).unwrap().next(&mut batch).unwrap());
    assert_eq!(batch.targets[0].f32().unwrap(), [0.0, 0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn unreadable_files_are_named() {
    let dir = folder(&[("a", 20), ("b", 3)]);
    let path = dir.path().join("b/001.png");
    let whole = std::fs::read(&path).unwrap();
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    for bytes in [&[][..], b"no image", &whole[..whole.len() / 2], &huge, &[0xff, 0xd8, 0xff]] {
        std::fs::write(&path, bytes).unwrap();
        let folder = ImageFolder::open(dir.path()).unwrap().target_size(6, 8).unwrap();
        let said = message(folder.load());
        assert!(said.contains("b/001.png: expected"), "{said}");
        let arguments = FromDirectory { target_size: (6, 8), ..FromDirectory::default() };
        let flow = ImageDataGenerator::new().flow_from_directory(dir.path(), arguments).unwrap();
        let ahead = Prefetch::new(Arc::new(flow)).workers(3);
        let mut batch = HostBatch::default();
        let mut epoch = ahead.epoch(0, 0, 0).unwrap();
        let said = message(loop {
            match epoch.next(&mut batch) {
                Ok(true) => {}
                other => break other,
            }
        });
        assert!(said.contains("b/001.png: expected"), "{said}");
    }
    std::fs::write(&path, &whole).unwrap();
    let folder = ImageFolder::open(dir.path()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(message(folder.load()).contains("b/001.png: No such file"));
}

#[test]
fn directories_without_images_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(message(ImageFolder::open(dir.path())).contains("received no directories"));
    assert!(message(ImageFolder::open(dir.path().join("none"))).contains("No such file"));
    std::fs::create_dir(dir.path().join("cat")).unwrap();
    assert!(message(ImageFolder::open(dir.path())).contains("JPEG or PNG files"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(dir.path(), dir.path().join("cat/loop")).unwrap();
        assert!(message(ImageFolder::open(dir.path())).contains("JPEG or PNG files"));
    }
    let dir = folder(&[("a", 1)]);
    let folder = ImageFolder::open(dir.path()).unwrap();
    assert!(message(folder.clone().target_size(0, 5)).contains("target_size"));
    let binary = FromDirectory { class_mode: ClassMode::Binary, ..FromDirectory::default() };
    let flow = ImageDataGenerator::new().flow_from_directory(dir.path(), binary);
    assert!(message(flow).contains("class_mode: expected two classes, received 1"));
}

#[cfg(unix)]
#[test]
fn an_unreadable_class_is_an_error() {
    let dir = folder(&[("a", 1), ("c", 1)]);
    std::os::unix::fs::symlink("b", dir.path().join("b")).unwrap();
    let error = message(ImageFolder::open(dir.path()));
    assert!(error.contains("/b: ") && error.contains("os error"), "{error}");
}

#[test]
fn images_are_cached_up_to_the_budget() {
    let dir = folder(&[("a", 4), ("b", 3)]);
    let open = || ImageFolder::open(dir.path()).unwrap().target_size(2, 2).unwrap();
    let whole = open().load().unwrap().0.raw();
    // Each image takes twelve bytes, so the budget is enough for two.
    let images = open().cache(30);
    for (round, decoded) in [(0, 7), (1, 12), (2, 17)] {
        for row in 0..7 {
            let mut image = [0.0; 12];
            whole.read_row(row, &mut image);
            let bytes: Vec<f32> =
                images.bytes(row).unwrap().iter().map(|b| f32::from(*b)).collect();
            assert_eq!(bytes, image);
        }
        assert_eq!(images.decoded(), decoded, "round {round}");
    }
    std::fs::write(dir.path().join("b/002.png"), "no image").unwrap();
    assert!(images.bytes(0).is_ok(), "kept");
    let said = message(images.bytes(6));
    assert!(said.contains("002.png: expected a JPEG or PNG image"), "{said}");
}
