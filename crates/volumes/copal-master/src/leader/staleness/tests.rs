use super::*;
use crate::Master;
use crate::{
    LeaseHolder, MasterOptions, OpenedMaster, PoolConfig, ServerJoin, SqliteStore, back_up_tables,
    restore_tables,
};
use std::path::Path;

const POOL: PoolConfig = PoolConfig { replicas: 3, min_ack: 2, groups: 4 };

fn open(database: &Path, after_restore: bool) -> MasterResult<Master> {
    let store = Box::new(SqliteStore::open(database)?);
    let options = MasterOptions { after_restore, ..MasterOptions::default() };
    let drawn = LeaseHolder([1; 24]);
    match Master::open_as(store, drawn, options)? {
        OpenedMaster::Leads(master) => Ok(*master),
        OpenedMaster::Follows { .. } => unreachable!("one process has the file"),
    }
}

fn founded(database: &Path, servers: u8) -> Master {
    let mut store = SqliteStore::open(database).unwrap();
    Master::create_cluster(&mut store, [7; 16], POOL).unwrap();
    drop(store);
    let master = open(database, false).unwrap();
    for number in 1..=servers {
        master
            .join(
                &ServerJoin {
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

/// Counters of a server that was in sync in `epoch` in all groups.
fn seen(master: &Master, disk: u32, epoch: u64) -> SeenCounters {
    let map = master.map();
    let groups = map.groups_of(disk).map(|row| (row.group, Epoch(epoch)));
    SeenCounters { disk, term: master.term(), version: master.map().version, groups: groups.collect() }
}

#[test]
fn a_master_with_stale_tables_never_leads() {
    let scratch = tempfile::tempdir().unwrap();
    let database = scratch.path().join("master.db");
    let master = founded(&database, 3);
    let mut reported = seen(&master, 2, 3);
    master.check_staleness(std::slice::from_ref(&reported)).unwrap();
    reported.version += 1;
    let refused = master.check_staleness(&[reported]).unwrap_err();
    assert!(matches!(&refused, MasterError::StaleTables(_)), "{refused}");
    assert!(refused.to_string().contains("data2 has seen term"), "{refused}");
    assert!(refused.to_string().contains("--after-restore"), "{refused}");
    assert!(master.is_stale());
    drop(master);
    // Each start begins a new term. After enough starts, the term alone would look new enough.
    for _ in 0..3 {
        assert!(matches!(open(&database, false), Err(MasterError::StaleTables(_))));
    }
    assert!(open(&database, true).is_ok());
}

#[test]
fn a_restored_copy_leads_only_after_it_was_accepted() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(founded(&database, 3));
    back_up_tables(&database, &kept).unwrap();
    restore_tables(&kept, &database, &[], 5).unwrap();
    let refused = open(&database, false).map(drop).unwrap_err();
    assert!(refused.to_string().contains("a restored copy"), "{refused}");
    let master = open(&database, true).unwrap();
    let all: Vec<SeenCounters> = (1..=3).map(|disk| seen(&master, disk, 3)).collect();
    let (version, term) = (master.map().version, master.term());
    let master = master.raise_counters(&all, 10).unwrap();
    assert!(master.map().version > version && master.term() > term);
    assert_eq!(master.map().missed.len(), 0, "all were in sync in the same epoch");
    drop(master);
    open(&database, false).unwrap();
}

#[test]
fn a_member_that_is_silent_or_was_in_sync_earlier_resyncs() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 3);
    let reports =
        [SeenCounters { version: 1 << 40, term: 1 << 35, ..seen(&master, 1, 9) }, seen(&master, 2, 8)];
    let master = master.raise_counters(&reports, 10).unwrap();
    assert!(master.map().version > 1 << 40 && master.term() > 1 << 35);
    let map = master.map();
    let lacking: Vec<u32> = map.missed.keys().map(|(_, disk)| *disk).collect();
    assert_eq!(lacking.iter().filter(|disk| **disk == 1).count(), 0);
    assert_eq!(lacking.iter().filter(|disk| **disk == 2).count(), 4);
    assert_eq!(lacking.iter().filter(|disk| **disk == 3).count(), 4);
    assert_eq!(map.server(3).unwrap().state, ServerState::Failed);
    // Newer than any epoch in which they were in sync, so they resync.
    assert!(map.missed.values().all(|version| *version > 1 << 40));
}

/// Symptom: after a restore of a copy from before a move, the member that had left its group returned without
/// data and counted as in sync, because no missing operation was recorded.
/// Cause: the tables alone determined the members and the missed operations.
/// Fix: the disks report the groups that they hold, and a disk that holds a group is its member.
#[test]
fn a_group_that_moved_after_the_copy_was_made_stays_where_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 4);
    let map = master.map();
    let row = map.groups.values().next().unwrap().clone();
    let (left, others) = (row.members[0].0, [row.members[1].0, row.members[2].0]);
    let joined = (1..=4).find(|disk| row.members.iter().all(|(member, _)| member != disk)).unwrap();
    let reports = (1..=4).map(|disk| {
        let mut seen = seen(&master, disk, 20);
        seen.groups.retain(|(group, _)| *group != row.group || disk != left);
        if disk == joined {
            seen.groups.push((row.group, Epoch(20)));
        }
        seen
    });
    let reports: Vec<SeenCounters> = reports.collect();
    let master = master.raise_counters(&reports, 10).unwrap();
    let now = master.map().groups[&row.group].clone();
    let mut expected = vec![joined, others[0], others[1]];
    expected.sort_unstable();
    let members: Vec<u32> = now.members.iter().map(|(disk, _)| *disk).collect();
    assert_eq!(members, expected);
    assert!(master.map().missed.is_empty());
}

#[test]
fn a_heartbeat_reveals_stale_tables_too() {
    let scratch = tempfile::tempdir().unwrap();
    let master = founded(&scratch.path().join("master.db"), 3);
    let beat = |seen_term, seen_version| crate::ServerHeartbeat {
        seen_term,
        seen_version,
        ..crate::tests::beat(1, 1)
    };
    let (term, version) = (master.term(), master.map().version);
    master.heartbeat(beat(term, version), 2000).unwrap();
    let refused = master.heartbeat(beat(term, master.map().version + 1), 2000);
    assert!(matches!(refused, Err(MasterError::StaleTables(_))));
    assert!(master.is_stale());
    let refused = master.heartbeat(beat(term + 1, 0), 2000);
    assert!(matches!(refused, Err(MasterError::StaleTables(_))));
}
