//! Replacement of members: lost copies, drained disks and moves.
//!
//! A member needs a replacement in three cases: its server was down for longer than `permanent_after_ms`, its
//! server is known to have lost its data, or an operator gave the server up. The member keeps its place in the
//! group until another disk is in sync:
//! - The new member joins (M), takes all operations at once, and copies the rest from an in-sync member.
//! - When it reports that it is in sync, it takes the place of the old member.
//! - An old member that returns before that ends the copy.
//! - A member that leaves, because of a drain or a move, stays in sync and takes part until the same moment.
//!
//! The queue (`recovery`) decides the order of the copies and their sources.
//!
//! Paper:  beanfs §4.3 (permanent failures), §5.3 (re-replication, migration)
//! Design: docs/design/cluster.md#rules VOL-24
//! Invariant: an in-sync member leaves a group only in the change that leaves the full number of other members
//! in sync.

use crate::{
    error::{MasterError, MasterResult},
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::{disk_facts, group_bytes, update_failed_servers},
        drains::report_empty_servers,
        full_disks::{drop_moves_without_place, place_at, relieve_full_disks},
        member_roles::{in_sync_members, reported_role},
    },
    recovery::recovery_state::CopyReason,
    tables::meta_store::{GroupRow, MemberKind, MemberList, ServerRow, ServerState},
};
use copal_volume::{
    VolumeError,
    group::{
        DiskId, GroupId, Role, placement,
        recovery::{CopyOrder, RecoveryJob},
    },
};
use std::collections::BTreeMap;

/// A copy that has taken in no bytes for so long starts anew.
const STALLED_MS: u64 = 120_000;

/// Gives a server up; see [`crate::Master::give_up_server`].
pub(crate) fn give_up_server(state: &mut LeaderState, name: &str, now_ms: u64) -> MasterResult<()> {
    let found = state.map.servers.values().find(|server| server.name == name);
    let mut server = found.cloned().ok_or(VolumeError::NotFound)?;
    match server.state {
        ServerState::Lost => return Ok(()),
        ServerState::Failed => {}
        ServerState::Normal | ServerState::Recovering => {
            let reason = format!(
                "{name} is not taken for failed, and a server that is up is not given up; stop its process, and wait until \
                 `copal status` says that it is down"
            );
            return Err(MasterError::Denied(reason));
        }
    }
    server.state = ServerState::Lost;
    state.change_server(server)?;
    state.add_event(now_ms, "lost", &format!("{name} is given up: its groups are copied from others"))?;
    replace_members(state, now_ms)?;
    state.notify_watchers();
    Ok(())
}

/// Takes the next step towards the full number of copies on the right disks: members that are in sync take
/// their place, and new members join where the queue starts a copy.
pub(crate) fn replace_members(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    if let Some(alarm) = update_failed_servers(state, now_ms) {
        state.add_event(now_ms, "hold", &alarm.to_string())?;
    }
    let mut lost = Vec::new();
    let is_held = state.recovery.queue.hold().is_some();
    for server in state.map.servers.values() {
        // During a mass failure, only servers that an administrator gave up count as lost.
        let activity = state.activity.get(&server.disk);
        let has_lost_data = server.state.is_down() && activity.is_some_and(|activity| activity.has_lost_data);
        let is_late =
            !is_held && (has_lost_data || is_lost(server, state.options.permanent_after_ms, now_ms));
        if server.state.is_lost() || is_late {
            lost.push(server.disk);
        }
    }
    relieve_full_disks(state, now_ms)?;
    let mut changes: BTreeMap<GroupId, MemberList> = BTreeMap::new();
    let mut lacking: Vec<(GroupId, CopyReason)> = Vec::new();
    for row in state.map.groups.values() {
        if is_settled(state, row, &lost) {
            continue;
        }
        let (members, reason) = next_members(state, row, &lost);
        lacking.extend(reason.map(|reason| (row.group, reason)));
        if members != row.members {
            changes.insert(row.group, members);
        }
    }
    fill_queue(state, &lacking, &changes, &lost, now_ms);
    drop_moves_without_place(state, now_ms)?;
    restart_stalled_copies(state, &mut changes, now_ms)?;
    start_copies(state, &mut changes, now_ms);
    let is_busy = state.recovery.queue.len() != (0, 0);
    state.recovery.progress.tick(now_ms, is_busy);
    if !changes.is_empty() {
        state.change_members(changes.into_iter().collect())?;
    }
    report_empty_servers(state, now_ms)?;
    state.recovery.save_tasks(&mut *state.tables)?;
    drop_lost_servers(state, now_ms)
}

/// Whether a group needs no change. The check is cheap, since every call makes it for all groups.
fn is_settled(state: &LeaderState, row: &GroupRow, lost: &[u32]) -> bool {
    let is_at_rest = |&(disk, kind): &(u32, MemberKind)| {
        let server = state.map.servers.get(&disk);
        kind == MemberKind::Full && !lost.contains(&disk) && server.is_none_or(|server| !server.is_draining)
    };
    row.members.len() == usize::from(state.map.pool.replicas)
        && row.members.iter().all(is_at_rest)
        && !state.recovery.moves.contains_key(&row.group)
}

/// Next members of a group, and the reason why it needs a copy.
fn next_members(state: &LeaderState, row: &GroupRow, lost: &[u32]) -> (MemberList, Option<CopyReason>) {
    let group = row.group;
    let view = state.map.view(row);
    let replicas = usize::from(view.replicas);
    let server = |disk: u32| state.map.servers.get(&disk);
    let is_up = |disk: u32| server(disk).is_some_and(|server| !server.is_away());
    let is_draining = |disk: u32| server(disk).is_some_and(|server| server.is_draining);
    // Only the member's own report in this view permits the removal of a copy.
    let is_in_sync =
        |disk: u32| is_up(disk) && reported_role(state, &view, disk).is_some_and(Role::is_in_sync);
    // A joined member that has missed nothing since its report stays a full member while it is down.
    let lacks = |disk: u32| state.map.missed.contains_key(&(group, disk));
    let mut members = row.members.clone();
    for (disk, kind) in &mut members {
        if *kind == MemberKind::Joining && !lacks(*disk) {
            *kind = MemberKind::Full;
        }
    }
    // A joining member that is down gives its place to a disk that is up.
    members.retain(|&(disk, kind)| kind != MemberKind::Joining || is_up(disk));
    let stays = |&&(disk, kind): &&(u32, MemberKind)| kind == MemberKind::Full && !lost.contains(&disk);
    let is_joining = members.iter().any(|(_, kind)| *kind == MemberKind::Joining);
    let ordered = state.recovery.moves.get(&group);
    if !is_joining && members.iter().filter(stays).count() < replicas {
        // A leaving member stays when it has no successor and no order asks it to leave any more.
        for (disk, kind) in &mut members {
            let is_ordered = is_draining(*disk) || ordered.is_some_and(|ordered| ordered.from == *disk);
            if *kind == MemberKind::Leaving && !is_ordered && !lost.contains(disk) {
                *kind = MemberKind::Full;
            }
        }
    }
    let full = |&&(_, kind): &&(u32, MemberKind)| kind == MemberKind::Full;
    let mut in_sync: Vec<u32> =
        members.iter().filter(full).map(|(disk, _)| *disk).filter(|disk| is_in_sync(*disk)).collect();
    if in_sync.len() >= replicas {
        members.retain(|(disk, kind)| match kind {
            MemberKind::Joining | MemberKind::Leaving => false,
            MemberKind::Full => is_in_sync(*disk) || !lost.contains(disk),
        });
        // More than needed: a member returned, or the order for it to leave was withdrawn.
        while in_sync.len() > replicas {
            let extra = least_wanted(state, group, &in_sync);
            in_sync.retain(|disk| *disk != extra);
            members.retain(|(disk, _)| *disk != extra);
        }
    }
    let staying = members.iter().filter(stays).count();
    let is_joining = members.iter().any(|(_, kind)| *kind == MemberKind::Joining);
    let is_member = |disk: u32| members.iter().any(|(member, _)| *member == disk);
    // These members alone are the full number. A leaving member waits only for their reports.
    let is_to_leave = |disk: u32| is_draining(disk) || ordered.is_some_and(|ordered| ordered.from == disk);
    if !is_joining && members.iter().filter(stays).filter(|(disk, _)| !is_to_leave(*disk)).count() >= replicas
    {
        return (members, None);
    }
    let reason = match ordered {
        Some(ordered) if is_member(ordered.from) => Some(CopyReason::Move(*ordered)),
        // It was moved already, or has left otherwise.
        _ => None,
    };
    let drained = members
        .iter()
        .find(|(disk, kind)| *kind != MemberKind::Joining && is_draining(*disk) && !lost.contains(disk));
    let leaving = members.iter().find(|(_, kind)| *kind == MemberKind::Leaving);
    let from = drained.or(leaving).map(|(disk, _)| *disk);
    let reason = match (reason, from) {
        (Some(moved), _) => Some(moved),
        (None, Some(from)) => Some(CopyReason::Drain { from }),
        (None, None) if is_joining || staying < replicas => Some(CopyReason::Replace),
        (None, None) => None,
    };
    (members, reason)
}

/// Whether a disk's server has reported that it entered all views up to a version.
fn has_entered(state: &LeaderState, disk: u32, version: u64) -> bool {
    let activity = state.activity.get(&disk);
    activity.is_some_and(|activity| activity.entered_version >= version)
}

/// Lets members of `disk` that were to leave stay, in one group or in all, and drops the unfinished copies
/// that were to replace them. Returns their number.
pub(crate) fn cancel_leaving(
    state: &mut LeaderState,
    disk: u32,
    only: Option<GroupId>,
) -> MasterResult<usize> {
    let mut changes = Vec::new();
    for row in state.map.groups_of(disk) {
        let is_meant = only.is_none_or(|group| group == row.group);
        if !is_meant || !row.members.contains(&(disk, MemberKind::Leaving)) {
            continue;
        }
        let mut members = row.members.clone();
        members.retain(|&(disk, kind)| {
            kind != MemberKind::Joining || !state.map.missed.contains_key(&(row.group, disk))
        });
        for (member, kind) in &mut members {
            if *member == disk {
                *kind = MemberKind::Full;
            }
        }
        changes.push((row.group, members));
    }
    let stay = changes.len();
    if stay > 0 {
        state.change_members(changes)?;
    }
    Ok(stay)
}

/// The member to remove when more are in sync than needed: one that is being drained, else the one closest to
/// others.
fn least_wanted(state: &LeaderState, group: GroupId, in_sync: &[u32]) -> u32 {
    let mut candidates = in_sync.iter().filter_map(|disk| state.map.servers.get(disk));
    let draining = candidates.find(|server| server.is_draining);
    let members: Vec<DiskId> = in_sync.iter().copied().map(DiskId).collect();
    let last = || placement::least_wanted(group, &members, &disk_facts(state)).map(|disk| disk.0);
    draining.map(|server| server.disk).or_else(last).unwrap_or_default()
}

/// Updates the queue: a job for each group that lacks a copy, and none for the others.
fn fill_queue(
    state: &mut LeaderState,
    lacking: &[(GroupId, CopyReason)],
    changes: &BTreeMap<GroupId, MemberList>,
    lost: &[u32],
    now_ms: u64,
) {
    let facts = disk_facts(state);
    let mut reasons = BTreeMap::new();
    let mut without_place = BTreeMap::new();
    for &(group, reason) in lacking {
        let Some(row) = state.map.groups.get(&group) else {
            continue;
        };
        let members = changes.get(&group).unwrap_or(&row.members);
        let disks: Vec<DiskId> = members.iter().map(|(disk, _)| DiskId(*disk)).collect();
        let mut sources: Vec<DiskId> = in_sync_members(state, &state.map.view(row))
            .into_iter()
            .map(DiskId)
            .filter(|disk| disks.contains(disk))
            .collect();
        let in_sync_copies = sources.len() as u8;
        if !sources.is_empty() {
            // Spreads the reads over the members.
            let first = group.0 as usize % sources.len();
            sources.rotate_left(first);
        }
        let joining =
            members.iter().find(|(_, kind)| *kind == MemberKind::Joining).map(|(disk, _)| DiskId(*disk));
        let bytes = group_bytes(state, group);
        let target = match (joining, reason) {
            (Some(target), _) => Ok(target),
            (None, CopyReason::Move(ordered)) => {
                place_at(group, &disks, bytes, &facts, ordered.from, ordered.to)
            }
            (None, _) => {
                let leaves = |disk: &DiskId| lost.contains(&disk.0) || reason.leaving_disk() == Some(disk.0);
                let staying: Vec<DiskId> = disks.iter().copied().filter(|disk| !leaves(disk)).collect();
                placement::choose_new_member(group, &disks, &staying, bytes, &facts)
            }
        };
        let is_given_up = || {
            let lost = |disk: &u32| state.map.servers.get(disk).is_some_and(|s| s.state.is_lost());
            row.members.iter().any(|(disk, _)| lost(disk))
        };
        let is_ordered = match reason {
            CopyReason::Replace => is_given_up(),
            CopyReason::Drain { .. } => true,
            CopyReason::Move(ordered) => ordered.is_ordered,
        };
        // A disk that has left the group drops its data before it may join the group again (VOL-24).
        let chosen = target
            .as_ref()
            .ok()
            .copied()
            .filter(|disk| joining.is_some() || has_entered(state, disk.0, row.version));
        let job = RecoveryJob {
            group,
            in_sync_copies,
            since_ms: *state.recovery.lacking_since.entry(group).or_insert(now_ms),
            boost: state.recovery.boosts.get(&group).copied().unwrap_or_default(),
            pool: 0,
            sources,
            target: chosen,
            is_ordered,
        };
        if let Err(reason) = target {
            without_place.insert(group, reason);
        }
        reasons.insert(group, reason);
        queue_job(state, job, joining);
    }
    let recovery = &mut state.recovery;
    for group in recovery.reasons.keys() {
        if !reasons.contains_key(group) {
            recovery.queue.withdraw(*group);
            recovery.progress.finished();
        }
    }
    recovery.lacking_since.retain(|group, _| reasons.contains_key(group));
    recovery.boosts.retain(|group, _| reasons.contains_key(group));
    // A move that has ended or was cancelled.
    recovery.moves.retain(|group, _| reasons.contains_key(group));
    (recovery.reasons, recovery.without_place) = (reasons, without_place);
}

/// Adds a job. If its target has joined already, the job runs, also when an earlier term started it.
fn queue_job(state: &mut LeaderState, job: RecoveryJob, joining: Option<DiskId>) {
    let queue = &mut state.recovery.queue;
    let group = job.group;
    let running = queue.running().find(|start| start.group == group);
    if let Some(running) = running {
        // Its target or its source has left the group.
        if joining != Some(running.target) || !job.sources.contains(&running.source) {
            queue.withdraw(group);
        }
    }
    let is_free = |disk: &&DiskId| queue.running().all(|start| start.source != **disk);
    let source = job.sources.iter().find(is_free).or(job.sources.first());
    match (joining, source.copied()) {
        (Some(target), Some(source)) => {
            let start = CopyOrder { group, source, target };
            if !queue.resume(job.clone(), start) {
                queue.put(job);
            }
        }
        _ => queue.put(job),
    }
}

/// Removes the joining member of each copy that has not progressed for long. Its job waits for some time.
fn restart_stalled_copies(
    state: &mut LeaderState,
    changes: &mut BTreeMap<GroupId, MemberList>,
    now_ms: u64,
) -> MasterResult<()> {
    let running: Vec<CopyOrder> = state.recovery.queue.running().collect();
    state.recovery.last_progress.retain(|group, _| running.iter().any(|start| start.group == *group));
    for start in running {
        let copied = state.activity.get(&start.target.0).map_or(0, |activity| activity.copied_bytes);
        let progress = state.recovery.last_progress.entry(start.group).or_insert((copied, now_ms));
        if progress.0 != copied {
            *progress = (copied, now_ms);
        }
        let Some(row) = state.map.groups.get(&start.group) else {
            continue;
        };
        if now_ms.saturating_sub(progress.1) < STALLED_MS {
            continue;
        }
        let members = changes.entry(start.group).or_insert_with(|| row.members.clone());
        members.retain(|member| *member != (start.target.0, MemberKind::Joining));
        state.recovery.last_progress.remove(&start.group);
        state.recovery.queue.failed(start.group, now_ms);
        let group = start.group;
        let text = format!("the copy of group {group} made no progress for two minutes: it starts anew");
        state.add_event(now_ms, "stalled", &text)?;
    }
    Ok(())
}

/// Lets new members join where the queue starts a copy.
fn start_copies(state: &mut LeaderState, changes: &mut BTreeMap<GroupId, MemberList>, now_ms: u64) {
    for start in state.recovery.queue.next(now_ms) {
        let Some(row) = state.map.groups.get(&start.group) else {
            continue;
        };
        let members = changes.entry(start.group).or_insert_with(|| row.members.clone());
        let reason = state.recovery.reasons.get(&start.group);
        let leaves = reason.and_then(|reason| reason.leaving_disk());
        for (disk, kind) in members.iter_mut() {
            if leaves == Some(*disk) && *kind == MemberKind::Full {
                *kind = MemberKind::Leaving;
            }
        }
        if members.iter().all(|(disk, _)| *disk != start.target.0) {
            members.push((start.target.0, MemberKind::Joining));
            members.sort_unstable_by_key(|(disk, _)| *disk);
        }
    }
}

/// Removes each server that was given up and holds no group any more.
fn drop_lost_servers(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let lost = state.map.servers.values();
    let lost: Vec<(u32, String)> = lost
        .filter(|server| server.state.is_lost())
        .filter(|server| state.map.groups_of(server.disk).next().is_none())
        .map(|server| (server.disk, server.name.clone()))
        .collect();
    for (disk, name) in lost {
        state.tables.remove_server(disk)?;
        state.map.servers.remove(&disk);
        state.activity.remove(&disk);
        state.add_event(now_ms, "replaced", &format!("{name} is removed: all its groups lie on others"))?;
    }
    Ok(())
}

/// Whether a server counts as lost for good.
fn is_lost(server: &ServerRow, permanent_after_ms: u64, now_ms: u64) -> bool {
    match server.state {
        ServerState::Lost => true,
        // For an announced absence, the time counts from its announced end.
        ServerState::Failed => {
            server.failed_since_ms <= now_ms && now_ms - server.failed_since_ms >= permanent_after_ms
        }
        ServerState::Normal | ServerState::Recovering => false,
    }
}
