//! Who is where, as far as this process knows: views of groups and places of disks, each newer than the last.
//!
//! Invariant: what is known of a group never gets older. A map that is out of date is no danger: every
//! request says which view it means (VOL-11).

use crate::net::machine;
use copal_proto::{messages, view_of};
use copal_volume::{
    ReferenceClock, VolumeId,
    group::{CLOCK_STEP_MS, DiskId, Epoch, GroupId, View},
};
use parking_lot::RwLock;
use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};
use tokio::sync::watch;

/// Removed volumes that are remembered.
const MOST_GONE: usize = 100_000;

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Name of its server.
    pub server: String,
    /// host:port.
    pub address: String,
    /// Name in the server's certificate.
    pub server_uuid: Vec<u8>,
}

/// A view with what its members missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedView {
    /// The view.
    pub view: View,
    /// For each member, in the view's order: the newest epoch in which operations could hold without it.
    pub missed: Vec<Epoch>,
    /// Likewise: the disk that a joining member is to copy from, if the master has said one.
    pub sources: Vec<Option<DiskId>>,
}

impl CachedView {
    /// The disk that a joining member is to copy from, if the master has said one.
    pub fn source_of(&self, disk: DiskId) -> Option<DiskId> {
        let at = self.view.members.iter().position(|(member, _)| *member == disk)?;
        self.sources.get(at).copied().flatten()
    }
}

struct Known {
    version: u64,
    term: u64,
    views: HashMap<GroupId, CachedView>,
    disks: HashMap<DiskId, DiskPlace>,
    gone: HashSet<VolumeId>,
    /// The clock of the cluster at a moment of this process' own; `None`: no master has told it yet.
    clock: Option<(u64, Instant)>,
    /// This machine's clock when the cache was made.
    fallback: (u64, Instant),
}

/// See the module.
pub struct MapCache {
    known: RwLock<Known>,
    changed: watch::Sender<u64>,
}

impl Default for MapCache {
    fn default() -> MapCache {
        let known = Known {
            version: 0,
            term: 0,
            views: HashMap::new(),
            disks: HashMap::new(),
            gone: HashSet::new(),
            clock: None,
            fallback: (machine::wall_ms(), machine::now()),
        };
        MapCache { known: RwLock::new(known), changed: watch::Sender::new(0) }
    }
}

impl MapCache {
    /// Takes a map, or what changed of it. Returns the views that are new here. Its time counts as told just
    /// now.
    pub fn apply(&self, map: &messages::Map) -> Vec<CachedView> {
        self.apply_answer(map, machine::now())
    }

    /// As [`MapCache::apply`], for the answer to a question that was asked at a moment of this process' own
    /// clock: the time that it tells lies between then and now, however long the answer was on its way.
    pub fn apply_answer(&self, map: &messages::Map, asked: Instant) -> Vec<CachedView> {
        let mut known = self.known.write();
        known.term = known.term.max(map.term);
        if map.now_ms > 0 {
            known.learn_clock(map.now_ms, asked);
        }
        if map.version >= known.version {
            known.version = map.version;
            for disk in &map.disks {
                let place = DiskPlace {
                    server: disk.server.clone(),
                    address: disk.address.clone(),
                    server_uuid: disk.server_uuid.to_vec(),
                };
                known.disks.insert(DiskId(disk.disk), place);
            }
        }
        for &vid in &map.gone_volumes {
            // What is forgotten here the members of the volume say.
            if known.gone.len() >= MOST_GONE {
                known.gone.clear();
            }
            known.gone.insert(VolumeId(vid));
        }
        let new: Vec<CachedView> = map.views.iter().filter_map(|view| known.learn(view)).collect();
        drop(known);
        self.tell();
        new
    }

    /// Takes one view, from whoever has a newer one; whether it is new here.
    pub fn learn(&self, view: &messages::View) -> bool {
        let is_new = self.known.write().learn(view).is_some();
        if is_new {
            self.tell();
        }
        is_new
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Wakes whenever anything has changed.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The newest map that was taken.
    pub fn version(&self) -> u64 {
        self.known.read().version
    }

    /// The newest reign that was heard of.
    pub fn term(&self) -> u64 {
        self.known.read().term
    }

    /// The view of a group.
    pub fn view(&self, group: GroupId) -> Option<View> {
        self.known.read().views.get(&group).map(|cached| cached.view.clone())
    }

    /// The view of a group, with what its members missed.
    pub fn cached(&self, group: GroupId) -> Option<CachedView> {
        self.known.read().views.get(&group).cloned()
    }

    /// All groups, ascending.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.known.read().views.keys().copied().collect();
        groups.sort_unstable();
        groups
    }

    /// Where a disk is.
    pub fn place(&self, disk: DiskId) -> Option<DiskPlace> {
        self.known.read().disks.get(&disk).cloned()
    }

    /// Whether a volume was removed.
    pub fn is_gone(&self, vid: VolumeId) -> bool {
        self.known.read().gone.contains(&vid)
    }

    /// The clock of the cluster, carried on by this process' own: ms since 1970. So a client whose clock is
    /// wrong writes like any other.
    pub fn now_ms(&self) -> u64 {
        let known = self.known.read();
        carried(known.clock.unwrap_or(known.fallback))
    }
}

impl ReferenceClock for MapCache {
    fn reference_ms(&self) -> Option<u64> {
        self.known.read().clock.map(carried)
    }
}

/// A time that was told at a moment, as it is now.
fn carried((then_ms, then): (u64, Instant)) -> u64 {
    then_ms.saturating_add(machine::since(then).as_millis() as u64)
}

impl Known {
    /// Takes the time of an answer, which was `told_ms` at some moment since it was asked for. What is
    /// carried on stays as long as it agrees with that: an answer that was long on its way does not set the
    /// clock back.
    fn learn_clock(&mut self, told_ms: u64, asked: Instant) {
        let latest_ms = told_ms.saturating_add(machine::since(asked).as_millis() as u64);
        let agrees = self.clock.is_some_and(|clock| {
            let carried_ms = carried(clock);
            carried_ms >= told_ms && carried_ms <= latest_ms.saturating_add(CLOCK_STEP_MS)
        });
        if !agrees {
            self.clock = Some((told_ms, machine::now()));
        }
    }

    fn learn(&mut self, message: &messages::View) -> Option<CachedView> {
        let view = view_of(message)?;
        let present = self.views.get(&view.group);
        if present.is_some_and(|present| present.view.epoch >= view.epoch) {
            return None;
        }
        let missed = message.members.iter().map(|member| Epoch(member.missed)).collect();
        let source = |member: &messages::Member| (member.source > 0).then_some(DiskId(member.source));
        let sources = message.members.iter().map(source).collect();
        let cached = CachedView { view, missed, sources };
        self.views.insert(cached.view.group, cached.clone());
        Some(cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_proto::of_view;
    use copal_volume::group::Role;
    use std::time::Duration;

    fn view(epoch: u64) -> messages::View {
        of_view(&View {
            group: GroupId(3),
            epoch: Epoch(epoch),
            members: vec![(DiskId(1), Role::Normal)],
            replicas: 3,
            min_ack: 2,
        })
    }

    /// Symptom: a process that stood still with an answer in its socket went by a clock as old as that
    /// answer. Cause: whatever time an answer told was taken for the time of its arrival. Fix: it is the time
    /// of some moment since it was asked for.
    #[test]
    fn an_answer_that_was_long_on_its_way_does_not_set_the_clock_back_and_a_prompt_one_does() {
        let cache = MapCache::default();
        assert_eq!(cache.reference_ms(), None, "nobody has told it");
        let told = |now_ms| messages::Map { now_ms, ..messages::Map::default() };
        let long_ago = machine::now().checked_sub(Duration::from_secs(60)).unwrap();
        cache.apply(&told(1_000_000));
        cache.apply_answer(&told(950_000), long_ago);
        assert!(cache.now_ms() >= 1_000_000, "within a minute");
        cache.apply_answer(&told(1_050_000), long_ago);
        assert!(cache.now_ms() >= 1_050_000, "it is that late at least");
        cache.apply_answer(&told(500_000), long_ago);
        assert!((500_000..560_000).contains(&cache.now_ms()), "the cluster's clock was set back");
    }

    /// Symptom: a client that runs for years remembered each volume that was ever removed. Fix: so many, and
    /// no more: the members of a volume say for ever that it is gone.
    #[test]
    fn removed_volumes_take_no_more_room_than_so_many() {
        let cache = MapCache::default();
        let gone = |volumes: std::ops::Range<u64>| messages::Map {
            gone_volumes: volumes.collect(),
            ..messages::Map::default()
        };
        let most = MOST_GONE as u64;
        cache.apply(&gone(0..most));
        assert!(cache.is_gone(VolumeId(0)) && cache.is_gone(VolumeId(most - 1)));
        cache.apply(&gone(most..most + 1));
        assert!(cache.is_gone(VolumeId(most)));
        assert!(cache.known.read().gone.len() <= MOST_GONE);
    }

    #[test]
    fn what_is_known_never_gets_older() {
        let cache = MapCache::default();
        assert!(cache.learn(&view(5)));
        assert!(!cache.learn(&view(4)));
        let map =
            |version, epoch| messages::Map { version, views: vec![view(epoch)], ..messages::Map::default() };
        assert_eq!(cache.apply(&map(9, 9)).len(), 1);
        assert!(cache.apply(&map(7, 7)).is_empty());
        assert_eq!((cache.version(), cache.view(GroupId(3)).unwrap().epoch), (9, Epoch(9)));
    }
}
