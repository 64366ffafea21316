//! The tests of the executor, in one program: it links once. `cargo test --test suite gpu::` runs one module.

mod emulated;
mod gpu;
mod joined;
mod narrow;
mod processes;

/// Another order of work items, blocks and threads, if `PHALANX_EMULATOR_SEED` asks for one.
fn seed() -> Option<u64> {
    let seed = std::env::var("PHALANX_EMULATOR_SEED").ok()?;
    Some(seed.parse().expect("PHALANX_EMULATOR_SEED is a number"))
}
