//! `phalanx bench`: measurements and output.

use super::{command, phalanx, succeeds, text};
use std::path::Path;

fn json(dir: &Path, model: &str, args: &[&str]) -> serde_json::Value {
    let args = [&["bench", model, "--steps", "1", "--json"], args].concat();
    serde_json::from_str(&succeeds(dir, &args)).unwrap()
}

#[test]
fn one_profiled_step_is_singular() {
    let dir = tempfile::tempdir().unwrap();
    let said = succeeds(dir.path(), &["bench", "mnist-cnn", "--steps", "1", "--profile"]);
    let head = said.lines().find(|line| line.starts_with("profile: ")).expect(&said);
    assert!(head.ends_with("the mean over workers and 1 step"), "{head}");
    assert!(said.lines().any(|line| line.starts_with("conv_grad_kernel")), "{said}");
    assert!(said.contains("the slowest instructions"), "{said}");
}

#[test]
fn input_is_measured_in_addition_to_steps() {
    let dir = tempfile::tempdir().unwrap();
    let line = json(dir.path(), "mnist-cnn", &["--data", "glyphs", "--augment", "shift"]);
    assert_eq!(line["input"]["data"], "glyphs");
    for key in ["loader_images_per_second", "fed_images_per_second"] {
        assert!(line["input"][key].as_f64().unwrap() > 0.0, "{key}: {line}");
    }
}

#[test]
fn planned_memory_covers_all_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let size = ["--threads", "1", "--batch-size", "32"];
    let plan = [&["plan", "mnist-mlp", "--devices", "cpu:0,cpu:1", "--json"], &size[..]].concat();
    let plan: serde_json::Value = serde_json::from_str(&succeeds(dir.path(), &plan)).unwrap();
    let line = json(dir.path(), "mnist-mlp", &[&["--replicas", "2"], &size[..]].concat());
    let mib = plan["device_total"].as_f64().unwrap() / f64::from(1 << 20);
    assert!((line["planned_mib"].as_f64().unwrap() - mib).abs() < 0.1, "{plan} {line}");
    assert!(line["planned_mib"].as_f64() < line["peak_rss_mib"].as_f64(), "{line}");
}

#[test]
fn sixteen_bits_on_the_cpu_give_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(json(dir.path(), "mnist-mlp", &[])["precision"], "float32");
    let args = ["bench", "mnist-mlp", "--steps", "1", "--json", "--precision", "mixed_bfloat16"];
    let out = phalanx(dir.path(), &args);
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(line["precision"], "float32");
    let warning = "warning: --precision mixed_bfloat16: CPU devices store 32-bit floats\n";
    assert_eq!(text(&out.stderr), warning);
}

#[test]
fn an_unavailable_instruction_set_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (set, code) in [("foo", 1), ("AVX-512", 1), ("portable", 0), ("", 0)] {
        let args = ["bench", "mnist-mlp", "--steps", "1"];
        let out = command(dir.path(), &args).env("PHALANX_ISA", set).output().unwrap();
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{set}: {error}");
        assert_eq!(error.lines().count(), code as usize, "{error}");
        let expected = format!("portable), received '{set}'\n");
        assert!(code == 0 || error.ends_with(&expected), "{error}");
    }
}
