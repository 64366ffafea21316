//! Aligned, zeroed buffers that workers address by raw pointer.

use phalanx_graph::exec::ExecError;
use std::sync::{Arc, OnceLock};

/// Alignment of buffers: a cache line.
const LINE: usize = 64;
/// What the processor takes for equal when it compares addresses in a hurry.
const PAGE: usize = 4096;
/// Size and alignment of a huge page.
const HUGE: usize = 2 << 20;
/// What small buffers share: addresses, which cost nothing before they are used.
const SHARED: usize = if cfg!(miri) { 2 * HUGE } else { 16 * HUGE };

/// Bytes of memory that this machine has, or that its container may use; `usize::MAX` where neither says.
pub fn physical_memory() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // A word where there is no limit.
        let limit = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(usize::MAX);
        installed_memory().unwrap_or(usize::MAX).min(limit)
    })
}

#[cfg(all(unix, not(miri)))]
fn installed_memory() -> Option<usize> {
    // SAFETY: both names are known to every POSIX system; unknown ones answer -1.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    Some(usize::try_from(pages).ok()?.saturating_mul(usize::try_from(size).ok()?))
}

#[cfg(any(not(unix), miri))]
fn installed_memory() -> Option<usize> {
    None
}

/// What a file of the system says; nothing where there is none.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Bytes that this process can have in all, those that it holds included, before others must give way;
/// [`physical_memory`] where the system does not say.
pub fn available_memory() -> usize {
    let free = field(&read("/proc/meminfo"), "MemAvailable:");
    let known = free.zip(held_memory()).map(|(free, held)| free.saturating_add(held));
    known.unwrap_or(usize::MAX).min(physical_memory())
}

/// Bytes that this process can have besides those that it holds, before others must give way.
pub fn free_memory() -> usize {
    available_memory().saturating_sub(held_memory().unwrap_or(0))
}

/// Bytes that this process holds, where the system says.
fn held_memory() -> Option<usize> {
    field(&read("/proc/self/status"), "VmRSS:")
}

/// The bytes behind a name, in a table of Linux that counts in KiB.
fn field(table: &str, name: &str) -> Option<usize> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Where an executor's buffers come from: small ones share huge pages, which costs fewer entries of
/// the address cache and no luck with the pages' places in the data caches.
#[derive(Debug, Default)]
pub struct Heap {
    /// The block that small buffers are cut from, and its bytes in use.
    open: Option<(Arc<Block>, usize)>,
    /// Buffers handed out so far.
    count: usize,
}

impl Heap {
    /// `bytes` zeroed bytes.
    pub fn buffer(&mut self, bytes: usize, purpose: &str) -> Result<Buffer, ExecError> {
        let fail = || ExecError::Memory { wanted: bytes, purpose: purpose.into(), available: None };
        // A system that overcommits hands out more than it has, and kills who uses it.
        if bytes > physical_memory() {
            return Err(fail());
        }
        let size = bytes.max(LINE).next_multiple_of(LINE);
        let skew = self.skew();
        if size >= HUGE {
            let block = Arc::new(Block::new(size + skew).ok_or_else(fail)?);
            return Ok(Buffer::inside(&block, skew, size));
        }
        let (block, used) = match self.open.take() {
            Some((block, used)) if used + skew + size <= block.bytes => (block, used + skew),
            _ => (Arc::new(Block::new(SHARED).ok_or_else(fail)?), skew),
        };
        let buffer = Buffer::inside(&block, used, size);
        self.open = Some((block, (used + size).next_multiple_of(PAGE)));
        Ok(buffer)
    }

    /// Bytes to skip in front of a buffer: were all to start at the same place of a page, equal
    /// elements of weights, gradients and slots would fight for the same sets of the caches.
    fn skew(&mut self) -> usize {
        self.count += 1;
        // Odd steps visit every line of a page.
        self.count * 13 * LINE % PAGE
    }
}

/// Zeroed memory of the system, in huge pages where there are any.
#[derive(Debug)]
struct Block {
    ptr: *mut u8,
    bytes: usize,
    /// What was really taken, so that `ptr` could be aligned.
    taken: (*mut u8, usize),
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Block {
    fn new(bytes: usize) -> Option<Block> {
        let bytes = bytes.checked_next_multiple_of(HUGE)?;
        let size = bytes.checked_add(HUGE)?;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the system's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base: *mut u8 = base.cast();
        // SAFETY: at most one huge page further, which the mapping has to spare.
        let ptr = unsafe { base.add(base.align_offset(HUGE)) };
        if std::env::var("PHALANX_HUGE").map_or(true, |v| v != "0") {
            // SAFETY: inside the mapping. The advice changes no content and comes before the first
            // use; a kernel that refuses it costs only speed.
            unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Some(Block { ptr, bytes, taken: (base, size) })
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: mapped with this size and not yet given back.
        unsafe { libc::munmap(self.taken.0.cast(), self.taken.1) };
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
impl Block {
    fn new(bytes: usize) -> Option<Block> {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).ok()?;
        // SAFETY: callers ask for more than nothing.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        (!ptr.is_null()).then_some(Block { ptr, bytes, taken: (ptr, bytes) })
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
impl Drop for Block {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.taken.1, PAGE);
        // SAFETY: allocated with this layout and not yet freed.
        unsafe { std::alloc::dealloc(self.taken.0, layout.expect("a layout that was used")) };
    }
}

// SAFETY: a block is plain memory; who may touch which part when is the program's affair, which
// orders conflicting accesses by barriers.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// A fixed piece of memory, zeroed at first.
#[derive(Debug)]
pub struct Buffer {
    ptr: *mut u8,
    bytes: usize,
    /// Keeps the memory.
    _block: Option<Arc<Block>>,
}

// SAFETY: as a block.
unsafe impl Send for Buffer {}
// SAFETY: as a block.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of nothing.
    pub fn empty() -> Buffer {
        Buffer { ptr: std::ptr::without_provenance_mut(LINE), bytes: 0, _block: None }
    }

    fn inside(block: &Arc<Block>, start: usize, bytes: usize) -> Buffer {
        assert!(start + bytes <= block.bytes, "a buffer inside its block");
        // SAFETY: inside the block, as was just checked.
        let ptr = unsafe { block.ptr.add(start) };
        Buffer { ptr, bytes, _block: Some(block.clone()) }
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
        self.bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_apart() {
        let mut heap = Heap::default();
        let sizes = [0, 1, 100, 4096, 70_000, HUGE - 64, HUGE, 3 * HUGE + 5, 64, 1 << 20];
        let mut buffers: Vec<Buffer> =
            sizes.iter().map(|n| heap.buffer(*n, "a test").unwrap()).collect();
        for (i, (b, size)) in buffers.iter_mut().zip(sizes).enumerate() {
            assert!(b.bytes() >= size && (b.ptr() as usize).is_multiple_of(LINE));
            let floats = b.as_floats_mut();
            assert!(floats.iter().all(|v| *v == 0.0), "buffer {i}");
            floats.fill(i as f32 + 1.0);
        }
        drop(heap);
        for (i, b) in buffers.iter().enumerate() {
            assert!(b.as_floats().iter().all(|v| *v == i as f32 + 1.0), "buffer {i}");
        }
    }

    #[test]
    fn what_is_available_is_read_from_the_system() {
        let table = "MemTotal:       24 kB\nMemAvailable:    7 kB\nBroken: x kB\n";
        assert_eq!(field(table, "MemAvailable:"), Some(7168));
        assert_eq!((field(table, "Broken:"), field(table, "VmRSS:")), (None, None));
        assert!((1..=physical_memory()).contains(&available_memory()));
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        let error = Heap::default().buffer(usize::MAX - 70, "a test").unwrap_err();
        assert!(matches!(error, ExecError::Memory { .. }), "{error}");
    }
}
