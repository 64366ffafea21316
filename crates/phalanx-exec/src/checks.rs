//! Checks of executors before they load a program or start a step.

use crate::batch::{Batch, FeedData};
use crate::error::ExecError;
use crate::resident::StepInput;
use phalanx_graph::update::Slot;
use phalanx_graph::{DType, FeedSpec, Mesh, ParamSpec, Program};

/// Fails unless the program was compiled for the given devices and parameters.
pub fn check_program(program: &Program, mesh: Mesh, params: &[ParamSpec]) -> Result<(), ExecError> {
    let reject = |reason: &str| {
        Err(ExecError::Program { name: program.name().into(), reason: reason.into() })
    };
    if program.options().mesh != mesh {
        return reject("it was compiled for other devices");
    }
    let same = |(a, b): (&ParamSpec, &ParamSpec)| a.name == b.name && a.dims == b.dims;
    if program.params().len() != params.len() || !program.params().iter().zip(params).all(same) {
        return reject("its parameters differ from the executor's");
    }
    Ok(())
}

/// Fails if a program in `loaded` has different optimizer slots: all programs of an executor share
/// their slots.
pub fn check_slots<'a>(
    program: &Program,
    loaded: impl IntoIterator<Item = &'a Program>,
) -> Result<(), ExecError> {
    let Some(slots) = program.update().map(|plan| &plan.rule.slots) else { return Ok(()) };
    let others = loaded.into_iter().filter_map(Program::update);
    let Some(other) = others.map(|plan| &plan.rule.slots).find(|other| *other != slots) else {
        return Ok(());
    };
    let names =
        |slots: &[Slot]| slots.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
    let (expected, received) = (names(other), names(slots));
    let reason = format!("optimizer slots: expected [{expected}], received [{received}]");
    Err(ExecError::Program { name: program.name().into(), reason })
}

/// Fails unless the batch has the feeds, rows and scalars that the program was compiled for.
pub fn check_batch(program: &Program, batch: &Batch<'_>) -> Result<(), ExecError> {
    check_own_batch(program, batch, batch.rows)
}

/// Like [`check_batch`], for feeds that hold only `own` rows of the batch.
pub fn check_own_batch(program: &Program, batch: &Batch<'_>, own: usize) -> Result<(), ExecError> {
    check_own_feeds(program, batch, own)?;
    check_scalars(program, batch.scalars)
}

/// Fails unless there are as many scalars as the program's optimizer reads.
fn check_scalars(program: &Program, scalars: &[f32]) -> Result<(), ExecError> {
    let expected = program.update().map_or(scalars.len(), |u| u.rule.scalars);
    if expected == scalars.len() {
        return Ok(());
    }
    let (expected, received) = (expected.to_string(), scalars.len().to_string());
    Err(ExecError::Feed { name: "optimizer scalars".into(), expected, received })
}

/// Fails unless a parameter has this many elements.
pub fn check_len(spec: &ParamSpec, received: usize) -> Result<(), ExecError> {
    if spec.len() == received {
        return Ok(());
    }
    Err(ExecError::Param { name: spec.name.clone(), expected: spec.len(), received })
}

/// Fails unless the batch has the feeds and rows that the program was compiled for. The feeds hold
/// `own` rows of it.
pub fn check_own_feeds(program: &Program, batch: &Batch<'_>, own: usize) -> Result<(), ExecError> {
    let fail = |name: &str, expected: String, received: String| {
        Err(ExecError::Feed { name: name.into(), expected, received })
    };
    if batch.feeds.len() != program.feeds().len() {
        let (expected, received) = (program.feeds().len(), batch.feeds.len());
        return fail(program.name(), format!("{expected} feeds"), received.to_string());
    }
    for (spec, data) in program.feeds().iter().zip(batch.feeds) {
        let rows = if spec.ty.is_rows() { own } else { 1 };
        let dtype = match data {
            FeedData::F32(_) => DType::F32,
            FeedData::I32(_) => DType::I32,
        };
        if dtype != spec.ty.dtype || Some(data.len()) != rows.checked_mul(spec.ty.len()) {
            let expected = format!("{} for {rows} row(s)", spec.ty);
            return fail(&spec.name, expected, format!("{} {dtype} elements", data.len()));
        }
    }
    if batch.rows > program.options().max_batch {
        let expected = format!("at most {} rows", program.options().max_batch);
        return fail(program.name(), expected, batch.rows.to_string());
    }
    Ok(())
}

/// Fails unless rows of a table match the feeds that the program was compiled for. `columns` has
/// the type and the elements per row of each column.
pub fn check_step_input(
    program: &Program,
    columns: &[(DType, usize)],
    input: &StepInput<'_>,
) -> Result<(), ExecError> {
    let fail = |name: &str, expected: String, received: String| {
        Err(ExecError::Feed { name: name.into(), expected, received })
    };
    let (rows, mirrored): (Vec<&FeedSpec>, Vec<&FeedSpec>) =
        program.feeds().iter().partition(|f| f.ty.is_rows());
    if rows.len() != columns.len() {
        let expected = format!("{} columns", rows.len());
        return fail(program.name(), expected, columns.len().to_string());
    }
    let differs = |(f, c): &(&&FeedSpec, &(DType, usize))| (f.ty.dtype, f.ty.len()) != **c;
    if let Some((feed, (dtype, len))) = rows.iter().zip(columns).find(differs) {
        let received = format!("a column of {len} {dtype} a row");
        return fail(&feed.name, feed.ty.to_string(), received);
    }
    let single = mirrored.iter().all(|f| f.ty.len() == 1 && f.ty.dtype == DType::F32);
    if !single || mirrored.len() != input.mirrored.len() {
        let expected = format!("{} numbers", mirrored.len());
        return fail(program.name(), expected, input.mirrored.len().to_string());
    }
    if input.rows.len() > program.options().max_batch {
        let expected = format!("at most {} rows", program.options().max_batch);
        return fail(program.name(), expected, input.rows.len().to_string());
    }
    if !input.augments.is_empty() && input.augments.len() != input.rows.len() {
        let expected = format!("{} augmentations", input.rows.len());
        return fail(program.name(), expected, input.augments.len().to_string());
    }
    check_scalars(program, input.scalars)
}
