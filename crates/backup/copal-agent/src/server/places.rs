//! Places for connections: how many there are, and which of those that have not shown the secret goes when
//! they are taken.
//!
//! A member needs two places at most, one for its job and one for what it asks again; 32 more serve commands
//! and single backups. Connections whose peer has not yet said who it is are bounded apart: a quarter of the
//! places, and half of that for one address. So silent connections never shut a member out.
//!
//! Not here: accepting (`listen`), what is said to a peer that has no place (`peer`, `channel`).

use super::options::Detect;
use parking_lot::Mutex;
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Places of each member: the connection of its job, and that for what it asks again.
const OF_A_MEMBER: usize = 2;
/// Places beside those of the members.
const FOR_OTHERS: usize = 32;
/// No fleet has more members than an asker can address.
const MOST_MEMBERS: usize = u16::MAX as usize;
/// Pause between two questions how many members there are.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A connection that is younger is given the time to say who it is.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// Places of a server.
pub(super) struct Places {
    members: Arc<AtomicUsize>,
    fixed: Option<usize>,
    taken: Arc<AtomicUsize>,
    asked: Mutex<Option<Instant>>,
}

/// A place that is taken until it is dropped.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Places {
    pub(super) fn new(members: Arc<AtomicUsize>, fixed: Option<usize>) -> Places {
        Places { members, fixed, taken: Arc::default(), asked: Mutex::default() }
    }

    /// How many there are.
    pub(super) fn most(&self) -> usize {
        let members = self.members.load(Ordering::Acquire).clamp(1, MOST_MEMBERS);
        self.fixed.unwrap_or(OF_A_MEMBER * members + FOR_OTHERS)
    }

    /// How many peers may be there that have not said who they are: of all addresses, and of one.
    pub(super) fn most_unknown(&self) -> (usize, usize) {
        let all = (self.most() / 4).max(2);
        (all, (all / 2).max(1))
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Takes a place for a member; `None`: all are taken.
    pub(super) fn take(&self, detect: &dyn Detect) -> Option<Place> {
        self.try_take().or_else(|| {
            self.learn(detect);
            self.try_take()
        })
    }

    fn try_take(&self) -> Option<Place> {
        let most = self.most();
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        let took = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        took.is_ok().then(|| Place(Arc::clone(&self.taken)))
    }

    /// Asks how many members there are, now and then.
    fn learn(&self, detect: &dyn Detect) {
        let mut asked = self.asked.lock();
        if self.fixed.is_some() || asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY) {
            return;
        }
        if let Some(members) = detect.members() {
            self.members.fetch_max(members, Ordering::AcqRel);
        }
        *asked = Some(Instant::now());
    }
}

/// What is known of a connection's peer.
#[derive(Default)]
pub(super) struct Standing(AtomicU8);

const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;
const TURNED_AWAY: u8 = 2;

impl Standing {
    /// The peer has said who it is; `false`: it was turned away meanwhile.
    pub(super) fn become_known(&self) -> bool {
        self.change(KNOWN)
    }

    /// Its place goes to another one; `false`: it has said who it is meanwhile.
    pub(super) fn turn_away(&self) -> bool {
        self.change(TURNED_AWAY)
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.0.load(Ordering::Acquire) == UNKNOWN
    }

    fn change(&self, to: u8) -> bool {
        let changed = self.0.compare_exchange(UNKNOWN, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }
}

/// Which of the peers that have not said who they are goes when one more comes from `address`; the oldest
/// first. `None`: there is a place.
pub(super) fn oldest_in_the_way(
    unknown: &[IpAddr],
    address: IpAddr,
    (most, most_of_one): (usize, usize),
) -> Option<usize> {
    let of_one = unknown.iter().filter(|other| **other == address).count();
    match of_one >= most_of_one {
        true => unknown.iter().position(|other| *other == address),
        false => (unknown.len() >= most).then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn places_follow_the_members_and_a_quarter_is_for_strangers() {
        let members = Arc::new(AtomicUsize::new(0));
        let places = Places::new(Arc::clone(&members), None);
        assert_eq!((places.most(), places.most_unknown()), (34, (8, 4)));
        members.store(70, Ordering::Release);
        assert_eq!((places.most(), places.most_unknown()), (172, (43, 21)));
        members.store(usize::MAX, Ordering::Release);
        assert_eq!(places.most(), 2 * 65_535 + 32);
    }

    #[test]
    fn one_address_takes_no_place_of_another() {
        let bounds = (4, 2);
        let (a, b) = (address(1), address(2));
        assert_eq!(oldest_in_the_way(&[a], a, bounds), None);
        assert_eq!(oldest_in_the_way(&[b, a, a], a, bounds), Some(1), "its own oldest");
        assert_eq!(oldest_in_the_way(&[a, a], b, bounds), None);
        let others = [address(3), address(4), a, b];
        assert_eq!(oldest_in_the_way(&others, a, bounds), Some(0), "the oldest of all");
    }
}
