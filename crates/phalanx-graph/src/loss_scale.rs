//! Dynamic loss scaling: the derivative starts from a multiple of the loss, so that small gradients
//! survive in 16 bits, and the update divides by it again.
//!
//! The factor lives on the devices, in a parameter of three numbers beside the weights. A step whose
//! reduced gradients are not all finite changes nothing but the factor, which it halves; so many finite
//! steps in a row double it. As in Keras' `LossScaleOptimizer`.

use crate::error::Result;
use crate::graph::{Graph, NodeId, ParamId};
use crate::ops::Op;

/// Numbers of the state: the scale, the finite steps since it last changed, and whether the last step
/// was finite (one) or skipped (zero).
pub const STATE: usize = 3;

/// The largest scale: the next would be no number.
const LARGEST: f32 = f32::from_bits(254 << 23);

/// How a step scales its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossScale {
    /// The parameter that holds the [`STATE`].
    pub state: ParamId,
    /// Finite steps in a row that double the scale.
    pub growth_steps: u32,
}

impl LossScale {
    /// Adds the state to a graph's parameters.
    pub fn declare(g: &mut Graph, growth_steps: u32) -> LossScale {
        LossScale { state: g.add_param("loss_scale", &[STATE], false), growth_steps }
    }

    /// What a derivative starts from, scaled.
    pub fn seed(&self, g: &mut Graph, coefficient: NodeId) -> Result<NodeId> {
        let state = g.param(self.state);
        let scale = g.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[state])?;
        let scale = g.reshape(scale, &[])?;
        g.mul(coefficient, scale)
    }

    /// The state behind a step whose gradients were all finite, or not.
    pub fn next(&self, [scale, steps, _]: [f32; STATE], finite: bool) -> [f32; STATE] {
        match finite {
            false => [(scale * 0.5).max(f32::MIN_POSITIVE), 0.0, 0.0],
            true if steps + 1.0 < self.growth_steps as f32 => [scale, steps + 1.0, 1.0],
            true => [(scale * 2.0).min(LARGEST), 0.0, 1.0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_grows_and_shrinks_within_what_floats_can_say() {
        let scaling = LossScale { state: ParamId(0), growth_steps: 3 };
        let mut state = [8.0, 0.0, 1.0];
        let mut scales = vec![];
        for finite in [true, true, true, true, false, true, true, false, false, true, true, true] {
            state = scaling.next(state, finite);
            assert_eq!(state[2], f32::from(u8::from(finite)));
            scales.push(state[0]);
        }
        assert_eq!(scales, [8.0, 8.0, 16.0, 16.0, 8.0, 8.0, 8.0, 4.0, 2.0, 2.0, 2.0, 4.0]);
        for _ in 0..1000 {
            state = scaling.next(state, true);
        }
        assert_eq!(state[0], LARGEST);
        for _ in 0..1000 {
            state = scaling.next(state, false);
        }
        assert_eq!(state[0], f32::MIN_POSITIVE);
    }
}
