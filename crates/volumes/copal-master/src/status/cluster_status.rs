//! Status of the cluster: health in one sentence, servers, groups and tasks.

use crate::{
    leader::leader_state::LeaderState,
    membership::{
        clocks::{clock_sentences, leader_clock, server_clock},
        drains::drain_sentences,
        full_disks::is_full,
        member_roles::effective_role,
    },
    status::recovery_tasks::{blocked_sentences, recovery_status, remaining_work, task_list},
    tables::meta_store::{EventRow, ServerRow, ServerState},
};
use copal_proto::administration::{
    ClusterStatus, EventRecord, GroupCounts, GroupMembers, MasterStatus, MemberRole, ServerStatus,
};
use copal_volume::group::{DiskId, GroupId, Role};

/// Health, servers, groups and tasks. `address` is that of this master.
pub(crate) fn cluster_status(state: &LeaderState, address: String, now_ms: u64) -> ClusterStatus {
    let copies = group_counts(state);
    let (health, mut sentence) = health(state, copies, now_ms);
    for drain in drain_sentences(state) {
        sentence.push_str(&format!("; {drain}"));
    }
    for clock in clock_sentences(state) {
        sentence.push_str(&format!("; {clock}"));
    }
    sentence.push_str(&outlook(state));
    let (clock_off_ms, clock_wrong) = leader_clock(state);
    ClusterStatus {
        health: health.to_owned(),
        sentence,
        servers: state.map.servers.values().map(|server| server_status(state, server, now_ms)).collect(),
        groups: copies,
        tasks: task_list(state),
        recovery: recovery_status(state),
        map_version: state.map.version,
        gone_volumes: state.volumes.removed().len(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        master: MasterStatus {
            leader: true,
            address,
            term: state.term,
            masters: state.masters.clone(),
            clock_off_ms,
            clock_wrong,
        },
    }
}

/// Members of a group: name, address and role.
pub(crate) fn group_members(state: &LeaderState, group: GroupId) -> Option<GroupMembers> {
    let row = state.map.groups.get(&group)?;
    let view = state.map.view(row);
    let member = |&(disk, role): &(DiskId, Role)| {
        let server = state.map.servers.get(&disk.0)?;
        Some(MemberRole {
            name: server.name.clone(),
            address: server.address.clone(),
            disk: disk.0,
            role: effective_role(state, &view, disk.0, role).letter().to_string(),
        })
    };
    let members = view.members.iter().filter_map(member).collect();
    Some(GroupMembers { group: group.0, epoch: view.epoch.0, members })
}

/// Numbers of groups by their copies in sync.
fn group_counts(state: &LeaderState) -> GroupCounts {
    let mut copies = GroupCounts::default();
    for row in state.map.groups.values() {
        let view = state.map.view(row);
        let members = view.members.iter();
        let in_sync =
            members.filter(|&&(disk, role)| effective_role(state, &view, disk.0, role).is_in_sync()).count();
        copies.total += 1;
        match in_sync {
            0 => copies.incomplete += 1,
            in_sync if in_sync >= usize::from(view.replicas) => copies.whole += 1,
            1 => copies.one_copy += 1,
            _ => copies.two_copies += 1,
        }
    }
    copies
}

/// The word for the health of the cluster, and the sentence about it.
fn health(state: &LeaderState, copies: GroupCounts, now_ms: u64) -> (&'static str, String) {
    let permanent_after_ms = state.options.permanent_after_ms;
    let pool = state.map.pool;
    if copies.total == 0 {
        let joined = state.map.servers.len();
        let sentence = format!("incomplete: {joined} of {} data servers have joined", state.first_servers);
        return ("incomplete", sentence);
    }
    if copies.incomplete > 0 {
        let sentence = format!("incomplete: {} groups have no copy in sync that is up", copies.incomplete);
        return ("incomplete", sentence);
    }
    let lacking = copies.total - copies.whole;
    // The failure of a server without groups matters to no group.
    let holds_groups = |server: &&ServerRow| state.map.groups_of(server.disk).next().is_some();
    if let Some(server) = in_state(state, ServerState::Failed).find(holds_groups) {
        let down_ms = now_ms.saturating_sub(server.failed_since_ms);
        let announced_ms = server.failed_since_ms.saturating_sub(now_ms);
        let left_min = (announced_ms + permanent_after_ms.saturating_sub(down_ms)).div_ceil(60_000);
        let short = match (copies.one_copy, copies.two_copies) {
            (0, _) => format!("{lacking} groups have 2 of {} copies", pool.replicas),
            (one, _) => {
                format!("{lacking} groups have fewer than {} copies, {one} of them 1", pool.replicas)
            }
        };
        let then = match left_min {
            0 => "copied from others now".to_owned(),
            left => format!("copied from others in {left} min"),
        };
        let activity = state.activity.get(&server.disk);
        let down = match announced_ms {
            _ if activity.is_some_and(|activity| activity.is_host_full) => "takes no operations".to_owned(),
            _ if activity.is_some_and(|activity| activity.is_shut_out) => {
                "is shut out of writes for its clock".to_owned()
            }
            0 => format!("down {} s", down_ms / 1000),
            left => format!("away as announced for {} min more", left.div_ceil(60_000)),
        };
        let sentence = format!("degraded: {} {down}, {short}; {then}", server.name);
        return ("degraded", sentence);
    }
    if let Some(server) = in_state(state, ServerState::Lost).next() {
        let left = state.map.groups_of(server.disk).count();
        let sentence = format!("recovering: {left} groups of {} are copied from others", server.name);
        return ("recovering", sentence);
    }
    if let Some(server) = in_state(state, ServerState::Recovering).next() {
        let sentence =
            format!("recovering: {} catches up, {lacking} groups are not in sync yet", server.name);
        return ("recovering", sentence);
    }
    if lacking > 0 {
        return ("recovering", format!("recovering: {lacking} groups are not in sync yet"));
    }
    // It has joined and does not listen yet, or has sent no heartbeat in this term.
    let is_silent =
        |server: &&ServerRow| state.activity.get(&server.disk).is_none_or(|activity| activity.pid == 0);
    if let Some(server) = in_state(state, ServerState::Normal).find(is_silent) {
        let sentence = format!("recovering: {} has sent no heartbeat yet", server.name);
        return ("recovering", sentence);
    }
    ("healthy", format!("healthy: {} groups, {} copies of each", copies.total, pool.replicas))
}

/// End of the sentence: the time until all copies are done, or the reason why they are blocked.
fn outlook(state: &LeaderState) -> String {
    if let Some(blocked) = blocked_sentences(state).first() {
        return format!("; blocked: {blocked}");
    }
    match (state.recovery.queue.len(), remaining_work(state).1) {
        ((0, 0), _) | (_, None) => String::new(),
        (_, Some(seconds @ 0..60)) => format!(", done in {seconds} s"),
        (_, Some(seconds)) => format!(", done in {} min", seconds.div_ceil(60)),
    }
}

fn in_state(state: &LeaderState, wanted: ServerState) -> impl Iterator<Item = &ServerRow> {
    state.map.servers.values().filter(move |server| server.state == wanted)
}

fn server_status(state: &LeaderState, server: &ServerRow, now_ms: u64) -> ServerStatus {
    let activity = state.activity.get(&server.disk).cloned().unwrap_or_default();
    ServerStatus {
        name: server.name.clone(),
        uuid: hex(&server.server_uuid),
        disk: server.disk,
        state: server.state.word().to_owned(),
        zone: server.zone.clone(),
        rack: server.rack.clone(),
        pid: activity.pid,
        address: server.address.clone(),
        incarnation: server.incarnation.count(),
        used_bytes: activity.used_bytes,
        capacity_bytes: server.capacity_bytes,
        groups: state.map.groups_of(server.disk).count(),
        draining: server.is_draining,
        full: is_full(state, server),
        host_full: activity.is_host_full,
        announced_until_ms: (server.failed_since_ms > now_ms).then_some(server.failed_since_ms),
        clock_off_ms: server_clock(state, server.disk),
        clock_wrong: activity.clock_wrong_since_ms.is_some(),
        shut_out: activity.is_shut_out,
        silent_ms: now_ms.saturating_sub(activity.last_heartbeat_ms),
    }
}

impl From<EventRow> for EventRecord {
    fn from(event: EventRow) -> EventRecord {
        let EventRow { number, at_ms, kind, text } = event;
        EventRecord { number, at_ms, kind, text }
    }
}

fn hex(uuid: &[u8]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
