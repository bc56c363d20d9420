//! Backup of the master's tables in SQLite: a copy while a master runs, the restore of a copy, and a check of
//! the tables.
//!
//! Invariants
//! - A copy is the state of one moment, and appears under its name only when it is durable.
//! - A master that continues from a copy never gives an id or a version that was given after the copy was made.
//!
//! Not here: the state of the running cluster (the master asks for it at its start); other databases, which
//! have tools of their own.

use crate::tables::SCHEMA_VERSION;
use crate::tables::meta_store::{MetaError, RAISED_VERSIONS, RAISED_VOLUMES, setting};
use file_exchange::{FileError, FileOps, SystemFileOps, begin, beside, remove};
use rusqlite::{Connection, OpenFlags, params};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

mod file_exchange;

/// Distance by which the numbers of new disks are raised.
const RAISED_DISKS: i64 = 1 << 10;
/// Limit for the sentences about one rule.
const MOST: usize = 10;

/// A copy that cannot be made, restored or checked.
#[derive(Debug, thiserror::Error)]
pub enum MetadataBackupError {
    /// A file operation failed.
    #[error("{}: {source}", .path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The database failed.
    #[error("{}: {source}", .path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The file is no database of a master.
    #[error("{} is no database of a master of this release: {reason}", .path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The copy has no server of a given name.
    #[error("{} has no server {name}", .path.display())]
    NoServer {
        /// The file.
        path: PathBuf,
        /// The name of the server.
        name: String,
    },
    /// The tables contradict each other.
    #[error("{} is damaged: {}", .path.display(), .found.join("; "))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// A sentence for each contradiction.
        found: Vec<String>,
    },
}

impl From<FileError> for MetadataBackupError {
    fn from(FileError { path, source }: FileError) -> MetadataBackupError {
        MetadataBackupError::System { path, source }
    }
}

impl From<MetadataBackupError> for MetaError {
    fn from(error: MetadataBackupError) -> MetaError {
        MetaError::Failed(error.to_string())
    }
}

/// Counts of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Volumes.
    pub volumes: u64,
    /// Data servers.
    pub servers: u64,
    /// Version of the map.
    pub map_version: u64,
}

/// Copies the tables at `database`, which a master may be using, to the new file `to`. Blocks on both disks.
/// # Errors
/// Any; then the file `to` does not exist.
pub fn back_up_tables(database: &Path, to: &Path) -> Result<TableSummary, MetadataBackupError> {
    // SQLite would apply a log that an earlier database of this name left.
    if let Some(path) = file_exchange::existing_file(to) {
        let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(MetadataBackupError::System { path, source });
    }
    let half = beside(to, ".part");
    begin(&half)?;
    let copied = copy(database, &half).and_then(|()| {
        let found = check_tables(&half)?;
        match found.is_empty() {
            true => summary(&half),
            false => Err(MetadataBackupError::Damaged { path: database.to_owned(), found }),
        }
    });
    match copied.and_then(|summary| placed(&half, to, summary)) {
        Ok(summary) => Ok(summary),
        Err(error) => {
            // The first error is reported.
            let _ = remove(&half);
            Err(error)
        }
    }
}

fn placed(half: &Path, to: &Path, summary: TableSummary) -> Result<TableSummary, MetadataBackupError> {
    file_exchange::exchange(half, to, &mut SystemFileOps)?;
    Ok(summary)
}

/// Restores the copy `from` as the database `to`. Blocks.
/// - Versions, terms and numbers begin far above all that were given after the copy was made.
/// - The copy is marked as stale ([`setting::STALE_TABLES`]), so a master leads with it only after an
///   administrator accepts it.
/// - Servers in `away` were down when the old master ended. No copy records the operations that they missed
///   since, so they count as having missed some, and resync when they return.
/// - A present database `to` and its logs, or logs alone, are kept as `to.replaced`, or with a number behind it
///   if that name is taken. No process may have `to` open.
/// # Errors
/// Any; then `to` is unchanged.
pub fn restore_tables(
    from: &Path,
    to: &Path,
    away: &[String],
    now_ms: u64,
) -> Result<TableSummary, MetadataBackupError> {
    restore_tables_by(from, to, away, now_ms, &mut SystemFileOps)
}

fn restore_tables_by(
    from: &Path,
    to: &Path,
    away: &[String],
    now_ms: u64,
    files: &mut dyn FileOps,
) -> Result<TableSummary, MetadataBackupError> {
    let found = check_tables(from)?;
    if !found.is_empty() {
        return Err(MetadataBackupError::Damaged { path: from.to_owned(), found });
    }
    let half = beside(to, ".part");
    begin(&half)?;
    copy(from, &half)?;
    let mut unknown = None;
    let raised = Connection::open(&half).and_then(|mut copy| {
        let all = copy.transaction()?;
        all.execute(
            "UPDATE cluster SET map_version = map_version + ?1, term = term + ?1",
            [RAISED_VERSIONS as i64],
        )?;
        all.execute("UPDATE vgroup SET next_volume = next_volume + ?1", [RAISED_VOLUMES as i64])?;
        all.execute("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'server'", [RAISED_DISKS])?;
        let reason = "they are a restored copy, which lacks all later changes";
        all.execute(
            "CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            [],
        )?;
        all.execute(
            "INSERT OR REPLACE INTO setting VALUES (?1, ?2)",
            params![setting::STALE_TABLES, reason],
        )?;
        // Tokens of the copy may have been used since.
        all.execute("DELETE FROM token", [])?;
        for name in away {
            let marked = all.execute(
                "UPDATE server SET state = 'F', failed_since = ?2, version = (SELECT map_version FROM cluster)
                    WHERE name = ?1 AND state <> 'L'",
                params![name, now_ms as i64],
            )?;
            if marked == 0 {
                unknown = Some(name.clone());
            }
            all.execute(
                "INSERT OR REPLACE INTO missed SELECT gid, disk, (SELECT map_version FROM cluster) FROM member
                    WHERE disk = (SELECT disk FROM server WHERE name = ?1)",
                [name],
            )?;
        }
        all.commit()
    });
    raised.map_err(|source| MetadataBackupError::Database { path: half.clone(), source })?;
    if let Some(name) = unknown {
        remove(&half)?;
        return Err(MetadataBackupError::NoServer { path: from.to_owned(), name });
    }
    let restored = summary(&half)?;
    file_exchange::exchange(&half, to, files)?;
    Ok(restored)
}

/// Checks the tables at `database`, which a master may be using, and returns a sentence for each contradiction.
/// Reads the whole file.
/// # Errors
/// `Database`, `Other`.
pub fn check_tables(database: &Path) -> Result<Vec<String>, MetadataBackupError> {
    let tables = open(database)?;
    let failed = |source| MetadataBackupError::Database { path: database.to_owned(), source };
    let mut found = Vec::new();
    for (query, sentence) in RULES {
        let mut rows = tables.prepare(query).map_err(failed)?;
        let words = rows.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
        for word in words.take(MOST) {
            found.push(sentence.replace("{}", &word.map_err(failed)?));
        }
    }
    Ok(found)
}

/// Rules: a query whose rows are violations, and a sentence for the one column of a row.
const RULES: [(&str, &str); 14] = [
    (
        "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
        "the file itself is damaged: {}",
    ),
    (
        "SELECT CAST(count(*) AS TEXT) FROM cluster HAVING count(*) <> 1",
        "there are {} clusters instead of one",
    ),
    (
        "SELECT CAST(gid AS TEXT) FROM member WHERE gid NOT IN (SELECT gid FROM vgroup)",
        "a member refers to group {}, which does not exist",
    ),
    (
        "SELECT CAST(disk AS TEXT) FROM member WHERE disk NOT IN (SELECT disk FROM server)",
        "disk {} is a member, but belongs to no server",
    ),
    (
        "SELECT gid || ' has ' || count(*) FROM member WHERE kind <> 'joining' GROUP BY gid
            HAVING count(*) <> (SELECT replicas FROM cluster)",
        "group {} full members, which is not the number of copies of the cluster",
    ),
    (
        "SELECT CAST(vgroup.gid AS TEXT) FROM vgroup WHERE gid NOT IN (SELECT gid FROM member)
            AND EXISTS (SELECT 1 FROM member)",
        "group {} has no members, but others have",
    ),
    (
        "SELECT what || ' ' || number FROM (
            SELECT 'server' AS what, name AS number, version FROM server
            UNION ALL SELECT 'group', gid, version FROM vgroup
            UNION ALL SELECT 'missed of disk', disk, version FROM missed
            UNION ALL SELECT 'quota of volume', vid, version FROM quota
            UNION ALL SELECT 'removal of volume', vid, version FROM gone_vol)
            WHERE version > (SELECT map_version FROM cluster)",
        "{} is newer than the map",
    ),
    ("SELECT CAST(vid AS TEXT) FROM dir GROUP BY vid HAVING count(*) > 1", "volume {} has several names"),
    (
        "SELECT CAST(dir.vid AS TEXT) FROM dir LEFT JOIN vgroup ON vgroup.gid = ((dir.vid >> 44) & 1048575)
            WHERE vgroup.gid IS NULL",
        "volume {} was born in a group that does not exist",
    ),
    (
        "SELECT CAST(vid AS TEXT) FROM (SELECT vid FROM dir UNION ALL SELECT vid FROM gone_vol) AS given
            JOIN vgroup ON vgroup.gid = ((given.vid >> 44) & 1048575)
            WHERE (given.vid & 17592186044415) >= vgroup.next_volume",
        "the number of volume {} would be given again",
    ),
    (
        "SELECT CAST(dir.vid AS TEXT) FROM dir JOIN gone_vol ON gone_vol.vid = dir.vid",
        "volume {} has a name, but was removed",
    ),
    (
        "WITH RECURSIVE below(vid) AS (SELECT vid FROM dir WHERE parent = 0
            UNION SELECT dir.vid FROM dir JOIN below ON dir.parent = below.vid)
            SELECT CAST(vid AS TEXT) FROM dir WHERE vid NOT IN (SELECT vid FROM below)",
        "no path leads to volume {}",
    ),
    (
        "SELECT CAST(vid AS TEXT) FROM quota WHERE vid NOT IN (SELECT vid FROM dir)",
        "a quota refers to volume {}, which does not exist",
    ),
    (
        "SELECT name FROM server WHERE state NOT IN ('N', 'R', 'F', 'L')
            OR length(server_uuid) <> 16 OR length(disk_uuid) <> 16",
        "the row of server {} has invalid values",
    ),
];

fn open(database: &Path) -> Result<Connection, MetadataBackupError> {
    let failed = |source| MetadataBackupError::Database { path: database.to_owned(), source };
    let tables = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let version: u32 = tables.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    match version == SCHEMA_VERSION {
        true => Ok(tables),
        false => Err(MetadataBackupError::Other {
            path: database.to_owned(),
            reason: format!("its tables have version {version}, this release knows {SCHEMA_VERSION}"),
        }),
    }
}

/// Copies the state of one moment to a new file.
fn copy(database: &Path, to: &Path) -> Result<(), MetadataBackupError> {
    let tables = open(database)?;
    // A path need not be UTF-8; SQLite takes its bytes unchanged.
    let name = to.as_os_str().as_bytes();
    let copied = tables.execute("VACUUM INTO CAST(?1 AS TEXT)", params![name]);
    copied.map_err(|source| MetadataBackupError::Database { path: database.to_owned(), source })?;
    Ok(())
}

fn summary(database: &Path) -> Result<TableSummary, MetadataBackupError> {
    let failed = |source| MetadataBackupError::Database { path: database.to_owned(), source };
    let tables = open(database)?;
    let number = |query: &str| {
        let number = tables.query_row(query, [], |row| row.get::<_, i64>(0));
        number.map(|number| number as u64).map_err(failed)
    };
    Ok(TableSummary {
        volumes: number("SELECT count(*) FROM dir")?,
        servers: number("SELECT count(*) FROM server")?,
        map_version: number("SELECT map_version FROM cluster")?,
    })
}

#[cfg(test)]
mod tests;
