//! Detects the capabilities of this machine. It runs again if programs, libraries, devices or datasets may have
//! changed, so that a test runs as soon as the tool that it needs is installed.

use std::path::Path;
use std::process::{Command, Stdio};

/// The name of a tool or dataset, and a check for it.
type Capability = (&'static str, fn() -> bool);

const CAPABILITIES: [Capability; 8] = [
    ("gxx", gxx),
    ("strace", || runs("strace", &["-o", "/dev/null", "true"])),
    ("gpu", gpu),
    ("gpus", || gpu() && Path::new("/dev/nvidia1").exists()),
    ("gpu_or_gxx", || gpu() || gxx()),
    ("nccl", || prints("ldconfig", &["-p"], "libnccl.so.2")),
    ("mnist", || dataset("mnist")),
    ("cifar10", || dataset("cifar-10-batches-bin")),
];

fn main() {
    watch();
    let available: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, found)| found()).map(|(name, _)| *name).collect();
    let required = std::env::var("PHALANX_REQUIRE").unwrap_or_default();
    for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !CAPABILITIES.iter().any(|(known, _)| *known == name) {
            let known = CAPABILITIES.map(|(name, _)| name).join(", ");
            println!("cargo::error=PHALANX_REQUIRE: expected any of {known}, received {name}");
        } else if !available.contains(&name) {
            println!("cargo::error=PHALANX_REQUIRE: {name} is required and is not on this machine");
        }
    }
    let known = CAPABILITIES.map(|(name, _)| name).join(",");
    println!("cargo::rustc-env=PHALANX_KNOWN_CAPABILITIES={known}");
    println!("cargo::rustc-env=PHALANX_CAPABILITIES={}", available.join(","));
}

/// Tells Cargo what the capabilities depend on. A path that does not exist would make it run the script, and compile
/// all tests, before every build.
fn watch() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["PATH", "PHALANX_REQUIRE", "PHALANX_DATA"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let data = std::env::var("PHALANX_DATA").unwrap_or_default();
    // A package that brings a program changes the first two, one that brings a library the third.
    let places =
        ["/usr/bin", "/usr/local/bin", "/etc/ld.so.cache", "/dev/nvidiactl", data.as_str()];
    for place in places.iter().filter(|place| Path::new(place).exists()) {
        println!("cargo::rerun-if-changed={place}");
    }
}

fn gxx() -> bool {
    runs("g++", &["--version"])
}

fn gpu() -> bool {
    Path::new("/dev/nvidiactl").exists()
}

fn prints(program: &str, args: &[&str], text: &str) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(text))
}

fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    let quiet = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Whether `$PHALANX_DATA` has a directory with this name.
fn dataset(name: &str) -> bool {
    std::env::var_os("PHALANX_DATA").is_some_and(|root| Path::new(&root).join(name).is_dir())
}
