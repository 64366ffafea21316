//! Sums over emulated GPUs, in the order of their ranks. Those of several processes, which are threads
//! here, meet by the id that one of them made.

use super::Register;
use super::memory::Memory;
use crate::among::Seats;
use crate::crew::{Failed, Meeting};
use crate::launch::Elem;
use crate::task::Part;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a GPU brings to a sum: of each part the type and the numbers.
type Brought = Vec<(Elem, Vec<f64>)>;

/// Where emulated GPUs add up.
pub(super) struct Sums {
    meeting: Meeting,
    /// By rank.
    brought: Mutex<Vec<Brought>>,
    /// How long the others are waited for.
    limit: Duration,
}

/// An emulated GPU's part in sums.
pub(super) struct Link {
    pub sums: Arc<Sums>,
    pub rank: usize,
    /// Whether others are of other processes.
    pub outside: bool,
}

impl Link {
    /// Whether GPUs of other processes do not answer.
    pub fn lost(&self) -> bool {
        self.outside && self.sums.meeting.failed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.outside {
            self.sums.give_up();
        }
    }
}

impl Sums {
    pub fn new(ranks: usize, limit: Duration) -> Sums {
        Sums { meeting: Meeting::new(ranks), brought: Mutex::new(vec![vec![]; ranks]), limit }
    }

    /// Where the GPUs of several processes add up.
    pub fn of(seats: &Seats) -> Arc<Sums> {
        static MET: Register<Sums> = Register::new();
        MET.find(seats.id, || Sums::new(seats.all, seats.limit))
    }

    /// Has nobody wait any more.
    pub fn give_up(&self) {
        self.meeting.fail();
    }

    /// Adds the parts of all ranks, once all have brought them.
    pub fn add(&self, rank: usize, memory: &mut Memory, parts: &[Part]) -> Result<(), String> {
        let gone = |_: Failed| "another GPU failed".to_string();
        let wait = || self.meeting.wait_for(self.limit).map_err(gone);
        let mine: Result<Brought, String> = parts.iter().map(|p| load(memory, p)).collect();
        self.brought.lock().expect("no panic")[rank] = mine?;
        wait()?;
        let all = self.brought.lock().expect("no panic").clone();
        wait()?;
        let kinds = |b: &Brought| b.iter().map(|(e, v)| (*e, v.len())).collect::<Vec<_>>();
        if let Some(other) = all.iter().position(|b| kinds(b) != kinds(&all[0])) {
            let (a, b) = (kinds(&all[0]), kinds(&all[other]));
            return Err(format!("rank 0 adds {a:?} where rank {other} adds {b:?}"));
        }
        parts.iter().enumerate().try_for_each(|(i, part)| {
            (0..part.len).try_for_each(|k| {
                let at = part.to.add(k * part.elem.bytes());
                memory.store(at, part.elem, all[0][i].1[k])?;
                // Rounded behind every sum.
                all[1..].iter().try_for_each(|other| {
                    let sum = memory.load(at, part.elem)? + other[i].1[k];
                    memory.store(at, part.elem, sum)
                })
            })
        })
    }
}

fn load(memory: &Memory, part: &Part) -> Result<(Elem, Vec<f64>), String> {
    let size = part.elem.bytes();
    let each = (0..part.len).map(|k| memory.load(part.from.add(k * size), part.elem));
    Ok((part.elem, each.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::Link;
    use crate::crew::Crew;
    use crate::emulator::{EmulatedGpu, Sums};
    use crate::launch::{Block, Elem, Launch, Ptr, Source};
    use crate::machine::{Machine, Plan};
    use crate::stations::{Station, together};
    use crate::task::{Part, Task, Work};
    use phalanx_graph::exec::ExecError;
    use std::sync::Arc;
    use std::time::Duration;

    const AT: Ptr = Ptr { replica: 0, block: Block::Params, offset: 0 };

    fn stations(ranks: usize) -> Vec<Station<EmulatedGpu>> {
        let sums = Arc::new(Sums::new(ranks, Duration::MAX));
        let machine = |rank: usize| {
            let link = Some(Link { sums: sums.clone(), rank, outside: false });
            let mut gpu = EmulatedGpu { link, ..EmulatedGpu::new(None) };
            gpu.reserve(0, AT.block, 256, "a test").expect("memory");
            let numbers = [rank as f32 + 0.5, 7.0].map(f32::to_le_bytes);
            gpu.write(AT, &numbers.concat()).expect("fits");
            (gpu, vec![format!("emulated:{rank}")])
        };
        Station::all((0..ranks).map(machine).collect(), 0)
    }

    fn sum(len: usize) -> Work {
        let part = Part { from: AT, to: AT.add(64), elem: Elem::F32, len };
        Work::reduce("a sum".into(), 0, vec![part])
    }

    /// Runs each rank's works.
    fn run(
        stations: &mut [Station<EmulatedGpu>],
        works: impl Fn(usize) -> Vec<Work> + Sync,
    ) -> Result<(), ExecError> {
        let crew = Crew::new(stations.len()).expect("threads");
        let start = |i: usize, s: &mut Station<EmulatedGpu>| {
            let work = works(i);
            let tapes =
                "__global__ void wrong() { __shared__ int a[2]; a[(int)gridDim.x + 3] = 1; }";
            let step = s.machine.prepare(Plan { work, tapes: tapes.into() })?;
            s.machine.start(step, &[])
        };
        together(&crew, stations, start).map(|_| ())
    }

    #[test]
    fn every_rank_has_the_sum() {
        let mut stations = stations(3);
        for _ in 0..2 {
            run(&mut stations, |_| vec![sum(3), sum(2)]).expect("runs");
            for s in &stations {
                let mut bytes = [1; 12];
                s.machine.read(AT.add(64), &mut bytes).expect("fits");
                assert_eq!(bytes, [4.5f32, 21.0, 0.0].map(f32::to_le_bytes).concat()[..]);
            }
        }
    }

    #[test]
    fn ranks_that_ask_for_other_sums_are_told() {
        let error = run(&mut stations(2), |i| vec![sum(2 + i)]).unwrap_err().to_string();
        assert!(error.ends_with("rank 0 adds [(F32, 2)] where rank 1 adds [(F32, 3)]"), "{error}");
    }

    #[phalanx_testing::needs(gxx)]
    #[test]
    fn nobody_hangs_where_one_fails_and_its_error_is_the_answer() {
        let mut stations = stations(3);
        let wrong = Launch { source: Source::Tapes, ..Launch::blocks("", "wrong", 1, 1) };
        let wrong = Work { tasks: vec![Task::Launch(wrong)], label: "wrong".into(), ..sum(1) };
        let works = |i: usize| if i == 1 { vec![wrong.clone()] } else { vec![sum(1)] };
        let error = run(&mut stations, works).unwrap_err().to_string();
        assert!(error.contains("wrong: wrong <<<"), "{error}");
        let after = run(&mut stations, |_| vec![sum(1)]).unwrap_err().to_string();
        assert!(after.contains("another GPU failed"), "{after}");
    }

    #[test]
    fn nobody_hangs_where_one_panics() {
        let mut stations = stations(3);
        let works = |i: usize| if i == 2 { panic!("of one") } else { vec![sum(1)] };
        let run = std::panic::AssertUnwindSafe(|| run(&mut stations, works));
        let panic = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of one"));
    }
}
