//! Rendering of a scene to PNG, with anti-aliasing by tiny-skia.

use super::font;
use super::scene::{Anchor, Color, Pixels, Scene, Segment, Shape, Stroke, Text};
use std::io;
use tiny_skia::{
    FillRule, FilterQuality, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, PixmapPaint,
    Rect, StrokeDash, Transform,
};

/// Maximum side length of a PNG in pixels. Larger plots are scaled down.
const MAX_SIDE: f64 = 16_000.0;
/// Maximum number of pixels of a PNG.
const MAX_PIXELS: f64 = 32e6;

/// Renders a scene to PNG, scaled down if it is too large for viewers.
pub fn png(scene: &Scene) -> io::Result<Vec<u8>> {
    let (w, h) = (scene.width, scene.height);
    let scale = (MAX_SIDE / w.max(h)).min((MAX_PIXELS / (w * h)).sqrt()).min(1.0);
    let whole = |side: f64| (side * scale).ceil().max(1.0) as u32;
    let mut canvas =
        Pixmap::new(whole(w), whole(h)).ok_or_else(|| io::Error::other("invalid plot size"))?;
    canvas.fill(tiny_skia::Color::WHITE);
    let view = Transform::from_scale(scale as f32, scale as f32);
    for shape in &scene.shapes {
        draw(&mut canvas, shape, view);
    }
    canvas.encode_png().map_err(io::Error::other)
}

/// Encodes the pixels of an image as a separate PNG; empty for an image without pixels.
pub fn image(pixels: &Pixels) -> Vec<u8> {
    pixmap(pixels).and_then(|p| p.encode_png().ok()).unwrap_or_default()
}

fn pixmap(pixels: &Pixels) -> Option<Pixmap> {
    let mut out = Pixmap::new(pixels.width.try_into().ok()?, pixels.height.try_into().ok()?)?;
    for (to, from) in out.data_mut().chunks_exact_mut(4).zip(pixels.rgb.chunks_exact(3)) {
        to[..3].copy_from_slice(from);
        to[3] = 255;
    }
    Some(out)
}

fn paint(color: Color) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(color.0, color.1, color.2, 255);
    paint
}

fn draw(canvas: &mut Pixmap, shape: &Shape, view: Transform) {
    match shape {
        Shape::Rect { at, size, radius, fill, stroke } => {
            let rect = Rect::from_xywh(at.0 as f32, at.1 as f32, size.0 as f32, size.1 as f32);
            let Some(rect) = rect else { return };
            let path = rounded(rect, *radius as f32);
            filled(canvas, path.as_ref(), *fill, view);
            if let Some(stroke) = stroke {
                stroked(canvas, path.as_ref(), stroke, view);
            }
        }
        Shape::Circle { center, radius, fill } => {
            let circle = PathBuilder::from_circle(center.0 as f32, center.1 as f32, *radius as f32);
            filled(canvas, circle.as_ref(), *fill, view);
        }
        Shape::Path { segments, stroke } => {
            let mut path = PathBuilder::new();
            for segment in segments {
                match segment {
                    Segment::Move(p) => path.move_to(p.0 as f32, p.1 as f32),
                    Segment::Line(p) => path.line_to(p.0 as f32, p.1 as f32),
                    Segment::Curve(a, b, p) => path.cubic_to(
                        a.0 as f32, a.1 as f32, b.0 as f32, b.1 as f32, p.0 as f32, p.1 as f32,
                    ),
                }
            }
            stroked(canvas, path.finish().as_ref(), stroke, view);
        }
        Shape::Polygon { points, fill } => {
            let mut path = PathBuilder::new();
            for (i, p) in points.iter().enumerate() {
                match i {
                    0 => path.move_to(p.0 as f32, p.1 as f32),
                    _ => path.line_to(p.0 as f32, p.1 as f32),
                }
            }
            path.close();
            filled(canvas, path.finish().as_ref(), *fill, view);
        }
        Shape::Image { at, size, pixels } => {
            let Some(source) = pixmap(pixels) else { return };
            let (sx, sy) = (size.0 / pixels.width as f64, size.1 / pixels.height as f64);
            let place =
                view.pre_translate(at.0 as f32, at.1 as f32).pre_scale(sx as f32, sy as f32);
            let paint = PixmapPaint { quality: FilterQuality::Nearest, ..PixmapPaint::default() };
            canvas.draw_pixmap(0, 0, source.as_ref(), &paint, place, None);
        }
        Shape::Text(text) => write(canvas, text, view),
    }
}

fn write(canvas: &mut Pixmap, text: &Text, view: Transform) {
    let back = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => font::width(&text.text, text.size) / 2.0,
        Anchor::End => font::width(&text.text, text.size),
    };
    let place = view
        .pre_translate(text.at.0 as f32, text.at.1 as f32)
        .pre_rotate(-text.rotation as f32)
        .pre_translate(-back as f32, 0.0);
    filled(canvas, font::outline(&text.text, text.size).as_ref(), text.color, place);
}

fn rounded(rect: Rect, radius: f32) -> Option<Path> {
    if radius <= 0.0 {
        return Some(PathBuilder::from_rect(rect));
    }
    let (l, t, r, b) = (rect.left(), rect.top(), rect.right(), rect.bottom());
    let mut path = PathBuilder::new();
    path.move_to(l + radius, t);
    path.line_to(r - radius, t);
    path.quad_to(r, t, r, t + radius);
    path.line_to(r, b - radius);
    path.quad_to(r, b, r - radius, b);
    path.line_to(l + radius, b);
    path.quad_to(l, b, l, b - radius);
    path.line_to(l, t + radius);
    path.quad_to(l, t, l + radius, t);
    path.close();
    path.finish()
}

fn filled(canvas: &mut Pixmap, path: Option<&Path>, color: Color, view: Transform) {
    if let Some(path) = path {
        canvas.fill_path(path, &paint(color), FillRule::Winding, view, None);
    }
}

fn stroked(canvas: &mut Pixmap, path: Option<&Path>, stroke: &Stroke, view: Transform) {
    let Some(path) = path else { return };
    let dash = stroke.dash.and_then(|(on, off)| StrokeDash::new(vec![on as f32, off as f32], 0.0));
    let line_cap = if dash.is_some() { LineCap::Butt } else { LineCap::Round };
    let width = stroke.width as f32;
    let line = tiny_skia::Stroke {
        width,
        dash,
        line_cap,
        line_join: LineJoin::Round,
        ..tiny_skia::Stroke::default()
    };
    canvas.stroke_path(path, &paint(stroke.color), &line, view, None);
}
