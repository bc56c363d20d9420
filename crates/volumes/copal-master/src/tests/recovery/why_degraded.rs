//! The history of a group that lacks a copy, as an operator reads it.

use super::*;
use copal_proto::administration::GroupStory;

impl Cluster {
    fn why(&self, group: u32) -> GroupStory {
        let story = self.master.why_degraded(GroupId(group), self.now_ms).unwrap();
        story.unwrap()
    }

    /// Reason why a member is not in sync.
    fn why_of(&self, group: u32, name: &str) -> Option<String> {
        let mut members = self.why(group).members.into_iter();
        members.find(|member| member.name == name)?.why
    }

    /// A group that a server holds.
    fn one_of(&self, number: u8) -> u32 {
        let map = self.master.map();
        map.groups_of(number.into()).next().unwrap().group.0
    }
}

#[test]
fn a_group_in_sync_has_no_story() {
    let cluster = Cluster::new(4, 16);
    let story = cluster.why(7);
    assert_eq!((story.whole, &*story.sentence), (true, "group 7 is in sync"));
    assert_eq!(story.events, []);
    assert_eq!(cluster.why_of(7, "data1"), None);
    assert!(cluster.master.why_degraded(GroupId(99), cluster.now_ms).unwrap().is_none());
}

#[test]
fn a_server_that_is_away_is_waited_for_then_given_up_then_copied_from_others() {
    let mut cluster = Cluster::new(6, 32);
    let group = cluster.one_of(2);
    let killed_ms = cluster.now_ms;
    cluster.kill(2);
    cluster.pass(60_000);
    let story = cluster.why(group);
    assert_eq!((story.whole, story.whole_copies), (false, 2));
    assert_eq!(cluster.why_of(group, "data2").unwrap(), "data2 refuses connections: it is taken for failed");
    let away = story.members.iter().find(|member| member.name == "data2").unwrap();
    assert_eq!(away.since_ms, Some(killed_ms));
    let next = story.next.as_deref().unwrap();
    assert!(next.starts_with("the group waits for data2, 29 min more"), "{next}");
    assert!(story.events.iter().any(|event| event.kind == "state"), "{story:?}");
    assert!(
        story.events.iter().all(|event| !event.text.contains("data3")),
        "no event is about others: {story:?}"
    );
    cluster.master.give_up_server("data2", cluster.now_ms).unwrap();
    assert_eq!(cluster.why_of(group, "data2").unwrap(), "data2 was given up: it is not let back in");
    cluster.step();
    let mut steps = BTreeSet::new();
    while !cluster.why(group).whole {
        steps.extend(cluster.why(group).next);
        cluster.step();
    }
    assert!(steps.iter().any(|next| next.contains(" copies it from ")), "{steps:?}");
    cluster.settle();
    assert_eq!(cluster.why(group).sentence, format!("group {group} is in sync"));
}

#[test]
fn the_story_of_a_group_names_its_obstacles() {
    let mut cluster = Cluster::new(3, 8);
    cluster.kill(3);
    cluster.master.give_up_server("data3", cluster.now_ms).unwrap();
    cluster.pass(1000);
    let story = cluster.why(1);
    let blocked = &story.blocked[0];
    assert!(blocked.starts_with("group 1 has no disk to go to: 3 hold it already"), "{blocked}");
    // The last in-sync members fail as well.
    cluster.kill(2);
    cluster.kill(1);
    cluster.pass(1000);
    let blocked = cluster.why(1).blocked;
    assert!(
        blocked[0].contains("no member in sync is up; data1 or data2 has all acknowledged operations"),
        "{blocked:?}"
    );
    assert!(
        blocked.iter().any(|blocked| blocked.starts_with("0 of its members are up, and 2 must be")),
        "{blocked:?}"
    );
}

#[test]
fn a_mass_failure_is_named_as_the_reason_of_the_hold() {
    let mut cluster = Cluster::new(6, 32);
    let group = cluster.one_of(1);
    for number in [1, 2] {
        cluster.kill(number);
    }
    cluster.pass(1000);
    let story = cluster.why(group);
    let blocked = &story.blocked[0];
    assert!(blocked.starts_with("2 of 6 servers failed within a minute"), "{blocked}");
    assert_eq!(story.next.as_deref(), Some("nothing before the obstacle is removed"));
}

#[test]
fn damage_and_an_announced_absence_are_named() {
    let mut cluster = Cluster::new(4, 16);
    let group = cluster.one_of(1);
    cluster.master.announce_absence("data1", 30 * 60_000, false, cluster.now_ms).unwrap();
    cluster.kill(1);
    cluster.step();
    let why = cluster.why_of(group, "data1").unwrap();
    assert!(why.starts_with("data1 is away as it was announced, for 30 min more"), "{why}");
    cluster.start(1);
    cluster.settle();
    // It has reported in the present view that it is in sync.
    cluster.step();
    let map = cluster.master.map();
    let epoch = map.view(&map.groups[&GroupId(group)]).epoch;
    let damaged = ServerHeartbeat {
        groups: vec![(GroupId(group), epoch, Role::Recovering)],
        ..beat(1, cluster.boots[&1])
    };
    cluster.master.heartbeat(damaged, cluster.now_ms).unwrap();
    let why = cluster.why_of(group, "data1").unwrap();
    assert!(why.starts_with(&format!("data1 is not in sync in group {group} any more")), "{why}");
}
