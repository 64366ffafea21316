//! `ImageDataGenerator`: images distorted anew in every epoch.

use super::affine::{FillMode, Motion, Mover, Size};
use super::flow::{ImageFlow, Images};
use super::{Columns, Samples};
use crate::by_name::ByName;
use crate::error::{Error, Result};
use phalanx_graph::resident::{self, Fill, ImageShape};
use phalanx_graph::rng::Stream;
use std::sync::Arc;

/// Keeps a division by a standard deviation of zero finite, as Keras does.
const EPSILON: f32 = 1e-6;

/// A range given as one number or as its two ends.
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

/// Distorts and standardises images, with Keras' arguments.
///
/// What happens to an image depends on the run's seed, the epoch and the image's own index alone:
/// threads, replicas and batch size change nothing.
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
    /// Mean and standard deviation of every channel, once fitted.
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
    /// One that leaves images as they are.
    pub fn new() -> ImageDataGenerator {
        ImageDataGenerator::default()
    }

    arguments! {
        /// Whether each channel's mean over the data is taken away; needs [`fit`](Self::fit).
        featurewise_center: bool;
        /// Whether channels are divided by their deviation over the data; needs
        /// [`fit`](Self::fit).
        featurewise_std_normalization: bool;
        /// Whether each image's own mean is taken away.
        samplewise_center: bool;
        /// Whether each image is divided by its own deviation.
        samplewise_std_normalization: bool;
        /// The largest rotation either way, in degrees.
        rotation_range: f64;
        /// The largest shift to either side: below 1 a share of the width; a whole number n from 1
        /// up, whole pixels fewer than n; another number, pixels.
        width_shift_range: f64;
        /// The largest shift up or down, given as for the width.
        height_shift_range: f64;
        /// Factors of the brightness, from the first to the second.
        brightness_range: (f64, f64) => Some;
        /// The largest shear either way, in degrees.
        shear_range: f64;
        /// The zoom of rows and of columns: z for `[1 - z, 1 + z]`, or both ends.
        zoom_range: impl Into<ZoomRange> => Into::into;
        /// The largest value added to or taken from all channels, within the image's own range.
        channel_shift_range: f64;
        /// What fills the places an image is moved away from: "nearest", "constant", "reflect" or
        /// "wrap".
        fill_mode: impl Into<ByName<FillMode>> => Into::into;
        /// The value of `fill_mode` "constant".
        cval: f32;
        /// Whether every other image, by chance, is mirrored left to right.
        horizontal_flip: bool;
        /// Whether every other image, by chance, is mirrored top to bottom.
        vertical_flip: bool;
        /// The factor of all values, before any centring.
        rescale: f32 => Some;
        /// The share of the samples that `subset` "validation" shows.
        validation_split: f64;
    }

    /// Learns the channels' means and deviations, where a featurewise argument asks for them.
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

    /// Batches of the images `x` (`[n, height, width, channels]`) and what belongs to them (`()`
    /// for nothing), shuffled unless told otherwise.
    pub fn flow(
        &self,
        x: impl Into<Samples>,
        y: impl Into<Columns>,
        batch_size: usize,
    ) -> Result<ImageFlow> {
        self.flow_images(Arc::new(x.into()), y, batch_size)
    }

    /// As [`flow`](Self::flow), for images that are read as they are needed.
    pub fn flow_images(
        &self,
        images: Arc<dyn Images>,
        y: impl Into<Columns>,
        batch_size: usize,
    ) -> Result<ImageFlow> {
        ImageFlow::new(self.clone(), images, y.into(), batch_size)
    }

    /// Refuses arguments out of range and images of another kind.
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

    /// What is to happen to a sample in an epoch.
    fn draw(&self, random: &mut Stream, size: Size) -> Change {
        let motion = Motion {
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
        Change { motion, channel_shift, brightness }
    }

    /// What images of this size are moved in, where moving them is all that is done.
    pub(super) fn frame(&self, size: Size) -> Option<ImageShape> {
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

    /// How a sample is moved in an epoch.
    pub(super) fn motion(&self, random: &mut Stream, size: Size) -> resident::AffineAugment {
        let motion = self.draw(random, size).motion;
        if motion == Motion::NONE {
            return resident::AffineAugment::NONE;
        }
        let Motion { flip_horizontal, flip_vertical, .. } = motion;
        resident::AffineAugment { map: motion.map(size), flip_horizontal, flip_vertical }
    }

    /// Distorts and standardises the image `from` into `to`.
    pub(super) fn change(
        &self,
        random: &mut Stream,
        mover: &mut Mover,
        size: Size,
        from: &[f32],
        to: &mut [f32],
    ) -> Result<()> {
        let change = self.draw(random, size);
        let fill = (*self.fill_mode.get()?, self.cval);
        mover.apply(&change.motion, fill, size, from, to);
        if change.channel_shift != 0.0 {
            let (low, high) = extent(to);
            to.iter_mut().for_each(|x| *x = (*x + change.channel_shift).clamp(low, high));
        }
        if let Some(factor) = change.brightness {
            // Images are in [0, 1] or in [0, 255]; neither grows brighter than white.
            let white = if extent(to).1 > 1.0 { 255.0 } else { 1.0 };
            to.iter_mut().for_each(|x| *x = (*x * factor).min(white));
        }
        self.standardize(size, to);
        Ok(())
    }

    /// Scales and centres, in Keras' order.
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

/// What happens to one image.
struct Change {
    motion: Motion,
    channel_shift: f32,
    brightness: Option<f32>,
}

/// The size of images in rows.
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

/// Nothing is drawn for a range of nothing.
fn symmetric(random: &mut Stream, range: f64) -> f64 {
    if range == 0.0 { 0.0 } else { between(random, -range, range) }
}

/// A shift in pixels along an axis of `n` of them.
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
