//! Facts about disks for the planning of copies: failed servers, used bytes, and bytes of copies in flight.

use crate::{leader::leader_state::LeaderState, membership::racks::sites, tables::meta_store::MemberKind};
use copal_volume::group::{DiskId, GroupId, placement::DiskFacts, recovery::MassFailure};
use std::collections::{BTreeMap, BTreeSet};

/// Updates the queue with failed and returned servers. A server that was given up, or whose absence was
/// announced, belongs to no mass failure. Returns the mass failure if one began now.
pub(crate) fn update_failed_servers(state: &mut LeaderState, now_ms: u64) -> Option<MassFailure> {
    let recovery = &mut state.recovery;
    let sites = sites(state.map.servers.values());
    let racks: BTreeMap<u32, u32> = sites.into_iter().map(|(disk, site)| (disk, site.rack)).collect();
    if recovery.racks != racks {
        recovery.queue.set_servers(racks.clone());
        recovery.racks = racks;
        if let Some(most) = recovery.copies_at_once {
            recovery.queue.limit_running(most);
        }
    }
    let mut newly_failed: Vec<(u64, u32)> = Vec::new();
    let mut failed = BTreeSet::new();
    for server in state.map.servers.values() {
        let counts = server.state.is_down() && server.failed_since_ms <= now_ms;
        if counts {
            failed.insert(server.disk);
            if !recovery.failed_servers.contains(&server.disk) {
                newly_failed.push((server.failed_since_ms, server.disk));
            }
        }
    }
    for disk in recovery.failed_servers.difference(&failed) {
        recovery.queue.server_returned(*disk);
    }
    newly_failed.sort_unstable();
    for (since_ms, disk) in newly_failed {
        recovery.queue.server_failed(disk, since_ms);
    }
    recovery.failed_servers = failed;
    let hold = recovery.queue.hold();
    let began = hold.filter(|_| !recovery.was_held);
    recovery.was_held = hold.is_some();
    began
}

/// Facts about each disk for the choice of a place. Bytes that are being copied to a disk count as used.
pub(crate) fn disk_facts(state: &LeaderState) -> Vec<DiskFacts> {
    let mut arriving: BTreeMap<u32, u64> = BTreeMap::new();
    for row in state.map.groups.values() {
        for &(disk, kind) in &row.members {
            if kind == MemberKind::Joining {
                let left = group_bytes(state, row.group).saturating_sub(bytes_on(state, row.group, disk));
                *arriving.entry(disk).or_default() += left;
            }
        }
    }
    let sites = sites(state.map.servers.values());
    let facts = state.map.servers.values().map(|server| {
        let activity = state.activity.get(&server.disk);
        let used = activity.map_or(0, |activity| activity.used_bytes);
        let arriving = arriving.get(&server.disk).copied().unwrap_or_default();
        DiskFacts {
            disk: DiskId(server.disk),
            identity: server.server_uuid,
            site: sites[&server.disk],
            capacity_bytes: server.capacity_bytes,
            used_bytes: used.saturating_add(arriving),
            is_up: server.state.is_in_sync(),
            is_draining: server.is_draining,
        }
    });
    facts.collect()
}

/// Bytes of a copy of a group: the largest size that a member reports.
pub(crate) fn group_bytes(state: &LeaderState, group: GroupId) -> u64 {
    let members = state.map.groups.get(&group).map(|row| row.members.as_slice()).unwrap_or_default().iter();
    members.map(|(disk, _)| bytes_on(state, group, *disk)).max().unwrap_or_default()
}

pub(crate) fn bytes_on(state: &LeaderState, group: GroupId, disk: u32) -> u64 {
    let activity = state.activity.get(&disk);
    activity.and_then(|activity| activity.sizes.get(&group).copied()).unwrap_or_default()
}

/// Seconds that a copy of so many bytes and groups takes, by the measured rate or else by the lowest rate that
/// a server allows.
pub(crate) fn seconds_for(state: &LeaderState, bytes: u64, groups: usize) -> Option<u64> {
    let measured = state.recovery.progress.seconds_for(bytes, groups);
    measured.or_else(|| slowest_rate(state).map(|rate| bytes.div_ceil(rate)))
}

/// The lowest rate that a server allows for copies, bytes a second.
pub(crate) fn slowest_rate(state: &LeaderState) -> Option<u64> {
    let rates = state.activity.values().map(|activity| activity.recovery_bytes_per_s);
    rates.filter(|rate| *rate > 0).min()
}
