//! What an administrator wants of servers and copies: one goes first, a server is emptied, removed, away for
//! a while.
//!
//! Paper: beanfs §5.3 (a server is taken out by migration)
//! Not here: giving a server up (`replacing`), single groups that move (`moving`).

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::tables::meta_store::{MemberKind, ServerRow};
use copal_proto::administration::{AbsenceReport, BoostReport, DrainReport, RemovalReport};
use copal_volume::{
    VolumeError,
    group::{
        DiskId, GroupId,
        placement::{self, NoPlace},
    },
};

/// The longest time for which a server's absence is announced.
const LONGEST_ABSENCE_MS: u64 = 24 * 3_600_000;

impl Master {
    /// Lets the copy of a group go before those that lost theirs in the same minute and are as urgent; each
    /// time by one more.
    /// # Errors
    /// `NotFound`: there is no such group. `Meta`.
    pub fn boost(&self, group: GroupId, now_ms: u64) -> Mastered<BoostReport> {
        let mut reign = self.reign.lock();
        if !reign.map.groups.contains_key(&group) {
            return Err(VolumeError::NotFound.into());
        }
        if !reign.recovery.needs.contains_key(&group) {
            return Ok(BoostReport { group: group.0, lacks: false, boost: None, ahead: None });
        }
        let boost = {
            let boost = reign.recovery.boosts.entry(group).or_default();
            *boost = boost.saturating_add(1);
            *boost
        };
        reign.note(now_ms, "boost", &format!("group {group} goes before others of its age"))?;
        reign.replace(self.options.permanent_after_ms, now_ms)?;
        self.changed.notify_all();
        let ahead = reign.recovery.queue.waiting().take_while(|job| job.group != group).count();
        let is_waiting = reign.recovery.queue.waiting().any(|job| job.group == group);
        let ahead = is_waiting.then_some(ahead);
        Ok(BoostReport { group: group.0, lacks: true, boost: Some(boost), ahead: Some(ahead) })
    }

    /// Empties a server: each of its groups gets another member, and leaves it when that one is whole. It
    /// stays a member as any until then. `undo` ends that; what has left already stays where it is. What
    /// blocks it is told, and is no error.
    /// # Errors
    /// `NotFound`; `Denied`: it is given up. `Meta`.
    pub fn drain(&self, name: &str, undo: bool, dry_run: bool, now_ms: u64) -> Mastered<DrainReport> {
        let mut reign = self.reign.lock();
        let server = reign.named(name)?;
        if server.state.is_lost() {
            let reason = format!("{name} is given up: its groups are copied from others already");
            return Err(MasterError::Denied(reason));
        }
        let (groups, bytes, blocked) = match undo {
            true => (0, 0, Vec::new()),
            false => reign.outlook_of_drain(&server),
        };
        if !dry_run && server.is_draining == undo {
            let mut changed = server.clone();
            changed.is_draining = !undo;
            reign.change(changed)?;
            if undo {
                reign.stay(server.disk, None)?;
            }
            let text = match undo {
                true => format!("{name} is not emptied any more"),
                false => format!("{name} is emptied: {groups} groups go to others"),
            };
            reign.note(now_ms, "drain", &text)?;
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            self.changed.notify_all();
        }
        Ok(DrainReport {
            name: name.to_owned(),
            draining: !undo,
            dry_run,
            groups,
            bytes,
            blocked,
            ends_in_s: reign.seconds_for(bytes, groups),
        })
    }

    /// Forgets a server that holds no group.
    /// # Errors
    /// `NotFound`; `Denied`: it holds some. `Meta`.
    pub fn remove(&self, name: &str, dry_run: bool, now_ms: u64) -> Mastered<RemovalReport> {
        let mut reign = self.reign.lock();
        let server = reign.named(name)?;
        let groups = reign.map.groups_of(server.disk).count();
        if groups > 0 {
            let then = match server.is_draining {
                true => "it is being emptied; `copal status` tells when that ends",
                false => "empty it first with `copal node drain`",
            };
            let reason = format!("{name} holds {groups} groups: {then}");
            return Err(MasterError::Denied(reason));
        }
        if !dry_run {
            reign.meta.remove_server(server.disk)?;
            reign.map.servers.remove(&server.disk);
            reign.watches.remove(&server.disk);
            reign.note(now_ms, "removed", &format!("{name} is removed: it held no group"))?;
        }
        Ok(RemovalReport { name: name.to_owned(), dry_run })
    }

    /// A server will be away for at most `for_ms`: until then it is not given up, and counts to no mass
    /// failure. Zero takes that back.
    /// # Errors
    /// `NotFound`; `Denied`: it is given up, or that is longer than a day. `Meta`.
    pub fn announce(&self, name: &str, for_ms: u64, dry_run: bool, now_ms: u64) -> Mastered<AbsenceReport> {
        let mut reign = self.reign.lock();
        let mut server = reign.named(name)?;
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
        // Who else would have to go without it.
        let needs = usize::from(reign.map.pool.min_ack.min(reign.map.pool.replicas));
        let short = reign.map.groups_of(server.disk).filter(|row| {
            let others = row
                .members
                .iter()
                .filter(|(disk, _)| *disk != server.disk)
                .filter_map(|(disk, _)| reign.map.servers.get(disk));
            others.filter(|other| !other.is_away()).count() < needs
        });
        let short = short.count();
        if !dry_run {
            reign.change(server)?;
            let text = match for_ms {
                0 => format!("{name} is not announced to be away any more"),
                _ => format!("{name} may be away for {} min", for_ms.div_ceil(60_000)),
            };
            reign.note(now_ms, "maintenance", &text)?;
            self.changed.notify_all();
        }
        Ok(AbsenceReport { name: name.to_owned(), until_ms, dry_run, groups_too_few: short })
    }
}

impl Reign {
    pub(crate) fn named(&self, name: &str) -> Mastered<ServerRow> {
        let found = self.map.server_named(name).cloned();
        found.ok_or_else(|| VolumeError::NotFound.into())
    }

    /// Groups and bytes that leave a server, and what keeps some of them from it. Places are given as the
    /// copies would be.
    fn outlook_of_drain(&self, server: &ServerRow) -> (usize, u64, Vec<String>) {
        let mut facts = self.disk_facts();
        for disk in facts.iter_mut().filter(|facts| facts.disk.0 == server.disk) {
            disk.is_draining = true;
        }
        let (mut groups, mut all_bytes) = (0, 0);
        let mut without: Vec<NoPlace> = Vec::new();
        for row in self.map.groups_of(server.disk) {
            let bytes = self.group_bytes(row.group);
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
            blocked.push(self.why_without_place(without.len(), fit, first));
        }
        (groups, all_bytes, blocked)
    }

    /// Why groups have no place, with what to do about it; `fit` servers could take some.
    pub(crate) fn why_without_place(&self, groups: usize, fit: usize, first: &NoPlace) -> String {
        let needed = usize::from(self.map.pool.replicas);
        match fit < needed {
            true => format!(
                "{groups} groups wait for a server: each needs {needed} servers, {fit} are there that stay; add one with \
                 `copal node token`"
            ),
            false => format!("{groups} groups wait for a server: {first}"),
        }
    }

    /// Servers that are being emptied: how far that is, a sentence each. One that is empty is told once as an
    /// event.
    pub(crate) fn drains(&self) -> Vec<String> {
        let draining = self.map.servers.values().filter(|server| server.is_draining);
        let sentence = |server: &ServerRow| {
            let name = &server.name;
            match self.map.groups_of(server.disk).count() {
                0 => format!("{name} is empty, `copal node rm {name}` removes it"),
                groups => format!("{name} is being emptied, {groups} groups are left"),
            }
        };
        draining.map(sentence).collect()
    }

    /// Writes down that servers have become empty.
    pub(crate) fn note_empty(&mut self, now_ms: u64) -> Mastered<()> {
        let is_empty =
            |server: &&ServerRow| server.is_draining && self.map.groups_of(server.disk).next().is_none();
        let empty = self.map.servers.values().filter(is_empty);
        let empty: Vec<(u32, String)> = empty.map(|server| (server.disk, server.name.clone())).collect();
        self.recovery.empty.retain(|disk| empty.iter().any(|(other, _)| other == disk));
        for (disk, name) in empty {
            if self.recovery.empty.insert(disk) {
                self.note(now_ms, "drain", &format!("{name} is empty"))?;
            }
        }
        Ok(())
    }
}
