//! Which engine computes a convolution, and which algorithm a product: the fastest of those the
//! libraries propose, measured once and kept on disk, so that the same machine takes the same one ever
//! after.

use crate::cache;
use crate::cudnn::{ConvPlan, Cudnn};
use crate::driver::{DeviceBuffer, Event, Result, Stream};
use crate::libs::{self, Lib};
use crate::task::{Conv, Gemm, Matrix};

/// Proposals that are measured.
const TRIED: usize = 10;

/// Runs of each that count.
const RUNS: usize = 5;

/// More workspace than this is not given to one convolution.
const MOST_WORKSPACE: usize = 1 << 30;

/// The plan of a convolution; nothing where no engine takes it. `at` are the addresses of its
/// operands, whose result may be overwritten.
pub(crate) fn choose(
    cudnn: &Cudnn,
    conv: &Conv,
    at: [u64; 3],
    tf32: bool,
    gpu: &str,
    stream: &Stream,
) -> Result<Option<ConvPlan>> {
    let proposals = match cudnn.proposals(conv, tf32) {
        Ok(proposals) => proposals,
        Err(e) => {
            tracing::warn!("no engine of cuDNN computes {:?} of {:?}: {e}", conv.pass, conv.geom);
            return Ok(None);
        }
    };
    let key = key(conv, tf32, gpu);
    let known = || {
        let index = kept(&key).filter(|i| *i < proposals.len())?;
        cudnn.plan(&proposals, index).ok().filter(|plan| plan.workspace <= MOST_WORKSPACE)
    };
    if let Some(plan) = known() {
        return Ok(Some(plan));
    }
    let mut best: Option<(f64, usize, ConvPlan)> = None;
    for index in 0..proposals.len().min(TRIED) {
        let Ok(plan) = cudnn.plan(&proposals, index) else { continue };
        if plan.workspace > MOST_WORKSPACE {
            continue;
        }
        let Ok(seconds) = measure(cudnn, &plan, at, stream) else { continue };
        if best.as_ref().is_none_or(|(s, ..)| seconds < *s) {
            best = Some((seconds, index, plan));
        }
    }
    // Another process may have measured as well: the first one's choice is everybody's.
    if let Some(plan) = known() {
        return Ok(Some(plan));
    }
    Ok(best.map(|(_, index, plan)| {
        keep(&key, index);
        plan
    }))
}

/// Writes down what was chosen.
pub(crate) fn keep(key: &str, index: usize) {
    cache::write("plans", key, index.to_string().as_bytes());
}

/// What was chosen before.
pub(crate) fn kept(key: &str) -> Option<usize> {
    String::from_utf8(cache::read("plans", key)?).ok()?.parse().ok()
}

/// Seconds of a run, the least of several.
fn measure(cudnn: &Cudnn, plan: &ConvPlan, at: [u64; 3], stream: &Stream) -> Result<f64> {
    let workspace = DeviceBuffer::new(plan.workspace)?;
    let (start, end) = (Event::timed()?, Event::timed()?);
    cudnn.execute(plan, at, workspace.at(), stream)?;
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        start.record(stream)?;
        cudnn.execute(plan, at, workspace.at(), stream)?;
        end.record(stream)?;
        end.synchronize()?;
        least = least.min(end.since(&start)?);
    }
    Ok(least)
}

/// Names a convolution, its precision, the GPU and the library; the addresses count by their alignment.
fn key(conv: &Conv, tf32: bool, gpu: &str) -> String {
    let version = version(Lib::Cudnn);
    let images = |x: &crate::task::Images| (x.elem, x.ld, x.at.offset.trailing_zeros().min(4));
    let (geom, rows, pass) = (&conv.geom, conv.rows, conv.pass);
    let parts = (images(&conv.x), images(&conv.y), conv.w.1, tf32);
    digest(&format!("{gpu} {version} {pass:?} {rows} {geom:?} {parts:?}"))
}

/// Names a product, as [`key`] does a convolution.
pub(crate) fn gemm_key(gemm: &Gemm, tf32: bool, gpu: &str) -> String {
    let version = version(Lib::CublasLt);
    let matrix = |m: &Matrix| (m.elem, m.ld, m.transposed, m.at.alignment());
    let sizes = (gemm.m, gemm.n, gemm.k, gemm.bias.is_some(), gemm.relu, tf32);
    let operands = [&gemm.a, &gemm.b, &gemm.c].map(matrix);
    digest(&format!("{gpu} {version} {sizes:?} {operands:?}"))
}

fn version(lib: Lib) -> String {
    libs::find(lib).map(|found| found.version.to_string()).unwrap_or_default()
}

fn digest(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}
