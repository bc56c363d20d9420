//! Commits that are handed in and waited for later, so that one thread can keep many outstanding.
//!
//! Such a commit joins a group like any other. When nobody who waits leads that group, a committer does: a
//! few threads that are started with the first commit of this kind, since each may spend its time in a
//! durable write.
//! Invariant: what was handed in is committed also when its handle is dropped.

use super::{
    Write,
    queue::{CommitTicket, Turn},
};
use crate::{Error, Store, engine::Engine};
use parking_lot::Mutex;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
};

/// A commit on its way, from [`crate::Batch::commit_submit`]. Dropping it detaches: the commit goes on.
#[must_use = "wait() tells whether the commit happened"]
pub struct Commit {
    ticket: Option<CommitTicket>,
    /// Keeps the store open until the commit is known.
    _store: Store,
}

impl Commit {
    pub(crate) fn new(store: &Store, ticket: Option<CommitTicket>) -> Commit {
        Commit { ticket, _store: store.clone() }
    }

    /// Waits until the commit is as safe as was asked for. Blocks.
    /// # Errors
    /// As [`crate::Batch::commit`]; nothing of the batch happened then.
    pub fn wait(self) -> Result<(), Error> {
        self.ticket.map_or(Ok(()), |ticket| ticket.wait())
    }

    /// Whether [`Commit::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.outcome().is_some())
    }
}

impl std::fmt::Debug for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commit").field("done", &self.is_done()).finish()
    }
}

/// Groups that committers keep on their way. Measured: docs/decisions/2026-11-21-commits-side-by-side.md.
const COMMITTERS: usize = 2;

/// The threads of one store.
#[derive(Default)]
pub(crate) struct Committers {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Committers {
    /// Starts them, if they do not run yet; they end after [`super::queue::CommitQueue::end_submitting`].
    pub(crate) fn start(&self, engine: &Arc<Engine>) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        while threads.len() < COMMITTERS {
            let engine = Arc::clone(engine);
            let thread = std::thread::Builder::new().name("copal-kv-commit".to_owned());
            threads.push(thread.spawn(move || serve(&engine))?);
        }
        Ok(())
    }

    /// Waits until what was handed in is on its way.
    pub(crate) fn end(&self, engine: &Engine) {
        engine.writes.queue.end_submitting();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                engine.poison.set("a committer panicked");
            }
        }
    }
}

fn serve(engine: &Engine) {
    while let Some((turn, writes)) = engine.writes.queue.committers_turn() {
        let led = catch_unwind(AssertUnwindSafe(|| engine.lead_detached(turn, writes)));
        if led.is_err() {
            // What it left half done is unknown; those who come later are told.
            engine.poison.set("a committer panicked");
        }
    }
}

impl Engine {
    /// Leads what nobody who waits does, in a store without threads.
    pub(crate) fn lead_what_was_handed_in(&self) {
        while let Some((turn, writes)) = self.writes.queue.committers_turn_now() {
            self.lead_detached(turn, writes);
        }
    }

    fn lead_detached(&self, turn: Turn, writes: Vec<Write>) {
        let Some(in_flight) = self.lead(turn, writes) else {
            return;
        };
        if self.objects.is_driven() {
            in_flight.wait();
        } else {
            in_flight.detach();
        }
    }
}
