//! A model as a graph: a box per layer, with arrows along the calls from top to bottom.

use super::font;
use super::layout::{Layout, layered};
use super::scene::{Anchor, Color, Scene, Segment, Shape, stroke};
use super::{format, save};
use crate::error::{Error, Result};
use crate::model::{Row, Summary, thousands};
use std::collections::HashMap;
use std::path::Path;

const BOX_HEIGHT: f64 = 46.0;
/// Vertical distance between boxes.
const GAP: f64 = 30.0;
const MARGIN: f64 = 30.0;
const TOP: f64 = 92.0;
const NAME: f64 = 13.0;
const DETAIL: f64 = 11.5;
const MAX_BOX_WIDTH: f64 = 420.0;
const EDGE: Color = Color(110, 118, 130);
const SKIP: Color = Color(214, 122, 20);

/// Plots the layers of a model as boxes with name, class, output shape and parameters, each below the
/// layers it is called on. Branches are side by side, and an edge that skips layers runs next to them in
/// orange. Boxes are colored by the type of the layer. Plots of deep models are tall: an SVG stays
/// readable at any size, a PNG is reduced to at most 16,000 pixels.
///
/// # Errors
/// If the path ends neither in `.png` nor in `.svg`, the summary has no rows, or the file cannot be
/// written.
pub fn model(summary: &Summary, path: &Path) -> Result<()> {
    let format = format(path)?;
    if summary.rows.is_empty() {
        return Err(Error::argument("plots::model", "summary", "at least one layer", "none"));
    }
    save(&draw(summary), format, path)
}

/// The text of a box.
struct Node {
    name: String,
    class: String,
    shape: String,
    params: String,
}

impl Node {
    fn new(row: &Row) -> Node {
        let whole = || (row.layer.as_str(), "");
        let (name, class) = row.layer.rsplit_once(" (").unwrap_or_else(whole);
        let params = match row.params {
            1 => "1 param".to_string(),
            n => format!("{} params", thousands(n)),
        };
        let class = class.strip_suffix(')').unwrap_or(class).to_string();
        Node { name: name.to_string(), class, shape: row.shape.clone(), params }
    }

    fn width(&self) -> f64 {
        let name = font::width(&self.name, NAME) + font::width(&self.class, DETAIL);
        let detail = font::width(&self.shape, DETAIL) + font::width(&self.params, DETAIL);
        name.max(detail) + 42.0
    }
}

/// Edges from the row of each input to the row of the layer called on it. A layer called more than once
/// has several rows; its name refers to the latest of them.
fn edges(summary: &Summary, nodes: &[Node]) -> Vec<(usize, usize)> {
    let mut latest: HashMap<&str, usize> = HashMap::new();
    let mut edges = vec![];
    for (i, (row, node)) in summary.rows.iter().zip(nodes).enumerate() {
        edges.extend(row.inputs.iter().filter_map(|name| Some((*latest.get(name.as_str())?, i))));
        latest.insert(&node.name, i);
    }
    edges
}

fn draw(summary: &Summary) -> Scene {
    let nodes: Vec<Node> = summary.rows.iter().map(Node::new).collect();
    let edges = edges(summary, &nodes);
    let width = nodes.iter().map(Node::width).fold(0.0, f64::max).ceil().min(MAX_BOX_WIDTH);
    let layout = layered(&vec![width; nodes.len()], &edges);

    let count = format!(
        "{} layers, {} parameters, {} of them trained",
        nodes.len(),
        thousands(summary.total()),
        thousands(summary.trainable)
    );
    let heading = font::width(&summary.name, 22.0).max(font::width(&count, 14.0)).min(900.0);
    let wide = layout.width.max(heading) + 2.0 * MARGIN;
    let left = (wide - layout.width) / 2.0;
    let layers = layout.depth.iter().max().map_or(0, |d| d + 1) as f64;
    let mut scene = Scene::new(wide, TOP + layers * (BOX_HEIGHT + GAP) - GAP + MARGIN);
    scene.title(40.0, &summary.name, 22.0);
    let count = font::fit(&count, 14.0, scene.width - 20.0);
    scene.text((scene.width / 2.0, 66.0), &count, 14.0, Color::GREY, Anchor::Middle);
    arrows(&mut scene, &layout, &edges, left, width);
    for (i, node) in nodes.iter().enumerate() {
        let at = (left + layout.x[i] - width / 2.0, layer_top(layout.depth[i]));
        block(&mut scene, node, at, width);
    }
    scene
}

fn layer_top(depth: usize) -> f64 {
    TOP + depth as f64 * (BOX_HEIGHT + GAP)
}

fn block(scene: &mut Scene, node: &Node, (x, y): (f64, f64), width: f64) {
    let accent = accent(&node.class);
    scene.shapes.push(Shape::Rect {
        at: (x, y),
        size: (width, BOX_HEIGHT),
        radius: 5.0,
        fill: accent.mix(Color::WHITE, 0.86),
        stroke: Some(stroke(accent, 1.2)),
    });
    let right = x + width - 10.0;
    let class = font::fit(&node.class, DETAIL, 0.5 * width);
    let params = font::fit(&node.params, DETAIL, 0.5 * width);
    let room = |beside: &str| width - 30.0 - font::width(beside, DETAIL);
    let name = font::fit(&node.name, NAME, room(&class));
    let shape = font::fit(&node.shape, DETAIL, room(&params));
    scene.text((x + 10.0, y + 19.0), &name, NAME, Color::INK, Anchor::Start);
    let dark = accent.mix(Color(0, 0, 0), 0.35);
    scene.text((right, y + 19.0), &class, DETAIL, dark, Anchor::End);
    scene.text((x + 10.0, y + 36.0), &shape, DETAIL, Color::GREY, Anchor::Start);
    scene.text((right, y + 36.0), &params, DETAIL, Color::GREY, Anchor::End);
}

/// The color of a type of layer.
fn accent(class: &str) -> Color {
    let any = |words: &[&str]| words.iter().any(|word| class.contains(word));
    match class {
        "InputLayer" => Color(96, 104, 116),
        "Model" | "Sequential" | "Functional" => Color(63, 81, 181),
        _ if any(&["Conv", "Dense", "Embedding"]) => Color(33, 113, 181),
        _ if any(&["Normalization"]) => Color(0, 137, 123),
        _ if any(&["Activation", "ReLU", "Softmax", "ELU"]) => Color(201, 151, 0),
        _ if any(&["Pool", "Flatten", "Reshape", "Permute", "Padding", "Crop", "Sampling"]) => {
            Color(126, 87, 194)
        }
        _ if any(&["Add", "Concat", "Multiply", "Average", "Maximum", "Minimum", "Subtract"]) => {
            Color(200, 60, 60)
        }
        _ => Color(120, 130, 120),
    }
}

fn arrows(scene: &mut Scene, layout: &Layout, edges: &[(usize, usize)], left: f64, width: f64) {
    let leaving = ports(layout, edges, width, true);
    let arriving = ports(layout, edges, width, false);
    // Skip edges are drawn last, so that their color stays visible where lines cross.
    for late in [false, true] {
        for (i, (from, to)) in edges.iter().enumerate().filter(|(i, _)| layout.skip[*i] == late) {
            let color = if late { SKIP } else { EDGE };
            let mut at = (left + leaving[i], layer_top(layout.depth[*from]) + BOX_HEIGHT);
            let mut segments = vec![Segment::Move(at)];
            for (x, depth) in layout.routes[i].iter().zip(layout.depth[*from] + 1..) {
                let top = (left + x, layer_top(depth));
                segments.push(bend(at, top));
                at = (top.0, top.1 + BOX_HEIGHT);
                segments.push(Segment::Line(at));
            }
            let end = (left + arriving[i], layer_top(layout.depth[*to]));
            segments.push(bend(at, (end.0, end.1 - 6.0)));
            scene.shapes.push(Shape::Path { segments, stroke: stroke(color, 1.6) });
            let points = vec![end, (end.0 - 4.0, end.1 - 8.0), (end.0 + 4.0, end.1 - 8.0)];
            scene.shapes.push(Shape::Polygon { points, fill: color });
        }
    }
}

/// A curve that starts and ends vertically.
fn bend(from: (f64, f64), to: (f64, f64)) -> Segment {
    let middle = (from.1 + to.1) / 2.0;
    Segment::Curve((from.0, middle), (to.0, middle), to)
}

/// Where each edge meets its box. Straight edges are in the middle; edges from a side are spread over
/// that side, the farthest outermost.
fn ports(layout: &Layout, edges: &[(usize, usize)], width: f64, leaving: bool) -> Vec<f64> {
    let node = |i: usize| if leaving { edges[i].0 } else { edges[i].1 };
    let away = |i: usize| {
        let way = &layout.routes[i];
        let (next, other) = match leaving {
            true => (way.first(), edges[i].1),
            false => (way.last(), edges[i].0),
        };
        next.copied().unwrap_or(layout.x[other]) - layout.x[node(i)]
    };
    let mut sides: HashMap<(usize, bool), Vec<usize>> = HashMap::new();
    let mut x: Vec<f64> = (0..edges.len()).map(|i| layout.x[node(i)]).collect();
    for i in (0..edges.len()).filter(|i| away(*i).abs() > 2.0) {
        sides.entry((node(i), away(i) > 0.0)).or_default().push(i);
    }
    for ((_, right), mut side) in sides {
        side.sort_by(|a, b| away(*a).abs().total_cmp(&away(*b).abs()));
        let step = 0.38 * width / side.len() as f64;
        for (rank, i) in side.into_iter().enumerate() {
            let offset = step * (rank + 1) as f64;
            x[i] += if right { offset } else { -offset };
        }
    }
    x
}
