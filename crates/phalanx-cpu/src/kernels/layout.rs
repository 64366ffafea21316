//! layout
/// A value to read whose pixels (all but the last axis, flattened) start `ld` floats apart.
#[derive(Clone, Copy, Debug)]
pub struct Src {
    /// The first pixel.
    pub ptr: *const f32,
    /// Floats from one pixel to the next.
    pub ld: usize,
}

/// A value to write whose pixels start `ld` floats apart; what lies between them stays untouched.
#[derive(Clone, Copy, Debug)]
pub struct Dst {
    /// The first pixel.
    pub ptr: *mut f32,
    /// Floats from one pixel to the next.
    pub ld: usize,
}
