//! Batches of samples that the devices keep: several steps are started together where nobody looks at
//! what lies between them.

use crate::data::{IndexBatch, IndexBatches};
use crate::error::Result;

/// Batches of one size that are run together, and the one behind them.
#[derive(Default)]
pub(super) struct Group {
    batches: Vec<IndexBatch>,
    len: usize,
    /// A batch of another size, which begins the next group.
    left: Option<IndexBatch>,
}

impl Group {
    /// The batches.
    pub fn batches(&self) -> &[IndexBatch] {
        &self.batches[..self.len]
    }

    /// Samples in all.
    pub fn rows(&self) -> usize {
        self.batches().iter().map(|b| b.rows.len()).sum()
    }

    /// Takes the next batches, at most so many; `before` is the group in front of this one.
    pub fn fill(
        &mut self,
        before: &mut Group,
        picks: &mut dyn IndexBatches,
        most: usize,
    ) -> Result<()> {
        self.len = 0;
        if let Some(left) = before.left.take() {
            self.push(left);
        }
        while self.len < most {
            if self.batches.len() == self.len {
                self.batches.push(IndexBatch::default());
            }
            if !picks.next(&mut self.batches[self.len])? {
                break;
            }
            if self.len > 0 && self.batches[self.len].rows.len() != self.batches[0].rows.len() {
                self.left = Some(std::mem::take(&mut self.batches[self.len]));
                break;
            }
            self.len += 1;
        }
        Ok(())
    }

    fn push(&mut self, batch: IndexBatch) {
        match self.batches.first_mut() {
            Some(first) => *first = batch,
            None => self.batches.push(batch),
        }
        self.len = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Arrays, InMemory};
    use phalanx_graph::Tensor;

    /// Sizes of groups of up to `most` batches of four.
    fn groups(samples: usize, most: usize) -> Vec<Vec<usize>> {
        let data = Arrays::new(Tensor::zeros([samples, 1]), ()).unwrap().batch(4).unwrap();
        let mut picks = data.index_batches(0, 0, 0).unwrap();
        let (mut now, mut next, mut found) = (Group::default(), Group::default(), vec![]);
        now.fill(&mut next, &mut *picks, most).unwrap();
        let mut seen = vec![];
        while !now.batches().is_empty() {
            found.push(now.batches().iter().map(|b| b.rows.len()).collect::<Vec<_>>());
            seen.extend(now.batches().iter().flat_map(|b| b.rows.clone()));
            next.fill(&mut now, &mut *picks, most).unwrap();
            std::mem::swap(&mut now, &mut next);
        }
        assert!(seen.into_iter().eq(0..samples as u32));
        found
    }

    #[test]
    fn a_group_has_batches_of_one_size() {
        assert_eq!(groups(18, 3), [vec![4, 4, 4], vec![4], vec![2]]);
        assert_eq!(groups(14, 3), [vec![4, 4, 4], vec![2]]);
        assert_eq!(groups(10, 1), [[4], [4], [2]]);
        assert_eq!(groups(16, 8), [[4; 4]]);
        assert_eq!(groups(3, 8), [[3]]);
    }
}
