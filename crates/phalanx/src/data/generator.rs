//! `ImageDataGenerator`: images that are augmented again in every epoch.

use super::affine::{AffineParams, AffineTransformer, FillMode, Size};
use super::flow::{ImageFlow, Images};
use super::{Columns, Samples};
use crate::by_name::ByName;
use crate::error::{Error, Result};
use phalanx_exec::{AffineAugment, Fill, ImageShape};
use phalanx_graph::rng::Stream;
use std::sync::Arc;

/// Avoids division by a standard deviation of zero, as Keras does.
const EPSILON: f32 = 1e-6;

/// A zoom range, given as one number or as its two ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZoomRange(f64, f64);

impl From<f64> for ZoomRange {
    fn from(range: f64) -> ZoomRange {
        ZoomRange(1.0 - range, 1.0 + range)
    }
}

impl From<(f64, f64)> for ZoomRange {
    fn from((low, high): (f64, f64)) -> ZoomRange {
        ZoomRange(low, high)
    }
}

/// Augments and standardizes images, with Keras' arguments.
///
/// The augmentation of an image depends only on the seed of the run, the epoch and the index of the
/// image. Threads, replicas and batch size do not augmentation it.
///
/// ```
/// use phalanx::data::{Dataset, ImageDataGenerator};
/// use phalanx::Tensor;
///
/// let aug = ImageDataGenerator::new()
///     .width_shift_range(0.1)
///     .height_shift_range(0.1)
///     .horizontal_flip(true)
///     .fill_mode("nearest");
/// let (x, y) = (Tensor::zeros([100, 32, 32, 3]), Tensor::zeros([100, 10]));
/// let flow = aug.flow(x, y, 64)?;
/// assert_eq!(flow.batches(), Some(2));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageDataGenerator {
    featurewise_center: bool,
    featurewise_std_normalization: bool,
    samplewise_center: bool,
    samplewise_std_normalization: bool,
    rotation_range: f64,
    width_shift_range: f64,
    height_shift_range: f64,
    brightness_range: Option<(f64, f64)>,
    shear_range: f64,
    zoom_range: ZoomRange,
    channel_shift_range: f64,
    fill_mode: ByName<FillMode>,
    cval: f32,
    horizontal_flip: bool,
    vertical_flip: bool,
    rescale: Option<f32>,
    pub(super) validation_split: f64,
    /// Mean and standard deviation of every channel, set by `fit`.
    statistics: Option<(Vec<f32>, Vec<f32>)>,
}

impl Default for ImageDataGenerator {
    fn default() -> ImageDataGenerator {
        ImageDataGenerator {
            featurewise_center: false,
            featurewise_std_normalization: false,
            samplewise_center: false,
            samplewise_std_normalization: false,
            rotation_range: 0.0,
            width_shift_range: 0.0,
            height_shift_range: 0.0,
            brightness_range: None,
            shear_range: 0.0,
            zoom_range: ZoomRange(1.0, 1.0),
            channel_shift_range: 0.0,
            fill_mode: FillMode::Nearest.into(),
            cval: 0.0,
            horizontal_flip: false,
            vertical_flip: false,
            rescale: None,
            validation_split: 0.0,
            statistics: None,
        }
    }
}

/// Declares builder methods that set the field of their name.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident: $type:ty $(=> $convert:expr)?;)*) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $type) -> ImageDataGenerator {
            self.$name = arguments!(@value $name $($convert)?);
            self
        })*
    };
    (@value $name:ident) => { $name };
    (@value $name:ident $convert:expr) => { $convert($name) };
}

impl ImageDataGenerator {
    /// A generator that leaves images unchanged.
    pub fn new() -> ImageDataGenerator {
        ImageDataGenerator::default()
    }

    arguments! {
        /// Whether to subtract each channel's mean over the data; needs [`fit`](Self::fit).
        featurewise_center: bool;
        /// Whether to divide channels by their standard deviation over the data; needs
        /// [`fit`](Self::fit).
        featurewise_std_normalization: bool;
        /// Whether to subtract each image's mean.
        samplewise_center: bool;
        /// Whether to divide each image by its standard deviation.
        samplewise_std_normalization: bool;
        /// Maximum rotation in either direction, in degrees.
        rotation_range: f64;
        /// Maximum horizontal shift. Below 1 it is a fraction of the width; an integer n ≥ 1 means whole
        /// pixels, fewer than n; any other number means pixels.
        width_shift_range: f64;
        /// Maximum vertical shift, given like the horizontal one.
        height_shift_range: f64;
        /// Range of brightness factors.
        brightness_range: (f64, f64) => Some;
        /// Maximum shear in either direction, in degrees.
        shear_range: f64;
        /// Zoom of rows and of columns: z for `[1 - z, 1 + z]`, or both ends.
        zoom_range: impl Into<ZoomRange> => Into::into;
        /// Maximum value added to or subtracted from all channels; results are clamped to the range of
        /// the image.
        channel_shift_range: f64;
        /// How to fill points outside the image: "nearest", "constant", "reflect" or "wrap".
        fill_mode: impl Into<ByName<FillMode>> => Into::into;
        /// Fill value of `fill_mode` "constant".
        cval: f32;
        /// Whether to flip images horizontally with probability 1/2.
        horizontal_flip: bool;
        /// Whether to flip images vertically with probability 1/2.
        vertical_flip: bool;
        /// Factor of all values, applied before centering.
        rescale: f32 => Some;
        /// Fraction of the samples in the validation subset.
        validation_split: f64;
    }

    /// Computes the mean and standard deviation of every channel if a featurewise argument needs them.
    pub fn fit(mut self, x: impl Into<Samples>) -> Result<ImageDataGenerator> {
        let x = x.into();
        let size = image_size(x.dims())?;
        let (mut sums, mut squares) = (vec![0f64; size.channels], vec![0f64; size.channels]);
        let mut image = vec![0f32; size.len()];
        for row in 0..x.rows() {
            x.read_row(row, &mut image);
            for pixel in image.chunks_exact(size.channels) {
                for (c, value) in pixel.iter().enumerate() {
                    sums[c] += f64::from(*value);
                    squares[c] += f64::from(*value) * f64::from(*value);
                }
            }
        }
        let n = (x.rows() * size.height * size.width).max(1) as f64;
        let mean: Vec<f64> = sums.iter().map(|sum| sum / n).collect();
        let deviation = squares.iter().zip(&mean).map(|(s, m)| (s / n - m * m).max(0.0).sqrt());
        let deviation = deviation.map(|d| d as f32).collect();
        self.statistics = Some((mean.iter().map(|m| *m as f32).collect(), deviation));
        Ok(self)
    }

    /// Batches of the images `x` (`[n, height, width, channels]`) and their targets (`()` for none).
    /// Shuffled by default.
    pub fn flow(
        &self,
        x: impl Into<Samples>,
        y: impl Into<Columns>,
        batch_size: usize,
    ) -> Result<ImageFlow> {
        self.flow_images(Arc::new(x.into()), y, batch_size)
    }

    /// Like [`flow`](Self::flow), for images that are read on demand.
    pub fn flow_images(
        &self,
        images: Arc<dyn Images>,
        y: impl Into<Columns>,
        batch_size: usize,
    ) -> Result<ImageFlow> {
        ImageFlow::new(self.clone(), images, y.into(), batch_size)
    }

    /// Rejects arguments out of range and unsuitable images.
    pub(super) fn check(&self, size: Size) -> Result<()> {
        let fail = |argument: &str, expected: &str, received: f64| {
            Err(Error::argument("ImageDataGenerator", argument, expected, received))
        };
        self.fill_mode.get()?;
        for (argument, range) in [
            ("rotation_range", self.rotation_range),
            ("width_shift_range", self.width_shift_range),
            ("height_shift_range", self.height_shift_range),
            ("shear_range", self.shear_range),
            ("channel_shift_range", self.channel_shift_range),
        ] {
            if !(0.0..=1e6).contains(&range) {
                return fail(argument, "0 to 1,000,000", range);
            }
        }
        let ZoomRange(low, high) = self.zoom_range;
        if !(low > 0.0 && low <= high && high <= 1e6) {
            let received = format!("{low} to {high}");
            return Err(Error::argument(
                "ImageDataGenerator",
                "zoom_range",
                "a range above 0",
                received,
            ));
        }
        if let Some((low, high)) = self.brightness_range
            && !(low >= 0.0 && low <= high && high <= 1e6)
        {
            let (expected, received) = ("a range from 0 up", format!("{low} to {high}"));
            return Err(Error::argument(
                "ImageDataGenerator",
                "brightness_range",
                expected,
                received,
            ));
        }
        if !(0.0..1.0).contains(&self.validation_split) {
            return fail("validation_split", "a share in [0, 1)", self.validation_split);
        }
        if self.featurewise_center || self.featurewise_std_normalization {
            match &self.statistics {
                Some((mean, _)) if mean.len() == size.channels => {}
                Some((mean, _)) => {
                    return fail("fit", &format!("{} channels", size.channels), mean.len() as f64);
                }
                None => {
                    let message = "featurewise statistics are not known: call fit(x) first";
                    return Err(Error::config("ImageDataGenerator", message));
                }
            }
        }
        Ok(())
    }

    /// Draws the augmentation of a sample.
    fn draw(&self, random: &mut Stream, size: Size) -> Augmentation {
        let affine = AffineParams {
            theta: symmetric(random, self.rotation_range),
            shift: [
                shift(random, self.width_shift_range, size.width),
                shift(random, self.height_shift_range, size.height),
            ],
            shear: symmetric(random, self.shear_range),
            zoom: match self.zoom_range {
                ZoomRange(1.0, 1.0) => [1.0; 2],
                ZoomRange(low, high) => [(); 2].map(|()| between(random, low, high)),
            },
            flip_horizontal: self.horizontal_flip && random.unit() < 0.5,
            flip_vertical: self.vertical_flip && random.unit() < 0.5,
        };
        let channel_shift = symmetric(random, self.channel_shift_range) as f32;
        let brightness = self.brightness_range.map(|(a, b)| between(random, a, b) as f32);
        Augmentation { affine, channel_shift, brightness }
    }

    /// The image shape for augmentation on a device. `None` if the generator does more than affine
    /// transforms.
    pub(super) fn image_shape(&self, size: Size) -> Option<ImageShape> {
        let others = self.featurewise_center
            || self.featurewise_std_normalization
            || self.samplewise_center
            || self.samplewise_std_normalization
            || self.brightness_range.is_some()
            || self.channel_shift_range != 0.0
            || self.rescale.is_some();
        let fill = match self.fill_mode.get().ok()? {
            FillMode::Nearest => Fill::Nearest,
            FillMode::Constant => Fill::Constant(self.cval),
            FillMode::Reflect => Fill::Reflect,
            FillMode::Wrap => Fill::Wrap,
        };
        let Size { height, width, channels } = size;
        (!others).then_some(ImageShape { height, width, channels, fill })
    }

    /// Draws the affine transform of a sample.
    pub(super) fn affine_augment(&self, random: &mut Stream, size: Size) -> AffineAugment {
        let affine = self.draw(random, size).affine;
        if affine == AffineParams::NONE {
            return AffineAugment::NONE;
        }
        let AffineParams { flip_horizontal, flip_vertical, .. } = affine;
        AffineAugment { map: affine.map(size), flip_horizontal, flip_vertical }
    }

    /// Writes the augmented and standardized image `from` to `to`.
    pub(super) fn augment(
        &self,
        random: &mut Stream,
        transformer: &mut AffineTransformer,
        size: Size,
        from: &[f32],
        to: &mut [f32],
    ) -> Result<()> {
        let augmentation = self.draw(random, size);
        let fill = (*self.fill_mode.get()?, self.cval);
        transformer.apply(&augmentation.affine, fill, size, from, to);
        if augmentation.channel_shift != 0.0 {
            let (low, high) = extent(to);
            to.iter_mut().for_each(|x| *x = (*x + augmentation.channel_shift).clamp(low, high));
        }
        if let Some(factor) = augmentation.brightness {
            // Images are in [0, 1] or in [0, 255]; brightness is clamped to white.
            let white = if extent(to).1 > 1.0 { 255.0 } else { 1.0 };
            to.iter_mut().for_each(|x| *x = (*x * factor).min(white));
        }
        self.standardize(size, to);
        Ok(())
    }

    /// Scales and centers, in Keras' order.
    fn standardize(&self, size: Size, image: &mut [f32]) {
        if let Some(factor) = self.rescale {
            image.iter_mut().for_each(|x| *x *= factor);
        }
        let n = image.len().max(1) as f64;
        if self.samplewise_center {
            let mean = (image.iter().map(|x| f64::from(*x)).sum::<f64>() / n) as f32;
            image.iter_mut().for_each(|x| *x -= mean);
        }
        if self.samplewise_std_normalization {
            let mean = image.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let squares = image.iter().map(|x| (f64::from(*x) - mean).powi(2));
            let deviation = (squares.sum::<f64>() / n).sqrt() as f32 + EPSILON;
            image.iter_mut().for_each(|x| *x /= deviation);
        }
        let Some((mean, deviation)) = &self.statistics else { return };
        for pixel in image.chunks_exact_mut(size.channels.max(1)) {
            if self.featurewise_center {
                pixel.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
            }
            if self.featurewise_std_normalization {
                pixel.iter_mut().zip(deviation).for_each(|(x, d)| *x /= d + EPSILON);
            }
        }
    }
}

/// The augmentation of one image.
struct Augmentation {
    affine: AffineParams,
    channel_shift: f32,
    brightness: Option<f32>,
}

/// The size of the images in rows of samples.
pub(super) fn image_size(dims: &[usize]) -> Result<Size> {
    match dims {
        [_, height, width, channels] if height * width * channels > 0 => {
            Ok(Size { height: *height, width: *width, channels: *channels })
        }
        _ => {
            let expected = "images [n, height, width, channels]";
            Err(Error::argument("ImageDataGenerator", "x", expected, format!("{dims:?}")))
        }
    }
}

fn between(random: &mut Stream, low: f64, high: f64) -> f64 {
    low + (high - low) * random.unit()
}

/// Draws nothing for an empty range.
fn symmetric(random: &mut Stream, range: f64) -> f64 {
    if range == 0.0 { 0.0 } else { between(random, -range, range) }
}

/// Draws a shift in pixels along an axis of `n` pixels.
fn shift(random: &mut Stream, range: f64, n: usize) -> f64 {
    if range < 1.0 {
        symmetric(random, range) * n as f64
    } else if range.fract() == 0.0 {
        let most = range as u64 - 1;
        random.below(2 * most + 1) as f64 - most as f64
    } else {
        symmetric(random, range)
    }
}

fn extent(image: &[f32]) -> (f32, f32) {
    image.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), x| (a.min(*x), b.max(*x)))
}
