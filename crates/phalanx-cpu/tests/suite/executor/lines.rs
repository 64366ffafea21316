//! More workers than rows: they share the lines of each instruction.

use super::Cpu;
use phalanx_graph::Mesh;
use phalanx_graph::program::Split;
use phalanx_testing::cases::*;
use phalanx_testing::harness::compile;
use phalanx_testing::ops::{check, fetching};

/// Lines are shared where a program only computes.
const CROWDS: [Mesh; 2] = [Mesh::new(1, 6), Mesh::new(2, 4)];

#[test]
fn few_rows_are_shared_by_lines() {
    let lists = [
        binary_cases(),
        select_cases(),
        layout_cases(),
        dot_cases(),
        conv_cases(),
        pool_cases(),
        softmax_cases(),
        norm_cases(),
        shared_cases(),
    ];
    let mut shared = 0;
    for case in lists.iter().flatten() {
        let mut b = Build::new(&case.name, 1);
        let y = (case.build)(&mut b);
        let step = fetching(&b, &[y]);
        shared += usize::from(compile(&step, CROWDS[0], 5).split() == Split::Spatial);
        check(&Cpu, case, false, &CROWDS);
    }
    assert!(shared > 50, "{shared} cases");
}
