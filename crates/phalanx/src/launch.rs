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
    /// The launcher.
    pub by: Launcher,
    /// Where the first of them can be reached, host and port, as `MASTER_ADDR` and `MASTER_PORT` say or
    /// `TF_CONFIG` does.
    pub meeting: Option<(String, u16)>,
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

/// What srun gives the processes of a step. The shell of a batch script has `SLURM_PROCID` and
/// `SLURM_NTASKS` as well, yet nobody has started it as one of several.
const STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"];

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
    /// A variable that is missing beside others of its launcher (`RANK` without `WORLD_SIZE` and the other
    /// way round, for one), that is no number or out of range, or two launchers that contradict one another.
    /// Slurm's alone may be there without a process of srun: a batch script has them too.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let get = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let mut found: Option<Launch> = None;
        for (launcher, names) in VARIABLES {
            let Some(launch) = numbers(&get, launcher, names)? else { continue };
            merge(&mut found, launch)?;
        }
        if let Some(text) = get("TF_CONFIG") {
            let launch = tf_config(&text)?;
            let meeting = launch.meeting.clone();
            merge(&mut found, launch)?;
            found.iter_mut().for_each(|launch| launch.meeting = meeting.clone());
        }
        if let Some(launch) = &mut found {
            meet(launch, master(&get)?)?;
        }
        Ok(found)
    }
}

fn wrong(name: &str, expected: impl Into<String>, received: impl fmt::Display) -> Error {
    Error::argument("launcher", name, expected, received)
}

/// What `MASTER_ADDR` and `MASTER_PORT` say: both or neither.
fn master(get: &impl Fn(&str) -> Option<String>) -> Result<Option<(String, u16)>> {
    let (host_name, port_name) = ("MASTER_ADDR", "MASTER_PORT");
    let (host, port) = match (get(host_name), get(port_name)) {
        (None, None) => return Ok(None),
        (Some(host), Some(port)) => (host.trim().to_string(), port),
        (Some(host), None) => {
            return Err(wrong(port_name, format!("it beside {host_name} {host}"), "nothing"));
        }
        (None, Some(port)) => {
            return Err(wrong(host_name, format!("it beside {port_name} {port}"), "nothing"));
        }
    };
    let number = port.trim().parse().ok().filter(|port: &u16| *port > 0);
    let port = number.ok_or_else(|| wrong(port_name, "a number from 1 to 65535", port))?;
    Ok(Some((host, port)))
}

/// Adds where the first process can be reached; two that say so must say the same.
fn meet(launch: &mut Launch, master: Option<(String, u16)>) -> Result<()> {
    match (&launch.meeting, master) {
        (Some(first), Some(master)) if *first != master => {
            let expected = format!("{}:{} as TF_CONFIG says", first.0, first.1);
            Err(wrong("MASTER_ADDR", expected, format!("{}:{}", master.0, master.1)))
        }
        (None, master) => {
            launch.meeting = master;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A launcher's four numbers.
fn numbers(
    get: &impl Fn(&str) -> Option<String>,
    by: Launcher,
    names: [&str; 4],
) -> Result<Option<Launch>> {
    let [rank_name, size_name, local_name, local_size_name] = names;
    if by == Launcher::Slurm && STEP.iter().all(|name| get(name).is_none()) {
        return Ok(None);
    }
    let number = |name: &str| -> Result<Option<usize>> {
        get(name).map(|text| count(name, &text, &text)).transpose()
    };
    let size = match (number(size_name)?, by) {
        // Older versions of Slurm.
        (None, Launcher::Slurm) => number("SLURM_NTASKS")?,
        (size, _) => size,
    };
    let (rank, size) = match (number(rank_name)?, size) {
        (None, None) => return Ok(None),
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
    let local_size = match by {
        Launcher::Slurm => tasks_of_node(get, local_size_name)?,
        _ => number(local_size_name)?,
    };
    let local_size = local_size.unwrap_or(local_rank.unwrap_or(0) + 1);
    let local_rank = local_rank.unwrap_or(0);
    if local_rank >= local_size || local_size > size {
        let expected = format!("a number below {local_size_name} {local_size}, of {size} in all");
        return Err(wrong(local_name, expected, local_rank));
    }
    Ok(Some(Launch { rank, size, local_rank, local_size, by, meeting: None }))
}

fn count(name: &str, digits: &str, text: &str) -> Result<usize> {
    let number = digits.trim().parse().ok().filter(|n| *n <= MOST);
    number.ok_or_else(|| wrong(name, format!("a number up to {MOST}"), text))
}

/// Tasks of this node: Slurm writes those of all nodes, as in `2(x3),1`. Without the node's number, where
/// all have the same.
fn tasks_of_node(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>> {
    let Some(text) = get(name) else { return Ok(None) };
    let mut groups = vec![];
    for group in text.split(',') {
        let (tasks, nodes) = group.split_once("(x").unwrap_or((group, "1)"));
        let nodes = nodes.strip_suffix(')').unwrap_or("");
        groups.push((count(name, tasks, &text)?, count(name, nodes, &text)?));
    }
    let Some(id) = get("SLURM_NODEID") else {
        let first = groups[0].0;
        return Ok(groups.iter().all(|group| group.0 == first).then_some(first));
    };
    let id = count("SLURM_NODEID", &id, &id)?;
    let mut after = 0;
    let mine = groups.iter().find(|(_, nodes)| {
        after += nodes;
        id < after
    });
    let nodes: usize = groups.iter().map(|(_, nodes)| nodes).sum();
    let outside = || wrong("SLURM_NODEID", format!("a number below the {nodes} of {name}"), id);
    mine.map(|(tasks, _)| Some(*tasks)).ok_or_else(outside)
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
    Ok(())
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
        by: Launcher::TfConfig,
        meeting: hosts[0].1.rsplit_once(':').and_then(|(host, port)| {
            Some((host.into(), port.parse().ok().filter(|port| *port > 0)?))
        }),
    })
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
