//! Selection of the convolution algorithm.

use std::sync::OnceLock;

use phalanx_graph::ConvGeom;

use super::{Pass, winograd};
use crate::simd::MAX_LANES;

/// A convolution algorithm. The choice changes the last bits of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Direct sums over taps and channels; computes every convolution.
    Direct,
    /// Winograd's `F(2x2, 3x3)`.
    Winograd2,
    /// Winograd's `F(4x4, 3x3)`.
    Winograd4,
}

impl Method {
    /// The method with the lowest cost for a worker with `rows` images, according to a cost model. It depends
    /// only on the arguments, so that the same program gives the same bits.
    ///
    /// With `PHALANX_WINOGRAD=0` in the environment it is always [`Method::Direct`].
    pub fn choose(geom: &ConvGeom, pass: Pass, rows: usize) -> Method {
        static ENABLED: OnceLock<bool> = OnceLock::new();
        let enabled =
            ENABLED.get_or_init(|| std::env::var("PHALANX_WINOGRAD").map_or(true, |v| v != "0"));
        if *enabled { Method::cheapest(geom, pass, rows) } else { Method::Direct }
    }

    fn cheapest(geom: &ConvGeom, pass: Pass, rows: usize) -> Method {
        let all = [Method::Direct, Method::Winograd2, Method::Winograd4];
        let usable = all.into_iter().filter(|m| m.computes(geom));
        usable
            .min_by(|a, b| a.cost(geom, pass, rows).total_cmp(&b.cost(geom, pass, rows)))
            .unwrap_or(Method::Direct)
    }

    /// Whether the method supports this convolution.
    pub fn computes(self, geom: &ConvGeom) -> bool {
        self == Method::Direct || winograd::applies(geom)
    }

    /// The side length of a tile of results, for Winograd's methods.
    pub(super) fn tile(self) -> Option<usize> {
        match self {
            Method::Direct => None,
            Method::Winograd2 => Some(2),
            Method::Winograd4 => Some(4),
        }
    }

    /// Expected cycles of a core with vectors of [`MAX_LANES`] floats and one multiply-add per cycle.
    fn cost(self, geom: &ConvGeom, pass: Pass, rows: usize) -> f64 {
        let (cin, cout) = (geom.input[2], geom.output[2]);
        let (k, cols) = if pass == Pass::GradInput { (cout, cin) } else { (cin, cout) };
        let vectors = |channels: usize| channels.div_ceil(MAX_LANES) as f64;
        let (k_vectors, col_vectors, k) = (vectors(k), vectors(cols), k as f64);
        let Some(m) = self.tile() else {
            let pixels = (rows * geom.output[0] * geom.output[1]) as f64;
            if pass == Pass::GradInput && super::uses_patches(geom) {
                return pixels * (k * vectors(9 * cin) + SCATTER_CYCLES * (9 * cin) as f64);
            }
            return pixels * 9.0 * k * col_vectors;
        };
        let results = if pass == Pass::GradInput { geom.input } else { geom.output };
        let tiles = (rows * results[0].div_ceil(m) * results[1].div_ceil(m)) as f64;
        let points = ((m + 2) * (m + 2)) as f64;
        let transforms = TRANSFORM_CYCLES * points * (k_vectors + col_vectors);
        let weights = points * k * col_vectors;
        let each = match pass {
            Pass::GradKernel => KERNEL_SUM_CYCLES,
            _ if weights * MAX_LANES as f64 > CACHED_FLOATS => UNCACHED_WEIGHT_CYCLES,
            _ => WEIGHT_CYCLES,
        };
        tiles * (weights * PRODUCT_CYCLES + transforms) + each * weights
    }
}

/// Cycles to add one float of a patch to its pixel.
const SCATTER_CYCLES: f64 = 2.0;

/// Cycles to transform one vector of one point of a tile; fewer on an idle machine with AVX-512, more
/// without it.
const TRANSFORM_CYCLES: f64 = 8.0;

/// Cycles of a multiply-add of transformed values, which come from the second-level cache.
const PRODUCT_CYCLES: f64 = 1.15;

/// Cycles to pack and transform one vector of one point of the weights.
const WEIGHT_CYCLES: f64 = 5.0;

/// The same for weights whose transform exceeds [`CACHED_FLOATS`] and goes to memory.
const UNCACHED_WEIGHT_CYCLES: f64 = 10.0;

/// Floats that the last-level cache is expected to hold for one core.
const CACHED_FLOATS: f64 = (2 << 20) as f64;

/// Cycles to clear, sum and transform one vector of one point of the kernel's gradient.
const KERNEL_SUM_CYCLES: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::{Padding, Window};

    fn cheapest(size: usize, [cin, cout]: [usize; 2], stride: usize, rows: usize) -> [Method; 3] {
        let (input, padding) = ([size, size, cin], Padding::Same);
        let geom = ConvGeom::new(input, cout, Window::new([3, 3], [stride; 2], padding)).unwrap();
        [Pass::Forward, Pass::GradInput, Pass::GradKernel]
            .map(|pass| Method::cheapest(&geom, pass, rows))
    }

    #[test]
    fn winograd_is_chosen_if_it_saves_more_than_its_transforms_cost() {
        use Method::{Direct, Winograd2, Winograd4};
        assert_eq!(cheapest(32, [96, 32], 1, 32), [Winograd4; 3]);
        assert_eq!(cheapest(15, [160, 96], 1, 32), [Winograd4; 3]);
        assert_eq!(cheapest(7, [512, 512], 1, 4), [Winograd4; 3]);
        assert_eq!(cheapest(7, [240, 160], 1, 1), [Winograd4, Winograd4, Direct]);
        assert_eq!(cheapest(32, [3, 96], 1, 32), [Direct; 3]);
        assert_eq!(cheapest(28, [1, 32], 1, 32), [Direct; 3]);
        assert_eq!(cheapest(2, [64, 64], 1, 64), [Winograd2; 3]);
        // One small image does not amortise the transform of large weights.
        assert_eq!(cheapest(7, [512, 512], 1, 1), [Direct; 3]);
        assert_eq!(cheapest(32, [1, 1], 1, 32), [Direct; 3]);
        assert_eq!(cheapest(32, [96, 32], 2, 32), [Direct; 3]);
        assert_eq!(cheapest(32, [96, 32], 1, 0), [Direct; 3]);
    }
}
