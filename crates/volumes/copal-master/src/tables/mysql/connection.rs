//! One connection to the database server, with retries of whole transactions when the server demands it.
//!
//! Invariants
//! - A transaction with changes begins with a write to the row of the lease, under the term of its master. So a
//!   replaced master waits for its successor or is refused, and the changes of masters have one order.
//! - Every wait has a limit: connecting, reading, writing and waiting for locks.

use super::schema;
use crate::tables::meta_store::{MetaError, MetaOutcome};
use crate::tables::sql::{LeaderFence, SqlError, SqlOutcome, SqlRemedy, SqlResult};
use mysql::{Conn, Opts, OptsBuilder, Transaction, TxOpts, consts::CapabilityFlags, prelude::Queryable};
use std::time::Duration;

/// First statement of each transaction with changes. It is a real write, so that a cluster of databases
/// certifies it. If it matches no row, the master is deposed.
const FENCE: &str = "UPDATE leader SET beat = beat + 1 WHERE id = 1 AND holder = ? AND term = ?";
const ATTEMPTS: u32 = 8;
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);
/// Seconds; below [`ANSWER`], so that the server gives up before its client does.
const LOCK_WAIT_S: u32 = 3;
/// "There is no such variable": a server without Galera.
const NO_SUCH_VARIABLE: u16 = 1193;

/// End of a failed transaction.
enum TransactionEnd {
    /// It failed before its commit, so it changed nothing.
    Undone(SqlError),
    /// It failed in its commit, so the outcome is unknown.
    Unclear(mysql::Error),
    Deposed,
}

impl<T: Into<SqlError>> From<T> for TransactionEnd {
    fn from(trouble: T) -> TransactionEnd {
        TransactionEnd::Undone(trouble.into())
    }
}

/// The connection; it is renewed after it broke.
pub(super) struct ServerConnection {
    options: Opts,
    open: Option<Conn>,
}

impl ServerConnection {
    /// Connects to the database in `url` and creates missing tables.
    pub(super) fn open(url: &str) -> Result<ServerConnection, MetaError> {
        let given =
            Opts::from_url(url).map_err(|error| MetaError::Failed(format!("its address: {error}")))?;
        let options = OptsBuilder::from_opts(given)
            // The local socket of a server on this machine would bypass TLS.
            .prefer_socket(false)
            .tcp_connect_timeout(Some(CONNECT))
            .read_timeout(Some(ANSWER))
            .write_timeout(Some(ANSWER))
            // Updates report the rows that they matched, also unchanged ones.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            .init(vec![
                // UTC has no daylight saving, and leases end by the clock.
                "SET SESSION time_zone = '+00:00'".to_owned(),
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES'".to_owned(),
                format!("SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}"),
            ]);
        let mut connection = ServerConnection { options: options.into(), open: None };
        schema::make(connection.get()?)?;
        Ok(connection)
    }

    fn get(&mut self) -> SqlResult<&mut Conn> {
        let connection = match self.open.take() {
            Some(connection) => connection,
            None => {
                let mut connection = Conn::new(self.options.clone())?;
                // In a cluster of databases, reads see all commits that another node has answered.
                match connection.query_drop("SET SESSION wsrep_sync_wait = 1") {
                    Err(mysql::Error::MySqlError(error)) if error.code == NO_SUCH_VARIABLE => {}
                    other => other?,
                }
                connection
            }
        };
        Ok(self.open.insert(connection))
    }

    /// Runs reads, or one idempotent statement; runs them again after a broken connection.
    pub(super) fn read<T>(&mut self, run: impl Fn(&mut Conn) -> SqlResult<T>) -> Result<T, MetaError> {
        let mut attempt = 1;
        loop {
            match self.get().and_then(&run) {
                Ok(value) => return Ok(value),
                Err(failed) => self.prepare_again(failed, &mut attempt)?,
            }
        }
    }

    /// Runs a transaction, under a leader's fence unless it creates the cluster. An error of the user undoes
    /// it.
    pub(super) fn transact<T>(
        &mut self,
        fence: Option<LeaderFence>,
        run: impl Fn(&mut Transaction<'_>) -> SqlOutcome<T>,
    ) -> MetaOutcome<T> {
        let mut attempt = 1;
        loop {
            let outcome = self.get().map_err(TransactionEnd::from).and_then(|connection| {
                let mut transaction = connection.start_transaction(TxOpts::default())?;
                if let Some((holder, term)) = fence {
                    transaction.exec_drop(FENCE, (holder.0.to_vec(), term))?;
                    if transaction.affected_rows() == 0 {
                        return Err(TransactionEnd::Deposed);
                    }
                }
                // A dropped transaction is undone.
                let outcome = run(&mut transaction)?;
                if outcome.is_ok() {
                    transaction.commit().map_err(TransactionEnd::Unclear)?;
                }
                Ok(outcome)
            });
            let failed = match outcome {
                Ok(outcome) => return Ok(outcome),
                Err(TransactionEnd::Deposed) => return Err(MetaError::Deposed),
                // The server refused the commit, so it has undone the transaction.
                Err(TransactionEnd::Unclear(error @ mysql::Error::MySqlError(_))) => error.into(),
                Err(TransactionEnd::Unclear(error)) => {
                    self.open = None;
                    return Err(MetaError::Unclear(error.to_string()));
                }
                Err(TransactionEnd::Undone(failed)) => failed,
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
