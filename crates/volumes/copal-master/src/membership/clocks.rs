//! Clocks of the leader and of the data servers: the reference clock, and servers with a wrong clock.
//!
//! Clocks are measured against the ruler, a clock of the leader's process that never jumps. The reference is
//! the ruler moved by the median of all measured clocks (VOL-42). All times of this crate are of the
//! reference. When the reference moves, times in memory move with it, so that no wait ends early or late.
//!
//! Design: docs/design/cluster.md#rules VOL-42, VOL-43, VOL-44
//! Invariant: a server is shut out because of its clock only while its groups can work without it.
//!
//! Not here: the rules for clocks (`copal_volume::group`), the measurement (`copal-server`).

use crate::{
    error::MasterResult,
    leader::{leader_state::LeaderState, server_activity::ServerActivity},
    membership::member_roles::effective_role,
    tables::meta_store::ServerRow,
};
use copal_volume::group::{CLOCK_STEP_MS, DiskId, is_clock_wrong, reference_of};
use std::sync::atomic::Ordering;

/// A measurement older than this is ignored, ms.
const MEASURED_FOR_MS: u64 = 10_000;
/// Limit for the distance of a measured clock, ms: some thousand years.
const MOST_AHEAD_MS: i64 = 1 << 47;
/// A server is shut out after its clock was wrong for so long, ms: the clocks of a whole site are set one
/// after the other.
const WRONG_FOR_MS: u64 = 3_000;

/// A wrong clock is reported anew when its distance has changed by more than this, ms.
const REPORTED_ANEW_MS: u64 = 30_000;

/// The master's judgement of a server's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockVerdict {
    /// Distance from the reference, ms.
    pub off_ms: i64,
    /// The distance is too large.
    pub is_wrong: bool,
    /// The server takes no part in writes before its clock is right.
    pub is_shut_out: bool,
}

/// Sets the leader's own clock, and judges all clocks by it. Returns whether the reference moved.
pub(crate) fn judge_clocks(state: &mut LeaderState, leader_ahead_ms: i64, now_ms: u64) -> MasterResult<bool> {
    state.clocks.leader_ahead_ms = Some(limited(leader_ahead_ms));
    update_reference(state, now_ms)
}

/// Sets measured clocks of data servers and of the leader, and judges all clocks by them. Returns whether the
/// reference moved.
pub(crate) fn record_clocks(
    state: &mut LeaderState,
    clocks: &[(u32, i64)],
    leader_ahead_ms: i64,
    now_ms: u64,
) -> MasterResult<bool> {
    state.clocks.leader_ahead_ms = Some(limited(leader_ahead_ms));
    for &(disk, ahead_ms) in clocks {
        if state.map.servers.contains_key(&disk) {
            let activity = state.activity.entry(disk).or_default();
            activity.clock = Some((limited(ahead_ms), now_ms));
        }
    }
    update_reference(state, now_ms)
}

/// Sets the clock of a heartbeat's server, and judges all clocks by it. Returns the present time by the
/// reference.
pub(crate) fn record_clock(
    state: &mut LeaderState,
    disk: u32,
    ahead_ms: Option<i64>,
    now_ms: u64,
) -> MasterResult<u64> {
    let Some(ahead_ms) = ahead_ms.map(limited) else {
        return Ok(now_ms);
    };
    state.activity.entry(disk).or_default().clock = Some((ahead_ms, now_ms));
    let before = state.clocks.reference_ms;
    update_reference(state, now_ms)?;
    Ok(now_ms.saturating_add_signed(state.clocks.reference_ms - before))
}

pub(crate) fn clock_verdict(state: &LeaderState, disk: u32) -> ClockVerdict {
    let activity = state.activity.get(&disk);
    activity.map_or(ClockVerdict::default(), |activity| ClockVerdict {
        off_ms: clock_off_ms(state, activity).unwrap_or_default(),
        is_wrong: activity.clock_wrong_since_ms.is_some(),
        is_shut_out: activity.is_shut_out,
    })
}

/// Moves the reference to the median of all clocks if that is a step, and reports wrong clocks. Returns
/// whether the reference moved.
fn update_reference(state: &mut LeaderState, now_ms: u64) -> MasterResult<bool> {
    state.clocks.began_ms.get_or_insert(now_ms);
    let servers = state
        .activity
        .values()
        .filter_map(|activity| activity.clock)
        .filter(|(_, at_ms)| at_ms.abs_diff(now_ms) < MEASURED_FOR_MS);
    let servers: Vec<i64> = servers.map(|(ahead_ms, _)| ahead_ms).collect();
    let had_server_clock = state.clocks.has_server_clock;
    if had_server_clock && servers.is_empty() {
        // The leader's own clock alone would undo a correction by the servers' clocks.
        return Ok(false);
    }
    state.clocks.has_server_clock |= !servers.is_empty();
    let all: Vec<i64> = servers.into_iter().chain(state.clocks.leader_ahead_ms).collect();
    let present = Some(state.clocks.reference_ms).filter(|_| had_server_clock);
    let median_ms = reference_of(&all, present).unwrap_or_default();
    let step_ms = median_ms.saturating_sub(state.clocks.reference_ms);
    let is_moved = step_ms.unsigned_abs() > CLOCK_STEP_MS;
    if is_moved {
        // Before the first server's clock was measured, the times in the tables are of an earlier term, by a
        // reference of its own.
        let since_ms = state.clocks.began_ms.filter(|_| had_server_clock);
        move_times(state, step_ms, since_ms, now_ms)?;
        state.shared.path_leases.lock().move_times(step_ms);
        state.clocks.reference_ms = median_ms;
        state.shared.reference_ahead_ms.store(median_ms, Ordering::Release);
        if had_server_clock {
            let text = format!("the clock of the cluster moves by {}", seconds(step_ms));
            state.add_event(now_ms.saturating_add_signed(step_ms), "clock", &text)?;
        }
        state.notify_watchers();
    }
    // Stored after the reference, so a reader that sees the flag also sees the reference with a server's clock.
    state.shared.has_server_clock.store(state.clocks.has_server_clock, Ordering::Release);
    let now_ms = now_ms.saturating_add_signed(if is_moved { step_ms } else { 0 });
    report_wrong_clocks(state, now_ms)?;
    Ok(is_moved)
}

fn clock_off_ms(state: &LeaderState, activity: &ServerActivity) -> Option<i64> {
    activity.clock.map(|(ahead_ms, _)| ahead_ms - state.clocks.reference_ms)
}

/// Distance of the leader's own clock from the reference, ms, and whether it is too large.
pub(crate) fn leader_clock(state: &LeaderState) -> (i64, bool) {
    let ahead_ms = state.clocks.leader_ahead_ms.unwrap_or_default();
    (ahead_ms - state.clocks.reference_ms, state.clocks.is_leader_wrong)
}

/// Distance of a server's clock from the reference, ms; `None`: it was not measured.
pub(crate) fn server_clock(state: &LeaderState, disk: u32) -> Option<i64> {
    clock_off_ms(state, state.activity.get(&disk)?)
}

/// Moves times in memory by the step of the reference, and times that this term has written to the tables
/// since `since_ms`.
fn move_times(state: &mut LeaderState, step_ms: i64, since_ms: Option<u64>, now_ms: u64) -> MasterResult<()> {
    let moved = |at_ms: u64| at_ms.saturating_add_signed(step_ms);
    for activity in state.activity.values_mut() {
        if activity.last_heartbeat_ms > 0 {
            activity.last_heartbeat_ms = moved(activity.last_heartbeat_ms).max(1);
        }
        activity.clock = activity.clock.map(|(ahead_ms, at_ms)| (ahead_ms, moved(at_ms)));
        activity.clock_wrong_since_ms = activity.clock_wrong_since_ms.map(moved);
    }
    state.clocks.began_ms = state.clocks.began_ms.map(moved);
    state.volumes.reset_forget_time();
    state.recovery.move_times(step_ms);
    let Some(since_ms) = since_ms else {
        return Ok(());
    };
    let is_ours = |server: &&ServerRow| server.failed_since_ms >= since_ms;
    let ours: Vec<ServerRow> = state.map.servers.values().filter(is_ours).cloned().collect();
    for mut server in ours {
        server.failed_since_ms = moved(server.failed_since_ms);
        state.change_server(server)?;
    }
    tracing::warn!(step_ms, now_ms, "the clock of the cluster moves");
    Ok(())
}

/// Adds an event for each clock that has become wrong, and for each that is right again.
fn report_wrong_clocks(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let mut due = Vec::new();
    for (disk, activity) in &mut state.activity {
        let Some((ahead_ms, _)) = activity.clock else {
            continue;
        };
        let off_ms = ahead_ms - state.clocks.reference_ms;
        let is_wrong = is_clock_wrong(off_ms, activity.clock_wrong_since_ms.is_some());
        let has_changed = is_wrong && off_ms.abs_diff(activity.reported_off_ms) > REPORTED_ANEW_MS;
        if is_wrong != activity.clock_wrong_since_ms.is_some() {
            activity.clock_wrong_since_ms = is_wrong.then_some(now_ms);
            due.push((*disk, off_ms, is_wrong));
        } else if has_changed {
            due.push((*disk, off_ms, is_wrong));
        }
        if has_changed || !is_wrong {
            activity.reported_off_ms = if is_wrong { off_ms } else { 0 };
        }
    }
    for (disk, off_ms, is_wrong) in due {
        let Some(name) = state.map.servers.get(&disk).map(|server| server.name.clone()) else {
            continue;
        };
        let text = match is_wrong {
            true => format!(
                "the clock of {name} is {} from the cluster's; let it follow a time server",
                seconds(off_ms)
            ),
            false => format!("the clock of {name} is right again"),
        };
        state.add_event(now_ms, "clock", &text)?;
    }
    let (off_ms, was_wrong) = leader_clock(state);
    let is_wrong = is_clock_wrong(off_ms, was_wrong);
    if is_wrong != was_wrong {
        state.clocks.is_leader_wrong = is_wrong;
        let text = match is_wrong {
            true => format!(
                "the clock of the master that leads is {} from those of the data servers: it goes by theirs; let it follow \
                 a time server",
                seconds(off_ms)
            ),
            false => "the clock of the master that leads is right again".to_owned(),
        };
        state.add_event(now_ms, "clock", &text)?;
    }
    Ok(())
}

/// Whether a server must take no part in writes because of its clock (VOL-44). A server that is down returns
/// only with a right clock.
pub(crate) fn must_shut_out(state: &LeaderState, server: &ServerRow, now_ms: u64) -> bool {
    let activity = state.activity.get(&server.disk);
    let Some(since_ms) = activity.and_then(|activity| activity.clock_wrong_since_ms) else {
        return false;
    };
    let is_lasting = server.state.is_down() || now_ms.saturating_sub(since_ms) >= WRONG_FOR_MS;
    is_lasting && can_work_without(state, server.disk)
}

/// Whether a disk has groups, and each of them completes operations without it.
pub(crate) fn can_work_without(state: &LeaderState, disk: u32) -> bool {
    let mut groups = state.map.groups_of(disk).peekable();
    groups.peek().is_some()
        && groups.all(|row| {
            let view = state.map.view(row);
            let others: Vec<DiskId> = view.up().filter(|other| other.0 != disk).collect();
            let is_in_sync = |other: &DiskId| {
                let role = view.role(*other);
                role.is_some_and(|role| effective_role(state, &view, other.0, role).is_in_sync())
            };
            others.len() >= view.needed() && others.iter().any(is_in_sync)
        })
}

/// Sentences about wrong clocks, behind the sentence on the cluster's health.
pub(crate) fn clock_sentences(state: &LeaderState) -> Vec<String> {
    let mut sentences = Vec::new();
    let (off_ms, is_wrong) = leader_clock(state);
    if is_wrong {
        sentences.push(format!(
            "the clock of this master is {} from the cluster's, and it goes by the cluster's",
            seconds(off_ms)
        ));
    }
    for (disk, activity) in &state.activity {
        let (Some(off_ms), Some(server)) = (clock_off_ms(state, activity), state.map.servers.get(disk))
        else {
            continue;
        };
        if activity.clock_wrong_since_ms.is_none() {
            continue;
        }
        let then = match activity.is_shut_out {
            true => "it takes no part in writes until it is right",
            false => "it goes by the cluster's, since too few others are left",
        };
        let name = &server.name;
        sentences.push(format!("the clock of {name} is {} from the cluster's: {then}", seconds(off_ms)));
    }
    sentences
}

fn limited(ahead_ms: i64) -> i64 {
    ahead_ms.clamp(-MOST_AHEAD_MS, MOST_AHEAD_MS)
}

/// Milliseconds as signed seconds with one decimal.
pub(crate) fn seconds(ms: i64) -> String {
    format!("{:+.1} s", ms as f64 / 1000.0)
}

#[cfg(test)]
mod tests;
