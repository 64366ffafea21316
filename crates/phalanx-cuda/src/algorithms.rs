//! Choice of engines for convolutions and algorithms for matrix products.
//!
//! A choice follows from the operation, the model of the GPU and the proposals of the library, never from a measurement
//! of the present run: the same command gives the same bits in every run. A table in the program holds choices that were
//! measured once. An operation that it lacks gets the first proposal of the library that works, and so does one whose
//! measured engine this version of the library does not propose.

use crate::cudnn::{ConvPlan, Cudnn, Proposals};
use crate::launch::Elem;
use crate::work_item::{Conv, Gemm, Images, Matrix};
use phalanx_cuda_driver::driver::{DeviceBuffer, Event, Failure, Result, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Timed runs of each proposal.
const TIMED_RUNS: usize = 5;

/// Upper limit of a convolution's workspace, in bytes.
const MAX_WORKSPACE: usize = 1 << 30;

/// Workspace that every convolution may use, in bytes.
const MIN_WORKSPACE: usize = 64 << 20;

/// Additional workspace per byte of the operands and the result.
const WORKSPACE_PER_OPERAND_BYTE: usize = 8;

/// Alignment in bytes up to which operands are distinguished: that of the widest load.
const MAX_ALIGNMENT: u32 = 16;

/// Measured choices for the GPUs that we could measure.
const MEASURED: &str = include_str!("algorithms/h200.txt");

/// The table of further choices: a file.
const TABLE_VARIABLE: &str = "PHALANX_ALGORITHMS";

/// Where measured choices are written. Without it nothing is measured.
const TUNE_VARIABLE: &str = "PHALANX_TUNE";

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

/// Measured choices: the algorithm of each operation, by [`conv_key`] or [`gemm_key`].
#[derive(Debug, Default, PartialEq)]
struct Table(BTreeMap<String, String>);

impl Table {
    /// Lines of a key and an algorithm. Empty lines and those that begin with `#` are comments.
    fn parse(text: &str) -> std::result::Result<Table, String> {
        let mut table = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, algorithm)) = line.split_once(' ') else {
                return Err(format!("line {}: expected a key and an algorithm", number + 1));
            };
            table.insert(key.to_owned(), algorithm.to_owned());
        }
        Ok(Table(table))
    }

    /// The table in the file that a variable names.
    fn read(variable: &str, path: &Path) -> Result<Table> {
        let failed = |reason: String| Failure(format!("{variable}: {}: {reason}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        Table::parse(&text).map_err(failed)
    }
}

/// The known choices, and the file of new ones.
#[derive(Default)]
pub(crate) struct Choices {
    table: Table,
    /// Where the fastest algorithms are written, if they are to be measured.
    tuned: Option<PathBuf>,
}

impl Choices {
    /// The choices of this program and those of the file that `PHALANX_ALGORITHMS` names; with `PHALANX_TUNE`, only those
    /// that its file has already.
    pub fn load() -> Result<Choices> {
        if let Some(path) = variable(TUNE_VARIABLE) {
            return Choices::tuning(path);
        }
        let mut table = Table::parse(MEASURED).map_err(Failure)?;
        if let Some(path) = variable(TABLE_VARIABLE) {
            table.0.extend(Table::read(TABLE_VARIABLE, &path)?.0);
        }
        Ok(Choices { table, tuned: None })
    }

    fn tuning(path: PathBuf) -> Result<Choices> {
        let table =
            if path.exists() { Table::read(TUNE_VARIABLE, &path)? } else { Table::default() };
        Ok(Choices { table, tuned: Some(path) })
    }

    /// The algorithm of an operation, if it was measured.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.table.0.get(key).map(String::as_str)
    }

    /// Whether the algorithms of an operation are to be measured.
    pub fn must_measure(&self, key: &str) -> bool {
        self.tuned.is_some() && self.get(key).is_none()
    }

    /// Appends a measured choice to the file.
    pub fn record(&mut self, key: &str, algorithm: &str) -> Result<()> {
        if let Some(path) = &self.tuned {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let written = file.and_then(|mut file| writeln!(file, "{key} {algorithm}"));
            written.map_err(|e| Failure(format!("{TUNE_VARIABLE}: {}: {e}", path.display())))?;
        }
        self.table.0.insert(key.to_owned(), algorithm.to_owned());
        Ok(())
    }
}

/// Digest of the choices beyond those of this program, which all workers must share.
pub(crate) fn further_choices() -> String {
    let Some(path) = variable(TABLE_VARIABLE) else { return String::from("none") };
    match std::fs::read_to_string(&path) {
        Ok(text) => digest(&text),
        Err(e) => format!("{}: {e}", path.display()),
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A convolution whose engine is to be chosen.
pub(crate) struct ConvRequest<'a> {
    pub conv: &'a Conv,
    /// The addresses of its operands. The result may be overwritten.
    pub at: [u64; 3],
    /// Whether operands of 32 bits may be rounded for the tensor cores.
    pub tf32: bool,
    /// Its key in the table.
    pub key: String,
    pub stream: &'a Stream,
}

impl ConvRequest<'_> {
    /// The plan of the convolution, or `None` if no engine supports it.
    pub fn choose(&self, cudnn: &Cudnn, choices: &mut Choices) -> Result<Option<ConvPlan>> {
        let proposals = match cudnn.proposals(self.conv, self.tf32) {
            Ok(proposals) => proposals,
            Err(e) => {
                self.warn_once(&format!("no engine of cuDNN computes it: {e}"));
                return Ok(None);
            }
        };
        if choices.must_measure(&self.key) {
            return self.fastest(cudnn, &proposals, choices);
        }
        let measured = choices.get(&self.key).and_then(|engine| proposals.position(engine));
        let mut failed = String::from("the library proposes none");
        for index in measured.into_iter().chain(0..proposals.len()) {
            match self.try_proposal(cudnn, &proposals, index)? {
                Ok(plan) => return Ok(Some(plan)),
                Err(reason) => failed = reason,
            }
        }
        self.warn_once(&format!("none of {} engines of cuDNN runs: {failed}", proposals.len()));
        Ok(None)
    }

    /// Builds the plan of a proposal and runs it once: some engines fail only then. The inner result is the reason
    /// against the proposal. Missing memory is an error instead, because it differs from run to run.
    fn try_proposal(
        &self,
        cudnn: &Cudnn,
        proposals: &Proposals,
        index: usize,
    ) -> Result<std::result::Result<ConvPlan, String>> {
        let plan = match cudnn.plan(proposals, index) {
            Ok(plan) => plan,
            Err(e) => return Ok(Err(e.0)),
        };
        let (max, wanted) = (max_workspace(self.conv), plan.workspace);
        if wanted > max {
            return Ok(Err(format!("workspace: expected at most {max} bytes, received {wanted}")));
        }
        let workspace = DeviceBuffer::new(plan.workspace)?;
        let ran = cudnn.execute(&plan, self.at, workspace.at(), self.stream);
        Ok(match ran.and_then(|()| self.stream.synchronize()) {
            Ok(()) => Ok(plan),
            Err(e) => Err(e.0),
        })
    }

    /// Measures all proposals, and records the fastest.
    fn fastest(
        &self,
        cudnn: &Cudnn,
        proposals: &Proposals,
        choices: &mut Choices,
    ) -> Result<Option<ConvPlan>> {
        let mut best: Option<(f64, usize, ConvPlan)> = None;
        for index in 0..proposals.len() {
            let Ok(plan) = self.try_proposal(cudnn, proposals, index)? else { continue };
            let seconds = self.measure(cudnn, &plan)?;
            if best.as_ref().is_none_or(|(s, ..)| seconds < *s) {
                best = Some((seconds, index, plan));
            }
        }
        let Some((_, index, plan)) = best else {
            self.warn_once("no engine of cuDNN runs");
            return Ok(None);
        };
        choices.record(&self.key, &proposals.describe(index)?)?;
        Ok(Some(plan))
    }

    /// Seconds per run: the minimum of several.
    fn measure(&self, cudnn: &Cudnn, plan: &ConvPlan) -> Result<f64> {
        let workspace = DeviceBuffer::new(plan.workspace)?;
        let (start, end) = (Event::timed()?, Event::timed()?);
        let mut fastest = f64::INFINITY;
        for _ in 0..TIMED_RUNS {
            start.record(self.stream)?;
            cudnn.execute(plan, self.at, workspace.at(), self.stream)?;
            end.record(self.stream)?;
            end.synchronize()?;
            fastest = fastest.min(end.since(&start)?);
        }
        Ok(fastest)
    }

    /// Warns once per shape that the fallback kernel computes it, and why.
    fn warn_once(&self, why: &str) {
        static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let Conv { pass, rows, geom, .. } = self.conv;
        let shape = format!("{pass:?} of {rows} rows, {geom:?}");
        let mut warned = WARNED.lock().unwrap_or_else(|e| e.into_inner());
        if warned.insert(shape.clone()) {
            tracing::warn!("{shape} is computed by a plain kernel, which is slow: {why}");
        }
    }
}

/// Key of a convolution in tables: its sizes, types, precision and GPU. Of the addresses, only their alignment counts.
pub(crate) fn conv_key(conv: &Conv, tf32: bool, gpu: &str) -> String {
    let images = |x: &Images| (x.elem, x.ld, x.at.alignment().min(MAX_ALIGNMENT));
    let (geom, rows, pass) = (&conv.geom, conv.rows, conv.pass);
    let parts = (images(&conv.x), images(&conv.y), conv.w.1, tf32);
    digest(&format!("{gpu} {pass:?} {rows} {geom:?} {parts:?}"))
}

/// Key of a product, like [`conv_key`].
pub(crate) fn gemm_key(gemm: &Gemm, tf32: bool, gpu: &str) -> String {
    let matrix = |m: &Matrix| (m.elem, m.ld, m.transposed, m.at.alignment().min(MAX_ALIGNMENT));
    let sizes = (gemm.m, gemm.n, gemm.k, gemm.bias.is_some(), gemm.relu, tf32);
    let operands = [&gemm.a, &gemm.b, &gemm.c].map(matrix);
    let batch = (gemm.batch.count, gemm.batch.strides);
    digest(&format!("{gpu} {sizes:?} {operands:?} {batch:?}"))
}

/// The first half of a SHA-256 digest, in hexadecimal digits.
fn digest(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text)[..16].iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_program_is_valid() {
        let table = Table::parse(MEASURED).unwrap();
        assert!(table.0.len() > 500, "{} choices", table.0.len());
        let known =
            |choice: &String| choice.starts_with("engine ") || choice.starts_with("algorithm ");
        assert!(table.0.values().all(known));
    }

    #[test]
    fn tables_have_comments_and_report_the_wrong_line() {
        let table = Table::parse("# GPU\n\nab 7 1=2\ncd 3\n").unwrap();
        let choices = Choices { table, tuned: None };
        let found = ["ab", "cd", "x"].map(|key| choices.get(key));
        assert_eq!(found, [Some("7 1=2"), Some("3"), None]);
        assert!(!choices.must_measure("x"));
        let wrong = Table::parse("# GPU\nab\n").unwrap_err();
        assert_eq!(wrong, "line 2: expected a key and an algorithm");
    }

    #[test]
    fn measured_choices_are_written_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.txt");
        let mut choices = Choices::tuning(path.clone()).unwrap();
        assert!(choices.must_measure("ab"));
        choices.record("ab", "7 1=2").unwrap();
        assert!(!choices.must_measure("ab"));
        let read = Choices::tuning(path.clone()).unwrap();
        assert_eq!((read.get("ab"), read.must_measure("ab")), (Some("7 1=2"), false));
        std::fs::write(&path, "ab\n").unwrap();
        let error = Choices::tuning(path).err().unwrap().to_string();
        assert!(error.ends_with("table.txt: line 1: expected a key and an algorithm"), "{error}");
    }
}
