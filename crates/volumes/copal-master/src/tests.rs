mod force_accept;
mod recovery;
mod removed_volumes;

use crate::*;
use copal_volume::{
    VolumeError,
    group::{GroupId, Incarnation, Role},
};
use std::time::Duration;

pub(crate) fn master() -> Master {
    let mut meta = SqliteStore::in_memory().unwrap();
    let pool = PoolConfig { replicas: 3, min_ack: 2, groups: 16 };
    Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
    Master::open(Box::new(meta), MasterOptions::default()).unwrap()
}

pub(crate) fn joiner(number: u8) -> ServerJoin {
    ServerJoin {
        name: format!("data{number}"),
        address: format!("127.0.0.1:740{number}"),
        server_uuid: [number; 16],
        disk_uuid: [number + 100; 16],
        capacity_bytes: 1 << 30,
        zone: String::new(),
        rack: String::new(),
    }
}

pub(crate) fn beat(number: u8, incarnation: u64) -> ServerHeartbeat {
    ServerHeartbeat {
        server_uuid: [number; 16],
        disk_uuid: [number + 100; 16],
        // The random half distinguishes two processes with the same count.
        incarnation: Incarnation((incarnation << 20) | incarnation),
        pid: 1,
        address: format!("127.0.0.1:740{number}"),
        used_bytes: 0,
        is_full: false,
        is_host_full: false,
        room_bytes: None,
        capacity_bytes: 1 << 30,
        groups: Vec::new(),
        failed: None,
        is_in_sync: true,
        map_version: u64::MAX,
        copied_bytes: 0,
        seen_term: 0,
        seen_version: 0,
        zone: String::new(),
        rack: String::new(),
        sizes: Vec::new(),
        recovery_bytes_per_s: 0,
        medium: None,
        clock_ahead_ms: None,
        has_future_seals: false,
    }
}

fn three() -> Master {
    let master = master();
    for number in 1..=3 {
        master.join(&joiner(number), 1000).unwrap();
        master.heartbeat(beat(number, 1), 1000).unwrap();
    }
    master
}

fn state(master: &Master, number: u32) -> ServerState {
    master.map().servers[&number].state
}

#[test]
fn volumes_wait_for_servers_and_spread_over_groups() {
    let master = master();
    let none = master.mkdir("", "mail", None);
    assert!(matches!(none, Err(MasterError::Volume(VolumeError::Unavailable { .. }))), "{none:?}");
    let master = three();
    let mut groups: Vec<u32> = (0..16)
        .map(|number| master.mkdir("", &format!("v{number}"), None).unwrap().birth_group().0)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), 16);
}

/// Symptom: of four servers of a new cluster the fourth held nothing, because groups were assigned to the first
/// three that joined.
#[test]
fn a_new_cluster_waits_for_its_first_servers() {
    let mut meta = SqliteStore::in_memory().unwrap();
    let pool = PoolConfig { replicas: 3, min_ack: 2, groups: 64 };
    Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
    let options = MasterOptions { first_servers: Some(4), ..MasterOptions::default() };
    let master = Master::open(Box::new(meta), options).unwrap();
    for number in 1..=3 {
        master.join(&joiner(number), 1000).unwrap();
    }
    assert_eq!(master.map().groups.len(), 0);
    assert_eq!(master.status(1000).sentence, "incomplete: 3 of 4 data servers have joined");
    master.join(&joiner(4), 1000).unwrap();
    let held = master.map().groups_of(4).count();
    assert!((30..=64).contains(&held), "{held} of 64 groups");
}

#[test]
fn the_tree_of_volumes_keeps_its_rules() {
    let master = three();
    let a = master.mkdir("", "a", None).unwrap();
    let b = master.mkdir("a", "b", None).unwrap();
    assert_eq!(master.resolve("a/b").unwrap(), b);
    let taken = master.mkdir("", "a", None);
    assert!(matches!(taken, Err(MasterError::Volume(VolumeError::VolumeExists { vid })) if vid == a));
    assert!(matches!(master.begin_rmdir("a", a), Err(MasterError::Volume(VolumeError::NotEmpty))));
    assert!(matches!(master.rename("a", "a/b/c"), Err(MasterError::Volume(VolumeError::InvalidName { .. }))));
    master.rename("a/b", "c").unwrap();
    assert_eq!(master.resolve("c").unwrap(), b);
    let removing = master.begin_rmdir("", a).unwrap();
    master.rmdir(&removing).unwrap();
    assert!(matches!(master.resolve("a"), Err(MasterError::Volume(VolumeError::NotFound))));
    assert_ne!(master.mkdir("", "a", None).unwrap(), a, "an id is never used twice");
    assert_eq!(master.map_since(0, Duration::ZERO, 0).gone_volumes, [a.0]);
}

#[test]
fn a_silent_server_is_one_row_and_a_new_epoch_for_all_its_groups() {
    let master = three();
    let before = master.map();
    for number in [1, 3] {
        master.heartbeat(beat(number, 1), 12_000).unwrap();
    }
    master.tick(12_000).unwrap();
    assert_eq!(state(&master, 2), ServerState::Failed);
    let map = master.map();
    for (group, row) in &map.groups {
        let (old, new) = (before.view(&before.groups[group]), map.view(row));
        assert!(new.epoch > old.epoch);
        assert_eq!(new.members.iter().filter(|(_, role)| *role == Role::Failed).count(), 1);
    }
    assert!(master.status(12_000).sentence.starts_with("degraded: data2 down 0 s, 16 groups"));
}

#[test]
fn a_returned_server_catches_up_before_it_is_in_sync() {
    let master = three();
    master.mark_failed(2, "refused a connection", 2000).unwrap();
    let is_in_sync = ServerHeartbeat { is_in_sync: false, ..beat(2, 2) };
    master.heartbeat(is_in_sync, 3000).unwrap();
    assert_eq!(state(&master, 2), ServerState::Recovering);
    master.heartbeat(beat(2, 2), 4000).unwrap();
    assert_eq!(state(&master, 2), ServerState::Normal);
    // It restarted between two heartbeats, so it may have missed operations.
    master.heartbeat(beat(2, 3), 4500).unwrap();
    assert_eq!(state(&master, 2), ServerState::Recovering);
}

#[test]
fn an_emptied_or_older_directory_is_not_let_back_in() {
    let master = three();
    master.heartbeat(beat(2, 5), 2000).unwrap();
    let emptied = ServerHeartbeat { disk_uuid: [9; 16], ..beat(2, 6) };
    assert!(matches!(master.heartbeat(emptied, 3000), Err(MasterError::Denied(_))));
    assert!(matches!(master.heartbeat(beat(2, 4), 3000), Err(MasterError::Denied(_))));
    let events = master.events(0, 100).unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "refused").count(), 2);
}

#[test]
fn a_token_lets_in_once_and_for_ten_minutes() {
    let master = master();
    master.add_token([1; 32], 0).unwrap();
    master.take_token([1; 32], 1).unwrap();
    assert!(master.take_token([1; 32], 2).is_err());
    master.add_token([2; 32], 0).unwrap();
    assert!(master.take_token([2; 32], 10 * 60_000 + 1).is_err());
}

#[test]
fn a_new_term_continues_with_the_same_map() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("master.db");
    let mut meta = SqliteStore::open(&path).unwrap();
    let pool = PoolConfig { replicas: 1, min_ack: 1, groups: 4 };
    Master::create_cluster(&mut meta, [7; 16], pool).unwrap();
    assert!(Master::create_cluster(&mut meta, [8; 16], pool).is_err(), "the cluster exists");
    let first = Master::open(Box::new(meta), MasterOptions::default()).unwrap();
    first.join(&joiner(1), 0).unwrap();
    let vid = first.mkdir("", "a", None).unwrap();
    let map = first.map_since(0, Duration::ZERO, 5);
    drop(first);
    let second = Master::open(Box::new(SqliteStore::open(&path).unwrap()), MasterOptions::default()).unwrap();
    assert!(second.term() > map.term);
    assert_eq!(second.resolve("a").unwrap(), vid);
    assert_eq!(second.map_since(0, Duration::ZERO, 5).views, map.views);
    assert!(second.group(GroupId(1)).unwrap().members.len() == 1);
}

/// Symptom: a server that was cut off from the master alone counted as in sync at its second heartbeat, without
/// the operations that it had missed.
/// Cause: it reported its groups as in sync before it knew that it had counted as failed.
/// Fix: the report counts only from a server that uses the map with its failure.
#[test]
fn a_server_that_does_not_know_of_its_failure_is_not_in_sync() {
    let master = three();
    master.mark_failed(2, "was silent too long", 2000).unwrap();
    let before = master.map().version;
    let unaware = ServerHeartbeat { map_version: before - 1, ..beat(2, 1) };
    for _ in 0..3 {
        master.heartbeat(unaware.clone(), 3000).unwrap();
        assert_eq!(state(&master, 2), ServerState::Recovering);
    }
    let aware = ServerHeartbeat { map_version: master.map().version, ..beat(2, 1) };
    master.heartbeat(aware, 4000).unwrap();
    assert_eq!(state(&master, 2), ServerState::Normal);
}

/// Symptom: after three failures a group stayed without an in-sync member for ever, although the last in-sync
/// one was back.
/// Cause: two members that were not in sync returned first, and operations seemed able to complete in their view
/// without the third.
/// Fix: operations can complete only if a member that is up has missed nothing.
#[test]
fn the_last_member_in_sync_is_awaited() {
    let master = three();
    let group = GroupId(1);
    let missed = |disk: u32| {
        let map = master.map_since(0, Duration::ZERO, 0);
        let view = map.views.into_iter().find(|view| view.group == 1).unwrap();
        view.members.into_iter().find(|member| member.disk == disk).unwrap().missed
    };
    let epoch = || {
        let map = master.map();
        map.views_since(0).find(|view| view.group == group).unwrap().epoch
    };
    master.mark_failed(1, "is away", 2000).unwrap();
    assert!(missed(1) > 0, "the other two complete operations without it");
    master.mark_failed(2, "is away", 2000).unwrap();
    assert_eq!(missed(2), 0, "one alone completes no operation");
    master.heartbeat(beat(1, 2), 3000).unwrap();
    assert!(missed(2) > 0, "with the first, the third can");
    master.mark_failed(3, "is away", 4000).unwrap();
    master.heartbeat(beat(2, 2), 5000).unwrap();
    assert_eq!(missed(3), 0, "neither of the two is in sync");
    master.heartbeat(beat(3, 2), 6000).unwrap();
    assert_eq!(missed(3), 0);
    // A member that has resynced from the third reports that, and counts as in sync from then on.
    let old = copal_volume::group::Epoch(1);
    let none = GroupId(1 << 20);
    let refused = master.record_in_sync(1, &[(group, old), (none, epoch())]).unwrap();
    assert_eq!(refused, [group, none], "an old view, and an unknown group");
    assert!(missed(1) > 0);
    assert_eq!(master.record_in_sync(1, &[(none, epoch()), (group, epoch())]).unwrap(), [none]);
    assert_eq!(missed(1), 0);
    master.mark_failed(3, "is away", 7000).unwrap();
    assert!(missed(3) > 0, "the first is in sync by now");
}

/// Symptom: the last in-sync member of a group failed, and was in sync when it returned, although operations had
/// completed without it.
/// Cause: no operation could complete in the view without it, until another member reported in that view that it
/// was in sync. The report recorded nothing about members that were down.
/// Fix: the record of the report has them.
#[test]
fn a_report_of_a_resynced_member_records_the_members_that_are_down() {
    let master = three();
    let group = GroupId(1);
    let missed = |master: &Master, disk: u32| master.map().missed.get(&(group, disk)).copied();
    let epoch = || {
        let map = master.map();
        map.view(&map.groups[&group]).epoch
    };
    for disk in [1, 2] {
        master.mark_failed(disk, "is away", 2000).unwrap();
        let returned = ServerHeartbeat { is_in_sync: false, ..beat(disk as u8, 2) };
        master.heartbeat(returned, 3000).unwrap();
    }
    master.mark_failed(3, "is away", 4000).unwrap();
    assert_eq!(missed(&master, 3), None, "neither of the two is in sync");
    let failed_in = epoch();
    assert_eq!(master.record_in_sync(1, &[(group, failed_in)]).unwrap(), []);
    assert_eq!((missed(&master, 1), epoch()), (None, failed_in), "the view is the same");
    assert!(missed(&master, 2).is_some(), "it resyncs from the first");
    let recorded = missed(&master, 3).unwrap();
    assert!(recorded >= failed_in.0, "operations of the present view complete without it");
    let kept = master.state.lock().tables.missed_members().unwrap();
    assert!(kept.contains(&((group, 3), recorded)), "the next master has it too");
    master.heartbeat(beat(3, 2), 5000).unwrap();
    assert!(missed(&master, 3).is_some_and(|missed| missed < epoch().0), "a snapshot of this view suffices");
}

/// Sends a heartbeat of each present server; those in `full_hosts` take no operation.
fn beat_with_full_hosts(master: &Master, present: &[u8], full_hosts: &[u8], now_ms: u64) {
    for &number in present {
        let is_host_full = full_hosts.contains(&number);
        let heartbeat = ServerHeartbeat { is_full: is_host_full, is_host_full, ..beat(number, 1) };
        master.heartbeat(heartbeat, now_ms).unwrap();
    }
    master.tick(now_ms).unwrap();
}

fn states(master: &Master) -> [ServerState; 3] {
    let map = master.map();
    [1, 2, 3].map(|number| map.server(number).unwrap().state)
}

/// Symptom: writes of a group waited for a member with a full host until its next start (VOL-45).
/// Cause: it counted as up.
/// Fix: its groups work without it from its heartbeat to its next boot.
#[test]
fn a_server_whose_host_is_full_counts_as_away_until_its_next_boot() {
    use ServerState::{Failed, Normal, Recovering};
    let master = three();
    beat_with_full_hosts(&master, &[1, 2, 3], &[2], 2000);
    assert_eq!(states(&master), [Normal, Failed, Normal]);
    let status = master.status(2000);
    let sentence = &status.sentence;
    let advice =
        "data2 takes no operations, since its host has no space left; free some there, then start it again";
    assert!(
        sentence.starts_with("degraded: data2 takes no operations,") && sentence.contains(advice),
        "{sentence}"
    );
    let server = &status.servers[1];
    assert!(server.host_full && server.full, "{server:?}");
    // The others are too few now, but it could not even enter a view that has it.
    beat_with_full_hosts(&master, &[1, 2], &[2], 13_000);
    assert_eq!(states(&master), [Normal, Failed, Failed]);
    beat_with_full_hosts(&master, &[1, 2, 3], &[2], 14_000);
    master.heartbeat(beat(2, 2), 15_000).unwrap();
    assert_eq!(states(&master)[1], Recovering);
    assert!(!master.status(15_000).servers[1].full);
    let events = master.events(0, 100).unwrap();
    let of_data2 = events.iter().filter(|event| event.text.contains("data2"));
    let of_data2: Vec<&str> = of_data2.map(|event| event.text.as_str()).collect();
    assert_eq!(
        of_data2[1..],
        [
            "the host of data2 has no space left: its groups go on without it",
            advice,
            "data2 is back and catches up",
            "data2 takes new files again",
        ]
    );
}

/// If more hosts are full than groups can do without, the remaining servers do not count as down, because they
/// still serve reads.
#[test]
fn a_server_that_its_groups_need_stays_though_its_host_is_full() {
    use ServerState::{Failed, Normal};
    let master = three();
    beat_with_full_hosts(&master, &[1, 2, 3], &[1, 2, 3], 2000);
    assert_eq!(states(&master), [Failed, Normal, Normal]);
    let blocked = master.status(2000).recovery.blocked;
    for (at, name) in ["data1", "data2", "data3"].into_iter().enumerate() {
        assert!(blocked[at].starts_with(&format!("{name} takes no operations")), "{blocked:?}");
    }
}
