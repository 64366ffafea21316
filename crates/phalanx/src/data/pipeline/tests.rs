use super::*;
use phalanx_graph::Tensor;
use std::time::{Duration, Instant};

/// `x` holds `[i, i + 0.5]`, `y` holds `i`.
fn numbered(n: usize) -> Pipeline {
    let x: Vec<f32> = (0..2 * n).map(|i| i as f32 / 2.0).collect();
    let y: Vec<i32> = (0..n as i32).collect();
    let (x, y) = (Tensor::new([n, 2], x).unwrap(), Tensor::new([n], y).unwrap());
    Pipeline::from_tensor_slices((x, y)).unwrap()
}

fn labels_of(element: &Element) -> Vec<i32> {
    element[1].i32().unwrap().to_vec()
}

fn run(pipeline: &Pipeline, epoch: u64) -> Result<Vec<i32>> {
    let elements: Vec<Element> = pipeline.elements(7, epoch)?.collect::<Result<_>>()?;
    for element in &elements {
        let (x, y) = (element[0].f32().unwrap(), element[1].i32().unwrap());
        for (x, y) in x.chunks(2).zip(y) {
            assert_eq!(x, [*y as f32, *y as f32 + 0.5]);
        }
    }
    Ok(elements.iter().flat_map(labels_of).collect())
}

fn labels(pipeline: &Pipeline) -> Vec<i32> {
    run(pipeline, 0).unwrap()
}

pub(super) fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn batches_are_stacked_and_counted() {
    let all = numbered(7).batch(3, false).unwrap();
    let elements: Vec<Element> = all.elements(0, 0).unwrap().collect::<Result<_>>().unwrap();
    let dims: Vec<&[usize]> = elements.iter().map(|e| e[0].dims()).collect();
    assert_eq!(dims, [[3, 2], [3, 2], [1, 2]]);
    assert_eq!((all.len(), all.batches(), all.batch_size()), (Some(7), Some(3), 3));
    let full = numbered(7).batch(3, true).unwrap();
    assert_eq!((full.len(), full.batches(), labels(&full).len()), (Some(6), Some(2), 6));
    let mut batch = HostBatch::default();
    let mut epoch = all.epoch(0, 0, 2).unwrap();
    assert!(epoch.next(&mut batch).unwrap());
    assert_eq!((batch.rows, batch.targets[0].i32().unwrap()), (1, &[6][..]));
    assert_eq!(batch.sample_weight, [1.0]);
    assert!(!epoch.next(&mut batch).unwrap());
}

#[test]
fn take_skip_repeat_zip_enumerate_and_filter() {
    assert_eq!(labels(&numbered(5).take(2)), [0, 1]);
    assert_eq!(labels(&numbered(5).skip(3)), [3, 4]);
    assert_eq!(labels(&numbered(2).repeat(3)), [0, 1, 0, 1, 0, 1]);
    assert_eq!(labels(&numbered(2).repeat(None).take(5)), [0, 1, 0, 1, 0]);
    assert_eq!(labels(&numbered(6).filter(|e| Ok(e[1].i32().unwrap()[0] % 2 == 0))), [0, 2, 4]);
    let weights = Tensor::new([3], vec![0.5, 1.0, 2.0]).unwrap();
    let weights = Pipeline::from_tensor_slices(weights).unwrap();
    let zipped = numbered(5).zip(weights).batch(2, false).unwrap();
    assert_eq!((zipped.batches(), zipped.len()), (Some(2), Some(3)));
    let mut batch = HostBatch::default();
    assert!(zipped.epoch(0, 0, 0).unwrap().next(&mut batch).unwrap());
    assert_eq!(batch.sample_weight, [0.5, 1.0]);
    let counted: Vec<Element> =
        numbered(5).skip(2).enumerate().elements(0, 0).unwrap().map(Result::unwrap).collect();
    assert_eq!(counted[1][0].i32().unwrap(), [1]);
    assert_eq!(counted[1][2].i32().unwrap(), [3]);
}

#[test]
fn cardinality_is_known_if_it_can_be() {
    use Cardinality::{Infinite, Known, Unknown};
    let n = || numbered(10);
    for (pipeline, expected) in [
        (n().shuffle(3).unwrap().map(Ok).prefetch(2).cache().enumerate(), Known(10)),
        (n().repeat(None), Infinite),
        (n().repeat(None).take(4), Known(4)),
        (n().repeat(3).skip(28), Known(2)),
        (n().filter(|_| Ok(true)), Unknown),
        (n().filter(|_| Ok(true)).take(3), Unknown),
        (n().zip(n().repeat(None)), Known(10)),
        (n().batch(4, true).unwrap(), Known(2)),
        (n().take(0).repeat(None), Known(0)),
    ] {
        assert_eq!(pipeline.cardinality(), expected);
    }
    assert_eq!(n().batch(4, false).unwrap().skip(2).len(), Some(2));
    assert_eq!(n().batch(4, false).unwrap().repeat(2).take(4).len(), None);
    assert!(labels(&n().take(0).repeat(None)).is_empty());
}

#[test]
fn a_buffer_shuffles_anew_each_epoch() {
    for buffer in [1, 4, 100] {
        let shuffled = numbered(50).shuffle(buffer).unwrap();
        let [first, again, next] = [0, 0, 1].map(|epoch| run(&shuffled, epoch).unwrap());
        assert_eq!(first, again);
        assert_eq!(first == next, buffer == 1);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..50));
        // An element comes out at most `buffer` positions early.
        assert!(first.iter().enumerate().all(|(at, i)| (*i as usize) < at + buffer));
    }
    let twice = labels(&numbered(20).shuffle(20).unwrap().repeat(2));
    assert_ne!(twice[..20], twice[20..]);
}

#[test]
fn map_keeps_the_order_whatever_the_threads() {
    for threads in [1, 2, 7] {
        let mapped = numbered(100).map_parallel(threads, |element| {
            let label = element[1].i32().unwrap()[0];
            std::thread::sleep(Duration::from_micros(u64::from(label as u32 % 5) * 200));
            Ok(element)
        });
        assert!(labels(&mapped).into_iter().eq(0..100));
        let batched = mapped.batch(10, false).unwrap().prefetch(2);
        let mut batch = HostBatch::default();
        assert!(batched.epoch(0, 0, 9).unwrap().next(&mut batch).unwrap());
        assert_eq!(batch.targets[0].i32().unwrap()[0], 90);
        // In the middle, while threads hold elements.
        let singles = numbered(100).map_parallel(threads, Ok).batch(1, false).unwrap();
        let mut epoch = singles.epoch(0, 0, 0).unwrap();
        for (skipped, label) in [(0, 0), (3, 4), (60, 65)] {
            epoch.skip(skipped).unwrap();
            assert!(epoch.next(&mut batch).unwrap());
            assert_eq!(batch.targets[0].i32().unwrap(), [label]);
        }
    }
}

#[test]
fn errors_name_the_element_and_nothing_hangs() {
    let started = Instant::now();
    let fails = |panics: bool| {
        move |element: Element| {
            if element[1].i32().unwrap()[0] == 60 {
                assert!(!panics, "no good");
                return Err(Error::config("decoder", "no good"));
            }
            Ok(element)
        }
    };
    for panics in [false, true] {
        let data = numbered(1000).map_parallel(4, fails(panics));
        let data = data.batch(8, false).unwrap().prefetch(3);
        let said = message(run(&data, 0));
        assert!(said.contains("map: element 60: ") && said.contains("no good"), "{said}");
    }
    let picky = numbered(9).filter(|_| Err(Error::config("rule", "unsure")));
    assert!(message(run(&picky, 0)).contains("filter: element 0: rule: unsure"));
    let uneven = numbered(9).map(|mut element| {
        if element[1].i32().unwrap()[0] == 5 {
            element[0] = Tensor::zeros([3]);
        }
        Ok(element)
    });
    assert!(message(run(&uneven.batch(4, false).unwrap(), 0)).contains("batch: element 5"));
    // Infinite data, dropped in the middle with its threads.
    let mut endless = numbered(9).repeat(None).map(Ok).prefetch(2).elements(0, 0).unwrap();
    assert!(endless.next().is_some());
    drop(endless);
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(message(numbered(3).epoch(0, 0, 0)).contains("batch(n) before training"));
    assert!(message(numbered(3).batch(0, false)).contains("at least 1"));
    assert!(message(numbered(3).shuffle(0)).contains("at least 1"));
    let unequal = (Tensor::zeros([2, 1]), Tensor::zeros([3]));
    assert!(message(Pipeline::from_tensor_slices(unequal)).contains("2 rows in each"));
    assert!(message(Pipeline::from_tensor_slices(())).contains("at least one"));
}

#[test]
fn a_cache_runs_what_is_before_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = || {
        let calls = calls.clone();
        numbered(10).map(move |element| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(element)
        })
    };
    for (cached, left) in [(counted().cache(), 9), (counted().cache_file(&path), 10)] {
        calls.store(0, std::sync::atomic::Ordering::Relaxed);
        // An unfinished pass leaves its elements in memory, and no file.
        assert!(cached.elements(7, 0).unwrap().next().is_some());
        assert!(!path.exists());
        calls.store(0, std::sync::atomic::Ordering::Relaxed);
        for epoch in 0..3 {
            assert!(run(&cached, epoch).unwrap().into_iter().eq(0..10));
        }
        assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), left);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary files");
    let whole = std::fs::read(&path).unwrap();
    let mut huge = whole.clone();
    huge[11..19].fill(0xff);
    for (bytes, expected) in [
        (&whole[..whole.len() - 1], "truncated or damaged"),
        (&whole[..5], "truncated or damaged"),
        (b"somebody's file", "another file"),
        (&huge[..], "damaged"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let said = message(run(&counted().cache_file(&path), 0));
        assert!(said.contains("cache: expected") && said.contains(expected), "{said}");
    }
}

/// The shard of one of `workers` workers with one replica each.
pub(super) fn shard(worker: usize, workers: usize) -> LocalShard {
    LocalShard { mesh: phalanx_graph::Mesh::new(workers, 1), replicas: worker..worker + 1 }
}

/// Rows, and the labels and weights produced, for every batch of an epoch.
type Batches = Vec<(usize, Vec<i32>, Vec<f32>)>;

fn batches(data: &Pipeline, epoch: u64, start: usize, shard: Option<&LocalShard>) -> Batches {
    let (mut batch, mut out) = (HostBatch::default(), vec![]);
    let mut batches = data.epoch_of(7, epoch, start, shard).unwrap();
    while batches.next(&mut batch).unwrap() {
        let local_len = batch.local_len();
        let labels = batch.targets[0].i32().unwrap();
        let labels = match (&batch.local, shard) {
            (Some(local), Some(shard)) => {
                assert_eq!(*local, shard.rows(batch.rows));
                labels[..local_len].to_vec()
            }
            // All rows were produced; the session selects its own.
            (None, Some(shard)) => labels[shard.rows(batch.rows)].to_vec(),
            _ => labels.to_vec(),
        };
        for (x, y) in batch.inputs[0].f32().unwrap().chunks(2).zip(batch.targets[0].i32().unwrap())
        {
            assert_eq!(x, [*y as f32, *y as f32 + 0.5]);
        }
        assert_eq!(batch.sample_weight.len(), local_len);
        out.push((batch.rows, labels, vec![]));
    }
    out
}

/// The labels that a worker maps.
#[derive(Default)]
struct Calls(std::sync::Mutex<Vec<i32>>);

impl Calls {
    fn map(self: &Arc<Calls>, data: Pipeline) -> Pipeline {
        let calls = self.clone();
        data.map_parallel(3, move |element| {
            calls.0.lock().unwrap().push(element[1].i32().unwrap()[0]);
            Ok(element)
        })
    }

    fn take(&self) -> Vec<i32> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn workers_make_their_own_rows_of_the_batches_of_one_process() {
    type Chain = fn(&Arc<Calls>, &std::path::Path) -> Pipeline;
    let chains: [(&str, Chain); 13] = [
        ("map batch", |c, _| c.map(numbered(23)).batch(5, false).unwrap()),
        ("drop_remainder", |c, _| c.map(numbered(23)).batch(5, true).unwrap().prefetch(2)),
        ("tiny batches", |c, _| c.map(numbered(7)).batch(1, false).unwrap()),
        ("map shuffle", |c, _| c.map(numbered(23)).shuffle(6).unwrap().batch(4, false).unwrap()),
        ("shuffle map", |c, _| c.map(numbered(23).shuffle(50).unwrap()).batch(6, false).unwrap()),
        ("shuffle twice", |c, _| {
            let twice = numbered(23).shuffle(3).unwrap().prefetch(2).shuffle(4).unwrap();
            c.map(twice).batch(6, false).unwrap()
        }),
        ("take skip", |c, _| c.map(numbered(30).skip(4)).take(21).skip(2).batch(4, false).unwrap()),
        ("repeat", |c, _| {
            c.map(numbered(9).shuffle(4).unwrap()).repeat(3).batch(5, false).unwrap()
        }),
        ("zip", |c, _| {
            let odd = Tensor::new([23], (0..23).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
            let weights = Pipeline::from_tensor_slices(odd).unwrap();
            c.map(numbered(23)).zip(weights).shuffle(9).unwrap().batch(4, false).unwrap()
        }),
        ("shuffled batches", |c, _| {
            c.map(numbered(23)).batch(4, false).unwrap().shuffle(3).unwrap().repeat(2)
        }),
        ("cache", |c, _| c.map(numbered(23)).cache().shuffle(8).unwrap().batch(4, false).unwrap()),
        ("cached batches", |c, _| {
            c.map(numbered(23).shuffle(8).unwrap()).batch(4, false).unwrap().cache()
        }),
        ("cache file", |c, path| {
            let kept = c.map(numbered(23).shuffle(5).unwrap()).cache_file(path.join("kept"));
            kept.shuffle(8).unwrap().batch(4, false).unwrap()
        }),
    ];
    for (name, chain) in chains {
        let dir = tempfile::tempdir().unwrap();
        let calls = Arc::new(Calls::default());
        let one = chain(&calls, &dir.path().join("."));
        let expected: Vec<Batches> = (0..3).map(|epoch| batches(&one, epoch, 0, None)).collect();
        let resumed = batches(&one, 1, 2, None);
        assert_eq!(resumed[..], expected[1][2..], "{name}");
        let _ = std::fs::remove_file(dir.path().join("kept"));
        for workers in [2, 3] {
            let of = |worker: usize| shard(worker, workers);
            let cut = |all: &Batches, worker: usize| -> Batches {
                let own = |(rows, labels, _): &(usize, Vec<i32>, Vec<f32>)| {
                    (*rows, labels[of(worker).rows(*rows)].to_vec(), vec![])
                };
                all.iter().map(own).collect()
            };
            // Each worker builds its own pipeline, as processes do.
            let parts: Vec<Pipeline> = (0..workers).map(|_| chain(&calls, dir.path())).collect();
            for (worker, data) in parts.iter().enumerate() {
                for (epoch, expected) in expected.iter().enumerate() {
                    calls.take();
                    let got = batches(data, epoch as u64, 0, Some(&of(worker)));
                    assert_eq!(got, cut(expected, worker), "{name}: {worker} of {workers}");
                    let (mut made, mut own) = (calls.take(), cut(expected, worker));
                    let labels: Vec<i32> = own.iter_mut().flat_map(|b| b.1.clone()).collect();
                    let stands_in = own.iter().filter(|b| b.1.is_empty()).count();
                    let first = epoch == 0 || !name.contains("cache");
                    let most = labels.len() + stands_in;
                    assert!(made.len() <= most, "{name}: {} of {most} mapped", made.len());
                    assert!(!first || made.len() == most, "{name}: {} of {most}", made.len());
                    made.retain(|label| !labels.contains(label));
                    assert!(made.len() <= stands_in, "{name}: {made:?} for others");
                }
                let got = batches(data, 1, 2, Some(&of(worker)));
                assert_eq!(got, cut(&resumed, worker), "{name}: {worker} of {workers}, resumed");
            }
        }
    }
}

#[test]
fn steps_that_must_see_every_element_run_in_full_on_each_worker() {
    let calls = Arc::new(Calls::default());
    let even = |e: &Element| Ok(e[1].i32().unwrap()[0] % 2 == 0);
    let filtered = calls.map(numbered(23).filter(even)).batch(4, false).unwrap();
    let mapped = calls.map(numbered(23).batch(4, false).unwrap());
    for (data, count) in [(filtered, 12), (mapped, 6)] {
        let whole = batches(&data, 0, 0, None);
        for worker in 0..2 {
            calls.take();
            let got = batches(&data, 0, 0, Some(&shard(worker, 2)));
            for (got, whole) in got.iter().zip(&whole) {
                assert_eq!(got.1, whole.1[shard(worker, 2).rows(whole.0)]);
            }
            assert_eq!(calls.take().len(), count);
        }
    }
}

#[test]
fn workers_keep_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    let calls = Arc::new(Calls::default());
    let data = |n| calls.map(numbered(n)).cache_file(&path).batch(4, false).unwrap();
    let names = || {
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let (first, second) = (shard(0, 2), shard(1, 2));
    let whole = batches(&data(20), 0, 0, Some(&first));
    assert_eq!(calls.take().len(), 10);
    batches(&data(20), 0, 0, Some(&second));
    assert_eq!(calls.take().len(), 10);
    assert_eq!(names(), ["kept.rows-0-1-of-2", "kept.rows-1-2-of-2"]);
    assert_eq!(batches(&data(20), 0, 0, Some(&first)), whole);
    assert_eq!(calls.take().len(), 0, "a second run finds what the first has made");
    // A record truncated by a crash is produced again; a corrupt one is an error.
    let file = dir.path().join("kept.rows-0-1-of-2");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    assert_eq!(batches(&data(20), 0, 0, Some(&first)), whole);
    assert_eq!(calls.take().len(), 1);
    let mut damaged = std::fs::read(&file).unwrap();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    let (again, mut batch) = (data(20), HostBatch::default());
    let mut rest = again.epoch_of(7, 0, 4, Some(&first)).unwrap();
    let said = message(rest.next(&mut batch));
    drop(rest);
    drop(again);
    assert!(said.contains("kept.rows-0-1-of-2: expected whole elements"), "{said}");
    // For other data the file is recreated. A foreign file is left alone.
    assert_eq!(batches(&data(12), 0, 0, Some(&first)).len(), 3);
    assert_eq!(calls.take().len(), 6);
    std::fs::write(&file, b"somebody's file").unwrap();
    let said = message(data(20).epoch_of(7, 0, 0, Some(&first)).map(|_| ()));
    assert!(said.contains("kept.rows-0-1-of-2: expected a cache file"), "{said}");
    std::fs::remove_file(&file).unwrap();
    // Two passes at once on one file are rejected.
    let (one, two) = (data(20), data(20));
    let held = one.epoch_of(7, 0, 0, Some(&first)).unwrap();
    let said = message(two.epoch_of(7, 0, 0, Some(&first)).map(|_| ()));
    assert!(said.contains("one in use"), "{said}");
    drop(held);
    // A file of a single process serves all workers.
    batches(&data(20), 0, 0, None);
    calls.take();
    assert_eq!(batches(&data(20), 0, 0, Some(&first)), whole);
    assert_eq!(calls.take().len(), 0);
}

#[test]
fn fingerprints_are_of_the_tensors_and_the_steps() {
    let batched = |pipeline: Pipeline| pipeline.batch(2, false).unwrap().digest();
    let one = batched(numbered(6));
    assert_eq!(batched(numbered(6).prefetch(3)), one, "what changes no element does not count");
    let double = |f: f32| {
        move |mut e: Element| {
            e[0].f32_mut().unwrap_or_default().iter_mut().for_each(|v| *v *= f);
            Ok(e)
        }
    };
    // Functions cannot be distinguished.
    assert_eq!(batched(numbered(6).map(double(2.0))), batched(numbered(6).map(double(3.0))));
    let others = [
        numbered(7),
        numbered(6).shuffle(3).unwrap(),
        numbered(6).shuffle(4).unwrap(),
        numbered(6).shuffle(4).unwrap().cache(),
        numbered(6).map(double(1.0)),
        numbered(6).filter(|_| Ok(true)),
        numbered(6).take(5),
        numbered(6).skip(1),
        numbered(6).repeat(2),
        numbered(6).zip(numbered(6)),
        numbered(6).zip(numbered(6).skip(1)),
        numbered(6).enumerate(),
        numbered(6).cache_file("somewhere"),
    ];
    let mut digests: Vec<u64> = others.into_iter().map(batched).chain([one]).collect();
    let count = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), count);
}
