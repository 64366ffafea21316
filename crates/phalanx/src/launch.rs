//! Who started this process, and as which of how many: read from the variables that launchers set.
//!
//! Pure: [`Launch::read`] looks at nothing but what it is given.

use crate::error::{Error, Result};
use serde_json::Value;
use std::fmt;

/// This process' place in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its number, from 0.
    pub rank: usize,
    /// Processes in all.
    pub size: usize,
    /// Its number among those of its host.
    pub local_rank: usize,
    /// Processes of its host.
    pub local_size: usize,
    /// Where the first process can be reached, as `host:port`, where the launcher says so.
    pub address: Option<String>,
    /// The launcher.
    pub by: Launcher,
}

/// Who starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun: `OMPI_COMM_WORLD_*`.
    OpenMpi,
    /// MPICH's mpirun and its like: `PMI_*`.
    Pmi,
    /// srun: `SLURM_*`.
    Slurm,
    /// torchrun, Kubernetes operators: `RANK`, `WORLD_SIZE`.
    Torch,
    /// TensorFlow's `TF_CONFIG`.
    TfConfig,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Launcher::Pmi => "PMI_RANK",
            Launcher::Slurm => "SLURM_PROCID",
            Launcher::Torch => "RANK",
            Launcher::TfConfig => "TF_CONFIG",
        })
    }
}

/// The variables that say so much: number, count, number on the host, count on the host.
const VARIABLES: [(Launcher, [&str; 4]); 4] = [
    (
        Launcher::OpenMpi,
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    (Launcher::Pmi, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    (
        Launcher::Slurm,
        ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    ),
    (Launcher::Torch, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
];

/// Most processes of a job: more than any has, few enough to be counted.
const MOST: usize = 1 << 20;

/// What this process' own variables say.
///
/// # Errors
/// As [`Launch::read`].
pub fn detect() -> Result<Option<Launch>> {
    Launch::read(|name| std::env::var(name).ok())
}

impl Launch {
    /// What the variables say; nothing where no launcher has set any.
    ///
    /// # Errors
    /// A variable that is missing beside others of its launcher, that is no number or out of range, or two
    /// launchers that contradict one another.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let get = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let mut found: Option<Launch> = None;
        for (launcher, names) in VARIABLES {
            let Some(launch) = numbers(&get, launcher, names)? else { continue };
            merge(&mut found, launch)?;
        }
        if let Some(text) = get("TF_CONFIG") {
            merge(&mut found, tf_config(&text)?)?;
        }
        if let Some(launch) = &mut found {
            launch.address = launch.address.take().or(address(&get)?);
        }
        Ok(found)
    }
}

fn wrong(name: &str, expected: impl Into<String>, received: impl fmt::Display) -> Error {
    Error::argument("launcher", name, expected, received)
}

/// A launcher's four numbers.
fn numbers(
    get: &impl Fn(&str) -> Option<String>,
    by: Launcher,
    names: [&str; 4],
) -> Result<Option<Launch>> {
    let [rank_name, size_name, local_name, local_size_name] = names;
    let number = |name: &str| -> Result<Option<usize>> {
        let Some(text) = get(name) else { return Ok(None) };
        // Slurm writes tasks per node as in 4(x2) or 4,3.
        let digits = match by == Launcher::Slurm && name == local_size_name {
            true => text.split(['(', ',']).next().unwrap_or_default(),
            false => &text,
        };
        let number = digits.trim().parse().ok().filter(|n| *n <= MOST);
        number.map(Some).ok_or_else(|| wrong(name, format!("a number up to {MOST}"), &text))
    };
    let size = match (number(size_name)?, by) {
        // Older versions of Slurm, and jobs of one step.
        (None, Launcher::Slurm) => number("SLURM_NTASKS")?,
        (size, _) => size,
    };
    let (rank, size) = match (number(rank_name)?, size) {
        // A job's allocation has its size before srun starts any process, and any shell may have a
        // variable named RANK.
        (None, Some(_)) if by == Launcher::Slurm => return Ok(None),
        (None, None) => return Ok(None),
        (Some(_), None) if by == Launcher::Slurm => return Ok(None),
        (Some(rank), None) => {
            return Err(wrong(size_name, format!("it beside {rank_name} {rank}"), "nothing"));
        }
        (None, Some(size)) => {
            return Err(wrong(rank_name, format!("it beside {size_name} {size}"), "nothing"));
        }
        (Some(rank), Some(size)) => (rank, size),
    };
    if rank >= size {
        return Err(wrong(rank_name, format!("a number below {size_name} {size}"), rank));
    }
    let local_rank = number(local_name)?;
    // Without the count on this host, the least that there can be.
    let local_size = number(local_size_name)?.unwrap_or(local_rank.unwrap_or(0) + 1);
    let local_rank = local_rank.unwrap_or(0);
    if local_rank >= local_size || local_size > size {
        let expected = format!("a number below {local_size_name} {local_size}, of {size} in all");
        return Err(wrong(local_name, expected, local_rank));
    }
    Ok(Some(Launch { rank, size, local_rank, local_size, address: None, by }))
}

/// Adds what another launcher says; both must say the same. srun may start mpirun's processes and an
/// operator may set several kinds of variables.
fn merge(found: &mut Option<Launch>, launch: Launch) -> Result<()> {
    let Some(first) = found else {
        *found = Some(launch);
        return Ok(());
    };
    // mpirun inside a Slurm job: its own processes all have the numbers of the daemon that started them.
    if launch.by == Launcher::Slurm {
        return Ok(());
    }
    if (first.rank, first.size) != (launch.rank, launch.size) {
        let expected = format!("rank {} of {} as {} says", first.rank, first.size, first.by);
        let received = format!("rank {} of {}", launch.rank, launch.size);
        return Err(wrong(&launch.by.to_string(), expected, received));
    }
    first.address = first.address.take().or(launch.address);
    Ok(())
}

/// `MASTER_ADDR` and `MASTER_PORT`.
fn address(get: &impl Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let Some(host) = get("MASTER_ADDR") else { return Ok(None) };
    let Some(port) = get("MASTER_PORT") else { return Ok(None) };
    let number: Option<u16> = port.trim().parse().ok().filter(|port| *port > 0);
    let number = number.ok_or_else(|| wrong("MASTER_PORT", "a port, 1 to 65535", &port))?;
    Ok(Some(format!("{}:{number}", host.trim())))
}

/// `{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}`, with a chief in
/// front of the workers where there is one.
fn tf_config(text: &str) -> Result<Launch> {
    let fail = |expected: &str, received: String| wrong("TF_CONFIG", expected, received);
    let config: Value = serde_json::from_str(text).map_err(|e| fail("JSON", e.to_string()))?;
    let mut hosts: Vec<(String, String)> = vec![];
    for role in ["chief", "worker"] {
        let list = config["cluster"].get(role).map(|list| list.as_array().ok_or(list));
        let list = match list {
            None => continue,
            Some(list) => list.map_err(|v| fail("a list of addresses", v.to_string()))?,
        };
        for host in list {
            let host = host.as_str().ok_or_else(|| fail("host:port", host.to_string()))?;
            hosts.push((role.into(), host.into()));
        }
    }
    let task = &config["task"];
    let role =
        task["type"].as_str().ok_or_else(|| fail("a task with its type", task.to_string()))?;
    let index = task["index"].as_u64().map(|index| index as usize);
    let index = index.ok_or_else(|| fail("a task with its index", task.to_string()))?;
    let mut of_role = (0..hosts.len()).filter(|at| hosts[*at].0 == role);
    let rank = of_role.nth(index);
    let rank = rank.ok_or_else(|| fail("a task of the cluster", format!("{role} {index}")))?;
    let host = |at: usize| hosts[at].1.rsplit_once(':').map_or(hosts[at].1.as_str(), |(h, _)| h);
    let on_host: Vec<usize> = (0..hosts.len()).filter(|at| host(*at) == host(rank)).collect();
    Ok(Launch {
        rank,
        size: hosts.len(),
        local_rank: on_host.iter().position(|at| *at == rank).unwrap_or(0),
        local_size: on_host.len(),
        address: Some(hosts[0].1.clone()),
        by: Launcher::TfConfig,
    })
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
