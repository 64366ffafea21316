//! The training programs of the applications: every kernel they need compiles, and they take the memory
//! that was planned for them.

use crate::emulator;
use crate::fallback;
use crate::kept::{Table, TurnLayout};
use crate::launch::{Launch, Source};
use crate::libs::{self, Lib};
use crate::lower::FromTable;
use crate::machine::Plan;
use crate::nvrtc;
use crate::plan::{Rooms, memory_plan};
use crate::task::Task;
use phalanx::prelude::*;
use phalanx_graph::exec::{Batch, ExecError, FeedData};
use phalanx_graph::kept::{Cells, Column};
use phalanx_graph::program::{Policy, Program};
use phalanx_graph::{DType, Type};
use std::collections::{BTreeMap, BTreeSet};

const BATCH: usize = 64;

/// Compute capabilities that kernels are compiled for: A100 and H100.
const CAPABILITIES: [i32; 2] = [80, 90];

fn program(model: Model, replicas: usize, batch: usize) -> Program {
    program_as(model, replicas, batch, Policy::Float32)
}

/// As a GPU runs it. The devices are those of the library that the networks use, not of this test's own.
fn program_as(mut model: Model, replicas: usize, batch: usize, policy: Policy) -> Program {
    phalanx_cuda::emulator::pretend(1);
    let places: Vec<String> = (0..replicas).map(|part| format!("gpu:0/{part}")).collect();
    let strategy = MirroredStrategy::with_devices(&places).unwrap().policy(policy);
    let compile = Compile::new("adam").loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy)).unwrap();
    model.program(StepKind::Train, batch).unwrap()
}

fn programs() -> Vec<Program> {
    use applications::{mini_googlenet, mnist_cnn, mnist_mlp, resnet50};
    let mut programs = vec![];
    for replicas in [1, 2] {
        programs.push(program(mnist_mlp(784, 10).unwrap(), replicas, BATCH));
        programs.push(program(mnist_cnn([28, 28, 1], 10).unwrap(), replicas, BATCH));
        let googlenet = mini_googlenet([32, 32, 3], Some(10)).unwrap();
        programs.push(program(googlenet, replicas, BATCH));
    }
    for policy in [Policy::MixedBfloat16, Policy::MixedFloat16] {
        let cnn = mnist_cnn([28, 28, 1], 10).unwrap();
        let googlenet = mini_googlenet([32, 32, 3], Some(10)).unwrap();
        programs.extend([cnn, googlenet].map(|model| program_as(model, 1, BATCH, policy)));
    }
    programs.push(program(resnet50([224, 224, 3], Some(1000)).unwrap(), 1, BATCH));
    programs
}

/// What a plan launches, and what stands in for convolutions that cuDNN does not take.
fn launches(plan: &Plan) -> Vec<Launch> {
    let tasks = plan.work.iter().flat_map(|w| &w.tasks);
    let launch = |task: &Task| match task {
        Task::Launch(launch) => Some(launch.clone()),
        Task::Conv(conv) => Some(fallback::launch(conv)),
        Task::Gemm(_) | Task::Clear(_) | Task::Reduce(_) => None,
    };
    tasks.filter_map(launch).collect()
}

/// The sources of all kernels, each with the kernels that are launched.
fn sources() -> BTreeMap<String, BTreeSet<String>> {
    let mut sources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for program in programs() {
        let rooms = Rooms::of(&program);
        let table = table(&program);
        let (inputs, fetch_bytes) = (rooms.inputs, rooms.fetch_bytes);
        let from = FromTable {
            table: &table,
            turn: TurnLayout::new(1, BATCH, false),
            inputs,
            fetch_bytes,
        };
        for (plan, _) in [rooms.lower(&program), rooms.lower_as(&program, true, Some(from))] {
            for launch in launches(&plan) {
                let source = nvrtc::source(launch.source, &plan.tapes).unwrap();
                sources.entry(source).or_default().insert(launch.kernel);
            }
        }
    }
    sources
}

/// A sample for each feed of a program that is rows.
fn table(program: &Program) -> Table {
    let rows = program.feeds.iter().filter(|f| f.ty.is_rows());
    let zeros: Vec<Vec<f32>> = rows.map(|f| vec![0.0; f.ty.len()]).collect();
    let column = |cells| Column { cells: Cells::F32(cells), row: cells.len(), frame: None };
    let columns: Vec<Column<'_>> = zeros.iter().map(|cells| column(&cells[..])).collect();
    Table::new(&columns, 0)
}

/// Skipped where there is no compiler, unless `PHALANX_NVRTC` says that there must be one.
#[test]
fn every_kernel_compiles() {
    if let Err(missing) = libs::find(Lib::Nvrtc) {
        assert!(std::env::var_os("PHALANX_NVRTC").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return;
    }
    let sources = sources();
    let files = nvrtc::FILES.iter().filter(|(name, _)| {
        let source = nvrtc::source(Source::File(name), "").unwrap();
        sources.contains_key(&source)
    });
    assert!(files.count() >= 5 && sources.len() >= 10, "{} sources", sources.len());
    for (source, kernels) in &sources {
        let kernels: Vec<String> = kernels.iter().cloned().collect();
        for capability in CAPABILITIES {
            let compiled = nvrtc::translate(source, &kernels, capability);
            let compiled = compiled.unwrap_or_else(|e| panic!("sm_{capability}, {kernels:?}: {e}"));
            assert!(compiled.names.len() == kernels.len() && !compiled.cubin.is_empty());
        }
    }
}

/// Runs steps of zeros, from a full batch down to one row, on an emulated GPU of so many bytes.
fn train(program: &Program, memory: usize) -> Result<(), ExecError> {
    let (most, devices) = (program.options.max_batch, program.options.mesh.devices);
    let count = |ty: &Type, rows: usize| ty.len() * if ty.is_rows() { rows } else { 1 };
    let longest = program.feeds.iter().map(|f| count(&f.ty, most)).max().unwrap_or(0);
    let (floats, integers) = (vec![0.0; longest], vec![0; longest]);
    let feed = |ty: &Type, rows: usize| match ty.dtype {
        DType::I32 => FeedData::I32(&integers[..count(ty, rows)]),
        _ => FeedData::F32(&floats[..count(ty, rows)]),
    };
    let scalars = vec![0.0; program.update.as_ref().map_or(0, |u| u.rule.scalars)];
    let mut executor = emulator::small_executor(devices, memory, &program.params)?;
    let id = executor.load(program.clone())?;
    (1..=most).rev().try_for_each(|rows| {
        let feeds: Vec<FeedData<'_>> = program.feeds.iter().map(|f| feed(&f.ty, rows)).collect();
        let batch = Batch { rows, feeds: &feeds, scalars: &scalars, ..Batch::default() };
        executor.run(id, &batch, &mut vec![])
    })
}

#[test]
fn a_step_takes_the_memory_that_was_planned() {
    for replicas in [1, 2] {
        let cnn = applications::mnist_cnn([12, 12, 1], 4).unwrap();
        let program = program(cnn, replicas, 3 * replicas);
        let parts = memory_plan(&program, false);
        let planned: usize = parts.iter().map(|(_, bytes)| bytes).sum::<usize>();
        for lacking in [1, planned / 2, planned - 10] {
            let memory = replicas * planned - lacking;
            let error = train(&program, memory).unwrap_err();
            let expected = Some(memory / replicas);
            let available = match &error {
                ExecError::Memory { available, .. } => *available,
                other => panic!("{other}"),
            };
            assert_eq!(available, expected, "{error}");
        }
        match emulator::missing() {
            Some(reason) => eprintln!("skipped: {reason}"),
            None => train(&program, replicas * planned).unwrap(),
        }
    }
}
