//! The map as a message: the part that is newer than a version.

use crate::{leader::leader_state::LeaderState, tables::meta_store::ServerRow};
use copal_proto::messages;
use copal_volume::{VolumeId, group::View};

/// The part of the map that is newer than `since`; all of it for 0.
pub(crate) fn map_message(state: &LeaderState, since: u64, now_ms: u64) -> messages::Map {
    let disks = state.map.servers.values().filter(|server| server.version > since);
    let disk = |server: &ServerRow| messages::Disk {
        disk: server.disk,
        server: server.name.clone(),
        address: server.address.clone(),
        server_uuid: bytes::Bytes::copy_from_slice(&server.server_uuid),
        version: server.version,
    };
    let view = |view: View| {
        let mut message = copal_proto::of_view(&view);
        let copy = state.recovery.queue.running().find(|start| start.group == view.group);
        for member in &mut message.members {
            let source = copy.filter(|start| start.target.0 == member.disk);
            member.source = source.map_or(0, |start| start.source.0);
            let missed = state.map.missed.get(&(view.group, member.disk));
            member.missed = missed.copied().unwrap_or_default();
        }
        message
    };
    // A new member needs the older limits and removals of its group, too.
    let has_new_members = |vid: VolumeId| {
        let row = state.map.groups.get(&vid.birth_group());
        row.is_some_and(|row| row.version > since)
    };
    let is_due = |vid: VolumeId, version: u64| version > since || has_new_members(vid);
    messages::Map {
        version: state.map.version,
        term: state.term,
        views: state.map.views_since(since).map(view).collect(),
        disks: disks.map(disk).collect(),
        whole: since == 0,
        now_ms,
        masters: state.masters.clone(),
        limits: state
            .volumes
            .quotas()
            .iter()
            .filter(|quota| is_due(quota.vid, quota.version))
            .map(|quota| messages::VolumeLimit { volume: quota.vid.0, quota_bytes: quota.bytes })
            .collect(),
        gone_volumes: state
            .volumes
            .removed()
            .iter()
            .filter(|(vid, version)| is_due(*vid, *version))
            .map(|(vid, _)| vid.0)
            .collect(),
    }
}
