//! Which algorithm computes a convolution.

use std::sync::OnceLock;

use phalanx_graph::ConvGeom;

use super::{Pass, winograd};
use crate::simd::MAX_LANES;

/// How a convolution is computed. The choice changes the last bits of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Sums over taps and channels, for every convolution.
    Direct,
    /// Winograd's `F(2x2, 3x3)`.
    Winograd2,
    /// Winograd's `F(4x4, 3x3)`.
    Winograd4,
}

impl Method {
    /// The method expected to be fastest for a worker with `rows` images, by a model of its cost: a
    /// function of its arguments alone, so that the same program gives the same bits.
    ///
    /// `PHALANX_WINOGRAD=0` in the environment makes it [`Method::Direct`] always.
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

    /// Whether the method computes this convolution at all.
    pub fn computes(self, geom: &ConvGeom) -> bool {
        self == Method::Direct || winograd::applies(geom)
    }

    /// Results along one side of a tile, for Winograd's methods.
    pub(super) fn tile(self) -> Option<usize> {
        match self {
            Method::Direct => None,
            Method::Winograd2 => Some(2),
            Method::Winograd4 => Some(4),
        }
    }

    /// Expected cycles of a core with vectors of [`MAX_LANES`] floats and one multiply-add a cycle.
    fn cost(self, geom: &ConvGeom, pass: Pass, rows: usize) -> f64 {
        let (cin, cout) = (geom.input[2], geom.output[2]);
        let (k, cols) = if pass == Pass::GradInput { (cout, cin) } else { (cin, cout) };
        let vectors = |channels: usize| channels.div_ceil(MAX_LANES) as f64;
        let (k_vectors, col_vectors, k) = (vectors(k), vectors(cols), k as f64);
        let Some(m) = self.tile() else {
            let pixels = (rows * geom.output[0] * geom.output[1]) as f64;
            return pixels * 9.0 * k * col_vectors;
        };
        let results = if pass == Pass::GradInput { geom.input } else { geom.output };
        let tiles = (rows * results[0].div_ceil(m) * results[1].div_ceil(m)) as f64;
        let points = ((m + 2) * (m + 2)) as f64;
        let transforms = TRANSFORM * points * (k_vectors + col_vectors);
        tiles * (points * k * col_vectors * PRODUCT + transforms)
            + WEIGHTS * points * k * col_vectors
    }
}

/// Cycles to transform one vector of one point of a tile.
const TRANSFORM: f64 = 7.0;

/// Cycles of a multiply-add among transformed values: they come from the second level of cache.
const PRODUCT: f64 = 1.15;

/// Cycles to pack and transform one vector of one point of the weights.
const WEIGHTS: f64 = 6.0;
