//! Heartbeat thread of a process: writes heartbeats for all handles of a repository while one of them needs
//! it.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet BAK-21
//! Invariant: when [`HeartbeatThread::begin`] returns, a heartbeat of this holder is durable. So a session
//! that opens after it names a holder that others can see.
//! Not here: files and encoding (`catalog::heartbeats`).

use crate::catalog::Catalog;
use crate::catalog::heartbeats::{HeartbeatContent, HeartbeatWriter};
use crate::keys::random;
use crate::request::error::Result;
use crate::request::open_session::{Holder, HolderId};
use crate::request::progress::{Progress, Stage};
use crate::sessions::lease::process::{self, HolderLock};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A tenth of the time that an observer waits.
const EVERY: Duration = Duration::from_secs(60);
/// Delay until the next attempt after a failed write.
const AGAIN: Duration = Duration::from_secs(5);

/// The heartbeat that all handles of one repository in this process share.
#[derive(Default)]
pub(crate) struct HeartbeatThread {
    state: Mutex<HeartbeatState>,
    /// Number of the newest heartbeat.
    newest: AtomicU64,
    /// Bytes that this process has read for backups.
    progress: AtomicU64,
}

#[derive(Default)]
struct HeartbeatState {
    /// Drawn when it is first needed.
    holder: Option<HolderId>,
    /// Number of guards in use.
    users: usize,
    thread: Option<(Arc<StopSignal>, JoinHandle<()>)>,
    /// The name and address that the thread writes.
    started_as: Option<Holder>,
    /// Shows other processes of this host that this one lives.
    holder_lock: Option<HolderLock>,
}

/// Tells the thread to end.
#[derive(Default)]
struct StopSignal {
    is_raised: Mutex<bool>,
    raised: Condvar,
}

impl StopSignal {
    /// Waits for `most`, or until it is raised; returns whether it was.
    fn wait(&self, most: Duration) -> bool {
        let mut is_raised = self.is_raised.lock();
        if !*is_raised {
            self.raised.wait_for(&mut is_raised, most);
        }
        *is_raised
    }

    fn raise(&self) {
        *self.is_raised.lock() = true;
        self.raised.notify_all();
    }
}

impl HeartbeatThread {
    /// Starts heartbeats. The first caller determines name and address.
    /// # Errors
    /// Errors of the store: the first heartbeat could not be written.
    pub(crate) fn begin(self: &Arc<Self>, catalog: &Catalog, holder: &Holder) -> Result<HeartbeatGuard> {
        self.begin_every(EVERY, catalog, holder)
    }

    /// As [`HeartbeatThread::begin`]; `None` if the thread writes another name or address.
    pub(crate) fn begin_as(
        self: &Arc<Self>,
        catalog: &Catalog,
        holder: &Holder,
    ) -> Result<Option<HeartbeatGuard>> {
        let is_other = {
            let state = self.state.lock();
            state.thread.is_some() && state.started_as.as_ref() != Some(holder)
        };
        match is_other {
            true => Ok(None),
            false => self.begin(catalog, holder).map(Some),
        }
    }

    /// As [`HeartbeatThread::begin`], at this interval.
    pub(crate) fn begin_every(
        self: &Arc<Self>,
        every: Duration,
        catalog: &Catalog,
        holder: &Holder,
    ) -> Result<HeartbeatGuard> {
        let mut state = self.state.lock();
        let id = match state.holder {
            Some(id) => id,
            None => *state.holder.insert(HolderId(random()?)),
        };
        if state.holder_lock.is_none() {
            state.holder_lock = process::lock(id);
        }
        if state.thread.is_none() {
            let mut writer = HeartbeatWriter::new(catalog.files(), id);
            let words =
                HeartbeatContent { name: holder.name.clone(), address: holder.address.clone(), progress: 0 };
            self.beat(&mut writer, &words)?;
            let stop = Arc::<StopSignal>::default();
            let (heartbeats, signal) = (Arc::clone(self), Arc::clone(&stop));
            let thread = std::thread::Builder::new()
                .name("heartbeat".into())
                .spawn(move || heartbeats.beat_until(&signal, every, writer, &words))
                .map_err(|error| crate::Error::Invalid {
                    reason: format!("the operating system starts no thread for heartbeats: {error}"),
                })?;
            state.thread = Some((stop, thread));
            state.started_as = Some(holder.clone());
        }
        state.users += 1;
        Ok(HeartbeatGuard { heartbeats: Arc::clone(self), holder: id })
    }

    fn beat_until(
        &self,
        stop: &StopSignal,
        every: Duration,
        mut writer: HeartbeatWriter,
        words: &HeartbeatContent,
    ) {
        let mut wait = every;
        while !stop.wait(wait) {
            wait = match self.beat(&mut writer, words) {
                Ok(()) => every,
                Err(error) => {
                    tracing::warn!(%error, "a heartbeat could not be written; without one for ten minutes other hosts end the \
                        backups of this process");
                    AGAIN.min(every)
                }
            };
        }
        writer.end();
    }

    /// A number whose write failed is not used again: the file may still appear later.
    fn beat(&self, writer: &mut HeartbeatWriter, words: &HeartbeatContent) -> Result<()> {
        let number = self.newest.fetch_add(1, Ordering::Relaxed) + 1;
        let words = HeartbeatContent { progress: self.progress.load(Ordering::Relaxed), ..words.clone() };
        writer.write(number, &words)
    }

    /// Forwards progress and counts it.
    pub(crate) fn counting<'a>(&'a self, inner: &'a dyn Progress) -> CountedProgress<'a> {
        CountedProgress { heartbeats: self, inner }
    }
}

/// Guard: heartbeats are written until it is dropped.
#[must_use = "heartbeats end when it is dropped"]
pub struct HeartbeatGuard {
    heartbeats: Arc<HeartbeatThread>,
    holder: HolderId,
}

impl HeartbeatGuard {
    /// The holder that the sessions of this process name.
    pub fn holder(&self) -> HolderId {
        self.holder
    }
}

impl Drop for HeartbeatGuard {
    fn drop(&mut self) {
        let ending = {
            let mut state = self.heartbeats.state.lock();
            state.users -= 1;
            match state.users {
                0 => state.thread.take(),
                _ => None,
            }
        };
        if let Some((stop, thread)) = ending {
            stop.raise();
            if thread.join().is_err() {
                tracing::warn!("the heartbeat thread panicked");
            }
        }
    }
}

/// A [`Progress`] that also counts for the heartbeat.
pub(crate) struct CountedProgress<'a> {
    heartbeats: &'a HeartbeatThread,
    inner: &'a dyn Progress,
}

impl Progress for CountedProgress<'_> {
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        self.inner.stage(stage, what, total);
    }
    fn advance(&self, delta: u64) {
        self.heartbeats.progress.fetch_add(delta, Ordering::Relaxed);
        self.inner.advance(delta);
    }
    fn stored(&self, delta_bytes: u64) {
        self.inner.stored(delta_bytes);
    }
    fn notice(&self, message: &str) {
        self.inner.notice(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::heartbeats::{clear_heartbeats, heartbeat_content, list_heartbeats};
    use crate::world::*;
    use copal_volume::MemoryStore;

    #[test]
    fn heartbeats_are_written_while_needed_and_all_are_deleted_at_the_end() {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let catalog = repository.parts().catalog();
        let thread = Arc::new(HeartbeatThread::default());
        let holder = |name: &str| Holder { name: name.into(), address: "10.0.0.1:7".into() };
        let every = Duration::from_micros(200);
        let first = thread.begin_every(every, catalog, &holder("first")).unwrap();
        let heartbeats = list_heartbeats(catalog.files()).unwrap();
        assert!(!heartbeats.is_empty(), "there is a beat before anything else happens");
        let second = thread.begin_every(every, catalog, &holder("second")).unwrap();
        assert_eq!(first.holder(), second.holder());
        thread.counting(&crate::Silent).advance(5);
        drop(first);
        // Old ones are deleted, and the newest stays.
        let mut newest = 0;
        while newest < 3 * HeartbeatWriter::KEPT as u64 {
            let heartbeats = list_heartbeats(catalog.files()).unwrap();
            // Symptom: on a busy machine a listing had 11 heartbeats. Cause: it is read in pages, and between two pages
            // new ones are written. Fix: heartbeats that are too old beside the listing before must be gone.
            let oldest = heartbeats.iter().map(|beat| beat.number).min().unwrap();
            assert!(oldest + HeartbeatWriter::KEPT as u64 > newest, "{oldest} is there beside {newest}");
            newest = heartbeats.iter().map(|beat| beat.number).max().unwrap();
            assert!(heartbeats.iter().all(|beat| beat.holder == second.holder()));
            if let Some(words) = heartbeat_content(catalog.files(), heartbeats.last().unwrap()).unwrap()
                && newest > 10
            {
                assert_eq!((&*words.name, words.progress), ("first", 5));
            }
            std::thread::yield_now();
        }
        drop(second);
        assert!(list_heartbeats(catalog.files()).unwrap().is_empty());
        // Numbers continue: a new heartbeat cannot be taken for an old one.
        let third = thread.begin_every(every, catalog, &holder("third")).unwrap();
        assert!(list_heartbeats(catalog.files()).unwrap()[0].number > newest);
        drop(third);
    }

    /// A host that may not delete leaves all its heartbeats; a host that may deletes all but the newest.
    #[test]
    fn all_but_the_newest_heartbeat_of_each_holder_are_deleted() {
        let repository = init_as(&MemoryStore::new(), FLEET);
        let catalog = repository.parts().catalog();
        for (holder, heartbeats) in [(1, 3), (2, 5)] {
            for number in 1..=heartbeats {
                // Like a process that ended before it deleted any.
                let mut writer = HeartbeatWriter::new(catalog.files(), HolderId([holder; 16]));
                writer.write(number, &HeartbeatContent::default()).unwrap();
            }
        }
        assert_eq!(list_heartbeats(catalog.files()).unwrap().len(), 8);
        clear_heartbeats(catalog.files()).unwrap();
        let left: Vec<_> = list_heartbeats(catalog.files())
            .unwrap()
            .iter()
            .map(|beat| (beat.holder.0[0], beat.number))
            .collect();
        assert_eq!(left, [(1, 3), (2, 5)]);
    }
}
