//! Denormal floats are flushed to zero while a worker computes.
//!
//! Processors handle denormals many times slower than normal floats, and training produces them: the
//! moving average of a gradient that has become zero decays until it stays at the smallest denormal.
//! Other deep-learning frameworks flush denormals too.

/// Flushes denormals to zero on the calling thread until dropped.
pub(crate) struct FlushToZeroGuard {
    #[cfg(target_arch = "x86_64")]
    saved: u32,
}

/// The MXCSR bits flush-to-zero (denormal results become zero) and denormals-are-zero (denormal operands
/// count as zero).
#[cfg(target_arch = "x86_64")]
const FTZ_DAZ: u32 = 0x8040;

#[cfg(target_arch = "x86_64")]
impl FlushToZeroGuard {
    pub fn new() -> FlushToZeroGuard {
        let saved = read_mxcsr();
        write_mxcsr(saved | FTZ_DAZ);
        FlushToZeroGuard { saved }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for FlushToZeroGuard {
    fn drop(&mut self) {
        write_mxcsr(self.saved);
    }
}

#[cfg(target_arch = "x86_64")]
fn read_mxcsr() -> u32 {
    let mut word = 0;
    // SAFETY: every x86-64 processor has this register; the instruction stores its four bytes.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) };
    word
}

#[cfg(target_arch = "x86_64")]
fn write_mxcsr(word: u32) {
    // SAFETY: the word differs from the register's previous content only in the two bits of `FTZ_DAZ`.
    // Rounding mode and exception masks stay as Rust expects them, and no kernel relies on denormals.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
}

#[cfg(not(target_arch = "x86_64"))]
impl FlushToZeroGuard {
    pub fn new() -> FlushToZeroGuard {
        FlushToZeroGuard {}
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn denormals_are_zero_while_the_guard_lives() {
        let tiny = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let doubled = || black_box(1e-44_f32) * black_box(2.0);
        assert!(tiny() > 0.0 && doubled() > 0.0);
        let guard = FlushToZeroGuard::new();
        assert_eq!((tiny(), doubled()), (0.0, 0.0));
        drop(guard);
        assert!(tiny() > 0.0 && doubled() > 0.0);
    }
}
