use super::*;

fn sample() -> Content {
    let mut root = Content::group();
    root.attribute("one", Text::One("héllo".into()));
    root.attribute("list", Text::Many((0..50).map(|i| format!("layer_{i}")).collect()));
    root.attribute("none", Text::Many(vec![]));
    root.attribute("long", Text::One("x".repeat(100_000)));
    root.put("a/b/vars/0", &[2, 3], Values::F32(vec![1.0, -0.0, f32::NAN, 4.0, 5.5, 6.0]));
    root.put("a/count", &[], Values::I32(vec![-7]));
    root.put("a/empty", &[0, 4], Values::F32(vec![]));
    // Several nodes, several levels of the tree.
    for i in 0..700 {
        root.put(&format!("many/{i}"), &[1], Values::I32(vec![i]));
    }
    root.at("b").attribute("name", Text::One("empty".into()));
    root
}

#[test]
fn content_round_trips() {
    let bytes = write(&sample());
    assert_eq!(bytes, write(&sample()));
    let file = File::new(bytes).unwrap();
    let text = |name: &str| file.texts(&file.root.attributes[name]).unwrap();
    assert_eq!(text("one"), ["héllo"]);
    assert_eq!((text("list").len(), text("list")[49].as_str()), (50, "layer_49"));
    assert_eq!(text("none"), [] as [String; 0]);
    assert_eq!(file.text(&file.root.attributes["long"]).unwrap().len(), 100_000);
    assert!(file.text(&file.root.attributes["list"]).is_err());
    let data = file.root.dataset("a/b/vars/0").unwrap();
    assert_eq!((data.dims.clone(), data.kind.name().as_str()), (vec![2, 3], "f32"));
    let bits: Vec<u32> = file.floats(data).unwrap().iter().map(|v| v.to_bits()).collect();
    assert_eq!(bits, [1.0, -0.0, f32::NAN, 4.0, 5.5, 6.0].map(f32::to_bits));
    assert_eq!(file.numbers(file.root.dataset("a/count").unwrap()).unwrap(), [-7.0]);
    assert!(file.floats(file.root.dataset("a/empty").unwrap()).unwrap().is_empty());
    let many = file.root.group("many").unwrap();
    for i in 0..700 {
        let dataset = many.dataset(&i.to_string()).unwrap();
        assert_eq!(file.numbers(dataset).unwrap(), [f64::from(i)]);
    }
    assert_eq!(file.root.datasets().len(), 703);
    let fault = file.root.dataset("a/b").unwrap_err().0;
    assert_eq!(fault, "a group where the dataset 'a/b' belongs");
    assert_eq!(file.root.group("a/c").unwrap_err().0, "nothing where the group 'a/c' belongs");
}

/// Reads everything in a file.
fn exhaust(bytes: Vec<u8>) {
    let Ok(file) = File::new(bytes) else { return };
    for (_, dataset) in file.root.datasets() {
        let _ = file.numbers(dataset);
        let _ = file.floats(dataset);
    }
    for attribute in file.root.attributes.values() {
        let _ = file.texts(attribute);
    }
}

#[test]
fn broken_files_are_refused_or_read_without_a_panic() {
    let mut root = Content::group();
    root.attribute("names", Text::Many(vec!["a".into(), "b".into()]));
    root.put("layers/dense/vars/0", &[2, 3], Values::F32(vec![1.0; 6]));
    root.put("layers/dense/vars/1", &[3], Values::I32(vec![1; 3]));
    let good = write(&root);
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
    let mut root = Content::group();
    root.at("a/b");
    let mut bytes = write(&root);
    // The header of the root is the last object; let the entry 'b' of 'a' point to it.
    let start = u64::from_le_bytes(bytes[64..72].try_into().unwrap());
    let node = bytes.windows(4).position(|w| w == b"SNOD").unwrap();
    bytes[node + 16..node + 24].copy_from_slice(&start.to_le_bytes());
    let fault = File::new(bytes).unwrap_err().0;
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
    let mut root = Content::group();
    (0..700).for_each(|i| root.put(&format!("{i}"), &[1], Values::I32(vec![i])));
    let good = write(&root);
    for at in positions(&good, b"TREE") {
        let mut bytes = good.clone();
        bytes[at + 5] = 255;
        assert!(File::new(bytes).is_err());
    }
    let at = positions(CHUNKED, b"TREE\x01")[0];
    // Make the tree of the chunks its own child.
    let mut bytes = CHUNKED.to_vec();
    bytes[at + 5] = 1;
    let fault = |bytes: Vec<u8>| {
        let file = File::new(bytes).unwrap();
        file.numbers(file.root.dataset("chunked").unwrap()).unwrap_err().0
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
    let mut root = Content::group();
    root.put(&"x".repeat(3000), &[1], Values::I32(vec![1]));
    (0..2000).for_each(|i| root.put(&format!("{i}"), &[1], Values::I32(vec![i])));
    let mut bytes = write(&root);
    let heap = *positions(&bytes, b"HEAP").last().unwrap();
    let names = u64::from_le_bytes(bytes[heap + 24..heap + 32].try_into().unwrap());
    let long = (positions(&bytes, b"xxxxxxxx")[0] as u64) - names;
    for node in positions(&bytes, b"SNOD") {
        (0..8).for_each(|i| put(&mut bytes, node + 8 + 40 * i, long));
    }
    assert_eq!(File::new(bytes).unwrap_err().0, "objects that overlap");
    let mut root = Content::group();
    root.put(&"x/".repeat(30).replace('x', &"x".repeat(200)), &[1], Values::I32(vec![1]));
    assert_eq!(File::new(write(&root)).unwrap_err().0, "a path of 4221 bytes");
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
    let file = File::new(bytes).unwrap();
    let fault = file.numbers(file.root.dataset("chunked").unwrap()).unwrap_err().0;
    assert!(fault.starts_with("8 chunks of [3, 4] in"), "{fault}");
}

#[test]
fn many_texts_of_one_heap_take_little_time() {
    let mut root = Content::group();
    let texts = |from: usize| (from..from + 2000).map(|i| format!("{i}")).collect();
    (0..30).for_each(|i| root.attribute(&format!("a{i}"), Text::Many(texts(i * 2000))));
    let file = File::new(write(&root)).unwrap();
    let began = std::time::Instant::now();
    for i in 0..30 {
        let texts = file.texts(&file.root.attributes[&format!("a{i}")]).unwrap();
        assert_eq!(texts[7], format!("{}", i * 2000 + 7));
    }
    assert!(began.elapsed().as_secs() < 60);
}

/// Written by h5py 3.16 with `libver="latest"`: twelve datasets in one group, twelve attributes attached
/// to it.
const NEWER: &[u8] = include_bytes!("../../../../../tests/fixtures/h5py_latest.h5");
/// The same with `libver="v108"`, and chunks with gzip, shuffle and checksums.
const CHUNKED: &[u8] = include_bytes!("../../../../../tests/fixtures/h5py_v108.h5");

#[test]
fn newer_files_of_h5py_are_read() {
    let file = File::new(NEWER.to_vec()).unwrap();
    for i in 0..12u8 {
        let data = file.root.dataset(&format!("many/{i}")).unwrap();
        assert_eq!(file.floats(data).unwrap(), [f32::from(i); 2]);
        let many = file.root.group("many").unwrap();
        let text = file.text(&many.attributes[&format!("text_{i}")]).unwrap();
        assert_eq!(text, format!("value {i}"));
    }
    assert!(matches!(file.root.members["elsewhere"], Node::Link));
    let file = File::new(CHUNKED.to_vec()).unwrap();
    let data = file.root.dataset("chunked").unwrap();
    let expected: Vec<f64> = (0..70).map(f64::from).collect();
    assert_eq!((data.dims.clone(), file.numbers(data).unwrap()), (vec![10, 7], expected));
    let half = file.root.dataset("half").unwrap();
    assert_eq!(file.floats(half).unwrap(), [0.5, -2.0, f32::INFINITY]);
    let big = file.root.dataset("big_endian").unwrap();
    assert_eq!(file.floats(big).unwrap(), [1.5, -3.0]);
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
    let most = crate::saving::MAX_ARRAYS;
    let mut root = Content::group();
    for i in 0..most {
        root.put(&i.to_string(), &[0], Values::F32(vec![]));
    }
    let error = File::new(write(&root)).unwrap_err();
    assert_eq!(error, Fault(format!("more than {most} groups and datasets")));
}
