//! Every kernel compiles with NVIDIA's runtime compiler, which needs no GPU: those of the files in every form
//! that the ops' cases, the optimizers and the applications launch, and those written for these programs.

mod launched;
mod programs;

use crate::kept::{Table, TurnLayout};
use crate::libs::{self, Lib};
use crate::lower::FromTable;
use crate::nvrtc;
use crate::plan::{Rooms, Way};
use launched::{Launched, Unit, base};
use phalanx_graph::kept::{Cells, Column};
use phalanx_graph::program::Program;
use std::collections::BTreeMap;

/// H100 and H200: every form of every kernel.
const ALL_FOR: i32 = 90;

/// A100: a form of every kernel for each type of numbers.
const SOME_FOR: i32 = 80;

/// A sample for each feed of a program that is rows.
fn table(program: &Program) -> Table {
    let rows = program.feeds().iter().filter(|f| f.ty.is_rows());
    let zeros: Vec<Vec<f32>> = rows.map(|f| vec![0.0; f.ty.len()]).collect();
    let column = |cells| Column { cells: Cells::F32(cells), row: cells.len(), frame: None };
    let columns: Vec<Column<'_>> = zeros.iter().map(|cells| column(&cells[..])).collect();
    Table::new(&columns, 0)
}

/// Adds what a program launches in every way that it can be run.
fn add_all_ways(launched: &mut Launched, program: &Program) {
    let rooms = Rooms::of(program);
    let table = table(program);
    let turn = TurnLayout::new(1, program.options().max_batch, false);
    let (inputs, fetch_bytes) = (rooms.inputs, rooms.fetch_bytes);
    let from = Some(FromTable { table: &table, turn, inputs, fetch_bytes });
    for joined in [false, true] {
        for accumulate in [None, Some(false), Some(true)] {
            let way = Way { joined, accumulate, from: from.filter(|_| accumulate.is_none()) };
            launched.add(&rooms.lower(program, way).0);
        }
    }
    launched.add(&rooms.lower(program, Way::default()).0);
}

fn launched() -> Launched {
    let mut launched = Launched::default();
    for program in programs::ops() {
        launched.add(&Rooms::of(&program).lower(&program, Way::default()).0);
    }
    for program in programs::training().iter().chain(&programs::networks()) {
        add_all_ways(&mut launched, program);
    }
    launched
}

/// A form of each kernel for each type of numbers.
fn some(kernels: &[String]) -> Vec<String> {
    let narrow = |k: &str| ["bf16", "half"].map(|elem| k.contains(elem));
    let forms: BTreeMap<_, &String> = kernels.iter().map(|k| ((base(k), narrow(k)), k)).collect();
    forms.into_values().cloned().collect()
}

fn translate(unit: &Unit, kernels: &[String], capability: i32) {
    let compiled = nvrtc::translate(&unit.source, kernels, capability);
    let compiled = compiled.unwrap_or_else(|e| panic!("sm_{capability}, {}: {e}", unit.name));
    assert!(compiled.names.len() == kernels.len() && !compiled.cubin.is_empty());
}

#[test]
fn every_kernel_is_launched() {
    let missing = launched().missing();
    assert!(missing.is_empty(), "no case launches {missing:#?}");
}

/// Skipped where there is no compiler, unless `PHALANX_NVRTC` says that there must be one.
#[test]
fn every_kernel_compiles() {
    if let Err(missing) = libs::find(Lib::Nvrtc) {
        assert!(std::env::var_os("PHALANX_NVRTC").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return;
    }
    for unit in launched().units() {
        translate(&unit, &some(&unit.kernels), SOME_FOR);
        translate(&unit, &unit.kernels, ALL_FOR);
    }
}
