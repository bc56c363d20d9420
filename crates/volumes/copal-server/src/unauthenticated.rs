//! Connections that have not shown who they are: a bounded number, of each address and in total.
//!
//! Each connection is accepted at once. When there are too many, the oldest makes room for the newest, one
//! that has sent nothing before one that has: a peer that says who it is does so within milliseconds, so
//! silent connections shut nobody out.
//!
//! Design: docs/design/cluster.md#connections
//! Invariant: a connection leaves the count when it is authenticated, or ends.
//!
//! Not here: how long a peer may take (`listener`), what is counted (`traffic`).

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

/// Connections that may be unauthenticated at a time.
const MOST: usize = 1024;
/// Those of one address.
const MOST_OF_ONE: usize = 256;
/// At most so much of the process's open files is theirs.
const SHARE_OF_FILES: u64 = 4;

/// See the module.
pub(crate) struct Unauthenticated {
    most: usize,
    most_of_one: usize,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    next: u64,
    /// By age.
    all: BTreeMap<u64, Peer>,
}

struct Peer {
    address: IpAddr,
    has_spoken: Arc<AtomicBool>,
    /// Dropped when it is to make room.
    _stays: oneshot::Sender<()>,
}

/// The place of one unauthenticated connection, given back when it is dropped.
pub(crate) struct Place {
    of: Arc<Unauthenticated>,
    number: u64,
    /// Set when the peer has sent something.
    pub(crate) has_spoken: Arc<AtomicBool>,
    stays: oneshot::Receiver<()>,
}

impl Unauthenticated {
    pub(crate) fn new() -> Arc<Unauthenticated> {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = files.map_or(u64::MAX, |files| files / SHARE_OF_FILES);
        let most = usize::try_from(share).unwrap_or(MOST).clamp(16, MOST);
        Unauthenticated::with(most, MOST_OF_ONE.min(most / 2))
    }

    pub(crate) fn with(most: usize, most_of_one: usize) -> Arc<Unauthenticated> {
        Arc::new(Unauthenticated { most, most_of_one, peers: Mutex::default() })
    }

    /// Takes a connection in; another may have to go for it.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Place {
        let address = network_of(address);
        let mut peers = self.peers.lock();
        let of_one = peers.all.values().filter(|peer| peer.address == address).count();
        if of_one >= self.most_of_one {
            peers.drop_oldest(|peer| peer.address == address);
        } else if peers.all.len() >= self.most {
            peers.drop_oldest(|_| true);
        }
        let number = peers.next;
        peers.next += 1;
        let (keep, stays) = oneshot::channel();
        let has_spoken = Arc::new(AtomicBool::new(false));
        let peer = Peer { address, has_spoken: Arc::clone(&has_spoken), _stays: keep };
        peers.all.insert(number, peer);
        Place { of: Arc::clone(self), number, has_spoken, stays }
    }

    /// No descriptors are left: the oldest connection gives its own back.
    pub(crate) fn make_room(&self) {
        self.peers.lock().drop_oldest(|_| true);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.peers.lock().all.len()
    }
}

impl Peers {
    /// Drops the oldest of some, one that has sent nothing if there is one.
    fn drop_oldest(&mut self, is_meant: impl Fn(&Peer) -> bool) {
        let mut meant = self.all.iter().filter(|(_, peer)| is_meant(peer));
        let silent = meant.clone().find(|(_, peer)| !peer.has_spoken.load(Ordering::Relaxed));
        let oldest = silent.or_else(|| meant.next()).map(|(number, _)| *number);
        if let Some(number) = oldest {
            self.all.remove(&number);
        }
    }
}

impl Place {
    /// Ends when the connection is to make room for another.
    pub(crate) async fn lost(&mut self) {
        // Nothing is ever sent: the other end is dropped.
        let _ = (&mut self.stays).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.peers.lock().all.remove(&self.number);
    }
}

/// An address as it is counted: one host has as many addresses of IPv6 as it likes within its network.
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

    fn is_lost(place: &mut Place) -> bool {
        place.stays.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_oldest_silent_one_of_an_address_makes_room_and_others_stay() {
        let all = Unauthenticated::with(100, 3);
        let mut other = all.enter(host(2));
        let mut speaks = all.enter(host(1));
        speaks.has_spoken.store(true, Ordering::Relaxed);
        let mut silent: Vec<Place> = (0..5).map(|_| all.enter(host(1))).collect();
        let lost: Vec<bool> = silent.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [true, true, true, false, false]);
        assert!(!is_lost(&mut speaks) && !is_lost(&mut other));
        assert_eq!(all.len(), 4);
        drop(silent);
        assert_eq!(all.len(), 2, "a place is given back");
    }

    #[test]
    fn in_total_there_is_an_end_too_and_an_ipv6_network_counts_as_one() {
        let all = Unauthenticated::with(4, 3);
        let mut places: Vec<Place> = (0..6).map(|number| all.enter(host(number))).collect();
        assert_eq!(all.len(), 4);
        assert!(is_lost(&mut places[0]) && is_lost(&mut places[1]) && !is_lost(&mut places[2]));
        drop(places);
        let places: Vec<Place> = (0..6u16)
            .map(|number| all.enter(IpAddr::V6(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, number))))
            .collect();
        assert_eq!(all.len(), 3);
        drop(places);
        let all = Unauthenticated::with(4, 4);
        let mut places: Vec<Place> = (0..4).map(|_| all.enter(host(1))).collect();
        places.iter().for_each(|place| place.has_spoken.store(true, Ordering::Relaxed));
        all.make_room();
        assert!(is_lost(&mut places[0]) && !is_lost(&mut places[1]));
    }
}
