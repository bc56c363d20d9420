//! Answers that wait to be fetched, for each asker.
//!
//! Invariants
//! - The bytes of an asker and of all stay within their bounds; an answer longer than a bound is sent when
//!   nothing else waits. A page of answers counts, and is sent again, until its asker confirms it.
//! - Answers go to the newest call of their asker: an earlier call may belong to an ended connection.
//! - An addition waits for space at most for `patience`; then the asker with the most bytes loses its
//!   answers. An asker that fetches nothing for [`STALLED`] loses its answers, too. Its next call reports the
//!   loss.

use super::options::ServerOptions;
use crate::fleet::messages::{AnswerMessage, Instance};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tracing::warn;

/// An asker that fetches nothing for this long counts as gone.
const STALLED: Duration = Duration::from_secs(30);
/// An asker without answers that is silent for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Interval between searches for askers that are gone.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of answers in one page, unless a single answer is longer.
const PAGE_BYTES: usize = 128 << 10;

/// Bounds of an outbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutboxBounds {
    pub(super) all_bytes: usize,
    pub(super) host_bytes: usize,
    pub(super) patience: Duration,
}

impl OutboxBounds {
    pub(super) fn of(options: &ServerOptions) -> OutboxBounds {
        OutboxBounds {
            all_bytes: options.outbox_bytes,
            host_bytes: options.outbox_host_bytes,
            patience: options.outbox_patience,
        }
    }
}

/// Answers for one asker.
struct AskerQueue {
    waiting: VecDeque<AnswerMessage>,
    /// Bytes of `waiting` and `page`.
    bytes: usize,
    /// The page for the asker's next call, until the asker confirms it, and its number.
    page: Vec<AnswerMessage>,
    page_number: u64,
    /// Number of its newest call.
    call: u64,
    /// Whether answers for the asker were lost since it was last notified.
    has_lost: bool,
    last_call: Instant,
    ready: Arc<Notify>,
}

struct OutboxState {
    hosts: HashMap<Instance, AskerQueue>,
    bytes: usize,
    slow: u64,
    undeliverable: u64,
    ended: bool,
    looked: Instant,
}

/// Answers that wait to be fetched.
pub(super) struct AnswerOutbox {
    bounds: OutboxBounds,
    state: Mutex<OutboxState>,
    room: Condvar,
}

impl AnswerOutbox {
    pub(super) fn new(bounds: OutboxBounds) -> AnswerOutbox {
        let state = OutboxState {
            hosts: HashMap::new(),
            bytes: 0,
            slow: 0,
            undeliverable: 0,
            ended: false,
            looked: Instant::now(),
        };
        AnswerOutbox { bounds, state: Mutex::new(state), room: Condvar::new() }
    }

    /// Registers an asker: answers for it are kept from now on.
    pub(super) fn register(&self, host: Instance) {
        let mut state = self.state.lock();
        state.drop_stalled();
        state.register(host);
    }

    /// Adds answers for an asker, after waiting for space. Blocks.
    pub(super) fn put(&self, host: Instance, answers: AnswerMessage) {
        let mut state = self.state.lock();
        let bytes = answers.bytes();
        state.drop_stalled();
        let mut deadline = Instant::now() + self.bounds.patience;
        while !state.has_room(host, bytes, &self.bounds) {
            if self.room.wait_until(&mut state, deadline).timed_out() {
                state.drop_slowest(host, bytes, &self.bounds);
                deadline = Instant::now() + self.bounds.patience;
            }
        }
        let ended = state.ended;
        let Some(entry) = state.hosts.get_mut(&host).filter(|entry| !entry.has_lost && !ended) else {
            state.undeliverable += 1;
            return;
        };
        entry.bytes += bytes;
        entry.waiting.push_back(answers);
        entry.ready.notify_one();
        state.bytes += bytes;
    }

    /// The page of answers after the one numbered `received`, and its number; waits for the first answers,
    /// and returns none if none arrive in time. `None`: answers were dropped since the last call.
    pub(super) async fn take(
        &self,
        host: Instance,
        received: u64,
        wait: Duration,
    ) -> Option<(u64, Vec<AnswerMessage>)> {
        let end = tokio::time::Instant::now() + wait;
        let call = {
            let mut state = self.state.lock();
            state.drop_stalled();
            state.begin_call(host, received, &self.room)?
        };
        loop {
            let ready = {
                let mut state = self.state.lock();
                let ended = state.ended;
                let entry = state.register(host);
                if entry.call != call {
                    // The wake-up was for the newer call.
                    entry.ready.notify_one();
                    return Some((received, Vec::new()));
                }
                if std::mem::take(&mut entry.has_lost) {
                    return None;
                }
                entry.fill_page();
                if !entry.page.is_empty() {
                    return Some((entry.page_number, entry.page.clone()));
                }
                if ended {
                    return Some((received, Vec::new()));
                }
                Arc::clone(&entry.ready)
            };
            if tokio::time::timeout_at(end, ready.notified()).await.is_err() {
                return Some((received, Vec::new()));
            }
        }
    }

    /// Number of askers that were too slow, and of answers whose asker was unknown.
    pub(super) fn losses(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.slow, state.undeliverable)
    }

    /// Accepts no more answers; ends all waiting calls and additions.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let hosts = std::mem::take(&mut state.hosts);
        state.bytes = 0;
        drop(state);
        hosts.into_values().for_each(|host| host.ready.notify_one());
        self.room.notify_all();
    }

    /// Bytes that wait now.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

/// Whether `len` more bytes fit; a message that never would is accepted alone.
fn fits(held: usize, len: usize, bound: usize) -> bool {
    held == 0 || held + len <= bound
}

impl AskerQueue {
    /// Makes the next page of the waiting answers, unless there is one.
    fn fill_page(&mut self) {
        let mut bytes = 0;
        let has_page = !self.page.is_empty();
        while !has_page
            && let Some(next) = self.waiting.front()
            && fits(bytes, next.bytes(), PAGE_BYTES)
        {
            bytes += next.bytes();
            self.page.extend(self.waiting.pop_front());
        }
        if bytes > 0 {
            // A peer may claim to have received any page.
            self.page_number = self.page_number.wrapping_add(1);
        }
    }
}

impl OutboxState {
    /// Begins a call of an asker that has received pages up to `received`; returns its number. `None`:
    /// answers were dropped.
    fn begin_call(&mut self, host: Instance, received: u64, room: &Condvar) -> Option<u64> {
        let entry = self.register(host);
        if std::mem::take(&mut entry.has_lost) {
            return None;
        }
        entry.call += 1;
        let call = entry.call;
        // An earlier call ends.
        entry.ready.notify_one();
        // Higher than the asker's number after a restart of this server.
        if received >= entry.page_number {
            entry.page_number = received;
            let freed = entry.page.drain(..).map(|answers| answers.bytes()).sum::<usize>();
            entry.bytes -= freed;
            self.bytes -= freed;
            room.notify_all();
        }
        Some(call)
    }

    fn register(&mut self, host: Instance) -> &mut AskerQueue {
        let now = Instant::now();
        let entry = self.hosts.entry(host).or_insert_with(|| AskerQueue {
            waiting: VecDeque::new(),
            bytes: 0,
            page: Vec::new(),
            page_number: 0,
            call: 0,
            has_lost: false,
            last_call: now,
            ready: Arc::default(),
        });
        entry.last_call = now;
        entry
    }

    /// Whether there is space; always for an asker that is gone.
    fn has_room(&self, host: Instance, len: usize, bounds: &OutboxBounds) -> bool {
        self.ended
            || self.hosts.get(&host).is_none_or(|entry| {
                entry.has_lost
                    || fits(entry.bytes, len, bounds.host_bytes) && fits(self.bytes, len, bounds.all_bytes)
            })
    }

    /// Space for `len` bytes to `host` was not freed in time: drops the answers of the slowest asker.
    fn drop_slowest(&mut self, host: Instance, len: usize, bounds: &OutboxBounds) {
        let slowest = match self.hosts.get(&host) {
            Some(entry) if !fits(entry.bytes, len, bounds.host_bytes) => Some(host),
            _ => self.hosts.iter().max_by_key(|(_, entry)| entry.bytes).map(|(&host, _)| host),
        };
        if let Some(host) = slowest {
            self.drop_slow(host);
        }
    }

    fn drop_slow(&mut self, host: Instance) {
        let Some(entry) = self.hosts.get_mut(&host) else {
            return;
        };
        warn!(bytes = entry.bytes, "asker does not fetch its answers, dropped");
        self.bytes -= entry.bytes;
        (entry.bytes, entry.has_lost) = (0, true);
        (entry.waiting, entry.page) = (VecDeque::new(), Vec::new());
        entry.ready.notify_one();
        self.slow += 1;
    }

    /// Called regularly: drops the answers of askers that do not fetch them, and forgets askers that are
    /// gone.
    fn drop_stalled(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < POLL_INTERVAL {
            return;
        }
        self.looked = now;
        let silent = |entry: &AskerQueue| now.duration_since(entry.last_call);
        let has_stalled = |entry: &AskerQueue| entry.bytes > 0 && silent(entry) > STALLED;
        let stalled: Vec<Instance> =
            self.hosts.iter().filter(|(_, entry)| has_stalled(entry)).map(|(&host, _)| host).collect();
        stalled.into_iter().for_each(|host| self.drop_slow(host));
        let OutboxState { hosts, bytes, .. } = self;
        hosts.retain(|_, entry| {
            let stays = silent(entry) <= FORGOTTEN;
            *bytes -= if stays { 0 } else { entry.bytes };
            stays
        });
    }
}
