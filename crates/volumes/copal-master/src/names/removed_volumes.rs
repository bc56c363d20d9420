//! Forgets a removed volume once all members of its group know of the removal.
//!
//! A member that learns of a removal records it for ever, and refuses late operations on the volume. A new
//! member learns of it from the donor of its resync, or from the map while the master remembers the volume.
//! The master forgets a volume when each member of its group has entered a map that has both the removal and
//! that member. It waits for members that are down. It does not wait for a server that was given up, because
//! that server is not let back in.
//!
//! Design: docs/design/cluster.md#master
//! Not here: the removal of a volume (`volumes`), the record of a member (`copal-data`).

use crate::{
    error::MasterResult,
    names::volumes::VolumeNames,
    tables::{cluster_map::ClusterMap, meta_store::MetaStore},
};
use copal_volume::VolumeId;

/// Time between two looks.
const LOOK_MS: u64 = 10_000;
/// Volumes that one look forgets; each takes a transaction.
const MOST: usize = 100;

/// Forgets removed volumes that all members know of. `entered` is the newest map that a disk's server has
/// entered.
pub(crate) fn forget_removed_volumes(
    volumes: &mut VolumeNames,
    tables: &mut dyn MetaStore,
    map: &ClusterMap,
    entered: impl Fn(u32) -> u64,
    now_ms: u64,
) -> MasterResult<()> {
    let (removed, last_forget_ms) = volumes.removed_mut();
    if removed.is_empty() || now_ms < *last_forget_ms + LOOK_MS {
        return Ok(());
    }
    *last_forget_ms = now_ms;
    let known = removed.iter().filter(|(vid, version)| is_known(map, &entered, *vid, *version));
    let known: Vec<VolumeId> = known.map(|(vid, _)| *vid).take(MOST).collect();
    for vid in known {
        tables.forget_removed_volume(vid)?;
        removed.retain(|(other, _)| *other != vid);
    }
    Ok(())
}

/// Whether all members of a volume's group know of its removal.
fn is_known(map: &ClusterMap, entered: impl Fn(u32) -> u64, vid: VolumeId, version: u64) -> bool {
    let Some(row) = map.groups.get(&vid.birth_group()) else {
        return false;
    };
    row.members.iter().all(|(disk, _)| {
        let is_given_up = map.servers.get(disk).is_some_and(|server| server.state.is_lost());
        is_given_up || entered(*disk) >= version.max(row.version)
    })
}
