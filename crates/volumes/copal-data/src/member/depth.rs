//! How much stands in the journals, for who watches a server.

use super::store::MemberStore;
use crate::{error::of_engine, keys};
use copal_volume::{
    VolumeError,
    group::{Bucket, GroupId},
};
use std::collections::HashMap;

/// See [`MemberStore::journal_depth`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalDepth {
    /// Operations that stand in journals.
    pub operations: u64,
    /// Those of them that are not known to be on every member.
    pub unstable: u64,
    /// The oldest bucket that has one of those.
    pub oldest: Option<Bucket>,
    /// There are more than were counted.
    pub is_cut: bool,
}

impl MemberStore {
    /// Counts up to `limit` operations in the journals of all groups. Reads their keys from the device.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn journal_depth(&self, limit: u64) -> Result<JournalDepth, VolumeError> {
        let memberships = self.memberships()?.into_iter();
        let horizons: HashMap<GroupId, Bucket> = memberships.map(|own| (own.group, own.horizon)).collect();
        let mut depth = JournalDepth::default();
        for row in self.core.own.journal.prefix(&[]).keys_only() {
            let (key, _) = row.map_err(|error| of_engine(&error))?;
            if depth.operations == limit {
                depth.is_cut = true;
                break;
            }
            depth.operations += 1;
            let (Some(op), Some((group, _))) = (keys::split_journal(&key), key.split_first_chunk::<4>())
            else {
                continue;
            };
            let bucket = Bucket::of(op);
            let horizon = horizons.get(&GroupId(u32::from_be_bytes(*group)));
            if horizon.is_none_or(|horizon| bucket >= *horizon) {
                depth.unstable += 1;
                depth.oldest = Some(depth.oldest.map_or(bucket, |oldest| oldest.min(bucket)));
            }
        }
        Ok(depth)
    }
}
