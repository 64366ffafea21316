//! Recurrent cells over a sequence.

use super::Value;
use phalanx_graph::ops::recurrent::SAVED_PER_UNIT;
use phalanx_graph::ops::{RecurrentAttrs, RecurrentCell};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The steps in the order of computation.
fn order(attrs: &RecurrentAttrs, steps: usize) -> Vec<usize> {
    match attrs.reverse {
        false => (0..steps).collect(),
        true => (0..steps).rev().collect(),
    }
}

/// One unit of a step: its new states, and its four gates.
fn unit(cell: RecurrentCell, x: &[f64], inner: &[f64], state: &[f64]) -> (Vec<f64>, [f64; 4]) {
    match cell {
        RecurrentCell::Lstm => {
            let z = |gate: usize| x[gate] + inner[gate];
            let gates = [sigmoid(z(0)), sigmoid(z(1)), z(2).tanh(), sigmoid(z(3))];
            let c = gates[1] * state[1] + gates[0] * gates[2];
            (vec![gates[3] * c.tanh(), c], gates)
        }
        RecurrentCell::Gru => {
            let (z, r) = (sigmoid(x[0] + inner[0]), sigmoid(x[1] + inner[1]));
            let n = (x[2] + r * inner[2]).tanh();
            (vec![z * state[0] + (1.0 - z) * n], [z, r, n, inner[2]])
        }
    }
}

pub(super) fn recurrent(attrs: &RecurrentAttrs, x: &[&Value], dims: Vec<usize>) -> Value {
    let at = attrs.operands();
    let (gates, states, width) = (attrs.cell.gates(), attrs.cell.states(), attrs.width());
    let (rows, steps, units) = (dims[0], dims[1], x[1].dims[0]);
    let mut y = Value::fill(dims, 0.0);
    for row in 0..rows {
        let start = |s: usize| match at.initial {
            Some(first) => x[first + s].floats()[row * units..][..units].to_vec(),
            None => vec![0.0; units],
        };
        let mut state: Vec<Vec<f64>> = (0..states).map(start).collect();
        for t in order(attrs, steps) {
            let pixel = row * steps + t;
            let input = &x[0].floats()[pixel * gates * units..][..gates * units];
            let previous = state.clone();
            let masked = at.mask.is_some_and(|mask| x[mask].floats()[pixel] == 0.0);
            let out = &mut y.floats_mut()[pixel * width * units..][..width * units];
            for j in 0..units {
                let column = |gate: usize| gate * units + j;
                let product = |gate: usize| {
                    let weight = |k: usize| x[1].floats()[k * gates * units + column(gate)];
                    let sum: f64 = (0..units).map(|k| previous[0][k] * weight(k)).sum();
                    sum + at.bias.map_or(0.0, |bias| x[bias].floats()[column(gate)])
                };
                let inner: Vec<f64> = (0..gates).map(product).collect();
                let own: Vec<f64> = (0..gates).map(|gate| input[column(gate)]).collect();
                let before: Vec<f64> = previous.iter().map(|s| s[j]).collect();
                let (new, kept) = unit(attrs.cell, &own, &inner, &before);
                for s in 0..states {
                    state[s][j] = if masked { before[s] } else { new[s] };
                    out[s * units + j] = state[s][j];
                }
                if attrs.keep {
                    for (i, v) in kept.iter().chain([&before[0]]).enumerate() {
                        out[(states + i) * units + j] = *v;
                    }
                }
            }
        }
    }
    y
}

/// The cotangents of a unit: of its four gates, of the previous `h` without the product, and of the previous `c`.
fn unit_grad(cell: RecurrentCell, y: &[f64], c: f64, dh: f64, dc: f64) -> ([f64; 4], f64, f64) {
    match cell {
        RecurrentCell::Lstm => {
            let [_, new, i, f, g, o] = *y else { unreachable!("six values of a unit") };
            let shown = new.tanh();
            let dc = dc + dh * o * (1.0 - shown * shown);
            let d = [
                dc * g * i * (1.0 - i),
                dc * c * f * (1.0 - f),
                dc * i * (1.0 - g * g),
                dh * shown * o * (1.0 - o),
            ];
            (d, 0.0, dc * f)
        }
        RecurrentCell::Gru => {
            let [_, z, r, n, inner, h] = *y else { unreachable!("six values of a unit") };
            let dn = dh * (1.0 - z) * (1.0 - n * n);
            let d = [dh * (h - n) * z * (1.0 - z), dn * inner * r * (1.0 - r), dn, dn * r];
            (d, dh * z, 0.0)
        }
    }
}

pub(super) fn grad(attrs: &RecurrentAttrs, more: bool, x: &[&Value], dims: Vec<usize>) -> Value {
    let at = attrs.grad_operands(more);
    let (gates, states) = (attrs.cell.gates(), attrs.cell.states());
    let (rows, out_steps, units) = (dims[0], dims[1], x[1].dims[0]);
    let (steps, width) = (x[0].dims[1], states + SAVED_PER_UNIT);
    let mut d = Value::fill(dims, 0.0);
    for row in 0..rows {
        let (mut dh, mut dc) = (vec![0.0; units], vec![0.0; units]);
        let order = order(attrs, steps);
        for (step, t) in order.iter().enumerate().rev() {
            let pixel = row * steps + t;
            let of = |x: usize, j: usize| x * units + j;
            for j in 0..units {
                dh[j] += x[at.first].floats()[pixel * units + j];
                dc[j] += at.second.map_or(0.0, |dc| x[dc].floats()[pixel * units + j]);
            }
            if at.mask.is_some_and(|mask| x[mask].floats()[pixel] == 0.0) {
                continue;
            }
            let y = |pixel: usize| &x[0].floats()[pixel * width * units..][..width * units];
            let mut next = vec![0.0; units];
            let out = &mut d.floats_mut()[(row * out_steps + t) * 4 * units..][..4 * units];
            for j in 0..units {
                let c = match (step, at.initial) {
                    _ if states == 1 => 0.0,
                    (0, Some(first)) => x[first + 1].floats()[row * units + j],
                    (0, None) => 0.0,
                    _ => y(row * steps + order[step - 1])[of(1, j)],
                };
                let own: Vec<f64> = (0..6).map(|i| y(pixel)[of(i, j)]).collect();
                let (gates, direct, before) = unit_grad(attrs.cell, &own, c, dh[j], dc[j]);
                gates.iter().enumerate().for_each(|(i, v)| out[of(i, j)] = *v);
                (next[j], dc[j]) = (direct, before);
            }
            for (k, next) in next.iter_mut().enumerate() {
                for gate in 0..gates {
                    // The last gate of a GRU has a cotangent of its own inside of the product.
                    let from = if gates == 3 && gate == 2 { 3 } else { gate };
                    let weight = |j: usize| x[1].floats()[k * gates * units + gate * units + j];
                    *next += (0..units).map(|j| out[of(from, j)] * weight(j)).sum::<f64>();
                }
            }
            dh = next;
        }
        if attrs.initial {
            let out = &mut d.floats_mut()[(row * out_steps + steps) * 4 * units..];
            out[..units].copy_from_slice(&dh);
            if states == 2 {
                out[units..2 * units].copy_from_slice(&dc);
            }
        }
    }
    d
}
