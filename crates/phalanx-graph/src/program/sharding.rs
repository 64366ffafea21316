//! Sharding of the training state: the part of every parameter that a memory domain owns.
//!
//! A *memory domain* is what shares one copy of the state: a process with all of its CPU devices, or a GPU.
//! Mirrored training does not use domains: every device holds and updates everything.

use super::split_range;
use crate::graph::{ParamId, ParamSpec};
use std::ops::Range;

/// Elements that are not divided among domains. Squared norms are summed block by block, so they have the same bits
/// however the state is sharded.
pub const BLOCK: usize = 4096;

/// What the memory domains divide among themselves, instead of holding a copy each. Every level includes those before
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardLevel {
    /// Nothing: every device has a copy.
    #[default]
    None,
    /// The optimizer's slots and accumulated gradients.
    Optimizer,
    /// Reduced gradients; partial ones live until their bucket is reduced.
    Gradients,
    /// Weights, which are gathered before they are used.
    Weights,
}

impl ShardLevel {
    /// All levels, the least sharded first.
    pub const ALL: [ShardLevel; 4] =
        [ShardLevel::None, ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Weights];

    /// Its name in flags and files.
    pub fn name(self) -> &'static str {
        match self {
            ShardLevel::None => "none",
            ShardLevel::Optimizer => "optimizer",
            ShardLevel::Gradients => "gradients",
            ShardLevel::Weights => "weights",
        }
    }

    /// The level of this name, if any.
    pub fn from_name(name: &str) -> Option<ShardLevel> {
        ShardLevel::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// How the training state is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// What is divided.
    pub level: ShardLevel,
    /// Number of memory domains; at least one.
    pub domains: usize,
}

impl Sharding {
    /// Every device has a copy of everything.
    pub const NONE: Sharding = Sharding { level: ShardLevel::None, domains: 1 };

    /// Divides the state up to a level among `domains` memory domains.
    pub const fn new(level: ShardLevel, domains: usize) -> Sharding {
        match level {
            ShardLevel::None => Sharding::NONE,
            _ => Sharding { level, domains },
        }
    }

    /// Whether anything is divided.
    pub fn is_on(self) -> bool {
        self.level != ShardLevel::None
    }

    /// Whether a domain must gather weights before it reads them.
    pub fn gathers_weights(self) -> bool {
        self.level == ShardLevel::Weights && self.domains > 1
    }

    /// Whether each domain holds a part of a parameter between steps. Weights that are trained are divided, and others
    /// that are large.
    pub fn divides_weight(self, param: &ParamSpec) -> bool {
        self.gathers_weights() && (param.trainable || param.len() > BLOCK)
    }

    /// The elements of a parameter that a domain holds between steps.
    pub fn held(self, id: ParamId, param: &ParamSpec, domain: usize) -> Range<usize> {
        match self.divides_weight(param) {
            true => self.owned(id, param.len(), domain),
            false => 0..param.len(),
        }
    }

    /// The elements of a parameter of `len` elements that a domain updates: whole blocks. The domain with the first
    /// blocks differs by parameter, so that small parameters are spread over the domains.
    pub fn owned(self, param: ParamId, len: usize, domain: usize) -> Range<usize> {
        if !self.is_on() {
            return 0..len;
        }
        let turn = (domain + self.domains - param.index() % self.domains) % self.domains;
        let blocks = split_range(0..len.div_ceil(BLOCK), self.domains, turn);
        (blocks.start * BLOCK).min(len)..(blocks.end * BLOCK).min(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_owner() {
        for domains in 1..10 {
            let sharding = Sharding { level: ShardLevel::Optimizer, domains };
            for (param, len) in
                [0, 1, 10, BLOCK - 1, BLOCK, BLOCK + 1, 9 * BLOCK + 7].into_iter().enumerate()
            {
                let param = ParamId(param as u32);
                let mut parts: Vec<_> =
                    (0..domains).map(|d| sharding.owned(param, len, d)).collect();
                parts.sort_by_key(|part| (part.start, part.end));
                let mut next = 0;
                for part in parts.into_iter().filter(|part| !part.is_empty()) {
                    assert!(part.start == next && part.start.is_multiple_of(BLOCK));
                    next = part.end;
                }
                assert_eq!(next, len, "{domains} domains");
            }
        }
    }

    #[test]
    fn small_parameters_are_spread_over_the_domains() {
        let sharding = Sharding { level: ShardLevel::Gradients, domains: 4 };
        let owner = |param| (0..4).find(|d| !sharding.owned(ParamId(param), 10, *d).is_empty());
        assert_eq!((0..5).map(|p| owner(p).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn mirrored_state_is_owned_by_every_device() {
        assert_eq!(Sharding::NONE.owned(ParamId(3), 10_000, 0), 0..10_000);
    }

    #[test]
    fn levels_have_names() {
        for level in ShardLevel::ALL {
            assert_eq!(ShardLevel::from_name(level.name()), Some(level));
        }
        assert_eq!(ShardLevel::from_name("everything"), None);
    }
}
