//! Filter of recently created file ids, in memory before the journal.
//!
//! A second name for a file's id is refused. The journal knows each create of the last minute, but a scan per
//! create would be too slow. So a create looks up this filter first; it has eight bytes per id.
//!
//! Invariant: an id that is not in the filter was not created here since it became fresh, unless there were
//! too many. In that case a second name of an id is detected by its pieces only; it shares nothing with the
//! first.
//!
//! Not here: ids that are not fresh (`file_ids`).

use copal_volume::{
    FileId,
    group::{Bucket, GroupId, MAX_OP_AGE_MS, MAX_OP_AHEAD_MS},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
};

/// Maximum number of ids; above it, the oldest of a group are dropped.
const MOST: usize = 1 << 20;
/// Maximum age of an id whose create is certainly in the journal, ms. A bucket is sealed a minute after its
/// end, and cut later.
const FRESH_MS: u64 = MAX_OP_AGE_MS;

/// Whether the journal certainly has the create of a file with this id, if there was one.
pub(super) fn is_fresh(fid: FileId, now_ms: u64) -> bool {
    fid.ms().saturating_add(FRESH_MS) > now_ms
}

/// See the module.
#[derive(Default)]
pub(super) struct RecentFiles {
    groups: HashMap<GroupId, OfGroup>,
    hasher: RandomState,
    count: usize,
}

/// Hashes of ids by bucket of the id.
type OfGroup = BTreeMap<Bucket, HashSet<u64>>;

impl RecentFiles {
    /// Whether the group's journal was read.
    pub(super) fn is_loaded(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Starts the filter of a group with ids from its journal.
    pub(super) fn load(&mut self, group: GroupId, fids: impl IntoIterator<Item = FileId>, now_ms: u64) {
        self.groups.entry(group).or_default();
        for fid in fids {
            self.note(group, fid, now_ms);
        }
    }

    /// Adds a created file; no effect for a group without a filter.
    pub(super) fn note(&mut self, group: GroupId, fid: FileId, now_ms: u64) {
        if !is_fresh(fid, now_ms) {
            return;
        }
        let hash = self.hasher.hash_one(fid.0);
        let Some(of_group) = self.groups.get_mut(&group) else {
            return;
        };
        let oldest = bucket_of_ms(now_ms.saturating_sub(FRESH_MS + MAX_OP_AHEAD_MS));
        while let Some(entry) = of_group.first_entry()
            && *entry.key() < oldest
        {
            self.count -= entry.remove().len();
        }
        self.count += usize::from(of_group.entry(bucket_of(fid)).or_default().insert(hash));
        while self.count > MOST
            && let Some((_, ids)) = of_group.pop_first()
        {
            self.count -= ids.len();
        }
    }

    /// Whether a file with this fresh id may have been created in a group; always for a group without a
    /// filter.
    pub(super) fn may_have(&self, group: GroupId, fid: FileId) -> bool {
        let Some(of_group) = self.groups.get(&group) else {
            return true;
        };
        let hash = self.hasher.hash_one(fid.0);
        of_group.get(&bucket_of(fid)).is_some_and(|ids| ids.contains(&hash))
    }

    /// Drops the filter of a group.
    pub(super) fn forget(&mut self, group: GroupId) {
        if let Some(of_group) = self.groups.remove(&group) {
            self.count -= of_group.values().map(HashSet::len).sum::<usize>();
        }
    }
}

fn bucket_of(fid: FileId) -> Bucket {
    bucket_of_ms(fid.ms())
}

/// The bucket of a time.
pub(super) fn bucket_of_ms(ms: u64) -> Bucket {
    Bucket(ms / copal_volume::group::BUCKET_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 10_000_000;
    const GROUP: GroupId = GroupId(3);

    #[test]
    fn the_filter_knows_fresh_ids_and_forgets_them_when_they_are_old() {
        let mut recent = RecentFiles::default();
        let fid = |ms, number| FileId::new(ms, 0, number);
        assert!(recent.may_have(GROUP, fid(NOW, 1)), "nothing was loaded");
        recent.load(GROUP, [fid(NOW, 1), fid(NOW - FRESH_MS, 2)], NOW);
        assert!(recent.may_have(GROUP, fid(NOW, 1)));
        assert!(!recent.may_have(GROUP, fid(NOW, 2)));
        assert_eq!(recent.count, 1, "one that is not fresh is not kept");
        recent.note(GROUP, fid(NOW + 200_000, 3), NOW + 200_000);
        assert!(!recent.may_have(GROUP, fid(NOW, 1)), "it is not fresh any more");
        recent.forget(GROUP);
        assert_eq!((recent.count, recent.is_loaded(GROUP)), (0, false));
    }
}
