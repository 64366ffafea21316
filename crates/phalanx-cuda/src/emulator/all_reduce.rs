//! All-reduce over emulated GPUs, in the order of their ranks. Processes are threads here; they
//! find each other by an id that one of them creates.

use super::memory::Memory;
use crate::launch::Elem;
use crate::work_item::ReducePart;
use phalanx_distributed::{AbortableBarrier, Aborted};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The contribution of a GPU to an all-reduce: type and values of each part.
type Contribution = Vec<(Elem, Vec<f64>)>;

/// A group of emulated GPUs that reduce with each other.
pub(super) struct AllReduceGroup {
    barrier: AbortableBarrier,
    /// By rank.
    contributions: Mutex<Vec<Contribution>>,
    /// How long to wait for the others.
    limit: Duration,
}

/// An emulated GPU's membership in a group.
pub(super) struct Membership {
    pub group: Arc<AllReduceGroup>,
    pub rank: usize,
    /// Whether the group includes other processes.
    pub remote: bool,
}

impl Membership {
    /// Whether GPUs of other processes do not respond.
    pub fn lost(&self) -> bool {
        self.remote && self.group.barrier.is_aborted()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.remote {
            self.group.abort();
        }
    }
}

impl AllReduceGroup {
    pub fn new(ranks: usize, limit: Duration) -> AllReduceGroup {
        AllReduceGroup {
            barrier: AbortableBarrier::new(ranks),
            contributions: Mutex::new(vec![vec![]; ranks]),
            limit,
        }
    }

    /// Aborts the group, so that no GPU waits any more.
    pub fn abort(&self) {
        self.barrier.abort();
    }

    /// Sums the parts of all ranks, once all have contributed.
    pub fn add(
        &self,
        rank: usize,
        memory: &mut Memory,
        parts: &[ReducePart],
    ) -> Result<(), String> {
        let aborted = |_: Aborted| "another GPU failed".to_string();
        let wait = || self.barrier.wait_for(self.limit).map_err(aborted);
        let mine: Result<Contribution, String> = parts.iter().map(|p| load(memory, p)).collect();
        self.contributions.lock().expect("no panic")[rank] = mine?;
        wait()?;
        let all = self.contributions.lock().expect("no panic").clone();
        wait()?;
        let kinds = |b: &Contribution| b.iter().map(|(e, v)| (*e, v.len())).collect::<Vec<_>>();
        if let Some(other) = all.iter().position(|b| kinds(b) != kinds(&all[0])) {
            let (a, b) = (kinds(&all[0]), kinds(&all[other]));
            return Err(format!("rank 0 adds {a:?} where rank {other} adds {b:?}"));
        }
        parts.iter().enumerate().try_for_each(|(i, part)| {
            (0..part.len).try_for_each(|k| {
                let at = part.to.add(k * part.elem.bytes());
                memory.store(at, part.elem, all[0][i].1[k])?;
                // Rounds after every addition.
                all[1..].iter().try_for_each(|other| {
                    let sum = memory.load(at, part.elem)? + other[i].1[k];
                    memory.store(at, part.elem, sum)
                })
            })
        })
    }
}

fn load(memory: &Memory, part: &ReducePart) -> Result<(Elem, Vec<f64>), String> {
    let size = part.elem.bytes();
    let each = (0..part.len).map(|k| memory.load(part.from.add(k * size), part.elem));
    Ok((part.elem, each.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::Membership;
    use crate::collectives::ThreadPool;
    use crate::collectives::{DeviceReplicas, run_all};
    use crate::device::{GpuDevice, Plan};
    use crate::emulator::{AllReduceGroup, EmulatedGpu};
    use crate::launch::{Block, Elem, Launch, Ptr, Source};
    use crate::work_item::{ReducePart, Task, WorkItem};
    use phalanx_exec::ExecError;
    use std::sync::Arc;
    use std::time::Duration;

    const AT: Ptr = Ptr { replica: 0, block: Block::Params, offset: 0 };

    fn devices(ranks: usize) -> Vec<DeviceReplicas<EmulatedGpu>> {
        let group = Arc::new(AllReduceGroup::new(ranks, Duration::MAX));
        let gpu = |rank: usize| {
            let link = Some(Membership { group: group.clone(), rank, remote: false });
            let mut gpu = EmulatedGpu::new(None);
            gpu.link = link;
            gpu.reserve(0, AT.block, 256, "a test").expect("memory");
            let numbers = [rank as f32 + 0.5, 7.0].map(f32::to_le_bytes);
            gpu.write(AT, &numbers.concat()).expect("fits");
            (gpu, vec![format!("emulated:{rank}")])
        };
        DeviceReplicas::all((0..ranks).map(gpu).collect(), 0)
    }

    fn sum(len: usize) -> WorkItem {
        let part = ReducePart { from: AT, to: AT.add(64), elem: Elem::F32, len };
        WorkItem::reduce("a sum".into(), 0, vec![part])
    }

    /// Runs each rank's work items.
    fn run(
        devices: &mut [DeviceReplicas<EmulatedGpu>],
        items: impl Fn(usize) -> Vec<WorkItem> + Sync,
    ) -> Result<(), ExecError> {
        let threads = ThreadPool::new(devices.len()).expect("threads");
        let start = |i: usize, s: &mut DeviceReplicas<EmulatedGpu>| {
            let work = items(i);
            let tapes =
                "__global__ void wrong() { __shared__ int a[2]; a[(int)gridDim.x + 3] = 1; }";
            let step = s.gpu.prepare(Plan { work_items: work, tapes: tapes.into() })?;
            s.gpu.start(step, &[])
        };
        run_all(&threads, devices, start).map(|_| ())
    }

    #[test]
    fn every_rank_has_the_sum() {
        let mut devices = devices(3);
        for _ in 0..2 {
            run(&mut devices, |_| vec![sum(3), sum(2)]).expect("runs");
            for s in &devices {
                let mut bytes = [1; 12];
                s.gpu.read(AT.add(64), &mut bytes).expect("fits");
                assert_eq!(bytes, [4.5f32, 21.0, 0.0].map(f32::to_le_bytes).concat()[..]);
            }
        }
    }

    #[test]
    fn mismatched_reductions_are_reported() {
        let error = run(&mut devices(2), |i| vec![sum(2 + i)]).unwrap_err().to_string();
        assert!(error.ends_with("rank 0 adds [(F32, 2)] where rank 1 adds [(F32, 3)]"), "{error}");
    }

    #[phalanx_testing::needs(gxx)]
    #[test]
    fn a_failure_aborts_the_others_and_its_error_is_returned() {
        let mut devices = devices(3);
        let wrong = Launch { source: Source::Tapes, ..Launch::blocks("", "wrong", 1, 1) };
        let wrong = WorkItem { tasks: vec![Task::Launch(wrong)], label: "wrong".into(), ..sum(1) };
        let items = |i: usize| if i == 1 { vec![wrong.clone()] } else { vec![sum(1)] };
        let error = run(&mut devices, items).unwrap_err().to_string();
        assert!(error.contains("wrong: wrong <<<"), "{error}");
        let after = run(&mut devices, |_| vec![sum(1)]).unwrap_err().to_string();
        assert!(after.contains("another GPU failed"), "{after}");
    }

    #[test]
    fn a_panic_aborts_the_others() {
        let mut devices = devices(3);
        let items = |i: usize| if i == 2 { panic!("of one") } else { vec![sum(1)] };
        let run = std::panic::AssertUnwindSafe(|| run(&mut devices, items));
        let panic = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of one"));
    }
}
