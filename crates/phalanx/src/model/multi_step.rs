//! Grouping of batches from resident data, so that one launch runs several steps if no callback observes the
//! steps in between.

use crate::data::{IndexBatch, IndexBatches};
use crate::error::Result;

/// Batches of equal size that one launch runs, and the batch after them if its size differs.
#[derive(Default)]
pub(super) struct StepGroup {
    batches: Vec<IndexBatch>,
    len: usize,
    /// A batch of a different size, which starts the next group.
    carried: Option<IndexBatch>,
}

impl StepGroup {
    /// Returns the batches.
    pub fn batches(&self) -> &[IndexBatch] {
        &self.batches[..self.len]
    }

    /// Returns the total number of samples.
    pub fn rows(&self) -> usize {
        self.batches().iter().map(|b| b.rows.len()).sum()
    }

    /// Fills the group with up to `max_steps` next batches, starting with the one `previous` carried over.
    pub fn fill(
        &mut self,
        previous: &mut StepGroup,
        index_batches: &mut dyn IndexBatches,
        max_steps: usize,
    ) -> Result<()> {
        self.len = 0;
        if let Some(batch) = previous.carried.take() {
            self.restart_with(batch);
        }
        while self.len < max_steps {
            if self.batches.len() == self.len {
                self.batches.push(IndexBatch::default());
            }
            if !index_batches.next(&mut self.batches[self.len])? {
                break;
            }
            if self.len > 0 && self.batches[self.len].rows.len() != self.batches[0].rows.len() {
                self.carried = Some(std::mem::take(&mut self.batches[self.len]));
                break;
            }
            self.len += 1;
        }
        Ok(())
    }

    /// Makes `batch` the only one.
    fn restart_with(&mut self, batch: IndexBatch) {
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

    /// Returns the batch sizes of each group of up to `max_steps` batches of four.
    fn groups(samples: usize, max_steps: usize) -> Vec<Vec<usize>> {
        let data = Arrays::new(Tensor::zeros([samples, 1]), ()).unwrap().batch(4).unwrap();
        let mut index_batches = data.index_batches(0, 0, 0).unwrap();
        let (mut current, mut next, mut found) =
            (StepGroup::default(), StepGroup::default(), vec![]);
        current.fill(&mut next, &mut *index_batches, max_steps).unwrap();
        let mut seen = vec![];
        while !current.batches().is_empty() {
            found.push(current.batches().iter().map(|b| b.rows.len()).collect::<Vec<_>>());
            seen.extend(current.batches().iter().flat_map(|b| b.rows.clone()));
            next.fill(&mut current, &mut *index_batches, max_steps).unwrap();
            std::mem::swap(&mut current, &mut next);
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
