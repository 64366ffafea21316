//! The devices of this machine, and those that strategies use.

use super::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use phalanx_exec::Backend;
use std::sync::RwLock;

/// The visible devices by kind; `None` if not set.
static VISIBLE: RwLock<[Option<Vec<Device>>; DeviceKind::ALL.len()]> = RwLock::new([None, None]);

/// The maximum number of replicas and of worker threads: more than any machine has cores, few enough to be
/// started.
pub(crate) const MAX_THREADS: usize = 1024;

/// The devices of a kind on this machine. The CPU counts as one device. Further ones (`cpu:1`, …) are logical
/// devices that share its cores.
pub fn list_physical_devices(kind: DeviceKind) -> Vec<Device> {
    let found = kind.backend().ok().and_then(|backend| backend.devices().ok()).unwrap_or_default();
    found.iter().map(|device| Device::new(kind, device.index)).collect()
}

/// Sets which devices of a kind strategies use by default, for the rest of the process. An empty list hides the
/// kind.
///
/// ```
/// use phalanx::prelude::*;
///
/// // Up to two GPUs, else the CPU.
/// let gpus: Vec<_> = list_physical_devices(DeviceKind::Gpu).into_iter().take(2).collect();
/// set_visible_devices(&gpus, DeviceKind::Gpu)?;
/// assert_eq!(MirroredStrategy::new().num_replicas_in_sync(), gpus.len().max(1));
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// # Errors
/// A device of another kind, a duplicate, or a device that this machine does not have.
pub fn set_visible_devices(devices: &[Device], kind: DeviceKind) -> Result<()> {
    if let Some(other) = devices.iter().find(|d| d.kind != kind) {
        let expected = format!("devices of kind {kind}");
        return Err(Error::argument("set_visible_devices", "devices", expected, other));
    }
    if !devices.is_empty() {
        check_devices("set_visible_devices", devices, &*kind.backend()?)?;
    }
    VISIBLE.write().unwrap_or_else(|e| e.into_inner())[kind as usize] = Some(devices.to_vec());
    Ok(())
}

/// The devices that strategies use by default: all visible GPUs, else the visible CPU devices.
pub fn visible_devices() -> Vec<Device> {
    let configured = VISIBLE.read().unwrap_or_else(|e| e.into_inner());
    let visible =
        |kind| configured[kind as usize].clone().unwrap_or_else(|| list_physical_devices(kind));
    let found = DeviceKind::ALL.into_iter().map(visible).find(|devices| !devices.is_empty());
    found.unwrap_or_default()
}

/// Fails if there are more devices than can be started.
pub(super) fn check_count(owner: &str, devices: usize) -> Result<()> {
    if devices <= MAX_THREADS {
        return Ok(());
    }
    Err(Error::argument(owner, "devices", format!("{MAX_THREADS} or fewer"), devices))
}

/// Fails if devices cannot be combined, regardless of the machine.
pub(crate) fn check_compatible(owner: &str, devices: &[Device]) -> Result<()> {
    let fail = |expected: &str, received: String| {
        Err(Error::argument(owner, "devices", expected, received))
    };
    check_count(owner, devices.len())?;
    for (i, d) in devices.iter().enumerate() {
        if devices[..i].contains(d) {
            return fail("each device once", d.to_string());
        }
        let shared = |o: &Device| (o.kind, o.index) == (d.kind, d.index) && o.part.is_none();
        if d.part.is_some() && devices.iter().any(shared) {
            return fail("a GPU as a whole or in parts, not both", d.to_string());
        }
    }
    let names = || devices.iter().map(Device::to_string).collect::<Vec<_>>().join(", ");
    if devices.iter().any(|d| d.kind != devices[0].kind) {
        return fail("either CPU devices or GPUs", names());
    }
    let on_host = |d: &Device| d.kind.backend().is_ok_and(|backend| backend.traits().on_host);
    let ordered = devices.is_sorted_by_key(|d| (d.index, d.part));
    if !ordered && !devices.first().is_some_and(on_host) {
        return fail("GPUs in ascending order", names());
    }
    Ok(())
}

/// As [`check_compatible`], and fails if the backend does not have a device.
pub(super) fn check_devices(owner: &str, devices: &[Device], backend: &dyn Backend) -> Result<()> {
    check_compatible(owner, devices)?;
    if backend.traits().on_host {
        return Ok(());
    }
    let found = backend.devices().unwrap_or_default();
    match devices.iter().find(|d| !found.iter().any(|info| info.index == d.index)) {
        None => Ok(()),
        Some(d) => {
            let received = format!("{d} ({} GPUs found)", found.len());
            Err(Error::argument(owner, "devices", "a device of this machine", received))
        }
    }
}
