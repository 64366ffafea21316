//! More workers than rows: the workers split each instruction spatially.

use super::Cpu;
use phalanx_graph::Mesh;
use phalanx_graph::program::Split;
use phalanx_testing::cases::*;
use phalanx_testing::harness::compile;
use phalanx_testing::ops::{check, fetching};

/// Meshes with more workers than rows. Programs without an update are then split spatially.
const CROWDED: [Mesh; 2] = [Mesh::new(1, 6), Mesh::new(2, 4)];

#[test]
fn few_rows_are_split_spatially() {
    let lists = [
        binary_cases(),
        select_cases(),
        layout_cases(),
        dot_cases(),
        matmul_cases(),
        index_and_random_cases(),
        conv_cases(),
        pool_cases(),
        softmax_cases(),
        norm_cases(),
        recurrent_cases(),
        shared_cases(),
    ];
    let mut split = 0;
    for case in lists.iter().flatten() {
        let mut b = Build::new(&case.name, 1);
        let y = (case.build)(&mut b);
        let step = fetching(&b, &[y]);
        split += usize::from(compile(&step, CROWDED[0], 5).split() == Split::Spatial);
        check(&Cpu, case, false, &CROWDED);
    }
    assert!(split > 50, "{split} cases");
}
