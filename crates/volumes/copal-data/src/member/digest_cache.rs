//! Cache of bucket digests in memory.

use copal_volume::group::{Bucket, GroupId, OperationDigest};
use std::collections::{BTreeMap, HashMap};

/// Cached digests of sealed buckets.
#[derive(Default)]
pub(super) struct DigestCache {
    by_group: HashMap<GroupId, BTreeMap<Bucket, OperationDigest>>,
}

impl DigestCache {
    pub(super) fn keep(&mut self, group: GroupId, bucket: Bucket, digest: OperationDigest) {
        self.by_group.entry(group).or_default().insert(bucket, digest);
    }

    pub(super) fn known(&self, group: GroupId, bucket: Bucket) -> Option<OperationDigest> {
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
