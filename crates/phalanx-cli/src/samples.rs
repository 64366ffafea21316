//! Samples of a model: in memory, or image files that each worker reads on demand.

use crate::format_error;
use crate::preprocessing::Preprocessing;
use anyhow::{Context, Result, bail};
use phalanx::data::{Digest, ImageCache, ImageFlow, Images, Pixels, Samples};
use phalanx::launch;
use phalanx::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// All workers of a machine together may cache decoded images in `1 / CACHE_MEMORY_DIVISOR` of its memory.
const CACHE_MEMORY_DIVISOR: usize = 4;

/// A source of samples.
#[derive(Clone)]
pub enum SampleSource {
    /// All samples in memory.
    Memory(Samples),
    /// Image files, of which each worker reads its own rows.
    Files(ImageFiles),
}

/// A selection of the images of a folder.
#[derive(Clone)]
pub struct ImageFiles {
    images: Arc<ImageCache>,
    /// Their indices in the folder.
    rows: Arc<Vec<usize>>,
    /// The preprocessing, and the dimensions of a sample after it.
    preprocessing: Option<Arc<(Preprocessing, Vec<usize>)>>,
}

/// Bytes of decoded images that this worker may cache.
pub fn cache_budget() -> usize {
    let workers = launch::detect().ok().flatten().map_or(1, |launch| launch.local_size);
    phalanx::physical_memory() / CACHE_MEMORY_DIVISOR / workers.max(1)
}

impl SampleSource {
    /// The images of a folder, decoded on demand. At most `budget` bytes of them are cached.
    pub fn files(folder: ImageFolder, budget: usize) -> SampleSource {
        let rows = Arc::new((0..folder.len()).collect());
        SampleSource::Files(ImageFiles {
            images: Arc::new(folder.cache(budget)),
            rows,
            preprocessing: None,
        })
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        match self {
            SampleSource::Memory(samples) => samples.rows(),
            SampleSource::Files(files) => files.rows.len(),
        }
    }

    /// The dimensions of a sample.
    pub fn dims(&self) -> Vec<usize> {
        match self {
            SampleSource::Memory(samples) => samples.dims()[1..].to_vec(),
            SampleSource::Files(files) => match &files.preprocessing {
                Some(preprocessing) => preprocessing.1.clone(),
                None => files.images.folder().dims()[1..].to_vec(),
            },
        }
    }

    /// These rows, in this order.
    pub fn select_rows(&self, rows: &[usize]) -> Result<SampleSource> {
        Ok(match self {
            SampleSource::Memory(samples) => {
                let each = if self.is_bytes() { 1 } else { size_of::<f32>() };
                let bytes = samples.row_len().saturating_mul(rows.len()).saturating_mul(each);
                if bytes > phalanx::free_memory() {
                    let dims = &samples.dims()[1..];
                    bail!("no memory for a part of the samples: {} of {dims:?}", rows.len());
                }
                SampleSource::Memory(samples.select_rows(rows).context("rows that are there")?)
            }
            SampleSource::Files(files) => {
                let rows = Arc::new(rows.iter().map(|row| files.rows[*row]).collect());
                SampleSource::Files(ImageFiles { rows, ..files.clone() })
            }
        })
    }

    /// The samples preprocessed for a model and reshaped to `dims`.
    pub fn preprocessed(
        &self,
        preprocessing: &Preprocessing,
        dims: &[usize],
    ) -> Result<SampleSource> {
        Ok(match self {
            SampleSource::Memory(samples) => {
                let shaped = preprocessing.apply(samples)?;
                let dims = [&[shaped.rows()], dims].concat();
                SampleSource::Memory(shaped.reshape(dims).context("reshaping samples")?)
            }
            SampleSource::Files(files) => {
                let files = files.with_preprocessing(preprocessing, dims.to_vec());
                let size: usize = files.images.folder().dims()[1..].iter().product();
                // Fails on unsuitable dimensions before reading any file.
                files.preprocess(vec![0; size])?;
                SampleSource::Files(files)
            }
        })
    }

    /// The samples without scaling: bytes from 0 to 255.
    pub fn raw(&self) -> SampleSource {
        match self {
            SampleSource::Memory(samples) => SampleSource::Memory(samples.clone().raw()),
            files => files.clone(),
        }
    }

    /// Whether the samples are stored as bytes.
    pub fn is_bytes(&self) -> bool {
        matches!(self, SampleSource::Memory(Samples::Pixels(_)) | SampleSource::Files(_))
    }

    /// The mean over all preprocessed samples. Each worker sums its part of the rows. The samples are integers, so the
    /// sum does not depend on the partition.
    pub fn mean(
        &self,
        preprocessing: &Preprocessing,
        workers: &MultiWorkerMirroredStrategy,
    ) -> Result<Vec<f32>> {
        let files = match self {
            SampleSource::Memory(samples) => {
                return Ok(preprocessing.apply(samples)?.mean().f32().unwrap_or_default().to_vec());
            }
            SampleSource::Files(files) => {
                files.with_preprocessing(preprocessing, preprocessing.input.clone())
            }
        };
        let (n, rank, size) = (self.rows(), workers.rank(), workers.num_workers());
        let mut sums = files.sums(n * rank / size..n * (rank + 1) / size)?;
        workers.sum(&mut sums)?;
        Ok(sums.iter().map(|sum| (sum / n as f64) as f32).collect())
    }

    /// The first `count` samples as a tensor.
    pub fn first(&self, count: usize) -> Result<Option<Tensor>> {
        match self {
            SampleSource::Memory(samples) => {
                Ok(samples.slice_rows(0..count).map(|s| Tensor::clone(&s.to_tensor())))
            }
            SampleSource::Files(files) => {
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

    /// Augmented images. Files are read by one thread per core.
    pub fn flow(
        &self,
        augment: &ImageDataGenerator,
        y: &Tensor,
        batch: usize,
    ) -> Result<ImageFlow> {
        Ok(match self {
            SampleSource::Memory(x) => augment.flow(x, y, batch)?,
            SampleSource::Files(files) => augment
                .flow_images(Arc::new(files.clone()), y, batch)?
                .reshape(self.dims())?
                .workers(phalanx::usable_cores()),
        })
    }
}

impl ImageFiles {
    fn with_preprocessing(&self, preprocessing: &Preprocessing, dims: Vec<usize>) -> ImageFiles {
        ImageFiles { preprocessing: Some(Arc::new((preprocessing.clone(), dims))), ..self.clone() }
    }

    /// Preprocesses one image.
    fn preprocess(&self, bytes: Vec<u8>) -> Result<Samples> {
        let mut dims = self.images.folder().dims();
        dims[0] = 1;
        let one = Samples::from(Pixels::new(dims, bytes, 255.0).context("a byte each")?);
        match &self.preprocessing {
            Some(preprocessing) => preprocessing.0.apply(&one),
            None => Ok(one),
        }
    }

    /// Element-wise sums over a range of samples, computed by one thread per core.
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

impl Images for ImageFiles {
    fn dims(&self) -> Vec<usize> {
        let mut dims = self.images.folder().dims();
        if let Some(preprocessing) = &self.preprocessing {
            dims = match preprocessing.0.input[..] {
                [height, width, channels] => vec![0, height, width, channels],
                ref flat => vec![0, 1, 1, flat.iter().product()],
            };
        }
        dims[0] = self.rows.len();
        dims
    }

    fn read(&self, row: usize, to: &mut [f32]) -> phalanx::Result<()> {
        let bytes = self.images.bytes(self.rows[row])?;
        let sample = self.preprocess(bytes.into_owned());
        sample.map_err(|e| phalanx::Error::config("data", format_error(&e)))?.read_row(0, to);
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.word(self.images.folder().digest());
        self.rows.iter().for_each(|row| digest.word(*row as u64));
        let mean = self.preprocessing.as_ref().and_then(|p| p.0.mean.as_ref());
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

    /// The inputs of all batches, restricted to a shard if one is given.
    fn inputs(data: &dyn Dataset, shard: Option<&LocalShard>) -> Vec<Vec<f32>> {
        let (mut batch, mut out) = (HostBatch::default(), vec![]);
        let mut epoch = data.epoch_of(5, 1, 0, shard).unwrap();
        while epoch.next(&mut batch).unwrap() {
            let x = &batch.inputs[0];
            assert_eq!(x.dims()[1..], [48]);
            out.extend(x.f32().unwrap()[..batch.local_len() * 48].chunks(48).map(<[f32]>::to_vec));
        }
        out
    }

    #[test]
    fn files_read_on_demand_equal_samples_in_memory_and_each_is_read_once() {
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
        let sources = [SampleSource::Memory(samples), SampleSource::files(open(), 1 << 20)];
        let rows: Vec<usize> = (0..22).filter(|row| row % 4 != 3).collect();
        let labels: Vec<i32> = rows.iter().map(|r| labels.i32().unwrap()[*r]).collect();
        let y = Tensor::new([rows.len()], labels).unwrap();
        let selected = sources.map(|source| source.select_rows(&rows).unwrap());
        let single = MultiWorkerMirroredStrategy::from(MirroredStrategy::cpus(1).unwrap());
        let preprocessing =
            Preprocessing::for_model_file("", vec![4, 4, 3], vec!["a".into(), "b".into()]);
        let preprocessing =
            Preprocessing { scale: crate::preprocessing::Scale::Bytes, ..preprocessing };
        let [mean, on_demand] = [0, 1].map(|i| selected[i].mean(&preprocessing, &single).unwrap());
        assert_eq!(mean, on_demand);
        let preprocessing = Preprocessing { mean: Some(mean), ..preprocessing };
        let [SampleSource::Memory(x), SampleSource::Files(files)] = &selected else {
            panic!("one of each")
        };
        let whole = preprocessing.apply(x).unwrap().reshape([rows.len(), 48]).unwrap();
        let whole = Arrays::new(whole, &y).unwrap().batch(5).unwrap().shuffle(true);
        let whole = inputs(&whole, None);
        for workers in [1, 2, 3] {
            let mut all = 0;
            for worker in 0..workers {
                let images = Arc::new(open().cache(1 << 20));
                let files = ImageFiles {
                    images: images.clone(),
                    ..files.with_preprocessing(&preprocessing, vec![48])
                };
                let flow =
                    SampleSource::Files(files).flow(&ImageDataGenerator::new(), &y, 5).unwrap();
                let shard =
                    LocalShard { mesh: Mesh::new(workers, 1), replicas: worker..worker + 1 };
                let own = |(at, _): &(usize, &Vec<f32>)| {
                    let batch = (rows.len() - at / 5 * 5).min(5);
                    shard.rows(batch).contains(&(at % 5))
                };
                let expected: Vec<_> =
                    whole.iter().enumerate().filter(own).map(|(_, x)| x.clone()).collect();
                assert_eq!(inputs(&flow, Some(&shard)), expected);
                assert_eq!(images.decoded(), expected.len());
                all += images.decoded();
            }
            assert_eq!(all, rows.len(), "each image on one of {workers} workers");
        }
    }
}
