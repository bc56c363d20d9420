//! One connection to the database server, and transactions that are run again as a whole where the server
//! asks for it.
//!
//! Invariants
//! - A transaction that changes anything begins with a write to the row of the lease, under the term of the
//!   master that runs it. So a master that was replaced waits for, or is refused by, the one after it, and the
//!   changes of masters have one order.
//! - No wait is without end: connecting, reading, writing and waiting for locks all have a limit.

use super::schema;
use crate::tables::meta_store::{Meta, MetaError};
use crate::tables::sql::{Reign, SqlError, SqlRemedy, SqlResult, SqlWish};
use mysql::{Conn, Opts, OptsBuilder, Transaction, TxOpts, consts::CapabilityFlags, prelude::Queryable};
use std::time::Duration;

/// Opens each transaction that changes something: a real write, so that a cluster of databases certifies it.
/// No row: deposed.
const FENCE: &str = "UPDATE leader SET beat = beat + 1 WHERE id = 1 AND holder = ? AND term = ?";
const ATTEMPTS: u32 = 8;
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);
/// Seconds; below [`ANSWER`], so that the server gives up before its client does.
const LOCK_WAIT_S: u32 = 3;
/// "There is no such variable": a server without Galera.
const NO_SUCH_VARIABLE: u16 = 1193;

/// How a transaction ended that did not hold.
enum Ended {
    /// Before its commit: nothing of it holds.
    Undone(SqlError),
    /// In its commit.
    Unclear(mysql::Error),
    Deposed,
}

impl<T: Into<SqlError>> From<T> for Ended {
    fn from(trouble: T) -> Ended {
        Ended::Undone(trouble.into())
    }
}

/// The connection, made again after it broke.
pub(super) struct Connection {
    options: Opts,
    open: Option<Conn>,
}

impl Connection {
    /// Connects to the database in `url` and makes the tables where there are none.
    pub(super) fn open(url: &str) -> Result<Connection, MetaError> {
        let given =
            Opts::from_url(url).map_err(|error| MetaError::Failed(format!("its address: {error}")))?;
        let options = OptsBuilder::from_opts(given)
            // The socket of a server on this machine would go past TLS.
            .prefer_socket(false)
            .tcp_connect_timeout(Some(CONNECT))
            .read_timeout(Some(ANSWER))
            .write_timeout(Some(ANSWER))
            // Rows that an update found, whether or not it changed them.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            .init(vec![
                // Clocks of one zone, which no summer moves: leases end by them.
                "SET SESSION time_zone = '+00:00'".to_owned(),
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES'".to_owned(),
                format!("SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}"),
            ]);
        let mut connection = Connection { options: options.into(), open: None };
        schema::make(connection.get()?)?;
        Ok(connection)
    }

    fn get(&mut self) -> SqlResult<&mut Conn> {
        let connection = match self.open.take() {
            Some(connection) => connection,
            None => {
                let mut connection = Conn::new(self.options.clone())?;
                // What another server of a cluster of databases has answered is seen here.
                match connection.query_drop("SET SESSION wsrep_sync_wait = 1") {
                    Err(mysql::Error::MySqlError(error)) if error.code == NO_SUCH_VARIABLE => {}
                    other => other?,
                }
                connection
            }
        };
        Ok(self.open.insert(connection))
    }

    /// Runs reads, or one statement that may be run twice; again after a broken connection.
    pub(super) fn read<T>(&mut self, run: impl Fn(&mut Conn) -> SqlResult<T>) -> Result<T, MetaError> {
        let mut attempt = 1;
        loop {
            match self.get().and_then(&run) {
                Ok(value) => return Ok(value),
                Err(failed) => self.prepare_again(failed, &mut attempt)?,
            }
        }
    }

    /// Runs a transaction, under a leader's fence where it changes anything but the making of the cluster;
    /// undone where a user's wish cannot be met.
    pub(super) fn transact<T>(
        &mut self,
        fence: Option<Reign>,
        run: impl Fn(&mut Transaction<'_>) -> SqlWish<T>,
    ) -> Meta<T> {
        let mut attempt = 1;
        loop {
            let outcome = self.get().map_err(Ended::from).and_then(|connection| {
                let mut transaction = connection.start_transaction(TxOpts::default())?;
                if let Some((holder, term)) = fence {
                    transaction.exec_drop(FENCE, (holder.0.to_vec(), term))?;
                    if transaction.affected_rows() == 0 {
                        return Err(Ended::Deposed);
                    }
                }
                // Dropped, it is undone.
                let outcome = run(&mut transaction)?;
                if outcome.is_ok() {
                    transaction.commit().map_err(Ended::Unclear)?;
                }
                Ok(outcome)
            });
            let failed = match outcome {
                Ok(outcome) => return Ok(outcome),
                Err(Ended::Deposed) => return Err(MetaError::Deposed),
                // A server that says no in so many words has undone it.
                Err(Ended::Unclear(error @ mysql::Error::MySqlError(_))) => error.into(),
                Err(Ended::Unclear(error)) => {
                    self.open = None;
                    return Err(MetaError::Unclear(error.to_string()));
                }
                Err(Ended::Undone(failed)) => failed,
            };
            self.prepare_again(failed, &mut attempt)?;
        }
    }

    /// Counts a failed attempt and drops a broken connection. Returns the error where no attempt is left.
    fn prepare_again(&mut self, failed: SqlError, attempt: &mut u32) -> Result<(), MetaError> {
        let is_retried = match failed.remedy {
            SqlRemedy::Nothing => false,
            SqlRemedy::Again => true,
            SqlRemedy::Reconnect => {
                self.open = None;
                *attempt == 1
            }
        };
        if !is_retried || *attempt == ATTEMPTS {
            return Err(failed.error);
        }
        *attempt += 1;
        Ok(())
    }
}
