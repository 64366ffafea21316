//! Dynamic loss scaling: backward starts from a scaled loss, so that small gradients survive in
//! 16 bits, and the update divides them by the scale.
//!
//! The scale lives on the devices, in a parameter of three numbers. If the reduced gradients of a step
//! are not all finite, the step changes nothing but the scale, which it halves. After `growth_steps`
//! consecutive finite steps the scale doubles, as in Keras' `LossScaleOptimizer`.

use crate::error::Result;
use crate::graph::{Graph, NodeId, ParamId};
use crate::ops::{Binary, Op};

/// Length of the state: the scale, the number of finite steps since it last changed, and whether the
/// last step was finite (one) or skipped (zero).
pub const STATE: usize = 3;

/// The largest scale: doubling it would overflow to infinity.
const MAX_SCALE: f32 = f32::from_bits(254 << 23);

/// The loss scaling of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossScale {
    /// The parameter that holds the [`STATE`].
    pub state: ParamId,
    /// Consecutive finite steps after which the scale doubles.
    pub growth_steps: u32,
}

impl LossScale {
    /// Declares the state as a parameter of the graph.
    pub fn declare(g: &mut Graph, growth_steps: u32) -> LossScale {
        LossScale { state: g.add_param("loss_scale", &[STATE], false), growth_steps }
    }

    /// The seed of the backward pass, multiplied by the scale of a `state`.
    pub fn seed(g: &mut Graph, state: NodeId, coefficient: NodeId) -> Result<NodeId> {
        let scale = g.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[state])?;
        let scale = g.reshape(scale, &[])?;
        g.mul(coefficient, scale)
    }

    /// The state after a step as a node, given the state before it; `finite` is 1 or 0.
    pub fn next_node(&self, g: &mut Graph, state: NodeId, finite: NodeId) -> Result<NodeId> {
        let mut element = |start: usize| {
            let one = g.push(Op::Slice { axis: 0, start, len: 1 }, &[state])?;
            g.reshape(one, &[])
        };
        let (scale, steps) = (element(0)?, element(1)?);
        let (zero, most) = (g.scalar(0.0), g.scalar(f64::from(MAX_SCALE)));
        let counted = g.offset(steps, 1.0)?;
        let limit = g.scalar(f64::from(self.growth_steps));
        let grows = g.binary(Binary::Ge, counted, limit)?;
        let doubled = g.scale(scale, 2.0)?;
        let doubled = g.binary(Binary::Min, doubled, most)?;
        let grown = g.select(grows, doubled, scale)?;
        let counted = g.select(grows, zero, counted)?;
        let halved = g.scale(scale, 0.5)?;
        let least = g.scalar(f64::from(f32::MIN_POSITIVE));
        let halved = g.binary(Binary::Max, halved, least)?;
        let mut next = [g.select(finite, grown, halved)?, g.select(finite, counted, zero)?, finite];
        for node in &mut next {
            *node = g.reshape(*node, &[1])?;
        }
        g.push(Op::Concat { axis: 0 }, &next)
    }

    /// The state after a step, given whether all of its gradients were finite.
    pub fn next(&self, [scale, steps, _]: [f32; STATE], finite: bool) -> [f32; STATE] {
        match finite {
            false => [(scale * 0.5).max(f32::MIN_POSITIVE), 0.0, 0.0],
            true if steps + 1.0 < self.growth_steps as f32 => [scale, steps + 1.0, 1.0],
            true => [(scale * 2.0).min(MAX_SCALE), 0.0, 1.0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_stays_within_the_range_of_finite_floats() {
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
        assert_eq!(state[0], MAX_SCALE);
        for _ in 0..1000 {
            state = scaling.next(state, false);
        }
        assert_eq!(state[0], f32::MIN_POSITIVE);
    }
}
