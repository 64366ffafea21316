//! All file parsers on damaged input: an error or a value, but no panic, no memory out of proportion to
//! the file, no long delay.
//!
//! The mutations are a fixed function of their number. `PHALANX_FUZZ=100000` tries that many per parser;
//! `PHALANX_FUZZ_ONLY=keras` selects the parsers whose names contain the text.

mod models;
mod mutate;
mod targets;
mod tree;

use crate::meter;
use std::time::Duration;
use targets::{Target, targets};

/// Default number of inputs per parser.
const DEFAULT_INPUTS: u64 = 1000;
/// Maximum allocation of a parser: this many bytes plus a multiple of its file.
const MAX_BASE_BYTES: usize = 64 << 20;
const MAX_FILE_MULTIPLE: usize = 64;
/// Maximum time for a damaged file.
const MAX_TIME: Duration = Duration::from_secs(10);

fn check(target: &Target, inputs: u64) -> u64 {
    let mut accepted = 0;
    for number in 0..inputs {
        let bytes = target.seeds[number as usize % target.seeds.len()].damaged(number);
        let before = meter::start();
        let began = meter::cpu_time();
        accepted += u64::from((target.parse)(&bytes));
        let (peak, time) = (meter::peak(before), meter::cpu_time() - began);
        let limit = MAX_BASE_BYTES + MAX_FILE_MULTIPLE * bytes.len();
        assert!(peak < limit, "{} #{number}: {peak} bytes for {}", target.name, bytes.len());
        assert!(time < MAX_TIME, "{} #{number}: {time:?}", target.name);
    }
    accepted
}

#[test]
fn damaged_files_give_errors_within_bounds() {
    let _exclusive = meter::exclusive();
    let asked = std::env::var("PHALANX_FUZZ").ok().and_then(|n| n.parse().ok());
    let inputs = asked.unwrap_or(DEFAULT_INPUTS);
    let only = std::env::var("PHALANX_FUZZ_ONLY").unwrap_or_default();
    for target in targets().into_iter().filter(|target| target.name.contains(&only)) {
        for seed in &target.seeds {
            assert!(
                (target.parse)(&seed.valid()),
                "{}: what the mutations start from is sound",
                target.name
            );
        }
        let accepted = check(&target, inputs);
        println!("{}: {inputs} inputs, {accepted} still sound", target.name);
        assert!(accepted < inputs, "{}: no mutation did any harm", target.name);
    }
}
