//! Training curves: losses and metrics over epochs. They share one panel unless one group would flatten
//! the other; otherwise losses are on the left and metrics on the right.

use super::axis::Axis;
use super::font;
use super::scene::{Anchor, Color, Scene, Segment, Shape, Stroke};
use super::{format, save};
use crate::error::{Error, Result};
use crate::history::History;
use std::path::Path;

const SIZE: (f64, f64) = (1200.0, 800.0);
/// Minimum fraction of the height that a group of curves needs in a common panel to stay readable.
const MIN_GROUP_FRACTION: f64 = 0.25;
/// Values above this count as infinite, because their differences would overflow.
const MAX_VALUE: f64 = 1e300;
/// Maximum number of epochs for which every value is marked.
const MAX_MARKED_EPOCHS: usize = 30;
/// Number of epochs from which lines are thin and solid, because dashes would be unreadable.
const MIN_DENSE_EPOCHS: usize = 200;
const BACKGROUND: Color = Color(236, 236, 236);
/// One color per metric; losses use the first.
const COLORS: [Color; 8] = [
    Color(226, 74, 51),
    Color(38, 120, 178),
    Color(104, 160, 40),
    Color(140, 108, 200),
    Color(230, 150, 20),
    Color(0, 150, 136),
    Color(214, 90, 160),
    Color(110, 84, 70),
];

/// Plots the losses and metrics of a run over its epochs to a PNG or SVG of 1200 x 800. Training curves
/// are solid; validation curves are dashed and darker. Epochs count from 1, as `fit` prints them. Values
/// that are not finite and learning rates are omitted. A loss with a huge value gets a logarithmic axis.
///
/// # Errors
/// If the path ends neither in `.png` nor in `.svg`, the history holds no finite value, or the file
/// cannot be written.
pub fn curves(history: &History, title: &str, path: &Path) -> Result<()> {
    let format = format(path)?;
    let series = collect(history);
    if series.is_empty() {
        let expected = "at least one finite value of a loss or metric";
        return Err(Error::argument("plots::curves", "history", expected, "none"));
    }
    let mut scene = Scene::new(SIZE.0, SIZE.1);
    scene.title(50.0, title, 26.0);
    let (losses, metrics): (Vec<Series>, Vec<Series>) = series.into_iter().partition(|s| s.loss);
    let name = metrics_name(&metrics);
    if losses.is_empty() || metrics.is_empty() || fit_one_panel(&losses, &metrics) {
        let label = match (losses.is_empty(), metrics.is_empty()) {
            (_, true) => "Loss".to_string(),
            (true, _) => name,
            _ => format!("Loss/{name}"),
        };
        let all: Vec<Series> = losses.into_iter().chain(metrics).collect();
        panel(&mut scene, (20.0, SIZE.0 - 20.0), &label, &all, history);
    } else {
        let middle = SIZE.0 / 2.0;
        panel(&mut scene, (10.0, middle - 5.0), "Loss", &losses, history);
        panel(&mut scene, (middle + 5.0, SIZE.0 - 10.0), &name, &metrics, history);
    }
    save(&scene, format, path)
}

/// One curve.
struct Series {
    /// Label in the legend: `train_loss`, `val_loss`.
    label: String,
    loss: bool,
    validation: bool,
    color: Color,
    /// One value per epoch; NaN if missing.
    values: Vec<f64>,
}

impl Series {
    fn stroke(&self) -> Stroke {
        let dense = self.values.len() >= MIN_DENSE_EPOCHS;
        let dash = (self.validation && !dense).then_some((9.0, 4.0));
        Stroke { color: self.color, width: if dense { 1.4 } else { 2.5 }, dash }
    }

    fn marked(&self) -> bool {
        self.values.len() <= MAX_MARKED_EPOCHS
    }
}

/// The curves in the order of the legend: losses first, each with its validation.
fn collect(history: &History) -> Vec<Series> {
    let mut names: Vec<&str> = history.names().map(base).collect();
    names.retain(|name| !matches!(*name, "lr" | "learning_rate" | "loss_scale"));
    names.sort_by_key(|name| (*name != "loss", !is_loss(name), *name));
    names.dedup();
    let mut series = vec![];
    for (i, name) in names.into_iter().enumerate() {
        let plain = COLORS[i % COLORS.len()];
        for (validation, key) in [(false, name.to_string()), (true, format!("val_{name}"))] {
            let Some(values) = history.get(&key) else { continue };
            let clean = |v: &f64| if v.abs() < MAX_VALUE { *v } else { f64::NAN };
            let values: Vec<f64> = values.iter().map(clean).collect();
            if values.iter().all(|v| v.is_nan()) {
                continue;
            }
            let label = if validation { key } else { format!("train_{key}") };
            let color = if validation { plain.mix(Color(0, 0, 0), 0.35) } else { plain };
            series.push(Series { label, loss: is_loss(name), validation, color, values });
        }
    }
    series
}

fn base(name: &str) -> &str {
    name.strip_prefix("val_").unwrap_or(name)
}

fn is_loss(name: &str) -> bool {
    name.ends_with("loss")
}

/// The title of the metrics axis: `Accuracy` if it is the only metric.
fn metrics_name(metrics: &[Series]) -> String {
    let accuracy = |s: &Series| s.label.ends_with("accuracy") || s.label.ends_with("acc");
    if metrics.iter().all(accuracy) { "Accuracy".into() } else { "Metrics".into() }
}

fn finite(series: &[Series]) -> Vec<f64> {
    series.iter().flat_map(|s| &s.values).copied().filter(|v| v.is_finite()).collect()
}

/// Whether both groups keep enough of the height if they share an axis.
fn fit_one_panel(losses: &[Series], metrics: &[Series]) -> bool {
    let span = |values: &[f64]| {
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max - min
    };
    let (a, b) = (finite(losses), finite(metrics));
    let whole = span(&[a.as_slice(), b.as_slice()].concat());
    whole > 0.0 && span(&a).min(span(&b)) >= MIN_GROUP_FRACTION * whole
}

/// Draws a panel between two x coordinates: legend, grid, axes, curves.
fn panel(
    scene: &mut Scene,
    (left, right): (f64, f64),
    label: &str,
    series: &[Series],
    history: &History,
) {
    let values = Axis::fitting(&finite(series));
    let epochs = &history.epochs;
    let first = epochs.iter().min().map_or(1, |e| e.saturating_add(1));
    let last = epochs.iter().max().map_or(1, |e| e.saturating_add(1));
    let axis = Axis::epochs(first, last);

    let ticks = values.ticks();
    let widest = ticks.iter().map(|(_, text)| font::width(text, 15.0)).fold(0.0, f64::max);
    let (x0, x1) = (left + 50.0 + widest, right - 20.0);
    let top = legend(scene, (x0, x1), series) + 14.0;
    let bottom = SIZE.1 - 80.0;
    let x = |epoch: f64| x0 + axis.position(epoch) * (x1 - x0);
    let y = |value: f64| bottom - values.position(value) * (bottom - top);

    scene.rect((x0, top), (x1 - x0, bottom - top), BACKGROUND);
    let grid = super::scene::stroke(Color::WHITE, 1.4);
    for (value, text) in &ticks {
        let at = y(*value);
        scene.line((x0, at), (x1, at), grid);
        scene.text((x0 - 9.0, at + 5.5), text, 15.0, Color::GREY, Anchor::End);
    }
    for (epoch, text) in axis.ticks() {
        let at = x(epoch);
        scene.line((at, top), (at, bottom), grid);
        scene.text((at, bottom + 24.0), &text, 15.0, Color::GREY, Anchor::Middle);
    }
    let middle = (x0 + x1) / 2.0;
    scene.text((middle, bottom + 58.0), "Epoch #", 18.0, Color::INK, Anchor::Middle);
    let label = if values.log() { format!("{label} (log scale)") } else { label.to_string() };
    let at = (left + 26.0, (top + bottom) / 2.0);
    scene.rotated_text(at, &label, 18.0, Color::INK, Anchor::Middle, 90.0);

    for one in series {
        let points = one.values.iter().zip(epochs);
        let points = points.map(|(v, e)| v.is_finite().then(|| (x(*e as f64 + 1.0), y(*v))));
        curve(scene, one, &points.collect::<Vec<_>>());
    }
}

/// Draws a line through the points, interrupted at missing ones. Isolated points are marked.
fn curve(scene: &mut Scene, series: &Series, points: &[Option<(f64, f64)>]) {
    let mut segments: Vec<Segment> = vec![];
    for (i, point) in points.iter().enumerate() {
        let Some(point) = point else { continue };
        let joined = i > 0 && points[i - 1].is_some();
        segments.push(if joined { Segment::Line(*point) } else { Segment::Move(*point) });
    }
    scene.shapes.push(Shape::Path { segments, stroke: series.stroke() });
    for (i, point) in points.iter().enumerate() {
        let Some(center) = *point else { continue };
        let before = i > 0 && points[i - 1].is_some();
        let after = points.get(i + 1).is_some_and(Option::is_some);
        if series.marked() || !(before || after) {
            scene.shapes.push(Shape::Circle { center, radius: 4.0, fill: series.color });
        }
    }
}

/// Draws the legend above the panel, in as many lines as necessary but at most a quarter of the plot.
/// Returns the y coordinate below it.
fn legend(scene: &mut Scene, (x0, x1): (f64, f64), series: &[Series]) -> f64 {
    const LINE_HEIGHT: f64 = 26.0;
    const MAX_LINES: usize = 7;
    let (mut x, mut y, mut lines) = (x0, 88.0, 1);
    for (i, one) in series.iter().enumerate() {
        let text = font::fit(&one.label, 16.0, x1 - x0 - 50.0);
        let width = 46.0 + font::width(&text, 16.0);
        let rest = series.len() - i;
        // The last line reserves space for the number of omitted entries.
        let room = if lines == MAX_LINES && rest > 1 { 150.0 } else { 0.0 };
        if x > x0 && x + width + room > x1 {
            if lines == MAX_LINES {
                let more = format!("and {rest} more");
                scene.text((x, y + 6.0), &more, 16.0, Color::GREY, Anchor::Start);
                break;
            }
            (x, y, lines) = (x0, y + LINE_HEIGHT, lines + 1);
        }
        scene.line((x, y), (x + 36.0, y), one.stroke());
        if one.marked() {
            let center = (x + 18.0, y);
            scene.shapes.push(Shape::Circle { center, radius: 4.0, fill: one.color });
        }
        scene.text((x + 46.0, y + 6.0), &text, 16.0, Color::INK, Anchor::Start);
        x += width + 26.0;
    }
    y
}
