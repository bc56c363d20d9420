//! The master's tables in MySQL or MariaDB: several masters share them, and one leads.
//!
//! Paper: beanfs §3.4.1, §4.2 (stand-by masters; here they share the database instead of following one
//! another)
//! Format: docs/formats/master-mysql.md v1
//! Invariants
//! - The database's clock alone ends leases.
//! - Every change of a leader is fenced (`connection`), so a master that was paused beyond its lease changes
//!   nothing.
//!
//! Not here: the statements (`store`); the times of renewal (the master's server).

mod connection;
mod schema;
#[cfg(test)]
mod tests;

use super::{
    sql::{
        LeaderFence, RowReader, SqlDatabase, SqlDialect, SqlError, SqlOutcome, SqlRemedy, SqlResult, SqlRow,
        SqlSession, SqlValue, checked,
    },
    store::TableStore,
};
use crate::tables::meta_store::{LEASE_MS, LeaseHolder, LeaseOutcome, MetaError, MetaOutcome};
use connection::ServerConnection;
use mysql::{Value, prelude::Queryable};

/// Deadlock; lock wait timeout. The whole transaction may run again.
const RETRIED: [u16; 2] = [1213, 1205];

/// Too many connections; the server shuts down; a Galera node is not ready.
const ENDING: [u16; 5] = [1040, 1053, 1077, 1079, 1047];

/// The master's tables on a server.
pub type MysqlStore = TableStore<MysqlDatabase>;

impl MysqlStore {
    /// Opens the database at `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, and creates missing tables. With
    /// `?require_ssl=true`, and the client library's other options for TLS, the connection is encrypted. This
    /// and every other call blocks for at most 5 s for the connection and 15 s for an answer.
    /// # Errors
    /// It cannot be reached, or another release wrote it.
    pub fn open(url: &str) -> Result<MysqlStore, MetaError> {
        Ok(TableStore::of(MysqlDatabase { connection: ServerConnection::open(url)? }))
    }
}

/// A server with the tables.
pub struct MysqlDatabase {
    connection: ServerConnection,
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

    fn read<T>(&mut self, run: impl Fn(&mut dyn SqlSession) -> SqlResult<T>) -> Result<T, MetaError> {
        self.connection.read(|on| run(&mut MysqlSession(on)))
    }

    fn transaction<T>(
        &mut self,
        fence: Option<LeaderFence>,
        run: impl Fn(&mut dyn SqlSession) -> SqlOutcome<T>,
    ) -> MetaOutcome<T> {
        self.connection.transact(fence, |on| run(&mut MysqlSession(on)))
    }

    fn lead(&mut self, holder: LeaseHolder) -> Result<LeaseOutcome, MetaError> {
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
            Some((term, true, _)) => Ok(LeaseOutcome::Mine { term }),
            Some((_, false, left_us)) => {
                let left_ms = u64::try_from(left_us / 1000).unwrap_or(0);
                Ok(LeaseOutcome::Theirs { left_ms })
            }
            None => Err(MetaError::Failed("it holds no cluster; make one first".to_owned())),
        }
    }

    fn renew(&mut self, (holder, term): LeaderFence) -> Result<bool, MetaError> {
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

/// A connection or a transaction that runs statements.
struct MysqlSession<'a, Q>(&'a mut Q);

impl<Q: Queryable> SqlSession for MysqlSession<'_, Q> {
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

/// The library's message, without the names of its types.
fn sentence(error: &mysql::Error) -> String {
    match error {
        mysql::Error::DriverError(error) => error.to_string(),
        mysql::Error::IoError(error) => error.to_string(),
        mysql::Error::MySqlError(error) => error.to_string(),
        other => other.to_string(),
    }
}
