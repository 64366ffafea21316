//! `phalanx devices`: lists the devices of this machine and those that `train` uses by default.

use crate::gpu_libraries::{Libraries, driver_version};
use crate::report::format_bytes;
use crate::terminal;
use anyhow::Result;
use phalanx::prelude::DeviceKind;
use phalanx::strategy::{Device, DeviceInfo, visible_devices};
use phalanx::text::escape_json;
use serde_json::{Value, json};
use std::io::Write;

/// The devices of this machine.
struct Machine {
    cores: usize,
    isa: String,
    /// Bytes of memory, if known.
    memory: Option<usize>,
    /// The GPUs, or the reason why none can be used.
    gpus: Result<Vec<DeviceInfo>, String>,
    driver: Option<String>,
    /// The devices that `train` uses by default.
    used: Vec<String>,
    /// Libraries that `train` needs on them but cannot use.
    missing: Vec<String>,
}

/// Prints the devices of this machine.
pub fn run(json: bool) -> Result<()> {
    let machine = Machine::detect();
    let mut out = terminal::stdout();
    match json {
        true => writeln!(out, "{}", escape_json(&machine.json().to_string()))?,
        false => machine.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?,
    }
    Ok(())
}

/// Describes the processor: cores, instruction set and memory.
pub fn processor() -> String {
    Machine::detect().processor()
}

/// The GPUs of this machine, or the reason why none can be used.
pub fn gpus() -> Result<Vec<DeviceInfo>, String> {
    DeviceKind::Gpu.backend().map_err(|e| e.to_string())?.devices()
}

/// The libraries that training on these devices needs but cannot use.
fn missing_libraries(used: &[Device]) -> Vec<String> {
    match used.iter().filter(|d| d.kind == DeviceKind::Gpu).count() {
        0 => vec![],
        gpus => Libraries::find().unusable(gpus),
    }
}

impl Machine {
    fn detect() -> Machine {
        let used = visible_devices();
        Machine {
            cores: phalanx::cores().len(),
            isa: phalanx::Isa::detect().map_or_else(|e| e.to_string(), |isa| isa.to_string()),
            memory: Some(phalanx::physical_memory()).filter(|bytes| *bytes < usize::MAX),
            gpus: gpus(),
            driver: driver_version(),
            used: used.iter().map(ToString::to_string).collect(),
            missing: missing_libraries(&used),
        }
    }

    fn processor(&self) -> String {
        let word = if self.cores == 1 { "core" } else { "cores" };
        let memory =
            self.memory.map_or(String::new(), |bytes| format!(", {}", format_bytes(bytes)));
        format!("{} {word}, {}{memory}", self.cores, self.isa)
    }

    /// The reason why there is no GPU, if there is none.
    fn no_gpu(&self) -> Option<&str> {
        match &self.gpus {
            Ok(found) if found.is_empty() => Some("the driver finds none"),
            Ok(_) => None,
            Err(reason) => Some(reason),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("cpu:0  {}", self.processor())];
        let driver = self.driver.as_ref().map_or(String::new(), |d| format!(", driver {d}"));
        for DeviceInfo { index, name, memory } in self.gpus.iter().flatten() {
            let memory = format_bytes(memory.unwrap_or_default());
            lines.push(format!("gpu:{index}  {name}, {memory}{driver}"));
        }
        lines.extend(self.no_gpu().map(|reason| format!("no GPU: {reason}")));
        lines.push(format!("train uses {}", self.used.join(", ")));
        if !self.missing.is_empty() {
            let missing = self.missing.join(", ");
            lines.push(format!("train would fail there: {missing} cannot be used (see doctor)"));
        }
        lines
    }

    fn json(&self) -> Value {
        let gpu = |DeviceInfo { index, name, memory }: &DeviceInfo| {
            let device = format!("gpu:{index}");
            json!({"device": device, "name": name, "memory": memory, "driver": self.driver})
        };
        let cpu = json!({
            "device": "cpu:0", "cores": self.cores, "isa": self.isa, "memory": self.memory,
        });
        let gpus = self.gpus.iter().flatten().map(gpu);
        let devices: Vec<Value> = [cpu].into_iter().chain(gpus).collect();
        json!({
            "devices": devices, "train_uses": self.used, "missing": self.missing, "no_gpu": self.no_gpu(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gpus: Result<Vec<DeviceInfo>, String>) -> Machine {
        Machine {
            cores: 16,
            isa: "avx512".into(),
            memory: Some(128 << 30),
            gpus,
            driver: Some("580.82 (CUDA 13.0)".into()),
            used: vec!["gpu:0".into()],
            missing: vec![],
        }
    }

    #[test]
    fn every_device_has_a_line() {
        let gpu = DeviceInfo { index: 0, name: "NVIDIA H200".into(), memory: Some(139 << 30) };
        let found = machine(Ok(vec![gpu]));
        let expected = [
            "cpu:0  16 cores, avx512, 128.00 GiB",
            "gpu:0  NVIDIA H200, 139.00 GiB, driver 580.82 (CUDA 13.0)",
            "train uses gpu:0",
        ];
        assert_eq!(found.lines(), expected);
        let json = found.json();
        assert_eq!(json["devices"][1]["memory"], 139u64 << 30);
        assert_eq!((&json["train_uses"][0], &json["no_gpu"]), (&json!("gpu:0"), &Value::Null));
    }

    #[test]
    fn a_machine_without_a_gpu_says_why() {
        let lines = machine(Err("cuInit: no device".into())).lines();
        assert_eq!(lines[1], "no GPU: cuInit: no device");
        let none = machine(Ok(vec![]));
        assert_eq!(none.lines()[1], "no GPU: the driver finds none");
        assert_eq!(none.json()["no_gpu"], "the driver finds none");
    }
}
