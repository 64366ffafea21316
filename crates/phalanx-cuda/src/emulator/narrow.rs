//! Conversion of 16-bit floats. Results are first rounded to 32 bits, like accumulators.

/// The value of a `bfloat16`.
pub(super) fn from_bf16(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// The nearest `bfloat16`, ties to even.
pub(super) fn to_bf16(v: f64) -> u16 {
    let bits = (v as f32).to_bits();
    match v.is_nan() {
        true => 0x7fff,
        false => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
    }
}

/// The value of a half.
pub(crate) fn from_half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = f64::from(bits & 1023);
    let size = match bits >> 10 & 31 {
        31 if fraction != 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => fraction * 2f64.powi(-24),
        exponent => (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    };
    sign * size
}

/// The nearest half, ties to even.
pub(crate) fn to_half(v: f64) -> u16 {
    let v = f64::from(v as f32);
    let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
    let size = v.abs();
    if v.is_nan() {
        return 0x7fff;
    }
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(-14);
    let steps = (size * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // An overflow of the fraction carries into the exponent.
    sign | if steps < 1024 { steps } else { (((exponent + 14) as u16) << 10) + steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_trip() {
        for bits in (0..=u16::MAX).filter(|b| !from_half(*b).is_nan()) {
            assert_eq!(to_half(from_half(bits)), bits, "{bits:#x}");
        }
        assert_eq!(
            (from_half(0x3c00), from_half(0x7bff), from_half(1)),
            (1.0, 65504.0, 2f64.powi(-24))
        );
        assert_eq!(
            (to_half(65519.9), to_half(65520.0), to_half(2f64.powi(-26))),
            (0x7bff, 0x7c00, 0)
        );
    }

    #[test]
    fn bf16_rounds_to_even() {
        assert_eq!(to_bf16(1.0 + 2f64.powi(-8)), 0x3f80);
        assert_eq!(to_bf16(1.0 + 3.0 * 2f64.powi(-8)), 0x3f82);
        assert_eq!(from_bf16(0x3f82), 1.015625);
    }
}
