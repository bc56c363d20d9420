//! Bounds for unauthenticated connections, per address and in total.
//!
//! Each connection is accepted at once. Above a bound the oldest is evicted, and a silent one before one that
//! has sent something. An honest peer authenticates within milliseconds, so silent connections cannot shut it
//! out.
//!
//! Design: docs/design/cluster.md#connections
//! Invariant: a connection counts until it is authenticated or ends.
//!
//! Not here: the time limit of a handshake (`connection`), counters (`traffic`).

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::oneshot;

/// Most unauthenticated connections at a time.
const MAX_CONNECTIONS: usize = 1024;
/// Most of one address.
const MAX_OF_ADDRESS: usize = 256;
/// They may take one in this many of the process's file descriptors.
const FILES_PER_CONNECTION: u64 = 4;

/// The unauthenticated connections of a listener. See the module.
pub(crate) struct UnauthenticatedPeers {
    most: usize,
    most_of_one: usize,
    peers: Mutex<PeerTable>,
}

#[derive(Default)]
struct PeerTable {
    next: u64,
    /// By age, oldest first.
    all: BTreeMap<u64, PendingPeer>,
}

struct PendingPeer {
    address: IpAddr,
    has_sent: Arc<AtomicBool>,
    /// Dropped to evict the connection.
    _stays: oneshot::Sender<()>,
}

/// Slot of one unauthenticated connection, released on drop.
pub(crate) struct PeerSlot {
    of: Arc<UnauthenticatedPeers>,
    number: u64,
    /// Set once the peer has sent something.
    pub(crate) has_sent: Arc<AtomicBool>,
    stays: oneshot::Receiver<()>,
}

impl UnauthenticatedPeers {
    pub(crate) fn new() -> Arc<UnauthenticatedPeers> {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = files.map_or(u64::MAX, |files| files / FILES_PER_CONNECTION);
        let most = usize::try_from(share).unwrap_or(MAX_CONNECTIONS).clamp(16, MAX_CONNECTIONS);
        UnauthenticatedPeers::with(most, MAX_OF_ADDRESS.min(most / 2))
    }

    pub(crate) fn with(most: usize, most_of_one: usize) -> Arc<UnauthenticatedPeers> {
        Arc::new(UnauthenticatedPeers { most, most_of_one, peers: Mutex::default() })
    }

    /// Admits a connection; evicts another if a bound is reached.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> PeerSlot {
        let address = network_of(address);
        let mut peers = self.peers.lock();
        let of_one = peers.all.values().filter(|peer| peer.address == address).count();
        if of_one >= self.most_of_one {
            peers.evict_where(|peer| peer.address == address);
        } else if peers.all.len() >= self.most {
            peers.evict_where(|_| true);
        }
        let number = peers.next;
        peers.next += 1;
        let (keep, stays) = oneshot::channel();
        let has_sent = Arc::new(AtomicBool::new(false));
        let peer = PendingPeer { address, has_sent: Arc::clone(&has_sent), _stays: keep };
        peers.all.insert(number, peer);
        PeerSlot { of: Arc::clone(self), number, has_sent, stays }
    }

    /// Evicts the oldest connection, to free a file descriptor.
    pub(crate) fn evict_oldest(&self) {
        self.peers.lock().evict_where(|_| true);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.peers.lock().all.len()
    }
}

impl PeerTable {
    /// Evicts the oldest matching connection; a silent one goes first.
    fn evict_where(&mut self, is_meant: impl Fn(&PendingPeer) -> bool) {
        let mut meant = self.all.iter().filter(|(_, peer)| is_meant(peer));
        let silent = meant.clone().find(|(_, peer)| !peer.has_sent.load(Ordering::Relaxed));
        let oldest = silent.or_else(|| meant.next()).map(|(number, _)| *number);
        if let Some(number) = oldest {
            self.all.remove(&number);
        }
    }
}

impl PeerSlot {
    /// Returns when the connection is evicted.
    pub(crate) async fn evicted(&mut self) {
        // The channel carries nothing: dropping its sender is the signal.
        let _ = (&mut self.stays).await;
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        self.of.peers.lock().all.remove(&self.number);
    }
}

/// Key of the bound per address: an IPv6 host has a whole network of addresses, so the network counts.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn host(number: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
    }

    fn is_lost(place: &mut PeerSlot) -> bool {
        place.stays.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_silent_one_of_an_address_makes_room_and_others_stay() {
        let all = UnauthenticatedPeers::with(100, 3);
        let mut other = all.admit(host(2));
        let mut speaks = all.admit(host(1));
        speaks.has_sent.store(true, Ordering::Relaxed);
        let mut silent: Vec<PeerSlot> = (0..5).map(|_| all.admit(host(1))).collect();
        let lost: Vec<bool> = silent.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [true, true, true, false, false]);
        assert!(!is_lost(&mut speaks) && !is_lost(&mut other));
        assert_eq!(all.len(), 4);
        drop(silent);
        assert_eq!(all.len(), 2, "a place is given back");
    }

    #[test]
    fn in_total_there_is_an_end_too_and_an_ipv6_network_counts_as_one() {
        let all = UnauthenticatedPeers::with(4, 3);
        let mut places: Vec<PeerSlot> = (0..6).map(|number| all.admit(host(number))).collect();
        assert_eq!(all.len(), 4);
        assert!(is_lost(&mut places[0]) && is_lost(&mut places[1]) && !is_lost(&mut places[2]));
        drop(places);
        let places: Vec<PeerSlot> = (0..6u16)
            .map(|number| all.admit(IpAddr::V6(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, number))))
            .collect();
        assert_eq!(all.len(), 3);
        drop(places);
        let all = UnauthenticatedPeers::with(4, 4);
        let mut places: Vec<PeerSlot> = (0..4).map(|_| all.admit(host(1))).collect();
        places.iter().for_each(|place| place.has_sent.store(true, Ordering::Relaxed));
        all.evict_oldest();
        assert!(is_lost(&mut places[0]) && !is_lost(&mut places[1]));
    }
}
