//! The master's tables in MySQL or MariaDB: several masters share them, and one leads.
//!
//! Paper: beanfs §3.4.1, §4.2 (stand-by masters; here they share the database instead of following one
//! another) Format: docs/formats/master-mysql.md v1
//! Invariants
//! - Leases end by the database's clock alone.
//! - Every change of a leader is fenced (`connection`), so a master that was paused beyond its lease changes
//!   nothing.
//!
//! Not here: the statements (`store`); when to renew and when to stop (the master's server).

mod connection;
mod schema;
#[cfg(test)]
mod tests;

use super::{
    sql::{
        Reign, RowReader, Sql, SqlDatabase, SqlDialect, SqlError, SqlRemedy, SqlResult, SqlRow, SqlValue,
        SqlWish, checked,
    },
    store::TableStore,
};
use crate::tables::meta_store::{Holder, LEASE_MS, Lead, Meta, MetaError};
use connection::Connection;
use mysql::{Value, prelude::Queryable};

/// Two transactions waited for each other; one waited too long for a lock. The whole of it may be run again.
const RETRIED: [u16; 2] = [1213, 1205];

/// Too many connections; the server is shutting down; a Galera node that is not ready.
const ENDING: [u16; 5] = [1040, 1053, 1077, 1079, 1047];

/// The master's tables on a server.
pub type MysqlStore = TableStore<MysqlDatabase>;

impl MysqlStore {
    /// Opens the database at `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, and makes the tables where there are
    /// none. With `?require_ssl=true`, and the other words of the client library for TLS, the connection is
    /// encrypted. Blocks, 5 s at most for the connection and 15 s for an answer; so does every call.
    /// # Errors
    /// It cannot be reached, or another release wrote it.
    pub fn open(url: &str) -> Result<MysqlStore, MetaError> {
        Ok(TableStore::of(MysqlDatabase { connection: Connection::open(url)? }))
    }
}

/// A server with the tables.
pub struct MysqlDatabase {
    connection: Connection,
}

impl SqlDatabase for MysqlDatabase {
    const DIALECT: SqlDialect = SqlDialect {
        insert_new: "INSERT IGNORE",
        for_update: " FOR UPDATE",
        greatest: "GREATEST",
        term_table: "leader",
        select_cluster:
            "SELECT cluster.uuid, cluster.map_version, leader.term, cluster.replicas, cluster.min_ack,
            cluster.group_count FROM cluster JOIN leader ON leader.id = cluster.id",
        insert_cluster: "INSERT INTO cluster VALUES (1, ?, 1, ?, ?, ?)",
        insert_leader: Some("INSERT INTO leader VALUES (1, 0, REPEAT(X'00', 24), '2000-01-01 00:00:00', 0)"),
        unmark_dir: "UPDATE dir JOIN removing ON dir.parent = removing.parent AND dir.name = removing.name
            SET dir.removing = 0",
    };
    const IS_SHARED: bool = true;

    fn read<T>(&mut self, run: impl Fn(&mut dyn Sql) -> SqlResult<T>) -> Result<T, MetaError> {
        self.connection.read(|on| run(&mut Session(on)))
    }

    fn transaction<T>(&mut self, fence: Option<Reign>, run: impl Fn(&mut dyn Sql) -> SqlWish<T>) -> Meta<T> {
        self.connection.transact(fence, |on| run(&mut Session(on)))
    }

    fn lead(&mut self, holder: Holder) -> Result<Lead, MetaError> {
        let take = format!(
            "UPDATE leader SET term = term + 1, holder = ?, expires = NOW(6) + INTERVAL {LEASE_MS} * 1000 MICROSECOND
             WHERE id = 1 AND (holder = ? OR expires < NOW(6))"
        );
        let look =
            "SELECT term, holder = ?, TIMESTAMPDIFF(MICROSECOND, NOW(6), expires) FROM leader WHERE id = 1";
        let me = || holder.0.to_vec();
        let row: Option<(u64, bool, i64)> = self.connection.read(|on| {
            on.exec_drop(&take, (me(), me()))?;
            checked(on.exec_first_opt(look, (me(),))?)
        })?;
        match row {
            Some((term, true, _)) => Ok(Lead::Mine { term }),
            Some((_, false, left_us)) => {
                let left_ms = u64::try_from(left_us / 1000).unwrap_or(0);
                Ok(Lead::Theirs { left_ms })
            }
            None => Err(MetaError::Failed("it holds no cluster; make one first".to_owned())),
        }
    }

    fn renew(&mut self, (holder, term): Reign) -> Result<bool, MetaError> {
        let renew = format!(
            "UPDATE leader SET expires = NOW(6) + INTERVAL {LEASE_MS} * 1000 MICROSECOND
             WHERE id = 1 AND holder = ? AND term = ?"
        );
        self.connection.read(|on| {
            on.exec_drop(&renew, (holder.0.to_vec(), term))?;
            Ok(on.affected_rows() == 1)
        })
    }
}

/// A connection or a transaction, for statements.
struct Session<'a, Q>(&'a mut Q);

impl<Q: Queryable> Sql for Session<'_, Q> {
    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> SqlResult<u64> {
        // A statement without values is not prepared.
        if values.is_empty() {
            return Ok(self.0.query_iter(sql)?.affected_rows());
        }
        Ok(self.0.exec_iter(sql, columns(values))?.affected_rows())
    }

    fn query(&mut self, sql: &str, values: &[SqlValue<'_>], reader: &mut RowReader<'_>) -> SqlResult<()> {
        for row in self.0.exec_iter(sql, columns(values))? {
            if reader(&SqlRow::Server(&row?))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn missing(&self, sentence: String) -> SqlError {
        SqlError::of_row(sentence)
    }
}

fn columns(values: &[SqlValue<'_>]) -> Vec<Value> {
    let column = |value: &SqlValue<'_>| match *value {
        SqlValue::Number(number) | SqlValue::Limit(number) => Value::UInt(number),
        SqlValue::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        SqlValue::Text(text) => Value::Bytes(text.as_bytes().to_vec()),
    };
    values.iter().map(column).collect()
}

impl From<mysql::Error> for SqlError {
    fn from(error: mysql::Error) -> SqlError {
        let code = match &error {
            mysql::Error::MySqlError(error) => error.code,
            _ => 0,
        };
        let is_broken = error.is_connectivity_error();
        let remedy = match is_broken {
            true => SqlRemedy::Reconnect,
            false if RETRIED.contains(&code) => SqlRemedy::Again,
            false => SqlRemedy::Nothing,
        };
        let error = match is_broken || ENDING.contains(&code) {
            true => MetaError::Away(sentence(&error)),
            false => MetaError::Failed(sentence(&error)),
        };
        SqlError { error, remedy }
    }
}

/// What the library says, without the names of its types around it.
fn sentence(error: &mysql::Error) -> String {
    match error {
        mysql::Error::DriverError(error) => error.to_string(),
        mysql::Error::IoError(error) => error.to_string(),
        mysql::Error::MySqlError(error) => error.to_string(),
        other => other.to_string(),
    }
}
