//! Numbers as bytes.

/// Number types whose bytes can be copied as they are.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i32 {}

pub(crate) fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
