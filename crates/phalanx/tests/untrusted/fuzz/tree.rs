//! Mutations of JSON that stay valid JSON, so that they reach the code that interprets the values.

use phalanx::Stream;
use serde_json::{Value, json};

/// Changes one to four values of a text.
pub fn mutated(text: &[u8], number: u64) -> Vec<u8> {
    let mut rng = Stream::new(0x0f23, number, 0, 0);
    let mut root: Value = serde_json::from_slice(text).unwrap();
    for _ in 0..=rng.below(4) {
        let other = pick(&mut root, &mut rng).clone();
        let place = pick(&mut root, &mut rng);
        change(place, other, &mut rng);
    }
    root.to_string().into_bytes()
}

/// Picks any value at any depth.
fn pick<'a>(root: &'a mut Value, rng: &mut Stream) -> &'a mut Value {
    let mut left = rng.below(count(root)) as usize;
    nth(root, &mut left).unwrap()
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Array(list) => list.iter_mut().collect(),
        Value::Object(map) => map.values_mut().collect(),
        _ => vec![],
    }
}

fn count(value: &mut Value) -> u64 {
    1 + children(value).into_iter().map(count).sum::<u64>()
}

fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    children(value).into_iter().find_map(|child| nth(child, left))
}

/// Replaces a value, or removes, duplicates or moves its children.
fn change(place: &mut Value, other: Value, rng: &mut Stream) {
    let at = |n: usize, rng: &mut Stream| rng.below(n as u64) as usize;
    match (rng.below(4), place) {
        (0, Value::Array(list)) if !list.is_empty() => drop(list.remove(at(list.len(), rng))),
        (1, Value::Array(list)) if !list.is_empty() => {
            let copy = list[at(list.len(), rng)].clone();
            list.extend(vec![copy; 1 + at(40, rng)]);
        }
        (0, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(at(map.len(), rng)).unwrap().clone();
            map.remove(&key);
        }
        (1, Value::Object(map)) => drop(map.insert("odd".into(), other)),
        (2, place) => *place = other,
        (_, place) => *place = edge(rng),
    }
}

/// Values at their limits.
fn edge(rng: &mut Stream) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(65_536),
        json!(1u64 << 32),
        json!(1u64 << 53),
        json!(u64::MAX),
        json!(0.5),
        json!(-1e308),
        json!(""),
        json!("../x"),
        json!("Lambda"),
        json!("Dense"),
        json!("Sequential"),
        json!("Functional"),
        json!([]),
        json!({}),
        json!([null, 4]),
    ];
    all[rng.below(all.len() as u64) as usize].clone()
}
