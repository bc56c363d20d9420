//! The master's tables in SQLite, kept elsewhere: a copy while a master runs, a copy put back, and whether
//! tables agree.
//!
//! Invariants
//! - A copy has everything of one moment, and appears under its name only when it is on the disk.
//! - Ids and versions that were given after a copy was made are never given again by who goes on from it.
//!
//! Not here: what only a running cluster knows (the master asks for it when it starts), other databases,
//! which have tools of their own for this.

use crate::tables::SCHEMA_VERSION;
use crate::tables::meta_store::{MetaError, RAISED_VERSIONS, RAISED_VOLUMES, setting};
use file_exchange::{FileError, Files, SystemFiles, begin, beside, remove};
use rusqlite::{Connection, OpenFlags, params};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

mod file_exchange;

/// How far the numbers of new disks are raised.
const DISKS: i64 = 1 << 10;
/// Sentences about one kind of disagreement.
const MOST: usize = 10;

/// A copy that cannot be made or put back.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A file.
    #[error("{}: {source}", .path.display())]
    System {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The database.
    #[error("{}: {source}", .path.display())]
    Database {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// It is none of a master.
    #[error("{} is no database of a master of this release: {reason}", .path.display())]
    Other {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A server that is to be marked is not there.
    #[error("{} knows of no server {name}", .path.display())]
    NoServer {
        /// Which.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// It does not agree with itself.
    #[error("{} is damaged: {}", .path.display(), .found.join("; "))]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What was found.
        found: Vec<String>,
    },
}

impl From<FileError> for KeepError {
    fn from(FileError { path, source }: FileError) -> KeepError {
        KeepError::System { path, source }
    }
}

impl From<KeepError> for MetaError {
    fn from(error: KeepError) -> MetaError {
        MetaError::Failed(error.to_string())
    }
}

/// What a database has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Volumes.
    pub volumes: u64,
    /// Data servers.
    pub servers: u64,
    /// Version of the map.
    pub map_version: u64,
}

/// Copies the tables at `database`, which a master may be using, into the new file `to`. Blocks on both
/// disks.
/// # Errors
/// All of them; then there is no file `to`.
pub fn back_up(database: &Path, to: &Path) -> Result<Kept, KeepError> {
    // The log of a database that had the name before would be applied to the copy.
    if let Some(path) = file_exchange::found(to) {
        let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(KeepError::System { path, source });
    }
    let half = beside(to, ".part");
    begin(&half)?;
    let copied = copy(database, &half).and_then(|()| {
        let found = check(&half)?;
        match found.is_empty() {
            true => kept(&half),
            false => Err(KeepError::Damaged { path: database.to_owned(), found }),
        }
    });
    match copied.and_then(|kept| placed(&half, to, kept)) {
        Ok(kept) => Ok(kept),
        Err(error) => {
            // The first error counts.
            let _ = remove(&half);
            Err(error)
        }
    }
}

fn placed(half: &Path, to: &Path, kept: Kept) -> Result<Kept, KeepError> {
    file_exchange::exchange(half, to, &mut SystemFiles)?;
    Ok(kept)
}

/// Makes the database `to` of a copy, for a master that is started with it and with its word for that
/// ([`setting::OLDER`]): versions, terms and numbers begin far above all that were given after the copy was
/// made. Servers of the names in `away` were away when the old master ended: what they missed since the copy
/// was made is in no copy, so they count as having missed something and take everything over from others when
/// they come back. Nobody may have `to` open. A database that is there, and logs that are there with or
/// without one, are kept as `to.replaced`, or with a number behind it if that is taken. Blocks.
/// # Errors
/// All of them; then `to` is as it was.
pub fn put_back(from: &Path, to: &Path, away: &[String], now_ms: u64) -> Result<Kept, KeepError> {
    put_back_by(from, to, away, now_ms, &mut SystemFiles)
}

fn put_back_by(
    from: &Path,
    to: &Path,
    away: &[String],
    now_ms: u64,
    files: &mut dyn Files,
) -> Result<Kept, KeepError> {
    let found = check(from)?;
    if !found.is_empty() {
        return Err(KeepError::Damaged { path: from.to_owned(), found });
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
        all.execute("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'server'", [DISKS])?;
        let reason = "they are a copy that was put back, and what was changed after it was made is in none";
        all.execute(
            "CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            [],
        )?;
        all.execute("INSERT OR REPLACE INTO setting VALUES (?1, ?2)", params![setting::OLDER, reason])?;
        // Secrets of then are good no more.
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
    raised.map_err(|source| KeepError::Database { path: half.clone(), source })?;
    if let Some(name) = unknown {
        remove(&half)?;
        return Err(KeepError::NoServer { path: from.to_owned(), name });
    }
    let kept = kept(&half)?;
    file_exchange::exchange(&half, to, files)?;
    Ok(kept)
}

/// What does not agree in the tables at `database`, a sentence each; a master may be using it. Reads all of
/// it.
/// # Errors
/// `Database`, `Other`.
pub fn check(database: &Path) -> Result<Vec<String>, KeepError> {
    let tables = open(database)?;
    let failed = |source| KeepError::Database { path: database.to_owned(), source };
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

/// A query for each rule; a row is a violation, its one column stands in the sentence.
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
        "a member is of group {}, which is not there",
    ),
    (
        "SELECT CAST(disk AS TEXT) FROM member WHERE disk NOT IN (SELECT disk FROM server)",
        "disk {} is a member and of no server",
    ),
    (
        "SELECT gid || ' has ' || count(*) FROM member WHERE kind <> 'joining' GROUP BY gid
            HAVING count(*) <> (SELECT replicas FROM cluster)",
        "group {} full members, not as many as the pool asks for",
    ),
    (
        "SELECT CAST(vgroup.gid AS TEXT) FROM vgroup WHERE gid NOT IN (SELECT gid FROM member)
            AND EXISTS (SELECT 1 FROM member)",
        "group {} has no members and others have",
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
        "volume {} was born in a group that is not there",
    ),
    (
        "SELECT CAST(vid AS TEXT) FROM (SELECT vid FROM dir UNION ALL SELECT vid FROM gone_vol) AS given
            JOIN vgroup ON vgroup.gid = ((given.vid >> 44) & 1048575)
            WHERE (given.vid & 17592186044415) >= vgroup.next_volume",
        "the number of volume {} would be given again",
    ),
    (
        "SELECT CAST(dir.vid AS TEXT) FROM dir JOIN gone_vol ON gone_vol.vid = dir.vid",
        "volume {} has a name and is gone",
    ),
    (
        "WITH RECURSIVE below(vid) AS (SELECT vid FROM dir WHERE parent = 0
            UNION SELECT dir.vid FROM dir JOIN below ON dir.parent = below.vid)
            SELECT CAST(vid AS TEXT) FROM dir WHERE vid NOT IN (SELECT vid FROM below)",
        "no path leads to volume {}",
    ),
    (
        "SELECT CAST(vid AS TEXT) FROM quota WHERE vid NOT IN (SELECT vid FROM dir)",
        "a quota is of volume {}, which is not there",
    ),
    (
        "SELECT name FROM server WHERE state NOT IN ('N', 'R', 'F', 'L')
            OR length(server_uuid) <> 16 OR length(disk_uuid) <> 16",
        "the row of server {} cannot be understood",
    ),
];

fn open(database: &Path) -> Result<Connection, KeepError> {
    let failed = |source| KeepError::Database { path: database.to_owned(), source };
    let tables = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let version: u32 = tables.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    match version == SCHEMA_VERSION {
        true => Ok(tables),
        false => Err(KeepError::Other {
            path: database.to_owned(),
            reason: format!("its tables have version {version}, this release knows {SCHEMA_VERSION}"),
        }),
    }
}

/// Everything of one moment, into a new file.
fn copy(database: &Path, to: &Path) -> Result<(), KeepError> {
    let tables = open(database)?;
    // A path need not be UTF-8; SQLite takes the bytes as they are.
    let name = to.as_os_str().as_bytes();
    let copied = tables.execute("VACUUM INTO CAST(?1 AS TEXT)", params![name]);
    copied.map_err(|source| KeepError::Database { path: database.to_owned(), source })?;
    Ok(())
}

fn kept(database: &Path) -> Result<Kept, KeepError> {
    let failed = |source| KeepError::Database { path: database.to_owned(), source };
    let tables = open(database)?;
    let number = |query: &str| {
        let number = tables.query_row(query, [], |row| row.get::<_, i64>(0));
        number.map(|number| number as u64).map_err(failed)
    };
    Ok(Kept {
        volumes: number("SELECT count(*) FROM dir")?,
        servers: number("SELECT count(*) FROM server")?,
        map_version: number("SELECT map_version FROM cluster")?,
    })
}

#[cfg(test)]
mod tests;
