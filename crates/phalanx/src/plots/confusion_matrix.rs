//! The confusion matrix: true classes in rows, predicted classes in columns, each cell shaded by its
//! fraction of the true class.

use super::font;
use super::scene::{Anchor, Color, Pixels, Scene, Shape, stroke};
use super::{format, save};
use crate::error::{Error, Result};
use std::path::Path;

/// Color scale from 0 to 1.
const COLOR_SCALE: [Color; 3] = [Color::WHITE, Color(107, 174, 214), Color(8, 58, 120)];
const FRAME: Color = Color(170, 170, 170);
/// Minimum font size; smaller numbers and labels are omitted.
const MIN_FONT_SIZE: f64 = 8.0;
/// Maximum number of classes for which each cell is a vector shape. Larger matrices are one image.
const MAX_VECTOR_CLASSES: usize = 100;
/// Side length in pixels of a matrix with many classes.
const SIDE: usize = 1600;
/// Maximum number of classes that can be drawn: a cell has at least one pixel.
pub const MAX_CLASSES: usize = SIDE;
/// Maximum width of a label in pixels.
const MAX_LABEL_WIDTH: f64 = 170.0;

/// Plots how often each true class (a row of `counts`) was predicted as each class (a column). The shade
/// of a cell is its fraction of the true class, so rare classes are as readable as common ones. The
/// number in a cell is the count, omitted if the cells are too small.
///
/// # Errors
/// If the path ends neither in `.png` nor in `.svg`, there is no class, there are more than
/// [`MAX_CLASSES`], `counts` is not square or has another size than `labels`, or the file cannot be
/// written.
pub fn confusion_matrix(
    counts: &[Vec<u64>],
    labels: &[String],
    title: &str,
    path: &Path,
) -> Result<()> {
    let format = format(path)?;
    let wrong = |argument, expected: String, received: String| {
        Err(Error::argument("plots::confusion_matrix", argument, expected, received))
    };
    let n = counts.len();
    if n == 0 {
        return wrong("counts", "at least one class".into(), "none".into());
    }
    if n > MAX_CLASSES {
        return wrong("counts", format!("at most {MAX_CLASSES} classes"), n.to_string());
    }
    if let Some((i, row)) = counts.iter().enumerate().find(|(_, row)| row.len() != n) {
        return wrong("counts", format!("{n} columns"), format!("{} in row {i}", row.len()));
    }
    if labels.len() != n {
        return wrong("labels", format!("{n}, one per class"), labels.len().to_string());
    }
    save(&draw(counts, labels, title), format, path)
}

fn draw(counts: &[Vec<u64>], labels: &[String], title: &str) -> Scene {
    let n = counts.len();
    let cell = match n {
        0..=10 => (680.0 / n as f64).clamp(68.0, 130.0),
        11..=100 => (1200.0 / n as f64).floor().clamp(13.0, 60.0),
        101..=800 => (SIDE as f64 / n as f64).floor().max(2.0),
        _ => SIDE as f64 / n as f64,
    };
    let side = cell * n as f64;
    let label_size = (0.72 * cell).clamp(MIN_FONT_SIZE, 15.0);
    // Every label if the lines of text fit, otherwise every second, fifth, tenth, …
    let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500];
    let every = steps.into_iter().find(|s| *s as f64 * cell >= 1.2 * label_size).unwrap_or(1000);
    let labels: Vec<String> =
        labels.iter().map(|label| font::fit(label, label_size, MAX_LABEL_WIDTH)).collect();
    let shown = labels.iter().step_by(every);
    let longest = shown.map(|l| font::width(l, label_size)).fold(0.0, f64::max);
    let upright = longest <= cell - 6.0;

    // At least as wide as a short title needs, with the matrix centered.
    let width = (70.0 + longest + side + 120.0).max(560.0);
    let (left, top) = (((width - 50.0 - side + longest) / 2.0).round(), 96.0);
    let below = if upright { label_size } else { longest };
    let mut scene = Scene::new(width, top + side + below + 70.0);
    scene.title(40.0, title, 22.0);
    scene.title(68.0, &accuracy(counts), 15.0);

    cells(&mut scene, (left, top), cell, counts);
    for (i, label) in labels.iter().enumerate().step_by(every) {
        let middle = (i as f64 + 0.5) * cell;
        let at = (left - 8.0, top + middle + 0.36 * label_size);
        scene.text(at, label, label_size, Color::INK, Anchor::End);
        if upright {
            let at = (left + middle, top + side + 6.0 + label_size);
            scene.text(at, label, label_size, Color::INK, Anchor::Middle);
        } else {
            let at = (left + middle + 0.36 * label_size, top + side + 8.0);
            scene.rotated_text(at, label, label_size, Color::INK, Anchor::End, 90.0);
        }
    }
    let at = (left + side / 2.0, top + side + below + 46.0);
    scene.text(at, "predicted class", 17.0, Color::GREY, Anchor::Middle);
    let at = (left - longest - 36.0, top + side / 2.0);
    scene.rotated_text(at, "true class", 17.0, Color::GREY, Anchor::Middle, 90.0);
    scale(&mut scene, (left + side + 28.0, top), side);
    scene
}

/// `accuracy 0.9712: 9712 of 10000 right`.
fn accuracy(counts: &[Vec<u64>]) -> String {
    let all: u128 = counts.iter().flatten().map(|c| u128::from(*c)).sum();
    let right: u128 = counts.iter().enumerate().map(|(i, row)| u128::from(row[i])).sum();
    match all {
        0 => "no samples".into(),
        _ => format!("accuracy {:.4}: {right} of {all} right", right as f64 / all as f64),
    }
}

fn cells(scene: &mut Scene, at: (f64, f64), cell: f64, counts: &[Vec<u64>]) {
    let n = counts.len();
    let side = cell * n as f64;
    let fractions: Vec<Vec<f64>> = counts.iter().map(|row| fractions(row)).collect();
    if n <= MAX_VECTOR_CLASSES {
        for (i, row) in fractions.iter().enumerate() {
            for (j, fraction) in row.iter().enumerate().filter(|(_, fraction)| **fraction > 0.0) {
                let corner = (at.0 + j as f64 * cell, at.1 + i as f64 * cell);
                scene.rect(corner, (cell, cell), shade(*fraction));
            }
        }
    } else {
        let rgb = fractions.iter().flatten().flat_map(|fraction| {
            let color = shade(*fraction);
            [color.0, color.1, color.2]
        });
        let pixels = Pixels { width: n, height: n, rgb: rgb.collect() };
        scene.shapes.push(Shape::Image { at, size: (side, side), pixels });
    }
    if cell >= 10.0 {
        let thin = stroke(Color(222, 222, 222), if cell >= 30.0 { 1.0 } else { 0.5 });
        for i in 1..n {
            let along = i as f64 * cell;
            scene.line((at.0 + along, at.1), (at.0 + along, at.1 + side), thin);
            scene.line((at.0, at.1 + along), (at.0 + side, at.1 + along), thin);
        }
    }
    frame(scene, at, (side, side));

    let widest =
        counts.iter().flatten().map(|c| font::width(&c.to_string(), 1.0)).fold(0.1, f64::max);
    let size = ((cell - 6.0) / widest).min(0.45 * cell).min(17.0);
    if size < MIN_FONT_SIZE {
        return;
    }
    for (i, row) in counts.iter().enumerate() {
        for (j, count) in row.iter().enumerate() {
            let x = at.0 + (j as f64 + 0.5) * cell;
            let y = at.1 + (i as f64 + 0.5) * cell + 0.36 * size;
            let color = match fractions[i][j] {
                _ if *count == 0 => Color(190, 190, 190),
                fraction if fraction > 0.4 => Color::WHITE,
                _ => Color::INK,
            };
            scene.text((x, y), &count.to_string(), size, color, Anchor::Middle);
        }
    }
}

/// Each count as a fraction of its row.
fn fractions(row: &[u64]) -> Vec<f64> {
    let total: f64 = row.iter().map(|c| *c as f64).sum();
    row.iter().map(|c| if total > 0.0 { *c as f64 / total } else { 0.0 }).collect()
}

/// The square root makes the few mistakes of a good classifier visible.
fn shade(fraction: f64) -> Color {
    let [none, half, all] = COLOR_SCALE;
    let position = 2.0 * fraction.sqrt();
    if position < 1.0 { none.mix(half, position) } else { half.mix(all, position - 1.0) }
}

fn frame(scene: &mut Scene, (x, y): (f64, f64), (w, h): (f64, f64)) {
    let line = stroke(FRAME, 1.0);
    let corners = [(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)];
    corners.windows(2).for_each(|ends| scene.line(ends[0], ends[1], line));
}

/// The color scale next to the matrix.
fn scale(scene: &mut Scene, at: (f64, f64), side: f64) {
    let height = side.min(400.0);
    let steps = 64;
    for i in 0..steps {
        // Each rectangle extends to the bottom and is covered by the next, which avoids seams.
        let (from, middle) = (i as f64 / steps as f64, (i as f64 + 0.5) / steps as f64);
        let corner = (at.0, at.1 + from * height);
        scene.rect(corner, (16.0, (1.0 - from) * height), shade(1.0 - middle));
    }
    frame(scene, at, (16.0, height));
    for percent in [0, 50, 100] {
        let y = at.1 + height * (1.0 - f64::from(percent) / 100.0);
        let text = format!("{percent} %");
        scene.text((at.0 + 22.0, y + 4.5), &text, 13.0, Color::GREY, Anchor::Start);
    }
    if height >= 120.0 {
        let middle = (at.0 + 76.0, at.1 + height / 2.0);
        scene.rotated_text(middle, "of the true class", 13.0, Color::GREY, Anchor::Middle, 90.0);
    }
}
