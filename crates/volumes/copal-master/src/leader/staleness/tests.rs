use super::*;
use crate::{Holder, Joiner, MasterOptions, Opened, Pool, SqliteStore, back_up, put_back};
use std::path::Path;

const POOL: Pool = Pool { replicas: 3, min_ack: 2, groups: 4 };

fn open(database: &Path, after_restore: bool) -> Mastered<Master> {
    let store = Box::new(SqliteStore::open(database)?);
    let options = MasterOptions { after_restore, ..MasterOptions::default() };
    let drawn = Holder([1; 24]);
    match Master::open_as(store, drawn, options)? {
        Opened::Leads(master) => Ok(*master),
        Opened::Follows { .. } => unreachable!("one process has the file"),
    }
}

fn founded(database: &Path, servers: u8) -> Master {
    let mut store = SqliteStore::open(database).unwrap();
    Master::found(&mut store, [7; 16], POOL).unwrap();
    drop(store);
    let master = open(database, false).unwrap();
    for number in 1..=servers {
        master
            .join(
                &Joiner {
                    name: format!("data{number}"),
                    address: format!("127.0.0.1:740{number}"),
                    server_uuid: [number; 16],
                    disk_uuid: [number + 100; 16],
                    capacity_bytes: 1 << 30,
                    zone: String::new(),
                    rack: String::new(),
                },
                1000,
            )
            .unwrap();
    }
    master
}

/// What a server says that was whole in `epoch` in all groups.
fn seen(master: &Master, disk: u32, epoch: u64) -> SeenBy {
    let map = master.map();
    let groups = map.groups_of(disk).map(|row| (row.group, Epoch(epoch)));
    SeenBy { disk, term: master.term(), version: master.map().version, groups: groups.collect() }
}

#[test]
fn who_is_behind_leads_neither_now_nor_when_it_is_started_again() {
    let scratch = tempfile::tempdir().unwrap();
    let database = scratch.path().join("master.db");
    let master = founded(&database, 3);
    let mut told = seen(&master, 2, 3);
    master.check_age(std::slice::from_ref(&told)).unwrap();
    told.version += 1;
    let refused = master.check_age(&[told]).unwrap_err();
    assert!(matches!(&refused, MasterError::Older(_)), "{refused}");
    assert!(refused.to_string().contains("data2 has heard of reign"), "{refused}");
    assert!(refused.to_string().contains("--after-restore"), "{refused}");
    assert!(master.is_older());
    drop(master);
    // Each start begins a new term: by that alone it would be ahead in the end.
    for _ in 0..3 {
        assert!(matches!(open(&database, false), Err(MasterError::Older(_))));
    }
    assert!(open(&database, true).is_ok());
}

#[test]
fn a_copy_that_was_put_back_leads_only_where_that_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(founded(&database, 3));
    back_up(&database, &kept).unwrap();
    put_back(&kept, &database, &[], 5).unwrap();
    let refused = open(&database, false).map(drop).unwrap_err();
    assert!(refused.to_string().contains("a copy that was put back"), "{refused}");
    let master = open(&database, true).unwrap();
    let all: Vec<SeenBy> = (1..=3).map(|disk| seen(&master, disk, 3)).collect();
    let (version, term) = (master.map().version, master.term());
    let master = master.rise(&all, 10).unwrap();
    assert!(master.map().version > version && master.term() > term);
    assert_eq!(master.map().missed.len(), 0, "all were whole as lately as the others");
    drop(master);
    open(&database, false).unwrap();
}

#[test]
fn who_does_not_answer_or_was_whole_earlier_takes_everything_over() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 3);
    let heard = [SeenBy { version: 1 << 40, term: 1 << 35, ..seen(&master, 1, 9) }, seen(&master, 2, 8)];
    let master = master.rise(&heard, 10).unwrap();
    assert!(master.map().version > 1 << 40 && master.term() > 1 << 35);
    let map = master.map();
    let lacking: Vec<u32> = map.missed.keys().map(|(_, disk)| *disk).collect();
    assert_eq!(lacking.iter().filter(|disk| **disk == 1).count(), 0);
    assert_eq!(lacking.iter().filter(|disk| **disk == 2).count(), 4);
    assert_eq!(lacking.iter().filter(|disk| **disk == 3).count(), 4);
    assert_eq!(map.server(3).unwrap().state, ServerState::Failed);
    // Newer than any epoch in which they were whole: they go by it.
    assert!(map.missed.values().all(|version| *version > 1 << 40));
}

/// Symptom: after a copy from before a move was put back, the member that had left its group came back with
/// nothing, and counted as whole, since nothing was known to be missing. Cause: the tables alone said who is
/// a member and who lacks something. Fix: the disks say what they hold, and the one that holds a group is its
/// member.
#[test]
fn a_group_that_moved_after_the_copy_was_made_stays_where_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 4);
    let map = master.map();
    let row = map.groups.values().next().unwrap().clone();
    let (left, others) = (row.members[0].0, [row.members[1].0, row.members[2].0]);
    let came = (1..=4).find(|disk| row.members.iter().all(|(member, _)| member != disk)).unwrap();
    let heard = (1..=4).map(|disk| {
        let mut seen = seen(&master, disk, 20);
        seen.groups.retain(|(group, _)| *group != row.group || disk != left);
        if disk == came {
            seen.groups.push((row.group, Epoch(20)));
        }
        seen
    });
    let heard: Vec<SeenBy> = heard.collect();
    let master = master.rise(&heard, 10).unwrap();
    let now = master.map().groups[&row.group].clone();
    let mut expected = vec![came, others[0], others[1]];
    expected.sort_unstable();
    let members: Vec<u32> = now.members.iter().map(|(disk, _)| *disk).collect();
    assert_eq!(members, expected);
    assert!(master.map().missed.is_empty());
}

#[test]
fn a_heartbeat_tells_it_too() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 3);
    let beat = |seen_term, seen_version| crate::Beat { seen_term, seen_version, ..crate::tests::beat(1, 1) };
    let (term, version) = (master.term(), master.map().version);
    master.beat(beat(term, version), 2000).unwrap();
    let refused = master.beat(beat(term, master.map().version + 1), 2000);
    assert!(matches!(refused, Err(MasterError::Older(_))));
    assert!(master.is_older());
    let refused = master.beat(beat(term + 1, 0), 2000);
    assert!(matches!(refused, Err(MasterError::Older(_))));
}
