//! Every parser of files against damaged input: an error or a value, never a panic, never memory out of
//! proportion to the file, never a long wait.
//!
//! The mutations are a fixed function of their number. `PHALANX_FUZZ=100000` tries as many per parser,
//! `PHALANX_FUZZ_ONLY=keras` only the parsers with that in their names.

mod models;
mod mutate;
mod targets;
mod tree;

use crate::meter;
use std::time::Duration;
use targets::{Target, targets};

/// Inputs per parser unless said otherwise.
const USUAL: u64 = 1000;
/// Bytes that a parser may hold at once beyond a multiple of its file.
const SPARE: usize = 64 << 20;
const TIMES: usize = 64;
/// Longer than any damaged file may take.
const PATIENCE: Duration = Duration::from_secs(10);

fn check(target: &Target, inputs: u64) -> u64 {
    let mut accepted = 0;
    for number in 0..inputs {
        let bytes = target.seeds[number as usize % target.seeds.len()].damaged(number);
        let before = meter::start();
        let began = meter::worked();
        accepted += u64::from((target.parse)(&bytes));
        let (peak, time) = (meter::peak(before), meter::worked() - began);
        let limit = SPARE + TIMES * bytes.len();
        assert!(peak < limit, "{} #{number}: {peak} bytes for {}", target.name, bytes.len());
        assert!(time < PATIENCE, "{} #{number}: {time:?}", target.name);
    }
    accepted
}

#[test]
fn damaged_files_give_errors_within_bounds() {
    let _alone = meter::alone();
    let asked = std::env::var("PHALANX_FUZZ").ok().and_then(|n| n.parse().ok());
    let inputs = asked.unwrap_or(USUAL);
    let only = std::env::var("PHALANX_FUZZ_ONLY").unwrap_or_default();
    for target in targets().into_iter().filter(|target| target.name.contains(&only)) {
        for seed in &target.seeds {
            assert!(
                (target.parse)(&seed.sound()),
                "{}: what the mutations start from is sound",
                target.name
            );
        }
        let accepted = check(&target, inputs);
        println!("{}: {inputs} inputs, {accepted} still sound", target.name);
        assert!(accepted < inputs, "{}: no mutation did any harm", target.name);
    }
}
