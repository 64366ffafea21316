//! The embedded font of all plots: DejaVu Sans reduced to Latin, Greek, Cyrillic and a few symbols (for
//! the license and the command that made it see `font/README.md`). A missing character is drawn as an
//! empty box in a PNG. An SVG contains the text itself, so the viewer's fonts are used.

use phalanx_graph::text::escape;
use std::sync::OnceLock;
use ttf_parser::{Face, OutlineBuilder};

static FILE: &[u8] = include_bytes!("font/DejaVuSans-subset.ttf");

fn face() -> Option<&'static Face<'static>> {
    static FACE: OnceLock<Option<Face<'static>>> = OnceLock::new();
    FACE.get_or_init(|| Face::parse(FILE, 0).ok()).as_ref()
}

/// Width of a line of text at a font size, in pixels.
pub fn width(text: &str, size: f64) -> f64 {
    let Some(face) = face() else { return 0.6 * size * text.chars().count() as f64 };
    let advance = |c| face.glyph_hor_advance(face.glyph_index(c).unwrap_or_default());
    let units: f64 = text.chars().map(|c| f64::from(advance(c).unwrap_or(0))).sum();
    units * size / f64::from(face.units_per_em())
}

/// Truncates the text to a width, with an ellipsis. Hidden characters are shown as escapes.
pub fn fit(text: &str, size: f64, room: f64) -> String {
    let text = escape(text);
    let dots = width("…", size);
    // Bytes that leave room for the ellipsis, and the width so far. A name may be of any length.
    let (mut end, mut used) = (0, 0.0);
    for (at, c) in text.char_indices() {
        if used + dots <= room {
            end = at;
        }
        used += width(c.encode_utf8(&mut [0; 4]), size);
        if used > room {
            return format!("{}…", &text[..end]);
        }
    }
    text.into_owned()
}

/// Wraps text to lines of at most `room` pixels. A line break in the text starts a new line.
pub fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines = vec![];
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let longer = if line.is_empty() { word.into() } else { format!("{line} {word}") };
            if line.is_empty() || width(&longer, size) <= room {
                line = longer;
            } else {
                lines.push(std::mem::replace(&mut line, word.into()));
            }
        }
        lines.push(line);
    }
    lines.iter().map(|line| fit(line, size, room)).collect()
}

/// The outline of a line of text with the baseline starting at the origin, y pointing down.
pub fn outline(text: &str, size: f64) -> Option<tiny_skia::Path> {
    let face = face()?;
    let scale = size as f32 / f32::from(face.units_per_em());
    let mut pen = Pen { path: tiny_skia::PathBuilder::new(), scale, x: 0.0 };
    for c in text.chars() {
        let glyph = face.glyph_index(c).unwrap_or_default();
        face.outline_glyph(glyph, &mut pen);
        pen.x += scale * f32::from(face.glyph_hor_advance(glyph).unwrap_or(0));
    }
    pen.path.finish()
}

struct Pen {
    path: tiny_skia::PathBuilder,
    scale: f32,
    x: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_font_is_readable() {
        let face = face().expect("the font parses");
        for c in "Epoch #1 – žćß αβγ Ж × → … ∞".chars() {
            assert!(face.glyph_index(c).is_some(), "{c} is missing");
        }
        assert!(outline("Epoch", 16.0).is_some());
        assert!(width("WW", 16.0) > width("ii", 16.0));
    }

    #[test]
    fn long_lines_are_cut_or_wrapped() {
        assert_eq!(fit("short", 10.0, 100.0), "short");
        let cut = fit(&"long ".repeat(40), 10.0, 100.0);
        assert!(cut.ends_with('…') && width(&cut, 10.0) <= 100.0);
        assert_eq!(fit("a\u{202e}b\n", 10.0, 500.0), r"a\u{202e}b\n");
        assert_eq!(fit("wide", 10.0, 1.0), "…");
        let long = fit(&"long ".repeat(10_000_000), 10.0, 100.0);
        assert_eq!(long, cut);
        assert_eq!(wrap("one two\nthree", 10.0, 500.0), ["one two", "three"]);
        assert_eq!(wrap("one two", 10.0, 30.0), ["one", "two"]);
        assert_eq!(wrap("", 10.0, 30.0), Vec::<String>::new());
    }
}
