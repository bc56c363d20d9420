//! Moves of groups: one group by order, a plan for all disks, the pause of all moves.
//!
//! The database keeps an ordered move until it has ended (`recovery::saved_tasks`). Moves that the master
//! chooses by itself are not kept; the next leader chooses anew.
//!
//! Paper: beanfs §5.3 (migration by hand)
//! Invariants
//! - A plan is carried out unchanged or refused as a whole; nothing else moves for it.
//! - No move fills its target above the low watermark, or brings two members of a group closer to each other
//!   by racks and zones.
//!
//! Not here: the choice of moves (`copal_volume::group::rebalance`), the copies (`replacement`), full disks
//! (`full_disks`).

use crate::{
    error::{MasterError, MasterResult},
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::{disk_facts, group_bytes, seconds_for},
        full_disks::{disk_name, place_at, refusals},
        replacement::{cancel_leaving, replace_members},
    },
    recovery::recovery_state::GroupMove,
    tables::meta_store::MemberKind,
};
use copal_proto::administration::{
    CancelReport, DiskForecast, MoveReport, PauseReport, PlannedMove, RebalancePlan,
};
use copal_volume::{
    VolumeError,
    group::{
        DiskId, GroupId,
        rebalance::{MovePlan, PlannedFill},
    },
};

/// A move in an order or a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// The group.
    pub group: GroupId,
    /// Name of the server that it leaves.
    pub from: String,
    /// Name of the server that takes its place.
    pub to: String,
}

/// A plan that was checked against the map.
struct CheckedPlan {
    /// Moves that are still to make.
    moves: Vec<(GroupId, GroupMove)>,
    /// Number of moves that are made, or under way.
    done: usize,
    bytes: u64,
}

/// Cancels the move of a group; see [`crate::Master::cancel_move`].
pub(crate) fn cancel_move(
    state: &mut LeaderState,
    group: GroupId,
    dry_run: bool,
    now_ms: u64,
) -> MasterResult<CancelReport> {
    let row = state.map.groups.get(&group).ok_or(VolumeError::NotFound)?;
    let leaving = row.members.iter().find(|(_, kind)| *kind == MemberKind::Leaving).map(|(disk, _)| *disk);
    let is_ordered = state.recovery.moves.contains_key(&group);
    if leaving.is_none() && !is_ordered {
        return Ok(CancelReport { group: group.0, moves: false, has_begun: None, dry_run });
    }
    let drains = leaving.and_then(|disk| state.map.servers.get(&disk)).filter(|server| server.is_draining);
    if let Some(server) = drains {
        let name = &server.name;
        let reason = format!(
            "group {group} leaves {name}, which is being emptied; `copal node drain {name} --undo` ends that"
        );
        return Err(MasterError::Denied(reason));
    }
    if !dry_run {
        state.recovery.moves.remove(&group);
        if let Some(disk) = leaving {
            cancel_leaving(state, disk, Some(group))?;
        }
        state.add_event(now_ms, "move", &format!("group {group} stays where it is after all"))?;
        replace_members(state, now_ms)?;
        state.notify_watchers();
    }
    Ok(CancelReport { group: group.0, moves: true, has_begun: Some(leaving.is_some()), dry_run })
}

/// Carries a plan out; see [`crate::Master::rebalance_apply`].
pub(crate) fn apply_plan(
    state: &mut LeaderState,
    orders: &[MoveOrder],
    dry_run: bool,
    now_ms: u64,
) -> MasterResult<MoveReport> {
    let CheckedPlan { moves, done, bytes } = check_plan(state, orders).map_err(MasterError::Denied)?;
    let groups = moves.len();
    if !dry_run {
        state.recovery.pause_moves(&mut *state.tables, false)?;
        for &(group, ordered) in &moves {
            state.recovery.moves.insert(group, ordered);
        }
        if let [only] = orders {
            let (group, from, to) = (only.group, &only.from, &only.to);
            state.add_event(now_ms, "move", &format!("group {group} moves from {from} to {to}"))?;
        } else {
            state.add_event(now_ms, "rebalance", &format!("{groups} groups move by a plan"))?;
        }
        replace_members(state, now_ms)?;
        state.notify_watchers();
    }
    Ok(MoveReport { groups, done, bytes, dry_run, ends_in_s: seconds_for(state, bytes, groups) })
}

/// Pauses all moves; see [`crate::Master::rebalance_pause`].
pub(crate) fn pause_moves(state: &mut LeaderState, dry_run: bool, now_ms: u64) -> MasterResult<PauseReport> {
    let has_begun = |group: &GroupId| {
        let row = state.map.groups.get(group);
        row.is_some_and(|row| row.members.iter().any(|(_, kind)| *kind == MemberKind::Leaving))
    };
    let (running, waiting): (Vec<GroupId>, Vec<GroupId>) =
        state.recovery.moves.keys().copied().partition(has_begun);
    if !dry_run {
        state.recovery.pause_moves(&mut *state.tables, true)?;
        for group in &waiting {
            state.recovery.moves.remove(group);
        }
        let text = format!("no more moves begin: {} are left out, {} continue", waiting.len(), running.len());
        state.add_event(now_ms, "rebalance", &text)?;
        replace_members(state, now_ms)?;
        state.notify_watchers();
    }
    Ok(PauseReport { left_out: waiting.len(), running: running.len(), dry_run })
}

/// A plan with the names of servers.
pub(crate) fn named_plan(state: &LeaderState, plan: &MovePlan, rate: Option<u64>) -> RebalancePlan {
    let moves = plan.moves.iter().map(|next| PlannedMove {
        group: next.group.0,
        from: disk_name(state, next.source),
        to: disk_name(state, next.target),
        bytes: next.bytes,
    });
    let disk = |fill: &PlannedFill| DiskForecast {
        name: disk_name(state, fill.disk),
        capacity_bytes: fill.capacity_bytes,
        before_bytes: fill.before_bytes,
        after_bytes: fill.after_bytes,
        before_groups: fill.before_groups,
        after_groups: fill.after_groups,
    };
    // A disk takes one copy in and gives one out at a time, so the busiest disk ends last.
    let hours = rate.map(|rate| plan.busiest_bytes() as f64 / rate as f64 / 3600.0);
    RebalancePlan {
        v: RebalancePlan::VERSION,
        moves: moves.collect(),
        disks: plan.disks.iter().map(disk).collect(),
        bytes: plan.moved_bytes(),
        hours,
        refused: refusals(state, plan),
    }
}

/// Checks all moves of a plan. The error is the sentence about the first move that is impossible.
fn check_plan(state: &LeaderState, orders: &[MoveOrder]) -> Result<CheckedPlan, String> {
    let mut facts = disk_facts(state);
    let (mut moves, mut done, mut bytes) = (Vec::new(), 0, 0_u64);
    for MoveOrder { group, from, to } in orders {
        let refused = |why: String| {
            Err(format!("group {group} cannot move from {from} to {to}: {why}; nothing was begun"))
        };
        let Some(row) = state.map.groups.get(group) else {
            return refused("there is no such group".to_owned());
        };
        let server = |name: &str| state.map.server_named(name).ok_or_else(|| name.to_owned());
        let (source, target) = match (server(from), server(to)) {
            (Ok(source), Ok(target)) => (source.disk, target.disk),
            (Err(name), _) | (_, Err(name)) => {
                return refused(format!("there is no server {name}; `copal node ls` lists them"));
            }
        };
        let kind_of =
            |disk: u32| row.members.iter().find(|(member, _)| *member == disk).map(|(_, kind)| *kind);
        match (kind_of(source), kind_of(target)) {
            (None, Some(_)) => {
                done += 1;
                continue;
            }
            (None, None) => return refused(format!("{from} does not hold it")),
            (Some(_), Some(_)) => return refused(format!("{to} holds it, too")),
            (Some(MemberKind::Full), None) => {}
            (Some(_), None) => return refused("its members change already".to_owned()),
        }
        if let Some(present) = state.recovery.moves.get(group) {
            if (present.from, present.to) == (source, target) {
                done += 1;
                continue;
            }
            return refused(
                "another move of it is under way; `copal group move GROUP --cancel` ends it".to_owned(),
            );
        }
        if moves.iter().any(|(other, _)| other == group) {
            return refused("the plan moves it twice".to_owned());
        }
        let size = group_bytes(state, *group);
        let members: Vec<DiskId> = row.members.iter().map(|(disk, _)| DiskId(*disk)).collect();
        if let Err(reason) = place_at(*group, &members, size, &facts, source, target) {
            return refused(format!("{to} cannot take it ({reason})"));
        }
        for disk in facts.iter_mut().filter(|facts| facts.disk.0 == target) {
            disk.used_bytes = disk.used_bytes.saturating_add(size);
        }
        bytes = bytes.saturating_add(size);
        let ordered = GroupMove { from: source, to: target, is_ordered: true };
        moves.push((*group, ordered));
    }
    Ok(CheckedPlan { moves, done, bytes })
}
