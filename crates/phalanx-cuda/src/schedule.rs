//! Assignment of work items to streams, with the items that each must wait for.

use crate::work_item::WorkItem;

/// Streams for work items that run concurrently.
pub(crate) const STREAMS: usize = 4;

/// The stream of a work item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamSlot {
    pub stream: usize,
    /// Earlier items on other streams that must finish first.
    pub waits: Vec<usize>,
    /// Whether another stream waits for this item.
    pub awaited: bool,
}

/// Assigns work items to `streams` in order. An item continues the stream of the last item it must
/// wait for, if that is still the last on its stream; otherwise it goes to the stream that has been
/// idle longest. All-reduces have an extra stream, so that only their readers wait for them.
pub(crate) fn schedule(items: &[WorkItem], streams: usize) -> Vec<StreamSlot> {
    let mut placed: Vec<StreamSlot> = Vec::with_capacity(items.len());
    // For each stream its last item, and the last item of every stream that it has waited for.
    let all = streams + 1;
    let mut last: Vec<Option<usize>> = vec![None; all];
    let mut known: Vec<Vec<Option<usize>>> = vec![vec![None; all]; all];
    let mut seen: Vec<Vec<Option<usize>>> = Vec::with_capacity(items.len());
    for (i, work) in items.iter().enumerate() {
        let mut needed: Vec<Option<usize>> = vec![None; all];
        for j in 0..i {
            if work.follows(&items[j]) {
                let slot = &mut needed[placed[j].stream];
                *slot = (*slot).max(Some(j));
            }
        }
        let behind = (0..streams).filter(|s| last[*s].is_some() && needed[*s] == last[*s]);
        let newest = behind.max_by_key(|s| last[*s]);
        let idle = || (0..streams).min_by_key(|s| last[*s]).unwrap_or(0);
        let stream = if work.reduces() { streams } else { newest.unwrap_or_else(idle) };
        let mut now = known[stream].clone();
        let mut waits = vec![];
        for s in (0..all).filter(|s| *s != stream) {
            let Some(j) = needed[s].filter(|j| Some(*j) > now[s]) else { continue };
            waits.push(j);
            for (mine, theirs) in now.iter_mut().zip(&seen[j]) {
                *mine = (*mine).max(*theirs);
            }
            now[s] = now[s].max(Some(j));
        }
        // Drop waits that another wait implies.
        let implied =
            |j: usize| waits.iter().any(|k| *k != j && seen[*k][placed[j].stream] >= Some(j));
        let waits: Vec<usize> = waits.iter().copied().filter(|j| !implied(*j)).collect();
        waits.iter().for_each(|j| placed[*j].awaited = true);
        now[stream] = Some(i);
        last[stream] = Some(i);
        known[stream].clone_from(&now);
        seen.push(now);
        placed.push(StreamSlot { stream, waits, awaited: false });
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Block, Elem, Ptr, Span};
    use crate::work_item::ReducePart;

    fn work(reads: &[usize], writes: &[usize]) -> WorkItem {
        let spans = |v: &[usize]| {
            v.iter().map(|at| Span::whole(Ptr::new(0, Block::Arena, *at), 8)).collect()
        };
        let (reads, writes) = (spans(reads), spans(writes));
        WorkItem { label: String::new(), instr: 0, tasks: vec![], reads, writes }
    }

    #[test]
    fn branches_run_concurrently_and_join() {
        let items = [work(&[], &[0]), work(&[0], &[8]), work(&[0], &[16]), work(&[8, 16], &[24])];
        let placed = schedule(&items, 2);
        assert_eq!(placed[1].stream, 0);
        assert_eq!((placed[2].stream, &placed[2].waits[..]), (1, &[0][..]));
        assert_eq!((placed[3].stream, &placed[3].waits[..]), (1, &[1][..]));
        assert!(placed[0].awaited && placed[1].awaited && !placed[3].awaited);
    }

    #[test]
    fn the_backward_pass_continues_during_all_reduces() {
        let gradient = |at: usize| {
            let at = Ptr::new(0, Block::Gradients, at);
            let part = ReducePart { from: at, to: at, elem: Elem::F32, len: 2 };
            WorkItem::reduce("gradients".into(), 0, vec![part])
        };
        let makes = |reads: &[usize], at: usize| {
            let writes = vec![Span::whole(Ptr::new(0, Block::Gradients, at), 8)];
            WorkItem { writes, ..work(reads, &[]) }
        };
        // Two layers: derivative, gradient, its all-reduce; then the update.
        let mut items = vec![work(&[], &[0]), makes(&[0], 0), gradient(0)];
        items.extend([work(&[0], &[8]), makes(&[8], 8), gradient(8)]);
        let all = vec![Span::whole(Ptr::new(0, Block::Gradients, 0), 16)];
        items.push(WorkItem { reads: all, ..work(&[], &[]) });
        let placed = schedule(&items, 2);
        let streams: Vec<usize> = placed.iter().map(|p| p.stream).collect();
        assert_eq!((streams[2], streams[5]), (2, 2));
        assert!([0, 1, 3, 4, 6].iter().all(|i| streams[*i] < 2), "{streams:?}");
        assert_eq!((&placed[2].waits[..], &placed[5].waits[..]), (&[1][..], &[4][..]));
        let waits = |i: usize| placed[i].waits.contains(&2) || placed[i].waits.contains(&5);
        assert!(!waits(3) && !waits(4), "{placed:?}");
        assert_eq!(placed[6].waits, [5], "the last sum stands for both");
    }

    #[test]
    fn a_buffer_is_not_written_while_it_is_read() {
        let items = [work(&[], &[0]), work(&[0], &[8]), work(&[], &[0])];
        let placed = schedule(&items, 1);
        assert!(placed.iter().all(|p| p.waits.is_empty()));
        let placed = schedule(&items, 3);
        assert_eq!(placed[2].stream, 0);
    }
}
