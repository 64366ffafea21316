//! The executor tests, in one binary to link only once. `cargo test --test suite gpu::` runs one
//! module.

mod emulated;
mod gpu;
mod joined;
mod narrow;
mod processes;

/// The seed of `PHALANX_EMULATOR_SEED`, which selects another order of work items, blocks and
/// threads.
fn seed() -> Option<u64> {
    let seed = std::env::var("PHALANX_EMULATOR_SEED").ok()?;
    Some(seed.parse().expect("PHALANX_EMULATOR_SEED is a number"))
}
