//! A grid of images with captions, wrong predictions in red.

use super::font;
use super::scene::{Anchor, Color, Pixels, Scene, Shape, Stroke, stroke};
use super::{format, save};
use crate::error::{Error, Result};
use phalanx_graph::{Data, Tensor};
use std::path::Path;

/// Small images are enlarged to about this side length, large ones reduced to at most twice it.
const SIDE: usize = 128;
const CAPTION: f64 = 14.0;
const CAPTION_LINES: usize = 3;
const GAP: f64 = 18.0;
/// Distance between lines of the legend.
const KEY_LINE: f64 = 1.5 * CAPTION;

/// Plots images `[n, height, width, channels]` (1 channel gray, 3 channels color) in rows of `columns`,
/// each above its caption. A caption comes with a flag that tells whether its prediction is correct;
/// wrong ones are red. A legend explains the colors and the captions: `legend`, for example `prediction
/// (true class)`. The largest value distinguishes floats in 0 to 1 from floats in 0 to 255. Other floats
/// (normalized images) are stretched from their minimum to their maximum. Integers are taken as 0 to
/// 255.
///
/// # Errors
/// If the path ends neither in `.png` nor in `.svg`, the tensor does not hold images, there are no
/// columns, the number of captions differs from that of images, or the file cannot be written.
pub fn samples(
    images: &Tensor,
    captions: &[(String, bool)],
    legend: &str,
    columns: usize,
    path: &Path,
) -> Result<()> {
    let format = format(path)?;
    let wrong = |argument, expected: String, received: String| {
        Err(Error::argument("plots::samples", argument, expected, received))
    };
    let &[n, height, width, channels @ (1 | 3)] = images.dims() else {
        let expected = "dimensions [n, height, width, 1 or 3]".into();
        return wrong("images", expected, format!("{:?}", images.dims()));
    };
    if images.is_empty() {
        return wrong("images", "at least one pixel".into(), format!("{:?}", images.dims()));
    }
    if captions.len() != n {
        return wrong("captions", format!("{n}, one per image"), captions.len().to_string());
    }
    if columns == 0 {
        return wrong("columns", "at least 1".into(), "0".into());
    }
    let pixels = bytes(images);
    let tiles: Vec<Pixels> = pixels
        .chunks_exact(height * width * channels)
        .map(|one| reduced(one, height, width, channels))
        .collect();
    save(&draw(&tiles, captions, legend, columns.min(n)), format, path)
}

/// Converts values of any range to bytes.
fn bytes(images: &Tensor) -> Vec<u8> {
    match images.data() {
        Data::I32(values) => values.iter().map(|v| *v.clamp(&0, &255) as u8).collect(),
        Data::F32(values) => {
            let finite = || values.iter().copied().filter(|v| v.is_finite());
            let low = finite().fold(f32::INFINITY, f32::min);
            let high = finite().fold(f32::NEG_INFINITY, f32::max);
            let (from, to) = match () {
                _ if low >= 0.0 && high <= 1.0 => (0.0, 1.0),
                _ if low >= 0.0 && high <= 255.0 => (0.0, 255.0),
                _ => (low, high),
            };
            // In f64, where the difference of two f32 values is finite. NaN becomes 0.
            let (from, to) = (f64::from(from), f64::from(to));
            let span = if to > from { to - from } else { 1.0 };
            values.iter().map(|v| ((f64::from(*v) - from) / span * 255.0).round() as u8).collect()
        }
    }
}

/// An image as RGB. A large image is reduced by an integer factor: each pixel is the mean of a square.
fn reduced(image: &[u8], height: usize, width: usize, channels: usize) -> Pixels {
    let factor = height.max(width).div_ceil(2 * SIDE);
    let (h, w) = (height.div_ceil(factor), width.div_ceil(factor));
    let mut rgb = Vec::with_capacity(h * w * 3);
    for y in 0..h {
        for x in 0..w {
            for c in 0..3 {
                let (mut sum, mut count) = (0, 0);
                for i in y * factor..((y + 1) * factor).min(height) {
                    for j in x * factor..((x + 1) * factor).min(width) {
                        let at = (i * width + j) * channels + c.min(channels - 1);
                        sum += usize::from(image[at]);
                        count += 1;
                    }
                }
                rgb.push(((sum + count / 2) / count) as u8);
            }
        }
    }
    Pixels { width: w, height: h, rgb }
}

/// The color of a caption and the frame of its image.
fn style(right: bool) -> (Color, Stroke) {
    match right {
        true => (Color::INK, stroke(Color(205, 205, 205), 1.0)),
        false => (Color::RED, stroke(Color::RED, 3.0)),
    }
}

/// Draws the legend: the text in lines, then a mark for each color.
fn key(scene: &mut Scene, words: &[String]) {
    let mut y = GAP + 0.8 * CAPTION;
    for line in words {
        scene.text((GAP, y), line, CAPTION, Color::GREY, Anchor::Start);
        y += KEY_LINE;
    }
    let mut x = GAP;
    for (right, word) in [(true, "right"), (false, "wrong")] {
        let (color, frame) = style(right);
        scene.shapes.push(Shape::Rect {
            at: (x, y - 0.8 * CAPTION),
            size: (CAPTION, 0.8 * CAPTION),
            radius: 0.0,
            fill: Color::WHITE,
            stroke: Some(frame),
        });
        scene.text((x + 1.5 * CAPTION, y), word, CAPTION, color, Anchor::Start);
        x += 2.5 * CAPTION + font::width(word, CAPTION);
    }
}

fn draw(tiles: &[Pixels], captions: &[(String, bool)], legend: &str, columns: usize) -> Scene {
    let (w, h) = tiles.first().map_or((1, 1), |p| (p.width, p.height));
    let times = (SIDE / w.max(h)).max(1) as f64;
    let (width, height) = (w as f64 * times, h as f64 * times);
    let column = width.max(SIDE as f64);
    let lines: Vec<Vec<String>> = captions
        .iter()
        .map(|(text, _)| {
            let mut lines = font::wrap(text, CAPTION, column + GAP - 6.0);
            lines.truncate(CAPTION_LINES);
            lines
        })
        .collect();
    let deepest = lines.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let caption = if deepest > 0.0 { 6.0 + deepest * 1.3 * CAPTION } else { 0.0 };
    let row = height + caption + GAP;
    let rows = tiles.len().div_ceil(columns) as f64;
    let across = GAP + columns as f64 * (column + GAP);
    let words = font::wrap(legend, CAPTION, across - 2.0 * GAP);
    let top = GAP + (words.len() + 1) as f64 * KEY_LINE;
    let mut scene = Scene::new(across, top + GAP + rows * row);
    key(&mut scene, &words);
    for (i, (pixels, (_, right))) in tiles.iter().zip(captions).enumerate() {
        let x = GAP + (i % columns) as f64 * (column + GAP);
        let y = top + GAP + (i / columns) as f64 * row;
        let at = (x + ((column - width) / 2.0).round(), y);
        let (color, frame) = style(*right);
        scene.shapes.push(Shape::Rect {
            at: (at.0 - 1.0, at.1 - 1.0),
            size: (width + 2.0, height + 2.0),
            radius: 0.0,
            fill: Color::WHITE,
            stroke: Some(frame),
        });
        let size = (width, height);
        scene.shapes.push(Shape::Image { at, size, pixels: pixels.clone() });
        for (line, text) in lines[i].iter().enumerate() {
            let baseline = y + height + 6.0 + (line as f64 + 0.9) * 1.3 * CAPTION;
            scene.text((x + column / 2.0, baseline), text, CAPTION, color, Anchor::Middle);
        }
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(values: Vec<f32>) -> Vec<u8> {
        bytes(&Tensor::new([values.len(), 1, 1, 1], values).unwrap())
    }

    #[test]
    fn the_range_of_the_values_is_detected() {
        assert_eq!(shown(vec![0.0, 0.5, 1.0]), [0, 128, 255]);
        assert_eq!(shown(vec![0.0, 2.0, 255.0]), [0, 2, 255]);
        assert_eq!(shown(vec![-1.0, 0.0, 1.0]), [0, 128, 255]);
        assert_eq!(shown(vec![-3e38, f32::NAN, 3e38, f32::INFINITY]), [0, 0, 255, 255]);
        assert_eq!(shown(vec![f32::NAN]), [0]);
        let whole = Tensor::new([3, 1, 1, 1], vec![-4, 200, 999]).unwrap();
        assert_eq!(bytes(&whole), [0, 200, 255]);
    }

    #[test]
    fn large_images_are_averaged() {
        let (height, width) = (2, 300);
        let image: Vec<u8> =
            (0..height * width).map(|i| if i % 2 == 0 { 0 } else { 200 }).collect();
        let small = reduced(&image, height, width, 1);
        assert_eq!((small.height, small.width), (1, 150));
        assert!(small.rgb.iter().all(|v| *v == 100));
    }
}
