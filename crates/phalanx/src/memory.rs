//! Checked allocation for data whose size is determined by a user or a file.

use crate::error::{Error, Result};
use crate::model::gibibytes;
use phalanx_cpu::free_memory;
use std::path::Path;

/// Allocations up to this size in bytes are not checked against the free memory.
const UNCHECKED_BYTES: usize = 64 << 20;

/// Whether this process can allocate `bytes` more. The check is necessary because a system that
/// overcommits grants too much, and later kills the process that uses it.
pub(crate) fn is_free(bytes: usize) -> bool {
    bytes <= UNCHECKED_BYTES || bytes <= free_memory()
}

/// An empty vector with capacity for `len` values; `None` if memory is insufficient.
pub(crate) fn reserve<T>(len: usize) -> Option<Vec<T>> {
    len.checked_mul(size_of::<T>()).filter(|bytes| is_free(*bytes))?;
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    Some(values)
}

/// Appends values to a vector; false if memory is insufficient.
pub(crate) fn extend<T: Copy>(values: &mut Vec<T>, more: &[T]) -> bool {
    if values.capacity() - values.len() < more.len() {
        // The vector doubles, or grows to the required size.
        let grown = (2 * values.capacity()).max(values.len() + more.len());
        let fits = is_free(grown.saturating_mul(size_of::<T>()));
        if !fits || values.try_reserve(more.len()).is_err() {
            return false;
        }
    }
    values.extend_from_slice(more);
    true
}

/// Fails if the content of a file, `bytes` bytes, does not fit into memory.
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
