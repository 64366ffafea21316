//! Memory for data whose size a user or a file chooses.

use crate::error::{Error, Result};
use crate::model::gibibytes;
use phalanx_cpu::free_memory;
use std::path::Path;

/// The system is not asked about fewer bytes than these.
const SMALL: usize = 64 << 20;

/// Whether this process can have so many bytes more. A system that overcommits hands out more than it has, and
/// ends the process that uses it.
pub(crate) fn is_free(bytes: usize) -> bool {
    bytes <= SMALL || bytes <= free_memory()
}

/// An empty vector with room for `len` values; `None` where there is no memory for them.
pub(crate) fn reserve<T>(len: usize) -> Option<Vec<T>> {
    len.checked_mul(size_of::<T>()).filter(|bytes| is_free(*bytes))?;
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    Some(values)
}

/// Adds values to a vector; false where there is no memory for them.
pub(crate) fn extend<T: Copy>(values: &mut Vec<T>, more: &[T]) -> bool {
    if values.capacity() - values.len() < more.len() {
        // It grows to twice its size, or to what is wanted.
        let grown = (2 * values.capacity()).max(values.len() + more.len());
        let fits = is_free(grown.saturating_mul(size_of::<T>()));
        if !fits || values.try_reserve(more.len()).is_err() {
            return false;
        }
    }
    values.extend_from_slice(more);
    true
}

/// Fails where a file's content of so many bytes does not fit into memory.
pub(crate) fn check_file(path: &Path, bytes: u64) -> Result<()> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match is_free(bytes) {
        true => Ok(()),
        false => {
            let expected =
                format!("at most the {} of memory that are free", gibibytes(free_memory()));
            Err(Error::file(path, expected, gibibytes(bytes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_machine_has_is_not_reserved() {
        assert!(reserve::<u8>(1 << 20).is_some());
        assert!(reserve::<f32>(usize::MAX).is_none());
        assert!(reserve::<u8>(phalanx_cpu::physical_memory().saturating_add(1)).is_none());
        let mut values = vec![1, 2];
        assert!(extend(&mut values, &[3]) && values == [1, 2, 3]);
        let error = check_file(Path::new("a.h5"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("a.h5: expected at most the "), "{error}");
    }
}
