//! Detection of the launcher and of this process' rank, from the environment variables that launchers set.
//!
//! [`Launch::read`] is a pure function of the variables passed to it.

#[cfg(test)]
mod tests;
mod tf_config;

use crate::error::{Error, Result};
use std::fmt;
use std::io::IsTerminal;

/// The position of this process in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The rank among the processes on this host.
    pub local_rank: usize,
    /// The number of processes on this host.
    pub local_size: usize,
    /// The launcher that started it.
    pub launcher: Launcher,
    /// Host and port of rank 0, from `MASTER_ADDR` and `MASTER_PORT` or from `TF_CONFIG`.
    pub chief_addr: Option<(String, u16)>,
}

/// A launcher of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's mpirun: `OMPI_COMM_WORLD_*`.
    OpenMpi,
    /// MPICH's mpirun and compatible launchers: `PMI_*`.
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

/// The names of the variables for rank, size, local rank and local size.
type Names = [&'static str; 4];

const VARIABLES: [(Launcher, Names); 3] = [
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
    (Launcher::Torch, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
];

const SLURM: Names =
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"];

/// Variables that srun sets for the processes of a job step. The shell of a batch script has `SLURM_PROCID` and
/// `SLURM_NTASKS` too, but it is not one of several processes.
const SLURM_STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"];

/// The largest number of processes that is accepted: larger than any job, small enough to avoid overflow.
const MAX_PROCESSES: usize = 1 << 20;

/// Reads the environment of this process.
///
/// # Errors
/// As [`Launch::read`].
pub fn detect() -> Result<Option<Launch>> {
    Launch::read(|name| std::env::var(name).ok())
}

/// This worker's rank and display name (rank and host); `None` if no launcher has started several.
pub fn worker_name() -> Option<(usize, String)> {
    let launch = detect().ok()??;
    (launch.size > 1).then(|| (launch.rank, launch.display_name()))
}

/// Whether this is the first worker, or the only one.
pub fn is_first_worker() -> bool {
    worker_name().is_none_or(|(rank, _)| rank == 0)
}

/// The name of this machine, if any.
pub fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

/// Whether a stream is a terminal that a person reads. mpirun gives processes a pseudo-terminal and forwards
/// their output, possibly to a file, and the lines of several workers would mix.
pub fn is_terminal(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
        && !detect().is_ok_and(|launch| launch.is_some_and(|l| l.forwards_output()))
}

/// A number and the variable it comes from.
type Number = (&'static str, usize);

/// The variables of one launcher.
struct LauncherVars {
    launcher: Launcher,
    /// Rank and size. If they are missing, the other variables are incomplete unless another launcher provides
    /// rank and size.
    position: Option<(usize, usize)>,
    local_rank: Option<Number>,
    local_size: Option<Number>,
}

impl Launch {
    /// The display name of this process: its rank and host.
    pub fn display_name(&self) -> String {
        let host = host();
        format!("rank {} ({})", self.rank, host.as_deref().unwrap_or("a host without a name"))
    }

    /// Whether MPI started the processes.
    pub fn is_mpi(&self) -> bool {
        matches!(self.launcher, Launcher::OpenMpi | Launcher::Pmi | Launcher::Slurm)
    }

    /// Whether the launcher forwards the output of its processes.
    fn forwards_output(&self) -> bool {
        self.size > 1 || matches!(self.launcher, Launcher::OpenMpi | Launcher::Pmi)
    }

    /// Reads the variables; `None` if no launcher has set any.
    ///
    /// Slurm's variables are used only if no other launcher has set any, because srun may have started the
    /// other launcher.
    ///
    /// # Errors
    /// - A variable of a launcher is missing although others are set: `RANK` without `WORLD_SIZE` or vice
    ///   versa, or both although `LOCAL_RANK` or `MASTER_ADDR` is set. Slurm's variables may be set without
    ///   srun, because a batch script has them too.
    /// - A variable is not a number or is out of range.
    /// - Two launchers contradict each other.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let get = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let slurm = read_vars(&get, Launcher::Slurm, SLURM);
        let mut all = vec![];
        for (launcher, names) in VARIABLES {
            let vars = read_vars(&get, launcher, names)?;
            all.extend(vars.filter(|vars| !set_by_srun(vars, &slurm)));
        }
        let listed = get("TF_CONFIG").map(|text| tf_config::read(&text)).transpose()?;
        all.extend(listed.as_ref().map(|Launch { rank, size, launcher, .. }| LauncherVars {
            launcher: *launcher,
            position: Some((*rank, *size)),
            local_rank: None,
            local_size: None,
        }));
        if all.iter().all(|vars| vars.position.is_none()) {
            all.extend(slurm?);
        }
        let master = master(&get)?;
        let Some(mut launch) = reconcile(&all, listed.as_ref())? else {
            return check_no_partial_vars(&all, master);
        };
        launch.chief_addr = listed.and_then(|listed| listed.chief_addr);
        set_chief_addr(&mut launch, master)?;
        Ok(Some(launch))
    }
}

/// Whether srun has set `PMI_RANK` (`--mpi=pmi2`). srun sets it for every process, even for another launcher.
fn set_by_srun(vars: &LauncherVars, slurm: &Result<Option<LauncherVars>>) -> bool {
    let same = matches!(slurm, Ok(Some(slurm)) if slurm.position == vars.position);
    same && vars.launcher == Launcher::Pmi && vars.local_rank.is_none()
}

/// Handles a launch without rank and size. No other variable may be set then; otherwise every process would
/// believe that it is the only one.
fn check_no_partial_vars(
    all: &[LauncherVars],
    master: Option<(String, u16)>,
) -> Result<Option<Launch>> {
    let local =
        all.iter().find_map(|vars| Some((vars.launcher, vars.local_rank.or(vars.local_size)?)));
    if let Some((by, (name, number))) = local {
        return Err(invalid(
            &by.to_string(),
            format!("a value alongside {name} {number}"),
            "nothing",
        ));
    }
    match master {
        None => Ok(None),
        Some((host, _)) => {
            let expected = format!("a value, and WORLD_SIZE, alongside MASTER_ADDR {host}");
            Err(invalid("RANK", expected, "nothing"))
        }
    }
}

fn invalid(name: &str, expected: impl Into<String>, received: impl fmt::Display) -> Error {
    Error::argument("launcher", name, expected, received)
}

/// Reads `MASTER_ADDR` and `MASTER_PORT`: both or neither.
fn master(get: &impl Fn(&str) -> Option<String>) -> Result<Option<(String, u16)>> {
    let (host_name, port_name) = ("MASTER_ADDR", "MASTER_PORT");
    let (host, port) = match (get(host_name), get(port_name)) {
        (None, None) => return Ok(None),
        (Some(host), Some(port)) => (host.trim().to_string(), port),
        (Some(host), None) => {
            return Err(invalid(
                port_name,
                format!("a value alongside {host_name} {host}"),
                "nothing",
            ));
        }
        (None, Some(port)) => {
            return Err(invalid(
                host_name,
                format!("a value alongside {port_name} {port}"),
                "nothing",
            ));
        }
    };
    let number = port.trim().parse().ok().filter(|port: &u16| *port > 0);
    let port = number.ok_or_else(|| invalid(port_name, "a number from 1 to 65535", port))?;
    Ok(Some((host, port)))
}

/// Sets the address of rank 0; `TF_CONFIG` and `MASTER_ADDR` must agree.
fn set_chief_addr(launch: &mut Launch, master: Option<(String, u16)>) -> Result<()> {
    match (&launch.chief_addr, master) {
        (Some(first), Some(master)) if *first != master => {
            let expected = format!("{}:{} as TF_CONFIG says", first.0, first.1);
            Err(invalid("MASTER_ADDR", expected, format!("{}:{}", master.0, master.1)))
        }
        (None, master) => {
            launch.chief_addr = master;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reads the four variables of a launcher.
fn read_vars(
    get: &impl Fn(&str) -> Option<String>,
    by: Launcher,
    names: Names,
) -> Result<Option<LauncherVars>> {
    let [rank_name, size_name, local_name, local_size_name] = names;
    if by == Launcher::Slurm && SLURM_STEP.iter().all(|name| get(name).is_none()) {
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
    let position = match (number(rank_name)?, size) {
        (None, None) => None,
        (Some(rank), None) => {
            return Err(invalid(
                size_name,
                format!("a value alongside {rank_name} {rank}"),
                "nothing",
            ));
        }
        (None, Some(size)) => {
            return Err(invalid(
                rank_name,
                format!("a value alongside {size_name} {size}"),
                "nothing",
            ));
        }
        (Some(rank), Some(size)) if rank >= size => {
            return Err(invalid(rank_name, format!("a number below {size_name} {size}"), rank));
        }
        (Some(rank), Some(size)) => Some((rank, size)),
    };
    if let (None, Some(step)) = (position, get(SLURM_STEP[0]).filter(|_| by == Launcher::Slurm)) {
        return Err(invalid(
            rank_name,
            format!("a value alongside {} {step}", SLURM_STEP[0]),
            "nothing",
        ));
    }
    let local_rank = number(local_name)?.map(|number| (local_name, number));
    let local_size = match by {
        Launcher::Slurm => tasks_of_node(get, local_size_name)?,
        _ => number(local_size_name)?,
    };
    let local_size = local_size.map(|number| (local_size_name, number));
    let silent = position.is_none() && local_rank.is_none() && local_size.is_none();
    Ok((!silent).then_some(LauncherVars { launcher: by, position, local_rank, local_size }))
}

fn count(name: &str, digits: &str, text: &str) -> Result<usize> {
    let number = digits.trim().parse().ok().filter(|n| *n <= MAX_PROCESSES);
    number.ok_or_else(|| invalid(name, format!("a number up to {MAX_PROCESSES}"), text))
}

/// The number of tasks on this node. Slurm lists the tasks of all nodes, as in `2(x3),1`. Without the node's
/// index the number is known only if all nodes have the same.
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
    let outside = || invalid("SLURM_NODEID", format!("a number below the {nodes} of {name}"), id);
    mine.map(|(tasks, _)| Some(*tasks)).ok_or_else(outside)
}

/// Combines the variables of all launchers, since an operator may set several kinds; they must agree. The hosts
/// of `listed`, the launch that `TF_CONFIG` describes, are used if no other variable gives a local rank or
/// size.
fn reconcile(all: &[LauncherVars], listed: Option<&Launch>) -> Result<Option<Launch>> {
    let mut places = all.iter().filter_map(|vars| Some((vars.launcher, vars.position?)));
    let Some((by, (rank, size))) = places.next() else { return Ok(None) };
    if let Some((other, position)) = places.find(|(_, position)| *position != (rank, size)) {
        let expected = format!("rank {rank} of {size} as {by} says");
        let received = format!("rank {} of {}", position.0, position.1);
        return Err(invalid(&other.to_string(), expected, received));
    }
    let local_rank = common_value(all.iter().filter_map(|vars| vars.local_rank))?;
    let local_size = common_value(all.iter().filter_map(|vars| vars.local_size))?;
    let (local_rank, local_size) = match listed {
        Some(listed) if local_rank.is_none() && local_size.is_none() => {
            (listed.local_rank, listed.local_size)
        }
        _ => local_position(local_rank, local_size, size)?,
    };
    Ok(Some(Launch { rank, size, local_rank, local_size, launcher: by, chief_addr: None }))
}

/// The common value of several variables, which must agree.
fn common_value(mut numbers: impl Iterator<Item = Number>) -> Result<Option<Number>> {
    let Some((first, number)) = numbers.next() else { return Ok(None) };
    match numbers.find(|(_, other)| *other != number) {
        None => Ok(Some((first, number))),
        Some((name, other)) => Err(invalid(name, format!("{number} as {first} says"), other)),
    }
}

/// Local rank and local size. Without the size, the smallest possible one.
fn local_position(
    rank: Option<Number>,
    count: Option<Number>,
    size: usize,
) -> Result<(usize, usize)> {
    match (rank, count) {
        (None, None) => Ok((0, 1)),
        (Some((name, rank)), None) if rank >= size => {
            Err(invalid(name, format!("a number below the {size} in all"), rank))
        }
        (Some((_, rank)), None) => Ok((rank, rank + 1)),
        (None, Some((name, count))) if !(1..=size).contains(&count) => {
            Err(invalid(name, format!("a number from 1 to the {size} in all"), count))
        }
        (None, Some((_, count))) => Ok((0, count)),
        (Some((name, rank)), Some((count_name, count))) if rank >= count || count > size => {
            let expected = format!("a number below {count_name} {count}, of {size} in all");
            Err(invalid(name, expected, rank))
        }
        (Some((_, rank)), Some((_, count))) => Ok((rank, count)),
    }
}
