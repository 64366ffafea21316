//! Special functions.

use super::context::GraphResult;
use super::elementwise::map;
use super::ops;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId};

/// Chebyshev coefficients of `e^-|x| I₀(x)` in `|x| / 2 - 2` for `|x|` up to 8, highest first (Cephes, single
/// precision).
const I0_SMALL: [f64; 18] = [
    -1.300_025_009_986_248e-8,
    6.046_995_022_541_919e-8,
    -2.670_793_853_940_612e-7,
    1.117_387_539_120_103_7e-6,
    -4.416_738_358_458_750_6e-6,
    1.644_844_807_072_889_7e-5,
    -5.754_195_010_082_104e-5,
    1.885_028_850_958_416_6e-4,
    -5.763_755_745_385_824e-4,
    1.639_475_616_941_335_8e-3,
    -4.324_309_995_050_576e-3,
    1.054_646_039_459_499_8e-2,
    -2.373_741_480_589_947e-2,
    4.930_528_423_967_071e-2,
    -9.490_109_704_804_764e-2,
    1.716_209_015_222_087_8e-1,
    -3.046_826_723_431_984e-1,
    6.767_952_744_094_761e-1,
];

/// The same of `√|x| e^-|x| I₀(x)` in `32 / |x| - 2` above 8.
const I0_LARGE: [f64; 7] = [
    3.396_232_025_708_386e-9,
    2.266_668_990_498_178e-8,
    2.048_918_589_469_063_7e-7,
    2.891_370_520_834_756_5e-6,
    6.889_758_346_916_824e-5,
    3.369_116_478_255_694e-3,
    8.044_904_110_141_088e-1,
];

/// The sum of a Chebyshev series, by Clenshaw's rule.
fn chebyshev(g: &mut Graph, x: NodeId, coefficients: &[f64]) -> GraphResult {
    let zero = g.scalar(0.0);
    let (mut current, mut before, mut last) = (zero, zero, zero);
    for coefficient in coefficients {
        (last, before) = (before, current);
        let product = g.mul(x, before)?;
        let apart = g.sub(product, last)?;
        current = g.offset(apart, *coefficient)?;
    }
    let apart = g.sub(current, last)?;
    g.scale(apart, 0.5)
}

/// The modified Bessel function of the first kind and order zero.
fn i0(g: &mut Graph, x: NodeId) -> GraphResult {
    let size = g.unary(Unary::Abs, x)?;
    let limit = g.scalar(8.0);
    let is_large = g.binary(Binary::Gt, size, limit)?;
    // The branch that is not taken gets a valid argument, so that it cannot spoil the derivative.
    let small = g.binary(Binary::Min, size, limit)?;
    let large = g.binary(Binary::Max, size, limit)?;
    let at = g.scale(small, 0.5)?;
    let at = g.offset(at, -2.0)?;
    let near = chebyshev(g, at, &I0_SMALL)?;
    let inverse = g.unary(Unary::Recip, large)?;
    let at = g.scale(inverse, 32.0)?;
    let at = g.offset(at, -2.0)?;
    let far = chebyshev(g, at, &I0_LARGE)?;
    let root = g.unary(Unary::Rsqrt, large)?;
    let far = g.mul(far, root)?;
    let scaled = g.select(is_large, far, near)?;
    let growth = g.unary(Unary::Exp, size)?;
    g.mul(growth, scaled)
}

ops! {
    NUMPY, "numpy";
    I0(x) => |cx| map(cx, i0),
}
