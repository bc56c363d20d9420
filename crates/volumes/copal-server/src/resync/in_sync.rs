//! End of a resync: the member persists that it has everything, reports this to the leader, and takes role N.
//!
//! The member *has everything* from the first step on (VOL-14). It is *in sync* only in role N, after the last
//! step.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Not here: the copy from a donor (`group_resync`), the order of an operator (`force_accept`).

use crate::master::membership::MAX_IN_SYNC_GROUPS;
use crate::net::messages::blocking;
use crate::net::status::{Status, expired};
use crate::replica::host::ReplicaHost;
use crate::resync::fetch::{FetchError, REPLY_TIMEOUT};
use copal_client::CallError;
use copal_data::{OperationError, ResyncedGroup};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_volume::group::{BucketSeal, Epoch, GroupId};
use std::collections::BTreeSet;

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
    #[error("this server is not a member of the group")]
    NotMember,
    #[error("the view has changed")]
    ViewChanged,
    #[error("the group is being repaired, or is about to be")]
    Repairing,
    #[error("the donor no longer has a file of its snapshot, and this member has no delete of that file yet")]
    DeleteMissing,
    #[error(
        "the group cannot be in sync yet: a name has two files, a repair or a newer view came meanwhile, or \
         the leader refused the report"
    )]
    NotMarked,
}

impl From<OperationError> for ResyncError {
    fn from(error: OperationError) -> ResyncError {
        match error {
            OperationError::OtherEpoch { .. } => ResyncError::ViewChanged,
            OperationError::NotMember => ResyncError::NotMember,
            OperationError::Refused(answer) => {
                ResyncError::Local(Status::new(Code::Internal, format!("{answer:?}")))
            }
            OperationError::Denied { reason } => ResyncError::Local(Status::new(Code::Denied, reason)),
            OperationError::Cancelled => ResyncError::Local(expired()),
            OperationError::Failed(error) => ResyncError::Local(error.into()),
        }
    }
}

impl From<FetchError> for ResyncError {
    fn from(error: FetchError) -> ResyncError {
        match error {
            FetchError::Call(error) => ResyncError::Call(error),
            FetchError::Local(refused) => ResyncError::Local(refused),
        }
    }
}

/// A group in which this member has everything that a donor had in the epoch `asked_in` or a later one: by a
/// comparison, or by a copy.
pub(crate) struct MatchedGroup {
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
/// `NotMember`; `Local`.
pub(crate) fn own_epoch(host: &ReplicaHost, group: GroupId) -> Result<Epoch, ResyncError> {
    let membership = host.store.membership(group).map_err(Status::from)?;
    membership.map(|membership| membership.epoch).ok_or(ResyncError::NotMember)
}

/// Brings groups in sync in their present epochs, and returns the groups in which this member has role N now.
///
/// 1. The member persists that it has everything, with the present epoch. It leaves out a group of which
///    `resynced_group` returns nothing. Of a group in which a name has two files it persists the seal and
///    "covered" only, and does not report it.
/// 2. It reports the groups to the leader, up to 1,000 in one call. The leader deletes the missed epochs.
/// 3. For each group that the leader does not refuse, the member persists role N.
///
/// The first step comes before the report, since the leader's reply may be lost. Then the member takes role N
/// when it enters a newer view that lists no missed epoch for it, if no damage is noted and no name has two
/// files. Until then the member resyncs again each second, which ends with another report.
///
/// Until the member has persisted role N, its acknowledgement is required, but does not count as that of an
/// in-sync member (VOL-16).
///
/// Views can be entered during the second step: the leader may take long to reply. The third step changes no
/// group whose epoch has changed, none in which damage was found meanwhile, and none in which a name has two
/// files.
pub(crate) async fn mark_in_sync(
    host: &ReplicaHost,
    matched: &[MatchedGroup],
) -> Result<Vec<GroupId>, ResyncError> {
    let mut in_sync = Vec::new();
    for part in persist_has_everything(host, matched).await?.chunks(MAX_IN_SYNC_GROUPS) {
        let groups = part.iter().map(|(group, epoch)| messages::GroupIn { group: group.0, epoch: epoch.0 });
        let request = messages::BecomeWhole { disk: host.disk().0, groups: groups.collect() };
        let reply: messages::BecameWhole =
            host.masters.call(Method::BecomeWhole, &request, REPLY_TIMEOUT).await?;
        let recorded: Vec<(GroupId, Epoch)> =
            part.iter().copied().filter(|(group, _)| !reply.refused.contains(&group.0)).collect();
        // The states are reported in the order in which they are entered.
        let _view_guard = host.view_lock.lock().await;
        let store = host.store.clone();
        let confirmed = blocking(move || Ok(store.confirm_in_sync(&recorded)?));
        let confirmed = confirmed.await?;
        let resynced = confirmed.iter().filter(|own| own.role.is_in_sync());
        in_sync.extend(resynced.map(|own| own.group));
        host.report_memberships(confirmed);
    }
    Ok(in_sync)
}

/// Persists that this member has everything in these groups, and returns those to report, with their epochs.
/// No repair begins between the check and the write. Of a group in which a name has two files, only the seal
/// and "covered" are persisted.
async fn persist_has_everything(
    host: &ReplicaHost,
    matched: &[MatchedGroup],
) -> Result<Vec<(GroupId, Epoch)>, ResyncError> {
    let _view_guard = host.view_lock.lock().await;
    let mut resynced_groups = Vec::new();
    for group in matched {
        resynced_groups.extend(resynced_group(host, group)?);
    }
    if resynced_groups.is_empty() {
        return Ok(Vec::new());
    }
    let (store, all) = (host.store.clone(), resynced_groups.clone());
    let persisted = blocking(move || Ok(store.persist_has_everything(&all)?));
    let persisted: BTreeSet<GroupId> = persisted.await?.into_iter().collect();
    let mut reported: Vec<(GroupId, Epoch)> =
        resynced_groups.into_iter().map(|own| (own.group, own.epoch)).collect();
    reported.retain(|(group, _)| persisted.contains(group));
    Ok(reported)
}

/// The state to persist for a group. `None`, since this member may lack operations, in each of these cases:
/// - a repair has begun since the comparison or the copy began;
/// - the map does not have the view of this member's epoch;
/// - in that view the member is down, or has missed `asked_in` or a later epoch.
pub(crate) fn resynced_group(
    host: &ReplicaHost,
    matched: &MatchedGroup,
) -> Result<Option<ResyncedGroup>, ResyncError> {
    let group = matched.group;
    // A repair that began after the comparison or the copy may have dropped rows that the donor's data was
    // compared with.
    if host.damage.is_repairing(group) || host.damage.generation(group) != matched.generation {
        return Ok(None);
    }
    let epoch = own_epoch(host, group)?;
    let cached = host.map.cached(group).filter(|cached| cached.view.epoch == epoch);
    let Some(cached) = cached else {
        return Ok(None);
    };
    let members = cached.view.members.iter().zip(&cached.missed);
    let mut own = members.filter(|((disk, _), _)| *disk == host.disk());
    let may_be = own.next().is_some_and(|((_, role), missed)| *missed < matched.asked_in && role.is_up());
    Ok(may_be.then_some(ResyncedGroup { group, epoch, seal: matched.seal }))
}
