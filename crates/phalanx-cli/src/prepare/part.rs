//! Rows of preprocessed samples.

use crate::samples::SampleSource;
use anyhow::{Result, bail};
use phalanx::data::{ImageFlow, Samples};
use phalanx::model::{IntoDataset, Source};
use phalanx::prelude::*;

/// Rows of preprocessed samples.
pub struct PreparedPart {
    /// The samples of each input, in the model's order.
    pub(super) inputs: Vec<SampleSource>,
    /// The targets of each output, in the model's order.
    pub(super) targets: Vec<Tensor>,
    pub(super) sample_weight: Option<Vec<f32>>,
    /// The weights of each target; empty if all have the same.
    pub(super) output_weights: Vec<Option<Tensor>>,
}

impl PreparedPart {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, SampleSource::rows)
    }

    /// The only input.
    pub fn input(&self) -> Result<&SampleSource> {
        match &self.inputs[..] {
            [one] => Ok(one),
            several => bail!("expected a model with one input, received {}", several.len()),
        }
    }

    /// All samples in order.
    pub fn in_order(&self, batch: usize) -> Result<Source> {
        self.batches(false, batch)
    }

    /// All samples. `shuffle` applies to image files; `fit` shuffles arrays.
    pub fn batches(&self, shuffle: bool, batch: usize) -> Result<Source> {
        if let [SampleSource::Files(_)] = self.inputs[..] {
            let flow = self.flow(&ImageDataGenerator::new(), batch)?;
            return Ok(flow.shuffle(shuffle).into_source()?);
        }
        let samples = |source: &SampleSource| match source {
            SampleSource::Memory(samples) => Ok(samples.clone()),
            SampleSource::Files(_) => bail!("a directory of images is one input"),
        };
        let inputs = self.inputs.iter().map(samples).collect::<Result<Vec<Samples>>>()?;
        let arrays = Arrays::new(inputs, self.targets.clone())?.batch(batch)?;
        let arrays = match &self.sample_weight {
            Some(weights) => arrays.sample_weight(weights)?,
            None => arrays,
        };
        Ok(Source::Arrays(match &self.output_weights[..] {
            [] => arrays,
            weights => arrays.output_weights(weights.iter().cloned())?,
        }))
    }

    /// Augmented images.
    pub fn flow(&self, augment: &ImageDataGenerator, batch: usize) -> Result<ImageFlow> {
        if self.sample_weight.is_some() || !self.output_weights.is_empty() {
            bail!("--augment: expected data without sample weights");
        }
        let [target] = &self.targets[..] else {
            bail!("--augment: expected one target, received {}", self.targets.len());
        };
        if target.dims().len() > 2 {
            let dims = &target.dims()[1..];
            bail!(
                "--augment: expected targets that do not depend on pixel positions, received {dims:?}"
            );
        }
        self.input()?.flow(augment, target, batch)
    }
}
