//! Admission: limits on connections, and the choice of a connection to close.
//!
//! The protocol has no password, so a client in the handshake is unknown. All connections are accepted. If
//! there are too many, the one whose loss costs its client least is closed.
//! Invariants
//! - A silent client keeps no other out. Of the connections in the handshake the oldest is closed. Of those
//!   that have selected a disk, one without a request, or idle for a minute, is closed.
//! - One address has at most a part of the places. Clients of a unix socket have no address and belong to one
//!   user.

use crate::stream::SocketStream;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Connections in the handshake: in total, and per address.
const HANDSHAKES: usize = 64;
const HANDSHAKES_OF_ADDRESS: usize = 16;
/// Connections that have selected a disk: in total, and per address.
const CONNECTIONS: usize = 64;
const CONNECTIONS_OF_ADDRESS: usize = 32;
/// A connection that is idle for this long may be closed for another one.
const IDLE: Duration = Duration::from_secs(60);

/// Request activity of one connection.
pub(crate) struct PeerActivity {
    began: Instant,
    has_asked: AtomicBool,
    /// Unanswered requests.
    open: AtomicUsize,
    /// Time of the last request or reply, in ms since `began`.
    last_ms: AtomicU64,
}

impl PeerActivity {
    pub(crate) fn new() -> PeerActivity {
        PeerActivity {
            began: Instant::now(),
            has_asked: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            last_ms: AtomicU64::new(0),
        }
    }

    /// Records a request, which counts as answered when the result is dropped.
    pub(crate) fn begin(&self) -> OpenRequest<'_> {
        self.has_asked.store(true, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.note();
        OpenRequest(self)
    }

    fn note(&self) {
        let passed = self.began.elapsed().as_millis() as u64;
        self.last_ms.store(passed, Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }

    /// Rank for closing the connection in favour of another, the highest first; `None` if it must stay.
    fn rank(&self) -> Option<(bool, Duration)> {
        let has_asked = self.has_asked.load(Ordering::Relaxed);
        let is_open = self.open.load(Ordering::Relaxed) > 0;
        let may_go = !is_open && (!has_asked || self.idle() >= IDLE);
        may_go.then(|| (!has_asked, self.idle()))
    }
}

/// An unanswered request.
pub(crate) struct OpenRequest<'a>(&'a PeerActivity);

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.note();
    }
}

struct ServerPeer {
    stream: SocketStream,
    address: Option<IpAddr>,
    /// `None` in the handshake.
    activity: Option<Arc<PeerActivity>>,
}

#[derive(Default)]
struct PeerTable {
    /// By number; numbers ascend.
    all: HashMap<u64, ServerPeer>,
    last: u64,
}

/// The connections of a server.
#[derive(Default)]
pub(crate) struct AdmissionControl {
    peers: Mutex<PeerTable>,
}

impl AdmissionControl {
    /// Registers a connection in its handshake; `None` if the system has no descriptor left.
    pub(crate) fn enter(&self, stream: &SocketStream) -> Option<u64> {
        let address = stream.peer();
        let mut peers = self.peers.lock();
        let in_handshake = |peer: &ServerPeer| peer.activity.is_none();
        if address.is_some()
            && peers.count(|peer| in_handshake(peer) && peer.address == address) >= HANDSHAKES_OF_ADDRESS
        {
            peers.close_oldest(|peer| in_handshake(peer) && peer.address == address);
        }
        if peers.count(in_handshake) >= HANDSHAKES {
            peers.close_oldest(in_handshake);
        }
        let entered = stream.try_clone();
        let stream = match entered {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                peers.close_oldest(in_handshake);
                return None;
            }
        };
        peers.last += 1;
        let number = peers.last;
        let activity = None;
        peers.all.insert(number, ServerPeer { stream, address, activity });
        Some(number)
    }

    /// Registers the end of a handshake; `None` if all places are taken by active clients, or the connection
    /// was closed.
    pub(crate) fn serve(&self, number: u64) -> Option<Arc<PeerActivity>> {
        let mut peers = self.peers.lock();
        let address = peers.all.get(&number)?.address;
        let is_served = |peer: &ServerPeer| peer.activity.is_some();
        let of_address = |peer: &ServerPeer| is_served(peer) && peer.address == address;
        let of_one = peers.count(of_address) >= CONNECTIONS_OF_ADDRESS;
        let is_full = address.is_some() && of_one && !peers.close_idle(of_address)
            || peers.count(is_served) >= CONNECTIONS && !peers.close_idle(is_served);
        if is_full {
            tracing::warn!("connection refused, all places are taken by active clients");
            return None;
        }
        let activity = Arc::new(PeerActivity::new());
        peers.all.get_mut(&number)?.activity = Some(Arc::clone(&activity));
        Some(activity)
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.peers.lock().all.remove(&number);
    }

    /// Closes a connection because the system cannot accept another one.
    pub(crate) fn close_one(&self) {
        let mut peers = self.peers.lock();
        if !peers.close_oldest(|peer| peer.activity.is_none()) {
            peers.close_idle(|_| true);
        }
    }

    /// Closes all connections.
    pub(crate) fn close_all(&self) {
        for peer in self.peers.lock().all.values() {
            peer.stream.shutdown();
        }
    }
}

impl PeerTable {
    fn count(&self, is_meant: impl Fn(&ServerPeer) -> bool) -> usize {
        self.all.values().filter(|peer| is_meant(peer)).count()
    }

    fn close(&mut self, number: u64) {
        if let Some(peer) = self.all.remove(&number) {
            tracing::debug!("connection closed in favour of another");
            peer.stream.shutdown();
        }
    }

    fn close_oldest(&mut self, is_meant: impl Fn(&ServerPeer) -> bool) -> bool {
        let meant = self.all.iter().filter(|(_, peer)| is_meant(peer));
        let oldest = meant.map(|(number, _)| *number).min();
        oldest.inspect(|&number| self.close(number)).is_some()
    }

    /// Closes the connection that has been idle longest; returns false if none is idle.
    fn close_idle(&mut self, is_meant: impl Fn(&ServerPeer) -> bool) -> bool {
        let meant = self.all.iter().filter(|(_, peer)| is_meant(peer));
        let ranked = meant.filter_map(|(number, peer)| Some((peer.activity.as_ref()?.rank()?, *number)));
        let first = ranked.max().map(|(_, number)| number);
        first.inspect(|&number| self.close(number)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    fn count(admission: &AdmissionControl) -> usize {
        admission.peers.lock().all.len()
    }

    /// The total of handshakes is limited; the oldest one is closed for the next.
    #[test]
    fn the_oldest_handshake_is_closed_for_a_new_one() {
        let admission = AdmissionControl::default();
        let mut others = Vec::new();
        let mut enter = || {
            let (own, other) = UnixStream::pair().unwrap();
            others.push(other);
            admission.enter(&SocketStream::Unix(own)).unwrap()
        };
        let numbers: Vec<u64> = (0..HANDSHAKES + 3).map(|_| enter()).collect();
        assert_eq!(count(&admission), HANDSHAKES);
        assert!(admission.serve(numbers[2]).is_none(), "it was closed");
        assert!(admission.serve(numbers[3]).is_some());
        // A connection with a disk does not count as a handshake.
        enter();
        assert_eq!(count(&admission), HANDSHAKES + 1);
    }

    #[test]
    fn the_handshakes_of_one_address_are_limited() {
        let admission = AdmissionControl::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut clients = Vec::new();
        for _ in 0..HANDSHAKES_OF_ADDRESS + 3 {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let (served, _) = listener.accept().unwrap();
            admission.enter(&SocketStream::Tcp(served)).unwrap();
        }
        assert_eq!(count(&admission), HANDSHAKES_OF_ADDRESS);
    }

    /// A client with an unanswered request is never closed. One that has sent a request can be closed after a
    /// minute of idling.
    #[test]
    fn an_active_client_is_not_closed() {
        let since = |ago: Duration| PeerActivity {
            began: Instant::now().checked_sub(ago).unwrap(),
            ..PeerActivity::new()
        };
        assert!(PeerActivity::new().rank().is_some(), "no request yet");
        let asked = since(Duration::ZERO);
        drop(asked.begin());
        assert!(asked.rank().is_none(), "a moment ago");
        let idle = since(IDLE);
        idle.has_asked.store(true, Ordering::Relaxed);
        assert!(idle.rank().is_some());
        let request = idle.begin();
        idle.last_ms.store(0, Ordering::Relaxed);
        assert!(idle.rank().is_none(), "its request takes long");
        drop(request);
    }
}
