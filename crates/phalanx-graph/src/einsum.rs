//! Einsum and matrix products of graph values, lowered to `Dot`, `MatMul` and elementwise ops.
//!
//! Subscripts count the samples as Keras does: they are the first axis of every operand with rows.

use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Contraction, Epilogue, Op};
use crate::types::Space;

/// The first label of the axes that an ellipsis stands for; larger than the code of any letter.
const ELLIPSIS: u8 = 128;

/// A value with a label for each axis of it (of a row, if it has rows).
#[derive(Clone, Debug)]
struct Labelled {
    node: NodeId,
    labels: Vec<u8>,
}

fn invalid(equation: &str, expected: impl Into<String>) -> GraphError {
    GraphError::mismatch("einsum subscripts", expected, equation)
}

/// The labels of one term; an ellipsis becomes its last `ellipsis` labels.
fn term(equation: &str, text: &str, ellipsis: usize) -> Result<Vec<u8>> {
    let mut labels = vec![];
    let (before, after) = text.split_once("...").map_or((text, None), |(a, b)| (a, Some(b)));
    let mut letters = |part: &str| -> Result<()> {
        for letter in part.bytes() {
            if !letter.is_ascii_alphabetic() {
                return Err(invalid(equation, "letters, ',', '->' and '...'"));
            }
            labels.push(letter);
        }
        Ok(())
    };
    letters(before)?;
    if let Some(after) = after {
        let start = before.len();
        letters(after)?;
        let axes = (0..ellipsis).rev().map(|i| ELLIPSIS + i as u8);
        labels.splice(start..start, axes);
    }
    let repeated = (1..labels.len()).any(|i| labels[..i].contains(&labels[i]));
    if repeated { Err(invalid(equation, "no label twice in one term")) } else { Ok(labels) }
}

/// The labels of an output that is not given: those that occur once, in order, after the ellipsis.
fn implicit_output(terms: &[Vec<u8>]) -> Vec<u8> {
    let mut all: Vec<u8> = terms.concat();
    all.sort_unstable();
    let once = |l: &u8| *l < ELLIPSIS && all.iter().filter(|k| *k == l).count() == 1;
    let mut ellipsis: Vec<u8> = all.iter().copied().filter(|l| *l >= ELLIPSIS).collect();
    ellipsis.dedup();
    ellipsis.reverse();
    ellipsis.extend(all.iter().copied().filter(once));
    ellipsis
}

impl Graph {
    /// `einsum(equation, operands)` as in Keras, for operands with or without rows. The ellipsis
    /// broadcasts; a label may not repeat within a term. The result has rows if an operand has.
    ///
    /// # Errors
    /// Invalid subscripts, sizes that do not match, or a sum over samples.
    pub fn einsum(&mut self, equation: &str, operands: &[NodeId]) -> Result<NodeId> {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = match text.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (&text[..], None),
        };
        let texts: Vec<&str> = inputs.split(',').collect();
        if texts.len() != operands.len() {
            return Err(invalid(equation, format!("{} terms", operands.len())));
        }
        let mut terms = vec![];
        let mut widest = 0;
        for (text, node) in texts.iter().zip(operands) {
            let rank = self.ty(*node).dims.len() + usize::from(self.ty(*node).is_rows());
            let named = text.replace("...", "").len();
            let hidden = rank.checked_sub(named).filter(|n| *n == 0 || text.contains("..."));
            let Some(hidden) = hidden else {
                let shape = self.ty(*node).shape_text();
                return Err(invalid(equation, format!("a label for each axis of {shape}")));
            };
            widest = widest.max(hidden);
            terms.push(term(equation, text, hidden)?);
        }
        let output = match output {
            Some(text) => term(equation, text, widest)?,
            None => implicit_output(&terms),
        };
        self.einsum_labels(equation, operands, terms, output)
    }

    /// Einsum of parsed terms.
    fn einsum_labels(
        &mut self,
        equation: &str,
        operands: &[NodeId],
        terms: Vec<Vec<u8>>,
        mut output: Vec<u8>,
    ) -> Result<NodeId> {
        if output.iter().any(|l| !terms.iter().any(|t| t.contains(l))) {
            return Err(invalid(equation, "output labels that occur in the inputs"));
        }
        let rows = operands.iter().position(|n| self.ty(*n).is_rows());
        let samples = rows.and_then(|i| terms[i].first().copied());
        let mut values = vec![];
        for (node, mut labels) in operands.iter().zip(terms) {
            let leads = samples.is_some() && labels.first().copied() == samples;
            match self.ty(*node).is_rows() {
                true if leads => drop(labels.remove(0)),
                false if samples.is_none_or(|s| !labels.contains(&s)) => {}
                _ => return Err(invalid(equation, "samples as the first axis of all rows")),
            }
            values.push(Labelled { node: *node, labels });
        }
        if samples.is_some() {
            if output.first().copied() != samples {
                return Err(invalid(equation, "samples as the first axis of the output"));
            }
            output.remove(0);
        }
        let sizes = self.label_sizes(equation, &values)?;
        for value in &mut values {
            self.drop_broadcast_axes(value, &sizes)?;
        }
        self.contract_all(values, &output, &sizes)
    }

    /// The size of each label. An axis of size one broadcasts.
    fn label_sizes(&self, equation: &str, values: &[Labelled]) -> Result<Vec<(u8, usize)>> {
        let mut sizes: Vec<(u8, usize)> = vec![];
        for value in values {
            for (label, size) in value.labels.iter().zip(&self.ty(value.node).dims) {
                match sizes.iter_mut().find(|(l, _)| l == label) {
                    Some((_, known)) if *known == 1 => *known = *size,
                    Some((_, known)) if *known == *size || *size == 1 => {}
                    Some((_, known)) => {
                        let what = format!("axes of einsum '{equation}'");
                        let expected = format!("sizes {known} or 1");
                        return Err(GraphError::mismatch(what, expected, size.to_string()));
                    }
                    None => sizes.push((*label, *size)),
                }
            }
        }
        Ok(sizes)
    }

    /// Removes axes of size one that other operands have with a larger size.
    fn drop_broadcast_axes(&mut self, value: &mut Labelled, sizes: &[(u8, usize)]) -> Result<()> {
        let dims = self.ty(value.node).dims.clone();
        let keep: Vec<bool> =
            value.labels.iter().zip(&dims).map(|(l, d)| sizes.contains(&(*l, *d))).collect();
        let mut kept = keep.iter().copied();
        value.labels.retain(|_| kept.next().unwrap_or(false));
        let dims: Vec<usize> =
            dims.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(d, _)| *d).collect();
        value.node = self.reshape(value.node, &dims)?;
        Ok(())
    }

    /// Contracts operands from left to right. A label is summed as soon as nothing needs it any more.
    fn contract_all(
        &mut self,
        values: Vec<Labelled>,
        output: &[u8],
        sizes: &[(u8, usize)],
    ) -> Result<NodeId> {
        let mut values = values.into_iter();
        let mut total = values.next().ok_or_else(|| invalid("", "at least one operand"))?;
        let rest: Vec<Labelled> = values.collect();
        for (i, next) in rest.iter().enumerate() {
            let later = &rest[i + 1..];
            let needed = |l: &u8| output.contains(l) || later.iter().any(|v| v.labels.contains(l));
            let mut next = next.clone();
            let theirs = next.labels.clone();
            self.sum_unless(&mut total, |l| needed(l) || theirs.contains(l))?;
            self.sum_unless(&mut next, |l| needed(l) || total.labels.contains(l))?;
            let result: Vec<u8> = if i + 1 == rest.len() {
                let present = |l: &&u8| total.labels.contains(l) || next.labels.contains(l);
                output.iter().filter(present).copied().collect()
            } else {
                let new = next.labels.iter().filter(|l| !total.labels.contains(l));
                total.labels.iter().chain(new).filter(|l| needed(l)).copied().collect()
            };
            total = self.contract(&total, &next, result)?;
        }
        self.sum_unless(&mut total, |l| output.contains(l))?;
        let spread = self.spread(&total, output)?;
        let dims: Vec<usize> = output
            .iter()
            .map(|l| sizes.iter().find(|(k, _)| k == l).map_or(1, |(_, size)| *size))
            .collect();
        match self.ty(spread).dims == dims {
            true => Ok(spread),
            false => self.push(Op::Broadcast { dims }, &[spread]),
        }
    }

    /// Sums over the axes whose label is not kept.
    fn sum_unless(&mut self, value: &mut Labelled, keep: impl Fn(&u8) -> bool) -> Result<()> {
        let axes: Vec<usize> =
            (0..value.labels.len()).filter(|i| !keep(&value.labels[*i])).collect();
        if axes.is_empty() {
            return Ok(());
        }
        let sum = self.sum_axes(value.node, &axes)?;
        value.labels.retain(|l| keep(l));
        let dims: Vec<usize> = (0..self.ty(sum).dims.len())
            .filter(|i| !axes.contains(i))
            .map(|i| self.ty(sum).dims[i])
            .collect();
        value.node = self.reshape(sum, &dims)?;
        Ok(())
    }

    /// The value with the axes of `labels` in their order, those it lacks with size one.
    fn spread(&mut self, value: &Labelled, labels: &[u8]) -> Result<NodeId> {
        let perm: Vec<usize> =
            labels.iter().filter_map(|l| value.labels.iter().position(|k| k == l)).collect();
        let mut node = value.node;
        if !perm.iter().copied().eq(0..perm.len()) {
            node = self.push(Op::Transpose { perm }, &[node])?;
        }
        let mut own = self.ty(node).dims.clone().into_iter();
        let has = |l: &u8| value.labels.contains(l);
        let dims: Vec<usize> =
            labels.iter().map(|l| if has(l) { own.next().unwrap_or(1) } else { 1 }).collect();
        self.reshape(node, &dims)
    }

    /// The product of two values, in which every label is free, shared or contracted.
    fn contract(&mut self, l: &Labelled, r: &Labelled, labels: Vec<u8>) -> Result<Labelled> {
        let contracts = l.labels.iter().any(|x| !labels.contains(x));
        let node = if !contracts {
            let (a, b) = (self.spread(l, &labels)?, self.spread(r, &labels)?);
            self.mul(a, b)?
        } else if let Some(node) = self.dense(l, r, &labels)? {
            node
        } else if let Some(node) = self.dense(r, l, &labels)? {
            node
        } else {
            let c = Contraction::new(&l.labels, &r.labels, &labels, false);
            self.push(Op::MatMul(c), &[l.node, r.node])?
        };
        Ok(Labelled { node, labels })
    }

    /// The product as a `Dot` if `w` is a weight whose leading axes are the trailing axes of rows `x`:
    /// only shapes change.
    fn dense(&mut self, x: &Labelled, w: &Labelled, result: &[u8]) -> Result<Option<NodeId>> {
        let depth = w.labels.iter().filter(|l| x.labels.contains(l)).count();
        let (free, summed) = x.labels.split_at(x.labels.len() - depth);
        let fits = self.ty(x.node).is_rows()
            && self.is_weight(w.node)
            && w.labels[..depth] == *summed
            && [free, &w.labels[depth..]].concat() == result;
        if !fits {
            return Ok(None);
        }
        let (from, kernel) = (self.ty(x.node).dims.clone(), self.ty(w.node).dims.clone());
        let (lead, k) = (&from[..free.len()], kernel[..depth].iter().product::<usize>());
        let n = kernel[depth..].iter().product::<usize>();
        let input = self.reshape(x.node, &[lead, &[k]].concat())?;
        let matrix = self.reshape(w.node, &[k, n])?;
        let y = self.push(Op::Dot(Epilogue::default()), &[input, matrix])?;
        self.reshape(y, &[lead, &kernel[depth..]].concat()).map(Some)
    }

    /// Whether a node is a parameter, possibly of another shape.
    fn is_weight(&self, id: NodeId) -> bool {
        let node = self.node(id);
        match node.op {
            Op::Param { .. } => node.ty.space == Space::Mirrored,
            Op::Reshape { .. } => self.is_weight(node.inputs[0]),
            _ => false,
        }
    }

    /// `matmul(l, r)` as in Keras, whose shapes count the samples: leading axes broadcast, and a vector
    /// has no axis in the result.
    ///
    /// # Errors
    /// Sizes that do not match, or a sum over samples.
    pub fn matmul(&mut self, l: NodeId, r: NodeId) -> Result<NodeId> {
        let rank = |x: NodeId| self.ty(x).dims.len() + usize::from(self.ty(x).is_rows());
        let lead = |n: usize| (0..n).rev().map(|i| ELLIPSIS + i as u8);
        let (a, b) = (rank(l), rank(r));
        if a == 0 || b == 0 {
            let received = format!("{} and {}", self.ty(l).shape_text(), self.ty(r).shape_text());
            return Err(GraphError::mismatch("inputs of matmul", "at least one axis", received));
        }
        let (outer, inner) = (a.saturating_sub(2), b.saturating_sub(2));
        let mut left: Vec<u8> = lead(outer).collect();
        let mut right: Vec<u8> = lead(inner).collect();
        let mut output: Vec<u8> = lead(outer.max(inner)).collect();
        if a > 1 {
            left.push(b'm');
            output.push(b'm');
        }
        left.push(b'k');
        right.push(b'k');
        if b > 1 {
            right.push(b'n');
            output.push(b'n');
        }
        self.einsum_labels("matmul", &[l, r], vec![left, right], output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Type;

    fn rows(g: &mut Graph, dims: &[usize]) -> NodeId {
        let id = g.add_feed("x", Type::rows(dims));
        g.feed(id)
    }

    fn weight(g: &mut Graph, dims: &[usize]) -> NodeId {
        let id = g.add_param("w", dims, true);
        g.param(id)
    }

    fn names(g: &Graph) -> Vec<&str> {
        g.nodes().iter().map(|n| n.op.name()).filter(|n| !["feed", "param"].contains(n)).collect()
    }

    #[test]
    fn projections_of_attention_are_dots() {
        let mut g = Graph::new();
        let (x, w) = (rows(&mut g, &[5, 6]), weight(&mut g, &[6, 2, 3]));
        let q = g.einsum("abc,cde->abde", &[x, w]).expect("fits");
        assert_eq!(*g.ty(q), Type::rows([5, 2, 3]));
        let out = weight(&mut g, &[2, 3, 6]);
        let y = g.einsum("abcd,cde->abe", &[q, out]).expect("fits");
        assert_eq!(*g.ty(y), Type::rows([5, 6]));
        let want = ["reshape", "dot", "reshape", "reshape", "reshape", "dot"];
        assert_eq!(names(&g), want);
    }

    #[test]
    fn scores_of_attention_are_one_product() {
        let mut g = Graph::new();
        let (q, k) = (rows(&mut g, &[5, 2, 3]), rows(&mut g, &[7, 2, 3]));
        let y = g.einsum("aecd,abcd->acbe", &[k, q]).expect("fits");
        assert_eq!(*g.ty(y), Type::rows([2, 5, 7]));
        assert_eq!(names(&g), ["matmul"]);
    }

    #[test]
    fn shapes_follow_numpy() {
        for (equation, shapes, want) in [
            ("bij,jk", vec![(true, vec![2, 3]), (false, vec![3, 4])], vec![2, 4]),
            (
                "...ij,...jk->...ik",
                vec![(true, vec![5, 2, 3]), (true, vec![1, 3, 4])],
                vec![5, 2, 4],
            ),
            ("...d,d->...", vec![(true, vec![2, 3]), (false, vec![3])], vec![2]),
            ("bij->bji", vec![(true, vec![2, 3])], vec![3, 2]),
            ("bij->b", vec![(true, vec![2, 3])], vec![]),
            (
                "bi,bj,jk->bki",
                vec![(true, vec![2]), (true, vec![3]), (false, vec![3, 4])],
                vec![4, 2],
            ),
        ] {
            let mut g = Graph::new();
            let nodes: Vec<NodeId> = shapes
                .iter()
                .map(|(r, d)| if *r { rows(&mut g, d) } else { weight(&mut g, d) })
                .collect();
            let y = g.einsum(equation, &nodes).expect(equation);
            assert_eq!(*g.ty(y), Type::rows(want), "{equation}");
        }
    }

    #[test]
    fn invalid_subscripts_are_refused() {
        let mut g = Graph::new();
        let (x, w) = (rows(&mut g, &[3, 3]), weight(&mut g, &[3, 4]));
        for equation in [
            "",
            "bij",
            "bij,jk,kl->bil",
            "bii,ik->bk",
            "bij,jk->ij",
            "bij,jk->bix",
            "bij,bk->bik",
            "bij,j->bi",
            "b1j,jk->bik",
            "ibj,jk->bik",
            "bij,jk->ibk",
            "bij,ik->bjk->b",
        ] {
            let answer = g.einsum(equation, &[x, w]);
            assert!(answer.is_err(), "{equation}: {answer:?}");
        }
        let narrow = weight(&mut g, &[2, 4]);
        let error = g.einsum("bij,jk->bik", &[x, narrow]).expect_err("sizes differ");
        assert!(error.to_string().contains("expected sizes 3 or 1, received 2"), "{error}");
    }

    #[test]
    fn matmul_broadcasts_and_keeps_samples_apart() {
        let mut g = Graph::new();
        let (x, y) = (rows(&mut g, &[4, 2, 3]), rows(&mut g, &[1, 3, 5]));
        let product = g.matmul(x, y).expect("fits");
        assert_eq!(*g.ty(product), Type::rows([4, 2, 5]));
        let (v, w) = (rows(&mut g, &[3]), weight(&mut g, &[3, 5]));
        let product = g.matmul(v, w).expect("fits");
        assert_eq!(*g.ty(product), Type::rows([5]));
        let (a, b) = (weight(&mut g, &[2, 3]), weight(&mut g, &[3]));
        let product = g.matmul(a, b).expect("fits");
        assert_eq!(*g.ty(product), Type::mirrored([2]));
        let scalar = weight(&mut g, &[]);
        for (l, r) in [(v, v), (w, v), (scalar, w), (w, w)] {
            assert!(g.matmul(l, r).is_err());
        }
    }
}
