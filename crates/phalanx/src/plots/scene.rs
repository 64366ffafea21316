//! A plot as a list of shapes, before it is rendered to PNG or SVG. Coordinates are pixels from the top
//! left corner.

use super::font;
use phalanx_graph::text::escape;

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    pub const WHITE: Color = Color(255, 255, 255);
    /// Titles, names, numbers.
    pub const INK: Color = Color(38, 38, 38);
    /// Ticks and explanations.
    pub const GREY: Color = Color(96, 96, 96);
    /// Wrong predictions.
    pub const RED: Color = Color(196, 30, 30);

    /// Interpolates between two colors: 0 is `self`, 1 is `other`.
    pub fn mix(self, other: Color, fraction: f64) -> Color {
        let fraction = fraction.clamp(0.0, 1.0);
        let channel =
            |a: u8, b: u8| (f64::from(a) * (1.0 - fraction) + f64::from(b) * fraction).round();
        Color(
            channel(self.0, other.0) as u8,
            channel(self.1, other.1) as u8,
            channel(self.2, other.2) as u8,
        )
    }
}

/// The outline of a shape.
#[derive(Clone, Copy, Debug)]
pub struct Stroke {
    pub color: Color,
    pub width: f64,
    /// Lengths of dash and gap.
    pub dash: Option<(f64, f64)>,
}

/// A stroke without dashes.
pub fn stroke(color: Color, width: f64) -> Stroke {
    Stroke { color, width, dash: None }
}

/// Alignment of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A point.
pub type Point = (f64, f64);

/// A segment of a path.
#[derive(Clone, Copy, Debug)]
pub enum Segment {
    Move(Point),
    Line(Point),
    /// Two control points and the end.
    Curve(Point, Point, Point),
}

/// The pixels of an image, three bytes each, row by row.
#[derive(Clone, Debug)]
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

/// A shape to draw.
#[derive(Clone, Debug)]
pub enum Shape {
    Rect { at: Point, size: Point, radius: f64, fill: Color, stroke: Option<Stroke> },
    Circle { center: Point, radius: f64, fill: Color },
    Path { segments: Vec<Segment>, stroke: Stroke },
    Polygon { points: Vec<Point>, fill: Color },
    Image { at: Point, size: Point, pixels: Pixels },
    Text(Text),
}

/// A line of text.
#[derive(Clone, Debug)]
pub struct Text {
    /// Start, middle or end of the baseline.
    pub at: Point,
    pub text: String,
    pub size: f64,
    pub color: Color,
    pub anchor: Anchor,
    /// Counterclockwise rotation in degrees.
    pub rotation: f64,
}

/// A plot under construction, on white.
#[derive(Clone, Debug)]
pub struct Scene {
    pub width: f64,
    pub height: f64,
    pub shapes: Vec<Shape>,
}

impl Scene {
    /// An empty plot of whole pixels.
    pub fn new(width: f64, height: f64) -> Scene {
        Scene { width: width.ceil().max(1.0), height: height.ceil().max(1.0), shapes: vec![] }
    }

    /// A filled rectangle.
    pub fn rect(&mut self, at: Point, size: Point, fill: Color) {
        self.shapes.push(Shape::Rect { at, size, radius: 0.0, fill, stroke: None });
    }

    /// A straight line.
    pub fn line(&mut self, from: Point, to: Point, stroke: Stroke) {
        let segments = vec![Segment::Move(from), Segment::Line(to)];
        self.shapes.push(Shape::Path { segments, stroke });
    }

    /// A horizontal line of text.
    pub fn text(&mut self, at: Point, text: &str, size: f64, color: Color, anchor: Anchor) {
        self.rotated_text(at, text, size, color, anchor, 0.0);
    }

    /// A line of text, rotated counterclockwise by degrees. Hidden characters are shown as escapes.
    pub fn rotated_text(
        &mut self,
        at: Point,
        text: &str,
        size: f64,
        color: Color,
        anchor: Anchor,
        rotation: f64,
    ) {
        let text = escape(text).into_owned();
        self.shapes.push(Shape::Text(Text { at, text, size, color, anchor, rotation }));
    }

    /// The title, centered at the top, truncated if it is wider than the plot.
    pub fn title(&mut self, baseline: f64, title: &str, size: f64) {
        let title = font::fit(title, size, self.width - 40.0);
        self.text((self.width / 2.0, baseline), &title, size, Color::INK, Anchor::Middle);
    }
}
