//! `.safetensors` files with inconsistent headers.

use super::Case;
use super::build::{chain, dense, layer};
use serde_json::{Value, json};

const KERNEL: usize = 48;
const ALL: usize = 60;

pub fn cases() -> Vec<Case> {
    let header = |kernel: Value, bias: Value| {
        json!({ "dense/kernel": kernel, "dense/bias": bias }).to_string().into_bytes()
    };
    let tensor = |dtype: &str, shape: Value, from: usize, to: usize| json!({ "dtype": dtype, "shape": shape, "data_offsets": [from, to] });
    let bias = || tensor("F32", json!([3]), KERNEL, ALL);
    let kernel = |dtype: &str, shape: Value| {
        file(None, &header(tensor(dtype, shape, 0, KERNEL), bias()), ALL)
    };
    let at = |from: usize, to: usize| tensor("F32", json!([3]), from, to);
    let whole = || tensor("F32", json!([4, 3]), 0, KERNEL);
    let good = header(whole(), bias());
    let overflow = json!([4194305, 4194305, 211106198978564u64]);
    let table = [
        ("nothing", vec![], "0 bytes"),
        ("seven bytes", vec![1; 7], "7 bytes"),
        ("a header of nothing", file(Some(0), &good, ALL), "does not parse"),
        ("a header of 7 bytes", file(Some(7), &good, ALL), "does not parse"),
        ("a header of 2^63 bytes", file(Some(1 << 63), &good, ALL), "a header of"),
        ("a header of all bytes", file(Some(u64::MAX), &good, ALL), "a header of"),
        ("a header beyond the file", file(Some(10_000), &good, ALL), "a header of"),
        ("text of other kinds", file(None, b"{\"\xff\xfe\": 1}", ALL), "does not parse"),
        ("brackets", file(None, &b"{\"a\":".repeat(100_000), ALL), "does not parse"),
        ("overlapping tensors", file(None, &header(whole(), at(40, 52)), 52), "safetensors"),
        ("a hole", file(None, &header(whole(), at(52, 64)), 64), "safetensors"),
        ("an end before the start", file(None, &header(whole(), at(60, 48)), ALL), "safetensors"),
        ("bytes left over", file(None, &good, ALL + 4), "60 bytes"),
        ("bytes missing", file(None, &good, ALL - 4), "60 bytes"),
        ("an overflowing shape", kernel("F32", overflow), "safetensors"),
        ("an endless axis", kernel("F32", json!([u64::MAX, 3])), "safetensors"),
        ("a negative axis", kernel("F32", json!([-4, 3])), "does not parse"),
        ("another shape", kernel("F32", json!([3, 4])), "dense/kernel"),
        ("an unknown type", kernel("F31", json!([4, 3])), "F31"),
        ("integers", kernel("I32", json!([4, 3])), "i32"),
        ("tensors without end", file(None, &many(300_000), 0), "at most 262144 tensors"),
        ("weights missing", file(None, &json!({}).to_string().into_bytes(), 0), "missing"),
    ];
    let case = |(n, bytes, cause): (&str, _, _)| {
        Case::new(&format!("safetensors {n}"), "bad.weights.safetensors", bytes, cause)
    };
    let mut all: Vec<Case> = table.into_iter().map(case).collect();
    let lambda = chain(layer("Lambda", json!({ "name": "dense", "function": "os.system" })));
    let twice = chain(dense()).to_string().replacen("{", "{\"config\":0,", 1);
    for (name, config, cause) in [
        ("code in a note", lambda.to_string(), "'Lambda'"),
        ("a note of brackets", "[".repeat(100_000), "recursion limit"),
        ("a note with a key twice", twice, "'config' twice"),
    ] {
        let notes = json!({ "__metadata__": { "config": config }, "dense/kernel": whole(),
            "dense/bias": bias() });
        let bytes = file(None, notes.to_string().as_bytes(), ALL);
        all.push(Case::new(name, "bad.safetensors", bytes, cause));
    }
    all
}

/// The header of `count` empty tensors.
fn many(count: usize) -> Vec<u8> {
    let tensor = json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] }).to_string();
    let tensors: Vec<String> = (0..count).map(|i| format!("\"t{i}\":{tensor}")).collect();
    format!("{{{}}}", tensors.join(",")).into_bytes()
}

/// A file with this header, its length given or correct, followed by `data` bytes.
fn file(length: Option<u64>, header: &[u8], data: usize) -> Vec<u8> {
    let length = length.unwrap_or(header.len() as u64);
    [&length.to_le_bytes()[..], header, &vec![0; data]].concat()
}
