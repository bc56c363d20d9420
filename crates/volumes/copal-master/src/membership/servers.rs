//! Data servers: joining, their heartbeats, and what silence means.
//!
//! Paper: beanfs §3.4.1 (heartbeats), §4.3 (transient and permanent failures)
//! Invariants
//! - A server that was taken for failed comes back as recovering, never as whole: it says when all its groups
//!   are.
//! - A disk that is not the one that joined, or whose boot is older than one that was seen, is not let back
//!   in. Once its server is taken for failed, copies of its groups begin at once.

use crate::leader::medium::Medium;
use crate::master::{Master, MasterError, Mastered, Reign};
use crate::membership::clocks::seconds;
use crate::membership::layout;
use crate::tables::meta_store::{MemberKind, Members, ServerRow, ServerState};
use copal_volume::group::{DiskId, Epoch, GroupId, Incarnation, Role};

/// A server that wants to join.
#[derive(Clone, Debug)]
pub struct Joiner {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Name in its certificate.
    pub server_uuid: [u8; 16],
    /// Its disk.
    pub disk_uuid: [u8; 16],
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Where it stands; empty: not told.
    pub zone: String,
    /// The rack, in its zone; empty: not told.
    pub rack: String,
}

/// One heartbeat.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Who.
    pub server_uuid: [u8; 16],
    /// With which disk.
    pub disk_uuid: [u8; 16],
    /// Its boot.
    pub incarnation: Incarnation,
    /// Its process.
    pub pid: u32,
    /// Where it listens now.
    pub address: String,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Groups whose state changed.
    pub groups: Vec<(GroupId, Epoch, Role)>,
    /// Why its disk takes no more writes.
    pub failed: Option<String>,
    /// All its groups are whole.
    pub is_whole: bool,
    /// The map that it goes by.
    pub map_version: u64,
    /// Bytes that it has taken over from others since its boot.
    pub copied_bytes: u64,
    /// Bytes of groups on its disk, where they changed much.
    pub sizes: Vec<(GroupId, u64)>,
    /// Bytes a second that copies may take there.
    pub recovery_bytes_per_s: u64,
    /// What its disk is; none: not known.
    pub medium: Option<Medium>,
    /// Its disk takes no new files, or lately did not.
    pub is_full: bool,
    /// Its host ran full inside a write: it takes no operation before its next boot.
    pub is_host_full: bool,
    /// Bytes that new files may still take there, about; none: not told.
    pub room_bytes: Option<u64>,
    /// The newest reign that it ever heard of; 0: not told.
    pub seen_term: u64,
    /// The newest version of the map that it ever heard of; 0: not told.
    pub seen_version: u64,
    /// Where it stands; empty: not told.
    pub zone: String,
    /// The rack, in its zone; empty: not told.
    pub rack: String,
    /// How far its clock is ahead of the ruler, ms; `None`: not told.
    pub clock_ahead_ms: Option<i64>,
    /// It keeps seals from the future, which it ignores from the next view on.
    pub has_future_seals: bool,
}

impl Master {
    /// Draws a token: whoever shows `secret`, whose hash is kept, within ten minutes may join once.
    /// # Errors
    /// `Meta`.
    pub fn add_token(&self, secret_hash: [u8; 32], now_ms: u64) -> Mastered<()> {
        const LIVES_MS: u64 = 10 * 60_000;
        Ok(self.reign.lock().meta.add_token(secret_hash, now_ms + LIVES_MS)?)
    }

    /// Takes a token: from here on it is worth nothing.
    /// # Errors
    /// `Denied`: it was never given, is used, or has ended.
    pub fn take_token(&self, secret_hash: [u8; 32], now_ms: u64) -> Mastered<()> {
        match self.reign.lock().meta.take_token(secret_hash, now_ms)? {
            true => Ok(()),
            false => {
                let reason =
                    "the token is unknown, used or older than ten minutes; get one with `copal node token`";
                Err(MasterError::Denied(reason.to_owned()))
            }
        }
    }

    /// Lets a server in; the number of its disk. Groups get their members when there are enough servers.
    /// # Errors
    /// `Denied`: a server of that name is there.
    pub fn join(&self, joiner: &Joiner, now_ms: u64) -> Mastered<u32> {
        let mut reign = self.reign.lock();
        let known = reign
            .map
            .servers
            .values()
            .find(|server| server.name == joiner.name)
            .map(|server| (server.disk, server.server_uuid, server.disk_uuid));
        if let Some((disk, server_uuid, disk_uuid)) = known {
            // It has not heard the answer to its first try.
            if (server_uuid, disk_uuid) == (joiner.server_uuid, joiner.disk_uuid) {
                return Ok(disk);
            }
            let name = &joiner.name;
            let reason = format!("a server named {name} has joined already; choose another name");
            return Err(MasterError::Denied(reason));
        }
        let mut server = ServerRow {
            disk: 0,
            name: joiner.name.clone(),
            address: joiner.address.clone(),
            server_uuid: joiner.server_uuid,
            disk_uuid: joiner.disk_uuid,
            // Nothing is on it, so nothing is missing.
            state: ServerState::Normal,
            version: 0,
            incarnation: Incarnation(0),
            is_draining: false,
            failed_since_ms: 0,
            capacity_bytes: joiner.capacity_bytes,
            zone: joiner.zone.clone(),
            rack: joiner.rack.clone(),
        };
        let (disk, version) = reign.meta.add_server(&server)?;
        (server.disk, server.version) = (disk, version);
        reign.map.servers.insert(disk, server);
        reign.map.version = version;
        let watch = reign.watches.entry(disk).or_default();
        watch.heard_ms = now_ms;
        reign.note(now_ms, "joined", &format!("{} joined at {}", joiner.name, joiner.address))?;
        reign.lay_out(now_ms)?;
        self.changed.notify_all();
        Ok(disk)
    }

    /// Takes a heartbeat; the number of the server's disk.
    /// # Errors
    /// `Denied`: nobody of that name joined, or not with that disk.
    pub fn beat(&self, beat: Beat, now_ms: u64) -> Mastered<u32> {
        let mut reign = self.reign.lock();
        let mut servers = reign.map.servers.values();
        let known = servers.find(|server| server.server_uuid == beat.server_uuid).cloned();
        let Some(before) = known else {
            return Err(MasterError::Denied("this server never joined the cluster".to_owned()));
        };
        if before.state.is_lost() {
            let name = &before.name;
            let reason = format!(
                "{name} was given up by `copal node lost`; give the server a new name and an empty directory, and join again"
            );
            return Err(MasterError::Denied(reason));
        }
        let is_same_boot = beat.incarnation == before.incarnation;
        // Two copies of one directory count the same boots and draw different numbers.
        if before.disk_uuid != beat.disk_uuid
            || (!is_same_boot && beat.incarnation.count() <= before.incarnation.count())
        {
            let name = &before.name;
            let reason = format!(
                "the directory of {name} is not the one that joined, or an older copy of it: it may lack what was \
                 acknowledged; give the server a new name and an empty directory, and tell `copal node lost {name}`"
            );
            reign.note(now_ms, "refused", &reason)?;
            // While the server that joined is up beside it, its next heartbeat takes this back.
            reign.watches.entry(before.disk).or_default().has_lost_data = true;
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            self.changed.notify_all();
            return Err(MasterError::Denied(reason));
        }
        let disk = before.disk;
        if beat.seen_term > self.term || beat.seen_version > reign.map.version {
            return Err(self.note_age(&mut reign, (disk, beat.seen_term, beat.seen_version)));
        }
        let now_ms = self.hear_clock(&mut reign, disk, beat.clock_ahead_ms, now_ms)?;
        // A step of the reference may have changed its row.
        let before = reign.map.servers.get(&disk).cloned().unwrap_or(before);
        let is_shut_out = reign.is_to_be_shut_out(&before, now_ms);
        // Once its groups go on without it, it could not even enter a view that has it again.
        let is_left_out = beat.is_host_full && (before.state.is_down() || reign.can_do_without(disk));
        let mut server = before.clone();
        server.address = beat.address;
        server.capacity_bytes = beat.capacity_bytes;
        (server.zone, server.rack) = (beat.zone, beat.rack);
        server.incarnation = beat.incarnation;
        let is_new_boot = before.incarnation.count() != 0 && !is_same_boot;
        server.state = match (before.state, &beat.failed) {
            (_, Some(_)) => ServerState::Failed,
            (_, None) if is_shut_out || is_left_out => ServerState::Failed,
            (ServerState::Failed, None) => ServerState::Recovering,
            (ServerState::Normal, None) if is_new_boot => ServerState::Recovering,
            // Who was only cut off from the master knows of nothing it missed before it has this map.
            (ServerState::Recovering, None)
                if beat.is_whole && !is_new_boot && beat.map_version >= before.version =>
            {
                ServerState::Normal
            }
            (state, None) => state,
        };
        server.failed_since_ms = match (server.state, before.failed_since_ms) {
            (ServerState::Failed, since) if before.is_away() => since,
            (ServerState::Failed, _) => now_ms,
            // Its absence is announced, and has not begun.
            (_, until) if !before.is_away() && until > now_ms => until,
            _ => 0,
        };
        let is_elsewhere = (&server.zone, &server.rack) != (&before.zone, &before.rack);
        let is_changed =
            server.state != before.state || server.address != before.address || is_new_boot || is_elsewhere;
        let reopens = beat.has_future_seals && reign.is_to_reopen(disk, now_ms);
        if is_changed || before.incarnation != server.incarnation || reopens {
            reign.change(server.clone())?;
            self.changed.notify_all();
        }
        if server.state != before.state {
            let text = match server.state {
                ServerState::Normal => format!("{} is whole again", server.name),
                ServerState::Recovering => format!("{} is back and catches up", server.name),
                ServerState::Failed if is_left_out => {
                    format!("the host of {} has no space left: its groups go on without it", server.name)
                }
                ServerState::Failed if is_shut_out => {
                    let off = seconds(reign.server_clock(disk).unwrap_or_default());
                    format!(
                        "the clock of {} is {off} from the cluster's: it takes no part in writes until it is right",
                        server.name
                    )
                }
                ServerState::Failed | ServerState::Lost => {
                    let why = beat.failed.as_deref().unwrap_or_default();
                    format!("the disk of {} failed: {why}", server.name)
                }
            };
            reign.note(now_ms, "state", &text)?;
        }
        if before.state.is_in_sync() && server.state.is_in_sync() {
            reign.note_lost_wholeness(&server, &beat.groups, now_ms)?;
        }
        let needs = &reign.recovery.needs;
        let tells_of_copies = beat.groups.iter().any(|(group, ..)| needs.contains_key(group));
        let watch = reign.watches.entry(disk).or_default();
        (watch.heard_ms, watch.pid, watch.used_bytes) = (now_ms, beat.pid, beat.used_bytes);
        watch.is_shut_out = is_shut_out;
        // What it has entered it goes by for ever, also while a boot has entered nothing yet.
        watch.entered_version = watch.entered_version.max(beat.map_version);
        for (group, epoch, role) in beat.groups {
            watch.roles.insert(group, (epoch, role));
        }
        watch.sizes.extend(beat.sizes);
        watch.has_lost_data = false;
        // Less than before: the server has booted since.
        let copied = match beat.copied_bytes.checked_sub(watch.copied_bytes) {
            Some(more) => more,
            None => beat.copied_bytes,
        };
        watch.copied_bytes = beat.copied_bytes;
        (watch.recovery_bytes_per_s, watch.medium) = (beat.recovery_bytes_per_s, beat.medium);
        watch.room_bytes = beat.room_bytes;
        let room_before = (watch.is_full, watch.is_host_full);
        (watch.is_full, watch.is_host_full) = (beat.is_full, beat.is_host_full);
        reign.recovery.progress.copied(copied);
        if room_before != (beat.is_full, beat.is_host_full) {
            reign.note_room(&server, now_ms)?;
        }
        if tells_of_copies {
            // Its answer has what comes next.
            let before = reign.map.version;
            reign.replace(self.options.permanent_after_ms, now_ms)?;
            if reign.map.version != before {
                self.changed.notify_all();
            }
        }
        Ok(disk)
    }

    /// A member has everything of groups, and says so before it acts on it: what it missed is forgotten
    /// there, and views in which it takes part can let operations hold from here on. Returns the groups that
    /// it may not act on: their view is another by now, or the member is away in it.
    /// # Errors
    /// `Meta`.
    pub fn become_whole(&self, disk: u32, groups: &[(GroupId, Epoch)]) -> Mastered<Vec<GroupId>> {
        let mut reign = self.reign.lock();
        let map = &reign.map;
        let is_present = |(group, epoch): &(GroupId, Epoch)| {
            let view = map.groups.get(group).map(|row| map.view(row));
            view.is_some_and(|view| {
                view.epoch == *epoch && view.role(DiskId(disk)).is_some_and(Role::takes_writes)
            })
        };
        let (taken, refused): (Vec<_>, Vec<_>) = groups.iter().copied().partition(is_present);
        let missed = taken.into_iter().map(|(group, _)| group);
        let missed: Vec<GroupId> = missed.filter(|group| map.missed.contains_key(&(*group, disk))).collect();
        if !missed.is_empty() {
            reign.meta.forget_missed(disk, &missed)?;
            for group in missed {
                reign.map.missed.remove(&(group, disk));
            }
        }
        Ok(refused.into_iter().map(|(group, _)| group).collect())
    }

    /// Lets time pass: who was silent too long has failed. Called every few hundred milliseconds.
    /// # Errors
    /// `Meta`.
    pub fn tick(&self, now_ms: u64) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let silent: Vec<u32> =
            reign.map.servers.values().filter(|server| !server.is_away()).map(|server| server.disk).collect();
        for disk in silent {
            // A new reign gives everybody the whole time again.
            let watch = reign.watches.entry(disk).or_default();
            if watch.heard_ms == 0 {
                watch.heard_ms = now_ms;
            }
            if now_ms.saturating_sub(watch.heard_ms) >= self.options.failed_after_ms {
                reign.fail(disk, "was silent too long", now_ms)?;
                self.changed.notify_all();
            }
        }
        let before = reign.map.version;
        // Fewer servers may be waited for than before.
        reign.lay_out(now_ms)?;
        reign.replace(self.options.permanent_after_ms, now_ms)?;
        reign.forget_gone_volumes(now_ms)?;
        if reign.map.version != before {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Somebody was refused by a server, and the master's own probes were as well.
    /// # Errors
    /// `Meta`.
    pub fn fail(&self, disk: u32, why: &str, now_ms: u64) -> Mastered<()> {
        let mut reign = self.reign.lock();
        if reign.map.servers.get(&disk).is_some_and(|server| !server.is_away()) {
            reign.fail(disk, why, now_ms)?;
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl Reign {
    /// Writes down that a member which was whole says that it is not, though nobody took it for away: it met
    /// damage.
    fn note_lost_wholeness(
        &mut self,
        server: &ServerRow,
        told: &[(GroupId, Epoch, Role)],
        now_ms: u64,
    ) -> Mastered<()> {
        let before = self.watches.get(&server.disk).map(|watch| &watch.roles);
        // What it says of an older view is from before it was whole.
        let was_whole = |group: &GroupId, epoch: Epoch| {
            let view = self.map.groups.get(group).map(|row| self.map.view(row));
            let was = before.and_then(|roles| roles.get(group));
            view.is_some_and(|view| view.epoch == epoch)
                && was.is_some_and(|(told_in, role)| *told_in == epoch && role.is_in_sync())
        };
        let is_lost =
            |(group, epoch, role): &&(GroupId, Epoch, Role)| role.is_recovering() && was_whole(group, *epoch);
        let lost: Vec<GroupId> = told.iter().filter(is_lost).map(|(group, ..)| *group).collect();
        for group in lost {
            let name = &server.name;
            let text = format!(
                "{name} is not whole in group {group} any more, and takes over what it lacks from others"
            );
            self.note(now_ms, "repair", &text)?;
        }
        Ok(())
    }

    /// Whether groups of a disk are to get a newer view, in which it ignores seals from the future (VOL-43);
    /// once in a while.
    fn is_to_reopen(&mut self, disk: u32, now_ms: u64) -> bool {
        const EVERY_MS: u64 = 15_000;
        let watch = self.watches.entry(disk).or_default();
        let is_due = watch.reopened_ms.abs_diff(now_ms) >= EVERY_MS;
        if is_due {
            watch.reopened_ms = now_ms;
        }
        is_due
    }

    pub(crate) fn note(&mut self, now_ms: u64, kind: &str, text: &str) -> Mastered<()> {
        tracing::info!(kind, "{text}");
        Ok(self.meta.note(now_ms, kind, text)?)
    }

    fn fail(&mut self, disk: u32, why: &str, now_ms: u64) -> Mastered<()> {
        let Some(mut server) = self.map.servers.get(&disk).cloned() else {
            return Ok(());
        };
        server.state = ServerState::Failed;
        let is_announced = server.failed_since_ms > now_ms;
        server.failed_since_ms = server.failed_since_ms.max(now_ms);
        let text = match is_announced {
            true => format!("{} {why}: it is away as announced", server.name),
            false => format!("{} {why}: it is taken for failed", server.name),
        };
        self.change(server)?;
        self.note(now_ms, "state", &text)
    }

    /// Changes a server, in the database and then in the map; members without which operations can hold from
    /// here on are remembered with it.
    pub(crate) fn change(&mut self, mut server: ServerRow) -> Mastered<()> {
        let disk = server.disk;
        let present = self.map.servers.get(&disk).cloned();
        // What follows from the change is found in the map as it will be; no version is as new yet.
        server.version = self.map.version + 1;
        self.map.servers.insert(disk, server.clone());
        let missed = self.map.newly_missed(self.map.groups_of(disk));
        match self.meta.change_server(&server, &missed) {
            Ok(version) => {
                server.version = version;
                self.map.version = version;
                self.map.servers.insert(disk, server);
                self.map.note_missed(missed, version);
                Ok(())
            }
            Err(error) => {
                match present {
                    Some(present) => self.map.servers.insert(disk, present),
                    None => self.map.servers.remove(&disk),
                };
                Err(error.into())
            }
        }
    }

    /// Changes the members of groups, likewise.
    pub(crate) fn change_members(&mut self, groups: Vec<(GroupId, Members)>) -> Mastered<()> {
        let rows = groups.iter().map(|(group, members)| crate::tables::meta_store::GroupRow {
            group: *group,
            version: self.map.version + 1,
            members: members.clone(),
        });
        let rows: Vec<_> = rows.collect();
        let mut missed = self.map.newly_missed(rows.iter());
        // Who is new has missed everything so far.
        for row in &rows {
            let before = self.map.groups.get(&row.group);
            let was_member =
                |disk| before.is_some_and(|before| before.members.iter().any(|(old, _)| *old == disk));
            let new =
                row.members.iter().filter(|(disk, kind)| *kind == MemberKind::Joining && !was_member(*disk));
            missed.extend(new.map(|(disk, _)| (row.group, *disk)));
        }
        let version = self.meta.change_groups(&groups, &missed)?;
        self.map.version = version;
        for mut row in rows {
            row.version = version;
            let group = row.group;
            let members: Vec<u32> = row.members.iter().map(|(disk, _)| *disk).collect();
            self.map.missed.retain(|(of, disk), _| *of != group || members.contains(disk));
            self.map.groups.insert(group, row);
        }
        self.map.note_missed(missed, version);
        Ok(())
    }

    /// Gives groups their first members, once there are enough servers.
    fn lay_out(&mut self, now_ms: u64) -> Mastered<()> {
        if !self.map.groups.is_empty() {
            return Ok(());
        }
        let disks = self.disk_facts();
        if disks.len() < self.first_servers {
            return Ok(());
        }
        let Some(groups) = layout::initial(self.map.pool, &disks) else {
            return Ok(());
        };
        let text = format!("{} groups lie on {} servers", groups.len(), disks.len());
        self.change_members(groups)?;
        self.note(now_ms, "layout", &text)
    }
}
