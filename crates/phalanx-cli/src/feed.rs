//! Samples on their way to a model: in memory, or images that a worker reads as it needs them.

use crate::origin::Origin;
use crate::words;
use anyhow::{Context, Result, bail};
use phalanx::data::{Digest, ImageCache, ImageFlow, Images, Pixels, Samples};
use phalanx::launch;
use phalanx::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The part of a machine's memory that its workers keep decoded images in, all of them together.
const KEPT: usize = 4;

/// Samples in rows.
#[derive(Clone)]
pub enum Feed {
    /// All of them.
    Memory(Samples),
    /// Files, where every worker reads the rows that are its own.
    Files(Files),
}

/// Some of the images of a folder.
#[derive(Clone)]
pub struct Files {
    images: Arc<ImageCache>,
    /// Their numbers in the folder.
    rows: Arc<Vec<usize>>,
    /// What is done to them, and the dimensions they then have.
    fed: Option<Arc<(Origin, Vec<usize>)>>,
}

/// Bytes that this worker may keep of decoded images.
pub fn room() -> usize {
    let workers = launch::detect().ok().flatten().map_or(1, |launch| launch.local_size);
    phalanx::physical_memory() / KEPT / workers.max(1)
}

impl Feed {
    /// The images of a folder, decoded as they are needed and kept up to so many bytes.
    pub fn files(folder: ImageFolder, room: usize) -> Feed {
        let rows = Arc::new((0..folder.len()).collect());
        Feed::Files(Files { images: Arc::new(folder.cache(room)), rows, fed: None })
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        match self {
            Feed::Memory(samples) => samples.rows(),
            Feed::Files(files) => files.rows.len(),
        }
    }

    /// The dimensions of a sample.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            Feed::Memory(samples) => samples.dims()[1..].to_vec(),
            Feed::Files(files) => match &files.fed {
                Some(fed) => fed.1.clone(),
                None => files.images.folder().dims()[1..].to_vec(),
            },
        }
    }

    /// Some of the samples, in this order.
    pub fn pick(&self, rows: &[usize]) -> Result<Feed> {
        Ok(match self {
            Feed::Memory(samples) => {
                let each = if self.is_bytes() { 1 } else { size_of::<f32>() };
                let bytes = samples.row_len().saturating_mul(rows.len()).saturating_mul(each);
                if bytes > phalanx::free_memory() {
                    let dims = &samples.dims()[1..];
                    bail!("no memory for a part of the samples: {} of {dims:?}", rows.len());
                }
                Feed::Memory(samples.select_rows(rows).context("rows that are there")?)
            }
            Feed::Files(files) => {
                let rows = Arc::new(rows.iter().map(|row| files.rows[*row]).collect());
                Feed::Files(Files { rows, ..files.clone() })
            }
        })
    }

    /// As a model takes them, in these dimensions.
    pub fn fed(&self, origin: &Origin, dims: &[usize]) -> Result<Feed> {
        Ok(match self {
            Feed::Memory(samples) => {
                let shaped = origin.shape(samples)?;
                let dims = [&[shaped.rows()], dims].concat();
                Feed::Memory(shaped.reshape(dims).context("reshaping samples")?)
            }
            Feed::Files(files) => {
                let fed = files.shaped(origin, dims.to_vec());
                let size: usize = files.images.folder().dims()[1..].iter().product();
                // What cannot be fed is said before anything is read.
                fed.shape(vec![0; size])?;
                Feed::Files(fed)
            }
        })
    }

    /// As they are, bytes from 0 to 255.
    pub fn raw(&self) -> Feed {
        match self {
            Feed::Memory(samples) => Feed::Memory(samples.clone().raw()),
            files => files.clone(),
        }
    }

    /// Whether the samples are kept as bytes.
    pub fn is_bytes(&self) -> bool {
        !matches!(self, Feed::Memory(Samples::Tensor(_)))
    }

    /// The mean over all samples, shaped: every worker adds up its part. Bytes are whole numbers, so the sum is
    /// the same however it is cut.
    pub fn mean(&self, origin: &Origin, workers: &MultiWorkerMirroredStrategy) -> Result<Vec<f32>> {
        let files = match self {
            Feed::Memory(samples) => {
                return Ok(origin.shape(samples)?.mean().f32().unwrap_or_default().to_vec());
            }
            Feed::Files(files) => files.shaped(origin, origin.input.clone()),
        };
        let (n, rank, size) = (self.rows(), workers.rank(), workers.num_workers());
        let mut sums = files.sums(n * rank / size..n * (rank + 1) / size)?;
        workers.sum(&mut sums)?;
        Ok(sums.iter().map(|sum| (sum / n as f64) as f32).collect())
    }

    /// The first samples as a tensor.
    pub fn first(&self, count: usize) -> Result<Option<Tensor>> {
        match self {
            Feed::Memory(samples) => {
                Ok(samples.slice_rows(0..count).map(|s| Tensor::clone(&s.to_tensor())))
            }
            Feed::Files(files) => {
                let mut dims = files.images.folder().dims();
                dims[0] = count.min(files.rows.len());
                let mut bytes = vec![];
                for row in &files.rows[..dims[0]] {
                    bytes.extend_from_slice(&files.images.bytes(*row)?);
                }
                let pixels = Pixels::new(dims, bytes, 255.0).map(Samples::from);
                Ok(pixels.map(|s| Tensor::clone(&s.to_tensor())))
            }
        }
    }

    /// Images, distorted; files are read by as many threads as there are cores.
    pub fn flow(
        &self,
        distort: &ImageDataGenerator,
        y: &Tensor,
        batch: usize,
    ) -> Result<ImageFlow> {
        Ok(match self {
            Feed::Memory(x) => distort.flow(x, y, batch)?,
            Feed::Files(files) => distort
                .flow_images(Arc::new(files.clone()), y, batch)?
                .reshape(self.dims())?
                .workers(phalanx::usable_cores()),
        })
    }
}

impl Files {
    fn shaped(&self, origin: &Origin, dims: Vec<usize>) -> Files {
        Files { fed: Some(Arc::new((origin.clone(), dims))), ..self.clone() }
    }

    /// An image as the model takes it.
    fn shape(&self, bytes: Vec<u8>) -> Result<Samples> {
        let mut dims = self.images.folder().dims();
        dims[0] = 1;
        let one = Samples::from(Pixels::new(dims, bytes, 255.0).context("a byte each")?);
        match &self.fed {
            Some(fed) => fed.0.shape(&one),
            None => Ok(one),
        }
    }

    /// The sums over some samples, element by element, by as many threads as there are cores.
    fn sums(&self, range: Range<usize>) -> Result<Vec<f64>> {
        let width = self.dims()[1..].iter().product();
        let part = |range: Range<usize>| -> Result<Vec<f64>> {
            let (mut sums, mut row) = (vec![0f64; width], vec![0f32; width]);
            for i in range {
                self.read(i, &mut row)?;
                sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            Ok(sums)
        };
        let each = range.len().div_ceil(phalanx::usable_cores()).max(1);
        let parts: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
            let starts = range.clone().step_by(each);
            let threads: Vec<_> = starts
                .map(|start| scope.spawn(move || part(start..range.end.min(start + each))))
                .collect();
            let panicked = || Err(anyhow::anyhow!("a thread that reads images panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect()
        });
        let mut sums = vec![0f64; width];
        for part in parts {
            sums.iter_mut().zip(part?).for_each(|(sum, x)| *sum += x);
        }
        Ok(sums)
    }
}

impl Images for Files {
    fn dims(&self) -> Vec<usize> {
        let mut dims = self.images.folder().dims();
        if let Some(fed) = &self.fed {
            dims = match fed.0.input[..] {
                [height, width, channels] => vec![0, height, width, channels],
                ref flat => vec![0, 1, 1, flat.iter().product()],
            };
        }
        dims[0] = self.rows.len();
        dims
    }

    fn read(&self, row: usize, to: &mut [f32]) -> phalanx::Result<()> {
        let bytes = self.images.bytes(self.rows[row])?;
        let shaped = self.shape(bytes.into_owned());
        shaped.map_err(|e| phalanx::Error::config("data", words(&e)))?.read_row(0, to);
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.word(self.images.folder().digest());
        self.rows.iter().for_each(|row| digest.word(*row as u64));
        let mean = self.fed.as_ref().and_then(|fed| fed.0.mean.as_ref());
        mean.iter().for_each(|mean| digest.floats(mean));
        digest.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage};
    use phalanx::data::{HostBatch, LocalShard};
    use phalanx_graph::Mesh;

    /// The inputs of all batches, as far as a share has them.
    fn inputs(data: &dyn Dataset, share: Option<&LocalShard>) -> Vec<Vec<f32>> {
        let (mut batch, mut out) = (HostBatch::default(), vec![]);
        let mut epoch = data.epoch_of(5, 1, 0, share).unwrap();
        while epoch.next(&mut batch).unwrap() {
            let x = &batch.inputs[0];
            assert_eq!(x.dims()[1..], [48]);
            out.extend(x.f32().unwrap()[..batch.local_len() * 48].chunks(48).map(<[f32]>::to_vec));
        }
        out
    }

    #[test]
    fn files_that_are_read_by_need_are_those_of_memory_and_each_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        for (c, class) in ["a", "b"].iter().enumerate() {
            std::fs::create_dir(dir.path().join(class)).unwrap();
            for i in 0..11 {
                let image = RgbImage::from_fn(5, 4, |x, y| {
                    Rgb([c as u8 * 90, (i * 20 + x) as u8, (y * 30) as u8])
                });
                image.save(dir.path().join(class).join(format!("{i:02}.png"))).unwrap();
            }
        }
        let open = || ImageFolder::open(dir.path()).unwrap().target_size(4, 4).unwrap();
        let (samples, labels) = open().load().unwrap();
        let feeds = [Feed::Memory(samples), Feed::files(open(), 1 << 20)];
        let rows: Vec<usize> = (0..22).filter(|row| row % 4 != 3).collect();
        let labels: Vec<i32> = rows.iter().map(|r| labels.i32().unwrap()[*r]).collect();
        let y = Tensor::new([rows.len()], labels).unwrap();
        let picked = feeds.map(|feed| feed.pick(&rows).unwrap());
        let alone = MultiWorkerMirroredStrategy::from(MirroredStrategy::cpus(1).unwrap());
        let origin = Origin::unnamed("", vec![4, 4, 3], vec!["a".into(), "b".into()]);
        let origin = Origin { scale: crate::origin::Scale::Bytes, ..origin };
        let [mean, by_need] = [0, 1].map(|i| picked[i].mean(&origin, &alone).unwrap());
        assert_eq!(mean, by_need);
        let origin = Origin { mean: Some(mean), ..origin };
        let [Feed::Memory(x), Feed::Files(files)] = &picked else { panic!("one of each") };
        let whole = origin.shape(x).unwrap().reshape([rows.len(), 48]).unwrap();
        let whole = Arrays::new(whole, &y).unwrap().batch(5).unwrap().shuffle(true);
        let whole = inputs(&whole, None);
        for workers in [1, 2, 3] {
            let mut all = 0;
            for worker in 0..workers {
                let images = Arc::new(open().cache(1 << 20));
                let files = Files { images: images.clone(), ..files.shaped(&origin, vec![48]) };
                let flow = Feed::Files(files).flow(&ImageDataGenerator::new(), &y, 5).unwrap();
                let share = LocalShard { mesh: Mesh::new(workers, 1), devices: worker..worker + 1 };
                let own = |(at, _): &(usize, &Vec<f32>)| {
                    let batch = (rows.len() - at / 5 * 5).min(5);
                    share.rows(batch).contains(&(at % 5))
                };
                let expected: Vec<_> =
                    whole.iter().enumerate().filter(own).map(|(_, x)| x.clone()).collect();
                assert_eq!(inputs(&flow, Some(&share)), expected);
                assert_eq!(images.decoded(), expected.len());
                all += images.decoded();
            }
            assert_eq!(all, rows.len(), "each image on one of {workers} workers");
        }
    }
}
