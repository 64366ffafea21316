//! Who started this process, and as which of how many: read from the variables that launchers set.
//!
//! Pure: [`Launch::read`] looks at nothing but what it is given.

mod tf_config;

use crate::error::{Error, Result};
use std::fmt;
use std::io::IsTerminal;

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

/// Whether a stream ends at a terminal that a person looks at. mpirun gives processes a terminal of their own and
/// passes on what they write, be it to a file; the lines of several workers would mix.
pub fn is_terminal(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !detect().is_ok_and(|launch| launch.is_some_and(|l| l.passes_on()))
}

/// A number, and the variable that it stands in.
type Number = (&'static str, usize);

/// What one launcher says.
struct Said {
    by: Launcher,
    /// Number and count; without them the rest is a gap, unless another launcher says them.
    place: Option<(usize, usize)>,
    local_rank: Option<Number>,
    local_size: Option<Number>,
}

impl Launch {
    /// Whether the launcher stands between a process' output and who reads it.
    fn passes_on(&self) -> bool {
        self.size > 1 || matches!(self.by, Launcher::OpenMpi | Launcher::Pmi)
    }

    /// What the variables say; nothing where no launcher has set any.
    ///
    /// Slurm's numbers count where no other launcher says any: srun may have started the other one.
    ///
    /// # Errors
    /// A variable that is missing beside others of its launcher (`RANK` without `WORLD_SIZE` and the other
    /// way round, or both of them beside `LOCAL_RANK` or `MASTER_ADDR`), that is no number or out of range,
    /// or two launchers that contradict one another. Slurm's alone may be there without a process of srun: a
    /// batch script has them too.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        let get = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let slurm = numbers(&get, Launcher::Slurm, SLURM);
        let mut all = vec![];
        for (launcher, names) in VARIABLES {
            let said = numbers(&get, launcher, names)?;
            all.extend(said.filter(|said| !is_sruns(said, &slurm)));
        }
        let listed = get("TF_CONFIG").map(|text| tf_config::read(&text)).transpose()?;
        all.extend(listed.as_ref().map(|Launch { rank, size, by, .. }| Said {
            by: *by,
            place: Some((*rank, *size)),
            local_rank: None,
            local_size: None,
        }));
        if all.iter().all(|said| said.place.is_none()) {
            all.extend(slurm?);
        }
        let master = master(&get)?;
        let Some(mut launch) = agree(&all, listed.as_ref())? else {
            return gap(&all, master);
        };
        launch.meeting = listed.and_then(|listed| listed.meeting);
        meet(&mut launch, master)?;
        Ok(Some(launch))
    }
}

/// Whether it is srun that set `PMI_RANK` (`--mpi=pmi2`): for whatever it starts, be it another launcher.
fn is_sruns(said: &Said, slurm: &Result<Option<Said>>) -> bool {
    let same = matches!(slurm, Ok(Some(slurm)) if slurm.place == said.place);
    same && said.by == Launcher::Pmi && said.local_rank.is_none()
}

/// Nobody has said a number and a count: then nothing else may be said either, else every process would
/// take itself for the only one.
fn gap(all: &[Said], master: Option<(String, u16)>) -> Result<Option<Launch>> {
    let local = all.iter().find_map(|said| Some((said.by, said.local_rank.or(said.local_size)?)));
    if let Some((by, (name, number))) = local {
        return Err(wrong(&by.to_string(), format!("it beside {name} {number}"), "nothing"));
    }
    match master {
        None => Ok(None),
        Some((host, _)) => {
            let expected = format!("it and WORLD_SIZE beside MASTER_ADDR {host}");
            Err(wrong("RANK", expected, "nothing"))
        }
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
    names: Names,
) -> Result<Option<Said>> {
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
    let place = match (number(rank_name)?, size) {
        (None, None) => None,
        (Some(rank), None) => {
            return Err(wrong(size_name, format!("it beside {rank_name} {rank}"), "nothing"));
        }
        (None, Some(size)) => {
            return Err(wrong(rank_name, format!("it beside {size_name} {size}"), "nothing"));
        }
        (Some(rank), Some(size)) if rank >= size => {
            return Err(wrong(rank_name, format!("a number below {size_name} {size}"), rank));
        }
        (Some(rank), Some(size)) => Some((rank, size)),
    };
    if let (None, Some(step)) = (place, get(STEP[0]).filter(|_| by == Launcher::Slurm)) {
        return Err(wrong(rank_name, format!("it beside {} {step}", STEP[0]), "nothing"));
    }
    let local_rank = number(local_name)?.map(|number| (local_name, number));
    let local_size = match by {
        Launcher::Slurm => tasks_of_node(get, local_size_name)?,
        _ => number(local_size_name)?,
    };
    let local_size = local_size.map(|number| (local_size_name, number));
    let silent = place.is_none() && local_rank.is_none() && local_size.is_none();
    Ok((!silent).then_some(Said { by, place, local_rank, local_size }))
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

/// The place that all launchers say, as an operator may set several kinds of variables; `listed` is as
/// `TF_CONFIG` has it, whose hosts count where nobody says a number on the host.
fn agree(all: &[Said], listed: Option<&Launch>) -> Result<Option<Launch>> {
    let mut places = all.iter().filter_map(|said| Some((said.by, said.place?)));
    let Some((by, (rank, size))) = places.next() else { return Ok(None) };
    if let Some((other, place)) = places.find(|(_, place)| *place != (rank, size)) {
        let expected = format!("rank {rank} of {size} as {by} says");
        let received = format!("rank {} of {}", place.0, place.1);
        return Err(wrong(&other.to_string(), expected, received));
    }
    let local_rank = same(all.iter().filter_map(|said| said.local_rank))?;
    let local_size = same(all.iter().filter_map(|said| said.local_size))?;
    let (local_rank, local_size) = match listed {
        Some(listed) if local_rank.is_none() && local_size.is_none() => {
            (listed.local_rank, listed.local_size)
        }
        _ => on_host(local_rank, local_size, size)?,
    };
    Ok(Some(Launch { rank, size, local_rank, local_size, by, meeting: None }))
}

/// A number that several variables may say, if they say the same.
fn same(mut numbers: impl Iterator<Item = Number>) -> Result<Option<Number>> {
    let Some((first, number)) = numbers.next() else { return Ok(None) };
    match numbers.find(|(_, other)| *other != number) {
        None => Ok(Some((first, number))),
        Some((name, other)) => Err(wrong(name, format!("{number} as {first} says"), other)),
    }
}

/// Number and count on the host; without the count, the least that there can be.
fn on_host(rank: Option<Number>, count: Option<Number>, size: usize) -> Result<(usize, usize)> {
    match (rank, count) {
        (None, None) => Ok((0, 1)),
        (Some((name, rank)), None) if rank >= size => {
            Err(wrong(name, format!("a number below the {size} in all"), rank))
        }
        (Some((_, rank)), None) => Ok((rank, rank + 1)),
        (None, Some((name, count))) if !(1..=size).contains(&count) => {
            Err(wrong(name, format!("a number from 1 to the {size} in all"), count))
        }
        (None, Some((_, count))) => Ok((0, count)),
        (Some((name, rank)), Some((count_name, count))) if rank >= count || count > size => {
            let expected = format!("a number below {count_name} {count}, of {size} in all");
            Err(wrong(name, expected, rank))
        }
        (Some((_, rank)), Some((_, count))) => Ok((rank, count)),
    }
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
