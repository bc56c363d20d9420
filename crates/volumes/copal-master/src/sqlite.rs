//! The master's tables in SQLite: one file, one process, every commit on the disk before it is answered.
//!
//! Names are bytes, ids of fixed width; the table of volumes has neither a row id nor a second index for
//! looking them up by name, so that fifty million of them take less than the paper's 2.2 GB. One process has
//! the file, by a lock on another beside it: so the lease is its own for as long as it runs.
//! Format: docs/formats/master-sqlite.md v1

use crate::meta::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, Holder, Lead, MemberKind, Members, Meta, MetaError,
    MetaStore, Missed, Place, Pool, QuotaRow, RAISED_VERSIONS, RAISED_VOLUMES, ServerRow, ServerState,
    TaskKind, TaskRow, listed, setting,
};
use copal_volume::{
    VolumeError, VolumeId,
    group::{GroupId, Incarnation},
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::{
    collections::BTreeMap,
    fs::{File, Permissions, TryLockError},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Mode of the database and its lock.
const MODE: u32 = 0o600;

/// Version of the tables.
pub(crate) const SCHEMA_VERSION: u32 = 1;
const SCHEMA: &str = "
CREATE TABLE cluster (id INTEGER PRIMARY KEY CHECK (id = 1), uuid BLOB NOT NULL, map_version INTEGER NOT NULL,
    term INTEGER NOT NULL, replicas INTEGER NOT NULL, min_ack INTEGER NOT NULL, groups INTEGER NOT NULL);
CREATE TABLE server (disk INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, address TEXT NOT NULL,
    server_uuid BLOB NOT NULL UNIQUE, disk_uuid BLOB NOT NULL UNIQUE, state TEXT NOT NULL, version INTEGER NOT NULL,
    incarnation INTEGER NOT NULL, draining INTEGER NOT NULL, failed_since INTEGER NOT NULL, capacity INTEGER NOT NULL);
CREATE TABLE vgroup (gid INTEGER PRIMARY KEY, version INTEGER NOT NULL, next_volume INTEGER NOT NULL);
CREATE TABLE member (gid INTEGER NOT NULL, disk INTEGER NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (gid, disk))
    WITHOUT ROWID;
CREATE TABLE missed (gid INTEGER NOT NULL, disk INTEGER NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (gid, disk))
    WITHOUT ROWID;
CREATE TABLE dir (parent INTEGER NOT NULL, name BLOB NOT NULL, vid INTEGER NOT NULL, removing INTEGER NOT NULL,
    PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE TABLE removing (parent INTEGER NOT NULL, name BLOB NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE TABLE quota (vid INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, version INTEGER NOT NULL);
CREATE TABLE gone_vol (vid INTEGER PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE master (number INTEGER PRIMARY KEY AUTOINCREMENT, address TEXT NOT NULL UNIQUE);
CREATE TABLE token (hash BLOB PRIMARY KEY, ends INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE event (number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, kind TEXT NOT NULL,
    text TEXT NOT NULL);
";

/// Tables that databases made before them get when they are opened.
const ADDED: &str = "
CREATE TABLE IF NOT EXISTS client (name TEXT PRIMARY KEY, path TEXT NOT NULL, rights INTEGER NOT NULL,
    made INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task (kind TEXT NOT NULL, gid INTEGER NOT NULL, a INTEGER NOT NULL, b INTEGER NOT NULL,
    PRIMARY KEY (kind, gid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (disk INTEGER PRIMARY KEY, zone TEXT NOT NULL, rack TEXT NOT NULL);
";

/// The master's database in a file.
pub struct SqliteStore {
    connection: Connection,
    reign: Option<(Holder, u64)>,
    /// Held for as long as the store is open.
    _lock: Option<File>,
}

impl SqliteStore {
    /// Opens or makes the database at `path`.
    /// # Errors
    /// `Held`: another process has it. `Failed`: it cannot be opened, or another release wrote it.
    pub fn open(path: &Path) -> Result<SqliteStore, MetaError> {
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let failed = |error: std::io::Error| {
            MetaError::Failed(format!("{}: {error}", Path::new(&lock_path).display()))
        };
        let lock = open_private(Path::new(&lock_path)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.display().to_string();
                return Err(MetaError::Held { path });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        refuse_lost(path)?;
        make_private(path)?;
        SqliteStore::of(Connection::open(path)?, Some(lock))
    }

    /// A database in memory.
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn in_memory() -> Result<SqliteStore, MetaError> {
        SqliteStore::of(Connection::open_in_memory()?, None)
    }

    fn of(mut connection: Connection, lock: Option<File>) -> Result<SqliteStore, MetaError> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match version {
            0 => {
                let made = connection.transaction()?;
                made.execute_batch(SCHEMA)?;
                made.pragma_update(None, "user_version", SCHEMA_VERSION)?;
                made.commit()?;
            }
            SCHEMA_VERSION => {}
            other => {
                return Err(MetaError::Failed(format!(
                    "its tables have version {other}, this release knows {SCHEMA_VERSION}; use the release that wrote them"
                )));
            }
        }
        connection.execute_batch(ADDED)?;
        Ok(SqliteStore { connection, reign: None, _lock: lock })
    }

    fn in_transaction<T>(
        &mut self,
        run: impl FnOnce(&Transaction<'_>) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        self.reign.ok_or(MetaError::Deposed)?;
        let transaction = self.connection.transaction()?;
        let value = run(&transaction)?;
        transaction.commit()?;
        Ok(value)
    }

    /// The same, undone where a user's wish cannot be met.
    fn in_wish<T>(&mut self, run: impl FnOnce(&Transaction<'_>) -> Meta<T>) -> Meta<T> {
        self.reign.ok_or(MetaError::Deposed)?;
        let transaction = self.connection.transaction()?;
        let outcome = run(&transaction)?;
        if outcome.is_ok() {
            transaction.commit()?;
        }
        Ok(outcome)
    }
}

impl From<rusqlite::Error> for MetaError {
    fn from(error: rusqlite::Error) -> MetaError {
        MetaError::Failed(error.to_string())
    }
}

fn next_version(transaction: &Transaction<'_>) -> Result<u64, MetaError> {
    transaction.execute("UPDATE cluster SET map_version = map_version + 1", [])?;
    let version = transaction.query_row("SELECT map_version FROM cluster", [], |row| row.get::<_, i64>(0))?;
    Ok(version as u64)
}

fn keep_missed(transaction: &Transaction<'_>, missed: &[Missed], version: u64) -> Result<(), MetaError> {
    let mut keep = transaction.prepare_cached(
        "INSERT OR REPLACE INTO missed SELECT gid, disk, CASE kind WHEN 'joining' THEN ?3 - 1 ELSE ?3 END
         FROM member WHERE gid = ?1 AND disk = ?2",
    )?;
    for (group, disk) in missed {
        keep.execute(params![group.0, disk, version as i64])?;
    }
    Ok(())
}

fn bytes<const N: usize>(row: &Row<'_>, at: usize) -> rusqlite::Result<[u8; N]> {
    let blob: Vec<u8> = row.get(at)?;
    blob.try_into().map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, N as i64))
}

fn word<T>(row: &Row<'_>, at: usize, of: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let word: String = row.get(at)?;
    of(&word).ok_or(rusqlite::Error::IntegralValueOutOfRange(at, 0))
}

fn number(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(at)? as u64)
}

fn server(row: &Row<'_>) -> rusqlite::Result<ServerRow> {
    Ok(ServerRow {
        disk: row.get(0)?,
        name: row.get(1)?,
        address: row.get(2)?,
        server_uuid: bytes(row, 3)?,
        disk_uuid: bytes(row, 4)?,
        state: word(row, 5, ServerState::of_letter)?,
        version: number(row, 6)?,
        incarnation: Incarnation(number(row, 7)?),
        is_draining: row.get(8)?,
        failed_since_ms: number(row, 9)?,
        capacity_bytes: number(row, 10)?,
        zone: row.get(11)?,
        rack: row.get(12)?,
    })
}

/// Keeps where a server stands.
fn keep_place(transaction: &Transaction<'_>, disk: u32, server: &ServerRow) -> Result<(), MetaError> {
    transaction.execute(
        "INSERT OR REPLACE INTO place VALUES (?1, ?2, ?3)",
        params![disk, server.zone, server.rack],
    )?;
    Ok(())
}

fn dir(row: &Row<'_>) -> rusqlite::Result<DirRow> {
    let name: Vec<u8> = row.get(0)?;
    Ok(DirRow {
        name: String::from_utf8(name).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, 0))?,
        vid: VolumeId(number(row, 1)?),
        is_removing: row.get(2)?,
    })
}

/// Opens or makes a file that only its owner may open: a lock that others can open is one that they can take.
/// One of an earlier release is closed to others.
fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let file = options.mode(MODE).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// The database, and the logs that SQLite makes beside it with the same mode, are their owner's alone,
/// whatever the umask says.
fn make_private(database: &Path) -> Result<(), MetaError> {
    let failed = |error: std::io::Error| MetaError::Failed(format!("{}: {error}", database.display()));
    drop(open_private(database).map_err(failed)?);
    for end in ["-wal", "-shm", "-journal"] {
        let mut log = database.as_os_str().to_owned();
        log.push(end);
        match std::fs::set_permissions(&log, Permissions::from_mode(MODE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Refuses to make a database where the log of one lies that is lost: SQLite would remove that log.
fn refuse_lost(database: &Path) -> Result<(), MetaError> {
    if database.symlink_metadata().is_ok() {
        return Ok(());
    }
    for end in ["-wal", "-journal"] {
        let mut log = database.as_os_str().to_owned();
        log.push(end);
        let log = Path::new(&log);
        if log.symlink_metadata().is_ok() {
            return Err(MetaError::Failed(format!(
                "the database {} is lost, and its log {} is there; put a copy back with `copal meta restore`, which \
                 keeps the log, or move it away",
                database.display(),
                log.display()
            )));
        }
    }
    Ok(())
}

impl MetaStore for SqliteStore {
    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError> {
        let row = self.connection.query_row(
            "SELECT uuid, map_version, term, replicas, min_ack, groups FROM cluster",
            [],
            |row| {
                Ok(ClusterRow {
                    uuid: bytes(row, 0)?,
                    map_version: number(row, 1)?,
                    term: number(row, 2)?,
                    pool: Pool { replicas: row.get(3)?, min_ack: row.get(4)?, groups: row.get(5)? },
                })
            },
        );
        Ok(row.optional()?)
    }

    fn found(&mut self, uuid: [u8; 16], pool: Pool) -> Result<(), MetaError> {
        let transaction = self.connection.transaction()?;
        {
            transaction.execute(
                "INSERT INTO cluster VALUES (1, ?1, 1, 0, ?2, ?3, ?4)",
                params![uuid, pool.replicas, pool.min_ack, pool.groups],
            )?;
            let mut add = transaction.prepare("INSERT INTO vgroup VALUES (?1, 0, 1)")?;
            for group in 1..=pool.groups {
                add.execute([group])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn lead(&mut self, holder: Holder) -> Result<Lead, MetaError> {
        let next = "UPDATE cluster SET term = term + 1 RETURNING term";
        let term = self.connection.query_row(next, [], |row| number(row, 0))?;
        self.reign = Some((holder, term));
        Ok(Lead::Mine { term })
    }

    fn renew(&mut self) -> Result<bool, MetaError> {
        Ok(self.reign.is_some())
    }

    fn has_lease(&self) -> bool {
        // The file is one process' own.
        false
    }

    fn raise(&mut self, version: u64, term: u64) -> Result<u64, MetaError> {
        let (holder, _) = self.reign.ok_or(MetaError::Deposed)?;
        let raised = self.in_transaction(|transaction| {
            transaction.execute(
                "UPDATE cluster SET map_version = max(map_version, ?1) + ?3, term = max(term, ?2) + ?3",
                params![version as i64, term as i64, RAISED_VERSIONS as i64],
            )?;
            transaction
                .execute("UPDATE vgroup SET next_volume = next_volume + ?1", [RAISED_VOLUMES as i64])?;
            transaction.execute("DELETE FROM token", [])?;
            transaction.execute("DELETE FROM setting WHERE name = ?1", [setting::OLDER])?;
            Ok(transaction.query_row("SELECT term FROM cluster", [], |row| number(row, 0))?)
        })?;
        self.reign = Some((holder, raised));
        Ok(raised)
    }

    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError> {
        let mut select = self.connection.prepare("SELECT name, value FROM setting")?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            match value {
                Some(value) => {
                    let keep = "INSERT OR REPLACE INTO setting VALUES (?1, ?2)";
                    transaction.execute(keep, params![name, value])?
                }
                None => transaction.execute("DELETE FROM setting WHERE name = ?1", [name])?,
            };
            Ok(())
        })
    }

    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError> {
        let select = "SELECT kind, gid, a, b FROM task ORDER BY kind, gid";
        let mut select = self.connection.prepare(select)?;
        let rows = select.query_map([], |row| {
            let kind: String = row.get(0)?;
            TaskRow::of_columns(&kind, row.get(1)?, row.get(2)?, row.get(3)?)
                .ok_or(rusqlite::Error::IntegralValueOutOfRange(0, 0))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            for (kind, group) in forget {
                let forget = "DELETE FROM task WHERE kind = ?1 AND gid = ?2";
                transaction.execute(forget, params![kind.word(), group.0])?;
            }
            for task in keep {
                let (kind, group, a, b) = task.columns();
                let keep = "INSERT OR REPLACE INTO task VALUES (?1, ?2, ?3, ?4)";
                transaction.execute(keep, params![kind, group, a, b])?;
            }
            Ok(())
        })
    }

    fn masters(&mut self) -> Result<Vec<String>, MetaError> {
        let mut select = self.connection.prepare("SELECT address FROM master ORDER BY number")?;
        let rows = select.query_map([], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn add_master(&mut self, address: &str) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            let add = "INSERT OR IGNORE INTO master (address) VALUES (?1)";
            transaction.execute(add, params![address])?;
            Ok(())
        })
    }

    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError> {
        let mut select = self.connection.prepare(
            "SELECT server.*, COALESCE(place.zone, ''), COALESCE(place.rack, '') FROM server
             LEFT JOIN place ON place.disk = server.disk ORDER BY server.disk",
        )?;
        let rows = select.query_map([], server)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn add_server(&mut self, new: &ServerRow) -> Result<(u32, u64), MetaError> {
        self.in_transaction(|transaction| {
            let version = next_version(transaction)?;
            transaction.execute(
                "INSERT INTO server VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                params![
                    new.name,
                    new.address,
                    new.server_uuid,
                    new.disk_uuid,
                    new.state.letter(),
                    version as i64,
                    new.incarnation.0 as i64,
                    new.is_draining,
                    new.failed_since_ms as i64,
                    new.capacity_bytes as i64
                ],
            )?;
            let disk = transaction.last_insert_rowid() as u32;
            keep_place(transaction, disk, new)?;
            Ok((disk, version))
        })
    }

    fn change_server(&mut self, changed: &ServerRow, missed: &[Missed]) -> Result<u64, MetaError> {
        self.in_transaction(|transaction| {
            let version = next_version(transaction)?;
            transaction.execute(
                "UPDATE server SET name = ?2, address = ?3, disk_uuid = ?4, state = ?5, version = ?6, incarnation = ?7,
                 draining = ?8, failed_since = ?9, capacity = ?10 WHERE disk = ?1",
                params![
                    changed.disk,
                    changed.name,
                    changed.address,
                    changed.disk_uuid,
                    changed.state.letter(),
                    version as i64,
                    changed.incarnation.0 as i64,
                    changed.is_draining,
                    changed.failed_since_ms as i64,
                    changed.capacity_bytes as i64
                ],
            )?;
            keep_place(transaction, changed.disk, changed)?;
            keep_missed(transaction, missed, version)?;
            Ok(version)
        })
    }

    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            transaction.execute("DELETE FROM server WHERE disk = ?1", [disk])?;
            transaction.execute("DELETE FROM place WHERE disk = ?1", [disk])?;
            Ok(())
        })
    }

    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError> {
        let mut select = self.connection.prepare(
            "SELECT vgroup.gid, vgroup.version, member.disk, member.kind FROM vgroup JOIN member ON member.gid = vgroup.gid
             ORDER BY vgroup.gid, member.disk",
        )?;
        let mut rows = select.query([])?;
        let mut groups: Vec<GroupRow> = Vec::new();
        while let Some(row) = rows.next()? {
            let (group, version) = (GroupId(row.get(0)?), number(row, 1)?);
            let member = (row.get(2)?, word(row, 3, MemberKind::of_word)?);
            match groups.last_mut().filter(|last| last.group == group) {
                Some(last) => last.members.push(member),
                None => groups.push(GroupRow { group, version, members: vec![member] }),
            }
        }
        Ok(groups)
    }

    fn change_groups(&mut self, groups: &[(GroupId, Members)], missed: &[Missed]) -> Result<u64, MetaError> {
        self.in_transaction(|transaction| {
            let version = next_version(transaction)?;
            for (group, members) in groups {
                transaction.execute(
                    "UPDATE vgroup SET version = ?2 WHERE gid = ?1",
                    params![group.0, version as i64],
                )?;
                transaction.execute("DELETE FROM member WHERE gid = ?1", [group.0])?;
                for (disk, kind) in members {
                    transaction.execute(
                        "INSERT INTO member VALUES (?1, ?2, ?3)",
                        params![group.0, disk, kind.word()],
                    )?;
                }
                transaction.execute(
                    "DELETE FROM missed WHERE gid = ?1 AND disk NOT IN (SELECT disk FROM member WHERE gid = ?1)",
                    [group.0],
                )?;
            }
            keep_missed(transaction, missed, version)?;
            Ok(version)
        })
    }

    fn forget_missed(&mut self, disk: u32, groups: &[GroupId]) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            let groups = listed(groups);
            let forget = format!("DELETE FROM missed WHERE disk = ?1 AND gid IN ({groups})");
            transaction.execute(&forget, [disk])?;
            Ok(())
        })
    }

    fn missed(&mut self) -> Result<Vec<(Missed, u64)>, MetaError> {
        let mut select = self.connection.prepare("SELECT gid, disk, version FROM missed")?;
        let rows = select.query_map([], |row| Ok(((GroupId(row.get(0)?), row.get(1)?), number(row, 2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT name, vid, removing FROM dir WHERE parent = ?1 AND name = ?2")?;
        let mut found = Vec::with_capacity(path.len());
        let mut parent = VolumeId::ROOT;
        for name in path {
            let row = select.query_row(params![parent.0 as i64, name.as_bytes()], dir);
            let Some(row) = row.optional()?.filter(|row| !row.is_removing) else {
                break;
            };
            parent = row.vid;
            found.push(row);
        }
        Ok(found)
    }

    fn mkdir(&mut self, parent: VolumeId, name: &str, group: GroupId, quota: Option<u64>) -> Meta<VolumeId> {
        self.in_wish(|transaction| {
            let taken = transaction
                .query_row(
                    "SELECT vid FROM dir WHERE parent = ?1 AND name = ?2",
                    params![parent.0 as i64, name.as_bytes()],
                    |row| number(row, 0),
                )
                .optional()?;
            if let Some(vid) = taken {
                return Ok(Err(VolumeError::VolumeExists { vid: VolumeId(vid) }));
            }
            let next = transaction.query_row(
                "UPDATE vgroup SET next_volume = next_volume + 1 WHERE gid = ?1 RETURNING next_volume - 1",
                [group.0],
                |row| number(row, 0),
            )?;
            let vid = VolumeId::in_group(group, next);
            transaction.execute(
                "INSERT INTO dir VALUES (?1, ?2, ?3, 0)",
                params![parent.0 as i64, name.as_bytes(), vid.0 as i64],
            )?;
            if let Some(quota) = quota {
                let version = next_version(transaction)?;
                let quota = i64::try_from(quota).unwrap_or(i64::MAX);
                let add = "INSERT INTO quota VALUES (?1, ?2, ?3)";
                transaction.execute(add, params![vid.0 as i64, quota, version as i64])?;
            }
            Ok(Ok(vid))
        })
    }

    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT vid, bytes, version FROM quota WHERE version > ?1 ORDER BY version")?;
        let rows = select.query_map([since as i64], |row| {
            Ok(QuotaRow { vid: VolumeId(number(row, 0)?), bytes: number(row, 1)?, version: number(row, 2)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError> {
        let row = self.connection.query_row(
            "SELECT name, vid, removing, parent FROM dir WHERE vid = ?1",
            [vid.0 as i64],
            |row| Ok((VolumeId(number(row, 3)?), dir(row)?.name)),
        );
        Ok(row.optional()?)
    }

    fn list(
        &mut self,
        parent: VolumeId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DirRow>, MetaError> {
        // Names are never empty.
        let mut select = self.connection.prepare_cached(
            "SELECT name, vid, removing FROM dir WHERE parent = ?1 AND name > ?2 AND removing = 0 ORDER BY name LIMIT ?3",
        )?;
        let after = after.unwrap_or_default().as_bytes();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = select.query_map(params![parent.0 as i64, after, limit], dir)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn mark_removing(&mut self, at: Place<'_>, is_removing: bool) -> Meta<()> {
        self.in_wish(|transaction| {
            let below: i64 = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM dir WHERE parent = ?1)",
                [at.vid.0 as i64],
                |row| row.get(0),
            )?;
            if is_removing && below > 0 {
                return Ok(Err(VolumeError::NotEmpty));
            }
            let changed = transaction.execute(
                "UPDATE dir SET removing = ?4 WHERE parent = ?1 AND name = ?2 AND vid = ?3",
                params![at.parent.0 as i64, at.name.as_bytes(), at.vid.0 as i64, is_removing],
            )?;
            let mark = match is_removing {
                true => "INSERT OR IGNORE INTO removing VALUES (?1, ?2)",
                false => "DELETE FROM removing WHERE parent = ?1 AND name = ?2",
            };
            if changed == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            transaction.execute(mark, params![at.parent.0 as i64, at.name.as_bytes()])?;
            Ok(Ok(()))
        })
    }

    fn unmark_all(&mut self) -> Result<u64, MetaError> {
        self.in_transaction(|transaction| {
            let marked = transaction.execute(
                "UPDATE dir SET removing = 0 WHERE (parent, name) IN (SELECT parent, name FROM removing)",
                [],
            )?;
            transaction.execute("DELETE FROM removing", [])?;
            Ok(marked as u64)
        })
    }

    fn remove(&mut self, at: Place<'_>) -> Meta<u64> {
        self.in_wish(|transaction| {
            let removed = transaction.execute(
                "DELETE FROM dir WHERE parent = ?1 AND name = ?2 AND vid = ?3",
                params![at.parent.0 as i64, at.name.as_bytes(), at.vid.0 as i64],
            )?;
            if removed == 0 {
                return Ok(Err(VolumeError::VolumeGone));
            }
            let version = next_version(transaction)?;
            transaction.execute(
                "DELETE FROM removing WHERE parent = ?1 AND name = ?2",
                params![at.parent.0 as i64, at.name.as_bytes()],
            )?;
            transaction.execute("DELETE FROM quota WHERE vid = ?1", [at.vid.0 as i64])?;
            transaction
                .execute("INSERT INTO gone_vol VALUES (?1, ?2)", params![at.vid.0 as i64, version as i64])?;
            Ok(Ok(version))
        })
    }

    fn gone(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT vid, version FROM gone_vol WHERE version > ?1 ORDER BY version")?;
        let rows =
            select.query_map([since as i64], |row| Ok((VolumeId(number(row, 0)?), number(row, 1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn forget_gone(&mut self, vid: VolumeId) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            transaction.execute("DELETE FROM gone_vol WHERE vid = ?1", [vid.0 as i64])?;
            Ok(())
        })
    }

    fn rename(&mut self, from: Place<'_>, parent: VolumeId, name: &str) -> Meta<()> {
        self.in_wish(|transaction| {
            let at = |parent: VolumeId, name: &str| {
                transaction
                    .query_row(
                        "SELECT name, vid, removing FROM dir WHERE parent = ?1 AND name = ?2",
                        params![parent.0 as i64, name.as_bytes()],
                        dir,
                    )
                    .optional()
            };
            let is_there = |row: &DirRow| row.vid == from.vid && !row.is_removing;
            if !at(from.parent, from.name)?.is_some_and(|row| is_there(&row)) {
                return Ok(Err(VolumeError::NotFound));
            }
            match at(parent, name)? {
                Some(taken) if taken.vid == from.vid => return Ok(Ok(())),
                Some(taken) => return Ok(Err(VolumeError::VolumeExists { vid: taken.vid })),
                None => {}
            }
            transaction.execute(
                "UPDATE dir SET parent = ?3, name = ?4 WHERE parent = ?1 AND name = ?2",
                params![from.parent.0 as i64, from.name.as_bytes(), parent.0 as i64, name.as_bytes()],
            )?;
            Ok(Ok(()))
        })
    }

    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError> {
        let mut select =
            self.connection.prepare_cached("SELECT gid, next_volume - 1 FROM vgroup ORDER BY gid")?;
        let rows = select.query_map([], |row| Ok((GroupId(row.get(0)?), number(row, 1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            let add = "INSERT INTO token VALUES (?1, ?2)";
            transaction.execute(add, params![hash, ends_ms as i64])?;
            Ok(())
        })
    }

    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError> {
        self.in_transaction(|transaction| {
            transaction.execute("DELETE FROM token WHERE ends < ?1", [now_ms as i64])?;
            Ok(transaction.execute("DELETE FROM token WHERE hash = ?1", params![hash])? == 1)
        })
    }

    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError> {
        let select = "SELECT name, path, rights, made FROM client ORDER BY name";
        let mut select = self.connection.prepare_cached(select)?;
        let rows = select.query_map([], |row| {
            Ok(ClientRow {
                name: row.get(0)?,
                path: row.get(1)?,
                rights: row.get(2)?,
                made_ms: number(row, 3)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError> {
        self.in_transaction(|transaction| {
            let added = transaction.execute(
                "INSERT OR IGNORE INTO client VALUES (?1, ?2, ?3, ?4)",
                params![client.name, client.path, client.rights, client.made_ms as i64],
            )?;
            Ok(added == 1)
        })
    }

    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError> {
        self.in_transaction(|transaction| {
            Ok(transaction.execute("DELETE FROM client WHERE name = ?1", [name])? == 1)
        })
    }

    fn note(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError> {
        self.in_transaction(|transaction| {
            let add = "INSERT INTO event (at, kind, text) VALUES (?1, ?2, ?3)";
            transaction.execute(add, params![now_ms as i64, kind, text])?;
            Ok(())
        })
    }

    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError> {
        let mut select = self.connection.prepare_cached(
            "SELECT number, at, kind, text FROM event WHERE number > ?1 ORDER BY number DESC LIMIT ?2",
        )?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = select.query_map(params![after as i64, limit], |row| {
            Ok(EventRow {
                number: number(row, 0)?,
                at_ms: number(row, 1)?,
                kind: row.get(2)?,
                text: row.get(3)?,
            })
        })?;
        let mut events = rows.collect::<Result<Vec<_>, _>>()?;
        events.reverse();
        Ok(events)
    }
}
