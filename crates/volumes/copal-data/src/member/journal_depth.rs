//! Size of the journals, for monitoring.

use super::{disk_state::MemberCore, roles};
use crate::{error::of_engine, keys};
use copal_volume::{
    VolumeError,
    group::{Bucket, GroupId},
};
use std::collections::HashMap;

/// See [`MemberStore::journal_depth`](crate::MemberStore::journal_depth).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalDepth {
    /// Operations in journals.
    pub operations: u64,
    /// Those that are not known to be on every member.
    pub unstable: u64,
    /// The oldest bucket with such an operation.
    pub oldest: Option<Bucket>,
    /// Whether the limit ended the count.
    pub is_cut: bool,
}

/// See `MemberStore::journal_depth`.
pub(super) fn journal_depth(core: &MemberCore, limit: u64) -> Result<JournalDepth, VolumeError> {
    let memberships = roles::memberships(core)?.into_iter();
    let horizons: HashMap<GroupId, Bucket> = memberships.map(|own| (own.group, own.stable_point)).collect();
    let mut depth = JournalDepth::default();
    for row in core.own.journal.prefix(&[]).keys_only() {
        let (key, _) = row.map_err(|error| of_engine(&error))?;
        if depth.operations == limit {
            depth.is_cut = true;
            break;
        }
        depth.operations += 1;
        let (Some(op), Some((group, _))) = (keys::split_journal(&key), key.split_first_chunk::<4>()) else {
            continue;
        };
        let bucket = Bucket::of(op);
        let stable_point = horizons.get(&GroupId(u32::from_be_bytes(*group)));
        if stable_point.is_none_or(|stable_point| bucket >= *stable_point) {
            depth.unstable += 1;
            depth.oldest = Some(depth.oldest.map_or(bucket, |oldest| oldest.min(bucket)));
        }
    }
    Ok(depth)
}
