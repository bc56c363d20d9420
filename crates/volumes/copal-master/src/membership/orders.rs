//! Orders of administrators for servers and copies: boost, drain, removal, announced absence.
//!
//! Paper: beanfs §5.3 (a server is taken out by migration)
//! Not here: giving a server up (`replacement`), moves of single groups (`moves`).

use crate::{
    error::{MasterError, MasterResult},
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::seconds_for,
        drains::drain_forecast,
        replacement::{cancel_leaving, replace_members},
    },
};
use copal_proto::administration::{AbsenceReport, BoostReport, DrainReport, RemovalReport};
use copal_volume::{VolumeError, group::GroupId};

/// The longest announced absence of a server.
const LONGEST_ABSENCE_MS: u64 = 24 * 3_600_000;

/// Boosts the copy of a group; see [`crate::Master::boost`].
pub(crate) fn boost(state: &mut LeaderState, group: GroupId, now_ms: u64) -> MasterResult<BoostReport> {
    if !state.map.groups.contains_key(&group) {
        return Err(VolumeError::NotFound.into());
    }
    if !state.recovery.reasons.contains_key(&group) {
        return Ok(BoostReport { group: group.0, lacks: false, boost: None, ahead: None });
    }
    let boost = {
        let boost = state.recovery.boosts.entry(group).or_default();
        *boost = boost.saturating_add(1);
        *boost
    };
    state.add_event(now_ms, "boost", &format!("group {group} goes before others of its age"))?;
    replace_members(state, now_ms)?;
    state.notify_watchers();
    let ahead = state.recovery.queue.waiting().take_while(|job| job.group != group).count();
    let is_waiting = state.recovery.queue.waiting().any(|job| job.group == group);
    let ahead = is_waiting.then_some(ahead);
    Ok(BoostReport { group: group.0, lacks: true, boost: Some(boost), ahead: Some(ahead) })
}

/// Drains a server, or ends the drain; see [`crate::Master::drain`].
pub(crate) fn drain(
    state: &mut LeaderState,
    name: &str,
    undo: bool,
    dry_run: bool,
    now_ms: u64,
) -> MasterResult<DrainReport> {
    let server = state.server_named(name)?;
    if server.state.is_lost() {
        let reason = format!("{name} is given up: its groups are copied from others already");
        return Err(MasterError::Denied(reason));
    }
    let (groups, bytes, blocked) = match undo {
        true => (0, 0, Vec::new()),
        false => drain_forecast(state, &server),
    };
    if !dry_run && server.is_draining == undo {
        let mut changed = server.clone();
        changed.is_draining = !undo;
        state.change_server(changed)?;
        if undo {
            cancel_leaving(state, server.disk, None)?;
        }
        let text = match undo {
            true => format!("{name} is not emptied any more"),
            false => format!("{name} is emptied: {groups} groups go to others"),
        };
        state.add_event(now_ms, "drain", &text)?;
        replace_members(state, now_ms)?;
        state.notify_watchers();
    }
    Ok(DrainReport {
        name: name.to_owned(),
        draining: !undo,
        dry_run,
        groups,
        bytes,
        blocked,
        ends_in_s: seconds_for(state, bytes, groups),
    })
}

/// Removes a server that holds no group; see [`crate::Master::remove_server`].
pub(crate) fn remove_server(
    state: &mut LeaderState,
    name: &str,
    dry_run: bool,
    now_ms: u64,
) -> MasterResult<RemovalReport> {
    let server = state.server_named(name)?;
    let groups = state.map.groups_of(server.disk).count();
    if groups > 0 {
        let then = match server.is_draining {
            true => "it is being emptied; `copal status` tells when that ends",
            false => "empty it first with `copal node drain`",
        };
        let reason = format!("{name} holds {groups} groups: {then}");
        return Err(MasterError::Denied(reason));
    }
    if !dry_run {
        state.tables.remove_server(server.disk)?;
        state.map.servers.remove(&server.disk);
        state.activity.remove(&server.disk);
        state.add_event(now_ms, "removed", &format!("{name} is removed: it held no group"))?;
    }
    Ok(RemovalReport { name: name.to_owned(), dry_run })
}

/// Announces the absence of a server; see [`crate::Master::announce_absence`].
pub(crate) fn announce_absence(
    state: &mut LeaderState,
    name: &str,
    for_ms: u64,
    dry_run: bool,
    now_ms: u64,
) -> MasterResult<AbsenceReport> {
    let mut server = state.server_named(name)?;
    if server.state.is_lost() {
        return Err(MasterError::Denied(format!("{name} is given up")));
    }
    if for_ms > LONGEST_ABSENCE_MS {
        let reason =
            "a server is announced to be away for a day at most; to take it out, use `copal node drain`";
        return Err(MasterError::Denied(reason.to_owned()));
    }
    let until_ms = now_ms + for_ms;
    server.failed_since_ms = match (for_ms, server.is_away()) {
        (0, true) => now_ms,
        (0, false) => 0,
        _ => until_ms,
    };
    // Groups that would have too few members without it.
    let needs = usize::from(state.map.pool.min_ack.min(state.map.pool.replicas));
    let short = state.map.groups_of(server.disk).filter(|row| {
        let others = row
            .members
            .iter()
            .filter(|(disk, _)| *disk != server.disk)
            .filter_map(|(disk, _)| state.map.servers.get(disk));
        others.filter(|other| !other.is_away()).count() < needs
    });
    let short = short.count();
    if !dry_run {
        state.change_server(server)?;
        let text = match for_ms {
            0 => format!("{name} is not announced to be away any more"),
            _ => format!("{name} may be away for {} min", for_ms.div_ceil(60_000)),
        };
        state.add_event(now_ms, "maintenance", &text)?;
        state.notify_watchers();
    }
    Ok(AbsenceReport { name: name.to_owned(), until_ms, dry_run, groups_too_few: short })
}
