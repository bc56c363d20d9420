//! Full disks: moves that relieve them, and the reports about them.
//!
//! Paper: beanfs §5.3 (migration by watermarks)
//! Invariant: no move fills its target above the low watermark, or brings two members of a group closer to
//! each other by racks and zones.
//!
//! Not here: the choice of moves (`copal_volume::group::rebalance`).

use crate::{
    error::MasterResult,
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::{disk_facts, group_bytes},
        member_roles::effective_role,
    },
    recovery::recovery_state::{CopyReason, GroupMove},
    tables::meta_store::{MemberKind, ServerRow},
};
use copal_volume::group::{
    DiskId, GroupId, Role,
    placement::{self, DiskFacts, HARD_STOP_PERCENT, NoPlace},
    rebalance::{self, GroupFacts, MovePlan, PlanGoal},
};

/// Time between two searches for full disks. A disk that was relieved does not get its groups back at once.
const LOOK_MS: u64 = 60_000;

/// Facts about each group for the choice of moves.
pub(crate) fn group_facts(state: &LeaderState) -> Vec<GroupFacts> {
    let facts = state.map.groups.values().map(|row| {
        let view = state.map.view(row);
        let is_in_sync =
            |&(disk, role): &(DiskId, Role)| effective_role(state, &view, disk.0, role).is_in_sync();
        let is_full = row.members.iter().all(|(_, kind)| *kind == MemberKind::Full);
        GroupFacts {
            group: row.group,
            bytes: group_bytes(state, row.group),
            members: row.members.iter().map(|(disk, _)| DiskId(*disk)).collect(),
            is_in_sync: is_full
                && view.members.iter().all(is_in_sync)
                && !state.recovery.moves.contains_key(&row.group),
        }
    });
    facts.collect()
}

pub(crate) fn disk_name(state: &LeaderState, disk: DiskId) -> String {
    let server = state.map.servers.get(&disk.0);
    server.map_or_else(|| format!("disk {disk}"), |server| server.name.clone())
}

/// Disks that stay too full after a plan, a sentence each with the reason.
pub(crate) fn refusals(state: &LeaderState, plan: &MovePlan) -> Vec<String> {
    let refused = plan.refused.iter();
    refused.map(|refusal| format!("{} {refusal}", disk_name(state, refusal.disk()))).collect()
}

/// Orders moves away from disks that are too full, unless moves are paused. Searches once a minute, and not
/// before its last moves have ended.
pub(crate) fn relieve_full_disks(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let facts = disk_facts(state);
    let is_full = |facts: &DiskFacts| !facts.stays_within(0, placement::HIGH_WATERMARK_PERCENT);
    if !facts.iter().any(is_full) {
        state.recovery.full_disks.clear();
        return Ok(());
    }
    let recovery = &state.recovery;
    let is_busy = recovery.moves.values().any(|present| !present.is_ordered);
    let is_due = now_ms >= recovery.last_relief_ms + LOOK_MS;
    if recovery.are_moves_paused || is_busy || !is_due || recovery.queue.hold().is_some() {
        if is_busy {
            state.recovery.last_relief_ms = now_ms;
        }
        return Ok(());
    }
    state.recovery.last_relief_ms = now_ms;
    let plan = rebalance::plan(&facts, &group_facts(state), PlanGoal::Watermarks);
    for next in &plan.moves {
        let planned = GroupMove { from: next.source.0, to: next.target.0, is_ordered: false };
        state.recovery.moves.insert(next.group, planned);
    }
    if !plan.moves.is_empty() {
        let groups = plan.moves.len();
        state.add_event(now_ms, "rebalance", &format!("{groups} groups leave disks that are too full"))?;
    }
    state.recovery.full_disks = refusals(state, &plan);
    Ok(())
}

/// Ends moves whose target cannot take them any more.
pub(crate) fn drop_moves_without_place(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let recovery = &state.recovery;
    let blocked =
        recovery.without_place.iter().filter_map(|(group, reason)| match recovery.reasons.get(group) {
            Some(CopyReason::Move(_)) => Some((*group, reason.to_string())),
            _ => None,
        });
    let blocked: Vec<(GroupId, String)> = blocked.collect();
    for (group, reason) in blocked {
        state.recovery.moves.remove(&group);
        state.recovery.without_place.remove(&group);
        state.recovery.reasons.remove(&group);
        state.recovery.queue.withdraw(group);
        state.add_event(now_ms, "move", &format!("group {group} stays where it is: {reason}"))?;
    }
    Ok(())
}

/// Checks whether a copy of a group may move from `source`, one of its members, to `target`.
pub(crate) fn place_at(
    group: GroupId,
    members: &[DiskId],
    bytes: u64,
    facts: &[DiskFacts],
    source: u32,
    target: u32,
) -> Result<DiskId, NoPlace> {
    let concerned = facts.iter().filter(|facts| facts.disk.0 == target || members.contains(&facts.disk));
    let concerned: Vec<DiskFacts> = concerned.cloned().collect();
    placement::choose_for_move(group, members, DiskId(source), bytes, &concerned)
}

/// Disks that take no new files, and disks that stay too full, a sentence each.
pub(crate) fn full_disk_sentences(state: &LeaderState) -> Vec<String> {
    let servers = state.map.servers.values().filter(|server| is_full(state, server));
    let stopped = servers.map(|server| full_sentence(state, server));
    stopped.chain(state.recovery.full_disks.iter().cloned()).collect()
}

/// Whether a server that is up takes no new files, by its own report or by its used bytes. A server with a
/// full host counts as full also while it is down.
pub(crate) fn is_full(state: &LeaderState, server: &ServerRow) -> bool {
    let Some(activity) = state.activity.get(&server.disk) else {
        return false;
    };
    if server.is_away() {
        return activity.is_host_full && !server.state.is_lost();
    }
    let used = u128::from(activity.used_bytes) * 100;
    activity.is_full || used >= u128::from(server.capacity_bytes.max(1)) * u128::from(HARD_STOP_PERCENT)
}

fn full_sentence(state: &LeaderState, server: &ServerRow) -> String {
    let name = &server.name;
    let activity = state.activity.get(&server.disk);
    if activity.is_some_and(|activity| activity.is_host_full) {
        return format!(
            "{name} takes no operations, since its host has no space left; free some there, then start it again"
        );
    }
    let used = activity.map_or(0, |activity| activity.used_bytes);
    let percent = u128::from(used) * 100 / u128::from(server.capacity_bytes.max(1));
    format!(
        "{name} is full ({percent} %) and takes no new files; delete some, add a server, or give its store more space"
    )
}

/// Adds an event when a disk takes no new files any more, or takes them again.
pub(crate) fn report_fullness(state: &mut LeaderState, server: &ServerRow, now_ms: u64) -> MasterResult<()> {
    let is_full = state.activity.get(&server.disk).is_some_and(|activity| activity.is_full);
    let text = match is_full {
        true => full_sentence(state, server),
        false => format!("{} takes new files again", server.name),
    };
    state.add_event(now_ms, "full", &text)
}
