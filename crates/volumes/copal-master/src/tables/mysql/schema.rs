//! Definitions of the tables.
//!
//! Every table has a primary key. No statement needs named locks, triggers or two-phase commits, which Galera
//! and TiDB lack.
//!
//! Format: docs/formats/master-mysql.md v1

use crate::tables::meta_store::MetaError;
use crate::tables::sql::{SqlError, SqlResult, checked};
use mysql::{Conn, prelude::Queryable};

/// Version of the tables.
const SCHEMA_VERSION: u32 = 1;

const TABLES: [&str; 14] = [
    "CREATE TABLE IF NOT EXISTS cluster (id TINYINT UNSIGNED PRIMARY KEY, uuid BINARY(16) NOT NULL,
        map_version BIGINT UNSIGNED NOT NULL, replicas TINYINT UNSIGNED NOT NULL, min_ack TINYINT UNSIGNED NOT NULL,
        group_count INT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS leader (id TINYINT UNSIGNED PRIMARY KEY, term BIGINT UNSIGNED NOT NULL,
        holder BINARY(24) NOT NULL, expires DATETIME(6) NOT NULL, beat BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS server (disk INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, name VARBINARY(255) NOT NULL UNIQUE,
        address VARBINARY(512) NOT NULL, server_uuid BINARY(16) NOT NULL UNIQUE, disk_uuid BINARY(16) NOT NULL UNIQUE,
        state BINARY(1) NOT NULL, version BIGINT UNSIGNED NOT NULL, incarnation BIGINT UNSIGNED NOT NULL,
        draining TINYINT UNSIGNED NOT NULL, failed_since BIGINT UNSIGNED NOT NULL, capacity BIGINT UNSIGNED NOT NULL)
        ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS vgroup (gid INT UNSIGNED PRIMARY KEY, version BIGINT UNSIGNED NOT NULL,
        next_volume BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS member (gid INT UNSIGNED NOT NULL, disk INT UNSIGNED NOT NULL, kind VARBINARY(8) NOT NULL,
        PRIMARY KEY (gid, disk)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS missed (gid INT UNSIGNED NOT NULL, disk INT UNSIGNED NOT NULL, version BIGINT UNSIGNED NOT NULL,
        PRIMARY KEY (gid, disk)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS dir (parent BIGINT UNSIGNED NOT NULL, name VARBINARY(255) NOT NULL,
        vid BIGINT UNSIGNED NOT NULL, removing TINYINT UNSIGNED NOT NULL, PRIMARY KEY (parent, name)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS removing (parent BIGINT UNSIGNED NOT NULL, name VARBINARY(255) NOT NULL,
        PRIMARY KEY (parent, name)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS quota (vid BIGINT UNSIGNED PRIMARY KEY, bytes BIGINT UNSIGNED NOT NULL,
        version BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS gone_vol (vid BIGINT UNSIGNED PRIMARY KEY, version BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS master (number INT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
        address VARBINARY(512) NOT NULL UNIQUE) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS token (hash BINARY(32) PRIMARY KEY, ends BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS event (number BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, at BIGINT UNSIGNED NOT NULL,
        kind VARBINARY(255) NOT NULL, text BLOB NOT NULL) ENGINE=InnoDB",
    // Made last: a database without it is not finished.
    "CREATE TABLE IF NOT EXISTS copal_schema (id TINYINT UNSIGNED PRIMARY KEY, version INT UNSIGNED NOT NULL) ENGINE=InnoDB",
];

/// Tables of later releases; an older database gets them when it is opened.
const ADDED: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS client (name VARBINARY(64) PRIMARY KEY, path VARBINARY(4096) NOT NULL,
    rights INT UNSIGNED NOT NULL, made BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS setting (name VARBINARY(64) PRIMARY KEY, value VARBINARY(4096) NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS task (kind VARBINARY(16) NOT NULL, gid INT UNSIGNED NOT NULL, a INT UNSIGNED NOT NULL,
        b INT UNSIGNED NOT NULL, PRIMARY KEY (kind, gid)) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS place (disk INT UNSIGNED PRIMARY KEY, zone VARBINARY(255) NOT NULL,
        rack VARBINARY(255) NOT NULL) ENGINE=InnoDB",
];

/// "There is no such table."
const NO_SUCH_TABLE: u16 = 1146;

/// Creates missing tables; several masters may do so at once.
pub(super) fn make(connection: &mut Conn) -> Result<(), MetaError> {
    if let Some(version) = version(connection)? {
        check(version)?;
        return add(connection);
    }
    add(connection)?;
    for table in TABLES {
        connection.query_drop(table).map_err(SqlError::from)?;
    }
    let add = format!("INSERT IGNORE INTO copal_schema VALUES (1, {SCHEMA_VERSION})");
    connection.query_drop(add).map_err(SqlError::from)?;
    check(version(connection)?.unwrap_or_default())
}

fn add(connection: &mut Conn) -> Result<(), MetaError> {
    for table in ADDED {
        connection.query_drop(table).map_err(SqlError::from)?;
    }
    Ok(())
}

fn version(connection: &mut Conn) -> SqlResult<Option<u32>> {
    match connection.exec_first_opt("SELECT version FROM copal_schema WHERE id = 1", ()) {
        Err(mysql::Error::MySqlError(error)) if error.code == NO_SUCH_TABLE => Ok(None),
        other => checked(other?),
    }
}

fn check(version: u32) -> Result<(), MetaError> {
    match version {
        SCHEMA_VERSION => Ok(()),
        other => Err(MetaError::Failed(format!(
            "its tables have version {other}, this release knows {SCHEMA_VERSION}; use the release that wrote them"
        ))),
    }
}
