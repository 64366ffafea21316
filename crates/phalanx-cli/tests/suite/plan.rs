//! `phalanx plan`: memory plans and the largest batch that fits.

use super::succeeds;
use std::path::Path;

fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let args = [&["plan", "minigooglenet", "--json"], args].concat();
    serde_json::from_str(&succeeds(dir, &args)).unwrap()
}

#[test]
fn replicas_on_one_card_share_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let largest = |devices: &str, memory: &str| {
        let plan = json(dir.path(), &["--devices", devices, "--memory", memory]);
        plan["largest_batch"].as_u64().unwrap()
    };
    let shared = largest("gpu:0/0,gpu:0/1", "8GiB");
    assert_eq!(shared, largest("gpu:0,gpu:1", "4GiB"));
    assert!(shared < largest("gpu:0,gpu:1", "8GiB"));
    let plan = json(dir.path(), &["--devices", "gpu:0/0,gpu:0/1,gpu:1"]);
    assert_eq!((&plan["replicas"], &plan["replicas_per_device"]), (&3.into(), &2.into()));
    assert_eq!(plan["device_total"].as_u64().unwrap(), 2 * plan["total"].as_u64().unwrap());
}

#[test]
fn sixteen_bits_halve_the_activations_of_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |precision: &str| {
        let plan = json(dir.path(), &["--device", "gpu", "--precision", precision]);
        assert_eq!(plan["precision"], precision);
        plan["bytes"]["activations"].as_f64().unwrap()
    };
    let single = bytes("float32");
    for precision in ["mixed_bfloat16", "mixed_float16"] {
        assert!((0.4..0.7).contains(&(bytes(precision) / single)), "{precision}");
    }
}

#[test]
fn huge_batches_do_not_overflow() {
    let dir = tempfile::tempdir().unwrap();
    for device in ["cpu", "gpu"] {
        let plan = |batch: &str| {
            let args = ["plan", "mnist-mlp", "--batch-size", batch, "--device", device];
            let said = succeeds(dir.path(), &[&args[..], &["--memory", "16GiB"]].concat());
            let line = format!("a batch of {batch} does not fit in 16.00 GiB");
            assert!(said.lines().any(|l| l == line), "{said}");
        };
        plan("99999999999");
        plan("9999999999999");
        let mut last = 0;
        for batch in (20..44).step_by(4).map(|bits| (1u64 << bits).to_string()) {
            let args = ["plan", "mnist-mlp", "--batch-size", &batch, "--device", device, "--json"];
            let plan: serde_json::Value =
                serde_json::from_str(&succeeds(dir.path(), &args)).unwrap();
            let total = plan["total"].as_u64().unwrap();
            assert!(total > 8 * last, "{batch} on {device}: {total} after {last}");
            last = total;
        }
    }
}
