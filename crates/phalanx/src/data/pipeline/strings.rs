//! Strings in pipelines, and layers that make numbers of them.

use super::Pipeline;
use crate::data::{Samples, Text};
use crate::error::{Error, Result};
use crate::layer::LayerHandle;
use phalanx_graph::Tensor;
use std::sync::Arc;

/// What a pipeline knows about strings. Elements hold their numbers.
#[derive(Clone, Default)]
pub(super) enum PipelineText {
    /// There are only numbers.
    #[default]
    Numbers,
    /// The first tensor holds the numbers of these strings.
    Strings(Arc<Vec<String>>),
    /// A step that takes numbers was applied to strings.
    Misused(&'static str),
}

impl PipelineText {
    /// After a step that takes numbers.
    pub fn after(&self, step: &'static str) -> PipelineText {
        match self {
            PipelineText::Strings(_) => PipelineText::Misused(step),
            other => other.clone(),
        }
    }

    /// Fails after a step that was applied to strings.
    pub fn check(&self) -> Result<()> {
        match self {
            PipelineText::Misused(step) => {
                let received = "strings (map_layer makes numbers of them)";
                Err(Error::argument("Pipeline", *step, "numbers", received))
            }
            PipelineText::Numbers | PipelineText::Strings(_) => Ok(()),
        }
    }
}

impl Pipeline {
    /// Replaces the first tensor of every element, or its strings, by the output of a preprocessing layer.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let texts = Text::from(["a quick fox", "a dog"]);
    /// let vectorize = TextVectorization::new().output_sequence_length(4).adapt(&texts)?;
    /// let labels = Tensor::new([2], vec![0, 1])?;
    /// let data = Pipeline::from_tensor_slices((texts, labels))?.map_layer(vectorize).batch(2, false)?;
    /// let batch = data.elements(0, 0)?.next().expect("a batch")?;
    /// assert_eq!(batch[0].dims(), [2, 4]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn map_layer(self, layer: impl Into<LayerHandle>) -> Pipeline {
        let (layer, is_batched, text) = (layer.into(), self.batch.is_some(), self.text.clone());
        let numbers = Pipeline { text: PipelineText::Numbers, ..self };
        numbers.map(move |mut element| {
            let class = layer.layer().class_name();
            let (Some(host), Some(first)) = (layer.layer().host(), element.first_mut()) else {
                return Err(Error::argument(
                    "map_layer",
                    "layer",
                    "one that runs on the host",
                    class,
                ));
            };
            let dims = first.dims().to_vec();
            let rows = std::mem::replace(first, Tensor::zeros([0]));
            let rows = if is_batched { rows } else { rows.reshape([&[1], &dims[..]].concat())? };
            let samples = match &text {
                PipelineText::Strings(strings) => Text::from_numbers(rows, strings.clone())
                    .map(Samples::from)
                    .ok_or_else(|| Error::argument(class, "input", "strings", "other numbers"))?,
                PipelineText::Numbers | PipelineText::Misused(_) => rows.into(),
            };
            let out = host.run(class, &[samples])?;
            if out.text().is_some() {
                return Err(Error::argument("map_layer", "layer", "one that gives numbers", class));
            }
            let out = Arc::unwrap_or_clone(out.to_tensor());
            let dims = out.dims().to_vec();
            *first = if is_batched { out } else { out.reshape(&dims[1..])? };
            Ok(element)
        })
    }
}
