//! Files written and read back, files of h5py, and files that are damaged or malicious.

use phalanx_hdf5::{Error, File, GroupBuilder, MAX_OBJECTS, Member};

fn sample() -> GroupBuilder {
    let mut root = GroupBuilder::new();
    root.attribute("one", "héllo");
    root.attribute("list", (0..50).map(|i| format!("layer_{i}")).collect::<Vec<_>>());
    root.attribute("none", Vec::<String>::new());
    root.attribute("long", "x".repeat(100_000));
    root.dataset("a/b/vars/0", &[2, 3], vec![1.0f32, -0.0, f32::NAN, 4.0, 5.5, 6.0]);
    root.dataset("a/count", &[], vec![-7]);
    root.dataset("a/empty", &[0, 4], Vec::<f32>::new());
    // Several nodes, several levels of the tree.
    for i in 0..700 {
        root.dataset(&format!("many/{i}"), &[1], vec![i]);
    }
    root.group("b").attribute("name", "empty");
    root
}

#[test]
fn content_round_trips() {
    let bytes = sample().to_bytes().unwrap();
    assert_eq!(bytes, sample().to_bytes().unwrap());
    let file = File::from_bytes(bytes).unwrap();
    let text = |name: &str| file.root().attribute(name).unwrap().read_strings().unwrap();
    assert_eq!(text("one"), ["héllo"]);
    assert_eq!((text("list").len(), text("list")[49].as_str()), (50, "layer_49"));
    assert_eq!(text("none"), [] as [String; 0]);
    assert_eq!(file.root().attribute("long").unwrap().read_string().unwrap().len(), 100_000);
    assert!(file.root().attribute("list").unwrap().read_string().is_err());
    let data = file.root().dataset("a/b/vars/0").unwrap();
    assert_eq!((data.shape(), data.element_type().to_string().as_str()), (&[2, 3][..], "f32"));
    let bits: Vec<u32> = data.read_f32().unwrap().iter().map(|v| v.to_bits()).collect();
    assert_eq!(bits, [1.0, -0.0, f32::NAN, 4.0, 5.5, 6.0].map(f32::to_bits));
    assert_eq!(file.root().dataset("a/count").unwrap().read_f64().unwrap(), [-7.0]);
    assert!(file.root().dataset("a/empty").unwrap().read_f32().unwrap().is_empty());
    let many = file.root().group("many").unwrap();
    for i in 0..700 {
        let dataset = many.dataset(&i.to_string()).unwrap();
        assert_eq!(dataset.read_f64().unwrap(), [f64::from(i)]);
    }
    assert_eq!(file.root().datasets().len(), 703);
    let fault = file.root().dataset("a/b").unwrap_err().to_string();
    assert_eq!(fault, "a group where the dataset 'a/b' belongs");
    assert_eq!(
        file.root().group("a/c").unwrap_err().to_string(),
        "nothing where the group 'a/c' belongs"
    );
}

/// Reads everything in a file.
fn exhaust(bytes: Vec<u8>) {
    let Ok(file) = File::from_bytes(bytes) else { return };
    for (_, dataset) in file.root().datasets() {
        let _ = dataset.read_f64();
        let _ = dataset.read_f32();
    }
    for (_, attribute) in file.root().attributes() {
        let _ = attribute.read_strings();
        let _ = attribute.to_string();
    }
}

#[test]
fn broken_files_are_refused_or_read_without_a_panic() {
    let mut root = GroupBuilder::new();
    root.attribute("names", vec!["a".to_string(), "b".to_string()]);
    root.dataset("layers/dense/vars/0", &[2, 3], vec![1.0f32; 6]);
    root.dataset("layers/dense/vars/1", &[3], vec![1; 3]);
    let good = root.to_bytes().unwrap();
    for length in 0..good.len() {
        exhaust(good[..length].to_vec());
    }
    for at in 0..good.len() {
        for value in [0, 1, 2, 0x10, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            exhaust(bytes);
        }
    }
    // Complete addresses and sizes.
    for at in (0..good.len() - 8).step_by(4) {
        for value in [0, 96, good.len() as u64, u64::from(u32::MAX), u64::MAX / 2, u64::MAX] {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            exhaust(bytes);
        }
    }
}

#[test]
fn a_group_that_contains_itself_is_rejected() {
    let mut root = GroupBuilder::new();
    root.group("a/b");
    let mut bytes = root.to_bytes().unwrap();
    // The header of the root is the last object; let the entry 'b' of 'a' point to it.
    let start = u64::from_le_bytes(bytes[64..72].try_into().unwrap());
    let node = bytes.windows(4).position(|w| w == b"SNOD").unwrap();
    bytes[node + 16..node + 24].copy_from_slice(&start.to_le_bytes());
    let fault = File::from_bytes(bytes).unwrap_err().to_string();
    assert!(fault.starts_with("two links to the object at"), "{fault}");
}

/// All positions of some bytes.
fn positions(bytes: &[u8], what: &[u8]) -> Vec<usize> {
    (0..bytes.len() - what.len()).filter(|at| bytes[*at..].starts_with(what)).collect()
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn trees_of_any_height_are_refused_without_a_panic() {
    let mut root = GroupBuilder::new();
    (0..700).for_each(|i| root.dataset(&format!("{i}"), &[1], vec![i]));
    let good = root.to_bytes().unwrap();
    for at in positions(&good, b"TREE") {
        let mut bytes = good.clone();
        bytes[at + 5] = 255;
        assert!(File::from_bytes(bytes).is_err());
    }
    let at = positions(CHUNKED, b"TREE\x01")[0];
    // Make the tree of the chunks its own child.
    let mut bytes = CHUNKED.to_vec();
    bytes[at + 5] = 1;
    let fault = |bytes: Vec<u8>| {
        let file = File::from_bytes(bytes).unwrap();
        file.root().dataset("chunked").unwrap().read_f64().unwrap_err().to_string()
    };
    // A key has two sizes and an offset in three axes.
    let child = at + 24 + 8 + 24;
    let mut itself = bytes.clone();
    put(&mut itself, child, at as u64);
    assert_eq!(fault(itself), "a tree of chunks that meets itself");
    // Another tree of that height at the end.
    put(&mut bytes, child, CHUNKED.len() as u64);
    bytes.extend(&CHUNKED[at..at + 24]);
    bytes[CHUNKED.len() + 5] = 255;
    assert_eq!(fault(bytes), "a tree of chunks of another kind");
}

#[test]
fn one_long_name_for_many_members_is_refused() {
    let mut root = GroupBuilder::new();
    root.dataset(&"x".repeat(3000), &[1], vec![1]);
    (0..2000).for_each(|i| root.dataset(&format!("{i}"), &[1], vec![i]));
    let mut bytes = root.to_bytes().unwrap();
    let heap = *positions(&bytes, b"HEAP").last().unwrap();
    let names = u64::from_le_bytes(bytes[heap + 24..heap + 32].try_into().unwrap());
    let long = (positions(&bytes, b"xxxxxxxx")[0] as u64) - names;
    for node in positions(&bytes, b"SNOD") {
        (0..8).for_each(|i| put(&mut bytes, node + 8 + 40 * i, long));
    }
    assert_eq!(File::from_bytes(bytes).unwrap_err().to_string(), "objects that overlap");
    let mut root = GroupBuilder::new();
    root.dataset(&"x/".repeat(30).replace('x', &"x".repeat(200)), &[1], vec![1]);
    assert_eq!(
        File::from_bytes(root.to_bytes().unwrap()).unwrap_err().to_string(),
        "a path of 4221 bytes"
    );
}

#[test]
fn chunks_that_overlap_are_refused() {
    let mut bytes = CHUNKED.to_vec();
    let at = positions(CHUNKED, b"TREE\x01")[0];
    // All chunks but the first are as long as the file allows, one byte apart.
    for i in 1..8 {
        let key = at + 24 + 40 * i;
        bytes[key..key + 4].copy_from_slice(&(CHUNKED.len() as u32 - 600).to_le_bytes());
        put(&mut bytes, key + 32, 500 + i as u64);
    }
    let file = File::from_bytes(bytes).unwrap();
    let fault = file.root().dataset("chunked").unwrap().read_f64().unwrap_err().to_string();
    assert!(fault.starts_with("8 chunks of [3, 4] in"), "{fault}");
}

#[test]
fn many_texts_of_one_heap_take_little_time() {
    let mut root = GroupBuilder::new();
    let texts = |from: usize| (from..from + 2000).map(|i| format!("{i}")).collect::<Vec<_>>();
    (0..30).for_each(|i| root.attribute(&format!("a{i}"), texts(i * 2000)));
    let file = File::from_bytes(root.to_bytes().unwrap()).unwrap();
    let began = std::time::Instant::now();
    for i in 0..30 {
        let texts = file.root().attribute(&format!("a{i}")).unwrap().read_strings().unwrap();
        assert_eq!(texts[7], format!("{}", i * 2000 + 7));
    }
    assert!(began.elapsed().as_secs() < 60);
}

/// Written by h5py 3.16 (tests/python/make_h5.py) with `libver="latest"`: twelve datasets in one group, twelve attributes attached
/// to it.
const NEWER: &[u8] = include_bytes!("fixtures/h5py_latest.h5");
/// The same with `libver="v108"`, and chunks with gzip, shuffle and checksums.
const CHUNKED: &[u8] = include_bytes!("fixtures/h5py_v108.h5");

#[test]
fn newer_files_of_h5py_are_read() {
    let file = File::from_bytes(NEWER.to_vec()).unwrap();
    for i in 0..12u8 {
        let data = file.root().dataset(&format!("many/{i}")).unwrap();
        assert_eq!(data.read_f32().unwrap(), [f32::from(i); 2]);
        let many = file.root().group("many").unwrap();
        let text = many.attribute(&format!("text_{i}")).unwrap().read_string().unwrap();
        assert_eq!(text, format!("value {i}"));
    }
    let linked = file.root().members().find(|(name, _)| *name == "elsewhere");
    assert!(matches!(linked, Some((_, Member::Link))));
    let file = File::from_bytes(CHUNKED.to_vec()).unwrap();
    let data = file.root().dataset("chunked").unwrap();
    let expected: Vec<f64> = (0..70).map(f64::from).collect();
    assert_eq!((data.shape(), data.read_f64().unwrap()), (&[10, 7][..], expected));
    let half = file.root().dataset("half").unwrap();
    assert_eq!(half.read_f32().unwrap(), [0.5, -2.0, f32::INFINITY]);
    let big = file.root().dataset("big_endian").unwrap();
    assert_eq!(big.read_f32().unwrap(), [1.5, -3.0]);
}

#[test]
fn broken_newer_files_are_refused_or_read_without_a_panic() {
    for good in [NEWER, CHUNKED] {
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.to_vec();
                bytes[at] = value;
                exhaust(bytes);
            }
        }
    }
}

#[test]
fn more_groups_and_datasets_than_a_model_has_are_refused() {
    let mut root = GroupBuilder::new();
    for i in 0..MAX_OBJECTS {
        root.dataset(&i.to_string(), &[0], Vec::<f32>::new());
    }
    let error = File::from_bytes(root.to_bytes().unwrap()).unwrap_err();
    assert_eq!(error, Error::Unsupported(format!("more than {MAX_OBJECTS} groups and datasets")));
}

#[test]
fn content_that_a_file_cannot_store_is_refused() {
    let refused = |change: fn(&mut GroupBuilder)| {
        let mut root = GroupBuilder::new();
        change(&mut root);
        root.to_bytes().unwrap_err().to_string()
    };
    let values = refused(|root| root.dataset("a/b", &[2, 2], vec![1i32]));
    assert_eq!(values, "1 values of 'b' for [2, 2]");
    assert_eq!(refused(|root| root.dataset("", &[1], vec![1i32])), r#"the name """#);
    assert_eq!(refused(|root| root.attribute("a\0b", "text")), r#"the name "a\0b""#);
    let strings = refused(|root| root.attribute("list", vec![String::new(); 5000]));
    assert_eq!(strings, "attribute 'list' too large");
    let many = refused(|root| (0..70_000).for_each(|i| root.attribute(&i.to_string(), "text")));
    assert_eq!(many, "70000 attributes of a group");
}
