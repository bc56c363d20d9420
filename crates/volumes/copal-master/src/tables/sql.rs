//! Interface between the statements of the store and a database.
//!
//! Parameters are written as `?` and stand in the order of the statement: both databases know that form. The
//! statements also share `REPLACE INTO`, `COALESCE` and `LIMIT ?`.

use crate::tables::meta_store::{LeaseHolder, LeaseOutcome, MetaError, MetaOutcome};
use copal_volume::VolumeError;
use mysql::{FromRowError, prelude::FromValue};
use rusqlite::types::FromSql;
use std::ops::ControlFlow;

/// Words in which the dialects differ.
pub struct SqlDialect {
    /// Begin of an insert that leaves a present row with the same key unchanged.
    pub(super) insert_new: &'static str,
    /// End of a select of rows that the transaction is about to change. SQLite has one writer and no row locks.
    pub(super) for_update: &'static str,
    /// The larger of two numbers.
    pub(super) greatest: &'static str,
    /// The table with the leader's term: masters that share a database lock that row without locking the map.
    pub(super) term_table: &'static str,
    /// Selects uuid, version of the map, term, replicas, acknowledgements, and groups: `groups` is a reserved
    /// word of MySQL, and the term has its own table there.
    pub(super) select_cluster: &'static str,
    /// Inserts uuid, replicas, acknowledgements, and groups.
    pub(super) insert_cluster: &'static str,
    /// Inserts the row of the lease, where there is one.
    pub(super) insert_leader: Option<&'static str>,
    /// Clears all marks in `dir`. MariaDB can scan and lock all of `dir` for the subquery of SQLite's
    /// statement; SQLite has no join in an update.
    pub(super) unmark_dir: &'static str,
}

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub enum SqlValue<'a> {
    /// A number; in SQLite one above `i64::MAX` is stored as a negative number with the same bits.
    Number(u64),
    /// A limit; SQLite takes one above `i64::MAX` as `i64::MAX`.
    Limit(u64),
    /// A name, a hash, or an id.
    Bytes(&'a [u8]),
    /// A text.
    Text(&'a str),
}

/// Reaction of a transaction to a failed statement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SqlRemedy {
    /// The transaction fails.
    Nothing,
    /// The whole transaction runs again.
    Again,
    /// The transaction runs again, once, over a new connection.
    Reconnect,
}

/// A failed statement.
pub struct SqlError {
    pub(super) error: MetaError,
    pub(super) remedy: SqlRemedy,
}

/// Result of a statement.
pub(super) type SqlResult<T> = Result<T, SqlError>;
/// Result of a user's request in a transaction: an inner error undoes the transaction and is the user's.
pub(super) type SqlOutcome<T> = SqlResult<Result<T, VolumeError>>;
/// Holder of the lease, and the term in which it leads.
pub(super) type LeaderFence = (LeaseHolder, u64);

impl SqlError {
    /// Error for a row that the store never writes.
    pub(super) fn of_row(sentence: String) -> SqlError {
        SqlError { error: MetaError::Failed(sentence), remedy: SqlRemedy::Nothing }
    }
}

impl From<SqlError> for MetaError {
    fn from(failed: SqlError) -> MetaError {
        failed.error
    }
}

/// A row of a result, by the numbers of its columns.
pub enum SqlRow<'a> {
    /// Of SQLite.
    File(&'a rusqlite::Row<'a>),
    /// Of MySQL.
    Server(&'a mysql::Row),
}

impl SqlRow<'_> {
    /// A column; names and numbers of 64 bits have their own calls.
    pub(super) fn get<T: FromSql + FromValue>(&self, at: usize) -> SqlResult<T> {
        match self {
            SqlRow::File(row) => Ok(row.get(at)?),
            SqlRow::Server(row) => column(row, at),
        }
    }

    /// A number of 64 bits.
    pub(super) fn number(&self, at: usize) -> SqlResult<u64> {
        match self {
            SqlRow::File(row) => Ok(row.get::<_, i64>(at)? as u64),
            SqlRow::Server(row) => column(row, at),
        }
    }

    /// A text that is stored as bytes.
    pub(super) fn name(&self, at: usize) -> SqlResult<String> {
        match self {
            SqlRow::File(_) => {
                let name = String::from_utf8(self.get(at)?);
                name.map_err(|_| self.unknown(at, 0, String::new()))
            }
            SqlRow::Server(_) => self.get(at),
        }
    }

    /// The error for a column with a value that the store never writes. For SQLite it is an error of the
    /// library, with `value`.
    pub(super) fn unknown(&self, at: usize, value: i64, sentence: String) -> SqlError {
        match self {
            SqlRow::File(_) => rusqlite::Error::IntegralValueOutOfRange(at, value).into(),
            SqlRow::Server(_) => SqlError::of_row(sentence),
        }
    }
}

fn column<T: FromValue>(row: &mysql::Row, at: usize) -> SqlResult<T> {
    let wrong = || SqlError::of_row(FromRowError(row.clone()).to_string());
    row.get_opt(at).and_then(Result::ok).ok_or_else(wrong)
}

/// A first row of MySQL, or the error of a row with unexpected columns.
pub(super) fn checked<T>(first: Option<Result<T, FromRowError>>) -> SqlResult<Option<T>> {
    first.transpose().map_err(|error| SqlError::of_row(error.to_string()))
}

/// Takes the next row; the result tells whether to continue.
pub(super) type RowReader<'a> = dyn FnMut(&SqlRow<'_>) -> SqlResult<ControlFlow<()>> + 'a;

/// Runs statements, in a transaction or alone.
pub trait SqlSession {
    /// Runs a statement and returns the number of rows that it matched.
    fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> SqlResult<u64>;
    /// Reads rows.
    fn query(&mut self, sql: &str, values: &[SqlValue<'_>], reader: &mut RowReader<'_>) -> SqlResult<()>;
    /// The error for a missing row. For SQLite it is an error of the library.
    fn missing(&self, sentence: String) -> SqlError;
}

impl dyn SqlSession + '_ {
    /// All rows.
    pub(super) fn all<T>(
        &mut self,
        sql: &str,
        values: &[SqlValue<'_>],
        row: impl Fn(&SqlRow<'_>) -> SqlResult<T>,
    ) -> SqlResult<Vec<T>> {
        let mut rows = Vec::new();
        self.query(sql, values, &mut |columns| {
            rows.push(row(columns)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    /// The first row, or none.
    pub(super) fn first<T>(
        &mut self,
        sql: &str,
        values: &[SqlValue<'_>],
        row: impl Fn(&SqlRow<'_>) -> SqlResult<T>,
    ) -> SqlResult<Option<T>> {
        let mut first = None;
        self.query(sql, values, &mut |columns| {
            first = Some(row(columns)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }
}

/// A database with the tables.
pub trait SqlDatabase: Send {
    /// Its dialect.
    const DIALECT: SqlDialect;
    /// Several masters may share it; a lease determines the leader.
    const IS_SHARED: bool;

    /// Runs statements that change nothing, without a transaction.
    fn read<T>(&mut self, run: impl Fn(&mut dyn SqlSession) -> SqlResult<T>) -> Result<T, MetaError>;
    /// Runs a transaction. An error of the user undoes it. With a `fence` it changes nothing unless that holder
    /// leads in that term ([`MetaError::Deposed`]).
    fn transaction<T>(
        &mut self,
        fence: Option<LeaderFence>,
        run: impl Fn(&mut dyn SqlSession) -> SqlOutcome<T>,
    ) -> MetaOutcome<T>;

    /// Requests the lease; see [`crate::MetaStore::lead`].
    fn lead(&mut self, holder: LeaseHolder) -> Result<LeaseOutcome, MetaError>;
    /// Renews the lease of a term; false: another holder has had it since.
    fn renew(&mut self, fence: LeaderFence) -> Result<bool, MetaError>;
}
