//! Verification of updates: gradients, buckets, gathered weights and the loss scale.

use super::{Check, Verifier, expect, fail};
use crate::error::Result;
use crate::loss_scale::STATE;
use crate::program::{Instr, Location, ShardLevel, UpdatePlan, ValueId};
use crate::types::{DType, Scope, Space};

impl Verifier<'_> {
    pub(super) fn update(&self, plan: &UpdatePlan) -> Result<()> {
        plan.rule.check()?;
        let mut seen = vec![false; self.p.params.len()];
        for g in &plan.gradients {
            let valid = || -> Check {
                let spec = self.param(g.param)?;
                let granule = spec.dims.last().copied().unwrap_or(1).max(1);
                expect(g.granule == granule, "it is split elsewhere than between rows")?;
                if g.sharded {
                    self.several_workers()?;
                    expect(spec.dims.len() == 2, "only matrices are sharded")?;
                }
                expect(g.operands.is_none() || g.sharded, "it is not sharded")?;
                if let Some(value) = g.value {
                    let v = self.get(value)?;
                    let partial = v.ty.space == Space::Partial && v.ty.dtype == DType::F32;
                    expect(partial && v.contiguous(), "it is no partial sum without gaps")?;
                    expect(v.ty.dims == spec.dims, "it is not that of the parameter")?;
                    expect(!g.sharded, "it is computed from its operands")?;
                }
                g.operands.map_or(Ok(()), |(x, dy)| self.kernel_gradient(g.param, x, dy))
            };
            let name = || format!("gradient of parameter {}", g.param.0);
            valid().map_err(|what| fail(format!("{}: {what}", name())))?;
            if std::mem::replace(&mut seen[g.param.index()], true) {
                return Err(fail(format!("{}: there are two", name())));
            }
        }
        let mut next = 0;
        for bucket in &plan.buckets {
            if bucket.start != next || bucket.end < next {
                return Err(fail(format!("bucket {bucket:?} does not follow {next}")));
            }
            next = bucket.end;
        }
        if next != plan.gradients.len() {
            return Err(fail(format!("buckets end at {next} of {} gradients", seen.len())));
        }
        self.reductions(plan).map_err(fail)?;
        let Some(scaling) = plan.loss_scale else { return Ok(()) };
        let state = self.param(scaling.state).map_err(fail)?;
        let valid = !seen[scaling.state.index()] && state.len() == STATE;
        if valid { Ok(()) } else { Err(fail(format!("'{}' is not a loss scale", state.name))) }
    }

    /// Weights that the memory domains have divided are read while their group is complete, and groups are gathered in
    /// order.
    pub(super) fn gathered_weights(&self) -> Check {
        let mut next = 0;
        for instr in &self.p.instrs {
            if let Instr::GatherWeights { group } = instr {
                expect(*group == next, "a group of weights is gathered out of order")?;
                next += 1;
            }
            for value in instr.inputs() {
                match self.get(value)?.location {
                    Location::Gathered { group, .. } => {
                        expect(group + 1 == next, "a weight is read while it is not gathered")?;
                    }
                    Location::Param(id) => {
                        let divided = self.p.options.mesh.sharding.divides_weight(self.param(id)?);
                        expect(
                            !divided,
                            "a weight that is divided is read without being gathered",
                        )?;
                    }
                    _ => {}
                }
            }
        }
        for group in &self.p.weight_groups {
            for (id, _) in &group.weights {
                let divided = self.p.options.mesh.sharding.divides_weight(self.param(*id)?);
                expect(divided, "a weight is gathered that is not divided")?;
            }
        }
        Ok(())
    }

    /// If gradients are sharded, every bucket is reduced once before the update, in order. The workers wait before it for
    /// each other's gradients, and after it until they may overwrite them.
    fn reductions(&self, plan: &UpdatePlan) -> Check {
        let instrs = &self.p.instrs;
        let sharded = self.p.options.mesh.sharding.level >= ShardLevel::Gradients;
        let mut next = 0;
        for (at, instr) in instrs.iter().enumerate() {
            match instr {
                Instr::ReduceGradients { bucket } => {
                    expect(sharded && *bucket == next, "a bucket is reduced out of order")?;
                    next += 1;
                    let barrier = |at: usize| instrs.get(at) == Some(&Instr::Barrier(Scope::All));
                    let waits = at > 0 && barrier(at - 1) && barrier(at + 1);
                    expect(waits, "a bucket is not reduced between two barriers")?;
                    let done = self.complete(plan, *bucket, &instrs[..at - 1]);
                    expect(done, "a gradient is reduced before it is computed")?;
                }
                Instr::Update => {
                    let all = !sharded || next == plan.buckets.len();
                    expect(all, "a bucket is not reduced before the update")?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the instructions compute all gradients of a bucket.
    fn complete(&self, plan: &UpdatePlan, bucket: usize, instrs: &[Instr]) -> bool {
        let written = |value: ValueId| {
            let location = self.p.value(value).location;
            let same = |output: ValueId| self.p.value(output).location == location;
            matches!(location, Location::Feed(_))
                || instrs.iter().filter_map(Instr::output).any(same)
        };
        plan.gradients[plan.buckets[bucket].clone()].iter().all(|g| {
            let operands = g.operands.into_iter().flat_map(|(x, dy)| [x, dy]);
            g.value.into_iter().chain(operands).all(written)
        })
    }
}
