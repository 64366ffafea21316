//! `rearrange` of einops: axes are split, permuted and merged by a pattern such as `b (h w) c -> b c h w`.

use super::context::OpContext;
use super::layout::permute;
use super::ops;
use crate::error::Result;
use crate::layer::{Argument, Outputs};
use serde_json::Value;

/// One side of a pattern: the names of each axis, several for merged axes.
type Side = Vec<Vec<String>>;

fn parse_side(cx: &OpContext<'_, '_>, text: &str) -> Result<Side> {
    let wrong = || cx.argument("pattern", "names, and names in parentheses", text);
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    let mut side: Side = vec![];
    let mut group: Option<Vec<String>> = None;
    for word in spaced.split_whitespace() {
        match (word, &mut group) {
            ("(", None) => group = Some(vec![]),
            (")", Some(_)) => side.extend(group.take()),
            ("(" | ")", _) => return Err(wrong()),
            (name, Some(names)) => names.push(name.into()),
            (name, None) => side.push(vec![name.into()]),
        }
    }
    let mut names: Vec<&String> = side.iter().flatten().collect();
    names.sort_unstable();
    let plain = |name: &&String| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let valid = names.windows(2).all(|pair| pair[0] != pair[1]) && names.iter().all(plain);
    if valid && group.is_none() { Ok(side) } else { Err(wrong()) }
}

/// The size of every name of the left side. One name of a group may be open.
fn sizes(
    cx: &OpContext<'_, '_>,
    side: &[Vec<String>],
    dims: &[usize],
) -> Result<Vec<(String, usize)>> {
    let given = |name: &str| match cx.passed(name) {
        Some(Argument::Plain(value)) => value.as_u64().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    let mut out = vec![];
    for (names, dim) in side.iter().zip(dims) {
        let mut known = names.iter().filter_map(|name| given(name));
        let known = known.try_fold(1usize, |all, n| all.checked_mul(n)).unwrap_or(0);
        let open = names.iter().filter(|name| given(name).is_none()).count();
        let fits = known > 0 && dim.is_multiple_of(known) && (open == 1 || known == *dim);
        if open > 1 || !fits {
            let expected = format!("sizes whose product is {dim}");
            return Err(cx.argument("pattern", &expected, names.join(" ")));
        }
        out.extend(names.iter().map(|n| (n.clone(), given(n).unwrap_or(dim / known))));
    }
    Ok(out)
}

fn rearrange(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("tensor")?;
    let pattern = cx.option("pattern");
    let sides = pattern.as_str().and_then(|text| text.split_once("->"));
    let Some((left, right)) = sides else {
        return Err(cx.argument("pattern", "two sides around '->'", Value::clone(&pattern)));
    };
    let (mut left, mut right) = (parse_side(cx, left)?, parse_side(cx, right)?);
    if left.len() != cx.rank(x) {
        return Err(cx.argument("pattern", &format!("{} axes", cx.rank(x)), left.len()));
    }
    if cx.is_rows(x) {
        if left[0].len() != 1 || left.first() != right.first() {
            return Err(cx.argument("pattern", "the batch first on both sides", &pattern));
        }
        left.remove(0);
        right.remove(0);
    }
    let sizes = sizes(cx, &left, &cx.dims(x))?;
    let names: Vec<&String> = right.iter().flatten().collect();
    let order: Option<Vec<usize>> =
        names.iter().map(|name| sizes.iter().position(|(known, _)| known == *name)).collect();
    let Some(order) = order.filter(|order| order.len() == sizes.len()) else {
        return Err(cx.argument("pattern", "the same names on both sides", &pattern));
    };
    let apart: Vec<usize> = sizes.iter().map(|(_, n)| *n).collect();
    let x = cx.graph().reshape(x, &apart)?;
    let lead = usize::from(cx.is_rows(x));
    let counted: Vec<usize> = (0..lead).chain(order.iter().map(|i| i + lead)).collect();
    let y = permute(cx, x, &counted)?;
    let size = |name: &String| sizes.iter().find(|(known, _)| known == name).map_or(1, |s| s.1);
    let merged: Vec<usize> = right.iter().map(|group| group.iter().map(size).product()).collect();
    Ok(cx.graph().reshape(y, &merged)?.into())
}

ops! {
    EINOPS, "einops";
    Rearrange(tensor, pattern, kwargs) => rearrange,
}
