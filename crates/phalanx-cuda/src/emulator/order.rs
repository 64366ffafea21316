//! Valid execution orders of work items.

use crate::work_item::WorkItem;

/// Pseudo-random numbers (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// For each work item, the items that it must wait for.
pub(super) fn dependencies(items: &[WorkItem]) -> Vec<Vec<usize>> {
    let earlier = |i: usize| (0..i).filter(move |j| items[i].follows(&items[*j])).collect();
    (0..items.len()).map(earlier).collect()
}

/// A random order in which every item runs after those that it must wait for.
pub(super) fn random_order(dependencies: &[Vec<usize>], random: &mut Random) -> Vec<usize> {
    let mut waits: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..waits.len()).filter(|i| waits[*i] == 0).collect();
    let mut order = vec![];
    while !ready.is_empty() {
        let pick = random.next() as usize % ready.len();
        let next = ready.swap_remove(pick);
        order.push(next);
        for (i, earlier) in dependencies.iter().enumerate().filter(|(_, e)| e.contains(&next)) {
            waits[i] -= earlier.iter().filter(|e| **e == next).count();
            if waits[i] == 0 {
                ready.push(i);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_keep_their_constraints() {
        let dependencies = [vec![], vec![0], vec![], vec![0, 2], vec![1, 3]];
        let mut random = Random::new(3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let order = random_order(&dependencies, &mut random);
            let place = |i: usize| order.iter().position(|o| *o == i).expect("all run");
            for (i, earlier) in dependencies.iter().enumerate() {
                assert!(earlier.iter().all(|e| place(*e) < place(i)), "{order:?}");
            }
            seen.insert(order);
        }
        // All linear extensions.
        assert_eq!(seen.len(), 5);
    }
}
