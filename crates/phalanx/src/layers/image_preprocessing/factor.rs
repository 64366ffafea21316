//! The range of a random layer, as in configs.

use crate::error::Result;
use crate::layer::LayerContext;
use serde::{Deserialize, Serialize};

/// A range: `0.2` for -0.2 to 0.2, or both ends, `(-0.1, 0.3)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or two of them")]
pub enum Factor {
    /// Symmetric around zero.
    Both(f64),
    /// The two ends, in any order.
    Ends([f64; 2]),
}

impl From<f64> for Factor {
    fn from(both: f64) -> Factor {
        Factor::Both(both)
    }
}

impl From<(f64, f64)> for Factor {
    fn from((low, high): (f64, f64)) -> Factor {
        Factor::Ends([low, high])
    }
}

impl From<[f64; 2]> for Factor {
    fn from(ends: [f64; 2]) -> Factor {
        Factor::Ends(ends)
    }
}

impl Factor {
    /// The lower and the upper end.
    pub(super) fn ends(self) -> [f64; 2] {
        match self {
            Factor::Both(f) => [-f.abs(), f.abs()],
            Factor::Ends([a, b]) => [a.min(b), a.max(b)],
        }
    }

    /// The ends, or an error if one lies outside -1 to 1.
    pub(super) fn within_unit(self, cx: &LayerContext<'_>, argument: &str) -> Result<[f64; 2]> {
        let given = match self {
            Factor::Both(f) => [f, f],
            Factor::Ends(ends) => ends,
        };
        match given.into_iter().find(|f| !(-1.0..=1.0).contains(f)) {
            None => Ok(self.ends()),
            Some(f) => Err(cx.argument(argument, "numbers from -1 to 1", f)),
        }
    }

    /// The range between bounds, as Keras stores it: one number `f` is from `-f`, or the lower bound, to `f`.
    pub(super) fn span(self, low: f64) -> Factor {
        match self {
            Factor::Both(f) => Factor::Ends([(-f.abs()).max(low), f.abs()]),
            Factor::Ends(_) => Factor::Ends(self.ends()),
        }
    }

    /// The ends of [`span`](Factor::span), or an error if the range lies outside the bounds. As in Keras, one
    /// end of a range may lie outside.
    pub(super) fn within(
        self,
        cx: &LayerContext<'_>,
        argument: &str,
        [low, high]: [f64; 2],
    ) -> Result<[f64; 2]> {
        let ends = self.span(low).ends();
        let fits = match self {
            Factor::Both(f) => (low..=high).contains(&f),
            Factor::Ends(_) => ends[0] <= high && ends[1] >= low,
        };
        if fits && ends.iter().all(|f| f.is_finite()) {
            return Ok(ends);
        }
        let expected = format!("numbers from {low} to {high}");
        let received = match self {
            Factor::Both(f) => f.to_string(),
            Factor::Ends([a, b]) => format!("({a}, {b})"),
        };
        Err(cx.argument(argument, &expected, received))
    }
}
