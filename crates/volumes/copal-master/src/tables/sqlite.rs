//! The master's tables in SQLite: one file, one process, every commit durable before its answer.
//!
//! Names are bytes, and ids have a fixed width. The table of volumes has no row id and no second index, so that
//! fifty million volumes take less than the paper's 2.2 GB. A lock on a second file gives the database to one
//! process, which therefore leads for as long as it runs.
//! Format: docs/formats/master-sqlite.md v1

use super::{
    sql::{
        LeaderFence, RowReader, SqlDatabase, SqlDialect, SqlError, SqlOutcome, SqlResult, SqlRow, SqlSession,
        SqlValue,
    },
    store::TableStore,
};
use crate::tables::meta_store::{LeaseHolder, LeaseOutcome, MetaError, MetaOutcome};
use rusqlite::{
    Connection, ToSql, params_from_iter,
    types::{ToSqlOutput, ValueRef},
};
use std::{
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

/// Tables of later releases; an older database gets them when it is opened.
const ADDED: &str = "
CREATE TABLE IF NOT EXISTS client (name TEXT PRIMARY KEY, path TEXT NOT NULL, rights INTEGER NOT NULL,
    made INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task (kind TEXT NOT NULL, gid INTEGER NOT NULL, a INTEGER NOT NULL, b INTEGER NOT NULL,
    PRIMARY KEY (kind, gid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (disk INTEGER PRIMARY KEY, zone TEXT NOT NULL, rack TEXT NOT NULL);
";

/// The master's tables in a file.
pub type SqliteStore = TableStore<SqliteDatabase>;

/// A file with the tables.
pub struct SqliteDatabase {
    connection: Connection,
    /// Locked for as long as the store is open. Dropped after the connection.
    _lock: Option<DatabaseLock>,
}

/// Lock file of a database.
struct DatabaseLock(File);

impl Drop for DatabaseLock {
    /// A child process has a copy of the file between `fork` and `exec`: closing it would not release the lock.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl SqliteStore {
    /// Opens or creates the database at `path`.
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
        let lock = DatabaseLock(lock);
        refuse_lost(path)?;
        make_private(path)?;
        Ok(TableStore::of(SqliteDatabase::of(Connection::open(path)?, Some(lock))?))
    }

    /// A database in memory.
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn in_memory() -> Result<SqliteStore, MetaError> {
        Ok(TableStore::of(SqliteDatabase::of(Connection::open_in_memory()?, None)?))
    }
}

impl SqliteDatabase {
    fn of(mut connection: Connection, lock: Option<DatabaseLock>) -> Result<SqliteDatabase, MetaError> {
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
        Ok(SqliteDatabase { connection, _lock: lock })
    }
}

impl From<rusqlite::Error> for MetaError {
    fn from(error: rusqlite::Error) -> MetaError {
        MetaError::Failed(error.to_string())
    }
}

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> SqlError {
        SqlError::of_row(error.to_string())
    }
}

impl SqlDatabase for SqliteDatabase {
    const DIALECT: SqlDialect = SqlDialect {
        insert_new: "INSERT OR IGNORE",
        for_update: "",
        greatest: "max",
        term_table: "cluster",
        select_cluster: "SELECT uuid, map_version, term, replicas, min_ack, groups FROM cluster",
        insert_cluster: "INSERT INTO cluster VALUES (1, ?, 1, 0, ?, ?, ?)",
        insert_leader: None,
        unmark_dir: "UPDATE dir SET removing = 0 WHERE (parent, name) IN (SELECT parent, name FROM removing)",
    };
    // The file belongs to one process.
    const IS_SHARED: bool = false;

    fn read<T>(&mut self, run: impl Fn(&mut dyn SqlSession) -> SqlResult<T>) -> Result<T, MetaError> {
        Ok(run(&mut &self.connection)?)
    }

    /// The file has one leader, so the fence needs no check in the tables.
    fn transaction<T>(
        &mut self,
        _fence: Option<LeaderFence>,
        run: impl Fn(&mut dyn SqlSession) -> SqlOutcome<T>,
    ) -> MetaOutcome<T> {
        let transaction = self.connection.transaction()?;
        let outcome = run(&mut &*transaction)?;
        if outcome.is_ok() {
            transaction.commit()?;
        }
        Ok(outcome)
    }

    fn lead(&mut self, _holder: LeaseHolder) -> Result<LeaseOutcome, MetaError> {
        let next = "UPDATE cluster SET term = term + 1 RETURNING term";
        let term = self.connection.query_row(next, [], |row| row.get::<_, i64>(0))?;
        Ok(LeaseOutcome::Mine { term: term as u64 })
    }

    fn renew(&mut self, _fence: LeaderFence) -> Result<bool, MetaError> {
        Ok(true)
    }
}

impl SqlSession for &Connection {
    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> SqlResult<u64> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
    }

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>], reader: &mut RowReader<'_>) -> SqlResult<()> {
        let mut select = self.prepare_cached(sql)?;
        let mut rows = select.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            if reader(&SqlRow::File(row))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn missing(&self, _sentence: String) -> SqlError {
        rusqlite::Error::QueryReturnedNoRows.into()
    }
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            SqlValue::Number(number) => ValueRef::Integer(number as i64),
            SqlValue::Limit(limit) => ValueRef::Integer(i64::try_from(limit).unwrap_or(i64::MAX)),
            SqlValue::Bytes(bytes) => ValueRef::Blob(bytes),
            SqlValue::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// Opens or creates a file that only its owner may open, because a user that can open a lock can take it. The
/// mode of an earlier release's file is corrected.
fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let file = options.mode(MODE).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Restricts the database to its owner, regardless of the umask. SQLite gives its logs the same mode.
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

/// Refuses to create a database beside the log of a lost one, because SQLite would remove that log.
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
                "the database {} is missing, but its log {} exists; put a copy back with `copal meta restore`, which \
                 keeps the log, or move it away",
                database.display(),
                log.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: a database that was just closed was reported as in use. Cause: a child has copies of all files,
    // with their locks, between its fork and its exec. Fix: the holder unlocks the file before it closes it.
    #[test]
    fn a_copy_of_the_lock_file_does_not_keep_a_closed_database_locked() {
        let scratch = tempfile::tempdir().unwrap();
        let file = File::create(scratch.path().join("lock")).unwrap();
        file.lock().unwrap();
        let copy = file.try_clone().unwrap();
        let again = File::open(scratch.path().join("lock")).unwrap();
        assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        drop(DatabaseLock(file));
        again.try_lock().unwrap();
        drop(copy);
    }
}
