//! Numbers too small for a normal float count as zero while a worker computes.
//!
//! A processor takes many times as long for them, and training makes them: the average gradient of a
//! weight that moves no more shrinks until it stays for ever at the smallest numbers there are. The
//! frameworks around us drop them too.

/// While this lives, the calling thread neither makes nor reads denormal numbers.
pub(crate) struct Flush {
    #[cfg(target_arch = "x86_64")]
    before: u32,
}

/// Results that would be denormal are zero, operands that are denormal count as zero.
#[cfg(target_arch = "x86_64")]
const TO_ZERO: u32 = 0x8040;

#[cfg(target_arch = "x86_64")]
impl Flush {
    pub fn begin() -> Flush {
        let before = control();
        set_control(before | TO_ZERO);
        Flush { before }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Flush {
    fn drop(&mut self) {
        set_control(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
fn control() -> u32 {
    let mut word = 0;
    // SAFETY: every x86-64 processor has this register; the instruction stores its four bytes.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) };
    word
}

#[cfg(target_arch = "x86_64")]
fn set_control(word: u32) {
    // SAFETY: the word is what the register held, but for the two bits of `TO_ZERO`: rounding and
    // exceptions stay as the language expects them, and kernels ask nothing of denormal numbers.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
}

#[cfg(not(target_arch = "x86_64"))]
impl Flush {
    pub fn begin() -> Flush {
        Flush {}
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn denormals_count_as_zero_meanwhile() {
        let tiny = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let doubled = || black_box(1e-44_f32) * black_box(2.0);
        assert!(tiny() > 0.0 && doubled() > 0.0);
        let flush = Flush::begin();
        assert_eq!((tiny(), doubled()), (0.0, 0.0));
        drop(flush);
        assert!(tiny() > 0.0 && doubled() > 0.0);
    }
}
