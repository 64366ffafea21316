//! Invalid `config.json` files, and configs of impossible models.

use super::Case;
use super::build::{call, chain, dense, graph, input, layer, sequential, with_config};
use serde_json::{Value, json};

pub fn cases() -> Vec<Case> {
    let text = |(name, text, cause): (&str, Vec<u8>, &'static str)| {
        Case::new(&format!("config {name}"), "bad.keras", with_config(&text), cause)
    };
    let value = |(name, value, cause): (&str, Value, &'static str)| {
        text((name, value.to_string().into_bytes(), cause))
    };
    let values = values().into_iter().chain(strings()).map(value);
    texts().into_iter().map(text).chain(values).collect()
}

fn texts() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let good = chain(dense()).to_string();
    let twice = good.replacen("{", "{\"class_name\":\"Functional\",", 1);
    let inner = good.replacen("\"units\":3", "\"units\":3,\"units\":4", 1);
    let after = good.replacen("\"units\":3", "\"units\":1e400", 1);
    let nested = {
        let open = "{\"class_name\":\"Sequential\",\"config\":{\"layers\":[".repeat(2000);
        open + "0" + &"]}}".repeat(2000)
    };
    vec![
        ("empty", vec![], "config.json"),
        ("BOM", [b"\xef\xbb\xbf", good.as_bytes()].concat(), "config.json"),
        ("UTF-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect(), "config.json"),
        ("truncated", good.as_bytes()[..good.len() / 2].to_vec(), "config.json"),
        ("followed by more", [good.as_bytes(), b"{}"].concat(), "config.json"),
        ("brackets", [b"[".repeat(100_000), b"]".repeat(100_000)].concat(), "recursion limit"),
        ("objects", b"{\"a\":".repeat(100_000), "recursion limit"),
        ("models", nested.into_bytes(), "recursion limit"),
        ("duplicate key", twice.into_bytes(), "'class_name' twice"),
        ("duplicate key further in", inner.into_bytes(), "'units' twice"),
        ("1e400", after.into_bytes(), "out of range"),
        ("NaN", good.replacen(":3", ":NaN", 1).into_bytes(), "config.json"),
        ("numbers without end", vec![b'9'; 1_000_000], "config.json"),
        ("a million numbers", format!("[0{}]", ",0".repeat(999_999)).into(), "an object"),
        ("a million layers", million(), "more than 20000"),
    ]
}

fn million() -> Vec<u8> {
    let one = ",{\"class_name\":\"ReLU\",\"config\":{\"name\":\"a\"}}";
    let head = "{\"class_name\":\"Sequential\",\"config\":{\"name\":\"many\",\"layers\":[";
    format!("{head}{}{}]}}}}", input(), one.repeat(1_000_000)).into_bytes()
}

fn values() -> Vec<(&'static str, Value, &'static str)> {
    let units = |units: Value| chain(layer("Dense", json!({ "name": "dense", "units": units })));
    let shape = |sizes: Value| {
        let input = layer("InputLayer", json!({ "name": "x", "batch_shape": sizes }));
        sequential("net", [input, dense()])
    };
    let big = 1u64 << 40;
    let square = json!([null, 4194305, 4194305, 211106198978564u64]);
    let one = |operands: &[(&str, u64)]| graph("net", vec![call(dense(), operands)], ("dense", 0));
    let long = "a".repeat(1_000_000);
    let shared = |name: &str, id: u64, inside: Vec<Value>| {
        let mut model = sequential(name, inside);
        model["shared_object_id"] = json!(id);
        model
    };
    vec![
        ("null", json!(null), "an object"),
        ("a list", json!([]), "an object"),
        ("no class", json!({ "config": {} }), "class_name"),
        ("a number for a class", json!({ "class_name": 7, "config": {} }), "class_name"),
        ("a text for a config", json!({ "class_name": "Sequential", "config": "x" }), "config"),
        ("no layers", sequential("net", []), "list of layers"),
        ("an unknown layer", chain(layer("Magic", json!({ "name": "a" }))), "'Magic'"),
        ("an unknown model", layer("Transformer", json!({ "name": "a" })), "'Transformer'"),
        ("a text for units", units(json!("three")), "units"),
        ("a list for units", units(json!([3])), "units"),
        ("fewer than no units", units(json!(-3)), "units"),
        ("half a unit", units(json!(2.5)), "units"),
        ("units beyond count", units(json!(u64::MAX)), "dense"),
        ("units beyond memory", units(json!(big)), "dense"),
        ("kernels beyond memory", units(json!(1u64 << 30)), "dense"),
        ("an overflowing shape", shape(square), "x"),
        ("an endless axis", shape(json!([null, u64::MAX])), "x"),
        ("a negative axis", shape(json!([null, -4])), "input shape"),
        ("no axis", shape(json!([null, 0])), "input shape"),
        ("forty axes", shape(json!(vec![Some(1); 40])), "axes: expected at most 16"),
        ("a call of itself", one(&[("dense", 0)]), "waits for itself"),
        ("a call of a later one", one(&[("x", 0), ("dense", 5)]), "waits for itself"),
        ("a call of nobody", one(&[("nobody", 0)]), "keras_history"),
        ("an output of nobody", graph("net", vec![], ("nobody", 0)), "nobody"),
        ("a name for all time", chain(layer("Dense", json!({ "name": long, "units": 3 }))), "name"),
        (
            "a class that acts on a terminal",
            chain(layer("\u{1b}[2J\u{202e}\n", json!({ "name": "a" }))),
            r"unknown layer '\u{1b}[2J\u{202e}\n'",
        ),
        ("a long class", chain(layer(&long, json!({ "name": "a" }))), "unknown layer"),
        ("models in models", doubled(), "calls"),
        ("models that refer to models", referred(&shared, 2, 60), "calls"),
        ("models deep in models", referred(&shared, 1, 6000), "deep"),
        ("a layer called without end", called(200_000), "calls"),
        ("a layer called often", called(49_000), "[4, 3] for [4, 4]"),
        ("as many layers as there may be", many(19_000), "where 2 belong"),
    ]
}

/// Models with inputs of strings.
fn strings() -> Vec<(&'static str, Value, &'static str)> {
    let strings = |class: &str, config: Value| {
        let input = json!({ "name": "x", "batch_shape": [null, 1], "dtype": "string" });
        let mut layer = layer(class, config);
        layer["config"]["name"] = json!("words");
        sequential("net", [self::layer("InputLayer", input), layer])
    };
    let big = 1u64 << 40;
    vec![
        (
            "a vocabulary in another file",
            strings("StringLookup", json!({ "vocabulary": "/etc/passwd" })),
            "a path to a file is refused",
        ),
        (
            "a vocabulary beyond memory",
            strings(
                "StringLookup",
                json!({ "output_mode": "one_hot", "vocabulary_size": 1u64 << 61 }),
            ),
            "words",
        ),
        (
            "indices beyond memory",
            strings("StringLookup", json!({ "vocabulary": ["a"], "num_oov_indices": u64::MAX })),
            "num_oov_indices",
        ),
        (
            "a text beyond memory",
            strings("TextVectorization", json!({ "output_sequence_length": u64::MAX })),
            "words",
        ),
        (
            "n-grams beyond memory",
            strings("TextVectorization", json!({ "output_sequence_length": 2, "ngrams": big })),
            "ngrams",
        ),
        ("a dense layer on strings", strings("Dense", json!({ "units": 3 })), "strings"),
    ]
}

/// A model that calls a model twice that calls a model twice …
fn doubled() -> Value {
    let mut model = graph("m0", vec![call(dense(), &[("x", 0)])], ("dense", 0));
    model["config"]["layers"][1]["config"]["units"] = json!(4);
    for i in 1..25 {
        let name = format!("m{}", i - 1);
        let twice = call(model, &[("x", 0), (&name, 0)]);
        model = graph(&format!("m{i}"), vec![twice], (&name, 2));
    }
    model
}

/// Adjacent chains of chains that are referred to by number.
fn referred(shared: &dyn Fn(&str, u64, Vec<Value>) -> Value, times: usize, levels: u64) -> Value {
    let mut inside = dense();
    inside["config"]["units"] = json!(4);
    let mut all = vec![input(), shared("m0", 1, vec![input(), inside])];
    for id in 2..levels {
        let known = (0..times).map(|_| shared("again", id - 1, vec![]));
        all.push(shared(&format!("m{id}"), id, known.collect()));
    }
    sequential("net", all)
}

/// A long chain.
fn many(n: usize) -> Value {
    let dense = |i| layer("Dense", json!({ "name": format!("d{i}"), "units": 4 }));
    sequential("net", [input()].into_iter().chain((0..n).map(dense)))
}

/// One layer, called on its own output.
fn called(times: u64) -> Value {
    let dense = layer("Dense", json!({ "name": "r", "units": 4 }));
    let operands: Vec<(&str, u64)> =
        [("x", 0)].into_iter().chain((0..times - 1).map(|i| ("r", i))).collect();
    graph("net", vec![call(dense, &operands)], ("r", times - 1))
}
