//! The cores of the machine, and pinning of threads to them.

use std::thread;

/// The cores that this process may use.
#[cfg(target_os = "linux")]
pub fn cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set, and the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return (0..thread::available_parallelism().map_or(1, usize::from)).collect();
        }
        set
    };
    // SAFETY: the index stays below the set's capacity.
    (0..libc::CPU_SETSIZE as usize).filter(|i| unsafe { libc::CPU_ISSET(*i, &set) }).collect()
}

/// The number of threads that can run at once: the process's cores, or fewer under a container's CPU quota.
pub fn usable_cores() -> usize {
    let quota = thread::available_parallelism().map_or(usize::MAX, usize::from);
    quota.min(cores().len()).max(1)
}

/// Whether threads are pinned to cores. They are not with `PHALANX_PIN=0`, nor under a CPU quota: several
/// containers may then share all cores, and each would pin its threads to the first.
pub(crate) fn pinning_enabled() -> bool {
    std::env::var("PHALANX_PIN").map_or(true, |v| v != "0") && usable_cores() >= cores().len()
}

/// Detects a launcher that restricts a process to a part of the cores although it is alone on its machine.
/// Returns the number of the process's cores and of the machine's cores.
pub fn restricted_cores(local_workers: usize) -> Option<(usize, usize)> {
    let (mine, all) = (cores().len(), online_cores());
    (local_workers == 1 && mine < all).then_some((mine, all))
}

/// Restricts this process to part `part` of `parts` of the machine's cores, if several processes share the
/// machine and the launcher has not restricted them already. Threads started afterwards inherit this.
pub fn share_cores(part: usize, parts: usize) {
    let cores = cores();
    // If the launcher restricts processes, each sees fewer cores than are online.
    if !pinning_enabled() || parts < 2 || cores.is_empty() || cores.len() < online_cores() {
        return;
    }
    let mine = phalanx_graph::program::split_range(0..cores.len(), parts, part % parts);
    match mine.is_empty() {
        false => set_affinity(&cores[mine]),
        true => set_affinity(&[cores[part % cores.len()]]),
    }
}

/// The number of cores of the machine.
fn online_cores() -> usize {
    #[cfg(unix)]
    // SAFETY: a plain query; unknown names return -1.
    return usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1);
    #[cfg(not(unix))]
    return 1;
}

/// The cores that this process may use.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Vec<usize> {
    (0..thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Restricts the calling thread to these cores. If the system refuses, the affinity stays unchanged.
#[cfg(target_os = "linux")]
pub(super) fn set_affinity(cores: &[usize]) {
    // SAFETY: the set is initialised, and the cores come from the process's own mask.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|core| libc::CPU_SET(*core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Moves the calling thread to `core` if it runs elsewhere, possibly on a pinned worker's core. The thread is
/// not pinned, because threads that the caller starts would inherit that.
#[cfg(target_os = "linux")]
pub(super) fn move_to_core(core: usize, all: &[usize]) {
    // SAFETY: a plain query.
    let now = unsafe { libc::sched_getcpu() };
    if now >= 0 && now as usize != core {
        set_affinity(&[core]);
        set_affinity(all);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn set_affinity(_cores: &[usize]) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn move_to_core(_core: usize, _all: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread restricted to one core stands for a process that a launcher has restricted.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_lone_process_restricted_to_few_cores_is_detected() {
        let restricted = thread::spawn(|| {
            set_affinity(&cores()[..1]);
            (usable_cores(), restricted_cores(1), restricted_cores(2))
        });
        let few = (online_cores() > 1).then(|| (1, online_cores()));
        assert_eq!(restricted.join().unwrap(), (1, few, None));
        assert!(usable_cores() <= cores().len());
    }
}
