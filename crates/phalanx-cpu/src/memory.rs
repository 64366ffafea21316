//! Aligned, zeroed buffers that workers address by raw pointer.

use phalanx_graph::exec::ExecError;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Alignment of small buffers: a cache line.
const LINE: usize = 64;
/// Alignment of large buffers, so that the kernel can back them with huge pages.
const HUGE: usize = 2 << 20;

/// Bytes of memory that this machine has; `usize::MAX` where it does not say.
pub fn physical_memory() -> usize {
    #[cfg(unix)]
    {
        // SAFETY: both names are known to every POSIX system; unknown ones answer -1.
        let (pages, size) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        if let (Ok(pages), Ok(size)) = (usize::try_from(pages), usize::try_from(size)) {
            return pages.saturating_mul(size);
        }
    }
    usize::MAX
}

/// A fixed block of memory, zeroed at first.
#[derive(Debug)]
pub struct Buffer {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: a buffer is plain memory; who may touch which part when is the program's affair, which
// orders conflicting accesses by barriers.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` zeroed bytes.
    pub fn new(bytes: usize, purpose: &str) -> Result<Buffer, ExecError> {
        let fail = || ExecError::Memory { wanted: bytes, purpose: purpose.into() };
        // A system that overcommits hands out more than it has, and kills who uses it.
        if bytes > physical_memory() {
            return Err(fail());
        }
        let align = if bytes >= HUGE { HUGE } else { LINE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).map_err(|_| fail())?;
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(fail());
        }
        #[cfg(target_os = "linux")]
        if align == HUGE {
            // SAFETY: the range was just allocated; the advice changes no content, and a kernel
            // that refuses it costs only speed.
            unsafe { libc::madvise(ptr.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Buffer { ptr, layout })
    }

    /// `n` zeroed floats.
    pub fn floats(n: usize, purpose: &str) -> Result<Buffer, ExecError> {
        let bytes = n
            .checked_mul(4)
            .ok_or_else(|| ExecError::Memory { wanted: usize::MAX, purpose: purpose.into() })?;
        Buffer::new(bytes, purpose)
    }

    /// First byte.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// First float.
    pub fn f32(&self) -> *mut f32 {
        self.ptr.cast()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// The floats, while nobody else writes.
    pub fn as_floats(&self) -> &[f32] {
        // SAFETY: aligned, initialised (zeroed) memory of this size; the executor calls this only
        // between steps.
        unsafe { std::slice::from_raw_parts(self.f32(), self.bytes() / 4) }
    }

    /// The floats, to change while nobody else looks.
    pub fn as_floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.f32(), self.bytes() / 4) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and not yet freed.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}
