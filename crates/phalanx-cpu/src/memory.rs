//! Aligned, zeroed buffers that workers address by raw pointer.

use phalanx_exec::ExecError;
use std::sync::{Arc, OnceLock};

/// Alignment of buffers: a cache line, in bytes.
const CACHE_LINE: usize = 64;
/// Bytes of a page. Processors first compare addresses modulo this size, so equal offsets cause false conflicts.
const PAGE: usize = 4096;
/// Size and alignment of a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// Size of a block that small buffers share, in bytes. It is address space only: pages cost nothing before use.
const SHARED_BLOCK: usize = if cfg!(miri) { 2 * HUGE_PAGE } else { 16 * HUGE_PAGE };

/// Bytes of memory that the machine has or, if less, that its container may use; `usize::MAX` if unknown.
pub fn physical_memory() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // Without a limit the file contains a word instead of a number.
        let limit = read_or_empty("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(usize::MAX);
        installed_memory().unwrap_or(usize::MAX).min(limit)
    })
}

#[cfg(all(unix, not(miri)))]
fn installed_memory() -> Option<usize> {
    // SAFETY: every POSIX system knows both names; unknown ones return -1.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    Some(usize::try_from(pages).ok()?.saturating_mul(usize::try_from(size).ok()?))
}

#[cfg(any(not(unix), miri))]
fn installed_memory() -> Option<usize> {
    None
}

/// The content of a file; empty if it cannot be read.
fn read_or_empty(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Bytes that this process can use in total, including those that it already uses, without taking memory from
/// other processes; [`physical_memory`] if the system does not say.
pub fn available_memory() -> usize {
    let free = kib_field(&read_or_empty("/proc/meminfo"), "MemAvailable:");
    let known = free.zip(resident_memory()).map(|(free, resident)| free.saturating_add(resident));
    known.unwrap_or(usize::MAX).min(physical_memory())
}

/// Bytes that this process can use in addition to those that it already uses.
pub fn free_memory() -> usize {
    available_memory().saturating_sub(resident_memory().unwrap_or(0))
}

/// The resident set size of this process in bytes, if known.
fn resident_memory() -> Option<usize> {
    kib_field(&read_or_empty("/proc/self/status"), "VmRSS:")
}

/// The value of field `name` in bytes. `table` is a file of Linux's `/proc`, which counts in KiB.
fn kib_field(table: &str, name: &str) -> Option<usize> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The allocator of an executor's buffers. Small buffers share huge pages: they take fewer TLB entries, and
/// their placement in the data caches does not vary from run to run.
#[derive(Debug, Default)]
pub struct Heap {
    /// The block that small buffers are taken from, and its bytes in use.
    open: Option<(Arc<Block>, usize)>,
    /// Number of buffers allocated so far.
    count: usize,
}

impl Heap {
    /// Allocates `bytes` zeroed bytes.
    pub fn buffer(&mut self, bytes: usize, purpose: &str) -> Result<Buffer, ExecError> {
        let fail = || ExecError::Memory { wanted: bytes, purpose: purpose.into(), available: None };
        // A system that overcommits would grant this and kill the process on use.
        if bytes > physical_memory() {
            return Err(fail());
        }
        let size = bytes.max(CACHE_LINE).next_multiple_of(CACHE_LINE);
        let skew = self.skew();
        if size >= HUGE_PAGE {
            let block = Arc::new(Block::new(size + skew).ok_or_else(fail)?);
            return Ok(Buffer::inside(&block, skew, size));
        }
        let (block, used) = match self.open.take() {
            Some((block, used)) if used + skew + size <= block.bytes => (block, used + skew),
            _ => (Arc::new(Block::new(SHARED_BLOCK).ok_or_else(fail)?), skew),
        };
        let buffer = Buffer::inside(&block, used, size);
        self.open = Some((block, (used + size).next_multiple_of(PAGE)));
        Ok(buffer)
    }

    /// Bytes to skip before a buffer. If all buffers started at the same offset in a page, corresponding
    /// elements of weights, gradients and slots would compete for the same cache sets.
    fn skew(&mut self) -> usize {
        self.count += 1;
        // An odd step visits every cache line of a page.
        self.count * 13 * CACHE_LINE % PAGE
    }
}

/// Zeroed memory from the system, in huge pages if available.
#[derive(Debug)]
struct Block {
    ptr: *mut u8,
    bytes: usize,
    /// The whole allocation, larger than `bytes` so that `ptr` can be aligned: address and size.
    allocation: (*mut u8, usize),
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Block {
    fn new(bytes: usize) -> Option<Block> {
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        let size = bytes.checked_add(HUGE_PAGE)?;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base: *mut u8 = base.cast();
        // SAFETY: at most one huge page further, and the mapping is one huge page longer than `bytes`.
        let ptr = unsafe { base.add(base.align_offset(HUGE_PAGE)) };
        if std::env::var("PHALANX_HUGE").map_or(true, |v| v != "0") {
            // SAFETY: inside the mapping. The advice changes no content and precedes the first use. If the
            // kernel refuses it, only speed suffers.
            unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Some(Block { ptr, bytes, allocation: (base, size) })
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: mapped with this size and not yet unmapped.
        unsafe { libc::munmap(self.allocation.0.cast(), self.allocation.1) };
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
impl Block {
    fn new(bytes: usize) -> Option<Block> {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).ok()?;
        // SAFETY: callers never pass zero bytes.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        (!ptr.is_null()).then_some(Block { ptr, bytes, allocation: (ptr, bytes) })
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
impl Drop for Block {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.allocation.1, PAGE);
        // SAFETY: allocated with this layout and not yet freed.
        unsafe {
            std::alloc::dealloc(
                self.allocation.0,
                layout.expect("the layout was valid for the allocation"),
            )
        };
    }
}

// SAFETY: a block is plain memory. The program orders conflicting accesses by barriers.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// A piece of memory of fixed size, initially zeroed.
#[derive(Debug)]
pub struct Buffer {
    ptr: *mut u8,
    bytes: usize,
    /// Keeps the memory alive.
    _block: Option<Arc<Block>>,
}

// SAFETY: as for `Block`.
unsafe impl Send for Buffer {}
// SAFETY: as for `Block`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of zero bytes.
    pub fn empty() -> Buffer {
        Buffer { ptr: std::ptr::without_provenance_mut(CACHE_LINE), bytes: 0, _block: None }
    }

    fn inside(block: &Arc<Block>, start: usize, bytes: usize) -> Buffer {
        assert!(start + bytes <= block.bytes, "a buffer inside its block");
        // SAFETY: inside the block, as just checked.
        let ptr = unsafe { block.ptr.add(start) };
        Buffer { ptr, bytes, _block: Some(block.clone()) }
    }

    /// Pointer to the first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Pointer to the first float.
    pub fn f32(&self) -> *mut f32 {
        self.ptr.cast()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The floats.
    ///
    /// # Safety
    /// No worker may write them meanwhile: the executor reads between steps.
    pub unsafe fn as_floats(&self) -> &[f32] {
        // SAFETY: aligned, initialised (zeroed) memory of this size, which nobody writes.
        unsafe { std::slice::from_raw_parts(self.f32(), self.bytes() / 4) }
    }

    /// The floats, writable. No worker may access them meanwhile.
    pub fn as_floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.f32(), self.bytes() / 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_disjoint() {
        let mut heap = Heap::default();
        let sizes =
            [0, 1, 100, 4096, 70_000, HUGE_PAGE - 64, HUGE_PAGE, 3 * HUGE_PAGE + 5, 64, 1 << 20];
        let mut buffers: Vec<Buffer> =
            sizes.iter().map(|n| heap.buffer(*n, "a test").unwrap()).collect();
        for (i, (b, size)) in buffers.iter_mut().zip(sizes).enumerate() {
            assert!(b.bytes() >= size && (b.ptr() as usize).is_multiple_of(CACHE_LINE));
            let floats = b.as_floats_mut();
            assert!(floats.iter().all(|v| *v == 0.0), "buffer {i}");
            floats.fill(i as f32 + 1.0);
        }
        drop(heap);
        for (i, b) in buffers.iter().enumerate() {
            // SAFETY: there are no workers.
            assert!(unsafe { b.as_floats() }.iter().all(|v| *v == i as f32 + 1.0), "buffer {i}");
        }
    }

    #[test]
    fn available_memory_is_read_from_the_system() {
        let table = "MemTotal:       24 kB\nMemAvailable:    7 kB\nBroken: x kB\n";
        assert_eq!(kib_field(table, "MemAvailable:"), Some(7168));
        assert_eq!((kib_field(table, "Broken:"), kib_field(table, "VmRSS:")), (None, None));
        assert!((1..=physical_memory()).contains(&available_memory()));
    }

    #[test]
    fn an_impossible_size_is_refused() {
        let error = Heap::default().buffer(usize::MAX - 70, "a test").unwrap_err();
        assert!(matches!(error, ExecError::Memory { .. }), "{error}");
    }
}
