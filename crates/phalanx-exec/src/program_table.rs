//! The programs of an executor.

use crate::executor::ProgramId;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// The loaded programs of an executor. The id of an unloaded program is not used again.
#[derive(Debug)]
pub struct ProgramTable<T> {
    next: usize,
    programs: BTreeMap<usize, T>,
}

impl<T> Default for ProgramTable<T> {
    fn default() -> ProgramTable<T> {
        ProgramTable { next: 0, programs: BTreeMap::new() }
    }
}

impl<T> ProgramTable<T> {
    /// Adds a program.
    pub fn insert(&mut self, program: T) -> ProgramId {
        let id = ProgramId(self.next);
        self.next += 1;
        self.programs.insert(id.0, program);
        id
    }

    /// Removes a program, if it is loaded.
    pub fn remove(&mut self, id: ProgramId) -> Option<T> {
        self.programs.remove(&id.0)
    }

    /// Returns a program, if it is loaded.
    pub fn get(&self, id: ProgramId) -> Option<&T> {
        self.programs.get(&id.0)
    }

    /// Returns the programs in the order in which they were loaded.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.programs.values()
    }

    /// Like [`iter`](Self::iter), with mutable references.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.programs.values_mut()
    }
}

/// # Panics
/// If the program is not loaded.
impl<T> Index<ProgramId> for ProgramTable<T> {
    type Output = T;

    fn index(&self, id: ProgramId) -> &T {
        &self.programs[&id.0]
    }
}

/// # Panics
/// If the program is not loaded.
impl<T> IndexMut<ProgramId> for ProgramTable<T> {
    fn index_mut(&mut self, id: ProgramId) -> &mut T {
        self.programs.get_mut(&id.0).expect("the program is loaded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_used_again() {
        let mut table = ProgramTable::default();
        let (first, second) = (table.insert('a'), table.insert('b'));
        assert_eq!(table.remove(second), Some('b'));
        assert_eq!((table.remove(second), table.get(second)), (None, None));
        let third = table.insert('c');
        assert!(third != second && table[first] == 'a' && table[third] == 'c');
        assert!(table.iter().eq(&['a', 'c']));
    }
}
