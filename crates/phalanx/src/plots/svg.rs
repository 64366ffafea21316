//! Rendering of a scene to SVG.

use super::raster;
use super::scene::{Anchor, Color, Pixels, Scene, Segment, Shape, Stroke, Text};

/// The SVG document.
pub fn document(scene: &Scene) -> String {
    let (w, h) = (number(scene.width), number(scene.height));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
    );
    for shape in &scene.shapes {
        out.push_str(&element(shape));
        out.push('\n');
    }
    out.push_str("</svg>\n");
    out
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Rect { at, size, radius, fill, stroke } => format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{} fill=\"{}\"{}/>",
            number(at.0),
            number(at.1),
            number(size.0),
            number(size.1),
            if *radius > 0.0 { format!(" rx=\"{}\"", number(*radius)) } else { String::new() },
            hex(*fill),
            stroke.map(outline).unwrap_or_default()
        ),
        Shape::Circle { center, radius, fill } => format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>",
            number(center.0),
            number(center.1),
            number(*radius),
            hex(*fill)
        ),
        Shape::Path { segments, stroke } => format!(
            "<path d=\"{}\" fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"{}\"{}/>",
            segments.iter().map(command).collect::<String>(),
            if stroke.dash.is_some() { "butt" } else { "round" },
            outline(*stroke)
        ),
        Shape::Polygon { points, fill } => {
            let points: Vec<String> =
                points.iter().map(|p| format!("{},{}", number(p.0), number(p.1))).collect();
            format!("<polygon points=\"{}\" fill=\"{}\"/>", points.join(" "), hex(*fill))
        }
        Shape::Image { at, size, pixels } => format!(
            "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
             style=\"image-rendering:pixelated\" href=\"{}\"/>",
            number(at.0),
            number(at.1),
            number(size.0),
            number(size.1),
            data_uri(pixels)
        ),
        Shape::Text(text) => text_element(text),
    }
}

fn text_element(text: &Text) -> String {
    let (x, y) = (number(text.at.0), number(text.at.1));
    let anchor = match text.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let turn = match text.rotation {
        0.0 => String::new(),
        turn => format!(" transform=\"rotate({} {x} {y})\"", number(-turn)),
    };
    format!(
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" fill=\"{}\"{anchor}{turn}>{}</text>",
        number(text.size),
        hex(text.color),
        escape(&text.text)
    )
}

fn outline(stroke: Stroke) -> String {
    let dash = match stroke.dash {
        Some((on, off)) => format!(" stroke-dasharray=\"{} {}\"", number(on), number(off)),
        None => String::new(),
    };
    format!(" stroke=\"{}\" stroke-width=\"{}\"{dash}", hex(stroke.color), number(stroke.width))
}

fn command(segment: &Segment) -> String {
    let point = |p: &(f64, f64)| format!("{} {}", number(p.0), number(p.1));
    match segment {
        Segment::Move(p) => format!("M{}", point(p)),
        Segment::Line(p) => format!("L{}", point(p)),
        Segment::Curve(a, b, p) => format!("C{} {} {}", point(a), point(b), point(p)),
    }
}

/// Formats hundredths of a pixel, without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

fn hex(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color.0, color.1, color.2)
}

/// Escapes text for XML. Characters that XML forbids are replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push(' '),
            c if c < ' ' || c == '\u{fffe}' || c == '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn data_uri(pixels: &Pixels) -> String {
    let mut out = String::from("data:image/png;base64,");
    base64(&raster::image(pixels), &mut out);
    out
}

fn base64(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, b| word << 8 | u32::from(*b));
        let word = word << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        let encode = |text: &str| {
            let mut out = String::new();
            base64(text.as_bytes(), &mut out);
            out
        };
        // RFC 4648, section 10
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (text, expected) in cases {
            assert_eq!(encode(text), expected);
        }
    }

    #[test]
    fn text_is_escaped_and_numbers_are_short() {
        assert_eq!(escape("a<b> & \"c\"\u{1}\n"), "a&lt;b&gt; &amp; &quot;c&quot;\u{fffd} ");
        assert_eq!([number(1.0), number(0.126), number(-0.001)], ["1", "0.13", "0"]);
    }
}
