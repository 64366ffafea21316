//! Selection of engines for convolutions and algorithms for matrix products. The fastest proposal
//! of the libraries is measured once and cached on disk, so that the same machine always makes the
//! same choice.

use crate::cache;
use crate::cudnn::{ConvPlan, Cudnn};
use crate::launch::Elem;
use crate::work_item::{Conv, Gemm, Matrix};
use phalanx_cuda_driver::driver::{DeviceBuffer, Event, Result, Stream};
use phalanx_cuda_driver::libs::{self, Lib};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Maximum proposals to measure.
const MAX_MEASURED_PROPOSALS: usize = 10;

/// Timed runs of each proposal.
const TIMED_RUNS: usize = 5;

/// Upper limit of a convolution's workspace, in bytes.
const MAX_WORKSPACE: usize = 1 << 30;

/// Workspace that every convolution may use, in bytes.
const MIN_WORKSPACE: usize = 64 << 20;

/// Additional workspace per byte of the operands and the result.
const WORKSPACE_PER_OPERAND_BYTE: usize = 8;

/// Maximum workspace of a convolution, in bytes.
pub(crate) fn max_workspace(conv: &Conv) -> usize {
    let g = &conv.geom;
    let images = |[h, w, c]: [usize; 3], elem: Elem| conv.rows * h * w * c * elem.bytes();
    let filters = g.kernel_dims().iter().product::<usize>() * conv.w.1.bytes();
    let operands =
        images(g.input_dims(), conv.x.elem) + filters + images(g.output_dims(), conv.y.elem);
    operands
        .saturating_mul(WORKSPACE_PER_OPERAND_BYTE)
        .saturating_add(MIN_WORKSPACE)
        .min(MAX_WORKSPACE)
}

/// The plan of a convolution, or `None` if no engine supports it. `at` are the addresses of its
/// operands; the result may be overwritten.
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
            warn_once(conv, &format!("no engine of cuDNN computes it: {e}"));
            return Ok(None);
        }
    };
    let (key, max) = (key(conv, tf32, gpu), max_workspace(conv));
    let known = || {
        let index = cached(&key).filter(|i| *i < proposals.len())?;
        cudnn.plan(&proposals, index).ok().filter(|plan| plan.workspace <= max)
    };
    if let Some(plan) = known() {
        return Ok(Some(plan));
    }
    let mut best: Option<(f64, usize, ConvPlan)> = None;
    let mut failed = format!("all want more workspace than {max} bytes");
    for index in 0..proposals.len().min(MAX_MEASURED_PROPOSALS) {
        let Ok(plan) = cudnn.plan(&proposals, index) else { continue };
        if plan.workspace > max {
            continue;
        }
        let seconds = match measure(cudnn, &plan, at, stream) {
            Ok(seconds) => seconds,
            Err(e) => {
                failed = format!("the last with {} bytes of workspace: {e}", plan.workspace);
                continue;
            }
        };
        if best.as_ref().is_none_or(|(s, ..)| seconds < *s) {
            best = Some((seconds, index, plan));
        }
    }
    // Another process may have measured too: all use the first choice that was stored.
    if let Some(plan) = known() {
        return Ok(Some(plan));
    }
    let Some((_, index, plan)) = best else {
        warn_once(conv, &format!("none of {} engines of cuDNN runs; {failed}", proposals.len()));
        return Ok(None);
    };
    store(&key, index);
    Ok(Some(plan))
}

/// Warns once per shape that the fallback kernel computes it, and why.
fn warn_once(conv: &Conv, why: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let shape = format!("{:?} of {} rows, {:?}", conv.pass, conv.rows, conv.geom);
    let mut warned = WARNED.lock().unwrap_or_else(|e| e.into_inner());
    if warned.insert(shape.clone()) {
        tracing::warn!("{shape} is computed by a plain kernel, which is slow: {why}");
    }
}

/// Stores a choice in the cache.
pub(crate) fn store(key: &str, index: usize) {
    cache::write("plans", key, index.to_string().as_bytes());
}

/// Reads a choice from the cache.
pub(crate) fn cached(key: &str) -> Option<usize> {
    String::from_utf8(cache::read("plans", key)?).ok()?.parse().ok()
}

/// Seconds per run: the minimum of several.
fn measure(cudnn: &Cudnn, plan: &ConvPlan, at: [u64; 3], stream: &Stream) -> Result<f64> {
    let workspace = DeviceBuffer::new(plan.workspace)?;
    let (start, end) = (Event::timed()?, Event::timed()?);
    cudnn.execute(plan, at, workspace.at(), stream)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..TIMED_RUNS {
        start.record(stream)?;
        cudnn.execute(plan, at, workspace.at(), stream)?;
        end.record(stream)?;
        end.synchronize()?;
        fastest = fastest.min(end.since(&start)?);
    }
    Ok(fastest)
}

/// Cache key of a convolution, its precision, the GPU and the library. Of the addresses, only their
/// alignment counts.
fn key(conv: &Conv, tf32: bool, gpu: &str) -> String {
    let version = version(Lib::Cudnn);
    let images = |x: &crate::work_item::Images| (x.elem, x.ld, x.at.offset.trailing_zeros().min(4));
    let (geom, rows, pass) = (&conv.geom, conv.rows, conv.pass);
    let parts = (images(&conv.x), images(&conv.y), conv.w.1, tf32);
    digest(&format!("{gpu} {version} {pass:?} {rows} {geom:?} {parts:?}"))
}

/// Cache key of a product, like [`key`].
pub(crate) fn gemm_key(gemm: &Gemm, tf32: bool, gpu: &str) -> String {
    let version = version(Lib::CublasLt);
    let matrix = |m: &Matrix| (m.elem, m.ld, m.transposed, m.at.alignment());
    let sizes = (gemm.m, gemm.n, gemm.k, gemm.bias.is_some(), gemm.relu, tf32);
    let operands = [&gemm.a, &gemm.b, &gemm.c].map(matrix);
    let batch = (gemm.batch.count, gemm.batch.strides);
    digest(&format!("{gpu} {version} {sizes:?} {operands:?} {batch:?}"))
}

fn version(lib: Lib) -> String {
    libs::find(lib).map(|found| found.version.to_string()).unwrap_or_default()
}

fn digest(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}
