//! Mixtures of the samples of a batch and of their labels, as Keras' layers `MixUp` and `CutMix` make them in a pipeline.
//! Random numbers depend on the seed, the epoch and the batch alone. Every worker produces full batches.

use super::epoch_context::{EpochContext, Item};
use super::{Cardinality, Element, Elements, Pipeline, PipelineStep};
use crate::error::{Error, Result};
use crate::layers::Factor;
use phalanx_graph::Tensor;
use phalanx_graph::rng::Stream;
use std::f64::consts::TAU;
use std::sync::Arc;

/// Random stream of mixed batches. Layers number theirs from 1.
const MIXING: u32 = 0xFFFF_0005;

/// How samples are mixed.
#[derive(Clone, Copy, Debug)]
enum Mixture {
    /// Weighted means; both parameters of the beta distribution of the weights.
    MixUp(f64),
    /// Rectangles of images; the range of the parameter of the beta distribution of the rest's area.
    CutMix([f64; 2]),
}

impl Pipeline {
    /// Replaces the samples and labels of each batch by weighted means with others of the batch. The weight of a sample is
    /// beta-distributed, with both parameters `alpha`. An element is `(x, y)`, or with sample weights, which are not mixed.
    /// Labels are vectors of floats, such as one-hot ones.
    ///
    /// ```
    /// use phalanx::data::Pipeline;
    /// use phalanx::Tensor;
    ///
    /// let (images, one_hot) = (Tensor::zeros([100, 8, 8, 3]), Tensor::zeros([100, 10]));
    /// let train = Pipeline::from_tensor_slices((images, one_hot))?.shuffle(100)?.batch(32, false)?;
    /// let train = train.mix_up(0.2)?.prefetch(2);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `alpha` is not above 0, or there is no `batch` before.
    pub fn mix_up(self, alpha: f64) -> Result<Pipeline> {
        if alpha > 0.0 && alpha.is_finite() {
            return self.mixed("mix_up", Mixture::MixUp(alpha));
        }
        Err(Error::argument("mix_up", "alpha", "a number above 0", alpha))
    }

    /// Replaces a rectangle of each image of a batch by that of another one, and their labels by weighted means. The
    /// weight of an image is beta-distributed. Both parameters are drawn for each batch from the range `factor`; one number
    /// stands for 0 up to it. Elements are as in [`mix_up`](Self::mix_up), with images `(height, width, channels)`.
    ///
    /// # Errors
    /// If the range is not between 0 and 1, or there is no `batch` before.
    pub fn cut_mix(self, factor: impl Into<Factor>) -> Result<Pipeline> {
        let ends = match factor.into() {
            Factor::Both(high) => [0.0, high],
            Factor::Ends([a, b]) => [a.min(b), a.max(b)],
        };
        if ends.iter().all(|end| (0.0..=1.0).contains(end)) {
            return self.mixed("cut_mix", Mixture::CutMix(ends));
        }
        let received = format!("{} to {}", ends[0], ends[1]);
        Err(Error::argument("cut_mix", "factor", "numbers from 0 to 1", received))
    }

    fn mixed(mut self, name: &'static str, mixture: Mixture) -> Result<Pipeline> {
        if self.batch.is_none() {
            return Err(Error::argument(name, "elements", "batches (batch(n))", "single samples"));
        }
        self.step = Arc::new(Mix { inner: self.step, name, mixture });
        self.shuffled = true;
        self.text = self.text.after(name);
        self.provenance = self.provenance.then(format_args!("{mixture:?}"));
        Ok(self)
    }
}

struct Mix {
    inner: Arc<dyn PipelineStep>,
    name: &'static str,
    mixture: Mixture,
}

impl PipelineStep for Mix {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let inner = self.inner.open(context.clone().with_full_batches().inner(0))?;
        let (name, mixture) = (self.name, self.mixture);
        Ok(Box::new(MixElements { inner, context, at: 0, name, mixture }))
    }
}

struct MixElements {
    inner: Box<dyn Elements>,
    context: EpochContext,
    /// Index of the next batch.
    at: usize,
    name: &'static str,
    mixture: Mixture,
}

impl Elements for MixElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let Some(item) = self.inner.next()? else { return Ok(None) };
        let at = self.at;
        self.at += 1;
        let Item::Full(mut element) = item else { return Ok(Some(item)) };
        let EpochContext { seed, epoch, path, .. } = self.context;
        // Steps and repetitions differ in their path, batches in their index.
        let place = path.wrapping_mul(0x9E37_79B9).wrapping_add(at as u32);
        let mut random = Stream::new(seed, epoch, MIXING, place);
        self.mix(&mut element, at, &mut random)?;
        Ok(Some(Item::Full(element)))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        self.inner.skip(elements)
    }
}

impl MixElements {
    fn mix(&self, element: &mut Element, at: usize, random: &mut Stream) -> Result<()> {
        let (name, received) = (self.name, element.len());
        let refused = |what: &str, expected: &str, t: &Tensor| {
            let received = format!("{} {:?}", t.dtype(), t.dims());
            Err(Error::argument(name, format!("{what} of batch {at}"), expected, received))
        };
        let [x, y, ..] = &mut element[..] else {
            let argument = format!("batch {at}");
            return Err(Error::argument(name, argument, "samples and labels", received));
        };
        let rows = x.rows();
        if y.dims().len() < 2 || y.rows() != rows || y.f32().is_none() {
            let expected = format!("{rows} vectors of floats, such as one-hot labels");
            return refused("labels", &expected, y);
        }
        let order = permutation(rows, random);
        let weights = match self.mixture {
            Mixture::MixUp(alpha) => {
                let weights: Vec<f32> =
                    (0..rows).map(|_| symmetric_beta(alpha, random) as f32).collect();
                match x.f32_mut() {
                    Some(values) => mix_rows(values, &order, &weights),
                    None => return refused("samples", "floats", x),
                }
                weights
            }
            Mixture::CutMix([low, high]) => {
                let [_, height, width, channels] = x.dims()[..] else {
                    return refused("samples", "float images of 3 axes", x);
                };
                let Some(values) = x.f32_mut() else {
                    return refused("samples", "float images of 3 axes", x);
                };
                // As in Keras, so that the parameter is not 0.
                let alpha = low + (high - low) * random.unit() + 1e-6;
                let boxes: Vec<Rectangle> =
                    (0..rows).map(|_| Rectangle::draw(alpha, random)).collect();
                cut_rows(values, &order, &boxes, [height, width, channels]);
                boxes.iter().map(|b| b.weight as f32).collect()
            }
        };
        mix_rows(y.f32_mut().unwrap_or_default(), &order, &weights);
        Ok(())
    }
}

/// A random order of `0..n`.
fn permutation(n: usize, random: &mut Stream) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

/// A number from the beta distribution with two equal parameters: `(1 + t / √(2 alpha + t²)) / 2` for a number `t` of
/// Student's distribution with `2 alpha` degrees of freedom, by Bailey's method.
fn symmetric_beta(alpha: f64, random: &mut Stream) -> f64 {
    let (p, c) = ((1.0 - random.unit()).powf(1.0 / alpha), (TAU * random.unit()).cos());
    let square = c * c * (1.0 - p);
    let share = if square > 0.0 { square / (p + square) } else { 0.0 };
    0.5 + 0.5 * share.sqrt().copysign(c)
}

/// `w · x + (1 - w) · other` for each row, with the row that takes its place in `order`.
fn mix_rows(values: &mut [f32], order: &[usize], weights: &[f32]) {
    let len = values.len() / order.len().max(1);
    let before = values.to_vec();
    for (row, (from, w)) in order.iter().zip(weights).enumerate() {
        let other = &before[from * len..(from + 1) * len];
        for (v, other) in values[row * len..(row + 1) * len].iter_mut().zip(other) {
            *v = w * *v + (1.0 - w) * other;
        }
    }
}

/// A rectangle of an image.
struct Rectangle {
    /// The share of the image outside of it.
    weight: f64,
    /// The share of height and width.
    ratio: f64,
    /// Where it starts, horizontally and vertically, in what it leaves of the image.
    start: [f64; 2],
}

impl Rectangle {
    fn draw(alpha: f64, random: &mut Stream) -> Rectangle {
        let weight = symmetric_beta(alpha, random);
        let ratio = (1.0 - weight).sqrt();
        Rectangle { weight, ratio, start: [random.unit(), random.unit()] }
    }

    /// The pixels of an axis that it covers: 0 is the horizontal one.
    fn range(&self, axis: usize, size: usize) -> std::ops::Range<usize> {
        let length = self.ratio * size as f64;
        let start = self.start[axis] * (size as f64 - length);
        let pixel = |at: f64| (at.ceil() as usize).min(size);
        pixel(start)..pixel(start + length)
    }
}

/// Replaces a rectangle of each image by that of the image which takes its place in `order`.
fn cut_rows(
    values: &mut [f32],
    order: &[usize],
    boxes: &[Rectangle],
    [height, width, channels]: [usize; 3],
) {
    let before = values.to_vec();
    for (row, (from, rectangle)) in order.iter().zip(boxes).enumerate() {
        let across = rectangle.range(0, width);
        for y in rectangle.range(1, height) {
            let line = |image: usize| {
                let start = (image * height + y) * width;
                (start + across.start) * channels..(start + across.end) * channels
            };
            values[line(row)].copy_from_slice(&before[line(*from)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{message, shard};
    use super::*;
    use crate::data::{Dataset, HostBatch};

    const CLASSES: usize = 4;

    /// Images of which every pixel is the number of the sample, and one-hot labels of its remainder.
    fn numbered(n: usize, side: usize) -> Pipeline {
        let pixels = side * side * 2;
        let x: Vec<f32> = (0..n * pixels).map(|i| (i / pixels) as f32).collect();
        let hot = |i: usize| f32::from(u8::from(i / CLASSES % CLASSES == i % CLASSES));
        let y: Vec<f32> = (0..n * CLASSES).map(hot).collect();
        let x = Tensor::new([n, side, side, 2], x).unwrap();
        Pipeline::from_tensor_slices((x, Tensor::new([n, CLASSES], y).unwrap())).unwrap()
    }

    fn elements(data: &Pipeline, epoch: u64) -> Vec<Element> {
        data.elements(7, epoch).unwrap().collect::<Result<_>>().unwrap()
    }

    /// The labels of a mixture of two samples.
    fn expected_label(own: usize, other: usize, weight: f32) -> Vec<f32> {
        let mut label = vec![0.0; CLASSES];
        label[own % CLASSES] += weight;
        label[other % CLASSES] += 1.0 - weight;
        label
    }

    fn assert_near(received: &[f32], expected: &[f32]) {
        let near = received.iter().zip(expected).all(|(r, e)| (r - e).abs() < 1e-5);
        assert!(near, "{received:?}, expected {expected:?}");
    }

    #[test]
    fn weights_have_the_beta_distribution() {
        // The distribution function of both parameters `a` at 0.1 and 0.25, from scipy.stats.beta.cdf.
        for (alpha, at) in [
            (0.2, [0.3366898, 0.4140555]),
            (0.5, [0.2048328, 1.0 / 3.0]),
            (1.0, [0.1, 0.25]),
            (3.0, [0.0085600, 0.1035156]),
        ] {
            let mut random = Stream::new(3, 0, 0, 0);
            let n = 40_000;
            let w: Vec<f64> = (0..n).map(|_| symmetric_beta(alpha, &mut random)).collect();
            assert!(w.iter().all(|w| (0.0..=1.0).contains(w)));
            for (limit, expected) in [0.1, 0.25].into_iter().zip(at) {
                let below = w.iter().filter(|w| **w < limit).count() as f64 / f64::from(n);
                let above = w.iter().filter(|w| **w > 1.0 - limit).count() as f64 / f64::from(n);
                // Five standard deviations.
                assert!((below - expected).abs() < 0.0125, "{alpha}: {below}, not {expected}");
                assert!((above - expected).abs() < 0.0125, "{alpha}: {above}, not {expected}");
            }
        }
    }

    #[test]
    fn means_of_samples_have_the_means_of_their_labels() {
        let data = numbered(50, 3).batch(20, false).unwrap().mix_up(0.4).unwrap();
        let mut mixed = 0;
        for (at, element) in elements(&data, 0).iter().enumerate() {
            let (rows, mut used) = (element[0].rows(), vec![false; 20]);
            let images = element[0].f32().unwrap().chunks(18);
            let labels = element[1].f32().unwrap().chunks(CLASSES);
            let mut random = Stream::new(7, 0, MIXING, at as u32);
            let order = permutation(rows, &mut random);
            for (row, (image, label)) in images.zip(labels).enumerate() {
                let weight = symmetric_beta(0.4, &mut random) as f32;
                let (own, other) = (20 * at + row, 20 * at + order[row]);
                let value = weight * own as f32 + (1.0 - weight) * other as f32;
                assert_near(image, &[value; 18]);
                assert_near(label, &expected_label(own, other, weight));
                assert!(!std::mem::replace(&mut used[order[row]], true), "a permutation");
                mixed += usize::from(own != other && (0.01..0.99).contains(&weight));
            }
        }
        assert!(mixed > 20, "{mixed}");
    }

    #[test]
    fn rectangles_have_the_share_of_their_labels() {
        let side = 40;
        let data = numbered(60, side).batch(60, false).unwrap().cut_mix((0.8, 1.0)).unwrap();
        let element = elements(&data, 1).remove(0);
        let images = element[0].f32().unwrap().chunks(side * side * 2);
        let labels = element[1].f32().unwrap().chunks(CLASSES);
        let (mut cut, mut areas) = (0, vec![]);
        for (own, (image, label)) in images.zip(labels).enumerate() {
            let others: Vec<usize> = (0..image.len()).filter(|i| image[*i] != own as f32).collect();
            let Some(first) = others.first() else { continue };
            let other = image[*first] as usize;
            let (top, left) = (first / 2 / side, first / 2 % side);
            let last = others[others.len() - 1];
            let (bottom, right) = (last / 2 / side, last / 2 % side);
            // One full rectangle of one other image.
            assert_eq!(others.len(), 2 * (bottom - top + 1) * (right - left + 1));
            assert!(others.iter().all(|i| image[*i] == other as f32));
            let weight = 1.0 - others.len() as f32 / image.len() as f32;
            let expected = expected_label(own, other, weight);
            let near = label.iter().zip(&expected).all(|(l, e)| (l - e).abs() < 0.06);
            assert!(near, "{label:?}, expected {expected:?}");
            areas.push(weight);
            cut += 1;
        }
        assert!(cut > 50, "{cut}");
        let mean = areas.iter().sum::<f32>() / areas.len() as f32;
        assert!((0.35..0.65).contains(&mean), "{mean}");
    }

    #[test]
    fn mixtures_depend_on_seed_epoch_and_batch_but_not_on_workers() {
        let chains: [fn(Pipeline) -> Result<Pipeline>; 2] =
            [|p| p.mix_up(0.3), |p| p.repeat(2).cut_mix(1.0)?.mix_up(0.3)];
        for chain in chains {
            let data = || chain(numbered(33, 4).shuffle(33).unwrap().batch(11, false).unwrap());
            let data = data().unwrap();
            let whole = elements(&data, 0);
            assert_eq!(whole, elements(&data, 0));
            assert_ne!(whole, elements(&data, 1));
            assert_ne!(
                elements(&data, 1),
                data.elements(8, 1).unwrap().flatten().collect::<Vec<_>>()
            );
            for workers in [2, 3] {
                for start in [0, 2] {
                    for worker in 0..workers {
                        let own = shard(worker, workers);
                        let mut epoch = data.epoch_of(7, 0, start, Some(&own)).unwrap();
                        let mut batch = HostBatch::default();
                        for element in &whole[start..] {
                            assert!(epoch.next(&mut batch).unwrap());
                            // Every worker has the full batch, of which it takes its rows.
                            assert_eq!((batch.rows, batch.local.clone()), (11, None));
                            assert_eq!(
                                (&batch.inputs[0], &batch.targets[0]),
                                (&element[0], &element[1])
                            );
                        }
                        assert!(!epoch.next(&mut batch).unwrap());
                    }
                }
            }
        }
    }

    #[test]
    fn batches_that_cannot_be_mixed_are_refused() {
        let batched = || numbered(4, 2).batch(4, false).unwrap();
        let text = message(numbered(4, 2).mix_up(0.2));
        assert_eq!(text, "mix_up: elements: expected batches (batch(n)), received single samples");
        assert!(message(batched().mix_up(0.0)).contains("alpha: expected a number above 0"));
        assert!(message(batched().mix_up(f64::NAN)).contains("expected a number above 0"));
        assert!(message(batched().cut_mix((0.5, 1.5))).contains("numbers from 0 to 1"));
        assert!(message(batched().cut_mix(f64::NAN)).contains("numbers from 0 to 1"));
        let of = |x: Tensor, y: Tensor| {
            let data = Pipeline::from_tensor_slices((x, y)).unwrap().batch(2, false).unwrap();
            let cut = data.clone().cut_mix(1.0).unwrap().elements(0, 0).unwrap().next().unwrap();
            let mixed = data.mix_up(1.0).unwrap().elements(0, 0).unwrap().next().unwrap();
            [mixed.err().map(|e| e.to_string()), cut.err().map(|e| e.to_string())]
        };
        let classes = Tensor::new([2], vec![0, 1]).unwrap();
        for text in of(Tensor::zeros([2, 2, 2, 1]), classes) {
            let text = text.unwrap();
            assert!(text.contains("labels of batch 0: expected 2 vectors of floats"), "{text}");
        }
        let [mixed, cut] = of(Tensor::zeros([2, 5]), Tensor::zeros([2, 3]));
        assert_eq!(mixed, None);
        let expected = "samples of batch 0: expected float images of 3 axes, received f32 [2, 5]";
        assert!(cut.unwrap().contains(expected));
        let alone = Pipeline::from_tensor_slices(Tensor::zeros([2, 5])).unwrap();
        let alone = alone.batch(2, false).unwrap().mix_up(1.0).unwrap();
        let text = message(alone.elements(0, 0).unwrap().next().unwrap());
        assert_eq!(text, "mix_up: batch 0: expected samples and labels, received 1");
    }
}
