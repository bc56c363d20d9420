//! How the cluster is, in one sentence and in numbers.

use crate::master::{Master, Mastered, Reign};
use crate::tables::meta_store::{EventRow, ServerRow, ServerState};
use copal_proto::administration::{
    ClusterStatus, EventRecord, GroupCounts, GroupList, GroupMembers, MasterStatus, MemberRole, ServerStatus,
};
use copal_volume::group::{DiskId, GroupId, Role, View};

impl Master {
    /// Health, servers, groups and tasks.
    pub fn status(&self, now_ms: u64) -> ClusterStatus {
        let reign = self.reign.lock();
        let copies = reign.copies();
        let (health, mut sentence) = reign.health(copies, self.options.permanent_after_ms, now_ms);
        for drain in reign.drains() {
            sentence.push_str(&format!("; {drain}"));
        }
        for clock in reign.clock_sentences() {
            sentence.push_str(&format!("; {clock}"));
        }
        sentence.push_str(&reign.outlook());
        let (clock_off_ms, clock_wrong) = reign.leader_clock();
        ClusterStatus {
            health: health.to_owned(),
            sentence,
            servers: reign.map.servers.values().map(|server| reign.server(server, now_ms)).collect(),
            groups: copies,
            tasks: reign.tasks(),
            recovery: reign.recovery_status(),
            map_version: reign.map.version,
            gone_volumes: reign.gone.len(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            master: MasterStatus {
                leader: true,
                address: self.address(),
                term: self.term,
                masters: reign.masters.clone(),
                clock_off_ms,
                clock_wrong,
            },
        }
    }

    /// The members of a group: name, address and state, as the master and they themselves know it.
    pub fn group(&self, group: GroupId) -> Option<GroupMembers> {
        let reign = self.reign.lock();
        let row = reign.map.groups.get(&group)?;
        let view = reign.map.view(row);
        let member = |&(disk, role): &(DiskId, Role)| {
            let server = reign.map.servers.get(&disk.0)?;
            Some(MemberRole {
                name: server.name.clone(),
                address: server.address.clone(),
                disk: disk.0,
                role: reign.role(&view, disk.0, role).letter().to_string(),
            })
        };
        let members = view.members.iter().filter_map(member).collect();
        Some(GroupMembers { group: group.0, epoch: view.epoch.0, members })
    }

    /// All groups with their members.
    pub fn groups(&self) -> GroupList {
        let groups: Vec<GroupId> = self.reign.lock().map.groups.keys().copied().collect();
        GroupList { groups: groups.into_iter().filter_map(|group| self.group(group)).collect() }
    }

    /// What happened, the oldest first.
    /// # Errors
    /// `Meta`.
    pub fn events(&self, after: u64, limit: usize) -> Mastered<Vec<EventRow>> {
        Ok(self.reign.lock().meta.events(after, limit)?)
    }
}

impl Reign {
    /// A member's own word counts where it is of this epoch: only it knows when it is whole.
    pub(crate) fn role(&self, view: &View, disk: u32, role: Role) -> Role {
        match self.told(view, disk) {
            Some(own) if role.is_up() => own,
            _ => role,
        }
    }

    /// What a member has said of itself in this very view; `None`: nothing yet.
    pub(crate) fn told(&self, view: &View, disk: u32) -> Option<Role> {
        let watch = self.watches.get(&disk)?;
        let &(epoch, own) = watch.roles.get(&view.group)?;
        (epoch == view.epoch).then_some(own)
    }

    fn copies(&self) -> GroupCounts {
        let mut copies = GroupCounts::default();
        for row in self.map.groups.values() {
            let view = self.map.view(row);
            let members = view.members.iter();
            let whole = members.filter(|&&(disk, role)| self.role(&view, disk.0, role).is_in_sync()).count();
            copies.total += 1;
            match whole {
                0 => copies.incomplete += 1,
                whole if whole >= usize::from(view.replicas) => copies.whole += 1,
                1 => copies.one_copy += 1,
                _ => copies.two_copies += 1,
            }
        }
        copies
    }

    fn health(&self, copies: GroupCounts, permanent_after_ms: u64, now_ms: u64) -> (&'static str, String) {
        let pool = self.map.pool;
        if copies.total == 0 {
            let joined = self.map.servers.len();
            let sentence = format!("incomplete: {joined} of {} data servers have joined", self.first_servers);
            return ("incomplete", sentence);
        }
        if copies.incomplete > 0 {
            let sentence =
                format!("incomplete: {} groups have no whole copy that is there", copies.incomplete);
            return ("incomplete", sentence);
        }
        let lacking = copies.total - copies.whole;
        // One whose groups all lie on others by now is missed by nobody.
        let holds_groups = |server: &&ServerRow| self.map.groups_of(server.disk).next().is_some();
        if let Some(server) = self.in_state(ServerState::Failed).find(holds_groups) {
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
            let watch = self.watches.get(&server.disk);
            let down = match announced_ms {
                _ if watch.is_some_and(|watch| watch.is_host_full) => "takes no operations".to_owned(),
                _ if watch.is_some_and(|watch| watch.is_shut_out) => {
                    "is shut out of writes for its clock".to_owned()
                }
                0 => format!("down {} s", down_ms / 1000),
                left => format!("away as announced for {} min more", left.div_ceil(60_000)),
            };
            let sentence = format!("degraded: {} {down}, {short}; {then}", server.name);
            return ("degraded", sentence);
        }
        if let Some(server) = self.in_state(ServerState::Lost).next() {
            let left = self.map.groups_of(server.disk).count();
            let sentence = format!("recovering: {left} groups of {} are copied from others", server.name);
            return ("recovering", sentence);
        }
        if let Some(server) = self.in_state(ServerState::Recovering).next() {
            let sentence =
                format!("recovering: {} catches up, {lacking} groups are not whole yet", server.name);
            return ("recovering", sentence);
        }
        if lacking > 0 {
            return ("recovering", format!("recovering: {lacking} groups are not whole yet"));
        }
        // One that has joined and does not listen yet, or that this master was not told of since it began to
        // rule.
        let is_silent =
            |server: &&ServerRow| self.watches.get(&server.disk).is_none_or(|watch| watch.pid == 0);
        if let Some(server) = self.in_state(ServerState::Normal).find(is_silent) {
            let sentence = format!("recovering: {} has not been heard of yet", server.name);
            return ("recovering", sentence);
        }
        ("healthy", format!("healthy: {} groups, {} copies of each", copies.total, pool.replicas))
    }

    /// When what is copied is done, or what keeps it from that: the end of the sentence.
    fn outlook(&self) -> String {
        if let Some(blocked) = self.blocked().first() {
            return format!("; blocked: {blocked}");
        }
        match (self.recovery.queue.len(), self.left().1) {
            ((0, 0), _) | (_, None) => String::new(),
            (_, Some(seconds @ 0..60)) => format!(", done in {seconds} s"),
            (_, Some(seconds)) => format!(", done in {} min", seconds.div_ceil(60)),
        }
    }

    fn in_state(&self, state: ServerState) -> impl Iterator<Item = &ServerRow> {
        self.map.servers.values().filter(move |server| server.state == state)
    }

    fn server(&self, server: &ServerRow, now_ms: u64) -> ServerStatus {
        let watch = self.watches.get(&server.disk).cloned().unwrap_or_default();
        ServerStatus {
            name: server.name.clone(),
            uuid: hex(&server.server_uuid),
            disk: server.disk,
            state: server.state.word().to_owned(),
            zone: server.zone.clone(),
            rack: server.rack.clone(),
            pid: watch.pid,
            address: server.address.clone(),
            incarnation: server.incarnation.count(),
            used_bytes: watch.used_bytes,
            capacity_bytes: server.capacity_bytes,
            groups: self.map.groups_of(server.disk).count(),
            draining: server.is_draining,
            full: self.is_full(server),
            host_full: watch.is_host_full,
            announced_until_ms: (server.failed_since_ms > now_ms).then_some(server.failed_since_ms),
            clock_off_ms: self.server_clock(server.disk),
            clock_wrong: watch.clock_wrong_since_ms.is_some(),
            shut_out: watch.is_shut_out,
            silent_ms: now_ms.saturating_sub(watch.heard_ms),
        }
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
