//! The conformance suite over a private server, and cases of masters that share a database.

use super::*;
use crate::tables::conformance::{POOL, Subject, founded, holder, run, server};
use crate::{MetaStore, VolumePlace};
use copal_testkit::MariaDb;
use copal_volume::{VolumeId, group::GroupId};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    sync::{Arc, Mutex, Weak},
};

/// One server for all tests that run at the same time.
static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());

struct Server {
    maria: MariaDb,
    databases: AtomicU32,
    _scratch: tempfile::TempDir,
}

struct Database {
    server: Arc<Server>,
    url: String,
}

impl Database {
    fn new() -> Database {
        let mut shared = SERVER.lock().unwrap();
        let server = shared.upgrade().unwrap_or_else(|| {
            let scratch = tempfile::tempdir().unwrap();
            Arc::new(Server {
                maria: MariaDb::start(scratch.path(), 32).unwrap(),
                databases: AtomicU32::new(0),
                _scratch: scratch,
            })
        });
        *shared = Arc::downgrade(&server);
        drop(shared);
        let name = format!("copal{}", server.databases.fetch_add(1, Ordering::Relaxed));
        let mut connection = mysql::Conn::new(server.maria.url("mysql").as_str()).unwrap();
        connection.query_drop(format!("CREATE DATABASE {name}")).unwrap();
        let url = server.maria.url(&name);
        Database { server, url }
    }

    fn store(&self) -> MysqlStore {
        MysqlStore::open(&self.url).unwrap()
    }

    fn statement(&self, statement: &str) {
        let mut connection = mysql::Conn::new(self.url.as_str()).unwrap();
        connection.query_drop(statement).unwrap();
    }

    /// Lets the lease end at once, as after ten seconds without a renewal.
    fn let_lease_end(&self) {
        self.statement("UPDATE leader SET expires = '2000-01-01 00:00:00'");
    }
}

impl Subject for Database {
    fn open(&self) -> Result<Box<dyn MetaStore>, MetaError> {
        Ok(Box::new(MysqlStore::open(&self.url)?))
    }
}

fn term(lead: LeaseOutcome) -> u64 {
    match lead {
        LeaseOutcome::Mine { term } => term,
        LeaseOutcome::Theirs { left_ms } => panic!("another leads for {left_ms} ms"),
    }
}

#[test]
fn mariadb_is_a_store_of_the_master() {
    let database = Database::new();
    run(|| Box::new(Database::new()));
    drop(database);
}

#[test]
fn a_lease_that_ended_is_taken_and_the_term_grows() {
    let database = Database::new();
    drop(founded(&database));
    let (mut first, mut second) = (database.store(), database.store());
    let before = term(first.lead(holder(1)).unwrap());
    let left = second.lead(holder(2)).unwrap();
    assert!(
        matches!(left, LeaseOutcome::Theirs { left_ms } if (1..=LEASE_MS).contains(&left_ms)),
        "{left:?}"
    );
    database.let_lease_end();
    assert!(first.renew().unwrap(), "no other client has had it");
    assert!(matches!(second.lead(holder(2)).unwrap(), LeaseOutcome::Theirs { .. }));
    database.let_lease_end();
    let after = term(second.lead(holder(2)).unwrap());
    assert_eq!(after, before + 1);
    assert!(!first.renew().unwrap());
    assert!(matches!(first.lead(holder(1)).unwrap(), LeaseOutcome::Theirs { .. }));
    // The same node started again is another holder.
    database.let_lease_end();
    assert_eq!(term(first.lead(holder(3)).unwrap()), after + 1);
}

#[test]
fn a_master_that_was_paused_beyond_its_lease_changes_nothing() {
    let database = Database::new();
    let mut paused = founded(&database);
    let root = VolumeId::ROOT;
    let a = paused.mkdir(root, "a", GroupId(1), None).unwrap().unwrap();
    database.let_lease_end();
    // It continues as long as no other master has the lease.
    paused.add_event(1, "word", "text").unwrap();
    let mut next = database.store();
    let next_term = term(next.lead(holder(2)).unwrap());
    let at = VolumePlace { parent: root, name: "a", vid: a };
    let before = next.cluster().unwrap();
    let deposed: [Result<(), MetaError>; 5] = [
        paused.mkdir(root, "b", GroupId(1), None).map(|_| ()),
        paused.remove(at).map(|_| ()),
        paused.add_server(&server(1)).map(|_| ()),
        paused.change_groups(&[], &[]).map(|_| ()),
        paused.take_token([1; 32], 0).map(|_| ()),
    ];
    for outcome in deposed {
        assert!(matches!(outcome, Err(MetaError::Deposed)), "{outcome:?}");
    }
    assert_eq!(next.cluster().unwrap(), before);
    assert_eq!(next.resolve(&["b"]).unwrap(), []);
    // The term fences it: the same holder does not get in under a newer term.
    database.let_lease_end();
    let mut again = database.store();
    assert_eq!(term(again.lead(holder(1)).unwrap()), next_term + 1);
    assert!(matches!(paused.add_event(1, "word", "text"), Err(MetaError::Deposed)));
    assert!(!paused.renew().unwrap());
    again.add_event(1, "word", "text").unwrap();
}

/// An unfinished transaction of the old term locks the row of the lease. The new term begins after it, and sees
/// its changes.
#[test]
fn a_term_begins_after_unfinished_transactions_of_the_previous_one() {
    let database = Database::new();
    let mut old = founded(&database);
    old.add_event(1, "word", "text").unwrap();
    let mut between = mysql::Conn::new(database.url.as_str()).unwrap();
    database.let_lease_end();
    let mut under_way = between.start_transaction(mysql::TxOpts::default()).unwrap();
    under_way.query_drop("UPDATE leader SET beat = beat + 1 WHERE id = 1").unwrap();
    under_way.query_drop("UPDATE cluster SET map_version = 77 WHERE id = 1").unwrap();
    let mut next = database.store();
    let taking = std::thread::spawn(move || {
        let next_term = term(next.lead(holder(2)).unwrap());
        (next_term, next.cluster().unwrap().unwrap().map_version)
    });
    assert!(!taking.is_finished());
    under_way.commit().unwrap();
    let (_, map_version) = taking.join().unwrap();
    assert_eq!(map_version, 77);
}

#[test]
fn a_transaction_that_meets_a_deadlock_is_run_again_as_a_whole() {
    let database = Database::new();
    let mut store = founded(&database);
    let root = VolumeId::ROOT;
    // This transaction locks the group of the new volume, and then requests the lease that the store's
    // transaction locks. The server undoes the one that has changed less.
    let mut other = mysql::Conn::new(database.url.as_str()).unwrap();
    let mut holding = other.start_transaction(mysql::TxOpts::default()).unwrap();
    for group in 1..=8 {
        let touch = format!("UPDATE vgroup SET version = version + 1 WHERE gid = {group}");
        holding.query_drop(touch).unwrap();
    }
    let made = std::thread::spawn(move || {
        let made = store.mkdir(root, "a", GroupId(1), None);
        (store, made)
    });
    // Another connection observes that the store's transaction waits for the group, so the order is certain.
    // The server refreshes these tables only after a tenth of a second without a query.
    let name = database.url.rsplit('/').next().unwrap();
    let mut look = mysql::Conn::new(database.server.maria.url("mysql").as_str()).unwrap();
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN information_schema.processlist
         ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = '{name}'"
    );
    let is_waiting = (0..20).any(|_| {
        look.query_drop("DO SLEEP(0.15)").unwrap();
        look.query_first::<u64, _>(&waits).unwrap() == Some(1)
    });
    assert!(is_waiting);
    holding.query_drop("UPDATE leader SET beat = beat + 1 WHERE id = 1").unwrap();
    holding.commit().unwrap();
    let (mut store, made) = made.join().unwrap();
    let vid = made.unwrap().unwrap();
    assert_eq!(store.volumes_by_group().unwrap()[0], (GroupId(1), 1), "it took one number");
    assert_eq!(store.resolve(&["a"]).unwrap()[0].vid, vid);
}

#[test]
fn a_broken_connection_is_made_again() {
    let database = Database::new();
    let mut store = founded(&database);
    for _ in 0..2 {
        let name = database.url.rsplit('/').next().unwrap();
        let mut look = mysql::Conn::new(database.server.maria.url("mysql").as_str()).unwrap();
        let ids = format!("SELECT id FROM information_schema.processlist WHERE db = '{name}'");
        for id in look.query::<u64, _>(ids).unwrap() {
            look.query_drop(format!("KILL {id}")).unwrap();
        }
        store.add_event(1, "word", "text").unwrap();
    }
    assert_eq!(store.events(0, 10).unwrap().len(), 2);
    assert_eq!(store.cluster().unwrap().unwrap().pool, POOL);
}

#[test]
fn tables_of_another_release_are_refused() {
    let database = Database::new();
    drop(database.store());
    database.statement("UPDATE copal_schema SET version = 9");
    let refused = MysqlStore::open(&database.url).err().unwrap();
    assert!(refused.to_string().contains("version 9"), "{refused}");
}
