//! Builder methods for common nodes. A broadcast that has to copy becomes an explicit node.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::elementwise::{access, broadcast_dims};
use crate::ops::{Binary, Op, ReduceKind, Unary};
use crate::types::{DType, Type};

impl Graph {
    /// `u(x)`.
    pub fn unary(&mut self, u: Unary, x: NodeId) -> Result<NodeId> {
        let x = self.as_float(x)?;
        self.push(Op::Unary(u), &[x])
    }

    /// Integers as floats, which are exact up to 2²⁴; other values as they are.
    fn as_float(&mut self, x: NodeId) -> Result<NodeId> {
        if self.ty(x).dtype == DType::I32 { self.cast(x, DType::F32) } else { Ok(x) }
    }

    /// `b(l, r)` with NumPy broadcasting. An operand that cannot be read in place is broadcast first.
    pub fn binary(&mut self, b: Binary, l: NodeId, r: NodeId) -> Result<NodeId> {
        let (l, r) = (self.as_float(l)?, self.as_float(r)?);
        let (l, r) = self.broadcast_operands(l, r)?;
        self.push(Op::Binary(b), &[l, r])
    }

    fn broadcast_operands(&mut self, l: NodeId, r: NodeId) -> Result<(NodeId, NodeId)> {
        let (tl, tr) = (self.ty(l), self.ty(r));
        // If the shapes are incompatible, the op's own shape rule reports a better error.
        let Some(dims) = broadcast_dims(&tl.dims, &tr.dims) else { return Ok((l, r)) };
        let rows = if tl.is_rows() { tl.space } else { tr.space };
        let out = Type::new(DType::F32, rows, dims);
        Ok((self.broadcast_if_needed(&out, l)?, self.broadcast_if_needed(&out, r)?))
    }

    fn broadcast_if_needed(&mut self, out: &Type, x: NodeId) -> Result<NodeId> {
        match access(out, self.ty(x)) {
            Some(_) => Ok(x),
            None => self.push(Op::Broadcast { dims: out.dims.clone() }, &[x]),
        }
    }

    /// `l + r`
    pub fn add(&mut self, l: NodeId, r: NodeId) -> Result<NodeId> {
        self.binary(Binary::Add, l, r)
    }

    /// `l - r`
    pub fn sub(&mut self, l: NodeId, r: NodeId) -> Result<NodeId> {
        self.binary(Binary::Sub, l, r)
    }

    /// `l * r`
    pub fn mul(&mut self, l: NodeId, r: NodeId) -> Result<NodeId> {
        self.binary(Binary::Mul, l, r)
    }

    /// `l / r`
    pub fn div(&mut self, l: NodeId, r: NodeId) -> Result<NodeId> {
        self.binary(Binary::Div, l, r)
    }

    /// `-x`
    pub fn neg(&mut self, x: NodeId) -> Result<NodeId> {
        self.unary(Unary::Neg, x)
    }

    /// `max(x, 0)`
    pub fn relu(&mut self, x: NodeId) -> Result<NodeId> {
        self.unary(Unary::Relu, x)
    }

    /// `x * c` for a constant `c`.
    pub fn scale(&mut self, x: NodeId, c: f64) -> Result<NodeId> {
        let c = self.scalar(c);
        self.mul(x, c)
    }

    /// `x + c` for a constant `c`.
    pub fn offset(&mut self, x: NodeId, c: f64) -> Result<NodeId> {
        let c = self.scalar(c);
        self.add(x, c)
    }

    /// `x` clamped to `lo..=hi`.
    pub fn clamp(&mut self, x: NodeId, lo: f64, hi: f64) -> Result<NodeId> {
        let (lo, hi) = (self.scalar(lo), self.scalar(hi));
        let x = self.binary(Binary::Max, x, lo)?;
        self.binary(Binary::Min, x, hi)
    }

    /// `if c != 0 { a } else { b }`
    pub fn select(&mut self, c: NodeId, a: NodeId, b: NodeId) -> Result<NodeId> {
        let (c, a, b) = (self.as_float(c)?, self.as_float(a)?, self.as_float(b)?);
        let mut dims = self.ty(c).dims.clone();
        for x in [a, b] {
            match broadcast_dims(&dims, &self.ty(x).dims) {
                Some(d) => dims = d,
                None => return self.push(Op::Select, &[c, a, b]),
            }
        }
        let rows = [c, a, b].into_iter().find(|x| self.ty(*x).is_rows()).unwrap_or(c);
        let out = Type::new(DType::F32, self.ty(rows).space, dims);
        let c = self.broadcast_if_needed(&out, c)?;
        let a = self.broadcast_if_needed(&out, a)?;
        let b = self.broadcast_if_needed(&out, b)?;
        self.push(Op::Select, &[c, a, b])
    }

    /// Sum over `axes`, which remain with size one.
    pub fn sum_axes(&mut self, x: NodeId, axes: &[usize]) -> Result<NodeId> {
        let axes: Vec<usize> = axes.to_vec();
        self.push(Op::Reduce { kind: ReduceKind::Sum, axes }, &[x])
    }

    /// Mean over `axes`, which remain with size one.
    pub fn mean_axes(&mut self, x: NodeId, axes: &[usize]) -> Result<NodeId> {
        let s = self.sum_axes(x, axes)?;
        let n = self.ty(x).len().max(1) / self.ty(s).len().max(1);
        self.scale(s, 1.0 / n as f64)
    }

    /// Mean over all elements of a row: one number per sample.
    pub fn mean_row(&mut self, x: NodeId) -> Result<NodeId> {
        let axes: Vec<usize> = (0..self.ty(x).dims.len()).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        let m = self.mean_axes(x, &axes)?;
        self.reshape(m, &[])
    }

    /// Reshapes `x` to `dims`; a no-op if it already has them.
    pub fn reshape(&mut self, x: NodeId, dims: &[usize]) -> Result<NodeId> {
        if self.ty(x).dims == dims {
            return Ok(x);
        }
        self.push(Op::Reshape { dims: dims.to_vec() }, &[x])
    }

    /// Casts `x` to `dtype`; a no-op if it already has it.
    pub fn cast(&mut self, x: NodeId, dtype: DType) -> Result<NodeId> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.push(Op::Cast { dtype }, &[x]) }
    }

    /// `x` as a constant for derivatives.
    pub fn stop_gradient(&mut self, x: NodeId) -> Result<NodeId> {
        let dtype = self.ty(x).dtype;
        self.push(Op::Cast { dtype }, &[x])
    }

    /// Sums `x` down to the shape of `target`, which was broadcast to the shape of `x`. A sum over rows
    /// remains partial.
    pub fn reduce_to(&mut self, x: NodeId, target: &Type) -> Result<NodeId> {
        let ty = self.ty(x).clone();
        let lead = ty.dims.len().saturating_sub(target.dims.len());
        let axes: Vec<usize> = (0..ty.dims.len())
            .filter(|i| ty.dims[*i] != 1 && (*i < lead || target.dims[*i - lead] == 1))
            .collect();
        let mut x = x;
        if !axes.is_empty() {
            x = self.sum_axes(x, &axes)?;
        }
        if ty.is_rows() && !target.is_rows() {
            x = self.push(Op::SumRows, &[x])?;
        }
        self.reshape(x, &target.dims)
    }
}
