//! Detects stale tables, and raises their counters above lost values.
//!
//! Tables are stale after a restore from a copy or from an old disk image, or when the database lost its last
//! commits. A leader with stale tables would give versions, terms and volume numbers a second time. It would
//! also count members as in sync that have missed acknowledged operations. Therefore each term begins with
//! questions to the data servers, and each heartbeat is checked as well. A master that finds its tables stale
//! records that and stops leading. No term begins with these tables before an administrator accepts them with
//! `--after-restore`.
//!
//! Design: docs/design/cluster.md#rules VOL-70, VOL-71
//! Not here: the questions to the data servers (`copal-server`), copies of the tables
//! (`tables::metadata_backup`).

use crate::{
    error::{MasterError, MasterResult},
    leader::leader_state::LeaderState,
    tables::{
        cluster_map::ClusterMap,
        meta_store::{MemberKind, MemberList, MissedMember, ServerState, setting},
    },
};
use copal_volume::group::{Epoch, GroupId};
use std::{collections::BTreeMap, sync::atomic::Ordering};

/// Highest counters that a data server has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenCounters {
    /// Its disk.
    pub disk: u32,
    /// The newest term.
    pub term: u64,
    /// The newest version of the map.
    pub version: u64,
    /// Groups that it holds, each with the newest epoch in which it was in sync; 0: never.
    pub groups: Vec<(GroupId, Epoch)>,
}

/// Checks the tables against counters that data servers have seen.
pub(crate) fn check_staleness(state: &mut LeaderState, seen: &[SeenCounters]) -> MasterResult<()> {
    let newer = seen.iter().find(|seen| is_newer(state, seen.term, seen.version));
    match newer {
        Some(seen) => Err(record_staleness(state, (seen.disk, seen.term, seen.version))),
        None => Ok(()),
    }
}

/// Whether a term or a version is newer than the tables.
pub(crate) fn is_newer(state: &LeaderState, term: u64, version: u64) -> bool {
    term > state.term || version > state.map.version
}

/// Records in the tables that a server has seen a newer term or version. A deposed master knows less than its
/// database, so its tables are not stale: the database refuses its record.
pub(crate) fn record_staleness(
    state: &mut LeaderState,
    (disk, term, version): (u32, u64, u64),
) -> MasterError {
    let name = state.map.servers.get(&disk).map(|server| server.name.clone());
    let reason = format!(
        "{} has seen term {term} and version {version} of the map, and the tables end at term {} and version {}",
        name.unwrap_or_default(),
        state.term,
        state.map.version
    );
    match state.tables.set_setting(setting::STALE_TABLES, Some(&reason)) {
        Ok(()) => {
            state.shared.is_stale.store(true, Ordering::Release);
            MasterError::StaleTables(reason)
        }
        Err(error) => error.into(),
    }
}

/// Raises all counters above the seen ones, and changes members by the reports. Returns the new term. The
/// state in memory is outdated afterwards.
pub(crate) fn raise_counters(
    state: &mut LeaderState,
    seen: &[SeenCounters],
    now_ms: u64,
) -> MasterResult<u64> {
    let version = seen.iter().map(|seen| seen.version).max().unwrap_or_default();
    let term = seen.iter().map(|seen| seen.term).max().unwrap_or_default();
    let term = state.tables.raise_counters(version, term)?;
    let silent: Vec<u32> = state
        .map
        .servers
        .values()
        .filter(|server| !server.state.is_lost())
        .map(|server| server.disk)
        .filter(|disk| seen.iter().all(|seen| seen.disk != *disk))
        .collect();
    let mut names = Vec::new();
    for disk in &silent {
        if let Some(mut server) = state.map.servers.get(disk).cloned() {
            server.state = ServerState::Failed;
            server.failed_since_ms = now_ms;
            state.tables.change_server(&server, &[])?;
            names.push(server.name);
        }
    }
    let (changes, missed) = members_by_reports(&state.map, seen);
    if !changes.is_empty() {
        state.tables.change_groups(&changes, &missed)?;
    }
    let mut text = format!(
        "the term begins above versions that were lost: {} members resync, since they may lack operations",
        missed.len()
    );
    if !names.is_empty() {
        text.push_str(&format!("; {} did not answer", names.join(", ")));
    }
    tracing::warn!("{text}");
    state.tables.add_event(now_ms, "restored", &text)?;
    Ok(term)
}

/// Members of groups by the reports of the servers, and the members that may lack operations.
fn members_by_reports(
    map: &ClusterMap,
    seen: &[SeenCounters],
) -> (Vec<(GroupId, MemberList)>, Vec<MissedMember>) {
    let mut held: BTreeMap<GroupId, BTreeMap<u32, Epoch>> = BTreeMap::new();
    for server in seen {
        for &(group, in_sync_epoch) in &server.groups {
            held.entry(group).or_default().insert(server.disk, in_sync_epoch);
        }
    }
    let (mut changes, mut missed) = (Vec::new(), Vec::new());
    for row in map.groups.values() {
        let none = BTreeMap::new();
        let held = held.get(&row.group).unwrap_or(&none);
        let epoch_of = |disk: u32| held.get(&disk).copied().unwrap_or_default();
        let newest = held.values().copied().max().unwrap_or_default();
        // No operation was ever complete in a group that never had a member in sync.
        if newest == Epoch(0) {
            continue;
        }
        let mut members = row.members.clone();
        for (&disk, _) in held.iter().filter(|(_, epoch)| **epoch == newest) {
            let is_member = members.iter().any(|(member, _)| *member == disk);
            if is_member || !map.servers.contains_key(&disk) {
                continue;
            }
            // It joined after the copy was made, in the place of a member that has less now.
            let least = members
                .iter()
                .enumerate()
                .filter(|(_, (member, _))| epoch_of(*member) < newest)
                .min_by_key(|(_, (member, _))| epoch_of(*member))
                .map(|(at, _)| at);
            if let Some(at) = least {
                members[at] = (disk, MemberKind::Full);
            }
        }
        members.sort_unstable_by_key(|(disk, _)| *disk);
        let lacking = members.iter().filter(|(disk, _)| epoch_of(*disk) < newest);
        let lacking: Vec<MissedMember> = lacking.map(|(disk, _)| (row.group, *disk)).collect();
        if !lacking.is_empty() || members != row.members {
            changes.push((row.group, members));
            missed.extend(lacking);
        }
    }
    (changes, missed)
}

#[cfg(test)]
mod tests;
