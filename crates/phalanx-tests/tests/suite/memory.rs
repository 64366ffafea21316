//! The training programs of the applications use exactly the planned memory.

use crate::programs::program_as;
use phalanx::prelude::*;
use phalanx_cuda::emulator::{Emulator, INPUT_BYTES};
use phalanx_cuda::memory_plan;
use phalanx_exec::{Batch, ExecError, FeedData};
use phalanx_graph::program::{Policy, Program};
use phalanx_graph::{DType, Type};
use phalanx_testing::needs;

fn program(model: Model, replicas: usize, batch: usize) -> Program {
    program_as(model, replicas, batch, Policy::Float32)
}

/// Runs steps of zeros, from a full batch down to one row, on an emulated GPU with `memory` bytes.
fn train(program: &Program, memory: usize) -> Result<(), ExecError> {
    let (max_batch, devices) = (program.options().max_batch, program.options().mesh.replicas);
    let count = |ty: &Type, rows: usize| ty.len() * if ty.is_rows() { rows } else { 1 };
    let longest = program.feeds().iter().map(|f| count(&f.ty, max_batch)).max().unwrap_or(0);
    let (floats, integers) = (vec![0.0; longest], vec![0; longest]);
    let feed = |ty: &Type, rows: usize| match ty.dtype {
        DType::I32 => FeedData::I32(&integers[..count(ty, rows)]),
        _ => FeedData::F32(&floats[..count(ty, rows)]),
    };
    let scalars = vec![0.0; program.update().map_or(0, |u| u.rule.scalars)];
    let mut executor = Emulator::new(1).memory(memory).executor(devices, program.params())?;
    let id = executor.load(program.clone().into())?;
    (1..=max_batch).rev().try_for_each(|rows| {
        let feeds: Vec<FeedData<'_>> = program.feeds().iter().map(|f| feed(&f.ty, rows)).collect();
        let batch = Batch { rows, feeds: &feeds, scalars: &scalars, ..Batch::default() };
        executor.run(id, &batch, &mut vec![])
    })
}

#[needs(gxx)]
#[test]
fn a_step_uses_the_planned_memory() {
    for replicas in [1, 2] {
        let cnn = applications::mnist_cnn([12, 12, 1], 4).unwrap();
        let program = program(cnn, replicas, 3 * replicas);
        let parts = memory_plan(&program, false);
        let planned: usize = parts.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let part = |name: &str| parts.iter().find(|(part, _)| *part == name).unwrap().1;
        // Scalars, the seed and the step are not copied.
        assert_eq!(part("input copies"), 2 * (part("inputs") - INPUT_BYTES));
        // The replicas share the library workspaces.
        let needed = replicas * planned - (replicas - 1) * part("library workspaces");
        // The input copies are allocated last, after the library workspaces.
        let copies = replicas * part("input copies");
        let first = needed - copies - part("library workspaces");
        for (lacking, purpose) in [
            (1, "input copies"),
            (copies, "input copies"),
            (copies + 1, "library workspaces"),
            (needed - first, "library workspaces"),
            (needed - first + 1, "partial sums"),
            (needed - 10, "weights"),
        ] {
            let memory = needed - lacking;
            let error = train(&program, memory).unwrap_err();
            let ExecError::Memory { available, purpose: lacked, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(*available, Some(memory / replicas), "{error}");
            assert!(lacked.starts_with(purpose), "{error}");
        }
        train(&program, needed).unwrap();
    }
}
