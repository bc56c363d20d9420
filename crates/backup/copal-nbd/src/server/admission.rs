//! Which connections a server keeps when there are more than it has room for.
//!
//! The protocol has no password, so a client that has not finished its handshake may be anybody. All
//! connections are accepted; when there are too many, one is closed that costs its client least.
//! Invariants
//! - A silent client keeps no other out: of those in the handshake the oldest is closed, of those that have
//!   chosen a disk one that has asked for nothing, or nothing for a minute.
//! - One address has at most a part of the places. Clients of a unix socket have no address, and one user.

use crate::stream::Stream;
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

/// Connections in their handshake: in all, and of one address.
const HANDSHAKES: usize = 64;
const HANDSHAKES_OF_ADDRESS: usize = 16;
/// Connections that have chosen a disk: in all, and of one address.
const CONNECTIONS: usize = 64;
const CONNECTIONS_OF_ADDRESS: usize = 32;
/// A connection that asked for nothing for so long may be closed for another.
const IDLE: Duration = Duration::from_secs(60);

/// What is known of the requests of one connection.
pub(crate) struct Activity {
    began: Instant,
    has_asked: AtomicBool,
    /// Requests that are not answered.
    open: AtomicUsize,
    /// When the last request came or was answered, ms behind `began`.
    last_ms: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity {
            began: Instant::now(),
            has_asked: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            last_ms: AtomicU64::new(0),
        }
    }

    /// A request has come; it is answered when the result is dropped.
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

    /// Whether the connection may be closed for another, the first to go first.
    fn rank(&self) -> Option<(bool, Duration)> {
        let has_asked = self.has_asked.load(Ordering::Relaxed);
        let is_open = self.open.load(Ordering::Relaxed) > 0;
        let may_go = !is_open && (!has_asked || self.idle() >= IDLE);
        may_go.then(|| (!has_asked, self.idle()))
    }
}

/// A request that is not answered yet.
pub(crate) struct OpenRequest<'a>(&'a Activity);

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.note();
    }
}

struct Peer {
    stream: Stream,
    address: Option<IpAddr>,
    /// None in the handshake.
    activity: Option<Arc<Activity>>,
}

#[derive(Default)]
struct Peers {
    /// By number, which ascends.
    all: HashMap<u64, Peer>,
    last: u64,
}

/// The connections of a server.
#[derive(Default)]
pub(crate) struct Admission {
    peers: Mutex<Peers>,
}

impl Admission {
    /// Enters a connection, in its handshake. `None`: the system gives no descriptor for it.
    pub(crate) fn enter(&self, stream: &Stream) -> Option<u64> {
        let address = stream.peer();
        let mut peers = self.peers.lock();
        let in_handshake = |peer: &Peer| peer.activity.is_none();
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
                tracing::debug!(%error, "a connection was not accepted");
                peers.close_oldest(in_handshake);
                return None;
            }
        };
        peers.last += 1;
        let number = peers.last;
        let activity = None;
        peers.all.insert(number, Peer { stream, address, activity });
        Some(number)
    }

    /// The handshake has ended; `None`: all places are taken by clients that are at work, or the connection
    /// was closed.
    pub(crate) fn serve(&self, number: u64) -> Option<Arc<Activity>> {
        let mut peers = self.peers.lock();
        let address = peers.all.get(&number)?.address;
        let is_served = |peer: &Peer| peer.activity.is_some();
        let of_address = |peer: &Peer| is_served(peer) && peer.address == address;
        let of_one = peers.count(of_address) >= CONNECTIONS_OF_ADDRESS;
        let is_full = address.is_some() && of_one && !peers.close_idle(of_address)
            || peers.count(is_served) >= CONNECTIONS && !peers.close_idle(is_served);
        if is_full {
            tracing::warn!("a connection was closed, since all places are taken by clients at work");
            return None;
        }
        let activity = Arc::new(Activity::new());
        peers.all.get_mut(&number)?.activity = Some(Arc::clone(&activity));
        Some(activity)
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.peers.lock().all.remove(&number);
    }

    /// Makes room where the system has none for another connection.
    pub(crate) fn make_room(&self) {
        let mut peers = self.peers.lock();
        if !peers.close_oldest(|peer| peer.activity.is_none()) {
            peers.close_idle(|_| true);
        }
    }

    /// Closes all.
    pub(crate) fn close_all(&self) {
        for peer in self.peers.lock().all.values() {
            peer.stream.shutdown();
        }
    }
}

impl Peers {
    fn count(&self, is_meant: impl Fn(&Peer) -> bool) -> usize {
        self.all.values().filter(|peer| is_meant(peer)).count()
    }

    fn close(&mut self, number: u64) {
        if let Some(peer) = self.all.remove(&number) {
            tracing::debug!("a connection was closed for another");
            peer.stream.shutdown();
        }
    }

    fn close_oldest(&mut self, is_meant: impl Fn(&Peer) -> bool) -> bool {
        let meant = self.all.iter().filter(|(_, peer)| is_meant(peer));
        let oldest = meant.map(|(number, _)| *number).min();
        oldest.inspect(|&number| self.close(number)).is_some()
    }

    /// Closes the connection that is idle for longest; `false`: none is.
    fn close_idle(&mut self, is_meant: impl Fn(&Peer) -> bool) -> bool {
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

    fn count(admission: &Admission) -> usize {
        admission.peers.lock().all.len()
    }

    /// Connections in their handshake have an end in total; the oldest of them makes room for the next.
    #[test]
    fn the_oldest_handshake_makes_room() {
        let admission = Admission::default();
        let mut others = Vec::new();
        let mut enter = || {
            let (own, other) = UnixStream::pair().unwrap();
            others.push(other);
            admission.enter(&Stream::Unix(own)).unwrap()
        };
        let numbers: Vec<u64> = (0..HANDSHAKES + 3).map(|_| enter()).collect();
        assert_eq!(count(&admission), HANDSHAKES);
        assert!(admission.serve(numbers[2]).is_none(), "it was closed");
        assert!(admission.serve(numbers[3]).is_some());
        // One that is served is in no handshake any more.
        enter();
        assert_eq!(count(&admission), HANDSHAKES + 1);
    }

    #[test]
    fn the_handshakes_of_one_address_take_no_place_of_others() {
        let admission = Admission::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut clients = Vec::new();
        for _ in 0..HANDSHAKES_OF_ADDRESS + 3 {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let (served, _) = listener.accept().unwrap();
            admission.enter(&Stream::Tcp(served)).unwrap();
        }
        assert_eq!(count(&admission), HANDSHAKES_OF_ADDRESS);
    }

    /// A client whose request is under way never makes room, and one that has asked does once it has been
    /// idle for long.
    #[test]
    fn a_client_at_work_keeps_its_place() {
        let since =
            |ago: Duration| Activity { began: Instant::now().checked_sub(ago).unwrap(), ..Activity::new() };
        assert!(Activity::new().rank().is_some(), "it has asked for nothing yet");
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
