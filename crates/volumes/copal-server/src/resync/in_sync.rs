//! Marking of groups as in sync: persisted, reported to the leader, then confirmed.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Not here: the copy from a donor (`group_resync`), the order of an operator (`force_accept`).

use crate::master::membership::MAX_IN_SYNC_GROUPS;
use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::resync::fetch::FetchError;
use copal_client::CallError;
use copal_data::ResyncedGroup;
use copal_proto::{Method, messages};
use copal_volume::group::{BucketSeal, Epoch, GroupId};
use std::{collections::BTreeSet, time::Duration};

/// Time limit of one reply of a donor or the leader.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// Why a group is not in sync yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResyncError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Local(#[from] Status),
    #[error("no in-sync member to copy from")]
    NoDonor,
    #[error("this member is down in its view: operations complete without it")]
    Down,
    #[error(
        "the view or the donor's files have changed, or a name has two files and neither can be deleted yet"
    )]
    Changed,
}

impl From<FetchError> for ResyncError {
    fn from(error: FetchError) -> ResyncError {
        match error {
            FetchError::Call(error) => ResyncError::Call(error),
            FetchError::Local(refused) => ResyncError::Local(refused),
        }
    }
}

/// A group in which this member has everything that a donor had in the epoch `asked_in` or a later one.
pub(crate) struct VerifiedGroup {
    pub(crate) group: GroupId,
    /// Number of repairs of the group before the comparison or the copy began.
    pub(crate) generation: u64,
    /// Epoch of this member in which it asked the donor.
    pub(crate) asked_in: Epoch,
    /// Seal of the donor.
    pub(crate) seal: BucketSeal,
}

/// Epoch of this member in a group.
/// # Errors
/// `Changed`: it is no member.
pub(crate) fn own_epoch(host: &ReplicaHost, group: GroupId) -> Result<Epoch, ResyncError> {
    let membership = host.store.membership(group).map_err(Status::from)?;
    membership.map(|membership| membership.epoch).ok_or(ResyncError::Changed)
}

/// Marks groups as in sync in their present epochs, and returns the groups in which this member is in sync
/// now. A group is left out if an operation can have completed without this member in the epoch of the
/// request or later.
///
/// 1. The member persists that it has everything, with the present epoch.
/// 2. It reports the groups to the leader, up to 1,000 in one call. The leader deletes the missed epochs.
/// 3. For each group that the leader does not refuse, the member persists role N.
///
/// The first step comes before the report, since the leader's reply may be lost. Then a later view lists no
/// missed epoch, and the member is in sync by its own row. Before the leader's record the member's
/// acknowledgement is required, but does not count as that of an in-sync member (VOL-16).
///
/// Views can be entered during the second step: the leader may take long to reply. The third step changes no
/// group whose epoch has changed, and none in which damage was found meanwhile.
pub(crate) async fn mark_in_sync(
    host: &ReplicaHost,
    verified: &[VerifiedGroup],
) -> Result<Vec<GroupId>, ResyncError> {
    let mut in_sync = Vec::new();
    for part in record_in_sync(host, verified).await?.chunks(MAX_IN_SYNC_GROUPS) {
        let groups = part.iter().map(|(group, epoch)| messages::GroupIn { group: group.0, epoch: epoch.0 });
        let request = messages::BecomeWhole { disk: host.disk().0, groups: groups.collect() };
        let became: messages::BecameWhole = host.masters.call(Method::BecomeWhole, &request, ANSWER).await?;
        let part: Vec<(GroupId, Epoch)> =
            part.iter().copied().filter(|(group, _)| !became.refused.contains(&group.0)).collect();
        // The states are reported in the order in which they are entered.
        let _turn = host.view_lock.lock().await;
        let store = host.store.clone();
        let ended = blocking(move || Ok(store.confirm_in_sync(&part)?));
        let ended = ended.await?;
        let resynced = ended.iter().filter(|own| own.role.is_in_sync());
        in_sync.extend(resynced.map(|own| own.group));
        host.report_memberships(ended);
    }
    Ok(in_sync)
}

/// Persists that this member has everything in these groups, and returns those to report, with their epochs.
/// No repair begins between the check and the write.
async fn record_in_sync(
    host: &ReplicaHost,
    verified: &[VerifiedGroup],
) -> Result<Vec<(GroupId, Epoch)>, ResyncError> {
    let _turn = host.view_lock.lock().await;
    let mut resynced_groups = Vec::new();
    for group in verified {
        resynced_groups.extend(resynced_group(host, group)?);
    }
    if resynced_groups.is_empty() {
        return Ok(Vec::new());
    }
    let (store, all) = (host.store.clone(), resynced_groups.clone());
    let begun = blocking(move || Ok(store.record_in_sync(&all)?));
    let begun: BTreeSet<GroupId> = begun.await?.into_iter().collect();
    let mut reported: Vec<(GroupId, Epoch)> =
        resynced_groups.into_iter().map(|own| (own.group, own.epoch)).collect();
    reported.retain(|(group, _)| begun.contains(group));
    Ok(reported)
}

/// The state to persist for a group. `None` in each of these cases:
/// - a repair has begun since the comparison or the copy began;
/// - the map does not have the view of this member's epoch;
/// - in that view the member is down, or has missed `asked_in` or a later epoch.
pub(crate) fn resynced_group(
    host: &ReplicaHost,
    verified: &VerifiedGroup,
) -> Result<Option<ResyncedGroup>, ResyncError> {
    let group = verified.group;
    // A repair that began after the comparison or the copy may have dropped rows that the donor's data was
    // compared with.
    if host.damage.is_repairing(group) || host.damage.generation(group) != verified.generation {
        return Ok(None);
    }
    let epoch = own_epoch(host, group)?;
    let cached = host.map.cached(group).filter(|cached| cached.view.epoch == epoch);
    let Some(cached) = cached else {
        return Ok(None);
    };
    let members = cached.view.members.iter().zip(&cached.missed);
    let mut own = members.filter(|((disk, _), _)| *disk == host.disk());
    let may_be = own.next().is_some_and(|((_, role), missed)| *missed < verified.asked_in && role.is_up());
    Ok(may_be.then_some(ResyncedGroup { group, epoch, seal: verified.seal }))
}
