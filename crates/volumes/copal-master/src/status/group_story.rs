//! History of a group that lacks a copy: the reason, the next step, and the obstacles.
//!
//! It is built from the rows of the map, the queue, the reports of members, and the events. Where an event was
//! dropped for its age, or is from before this term, the history is shorter and still true.
//!
//! Design: docs/design/cluster.md#master
//! Not here: the status of the whole cluster (`cluster_status`).

use crate::{
    error::MasterResult,
    leader::leader_state::LeaderState,
    membership::{
        disk_facts::{bytes_on, group_bytes, seconds_for},
        member_roles::{effective_role, in_sync_members},
    },
    recovery::recovery_state::CopyReason,
    tables::meta_store::{EventRow, GroupRow, MemberKind, ServerRow, ServerState},
};
use copal_proto::administration::{EventRecord, GroupStory, MemberStory};
use copal_volume::group::{DiskId, GroupId, Role, View, recovery::CopyOrder};

/// Number of the newest events that are searched.
const SEARCHED: usize = 1000;
/// Number of the newest events in a history.
const REPORTED: usize = 20;

/// Next step for a group, and the seconds until it ends.
struct NextStep {
    text: String,
    ends_in_s: Option<u64>,
}

/// History of a group; see [`crate::Master::why_degraded`].
pub(crate) fn group_story(
    state: &mut LeaderState,
    group: GroupId,
    now_ms: u64,
) -> MasterResult<Option<GroupStory>> {
    let events = state.tables.events(0, SEARCHED)?;
    let Some(row) = state.map.groups.get(&group) else {
        return Ok(None);
    };
    let view = state.map.view(row);
    let story = StoryBuilder { state, row, view: &view, events: &events, now_ms };
    Ok(Some(story.build()))
}

struct StoryBuilder<'a> {
    state: &'a LeaderState,
    row: &'a GroupRow,
    view: &'a View,
    events: &'a [EventRow],
    now_ms: u64,
}

impl StoryBuilder<'_> {
    fn build(&self) -> GroupStory {
        let group = self.row.group;
        let replicas = usize::from(self.view.replicas);
        let whole = in_sync_members(self.state, self.view).len();
        let members: Vec<MemberStory> =
            self.row.members.iter().filter_map(|member| self.member(*member)).collect();
        if whole >= replicas {
            return GroupStory {
                group: group.0,
                whole: true,
                sentence: format!("group {group} is in sync"),
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
            // No step is taken before the obstacle is removed.
            Some(_) => {
                NextStep { text: "nothing before the obstacle is removed".to_owned(), ends_in_s: None }
            }
            None => self.next_step(),
        };
        let end = match next.ends_in_s {
            Some(seconds) => format!("; all in about {} s", seconds.max(1)),
            None => String::new(),
        };
        GroupStory {
            group: group.0,
            whole: false,
            sentence: format!("group {group} has {whole} of {replicas} copies in sync{end}"),
            replicas,
            whole_copies: whole,
            members,
            next: Some(next.text),
            blocked,
            ends_in_s: next.ends_in_s,
            events: self.relevant_events(),
        }
    }

    fn server(&self, disk: u32) -> Option<&ServerRow> {
        self.state.map.servers.get(&disk)
    }

    fn name(&self, disk: u32) -> String {
        self.server(disk).map_or_else(|| format!("disk {disk}"), |server| server.name.clone())
    }

    fn role(&self, disk: u32) -> Option<Role> {
        let role = self.view.role(DiskId(disk))?;
        Some(effective_role(self.state, self.view, disk, role))
    }

    /// A member, with the reason if it is not in sync.
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

    /// Time since when a member is not in sync, and the reason.
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
                // The event names the cause.
                let known = state().filter(|event| event.at_ms >= server.failed_since_ms);
                let text = known.map_or_else(|| format!("{name} is away"), |event| event.text.clone());
                (Some(server.failed_since_ms), text)
            }
            ServerState::Normal | ServerState::Recovering if kind == MemberKind::Joining => {
                let since_ms = self.state.recovery.lacking_since.get(&self.row.group).copied();
                (since_ms, format!("{name} is new in the group, and copies its data"))
            }
            ServerState::Recovering => {
                let text = format!("{name} is back, and copies the operations that it missed");
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
                    _ => (None, format!("{name} has not reported yet that it is in sync in this view")),
                }
            }
        }
    }

    fn newest(&self, kind: &str, name: &str) -> Option<&EventRow> {
        let mut events = self.events.iter();
        events.rfind(|event| event.kind == kind && mentions(&event.text, &[name]))
    }

    /// Next step towards the full number of copies.
    fn next_step(&self) -> NextStep {
        let (state, group) = (self.state, self.row.group);
        let queue = &state.recovery.queue;
        let all = group_bytes(state, group);
        if let Some(CopyOrder { source, target, .. }) = queue.running().find(|start| start.group == group) {
            let here = bytes_on(state, group, target.0).min(all);
            let percent = here * 100 / all.max(1);
            let (source, name) = (self.name(source.0), self.name(target.0));
            return NextStep {
                text: format!("{name} copies it from {source}, {percent} % are copied"),
                ends_in_s: seconds_for(state, all - here, 1),
            };
        }
        if let Some(ahead) = queue.waiting().position(|job| job.group == group) {
            let target = queue.job(group).and_then(|job| job.target);
            let to = target.map_or_else(String::new, |disk| format!(" to {}", self.name(disk.0)));
            let before = queue.waiting().take(ahead + 1).map(|job| group_bytes(state, job.group));
            return NextStep {
                text: format!(
                    "a copy{to} waits for its turn, {ahead} others go before it; `copal group boost {group}`"
                ),
                ends_in_s: seconds_for(state, before.fold(0, u64::saturating_add), ahead + 1 + queue.len().1),
            };
        }
        let failed = self.members_down();
        // The wait ends when the first of them counts as lost.
        let given_up_ms =
            failed.iter().map(|server| server.failed_since_ms + state.options.permanent_after_ms).min();
        match (failed.first(), given_up_ms) {
            (Some(server), Some(at_ms)) => {
                let left_s = at_ms.saturating_sub(self.now_ms).div_ceil(1000);
                let name = &server.name;
                NextStep {
                    text: format!(
                        "the group waits for {name}, {} min more: if it returns, it copies the operations that it missed, \
                         else the group is copied from others; `copal node lost {name}` begins that now",
                        left_s.div_ceil(60)
                    ),
                    ends_in_s: seconds_for(state, all, 1).map(|copying_s| left_s + copying_s),
                }
            }
            _ => NextStep {
                text: "members that are up resync from one that is in sync".to_owned(),
                ends_in_s: None,
            },
        }
    }

    fn members_down(&self) -> Vec<&ServerRow> {
        let servers = self.row.members.iter().filter_map(|(disk, _)| self.server(*disk));
        servers.filter(|server| server.state.is_down()).collect()
    }

    /// Reasons why it does not get its copy, a sentence each.
    fn blocked(&self) -> Vec<String> {
        let (state, group) = (self.state, self.row.group);
        let mut blocked = Vec::new();
        if in_sync_members(state, self.view).is_empty() {
            // A member that has missed nothing is in sync as soon as it is back.
            let missed = |disk: u32| state.map.missed.contains_key(&(group, disk));
            let away = self.members_down().into_iter();
            let have: Vec<String> =
                away.filter(|server| !missed(server.disk)).map(|server| server.name.clone()).collect();
            blocked.push(match have.is_empty() {
                true => {
                    "no member in sync is up, and each one that is down may have missed operations".to_owned()
                }
                false => format!(
                    "no member in sync is up; {} has all acknowledged operations: bring it back",
                    have.join(" or ")
                ),
            });
        }
        let needs_hold = !self.members_down().is_empty();
        let is_ordered = state.recovery.queue.job(group).is_some_and(|job| job.is_ordered);
        if let Some(hold) = state.recovery.queue.hold().filter(|_| needs_hold && !is_ordered) {
            blocked.push(hold.to_string());
        }
        if let Some(reason) = state.recovery.without_place.get(&group)
            && state.recovery.reasons.get(&group) == Some(&CopyReason::Replace)
        {
            blocked.push(reason.to_string());
        }
        let up = self.view.up().count();
        if up < self.view.needed() {
            let needed = self.view.needed();
            blocked
                .push(format!("{up} of its members are up, and {needed} must be before it accepts writes"));
        }
        blocked
    }

    /// Events about its members that are not in sync, about the group itself, and about the pause of all
    /// copies, the oldest first.
    fn relevant_events(&self) -> Vec<EventRecord> {
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
        let relevant: Vec<&EventRow> = self.events.iter().filter(concerns).collect();
        let newest = relevant.into_iter().rev().take(REPORTED).rev();
        newest.cloned().map(EventRecord::from).collect()
    }
}

/// Whether a sentence has the words in this order, possibly with other words between them.
fn mentions(text: &str, words: &[&str]) -> bool {
    let mut found = text.split([' ', ',', ':', ';']);
    words.iter().all(|word| found.any(|found| found == *word))
}

#[cfg(test)]
mod tests;
