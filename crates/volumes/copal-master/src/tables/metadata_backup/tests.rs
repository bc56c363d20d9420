use super::*;
use crate::{LeaseHolder, MetaStore, PoolConfig, SqliteStore};
use copal_volume::{VolumeId, group::GroupId};

const POOL: PoolConfig = PoolConfig { replicas: 3, min_ack: 2, groups: 4 };
const HOLDER: LeaseHolder = LeaseHolder([1; 24]);

/// A database that a master has open, with a volume below another one.
fn ruled(path: &Path) -> (SqliteStore, VolumeId) {
    let mut store = SqliteStore::open(path).unwrap();
    store.create_cluster([7; 16], POOL).unwrap();
    store.lead(HOLDER).unwrap();
    let mail = store.mkdir(VolumeId::ROOT, "mail", GroupId(1), Some(1 << 20)).unwrap().unwrap();
    store.mkdir(mail, "old", GroupId(2), None).unwrap().unwrap();
    (store, mail)
}

#[test]
fn a_copy_is_made_while_a_master_rules_and_its_successor_gives_no_number_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    let (mut store, _) = ruled(&database);
    let first = back_up_tables(&database, &kept).unwrap();
    assert_eq!((first.volumes, first.servers), (2, 0));
    // Given after the copy was made, so it must never be given again.
    let later = store.mkdir(VolumeId::ROOT, "later", GroupId(1), Some(1)).unwrap().unwrap();
    let term = store.cluster().unwrap().unwrap().term;
    drop(store);

    let put = restore_tables(&kept, &database, &[], 0).unwrap();
    assert_eq!(put.volumes, 2);
    assert!(scratch.path().join("master.db.replaced").exists());
    let mut store = SqliteStore::open(&database).unwrap();
    let cluster = store.cluster().unwrap().unwrap();
    assert!(cluster.map_version > first.map_version + 1000 && cluster.term > term);
    store.lead(HOLDER).unwrap();
    let next = store.mkdir(VolumeId::ROOT, "next", GroupId(1), None).unwrap().unwrap();
    assert!(next.0 > later.0, "{next:?} after {later:?}");
    drop(store);
    assert_eq!(check_tables(&database).unwrap(), Vec::<String>::new());
}

#[test]
fn a_present_file_is_not_overwritten_and_a_file_that_is_no_database_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(ruled(&database));
    std::fs::write(&kept, "mine").unwrap();
    assert!(matches!(back_up_tables(&database, &kept), Err(MetadataBackupError::System { .. })));
    assert_eq!(std::fs::read(&kept).unwrap(), b"mine");
    assert!(restore_tables(&kept, &database, &[], 0).is_err());
    assert!(SqliteStore::open(&database).unwrap().cluster().unwrap().is_some());
}

#[test]
fn each_disagreement_of_the_tables_is_named() {
    let broken = [
        ("INSERT INTO member VALUES (99, 1, 'full')", "group 99, which does not exist"),
        ("INSERT INTO member VALUES (1, 8, 'full')", "disk 8 is a member, but belongs to no server"),
        ("INSERT INTO member VALUES (1, 8, 'full')", "group 1 has 1 full members"),
        ("INSERT INTO member VALUES (1, 8, 'full')", "group 2 has no members"),
        ("UPDATE vgroup SET version = 1000 WHERE gid = 3", "group 3 is newer than the map"),
        ("INSERT INTO dir VALUES (0, 'twin', (SELECT min(vid) FROM dir), 0)", "has several names"),
        ("INSERT INTO dir VALUES (0, 'odd', 9 << 44, 0)", "was born in a group that does not exist"),
        ("UPDATE vgroup SET next_volume = 1", "would be given again"),
        ("INSERT INTO gone_vol SELECT vid, 1 FROM dir", "has a name, but was removed"),
        ("DELETE FROM dir WHERE name = CAST('mail' AS BLOB)", "no path leads to volume"),
        ("DELETE FROM dir WHERE name = CAST('mail' AS BLOB)", "a quota refers to volume"),
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
        assert_eq!(check_tables(&database).unwrap(), Vec::<String>::new());
        Connection::open(&database).unwrap().execute(change, []).unwrap();
        let found = check_tables(&database).unwrap();
        assert!(found.iter().any(|found| found.contains(expected)), "{change}: {found:?}");
        let kept = scratch.path().join("kept");
        assert!(
            matches!(back_up_tables(&database, &kept), Err(MetadataBackupError::Damaged { .. })),
            "{change}"
        );
        assert!(!kept.exists());
    }
}

#[test]
fn failed_servers_have_missed_operations_and_an_unknown_one_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let (database, kept) = (scratch.path().join("master.db"), scratch.path().join("kept"));
    drop(ruled(&database));
    let tables = Connection::open(&database).unwrap();
    for disk in 1..=3 {
        let server = "INSERT INTO server VALUES (?1, 'data' || ?1, 'a', randomblob(16), randomblob(16), 'N', 1, 1, 0, 0, 0)";
        tables.execute(server, [disk]).unwrap();
        tables.execute("INSERT INTO member SELECT gid, ?1, 'full' FROM vgroup", [disk]).unwrap();
    }
    drop(tables);
    back_up_tables(&database, &kept).unwrap();
    let missing = restore_tables(&kept, &database, &["data9".to_owned()], 5);
    assert!(matches!(missing, Err(MetadataBackupError::NoServer { name, .. }) if name == "data9"));
    assert!(!scratch.path().join("master.db.replaced").exists());
    restore_tables(&kept, &database, &["data2".to_owned()], 5).unwrap();
    let mut store = SqliteStore::open(&database).unwrap();
    let version = store.cluster().unwrap().unwrap().map_version;
    let missed = store.missed_members().unwrap();
    assert_eq!(missed.len(), 4);
    assert!(missed.iter().all(|((_, disk), since)| *disk == 2 && *since == version), "{missed:?}");
    let servers = store.servers().unwrap();
    let failed: Vec<&str> =
        servers.iter().filter(|server| server.state.is_down()).map(|server| &*server.name).collect();
    assert_eq!(failed, ["data2"]);
}

/// Files of a killed master: the database, and changes that only its log has.
fn killed(database: &Path) -> Vec<String> {
    let (mut store, _) = ruled(database);
    let mut made = Vec::new();
    for number in 0..40 {
        let name = format!("later-{number}-{}", "x".repeat(180));
        store.mkdir(VolumeId::ROOT, &name, GroupId(1), None).unwrap().unwrap();
        made.push(name);
    }
    // Closing would empty the log.
    let ends = ["", "-wal", "-shm"];
    for end in ends {
        std::fs::copy(beside(database, end), beside(database, &format!(".dead{end}"))).unwrap();
    }
    drop(store);
    for end in ends {
        std::fs::rename(beside(database, &format!(".dead{end}")), beside(database, end)).unwrap();
    }
    made
}

/// Path of a copy of a database with two volumes.
fn copy_of_two(scratch: &Path) -> PathBuf {
    let (other, kept) = (scratch.join("other.db"), scratch.join("kept"));
    drop(ruled(&other));
    back_up_tables(&other, &kept).unwrap();
    kept
}

fn volumes(database: &Path) -> Result<i64, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let query = "SELECT count(*) FROM dir";
    Connection::open_with_flags(database, flags)?.query_row(query, [], |row| row.get(0))
}

/// Symptom: after `copal meta restore` beside the log of a lost database, the database was malformed, or had
/// changes that the copy lacked, without the raised versions.
/// Cause: SQLite applies the log beside a database to it, and the log was moved away only together with a
/// database.
/// Fix: logs are always moved away first. Also: a copy is not made beside a log; a start does not remove the
/// log of a lost database; the log of an unfinished copy is removed with it.
#[test]
fn a_copy_is_not_put_beside_the_log_of_another_database() {
    for lost in [true, false] {
        let scratch = tempfile::tempdir().unwrap();
        let database = scratch.path().join("master.db");
        let kept = copy_of_two(scratch.path());
        let made = killed(&database);
        if lost {
            std::fs::remove_file(&database).unwrap();
            let refused = SqliteStore::open(&database).err().unwrap().to_string();
            assert!(refused.contains("copal meta restore"), "{refused}");
        }
        let copied = beside(&database, "-wal").metadata().unwrap().len();
        restore_tables(&kept, &database, &[], 0).unwrap();
        assert_eq!(beside(&database, ".replaced-wal").metadata().unwrap().len(), copied);
        assert!(!beside(&database, "-wal").exists(), "lost: {lost}");
        assert_eq!(check_tables(&database).unwrap(), Vec::<String>::new());
        assert_eq!(volumes(&database).unwrap(), 2, "lost: {lost}");
        let cluster = SqliteStore::open(&database).unwrap().cluster().unwrap().unwrap();
        assert!(cluster.term > RAISED_VERSIONS, "its counters are raised");
        if !lost {
            let old = volumes(&beside(&database, ".replaced")).unwrap();
            assert_eq!(old, 2 + made.len() as i64, "the old database is kept with its log");
        }
    }
}

#[test]
fn a_rollback_journal_and_the_log_of_a_killed_restore_are_in_no_new_database() {
    let scratch = tempfile::tempdir().unwrap();
    let database = scratch.path().join("master.db");
    let kept = copy_of_two(scratch.path());
    for end in ["-journal", ".part", ".part-wal", ".part-journal", ".part-shm"] {
        std::fs::write(beside(&database, end), [0xd9; 4096]).unwrap();
    }
    restore_tables(&kept, &database, &[], 0).unwrap();
    assert_eq!(volumes(&database).unwrap(), 2);
    assert_eq!(std::fs::read(beside(&database, ".replaced-journal")).unwrap(), [0xd9; 4096]);
    for end in ["-journal", ".part", ".part-wal", ".part-journal", ".part-shm"] {
        assert!(!beside(&database, end).exists(), "{end}");
    }
    // A new copy is not made beside the log of an older one with the same name.
    let taken = scratch.path().join("taken");
    std::fs::write(beside(&taken, "-wal"), "old").unwrap();
    assert!(matches!(back_up_tables(&database, &taken), Err(MetadataBackupError::System { .. })));
    assert!(!taken.exists());
}

/// Lets one rename fail, and all later ones where the process dies.
struct Failing {
    fails_at: usize,
    dies: bool,
    steps: usize,
}

impl Failing {
    fn step(&mut self, work: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        self.steps += 1;
        match self.steps - 1 == self.fails_at || (self.dies && self.steps > self.fails_at) {
            true => Err(std::io::Error::other("no more")),
            false => work(),
        }
    }
}

impl FileOps for Failing {
    fn rename(&mut self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.step(|| SystemFileOps.rename(from, to))
    }

    // These tests cut no power.
    fn sync(&mut self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
}

/// At each step of a restore the process dies, or the disk refuses. Then the name of the database belongs to the
/// old one with its log, to no file, or to the new one without a log. The next restore succeeds, and no old
/// file is lost.
#[test]
fn a_restore_is_safe_at_each_step() {
    for dies in [false, true] {
        for fails_at in 0..4 {
            let scratch = tempfile::tempdir().unwrap();
            let database = scratch.path().join("master.db");
            let kept = copy_of_two(scratch.path());
            let made = killed(&database);
            let old = 2 + made.len() as i64;
            let mut failing = Failing { fails_at, dies, steps: 0 };
            restore_tables_by(&kept, &database, &[], 0, &mut failing).unwrap_err();
            assert!(failing.steps > fails_at, "a restore has four steps");
            // Checked in a copy, because SQLite changes the files that it opens.
            let look = scratch.path().join("look.db");
            for end in ["", "-wal", "-shm"] {
                let _ = std::fs::copy(beside(&database, end), beside(&look, end));
            }
            match look.exists() {
                true => assert_eq!(volumes(&look).unwrap(), old, "step {fails_at}"),
                false => assert!(dies && fails_at > 0, "an error undoes the steps before it"),
            }
            restore_tables(&kept, &database, &[], 0).unwrap();
            assert_eq!(volumes(&database).unwrap(), 2, "step {fails_at}");
            let replaced = beside(&database, ".replaced");
            assert_eq!(volumes(&replaced).unwrap(), old, "step {fails_at}: nothing old is lost");
        }
    }
    // A second restore keeps the files that the first has moved away.
    let scratch = tempfile::tempdir().unwrap();
    let database = scratch.path().join("master.db");
    let kept = copy_of_two(scratch.path());
    for _ in 0..3 {
        restore_tables(&kept, &database, &[], 0).unwrap();
    }
    assert!(beside(&database, ".replaced").exists() && beside(&database, ".replaced-2").exists());
}

/// Symptom: with a umask of 022 every user of the machine could read the database of a master, its log and its
/// lock, and could take the lock. A copy with a name that is not UTF-8 was refused.
/// Cause: the umask determined the modes; the name was converted to text.
/// Fix: the mode is always 0600, also for files of an earlier release; the bytes of the name are used.
#[test]
fn a_database_and_its_copies_are_their_owners_alone() {
    use std::os::unix::{ffi::OsStrExt, fs::PermissionsExt};
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join(std::ffi::OsStr::from_bytes(b"not \xff UTF-8"));
    std::fs::create_dir(&directory).unwrap();
    let (database, kept) = (directory.join("master.db"), directory.join("kept"));
    let lock = beside(&database, ".lock");
    // With the modes of an earlier release.
    for path in [&database, &lock] {
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let (store, _) = ruled(&database);
    back_up_tables(&database, &kept).unwrap();
    let logs = ["-wal", "-shm"].map(|end| beside(&database, end));
    for path in [&database, &lock, &kept, &logs[0], &logs[1]] {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    drop(store);
    restore_tables(&kept, &database, &[], 0).unwrap();
    assert_eq!(volumes(&database).unwrap(), 2);
    let mode = database.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

/// Symptom: no test noticed files that were never synced. The sync of a device that cannot be synced must
/// fail.
#[test]
fn the_files_of_the_system_are_synced() {
    assert!(SystemFileOps.sync(Path::new("/dev/null")).is_err());
    let directory = tempfile::tempdir().unwrap();
    SystemFileOps.sync(directory.path()).unwrap();
}
