//! Digests that were counted once, in memory.

use copal_volume::group::{Bucket, Digest, GroupId};
use std::collections::{BTreeMap, HashMap};

/// Digests of closed buckets that were counted already.
#[derive(Default)]
pub(super) struct Digests {
    by_group: HashMap<GroupId, BTreeMap<Bucket, Digest>>,
}

impl Digests {
    pub(super) fn keep(&mut self, group: GroupId, bucket: Bucket, digest: Digest) {
        self.by_group.entry(group).or_default().insert(bucket, digest);
    }

    pub(super) fn known(&self, group: GroupId, bucket: Bucket) -> Option<Digest> {
        let of_group = self.by_group.get(&group)?;
        of_group.get(&bucket).copied()
    }

    pub(super) fn forget(&mut self, group: GroupId, bucket: Bucket) {
        if let Some(of_group) = self.by_group.get_mut(&group) {
            of_group.remove(&bucket);
        }
    }

    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.by_group.remove(&group);
    }
}
