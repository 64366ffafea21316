//! Random batches for a model.

use crate::report::format_bytes;
use crate::targets::Output;
use anyhow::{Context, Result, bail};
use phalanx::DType;
use phalanx::data::to_categorical;
use phalanx::prelude::*;

/// The inputs and targets of a batch, identical in every run.
pub fn batch(model: &Model, outputs: &[Output], batch: usize) -> Result<Arrays> {
    let mut rng = phalanx::Stream::new(0, 0, 1, 0);
    // Integer inputs must be valid indices of every embedding table.
    let layers = model.layers();
    let rows = layers.iter().filter_map(|(_, layer)| {
        let config = layer.layer().config();
        config.get("input_dim").and_then(serde_json::Value::as_u64)
    });
    let index_limit = rows.min().unwrap_or(2).max(1);
    let mut inputs: Vec<Samples> = vec![];
    let types = model.input_dtypes().into_iter().zip(model.text_inputs());
    for (shape, (dtype, is_text)) in model.input_shapes().iter().zip(types) {
        let dims = shape.known().context("expected a model without open sizes")?;
        let (dims, len) = batch_dims(batch, &dims)?;
        inputs.push(match dtype {
            DType::I32 if is_text => {
                let mut word = || format!("word{} word{}", rng.below(1000), rng.below(1000));
                Text::new(dims, filled(len, batch, &mut word)?)?.into()
            }
            DType::I32 => {
                Tensor::new(dims, filled(len, batch, || rng.below(index_limit) as i32)?)?.into()
            }
            _ => Tensor::new(dims, filled(len, batch, || rng.unit() as f32)?)?.into(),
        });
    }
    let mut targets = vec![];
    for output in outputs {
        let classes = output.dims.last().copied().unwrap_or(1).max(1);
        let lead = &output.dims[..output.dims.len().saturating_sub(1)];
        let mut labels = |dims: &[usize]| -> Result<Tensor> {
            let (dims, len) = batch_dims(batch, dims)?;
            Ok(Tensor::new(dims, filled(len, batch, || rng.below(classes as u64) as i32)?)?)
        };
        targets.push(match output.loss {
            "SparseCategoricalCrossentropy" => labels(lead)?,
            "CategoricalCrossentropy" | "KLDivergence" if classes > 1 => {
                let labels = labels(lead)?;
                let (dims, _) = batch_dims(batch, &output.dims)?;
                to_categorical(&labels, Some(classes))?.reshape(dims)?
            }
            _ => {
                let (dims, len) = batch_dims(batch, &output.dims)?;
                Tensor::new(dims, filled(len, batch, || rng.unit() as f32)?)?
            }
        });
    }
    Ok(Arrays::new(inputs, targets)?)
}

/// The dimensions of a batch and its number of elements. Fails if it does not fit in memory.
fn batch_dims(batch: usize, sample: &[usize]) -> Result<(Vec<usize>, usize)> {
    let dims = [&[batch], sample].concat();
    let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).context("batch too large")?;
    let bytes = len.saturating_mul(size_of::<f32>());
    // A step copies the batch.
    if bytes > phalanx::physical_memory() / 2 {
        bail!("no memory for a batch of {batch}: its inputs alone take {}", format_bytes(bytes));
    }
    Ok((dims, len))
}

/// A vector of generated values. Fails instead of aborting if memory is exhausted.
fn filled<T>(len: usize, batch: usize, mut value: impl FnMut() -> T) -> Result<Vec<T>> {
    let mut values = vec![];
    values.try_reserve_exact(len).with_context(|| format!("no memory for a batch of {batch}"))?;
    values.extend((0..len).map(|_| value()));
    Ok(values)
}
