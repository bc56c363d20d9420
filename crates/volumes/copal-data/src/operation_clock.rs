//! Ids and creation times that never go back, not even over restarts (VOL-1).
//!
//! The generator of ids starts above every time that an earlier run of the store may have acknowledged. For
//! this the store keeps a *mark*: no operation is acknowledged with a time above the durable mark. A mark
//! lies one second ahead and is part of the batch of the operation that needs it. It costs one small row per
//! second of activity and no write of its own. A clean close replaces it with the exact time. After a crash,
//! creation times may be up to a second ahead of the clock.
//!
//! Invariants
//! - Every batch with an operation above the durable mark contains a higher mark.
//! - Each mark is a separate row with the time in its key. Marks may commit in another order than they were
//!   drawn, and none hides another.

use crate::format;
use crate::keyspaces::DataKeyspaces;
use copal_kv::Batch;
use copal_volume::{Clock, FileId, FileIds, OpId};
use parking_lot::Mutex;
use std::sync::Arc;

const AHEAD_MS: u64 = 1000;

/// The store's generator of ids.
pub(crate) struct OperationClock {
    clock: Arc<dyn Clock>,
    state: Mutex<MarkState>,
}

struct MarkState {
    ids: FileIds,
    /// Highest mark known to be durable.
    durable_ms: u64,
    /// Highest mark put into any batch.
    drawn_ms: u64,
    /// Marks in the store, or in batches under way.
    marks: Vec<u64>,
}

/// Id of an operation, and the mark that its batch has to contain.
pub(crate) struct OperationStamp {
    pub(crate) op: OpId,
    mark_ms: Option<u64>,
    /// Marks below the durable one: they are deleted.
    stale: Vec<u64>,
}

impl OperationClock {
    /// Creates a generator that starts above all `marks` of the store.
    pub(crate) fn new(clock: Arc<dyn Clock>, incarnation: u64, marks: Vec<u64>) -> OperationClock {
        let durable_ms = marks.iter().copied().max().unwrap_or(0);
        let floor_ms = if marks.is_empty() { 0 } else { durable_ms + 1 };
        OperationClock {
            clock,
            state: Mutex::new(MarkState {
                ids: FileIds::new(incarnation, floor_ms),
                durable_ms,
                drawn_ms: durable_ms,
                marks,
            }),
        }
    }

    /// Current time of the clock, ms since 1970. Ids may be ahead of it.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Draws the id of a file at the start of its upload.
    pub(crate) fn file(&self) -> FileId {
        let now_ms = self.clock.now_ms();
        self.state.lock().ids.draw_file(now_ms)
    }

    /// Draws the id of an operation that is about to commit. The stamp belongs in the same batch.
    pub(crate) fn stamp(&self) -> OperationStamp {
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        let op = state.ids.draw_op(now_ms);
        if op.ms() <= state.durable_ms {
            return OperationStamp { op, mark_ms: None, stale: Vec::new() };
        }
        if op.ms() > state.drawn_ms {
            state.drawn_ms = op.ms().saturating_add(AHEAD_MS);
            let mark = state.drawn_ms;
            state.marks.push(mark);
        }
        let durable_ms = state.durable_ms;
        let stale = state.marks.extract_if(.., |mark| *mark < durable_ms).collect();
        OperationStamp { op, mark_ms: Some(state.drawn_ms), stale }
    }

    /// Records that the batch with this stamp is durable.
    pub(crate) fn confirm(&self, stamp: &OperationStamp) {
        if let Some(mark_ms) = stamp.mark_ms {
            let mut state = self.state.lock();
            state.durable_ms = state.durable_ms.max(mark_ms);
        }
    }

    /// Replaces the marks with the exact time of the last operation, for a clean close. `false`: there is
    /// nothing to write.
    pub(crate) fn note_exact_time(&self, spaces: &DataKeyspaces, batch: &mut Batch) -> bool {
        let mut state = self.state.lock();
        let exact_ms = state.ids.high_ms();
        if state.marks.is_empty() || state.marks == [exact_ms] {
            return false;
        }
        for mark in std::mem::replace(&mut state.marks, vec![exact_ms]) {
            if mark != exact_ms {
                batch.delete(&spaces.node, &format::mark_key(mark));
            }
        }
        put_mark(spaces, batch, exact_ms);
        state.durable_ms = exact_ms;
        state.drawn_ms = exact_ms;
        true
    }
}

impl OperationStamp {
    /// Adds the marks to the operation's batch.
    pub(crate) fn put(&self, spaces: &DataKeyspaces, batch: &mut Batch) {
        if let Some(mark_ms) = self.mark_ms {
            put_mark(spaces, batch, mark_ms);
        }
        for &mark in &self.stale {
            batch.delete(&spaces.node, &format::mark_key(mark));
        }
    }
}

fn put_mark(spaces: &DataKeyspaces, batch: &mut Batch, mark_ms: u64) {
    let key = format::mark_key(mark_ms);
    batch.put(&spaces.node, &key, format::mark_row(&key));
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_volume::ManualClock;

    fn times(now_ms: u64, marks: Vec<u64>) -> (Arc<ManualClock>, OperationClock) {
        let clock = Arc::new(ManualClock::new(now_ms));
        (clock.clone(), OperationClock::new(clock, 1, marks))
    }

    #[test]
    fn an_operation_above_the_durable_mark_carries_a_mark() {
        let (clock, times) = times(10_000, Vec::new());
        let first = times.stamp();
        assert_eq!(first.op.ms(), 10_000);
        assert_eq!(first.mark_ms, Some(11_000));
        // The first mark is not durable yet, so another stamp has the same one.
        let second = times.stamp();
        assert_eq!(second.mark_ms, Some(11_000));
        times.confirm(&second);
        assert_eq!(times.stamp().mark_ms, None, "covered by a durable mark");
        clock.set(11_001);
        let third = times.stamp();
        assert_eq!(third.mark_ms, Some(12_001));
        assert_eq!(third.stale, [] as [u64; 0], "the only durable mark is kept");
        times.confirm(&third);
        clock.set(20_000);
        assert_eq!(times.stamp().stale, [11_000]);
    }

    #[test]
    fn a_restart_starts_above_every_mark() {
        let (_, times) = times(5, vec![11_000, 12_500]);
        assert_eq!(times.stamp().op.ms(), 12_501, "the clock went back");
        assert!(times.file().ms() >= 12_501);
    }
}
