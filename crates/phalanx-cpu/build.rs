//! Passes the optimisation level to the crate.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=PHALANX_CPU_OPT_LEVEL={level}");
}
