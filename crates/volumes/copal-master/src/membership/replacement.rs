//! Copies that are gone for good, or are to lie elsewhere, and the members that take their place.
//!
//! A server that was away for longer than `permanent_after_ms`, that is known to have lost its data, or that
//! an operator gave up, keeps its place in each of its groups until another disk has everything: the new
//! member joins (M), takes all operations at once and copies the rest from a whole one; when it says that it
//! is whole, it takes the place of the one that is gone. An old member that comes back first ends the
//! copying. A member that is to leave stays whole, and takes part, until the same moment. Which groups are
//! copied when, and from where, the queue says (`recovery`).
//!
//! Paper:  beanfs §4.3 (permanent failures), §5.3 (re-replication, migration)
//! Design: docs/design/cluster.md#rules VOL-24
//! Invariant: a whole member leaves a group only in the change by which the full number of others is whole.

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::membership::moves::place_at;
use crate::recovery::recovery_state::Need;
use crate::tables::meta_store::{GroupRow, MemberKind, Members, ServerRow, ServerState};
use copal_volume::{
    VolumeError,
    group::{
        DiskId, GroupId, Role, placement,
        recovery::{Job, Start},
    },
};
use std::collections::BTreeMap;

/// A copy that has taken in nothing for so long is begun again.
const STALLED_MS: u64 = 120_000;

impl Master {
    /// Gives a server up: its groups are copied from others at once, and it is not let back in. Says it again
    /// without harm.
    /// # Errors
    /// `NotFound`; `Denied`: it is there, so whoever means it stops it first.
    pub fn lose(&self, name: &str, now_ms: u64) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let found = reign.map.servers.values().find(|server| server.name == name);
        let mut server = found.cloned().ok_or(VolumeError::NotFound)?;
        match server.state {
            ServerState::Lost => return Ok(()),
            ServerState::Failed => {}
            ServerState::Normal | ServerState::Recovering => {
                let reason = format!(
                    "{name} is not taken for failed: what is there is not given up; stop its process, and wait until \
                     `copal status` says that it is down"
                );
                return Err(MasterError::Denied(reason));
            }
        }
        server.state = ServerState::Lost;
        reign.change(server)?;
        reign.note(now_ms, "lost", &format!("{name} is given up: its groups are copied from others"))?;
        reign.replace(self.options.permanent_after_ms, now_ms)?;
        self.changed.notify_all();
        Ok(())
    }
}

impl Reign {
    /// Brings groups nearer to their full number of copies, where they are to lie: members that are whole
    /// take their place, new ones join where the queue says so.
    pub(crate) fn replace(&mut self, permanent_after_ms: u64, now_ms: u64) -> Mastered<()> {
        if let Some(alarm) = self.note_who_is_away(now_ms) {
            self.note(now_ms, "hold", &alarm.to_string())?;
        }
        let mut gone = Vec::new();
        let is_held = self.recovery.queue.hold().is_some();
        for server in self.map.servers.values() {
            // Who was given up is gone by an administrator's word; the others wait while a mass failure is
            // looked into.
            let watch = self.watches.get(&server.disk);
            let has_lost_data = server.state.is_down() && watch.is_some_and(|watch| watch.has_lost_data);
            let is_late = !is_held && (has_lost_data || is_gone(server, permanent_after_ms, now_ms));
            if server.state.is_lost() || is_late {
                gone.push(server.disk);
            }
        }
        self.relieve_full_disks(now_ms)?;
        let mut changes: BTreeMap<GroupId, Members> = BTreeMap::new();
        let mut lacking: Vec<(GroupId, Need)> = Vec::new();
        for row in self.map.groups.values() {
            if self.is_settled(row, &gone) {
                continue;
            }
            let (members, need) = self.next_members(row, &gone);
            lacking.extend(need.map(|need| (row.group, need)));
            if members != row.members {
                changes.insert(row.group, members);
            }
        }
        self.fill_queue(&lacking, &changes, &gone, now_ms);
        self.drop_moves_without_place(now_ms)?;
        self.give_up_stalled(&mut changes, now_ms)?;
        self.start_copies(&mut changes, now_ms);
        let is_busy = self.recovery.queue.len() != (0, 0);
        self.recovery.progress.tick(now_ms, is_busy);
        if !changes.is_empty() {
            self.change_members(changes.into_iter().collect())?;
        }
        self.note_empty(now_ms)?;
        self.keep_tasks()?;
        self.drop_servers_without_groups(now_ms)
    }

    /// Whether nothing is to do about a group: a look that is cheap, since all groups get it.
    fn is_settled(&self, row: &GroupRow, gone: &[u32]) -> bool {
        let is_at_rest = |&(disk, kind): &(u32, MemberKind)| {
            let server = self.map.servers.get(&disk);
            kind == MemberKind::Full
                && !gone.contains(&disk)
                && server.is_none_or(|server| !server.is_draining)
        };
        row.members.len() == usize::from(self.map.pool.replicas)
            && row.members.iter().all(is_at_rest)
            && !self.recovery.moves.contains_key(&row.group)
    }

    /// Members of a group that come next, and why it needs a copy.
    fn next_members(&self, row: &GroupRow, gone: &[u32]) -> (Members, Option<Need>) {
        let group = row.group;
        let view = self.map.view(row);
        let replicas = usize::from(view.replicas);
        let server = |disk: u32| self.map.servers.get(&disk);
        let is_present = |disk: u32| server(disk).is_some_and(|server| !server.is_away());
        let is_draining = |disk: u32| server(disk).is_some_and(|server| server.is_draining);
        // By its own word, in this view: nothing less lets a copy go.
        let is_whole = |disk: u32| is_present(disk) && self.told(&view, disk).is_some_and(Role::is_in_sync);
        // Of who has told that it is whole, and has missed nothing since, that stays true while it is away.
        let lacks = |disk: u32| self.map.missed.contains_key(&(group, disk));
        let mut members = row.members.clone();
        for (disk, kind) in &mut members {
            if *kind == MemberKind::Joining && !lacks(*disk) {
                *kind = MemberKind::Full;
            }
        }
        // What is half copied makes room for one that is there.
        members.retain(|&(disk, kind)| kind != MemberKind::Joining || is_present(disk));
        let stays = |&&(disk, kind): &&(u32, MemberKind)| kind == MemberKind::Full && !gone.contains(&disk);
        let is_joining = members.iter().any(|(_, kind)| *kind == MemberKind::Joining);
        let wanted = self.recovery.moves.get(&group);
        if !is_joining && members.iter().filter(stays).count() < replicas {
            // Nobody comes for who was to leave, and nobody wants it to go any more.
            for (disk, kind) in &mut members {
                let is_wanted = is_draining(*disk) || wanted.is_some_and(|wanted| wanted.from == *disk);
                if *kind == MemberKind::Leaving && !is_wanted && !gone.contains(disk) {
                    *kind = MemberKind::Full;
                }
            }
        }
        let full = |&&(_, kind): &&(u32, MemberKind)| kind == MemberKind::Full;
        let mut whole: Vec<u32> =
            members.iter().filter(full).map(|(disk, _)| *disk).filter(|disk| is_whole(*disk)).collect();
        if whole.len() >= replicas {
            members.retain(|(disk, kind)| match kind {
                MemberKind::Joining | MemberKind::Leaving => false,
                MemberKind::Full => is_whole(*disk) || !gone.contains(disk),
            });
            // More than are needed: one returned, or was to stay after all.
            while whole.len() > replicas {
                let extra = self.least_wanted(group, &whole);
                whole.retain(|disk| *disk != extra);
                members.retain(|(disk, _)| *disk != extra);
            }
        }
        let staying = members.iter().filter(stays).count();
        let is_joining = members.iter().any(|(_, kind)| *kind == MemberKind::Joining);
        let is_leaving = |disk: u32| members.iter().any(|(member, _)| *member == disk);
        // With them it has its full number: who leaves waits only for their word.
        let is_to_go = |disk: u32| is_draining(disk) || wanted.is_some_and(|wanted| wanted.from == disk);
        if !is_joining
            && members.iter().filter(stays).filter(|(disk, _)| !is_to_go(*disk)).count() >= replicas
        {
            return (members, None);
        }
        let need = match wanted {
            // It was moved already, or has left otherwise.
            Some(wanted) if is_leaving(wanted.from) => Some(Need::Move(*wanted)),
            _ => None,
        };
        let drained = members
            .iter()
            .find(|(disk, kind)| *kind != MemberKind::Joining && is_draining(*disk) && !gone.contains(disk));
        let leaving = members.iter().find(|(_, kind)| *kind == MemberKind::Leaving);
        let from = drained.or(leaving).map(|(disk, _)| *disk);
        let need = match (need, from) {
            (Some(moved), _) => Some(moved),
            (None, Some(from)) => Some(Need::Drain { from }),
            (None, None) if is_joining || staying < replicas => Some(Need::Replace),
            (None, None) => None,
        };
        (members, need)
    }

    /// Whether a disk's server has entered all views up to a version, by its own word.
    fn has_entered(&self, disk: u32, version: u64) -> bool {
        let watch = self.watches.get(&disk);
        watch.is_some_and(|watch| watch.entered_version >= version)
    }

    /// Members of `disk` that were to leave stay after all, in one group or in all; what was half copied for
    /// them goes. How many that are.
    pub(crate) fn stay(&mut self, disk: u32, only: Option<GroupId>) -> Mastered<usize> {
        let mut changes = Vec::new();
        for row in self.map.groups_of(disk) {
            let is_meant = only.is_none_or(|group| group == row.group);
            if !is_meant || !row.members.contains(&(disk, MemberKind::Leaving)) {
                continue;
            }
            let mut members = row.members.clone();
            members.retain(|&(disk, kind)| {
                kind != MemberKind::Joining || !self.map.missed.contains_key(&(row.group, disk))
            });
            for (member, kind) in &mut members {
                if *member == disk {
                    *kind = MemberKind::Full;
                }
            }
            changes.push((row.group, members));
        }
        let stay = changes.len();
        if stay > 0 {
            self.change_members(changes)?;
        }
        Ok(stay)
    }

    /// Of more whole members than are needed the one that goes: being emptied, else the closest to others.
    fn least_wanted(&self, group: GroupId, whole: &[u32]) -> u32 {
        let mut candidates = whole.iter().filter_map(|disk| self.map.servers.get(disk));
        let draining = candidates.find(|server| server.is_draining);
        let members: Vec<DiskId> = whole.iter().copied().map(DiskId).collect();
        let last = || placement::least_wanted(group, &members, &self.disk_facts()).map(|disk| disk.0);
        draining.map(|server| server.disk).or_else(last).unwrap_or_default()
    }

    /// Makes the queue what the groups need: jobs come, change and go with the rows.
    fn fill_queue(
        &mut self,
        lacking: &[(GroupId, Need)],
        changes: &BTreeMap<GroupId, Members>,
        gone: &[u32],
        now_ms: u64,
    ) {
        let facts = self.disk_facts();
        let mut needs = BTreeMap::new();
        let mut without_place = BTreeMap::new();
        for &(group, need) in lacking {
            let Some(row) = self.map.groups.get(&group) else {
                continue;
            };
            let members = changes.get(&group).unwrap_or(&row.members);
            let disks: Vec<DiskId> = members.iter().map(|(disk, _)| DiskId(*disk)).collect();
            let mut sources: Vec<DiskId> = self
                .whole_members(&self.map.view(row))
                .into_iter()
                .map(DiskId)
                .filter(|disk| disks.contains(disk))
                .collect();
            let whole_copies = sources.len() as u8;
            if !sources.is_empty() {
                // Groups are read from different ones of their members.
                let first = group.0 as usize % sources.len();
                sources.rotate_left(first);
            }
            let joining =
                members.iter().find(|(_, kind)| *kind == MemberKind::Joining).map(|(disk, _)| DiskId(*disk));
            let bytes = self.group_bytes(group);
            let target = match (joining, need) {
                (Some(target), _) => Ok(target),
                (None, Need::Move(wanted)) => place_at(group, &disks, bytes, &facts, wanted.from, wanted.to),
                (None, _) => {
                    let goes = |disk: &DiskId| gone.contains(&disk.0) || need.leaves() == Some(disk.0);
                    let staying: Vec<DiskId> = disks.iter().copied().filter(|disk| !goes(disk)).collect();
                    placement::choose_new_member(group, &disks, &staying, bytes, &facts)
                }
            };
            let is_given_up = || {
                let lost = |disk: &u32| self.map.servers.get(disk).is_some_and(|s| s.state.is_lost());
                row.members.iter().any(|(disk, _)| lost(disk))
            };
            let is_ordered = match need {
                Need::Replace => is_given_up(),
                Need::Drain { .. } => true,
                Need::Move(wanted) => wanted.is_ordered,
            };
            // Who has left the group drops what it has of it before it may come back (VOL-24).
            let chosen = target
                .as_ref()
                .ok()
                .copied()
                .filter(|disk| joining.is_some() || self.has_entered(disk.0, row.version));
            let job = Job {
                group,
                whole_copies,
                since_ms: *self.recovery.since.entry(group).or_insert(now_ms),
                boost: self.recovery.boosts.get(&group).copied().unwrap_or_default(),
                pool: 0,
                sources,
                target: chosen,
                is_ordered,
            };
            if let Err(reason) = target {
                without_place.insert(group, reason);
            }
            needs.insert(group, need);
            self.queue_job(job, joining);
        }
        let recovery = &mut self.recovery;
        for group in recovery.needs.keys() {
            if !needs.contains_key(group) {
                recovery.queue.withdraw(*group);
                recovery.progress.finished();
            }
        }
        recovery.since.retain(|group, _| needs.contains_key(group));
        recovery.boosts.retain(|group, _| needs.contains_key(group));
        // A move that came to nothing, or to its end.
        recovery.moves.retain(|group, _| needs.contains_key(group));
        (recovery.needs, recovery.without_place) = (needs, without_place);
    }

    /// Puts a job in; one whose target has joined runs, by whomever it was started.
    fn queue_job(&mut self, job: Job, joining: Option<DiskId>) {
        let queue = &mut self.recovery.queue;
        let group = job.group;
        let running = queue.running().find(|start| start.group == group);
        if let Some(running) = running {
            // Its target is gone again, or what it was read from is.
            if joining != Some(running.target) || !job.sources.contains(&running.source) {
                queue.withdraw(group);
            }
        }
        let is_free = |disk: &&DiskId| queue.running().all(|start| start.source != **disk);
        let source = job.sources.iter().find(is_free).or(job.sources.first());
        match (joining, source.copied()) {
            (Some(target), Some(source)) => {
                let start = Start { group, source, target };
                if !queue.resume(job.clone(), start) {
                    queue.put(job);
                }
            }
            _ => queue.put(job),
        }
    }

    /// Copies that have not got on for long: what is half copied makes room, and the job rests.
    fn give_up_stalled(&mut self, changes: &mut BTreeMap<GroupId, Members>, now_ms: u64) -> Mastered<()> {
        let running: Vec<Start> = self.recovery.queue.running().collect();
        self.recovery.got_on.retain(|group, _| running.iter().any(|start| start.group == *group));
        for start in running {
            let copied = self.watches.get(&start.target.0).map_or(0, |watch| watch.copied_bytes);
            let got_on = self.recovery.got_on.entry(start.group).or_insert((copied, now_ms));
            if got_on.0 != copied {
                *got_on = (copied, now_ms);
            }
            let Some(row) = self.map.groups.get(&start.group) else {
                continue;
            };
            if now_ms.saturating_sub(got_on.1) < STALLED_MS {
                continue;
            }
            let members = changes.entry(start.group).or_insert_with(|| row.members.clone());
            members.retain(|member| *member != (start.target.0, MemberKind::Joining));
            self.recovery.got_on.remove(&start.group);
            self.recovery.queue.failed(start.group, now_ms);
            let group = start.group;
            let text = format!("the copy of group {group} did not get on for two minutes: it is begun again");
            self.note(now_ms, "stalled", &text)?;
        }
        Ok(())
    }

    /// New members join where the queue says that their copy starts.
    fn start_copies(&mut self, changes: &mut BTreeMap<GroupId, Members>, now_ms: u64) {
        for start in self.recovery.queue.next(now_ms) {
            let Some(row) = self.map.groups.get(&start.group) else {
                continue;
            };
            let members = changes.entry(start.group).or_insert_with(|| row.members.clone());
            let need = self.recovery.needs.get(&start.group);
            let leaves = need.and_then(|need| need.leaves());
            for (disk, kind) in members.iter_mut() {
                if leaves == Some(*disk) && *kind == MemberKind::Full {
                    *kind = MemberKind::Leaving;
                }
            }
            if members.iter().all(|(disk, _)| *disk != start.target.0) {
                members.push((start.target.0, MemberKind::Joining));
                members.sort_unstable_by_key(|(disk, _)| *disk);
            }
        }
    }

    /// A server that was given up and holds no group any more is forgotten.
    fn drop_servers_without_groups(&mut self, now_ms: u64) -> Mastered<()> {
        let lost = self.map.servers.values();
        let lost: Vec<(u32, String)> = lost
            .filter(|server| server.state.is_lost())
            .filter(|server| self.map.groups_of(server.disk).next().is_none())
            .map(|server| (server.disk, server.name.clone()))
            .collect();
        for (disk, name) in lost {
            self.meta.remove_server(disk)?;
            self.map.servers.remove(&disk);
            self.watches.remove(&disk);
            self.note(now_ms, "replaced", &format!("{name} is gone: all its groups lie on others"))?;
        }
        Ok(())
    }
}

fn is_gone(server: &ServerRow, permanent_after_ms: u64, now_ms: u64) -> bool {
    match server.state {
        ServerState::Lost => true,
        // Of one that is away as it was announced, the time begins when it should be back.
        ServerState::Failed => {
            server.failed_since_ms <= now_ms && now_ms - server.failed_since_ms >= permanent_after_ms
        }
        ServerState::Normal | ServerState::Recovering => false,
    }
}
