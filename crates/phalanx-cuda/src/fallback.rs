//! A plain convolution kernel, for convolutions that cuDNN does not support.

use crate::launch::{Arg, Launch, Word};
use crate::work_item::{Conv, Pass};

/// Words of the table that describes the geometry.
pub(crate) const TABLE_WORDS: usize = 24;

/// The launch of a convolution.
pub(crate) fn launch(conv: &Conv) -> Launch {
    let g = &conv.geom;
    let ([h, w, c], [oh, ow, f], [kh, kw]) = (g.input, g.output, g.kernel);
    let (name, items) = match conv.pass {
        Pass::Forward => ("conv_forward", conv.rows * g.output_len()),
        Pass::GradInput => ("conv_grad_input", conv.rows * g.input_len()),
        // One block per element of the result.
        Pass::GradKernel => ("conv_grad_kernel", g.kernel_dims().iter().product::<usize>() * 256),
    };
    let kernel = format!("{name}<{}, {}>", conv.x.elem.c_name(), conv.w.1.c_name());
    let numbers: [usize; TABLE_WORDS] = [
        conv.rows,
        h,
        w,
        c,
        oh,
        ow,
        f,
        kh,
        kw,
        g.stride[0],
        g.stride[1],
        g.dilation[0],
        g.dilation[1],
        g.pad[0],
        g.pad[1],
        g.groups,
        conv.x.ld,
        conv.y.ld,
        g.depth.input,
        g.depth.output,
        g.depth.kernel,
        g.depth.stride,
        g.depth.dilation,
        g.depth.pad,
    ];
    let table = Arg::Table(numbers.iter().map(|n| Word::I64(*n as i64)).collect());
    Launch::over("conv", kernel, items).arg(table).arg(conv.x.at).arg(conv.w.0).arg(conv.y.at)
}
