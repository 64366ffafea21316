//! File name templates: `ckpt-{epoch:02d}-{val_loss:.4f}.safetensors`.

use crate::error::{Error, Result};

/// The maximum field width; a wider field is a mistake.
const MAX_WIDTH: usize = 64;

/// A value for a placeholder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Field { name: String, zeros: bool, width: usize, kind: Kind },
}

/// A format type of Python.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// No type.
    Plain,
    /// `d`.
    Whole,
    /// `f`, with this number of decimals.
    Fixed(usize),
}

/// A parsed template.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

fn wrong(received: impl ToString) -> Error {
    let expected = "placeholders such as {epoch}, {epoch:02d} or {val_loss:.4f}";
    Error::argument("ModelCheckpoint", "filepath", expected, received)
}

impl Template {
    /// Parses a template; `{{` and `}}` are literal braces.
    pub(super) fn parse(text: &str) -> Result<Template> {
        let mut parts = vec![];
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, tail) = rest.split_at(at);
            plain.push_str(before);
            if tail.starts_with("{{") || tail.starts_with("}}") {
                plain.push_str(&tail[..1]);
                rest = &tail[2..];
                continue;
            }
            let end = tail.find('}').filter(|end| *end > 0).ok_or_else(|| wrong(text))?;
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(field(&tail[1..end])?);
            rest = &tail[end + 1..];
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Ok(Template { parts })
    }

    /// The file name for these values.
    pub(super) fn fill(&self, values: &[(String, Number)]) -> Result<String> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Field { name, zeros, width, kind } => {
                    let value = values.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
                    let value = value.ok_or_else(|| Error::Unknown {
                        kind: "placeholder of a checkpoint's name",
                        name: name.clone(),
                        known: values.iter().map(|(n, _)| n.clone()).collect(),
                    })?;
                    let text = match (value, kind) {
                        (Number::Whole(n), Kind::Plain | Kind::Whole) => n.to_string(),
                        (Number::Whole(n), Kind::Fixed(p)) => format!("{:.p$}", n as f64, p = *p),
                        (Number::Real(x), Kind::Plain) => x.to_string(),
                        (Number::Real(x), Kind::Fixed(p)) => format!("{x:.p$}", p = *p),
                        (Number::Real(_), Kind::Whole) => {
                            return Err(wrong(format!("{{{name}:d}} for a fraction")));
                        }
                    };
                    out.push_str(&pad(text, *zeros, *width));
                }
            }
        }
        Ok(out)
    }
}

/// Pads a number: zeros after the sign, spaces before it.
fn pad(text: String, zeros: bool, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    match text.strip_prefix('-') {
        Some(digits) if zeros => format!("-{}{digits}", "0".repeat(missing)),
        _ => (if zeros { "0" } else { " " }).repeat(missing) + &text,
    }
}

/// Parses a placeholder: `name` or `name:[0][width][.precision][d|f]`.
fn field(text: &str) -> Result<Part> {
    let bad = || wrong(format!("{{{text}}}"));
    let (name, spec) = text.split_once(':').unwrap_or((text, ""));
    let is_name_char = |c: char| c.is_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name_char) {
        return Err(bad());
    }
    let (spec, kind) = match spec.strip_suffix(['d', 'f']) {
        Some(numbers) => (numbers, spec.chars().last()),
        None => (spec, None),
    };
    let (width, precision) = match spec.split_once('.') {
        Some((width, precision)) => (width, Some(number(precision).ok_or_else(bad)?)),
        None => (spec, None),
    };
    let zeros = width.starts_with('0');
    let width = if width.is_empty() { 0 } else { number(width).ok_or_else(bad)? };
    let kind = match (kind, precision) {
        (Some('f'), precision) => Kind::Fixed(precision.unwrap_or(6)),
        (Some(_), None) => Kind::Whole,
        (None, None) => Kind::Plain,
        _ => return Err(bad()),
    };
    Ok(Part::Field { name: name.into(), zeros, width, kind })
}

fn number(digits: &str) -> Option<usize> {
    let plain = digits.chars().all(|c| c.is_ascii_digit());
    digits.parse().ok().filter(|n| plain && *n <= MAX_WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String> {
        let values = [
            ("epoch".to_string(), Number::Whole(7)),
            ("val_loss".to_string(), Number::Real(0.123456)),
            ("loss".to_string(), Number::Real(-1.5)),
        ];
        Template::parse(text)?.fill(&values)
    }

    #[test]
    fn names_are_filled_as_python_does() {
        for (template, name) in [
            ("plain.safetensors", "plain.safetensors"),
            ("ckpt-{epoch}", "ckpt-7"),
            ("{epoch:02d}-{val_loss:.2f}.x", "07-0.12.x"),
            ("{epoch:3d}|{epoch:03}|{epoch:.1f}|{epoch:d}", "  7|007|7.0|7"),
            ("{loss:06.2f}|{loss:6.2f}|{loss:f}|{loss}", "-01.50| -1.50|-1.500000|-1.5"),
            ("{{epoch}} ü {epoch}", "{epoch} ü 7"),
            ("", ""),
        ] {
            assert_eq!(fill(template).unwrap(), name, "{template}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for bad in [
            "{",
            "}",
            "{}",
            "a{epoch",
            "epoch}",
            "{epoch:x}",
            "{epoch:99999999999d}",
            "{epoch:.9}",
            "{val_loss:.999f}",
            "{epoch:+d}",
            "{a b}",
            "{epoch!r}",
            "{val_loss:d}",
            "{{epoch}",
        ] {
            assert!(fill(bad).unwrap_err().to_string().contains("filepath"), "{bad}");
        }
        let error = fill("{accuracy}").unwrap_err().to_string();
        assert!(error.contains("'accuracy'") && error.contains("epoch, val_loss, loss"), "{error}");
    }
}
