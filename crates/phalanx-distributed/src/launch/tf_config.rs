//! The list of workers in TensorFlow's `TF_CONFIG`.

use super::{Launch, Launcher, invalid};
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashSet;

/// Host and port.
type Address = (String, u16);

fn fail(expected: &str, received: impl std::fmt::Display) -> Error {
    invalid("TF_CONFIG", expected, received)
}

/// Reads `{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}`. A chief, if any,
/// comes before the workers.
pub(super) fn read(text: &str) -> Result<Launch> {
    let config: Value = serde_json::from_str(text).map_err(|e| fail("JSON", e))?;
    let hosts = workers(&config["cluster"])?;
    let task = &config["task"];
    let role = task["type"].as_str().ok_or_else(|| fail("a task with its type", task))?;
    let index = task["index"].as_u64().map(|index| index as usize);
    let index = index.ok_or_else(|| fail("a task with its index", task))?;
    let mut of_role = (0..hosts.len()).filter(|at| hosts[*at].0 == role);
    let rank = of_role.nth(index);
    let rank = rank.ok_or_else(|| fail("a task of the cluster", format_args!("{role} {index}")))?;
    let host = |at: usize| &hosts[at].1.0;
    let on_host: Vec<usize> = (0..hosts.len()).filter(|at| host(*at) == host(rank)).collect();
    Ok(Launch {
        rank,
        size: hosts.len(),
        local_rank: on_host.iter().position(|at| *at == rank).unwrap_or(0),
        local_size: on_host.len(),
        launcher: Launcher::TfConfig,
        chief_addr: Some(hosts[0].1.clone()),
    })
}

/// The addresses of a cluster with their roles; no address may appear twice.
fn workers(cluster: &Value) -> Result<Vec<(&'static str, Address)>> {
    let (mut hosts, mut seen) = (vec![], HashSet::new());
    for role in ["chief", "worker"] {
        let Some(list) = cluster.get(role) else { continue };
        for text in list.as_array().ok_or_else(|| fail("a list of addresses", list))? {
            let at = text.as_str().and_then(address);
            let at = at.ok_or_else(|| fail("addresses as host:port", text))?;
            if !seen.insert(at.clone()) {
                return Err(fail("every address once", format_args!("{text} twice")));
            }
            hosts.push((role, at));
        }
    }
    Ok(hosts)
}

/// Parses a host (an IPv6 address is in brackets) and a port.
fn address(text: &str) -> Option<Address> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host.then(|| (host.into(), port))
}
