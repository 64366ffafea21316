//! Reading and writing the training state.

use super::{CpuExecutor, FlatLayout, StateMemory};
use crate::memory::Buffer;
use phalanx_distributed::all_gather;
use phalanx_exec::{ExecError, StateId, check_len};
use phalanx_graph::ParamId;

/// The parameter that a part of the state belongs to.
fn param_of(id: StateId) -> ParamId {
    match id {
        StateId::Param(param) | StateId::Slot(_, param) | StateId::Accumulated(param) => param,
    }
}

impl CpuExecutor {
    /// The layout of the buffer with a part of the state.
    fn layout_of(&self, id: StateId) -> &FlatLayout {
        match id {
            StateId::Param(_) => &self.memory.weights,
            StateId::Slot(..) | StateId::Accumulated(_) => &self.memory.owned,
        }
    }

    /// Reads a part of the state; `None` if it does not exist yet. What the processes have divided is gathered, so all
    /// of them must call this.
    pub(super) fn read_state(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError> {
        let spec = &self.params[param_of(id).index()];
        let Some(axis) = spec.partition_axis.filter(|_| self.mesh.devices_per_replica > 1) else {
            return self.read_part(id, 0);
        };
        let parts = (0..self.mesh.devices_per_replica).map(|part| self.read_part(id, part));
        let parts: Option<Vec<Vec<f32>>> = parts.collect::<Result<_, _>>()?;
        Ok(parts.map(|parts| join(&parts, &spec.dims, axis)))
    }

    /// Reads what the devices with part `part` of a replica hold of a part of the state.
    fn read_part(&self, id: StateId, part: usize) -> Result<Option<Vec<f32>>, ExecError> {
        let (state, param) = (&self.memory.states[part], param_of(id));
        let buffer: Option<&Buffer> = match id {
            StateId::Param(_) => Some(&state.params),
            StateId::Slot(slot, _) => state.slots.get(slot),
            StateId::Accumulated(_) => Some(&state.accumulated),
        };
        let Some(buffer) = buffer.filter(|buffer| buffer.bytes() > 0) else { return Ok(None) };
        let layout = self.layout_of(id);
        // SAFETY: no step is in flight, so no worker writes.
        let held = unsafe { &buffer.as_floats()[layout.positions(param)] };
        let len = self.parts[param.index()].len();
        let Some(collectives) = self.collectives.as_ref().filter(|_| self.divides(id)) else {
            return Ok(Some(held.to_vec()));
        };
        let mine: Vec<u8> = held.iter().flat_map(|v| v.to_le_bytes()).collect();
        let all = all_gather(&*collectives.cluster.peers, &mine)?;
        let mut values = vec![0.0; len];
        for (domain, bytes) in all.iter().enumerate() {
            let owned = self.mesh.sharding.owned(param, len, domain);
            let (parts, _) = bytes.as_chunks::<4>();
            let floats = parts.iter().map(|v| f32::from_le_bytes(*v));
            values[owned].iter_mut().zip(floats).for_each(|(to, from)| *to = from);
        }
        Ok(Some(values))
    }

    /// Whether the processes divide a part of the state.
    pub(super) fn divides(&self, id: StateId) -> bool {
        match id {
            StateId::Param(p) => self.mesh.sharding.divides_weight(&self.parts[p.index()]),
            StateId::Slot(..) | StateId::Accumulated(_) => self.mesh.sharding.is_on(),
        }
    }

    /// Sets a part of the state in every copy.
    pub(super) fn write_state(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError> {
        let param = param_of(id);
        check_len(&self.params[param.index()], values.len())?;
        if let StateId::Slot(slot, _) = id
            && slot >= self.memory.states[0].slots.len()
        {
            let expected = format!("below {}", self.memory.states[0].slots.len());
            let received = slot.to_string();
            return Err(ExecError::Feed { name: "optimizer slot".into(), expected, received });
        }
        if matches!(id, StateId::Accumulated(_)) {
            self.memory.reserve_accumulated()?;
        }
        let layout = self.layout_of(id);
        let (held, positions) = (layout.held[param.index()].clone(), layout.positions(param));
        let (spec, model) = (&self.params[param.index()], self.mesh.devices_per_replica);
        for (index, state) in self.memory.states.iter_mut().enumerate() {
            let StateMemory { params, slots, accumulated, .. } = state;
            let buffer = match id {
                StateId::Param(_) => params,
                StateId::Slot(slot, _) => &mut slots[slot],
                StateId::Accumulated(_) => accumulated,
            };
            let to = &mut buffer.as_floats_mut()[positions.clone()];
            match spec.partition_axis.filter(|_| model > 1) {
                Some(axis) => {
                    let part = part_of(values, &spec.dims, axis, (index % model, model));
                    to.copy_from_slice(&part[held.clone()]);
                }
                None => to.copy_from_slice(&values[held.clone()]),
            }
        }
        Ok(())
    }
}

/// Joins equal parts along an axis of a value with dimensions `dims`.
fn join(parts: &[Vec<f32>], dims: &[usize], axis: usize) -> Vec<f32> {
    let run = dims[axis..].iter().product::<usize>() / parts.len();
    let outer: usize = dims[..axis].iter().product();
    (0..outer)
        .flat_map(|i| parts.iter().flat_map(move |p| &p[i * run..(i + 1) * run]))
        .copied()
        .collect()
}

/// Part `part` of `parts` equal parts along an axis.
fn part_of(values: &[f32], dims: &[usize], axis: usize, (part, parts): (usize, usize)) -> Vec<f32> {
    let run = dims[axis..].iter().product::<usize>() / parts;
    let outer: usize = dims[..axis].iter().product();
    let at = |i: usize| (i * parts + part) * run;
    (0..outer).flat_map(|i| &values[at(i)..at(i) + run]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_to_the_whole() {
        let values: Vec<f32> = (0..48).map(|v| v as f32).collect();
        for axis in 0..3 {
            let parts: Vec<Vec<f32>> =
                (0..2).map(|part| part_of(&values, &[2, 4, 6], axis, (part, 2))).collect();
            assert!(parts.iter().all(|p| p.len() == 24));
            assert_eq!(join(&parts, &[2, 4, 6], axis), values, "axis {axis}");
        }
        assert_eq!(part_of(&values, &[2, 4, 6], 2, (1, 2))[..4], [3.0, 4.0, 5.0, 9.0]);
    }
}
