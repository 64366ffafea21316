//! The output of `phalanx bench --profile`, as a table or JSON.

use phalanx::text::shown;
use phalanx::{Line, Profile};
use serde_json::{Value, json};
use std::io::{Result, Write};

/// Number of slowest instructions to list.
const TOP_INSTRUCTIONS: usize = 15;

/// Prints time, arithmetic and memory traffic by op, then the slowest instructions.
pub fn print(profile: &Profile, note: Option<&str>, out: &mut impl Write) -> Result<()> {
    let total = profile.seconds();
    writeln!(
        out,
        "\nprofile: {:.3} ms a step, the mean over {}",
        total * 1e3,
        averaged_over(profile.steps, note)
    )?;
    let head = ["op", "count", "ms", "share", "GFLOP/s", "GB/s"];
    let [op, count, ms, share, flops, bytes] = head;
    writeln!(out, "{op:<22} {count:>5} {ms:>9} {share:>6} {flops:>8} {bytes:>7}  layer")?;
    for line in profile.by_op() {
        row(&line, total, out)?;
    }
    writeln!(out, "the slowest instructions")?;
    for line in profile.top(TOP_INSTRUCTIONS) {
        row(&line, total, out)?;
    }
    Ok(())
}

/// Describes what the times are averaged over. `note` says how devices measure, unless workers do.
fn averaged_over(steps: u64, note: Option<&str>) -> String {
    let word = if steps == 1 { "step" } else { "steps" };
    match note {
        None => format!("workers and {steps} {word}"),
        Some(note) => format!("{steps} {word}, {note}"),
    }
}

fn row(l: &Line, total: f64, out: &mut impl Write) -> Result<()> {
    let (ms, share) = (l.seconds * 1e3, 100.0 * l.seconds / total.max(1e-12));
    let (flops, bytes) = (rate(l.cost.flops, l.seconds), rate(l.cost.bytes, l.seconds));
    let (Line { op, count, .. }, layer) = (l, shown(&l.layer));
    let note = if l.unmeasured { " (without sums over GPUs, which are not measured)" } else { "" };
    let numbers = format!("{ms:>9.4} {share:>5.1}% {flops:>8.1} {bytes:>7.1}");
    writeln!(out, "{op:<22} {count:>5} {numbers}  {layer}{note}")
}

/// Billions per second.
fn rate(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds * 1e-9 } else { 0.0 }
}

/// The profile as JSON.
pub fn json(profile: &Profile) -> Value {
    let lines = |lines: Vec<Line>| -> Vec<Value> { lines.iter().map(object).collect() };
    json!({
        "steps": profile.steps,
        "seconds": profile.seconds(),
        "ops": lines(profile.by_op()),
        "instructions": lines(profile.lines.clone()),
    })
}

fn object(l: &Line) -> Value {
    json!({
        "op": l.op,
        "layer": l.layer,
        "count": l.count,
        "seconds": l.seconds,
        "flops": l.cost.flops,
        "bytes": l.cost.bytes,
        "unmeasured": l.unmeasured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_is_singular_and_gpus_mention_separate_launches() {
        assert_eq!(averaged_over(1, None), "workers and 1 step");
        assert_eq!(averaged_over(2, None), "workers and 2 steps");
        assert_eq!(averaged_over(1, Some("each by itself")), "1 step, each by itself");
    }

    #[test]
    fn unmeasured_instructions_are_marked() {
        let line = |op: &str| Line { op: op.into(), count: 1, ..Line::default() };
        let lines = vec![line("dot"), line("all_reduce")];
        let profile = Profile { steps: 1, lines }.lacking(&[1]);
        let mut out = vec![];
        print(&profile, Some("each by itself"), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let marked = |op: &str| {
            let mut rows = text.lines().filter(|l| l.starts_with(op));
            rows.all(|row| row.contains("not measured"))
        };
        assert!(marked("all_reduce") && !marked("dot"), "{text}");
        let instructions = &json(&profile)["instructions"];
        assert_eq!([0, 1].map(|i| instructions[i]["unmeasured"] == true), [false, true]);
    }
}
