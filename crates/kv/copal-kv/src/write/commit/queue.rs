//! The commit queue: writers gather in groups, the first writer of a group leads it, and several groups are
//! in flight.
//!
//! - A group accepts writes until its turn comes. Groups take turns one after another.
//! - The leader places its group ([`CommitTurn::place`]) and passes the turn on. The group completes
//!   ([`GroupCompletion::complete`]) when its log write is done.
//! - At most `width` groups are between the two.
//! - Another turn begins only if its group is full, or as many writes wait as are in flight. So groups with
//!   half of the writers alternate, instead of many small groups that each cost a device flush.
//!
//! Invariants
//! - Groups are placed and take effect in the order of their turns: the visible sequence passes a group when
//!   it and all groups before it have completed successfully.
//! - Once a group has failed, none after it takes effect (KV-2).
//! - Every writer gets a result, even if its leader's thread panics or the log is dropped.
//!
//! Not here: the leader's work (`leader`).

use super::WriteRequest;
use crate::{Error, session::poison::PoisonFlag, tree::snapshots::SnapshotList};
use copal_object::StoreError;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// A value behind a lock, with threads that wait for it to change.
pub(crate) trait Monitor<T>: Send + Sync {
    fn new(value: T) -> Self;
    /// Reads the value, or changes it in a way that no thread waits for. `look` must not block.
    fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R;
    /// Changes the value and wakes the waiting threads.
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R;
    /// Waits until `look` returns a result; it runs again after every [`Monitor::change`].
    fn wait_for<R>(&self, look: impl FnMut(&mut T) -> Option<R>) -> R;
}

/// Kind of monitors: those of threads, or those of a test.
pub(crate) trait MonitorKind: Send + Sync + 'static {
    type Of<T: Send>: Monitor<T>;
}

/// Monitors of the operating system's threads.
#[derive(Debug)]
pub(crate) struct ThreadMonitors;

impl MonitorKind for ThreadMonitors {
    type Of<T: Send> = ThreadMonitor<T>;
}

/// See [`ThreadMonitors`].
#[derive(Debug)]
pub(crate) struct ThreadMonitor<T> {
    inner: Mutex<WatchedValue<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct WatchedValue<T> {
    value: T,
    waiting: u32,
}

impl<T> ThreadMonitor<T> {
    /// A poisoned lock is ignored: no step under the lock leaves the value half changed.
    fn lock(&self) -> MutexGuard<'_, WatchedValue<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> Monitor<T> for ThreadMonitor<T> {
    fn new(value: T) -> ThreadMonitor<T> {
        ThreadMonitor { inner: Mutex::new(WatchedValue { value, waiting: 0 }), changed: Condvar::new() }
    }

    fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.lock().value)
    }

    fn wait_for<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut inner = self.lock();
        loop {
            if let Some(found) = look(&mut inner.value) {
                return found;
            }
            inner.waiting += 1;
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner.value);
        let waiting = inner.waiting;
        drop(inner);
        if waiting > 0 {
            self.changed.notify_all();
        }
        result
    }
}

/// Log bytes at which a group takes no further writes.
const GROUP_BYTES: usize = 1 << 20;
/// Most groups in flight. Measured: docs/decisions/2026-11-21-commits-side-by-side.md.
pub(crate) const WIDTH: usize = 4;

/// Writers that share a group, and its outcome.
pub(crate) struct CommitGroup<M: MonitorKind = ThreadMonitors> {
    turn: M::Of<bool>,
    outcome: M::Of<Option<GroupOutcome>>,
}

enum GroupOutcome {
    All(Result<(), Error>),
    Each(Vec<Result<(), Error>>),
}

/// A write's position in its group.
struct CommitTicket<M: MonitorKind = ThreadMonitors> {
    group: Arc<CommitGroup<M>>,
    index: usize,
}

impl<M: MonitorKind> CommitTicket<M> {
    /// Waits for the outcome of the write.
    fn wait(&self) -> Result<(), Error> {
        self.group.outcome.wait_for(|outcome| self.own(outcome.as_ref()))
    }

    fn own(&self, outcome: Option<&GroupOutcome>) -> Option<Result<(), Error>> {
        match outcome? {
            GroupOutcome::All(result) => Some(result.clone()),
            // Each write of the group has an outcome, in joining order.
            GroupOutcome::Each(results) => Some(results[self.index].clone()),
        }
    }
}

/// A group that waits for its turn.
struct GatheringGroup<M: MonitorKind> {
    group: Arc<CommitGroup<M>>,
    writes: Vec<WriteRequest>,
    /// Log bytes.
    bytes: usize,
}

/// A group in flight. Without `group` no writer waits for it: it belongs to a leader that commits write by
/// write.
struct GroupInFlight<M: MonitorKind> {
    number: u64,
    writes: usize,
    last_seq: u64,
    completed: Option<Result<(), Error>>,
    group: Option<Arc<CommitGroup<M>>>,
}

struct CommitLine<M: MonitorKind> {
    waiting: VecDeque<GatheringGroup<M>>,
    /// A thread has the turn.
    turn_taken: bool,
    in_flight: VecDeque<GroupInFlight<M>>,
    placed: u64,
    /// Error of the first group that failed.
    failed: Option<Error>,
    /// Groups take effect as they complete: the tests' negative control.
    #[cfg(test)]
    broken: bool,
}

/// The commit queue of one store; see the module.
pub(crate) struct CommitQueue<M: MonitorKind = ThreadMonitors> {
    line: M::Of<CommitLine<M>>,
    width: usize,
    snapshots: Arc<SnapshotList>,
    poison: Arc<PoisonFlag>,
}

/// A group, and the result for its writers.
type GroupResult<M> = (Arc<CommitGroup<M>>, Result<(), Error>);

impl<M: MonitorKind> CommitQueue<M> {
    /// At most `width` groups are in flight at once.
    pub(crate) fn new(
        width: usize,
        snapshots: Arc<SnapshotList>,
        poison: Arc<PoisonFlag>,
    ) -> Arc<CommitQueue<M>> {
        let line = CommitLine {
            waiting: VecDeque::new(),
            turn_taken: false,
            in_flight: VecDeque::new(),
            placed: 0,
            failed: None,
            #[cfg(test)]
            broken: false,
        };
        Arc::new(CommitQueue { line: M::Of::new(line), width, snapshots, poison })
    }

    /// Joins a group and waits for the outcome. If this write is the group's first, calls `lead` in its turn,
    /// with the group's writes.
    pub(crate) fn commit(
        self: &Arc<Self>,
        write: WriteRequest,
        lead: impl FnOnce(CommitTurn<M>, Vec<WriteRequest>),
    ) -> Result<(), Error> {
        let (place, next) = self.line.with(|line| (line.join(write), line.next_turn(self.width)));
        let leads = place.index == 0;
        let own = next.as_ref().is_some_and(|group| Arc::ptr_eq(group, &place.group));
        if !(leads && own) {
            call(next);
        }
        if leads {
            if !own {
                place.group.turn.wait_for(|turn| turn.then_some(()));
            }
            if let Some((turn, writes)) = self.begin() {
                lead(turn, writes);
            }
        }
        place.wait()
    }

    /// Waits until no group is in flight. The caller must prevent new placements meanwhile.
    /// # Errors
    /// The error of the group that failed.
    pub(crate) fn drain(&self) -> Result<(), Error> {
        self.line.wait_for(|line| {
            line.in_flight.is_empty().then(|| match &line.failed {
                None => Ok(()),
                Some(error) => Err(error.clone()),
            })
        })
    }

    /// Takes the group whose turn it is.
    fn begin(self: &Arc<Self>) -> Option<(CommitTurn<M>, Vec<WriteRequest>)> {
        let gathering = self.line.with(|line| line.waiting.pop_front())?;
        let turn = CommitTurn {
            queue: Arc::clone(self),
            group: gathering.group,
            writes: gathering.writes.len(),
            placed: false,
        };
        Some((turn, gathering.writes))
    }

    fn pass_on(&self) {
        let next = self.line.with(|line| {
            line.turn_taken = false;
            line.next_turn(self.width)
        });
        call(next);
    }

    fn place(
        self: &Arc<Self>,
        last_seq: u64,
        writes: usize,
        group: Option<Arc<CommitGroup<M>>>,
    ) -> GroupCompletion<M> {
        let number = self.line.with(|line| {
            line.placed += 1;
            line.in_flight.push_back(GroupInFlight {
                number: line.placed,
                writes,
                last_seq,
                completed: None,
                group,
            });
            line.placed
        });
        GroupCompletion { queue: Arc::clone(self), number, completed: false }
    }

    fn completed(&self, number: u64, result: Result<(), Error>) {
        let (told, next) = self.line.change(|line| {
            if let Some(flight) = line.in_flight.iter_mut().find(|flight| flight.number == number) {
                flight.completed = Some(result);
            }
            (line.take_effect(&self.snapshots), line.next_turn(self.width))
        });
        call(next);
        for (group, result) in told {
            group.tell(GroupOutcome::All(result));
        }
    }
}

/// Wakes the first writer of a group whose turn has come.
fn call<M: MonitorKind>(next: Option<Arc<CommitGroup<M>>>) {
    if let Some(group) = next {
        group.turn.change(|turn| *turn = true);
    }
}

impl<M: MonitorKind> CommitLine<M> {
    /// Adds a write to the group that still gathers, or to a new one.
    fn join(&mut self, write: WriteRequest) -> CommitTicket<M> {
        let bytes = write.log_bytes;
        if let Some(last) = self.waiting.back_mut()
            && last.bytes + bytes <= GROUP_BYTES
        {
            last.writes.push(write);
            last.bytes += bytes;
            return CommitTicket { group: Arc::clone(&last.group), index: last.writes.len() - 1 };
        }
        let group = Arc::new(CommitGroup { turn: M::Of::new(false), outcome: M::Of::new(None) });
        self.waiting.push_back(GatheringGroup { group: Arc::clone(&group), writes: vec![write], bytes });
        CommitTicket { group, index: 0 }
    }

    /// Gives the turn to the first waiting group, if the turn is free and another group in flight is
    /// worthwhile. Returns that group; the caller wakes its first writer after releasing the lock.
    fn next_turn(&mut self, width: usize) -> Option<Arc<CommitGroup<M>>> {
        let waiting: usize = self.waiting.iter().map(|group| group.writes.len()).sum();
        let under_way: usize = self.in_flight.iter().map(|flight| flight.writes).sum();
        let front = self.waiting.front()?;
        // It would gather little more.
        let is_full = self.waiting.len() > 1 || front.bytes >= GROUP_BYTES / 2;
        if self.turn_taken || self.in_flight.len() >= width || (waiting < under_way && !is_full) {
            return None;
        }
        self.turn_taken = true;
        Some(Arc::clone(&front.group))
    }

    /// Lets the completed groups at the front take effect; returns the results for their writers.
    fn take_effect(&mut self, snapshots: &SnapshotList) -> Vec<GroupResult<M>> {
        let mut told = Vec::new();
        #[cfg(test)]
        self.move_completed_to_the_front();
        while let Some(result) = self.in_flight.front_mut().and_then(|flight| flight.completed.take()) {
            let Some(flight) = self.in_flight.pop_front() else {
                break;
            };
            let result = match &self.failed {
                Some(error) => Err(error.clone()),
                None => result,
            };
            match &result {
                Ok(()) => snapshots.advance(flight.last_seq),
                Err(error) => self.failed = Some(error.clone()),
            }
            told.extend(flight.group.map(|group| (group, result)));
        }
        told
    }
}

impl<M: MonitorKind> CommitGroup<M> {
    fn tell(&self, outcome: GroupOutcome) {
        self.outcome.change(|told| *told = Some(outcome));
    }
}

/// The right to place a group. Dropping it passes the turn on. A group that is neither placed nor answered by
/// then has failed, and the store is poisoned.
pub(crate) struct CommitTurn<M: MonitorKind = ThreadMonitors> {
    queue: Arc<CommitQueue<M>>,
    group: Arc<CommitGroup<M>>,
    writes: usize,
    /// The group is in flight, or answered.
    placed: bool,
}

impl<M: MonitorKind> CommitTurn<M> {
    /// Puts the group in flight with the sequences up to `last_seq`; the caller passes the turn on next.
    pub(crate) fn place(&mut self, last_seq: u64) -> GroupCompletion<M> {
        self.placed = true;
        self.queue.place(last_seq, self.writes, Some(Arc::clone(&self.group)))
    }

    /// Puts part of the group in flight and keeps the turn; [`CommitTurn::answer`] gives the outcomes.
    pub(crate) fn place_part(&self, last_seq: u64) -> GroupCompletion<M> {
        self.queue.place(last_seq, 1, None)
    }

    /// Ends the turn with nothing in flight: gives each writer its error, or the result of its part.
    pub(crate) fn answer(mut self, results: Vec<Result<(), Error>>) {
        self.end(GroupOutcome::Each(results));
    }

    /// Ends the turn with an error for the whole group, of which nothing is in flight.
    pub(crate) fn refuse(mut self, error: Error) {
        self.end(GroupOutcome::All(Err(error)));
    }

    fn end(&mut self, outcome: GroupOutcome) {
        self.placed = true;
        self.group.tell(outcome);
    }
}

impl<M: MonitorKind> Drop for CommitTurn<M> {
    fn drop(&mut self) {
        if !self.placed {
            // Values of the group may have places that the log does not record.
            let reason = "the thread that led the commit panicked".to_owned();
            self.queue.poison.set(&reason);
            self.end(GroupOutcome::All(Err(Error::poisoned(reason))));
        }
        self.queue.pass_on();
    }
}

/// The duty to report how a group completed. If it is dropped without a report, the group has failed and the
/// store is poisoned.
pub(crate) struct GroupCompletion<M: MonitorKind = ThreadMonitors> {
    queue: Arc<CommitQueue<M>>,
    number: u64,
    completed: bool,
}

impl<M: MonitorKind> GroupCompletion<M> {
    /// Reports a group that is in the memtable and has reached its durability, or whose log write failed.
    pub(crate) fn complete(mut self, result: Result<(), StoreError>) {
        self.completed = true;
        let result = result.map_err(|error| {
            let error = Error::Poisoned { reason: error.to_string(), host_full: error.is_host_full() };
            self.queue.poison.set_by(&error);
            error
        });
        self.queue.completed(self.number, result);
    }
}

impl<M: MonitorKind> Drop for GroupCompletion<M> {
    fn drop(&mut self) {
        if !self.completed {
            let reason = "a commit was dropped on its way into the log".to_owned();
            self.queue.poison.set(&reason);
            self.queue.completed(self.number, Err(Error::poisoned(reason)));
        }
    }
}

#[cfg(test)]
impl<M: MonitorKind> CommitQueue<M> {
    fn break_order(&self, broken: bool) {
        self.line.with(|line| line.broken = broken);
    }
}

#[cfg(test)]
impl<M: MonitorKind> CommitLine<M> {
    fn move_completed_to_the_front(&mut self) {
        if self.broken {
            self.in_flight.make_contiguous().sort_by_key(|flight| flight.completed.is_none());
        }
    }
}

#[cfg(test)]
mod tests;
