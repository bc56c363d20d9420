//! What is known of disks when copies are planned: who is away, how full they are, what is on its way to
//! them.

use crate::master::Reign;
use crate::membership::racks::sites;
use crate::tables::meta_store::MemberKind;
use copal_volume::group::{DiskId, GroupId, View, placement::DiskFacts, recovery::MassFailure};
use std::collections::{BTreeMap, BTreeSet};

impl Reign {
    /// Tells the queue who went and who came back. Who is given up, or announced that it would go, is part of
    /// no mass failure. The alarm, where one began now.
    pub(crate) fn note_who_is_away(&mut self, now_ms: u64) -> Option<MassFailure> {
        let recovery = &mut self.recovery;
        let sites = sites(self.map.servers.values());
        let racks: BTreeMap<u32, u32> = sites.into_iter().map(|(disk, site)| (disk, site.rack)).collect();
        if recovery.racks != racks {
            recovery.queue.set_servers(racks.clone());
            recovery.racks = racks;
            if let Some(most) = recovery.copies_at_once {
                recovery.queue.limit_running(most);
            }
        }
        let mut failed: Vec<(u64, u32)> = Vec::new();
        let mut away = BTreeSet::new();
        for server in self.map.servers.values() {
            let counts = server.state.is_down() && server.failed_since_ms <= now_ms;
            if counts {
                away.insert(server.disk);
                if !recovery.away.contains(&server.disk) {
                    failed.push((server.failed_since_ms, server.disk));
                }
            }
        }
        for disk in recovery.away.difference(&away) {
            recovery.queue.server_returned(*disk);
        }
        failed.sort_unstable();
        for (since_ms, disk) in failed {
            recovery.queue.server_failed(disk, since_ms);
        }
        recovery.away = away;
        let hold = recovery.queue.hold();
        let began = hold.filter(|_| !recovery.was_held);
        recovery.was_held = hold.is_some();
        began
    }

    /// What is known of each disk when a place is sought: bytes on their way to it count.
    pub(crate) fn disk_facts(&self) -> Vec<DiskFacts> {
        let mut arriving: BTreeMap<u32, u64> = BTreeMap::new();
        for row in self.map.groups.values() {
            for &(disk, kind) in &row.members {
                if kind == MemberKind::Joining {
                    let left = self.group_bytes(row.group).saturating_sub(self.bytes_on(row.group, disk));
                    *arriving.entry(disk).or_default() += left;
                }
            }
        }
        let sites = sites(self.map.servers.values());
        let facts = self.map.servers.values().map(|server| {
            let watch = self.watches.get(&server.disk);
            let used = watch.map_or(0, |watch| watch.used_bytes);
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

    /// Bytes of a copy of a group, as the member with the most tells them.
    pub(crate) fn group_bytes(&self, group: GroupId) -> u64 {
        let members =
            self.map.groups.get(&group).map(|row| row.members.as_slice()).unwrap_or_default().iter();
        members.map(|(disk, _)| self.bytes_on(group, *disk)).max().unwrap_or_default()
    }

    pub(crate) fn bytes_on(&self, group: GroupId, disk: u32) -> u64 {
        let watch = self.watches.get(&disk);
        watch.and_then(|watch| watch.sizes.get(&group).copied()).unwrap_or_default()
    }

    /// Members that are whole, by their own word or, until they say one, by the state of their server.
    pub(crate) fn whole_members(&self, view: &View) -> Vec<u32> {
        let members = view.members.iter();
        let whole = members.filter(|&&(disk, role)| self.role(view, disk.0, role).is_in_sync());
        whole.map(|(disk, _)| disk.0).collect()
    }
}
