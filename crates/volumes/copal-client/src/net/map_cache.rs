//! Cache of the cluster's map: views of groups, places of disks, removed volumes, and the cluster's clock.
//!
//! Invariant: the view of a group never gets older. An outdated map is safe: every request names its view
//! (VOL-11).

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

/// Removed volumes that are remembered. Beyond that number all are forgotten.
const MAX_REMOVED: usize = 100_000;

/// Place of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Name of its server.
    pub server: String,
    /// host:port of its server.
    pub address: String,
    /// Name in the server's certificate.
    pub server_uuid: Vec<u8>,
}

/// A view, with the missed epochs and the donors of its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedView {
    /// The view.
    pub view: View,
    /// For each replica, in the view's order: the newest epoch in which operations could complete without it.
    pub missed: Vec<Epoch>,
    /// For each replica: the disk that a joining replica copies from, if the master has chosen one.
    pub sources: Vec<Option<DiskId>>,
}

impl CachedView {
    /// The disk that a joining replica copies from, if the master has chosen one.
    pub fn source_of(&self, disk: DiskId) -> Option<DiskId> {
        let at = self.view.members.iter().position(|(member, _)| *member == disk)?;
        self.sources.get(at).copied().flatten()
    }
}

struct MapState {
    version: u64,
    term: u64,
    views: HashMap<GroupId, CachedView>,
    disks: HashMap<DiskId, DiskPlace>,
    removed: HashSet<VolumeId>,
    /// The cluster's clock, and when it was received; `None`: no master has sent it yet.
    clock: Option<(u64, Instant)>,
    /// This machine's clock when the cache was created.
    fallback: (u64, Instant),
}

/// See the module.
pub struct MapCache {
    state: RwLock<MapState>,
    changed: watch::Sender<u64>,
}

impl Default for MapCache {
    fn default() -> MapCache {
        let known = MapState {
            version: 0,
            term: 0,
            views: HashMap::new(),
            disks: HashMap::new(),
            removed: HashSet::new(),
            clock: None,
            fallback: (machine::wall_ms(), machine::now()),
        };
        MapCache { state: RwLock::new(known), changed: watch::Sender::new(0) }
    }
}

impl MapCache {
    /// Takes a map or its changes. Returns the views that are new here. The map's time counts as received now.
    pub fn apply(&self, map: &messages::Map) -> Vec<CachedView> {
        self.apply_answer(map, machine::now())
    }

    /// As [`MapCache::apply`], for the answer to a request that was sent at `asked`. The answer's time was right at
    /// some moment between then and now, however long the answer was delayed.
    pub fn apply_answer(&self, map: &messages::Map, asked: Instant) -> Vec<CachedView> {
        let mut known = self.state.write();
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
            // The replicas of a forgotten volume still report that it is removed.
            if known.removed.len() >= MAX_REMOVED {
                known.removed.clear();
            }
            known.removed.insert(VolumeId(vid));
        }
        let new: Vec<CachedView> = map.views.iter().filter_map(|view| known.learn(view)).collect();
        drop(known);
        self.notify();
        new
    }

    /// Takes the view of a server that has a newer one. Returns whether it is new here.
    pub fn learn(&self, view: &messages::View) -> bool {
        let is_new = self.state.write().learn(view).is_some();
        if is_new {
            self.notify();
        }
        is_new
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// A receiver that is notified of every change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Version of the newest map that was received.
    pub fn version(&self) -> u64 {
        self.state.read().version
    }

    /// The newest term that was received.
    pub fn term(&self) -> u64 {
        self.state.read().term
    }

    /// The view of a group.
    pub fn view(&self, group: GroupId) -> Option<View> {
        self.state.read().views.get(&group).map(|cached| cached.view.clone())
    }

    /// The view of a group, with the missed epochs of its replicas.
    pub fn cached(&self, group: GroupId) -> Option<CachedView> {
        self.state.read().views.get(&group).cloned()
    }

    /// All groups, ascending.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.state.read().views.keys().copied().collect();
        groups.sort_unstable();
        groups
    }

    /// The place of a disk.
    pub fn place(&self, disk: DiskId) -> Option<DiskPlace> {
        self.state.read().disks.get(&disk).cloned()
    }

    /// Whether a volume was removed.
    pub fn is_removed(&self, vid: VolumeId) -> bool {
        self.state.read().removed.contains(&vid)
    }

    /// The cluster's clock, advanced by this process' own: ms since 1970. So a client whose clock is wrong writes
    /// like any other.
    pub fn now_ms(&self) -> u64 {
        let known = self.state.read();
        advanced(known.clock.unwrap_or(known.fallback))
    }
}

impl ReferenceClock for MapCache {
    fn reference_ms(&self) -> Option<u64> {
        self.state.read().clock.map(advanced)
    }
}

/// The present value of a clock that showed `then_ms` at `then`.
fn advanced((then_ms, then): (u64, Instant)) -> u64 {
    then_ms.saturating_add(machine::since(then).as_millis() as u64)
}

impl MapState {
    /// Takes the time `sent_ms` of an answer, which was right at some moment since the request. The present clock
    /// stays as long as it agrees with that. So an answer that was delayed does not set the clock back.
    fn learn_clock(&mut self, sent_ms: u64, asked: Instant) {
        let latest_ms = sent_ms.saturating_add(machine::since(asked).as_millis() as u64);
        let agrees = self.clock.is_some_and(|clock| {
            let present_ms = advanced(clock);
            present_ms >= sent_ms && present_ms <= latest_ms.saturating_add(CLOCK_STEP_MS)
        });
        if !agrees {
            self.clock = Some((sent_ms, machine::now()));
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

    /// Symptom: a process that was paused with an answer in its socket used a clock as old as that answer.
    /// Cause: the time in an answer was taken for the time of its arrival. Fix: it is the time of some moment
    /// since the request.
    #[test]
    fn a_delayed_answer_does_not_set_the_clock_back_and_a_prompt_one_does() {
        let cache = MapCache::default();
        assert_eq!(cache.reference_ms(), None, "no master has sent it");
        let map = |now_ms| messages::Map { now_ms, ..messages::Map::default() };
        let long_ago = machine::now().checked_sub(Duration::from_secs(60)).unwrap();
        cache.apply(&map(1_000_000));
        cache.apply_answer(&map(950_000), long_ago);
        assert!(cache.now_ms() >= 1_000_000, "within a minute");
        cache.apply_answer(&map(1_050_000), long_ago);
        assert!(cache.now_ms() >= 1_050_000, "the clock shows at least the time of the answer");
        cache.apply_answer(&map(500_000), long_ago);
        assert!((500_000..560_000).contains(&cache.now_ms()), "the cluster's clock was set back");
    }

    /// Symptom: a client that runs for years remembered each volume that was ever removed. Fix: their number is
    /// bounded, since the replicas of a volume always report its removal.
    #[test]
    fn the_number_of_removed_volumes_in_memory_is_bounded() {
        let cache = MapCache::default();
        let removed = |volumes: std::ops::Range<u64>| messages::Map {
            gone_volumes: volumes.collect(),
            ..messages::Map::default()
        };
        let most = MAX_REMOVED as u64;
        cache.apply(&removed(0..most));
        assert!(cache.is_removed(VolumeId(0)) && cache.is_removed(VolumeId(most - 1)));
        cache.apply(&removed(most..most + 1));
        assert!(cache.is_removed(VolumeId(most)));
        assert!(cache.state.read().removed.len() <= MAX_REMOVED);
    }

    #[test]
    fn views_never_get_older() {
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
