//! The cases of convolutions and pooling.

use super::table::{EPILOGUES, product};
use super::{Case, case};
use phalanx_graph::ops::{Epilogue, PoolKind};
use phalanx_graph::{ConvGeom, Depth, Op, Padding, Window};

/// Input, filters, kernel, stride, dilation, groups.
type ConvShape = ([usize; 3], usize, [usize; 2], [usize; 2], [usize; 2], usize);

pub fn conv_cases() -> Vec<Case> {
    let shapes: [(&str, ConvShape); 9] = [
        ("plain", ([4, 5, 2], 3, [3, 3], [1, 1], [1, 1], 1)),
        ("1x1", ([3, 3, 3], 2, [1, 1], [1, 1], [1, 1], 1)),
        ("strided", ([5, 6, 2], 2, [3, 2], [2, 3], [1, 1], 1)),
        ("1x1 strided", ([4, 5, 2], 2, [1, 1], [2, 2], [1, 1], 1)),
        ("dilated", ([5, 6, 1], 2, [2, 3], [1, 1], [2, 2], 1)),
        ("grouped", ([4, 4, 4], 6, [2, 3], [1, 1], [1, 1], 2)),
        ("depthwise", ([4, 4, 3], 6, [3, 3], [1, 2], [1, 1], 3)),
        ("depthwise of one filter", ([5, 6, 4], 4, [3, 3], [2, 2], [1, 1], 4)),
        ("depthwise strided and dilated", ([6, 5, 2], 2, [2, 2], [2, 2], [2, 2], 2)),
    ];
    let mut cases = vec![];
    for (name, (input, filters, kernel, stride, dilation, groups)) in shapes {
        for padding in [Padding::Valid, Padding::Same, Padding::Causal] {
            for e in EPILOGUES {
                let window = Window { kernel, stride, dilation, padding, groups };
                let g = ConvGeom::new(input, filters, window).expect("fits");
                cases.push(case(format!("conv {name} {padding:?}{e}"), move |b| {
                    product(b, Op::Conv(g, e), e, &input, &g.kernel_dims())
                }));
            }
            let window = Window { kernel, stride, dilation, padding, groups };
            let g = ConvGeom::new(input, filters, window).expect("fits");
            cases.push(transposed(format!("{name} {padding:?}"), g));
        }
    }
    cases.extend(volume_cases());
    cases
}

/// The transposed convolution of a geometry.
fn transposed(name: String, g: ConvGeom) -> Case {
    case(format!("transposed conv {name}"), move |b| {
        let inputs = [b.rows(&g.output_dims()), b.param(&g.kernel_dims())];
        b.push(Op::ConvGradInput(g), &inputs)
    })
}

fn volume_cases() -> Vec<Case> {
    // Slices, and the kernel, stride and dilation along the depth.
    let depths = [(3, [2, 1, 1]), (4, [3, 2, 1]), (3, [1, 1, 1]), (4, [2, 1, 2])];
    let mut cases = vec![];
    for (slices, sizes) in depths {
        for (channels, groups) in [(2, 1), (4, 2)] {
            for padding in [Padding::Valid, Padding::Same] {
                let window = Window { groups, ..Window::new([2, 3], [1, 2], padding) };
                let flat = ConvGeom::new([3, 4, channels], 2, window).expect("fits");
                let depth = Depth::new(slices, sizes, padding).expect("fits");
                let g = ConvGeom { depth, ..flat };
                let name = format!("{slices} slices {sizes:?} {padding:?} groups={groups}");
                let e = Epilogue { bias: groups == 1, relu: false };
                cases.push(case(format!("conv {name}"), move |b| {
                    product(b, Op::Conv(g, e), e, &g.input_dims(), &g.kernel_dims())
                }));
                cases.push(transposed(name, g));
            }
        }
    }
    cases
}

pub fn pool_cases() -> Vec<Case> {
    let mut cases = vec![];
    let shapes = [([2, 2], [2, 2]), ([3, 2], [2, 1]), ([3, 3], [1, 1]), ([2, 2], [3, 3])];
    for kind in [PoolKind::Max, PoolKind::Average] {
        for padding in [Padding::Valid, Padding::Same] {
            for (kernel, stride) in shapes {
                let g = ConvGeom::new([4, 5, 2], 2, Window::new(kernel, stride, padding));
                let g = g.expect("fits");
                let name = format!("{kind:?} pool {kernel:?} by {stride:?} {padding:?}");
                cases.push(case(name, move |b| {
                    let x = b.rows(&[4, 5, 2]);
                    b.push(Op::Pool(kind, g), &[x])
                }));
            }
        }
    }
    cases
}
