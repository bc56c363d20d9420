use super::*;
use crate::{Holder, MetaStore, Pool, SqliteStore};
use copal_volume::{VolumeId, group::GroupId};

const POOL: Pool = Pool {
    replicas: 3,
    min_ack: 2,
    groups: 4,
};
const HOLDER: Holder = Holder([1; 24]);

/// A database that a master has open, with a volume below another.
fn ruled(path: &Path) -> (SqliteStore, VolumeId) {
    let mut store = SqliteStore::open(path).unwrap();
    store.found([7; 16], POOL).unwrap();
    store.lead(HOLDER).unwrap();
    let mail = store
        .mkdir(VolumeId::ROOT, "mail", GroupId(1), Some(1 << 20))
        .unwrap()
        .unwrap();
    store.mkdir(mail, "old", GroupId(2), None).unwrap().unwrap();
    (store, mail)
}

#[test]
fn a_copy_is_made_while_a_master_rules_and_its_successor_gives_no_number_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    let (mut store, _) = ruled(&database);
    let first = back_up(&database, &kept).unwrap();
    assert_eq!((first.volumes, first.servers), (2, 0));
    // Given after the copy was made: nobody may ever get it again.
    let later = store
        .mkdir(VolumeId::ROOT, "later", GroupId(1), Some(1))
        .unwrap()
        .unwrap();
    let term = store.cluster().unwrap().unwrap().term;
    drop(store);

    let put = put_back(&kept, &database, &[], 0).unwrap();
    assert_eq!(put.volumes, 2);
    assert!(scratch.path().join("master.db.replaced").exists());
    let mut store = SqliteStore::open(&database).unwrap();
    let cluster = store.cluster().unwrap().unwrap();
    assert!(cluster.map_version > first.map_version + 1000 && cluster.term > term);
    store.lead(HOLDER).unwrap();
    let next = store
        .mkdir(VolumeId::ROOT, "next", GroupId(1), None)
        .unwrap()
        .unwrap();
    assert!(next.0 > later.0, "{next:?} after {later:?}");
    drop(store);
    assert_eq!(check(&database).unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_that_is_there_is_not_written_over_and_what_is_no_database_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(ruled(&database));
    std::fs::write(&kept, "mine").unwrap();
    assert!(matches!(back_up(&database, &kept), Err(KeepError::System { .. })));
    assert_eq!(std::fs::read(&kept).unwrap(), b"mine");
    assert!(put_back(&kept, &database, &[], 0).is_err());
    assert!(SqliteStore::open(&database).unwrap().cluster().unwrap().is_some());
}

#[test]
fn each_disagreement_of_the_tables_is_named() {
    let broken = [
        (
            "INSERT INTO member VALUES (99, 1, 'full')",
            "group 99, which is not there",
        ),
        (
            "INSERT INTO member VALUES (1, 8, 'full')",
            "disk 8 is a member and of no server",
        ),
        (
            "INSERT INTO member VALUES (1, 8, 'full')",
            "group 1 has 1 full members",
        ),
        (
            "INSERT INTO member VALUES (1, 8, 'full')",
            "group 2 has no members",
        ),
        (
            "UPDATE vgroup SET version = 1000 WHERE gid = 3",
            "group 3 is newer than the map",
        ),
        (
            "INSERT INTO dir VALUES (0, 'twin', (SELECT min(vid) FROM dir), 0)",
            "has several names",
        ),
        (
            "INSERT INTO dir VALUES (0, 'odd', 9 << 44, 0)",
            "was born in a group that is not there",
        ),
        ("UPDATE vgroup SET next_volume = 1", "would be given again"),
        (
            "INSERT INTO gone_vol SELECT vid, 1 FROM dir",
            "has a name and is gone",
        ),
        (
            "DELETE FROM dir WHERE name = CAST('mail' AS BLOB)",
            "no path leads to volume",
        ),
        (
            "DELETE FROM dir WHERE name = CAST('mail' AS BLOB)",
            "a quota is of volume",
        ),
        ("DELETE FROM cluster", "there are 0 clusters"),
        (
            "INSERT INTO server VALUES (1, 'data1', 'a', x'01', x'02', 'Z', 0, 1, 0, 0, 0)",
            "the row of server data1",
        ),
    ];
    for (change, expected) in broken {
        let scratch = tempfile::tempdir().unwrap();
        let database = scratch.path().join("master.db");
        drop(ruled(&database));
        assert_eq!(check(&database).unwrap(), Vec::<String>::new());
        Connection::open(&database).unwrap().execute(change, []).unwrap();
        let found = check(&database).unwrap();
        assert!(
            found.iter().any(|found| found.contains(expected)),
            "{change}: {found:?}"
        );
        let kept = scratch.path().join("kept");
        assert!(
            matches!(back_up(&database, &kept), Err(KeepError::Damaged { .. })),
            "{change}"
        );
        assert!(!kept.exists());
    }
}

#[test]
fn who_was_away_has_missed_something_and_who_is_unknown_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(ruled(&database));
    let tables = Connection::open(&database).unwrap();
    for disk in 1..=3 {
        let server = "INSERT INTO server VALUES (?1, 'data' || ?1, 'a', randomblob(16), randomblob(16), 'N', 1, 1, 0, 0, 0)";
        tables.execute(server, [disk]).unwrap();
        tables
            .execute("INSERT INTO member SELECT gid, ?1, 'full' FROM vgroup", [disk])
            .unwrap();
    }
    drop(tables);
    back_up(&database, &kept).unwrap();
    let missing = put_back(&kept, &database, &["data9".to_owned()], 5);
    assert!(matches!(missing, Err(KeepError::NoServer { name, .. }) if name == "data9"));
    assert!(!scratch.path().join("master.db.replaced").exists());
    put_back(&kept, &database, &["data2".to_owned()], 5).unwrap();
    let mut store = SqliteStore::open(&database).unwrap();
    let version = store.cluster().unwrap().unwrap().map_version;
    let missed = store.missed().unwrap();
    assert_eq!(missed.len(), 4);
    assert!(
        missed
            .iter()
            .all(|((_, disk), since)| *disk == 2 && *since == version),
        "{missed:?}"
    );
    let servers = store.servers().unwrap();
    let failed: Vec<&str> = servers
        .iter()
        .filter(|server| server.state == crate::ServerState::Failed)
        .map(|server| &*server.name)
        .collect();
    assert_eq!(failed, ["data2"]);
}
