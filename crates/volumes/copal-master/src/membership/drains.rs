//! Servers that are being drained: the forecast, the progress, and the end.

use crate::{
    error::MasterResult,
    leader::leader_state::LeaderState,
    membership::disk_facts::{disk_facts, group_bytes},
    tables::meta_store::{MemberKind, ServerRow},
};
use copal_volume::group::{
    DiskId,
    placement::{self, NoPlace},
};

/// Groups and bytes that leave a server, and the reasons why some of them cannot leave. Places are chosen as
/// for the copies.
pub(crate) fn drain_forecast(state: &LeaderState, server: &ServerRow) -> (usize, u64, Vec<String>) {
    let mut facts = disk_facts(state);
    for disk in facts.iter_mut().filter(|facts| facts.disk.0 == server.disk) {
        disk.is_draining = true;
    }
    let (mut groups, mut all_bytes) = (0, 0);
    let mut without: Vec<NoPlace> = Vec::new();
    for row in state.map.groups_of(server.disk) {
        let bytes = group_bytes(state, row.group);
        groups += 1;
        all_bytes += bytes;
        if row.members.iter().any(|(_, kind)| *kind == MemberKind::Joining) {
            continue;
        }
        let members: Vec<DiskId> = row.members.iter().map(|(disk, _)| DiskId(*disk)).collect();
        let others = members.iter().copied();
        let staying: Vec<DiskId> = others.filter(|disk| disk.0 != server.disk).collect();
        match placement::choose_new_member(row.group, &members, &staying, bytes, &facts) {
            Ok(target) => {
                for disk in facts.iter_mut().filter(|facts| facts.disk == target) {
                    disk.used_bytes = disk.used_bytes.saturating_add(bytes);
                }
            }
            Err(reason) => without.push(reason),
        }
    }
    let mut blocked: Vec<String> = Vec::new();
    if let Some(first) = without.first() {
        let fit = facts.iter().filter(|facts| facts.is_up && !facts.is_draining).count();
        blocked.push(why_without_place(state, without.len(), fit, first));
    }
    (groups, all_bytes, blocked)
}

/// Sentence about groups without a place, with the advice; `fit` is the number of servers that could take
/// some.
pub(crate) fn why_without_place(state: &LeaderState, groups: usize, fit: usize, first: &NoPlace) -> String {
    let needed = usize::from(state.map.pool.replicas);
    match fit < needed {
        true => format!(
            "{groups} groups wait for a server: each needs {needed} servers, {fit} are available; add one with \
             `copal node token`"
        ),
        false => format!("{groups} groups wait for a server: {first}"),
    }
}

/// Progress of each server that is being drained, a sentence each.
pub(crate) fn drain_sentences(state: &LeaderState) -> Vec<String> {
    let draining = state.map.servers.values().filter(|server| server.is_draining);
    let sentence = |server: &ServerRow| {
        let name = &server.name;
        match state.map.groups_of(server.disk).count() {
            0 => format!("{name} is empty, `copal node rm {name}` removes it"),
            groups => format!("{name} is being emptied, {groups} groups are left"),
        }
    };
    draining.map(sentence).collect()
}

/// Adds an event for each drained server that has become empty, once.
pub(crate) fn report_empty_servers(state: &mut LeaderState, now_ms: u64) -> MasterResult<()> {
    let is_empty =
        |server: &&ServerRow| server.is_draining && state.map.groups_of(server.disk).next().is_none();
    let empty = state.map.servers.values().filter(is_empty);
    let empty: Vec<(u32, String)> = empty.map(|server| (server.disk, server.name.clone())).collect();
    state.recovery.reported_empty.retain(|disk| empty.iter().any(|(other, _)| other == disk));
    for (disk, name) in empty {
        if state.recovery.reported_empty.insert(disk) {
            state.add_event(now_ms, "drain", &format!("{name} is empty"))?;
        }
    }
    Ok(())
}
