//! What waits to be sent, per connection, and the thread that sends it without ever waiting for one peer.
//!
//! Invariants
//! - The bytes of a connection and of all stay within their bounds; a message longer than a bound goes when
//!   nothing else waits.
//! - Whoever puts something in waits for room no longer than `patience`; then the peer with the most bytes
//!   loses its connection. A peer that takes nothing for [`STALLED`] loses it, too.

use super::options::ServerOptions;
use crate::channel::{ChannelWriter, Closer, FRAME_BYTES, Pushed};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};
use tracing::warn;

/// A peer that takes nothing for so long is gone.
const STALLED: Duration = Duration::from_secs(30);
/// How long to let peers be that take nothing now.
const RETRY: Duration = Duration::from_millis(10);

/// Number of a connection, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PeerId(u64);

/// Bounds of an outbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) all_bytes: usize,
    pub(super) peer_bytes: usize,
    pub(super) patience: Duration,
}

impl Bounds {
    pub(super) fn of(options: &ServerOptions) -> Bounds {
        Bounds {
            all_bytes: options.outbox_bytes,
            peer_bytes: options.outbox_peer_bytes,
            patience: options.outbox_patience,
        }
    }
}

struct Peer {
    host: [u8; 16],
    writer: ChannelWriter,
    closer: Closer,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// Of `waiting` and of what is sealed and not written.
    bytes: usize,
    moved: Instant,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<PeerId, Peer>,
    /// The newest connection of each host.
    hosts: HashMap<[u8; 16], PeerId>,
    next: u64,
    bytes: usize,
    slow: u64,
    undeliverable: u64,
    ended: bool,
}

/// What waits to be sent.
pub(super) struct Outbox {
    bounds: Bounds,
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

impl Outbox {
    pub(super) fn new(bounds: Bounds) -> Outbox {
        Outbox { bounds, state: Mutex::default(), work: Condvar::new(), room: Condvar::new() }
    }

    /// Adds a connection; answers for `host` go to it from now on.
    pub(super) fn add(&self, host: [u8; 16], writer: ChannelWriter, closer: Closer) -> PeerId {
        let mut state = self.state.lock();
        let id = PeerId(state.next);
        state.next += 1;
        let peer = Peer {
            host,
            writer,
            closer,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            bytes: 0,
            moved: Instant::now(),
        };
        if state.ended {
            peer.closer.close();
            return id;
        }
        state.peers.insert(id, peer);
        state.hosts.insert(host, id);
        id
    }

    /// Ends a connection and drops what waits for it.
    pub(super) fn remove(&self, id: PeerId) {
        self.state.lock().remove(id);
        self.room.notify_all();
    }

    /// Sends `message` to the newest connection of `host`, after waiting for room.
    pub(super) fn put_for(&self, host: [u8; 16], message: Vec<u8>) {
        let mut state = self.state.lock();
        match state.hosts.get(&host).copied() {
            Some(id) => self.put_in(state, id, message),
            None => state.undeliverable += 1,
        }
    }

    /// Sends `message` over one connection, after waiting for room.
    pub(super) fn put(&self, id: PeerId, message: Vec<u8>) {
        self.put_in(self.state.lock(), id, message);
    }

    fn put_in(&self, mut state: MutexGuard<'_, State>, id: PeerId, message: Vec<u8>) {
        let mut deadline = Instant::now() + self.bounds.patience;
        while !state.has_room(id, message.len(), &self.bounds) {
            if self.room.wait_until(&mut state, deadline).timed_out() {
                state.drop_slowest(id, message.len(), &self.bounds);
                deadline = Instant::now() + self.bounds.patience;
            }
        }
        let Some(peer) = state.peers.get_mut(&id) else {
            state.undeliverable += 1;
            return;
        };
        if peer.bytes == 0 {
            peer.moved = Instant::now();
        }
        let len = message.len();
        peer.bytes += len;
        peer.waiting_bytes += len;
        peer.waiting.push_back(message);
        state.bytes += len;
        drop(state);
        self.work.notify_one();
    }

    /// Connections lost to slowness, messages lost for want of a connection.
    pub(super) fn losses(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.slow, state.undeliverable)
    }

    /// Ends all connections, and [`Outbox::send_all`].
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        while let Some((&id, _)) = state.peers.first_key_value() {
            state.remove(id);
        }
        drop(state);
        self.work.notify_all();
        self.room.notify_all();
    }

    /// The send thread: about a frame of each peer in turn, until the end.
    pub(super) fn send_all(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let (moved, left) = state.send_turn();
            if moved {
                self.room.notify_all();
                // Others want the lock: a busy sender must not starve them.
                MutexGuard::bump(&mut state);
            } else if left {
                self.work.wait_for(&mut state, RETRY);
            } else {
                self.work.wait(&mut state);
            }
        }
    }

    /// Bytes that wait now.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

/// Whether `len` more bytes fit; a message that never would goes alone.
fn fits(held: usize, len: usize, bound: usize) -> bool {
    held == 0 || held + len <= bound
}

impl State {
    fn remove(&mut self, id: PeerId) {
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        peer.closer.close();
        self.bytes -= peer.bytes;
        if self.hosts.get(&peer.host) == Some(&id) {
            self.hosts.remove(&peer.host);
        }
    }

    /// A connection that is gone has room for everything.
    fn has_room(&self, id: PeerId, len: usize, bounds: &Bounds) -> bool {
        self.peers.get(&id).is_none_or(|peer| {
            fits(peer.bytes, len, bounds.peer_bytes) && fits(self.bytes, len, bounds.all_bytes)
        })
    }

    /// Room for `len` bytes to `id` did not come: ends the connection that is to blame.
    fn drop_slowest(&mut self, id: PeerId, len: usize, bounds: &Bounds) {
        let slowest = match self.peers.get(&id) {
            Some(peer) if !fits(peer.bytes, len, bounds.peer_bytes) => Some(id),
            _ => self.peers.iter().max_by_key(|(_, peer)| peer.bytes).map(|(&id, _)| id),
        };
        if let Some(id) = slowest {
            self.drop_slow(id);
        }
    }

    fn drop_slow(&mut self, id: PeerId) {
        let bytes = self.peers.get(&id).map_or(0, |peer| peer.bytes);
        warn!(bytes, "a peer does not take its answers; ended its connection");
        self.slow += 1;
        self.remove(id);
    }

    /// Whether anything went, and whether anything is left.
    fn send_turn(&mut self) -> (bool, bool) {
        let now = Instant::now();
        let (mut moved, mut left) = (false, false);
        let (mut failed, mut stalled) = (Vec::new(), Vec::new());
        for (&id, peer) in &mut self.peers {
            if peer.bytes == 0 {
                continue;
            }
            let before = peer.bytes;
            let went = peer.send_some();
            self.bytes = self.bytes - before + peer.bytes;
            match went {
                Err(()) => failed.push(id),
                Ok(true) => {
                    peer.moved = now;
                    moved = true;
                }
                Ok(false) if now.duration_since(peer.moved) > STALLED => stalled.push(id),
                Ok(false) => left = true,
            }
        }
        moved |= !failed.is_empty() || !stalled.is_empty();
        failed.into_iter().for_each(|id| self.remove(id));
        stalled.into_iter().for_each(|id| self.drop_slow(id));
        (moved, left)
    }
}

impl Peer {
    /// Sends what goes of about a frame; whether any byte went.
    fn send_some(&mut self) -> Result<bool, ()> {
        while self.writer.unwritten_bytes() < FRAME_BYTES
            && let Some(message) = self.waiting.pop_front()
        {
            self.waiting_bytes -= message.len();
            self.writer.seal(&message);
        }
        let pushed = self.writer.push().map_err(drop)?;
        self.bytes = self.waiting_bytes + self.writer.unwritten_bytes();
        Ok(pushed != Pushed::Nothing)
    }
}
