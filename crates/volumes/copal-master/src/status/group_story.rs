//! Why a group lacks a copy: what happened to the members that are not whole, what is done about it, what
//! keeps it from ending.
//!
//! Told from the rows of the map, the queue, what members say of themselves, and the events that were written
//! down. Where an event is too old to be kept, or from before this reign knew of it, the story is shorter and
//! still true.
//!
//! Design: docs/design/cluster.md#master
//! Not here: the whole cluster in a sentence (`status`).

use crate::master::{Master, Mastered, Reign};
use crate::recovery::recovery_state::Need;
use crate::tables::meta_store::{EventRow, GroupRow, MemberKind, ServerRow, ServerState};
use copal_proto::administration::{EventRecord, GroupStory, MemberStory};
use copal_volume::group::{DiskId, GroupId, Role, View, recovery::Start};

/// Events that are looked through.
const LOOKED_THROUGH: usize = 1000;
/// Events that are told, the newest.
const TOLD: usize = 20;

/// What is done about a group, and when that ends.
struct Next {
    text: String,
    ends_in_s: Option<u64>,
}

impl Master {
    /// Why a group lacks a copy; of one that is whole, that it is. `None`: there is no such group.
    /// # Errors
    /// `Meta`.
    pub fn why_degraded(&self, group: GroupId, now_ms: u64) -> Mastered<Option<GroupStory>> {
        let mut reign = self.reign.lock();
        let events = reign.meta.events(0, LOOKED_THROUGH)?;
        let Some(row) = reign.map.groups.get(&group) else {
            return Ok(None);
        };
        let view = reign.map.view(row);
        let story = Story {
            reign: &reign,
            row,
            view: &view,
            events: &events,
            permanent_after_ms: self.options.permanent_after_ms,
            now_ms,
        };
        Ok(Some(story.told()))
    }
}

struct Story<'a> {
    reign: &'a Reign,
    row: &'a GroupRow,
    view: &'a View,
    events: &'a [EventRow],
    permanent_after_ms: u64,
    now_ms: u64,
}

impl Story<'_> {
    fn told(&self) -> GroupStory {
        let group = self.row.group;
        let replicas = usize::from(self.view.replicas);
        let whole = self.reign.whole_members(self.view).len();
        let members: Vec<MemberStory> =
            self.row.members.iter().filter_map(|member| self.member(*member)).collect();
        if whole >= replicas {
            return GroupStory {
                group: group.0,
                whole: true,
                sentence: format!("group {group} is whole"),
                replicas,
                whole_copies: whole,
                members,
                next: None,
                blocked: Vec::new(),
                ends_in_s: None,
                events: Vec::new(),
            };
        }
        let blocked = self.blocked();
        let next = match blocked.first() {
            // What would come next does not before that is gone.
            Some(_) => Next { text: "nothing, before what blocks it is gone".to_owned(), ends_in_s: None },
            None => self.next(),
        };
        let end = match next.ends_in_s {
            Some(seconds) => format!("; whole in about {} s", seconds.max(1)),
            None => String::new(),
        };
        GroupStory {
            group: group.0,
            whole: false,
            sentence: format!("group {group} has {whole} of {replicas} whole copies{end}"),
            replicas,
            whole_copies: whole,
            members,
            next: Some(next.text),
            blocked,
            ends_in_s: next.ends_in_s,
            events: self.story(),
        }
    }

    fn server(&self, disk: u32) -> Option<&ServerRow> {
        self.reign.map.servers.get(&disk)
    }

    fn name(&self, disk: u32) -> String {
        self.server(disk).map_or_else(|| format!("disk {disk}"), |server| server.name.clone())
    }

    fn role(&self, disk: u32) -> Option<Role> {
        let role = self.view.role(DiskId(disk))?;
        Some(self.reign.role(self.view, disk, role))
    }

    /// A member, and where it is not whole why.
    fn member(&self, (disk, kind): (u32, MemberKind)) -> Option<MemberStory> {
        let (server, role) = (self.server(disk)?, self.role(disk)?);
        let (since_ms, why) = match role.is_in_sync() {
            true => (None, None),
            false => {
                let (since_ms, why) = self.why(server, kind, role);
                (since_ms, Some(why))
            }
        };
        Some(MemberStory {
            name: server.name.clone(),
            disk,
            role: role.letter().to_string(),
            kind: kind.word().to_owned(),
            zone: server.zone.clone(),
            rack: server.rack.clone(),
            since_ms,
            why,
        })
    }

    /// Since when a member is not whole, and what happened to it.
    fn why(&self, server: &ServerRow, kind: MemberKind, role: Role) -> (Option<u64>, String) {
        let name = &server.name;
        let at = |event: &EventRow| event.at_ms;
        let state = || self.newest("state", name);
        match server.state {
            ServerState::Lost => {
                let since_ms = self.newest("lost", name).map(at);
                (since_ms, format!("{name} was given up: it is not let back in"))
            }
            ServerState::Failed if server.failed_since_ms > self.now_ms => {
                let left_min = (server.failed_since_ms - self.now_ms).div_ceil(60_000);
                let text = format!("{name} is away as it was announced, for {left_min} min more at most");
                (state().map(at), text)
            }
            ServerState::Failed => {
                // The event has the cause, too.
                let known = state().filter(|event| event.at_ms >= server.failed_since_ms);
                let text = known.map_or_else(|| format!("{name} is away"), |event| event.text.clone());
                (Some(server.failed_since_ms), text)
            }
            ServerState::Normal | ServerState::Recovering if kind == MemberKind::Joining => {
                let since_ms = self.reign.recovery.since.get(&self.row.group).copied();
                (since_ms, format!("{name} is new in the group, and copies what is there"))
            }
            ServerState::Recovering => {
                let text = format!("{name} is back, and takes over what it missed meanwhile");
                (state().map(at), text)
            }
            ServerState::Normal => {
                let group = self.row.group.0.to_string();
                let damage = self
                    .events
                    .iter()
                    .rfind(|event| event.kind == "repair" && mentions(&event.text, &[name, "group", &group]));
                match damage {
                    Some(event) if role.is_recovering() => (Some(event.at_ms), event.text.clone()),
                    _ => (None, format!("{name} has not said yet that it is whole in this view")),
                }
            }
        }
    }

    fn newest(&self, kind: &str, name: &str) -> Option<&EventRow> {
        let mut events = self.events.iter();
        events.rfind(|event| event.kind == kind && mentions(&event.text, &[name]))
    }

    /// What is done about it.
    fn next(&self) -> Next {
        let (reign, group) = (self.reign, self.row.group);
        let queue = &reign.recovery.queue;
        let all = reign.group_bytes(group);
        if let Some(Start { source, target, .. }) = queue.running().find(|start| start.group == group) {
            let here = reign.bytes_on(group, target.0).min(all);
            let percent = here * 100 / all.max(1);
            let (source, name) = (self.name(source.0), self.name(target.0));
            return Next {
                text: format!("{name} copies it from {source}, {percent} % are there"),
                ends_in_s: reign.seconds_for(all - here, 1),
            };
        }
        if let Some(ahead) = queue.waiting().position(|job| job.group == group) {
            let target = queue.job(group).and_then(|job| job.target);
            let to = target.map_or_else(String::new, |disk| format!(" to {}", self.name(disk.0)));
            let before = queue.waiting().take(ahead + 1).map(|job| reign.group_bytes(job.group));
            return Next {
                text: format!(
                    "a copy{to} waits for its turn, {ahead} others go before it; `copal group boost {group}`"
                ),
                ends_in_s: reign.seconds_for(before.fold(0, u64::saturating_add), ahead + 1 + queue.len().1),
            };
        }
        let failed = self.members_down();
        // The first that is given up ends the waiting.
        let given_up_ms = failed.iter().map(|server| server.failed_since_ms + self.permanent_after_ms).min();
        match (failed.first(), given_up_ms) {
            (Some(server), Some(at_ms)) => {
                let left_s = at_ms.saturating_sub(self.now_ms).div_ceil(1000);
                let name = &server.name;
                Next {
                    text: format!(
                        "{name} is waited for, {} min more: back before, it takes over what it missed, else the group is \
                         copied from others; `copal node lost {name}` begins that now",
                        left_s.div_ceil(60)
                    ),
                    ends_in_s: reign.seconds_for(all, 1).map(|copying_s| left_s + copying_s),
                }
            }
            _ => Next {
                text: "members that are there take over what they lack from one that is whole".to_owned(),
                ends_in_s: None,
            },
        }
    }

    fn members_down(&self) -> Vec<&ServerRow> {
        let servers = self.row.members.iter().filter_map(|(disk, _)| self.server(*disk));
        servers.filter(|server| server.state.is_down()).collect()
    }

    /// What keeps it from getting its copy, a sentence each.
    fn blocked(&self) -> Vec<String> {
        let (reign, group) = (self.reign, self.row.group);
        let mut blocked = Vec::new();
        if reign.whole_members(self.view).is_empty() {
            // Who has missed nothing is whole as soon as it is back.
            let missed = |disk: u32| reign.map.missed.contains_key(&(group, disk));
            let away = self.members_down().into_iter();
            let have: Vec<String> =
                away.filter(|server| !missed(server.disk)).map(|server| server.name.clone()).collect();
            blocked.push(match have.is_empty() {
                true => {
                    "no whole copy is there, and none that is away is known to have missed nothing".to_owned()
                }
                false => format!(
                    "no whole copy is there; {} has everything that was acknowledged: bring it back",
                    have.join(" or ")
                ),
            });
        }
        let needs_hold = !self.members_down().is_empty();
        let is_ordered = reign.recovery.queue.job(group).is_some_and(|job| job.is_ordered);
        if let Some(hold) = reign.recovery.queue.hold().filter(|_| needs_hold && !is_ordered) {
            blocked.push(hold.to_string());
        }
        if let Some(reason) = reign.recovery.without_place.get(&group)
            && reign.recovery.needs.get(&group) == Some(&Need::Replace)
        {
            blocked.push(reason.to_string());
        }
        let up = self.view.up().count();
        if up < self.view.needed() {
            let needed = self.view.needed();
            blocked.push(format!(
                "{up} of its members are there, and {needed} have to be before anything can be written to it"
            ));
        }
        blocked
    }

    /// Events of its members that are not whole, of the group itself, and of the whole cluster's copies, the
    /// oldest first.
    fn story(&self) -> Vec<EventRecord> {
        let is_short = |disk: &u32| !self.role(*disk).is_some_and(Role::is_in_sync);
        let names: Vec<String> = self
            .row
            .members
            .iter()
            .map(|(disk, _)| *disk)
            .filter(is_short)
            .map(|disk| self.name(disk))
            .collect();
        let group = self.row.group.0.to_string();
        let concerns = |event: &&EventRow| match event.kind.as_str() {
            "hold" => true,
            "boost" | "move" | "stalled" => mentions(&event.text, &["group", &group]),
            "repair" => mentions(&event.text, &["group", &group]),
            _ => names.iter().any(|name| mentions(&event.text, &[name])),
        };
        let told: Vec<&EventRow> = self.events.iter().filter(concerns).collect();
        let newest = told.into_iter().rev().take(TOLD).rev();
        newest.cloned().map(EventRecord::from).collect()
    }
}

/// Whether words stand in a sentence, one behind the other but for others between them.
fn mentions(text: &str, words: &[&str]) -> bool {
    let mut said = text.split([' ', ',', ':', ';']);
    words.iter().all(|word| said.any(|said| said == *word))
}

#[cfg(test)]
mod tests;
