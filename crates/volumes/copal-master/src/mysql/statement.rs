//! One statement: its rows, and what can be wrong with it.

use crate::meta::MetaError;
use mysql::{
    Params,
    prelude::{FromRow, Queryable},
};

/// Two transactions waited for each other; one waited too long for a lock. The whole of it may be run again.
const RETRIED: [u16; 2] = [1213, 1205];

/// Too many connections; the server is shutting down; a Galera node that is not ready.
const ENDING: [u16; 5] = [1040, 1053, 1077, 1079, 1047];

/// Why a step of a transaction did not do.
pub(super) enum Trouble {
    Sql(mysql::Error),
    /// A row is not what it should be.
    Row(String),
}

impl From<mysql::Error> for Trouble {
    fn from(error: mysql::Error) -> Trouble {
        Trouble::Sql(error)
    }
}

impl From<Trouble> for MetaError {
    fn from(trouble: Trouble) -> MetaError {
        let is_away = trouble.is_broken_connection() || trouble.is_of_a_server_that_ends();
        match trouble {
            Trouble::Sql(error) if is_away => MetaError::Away(sentence(&error)),
            Trouble::Sql(error) => MetaError::Failed(sentence(&error)),
            Trouble::Row(reason) => MetaError::Failed(reason),
        }
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

impl Trouble {
    pub(super) fn is_to_be_retried(&self) -> bool {
        matches!(self, Trouble::Sql(mysql::Error::MySqlError(error)) if RETRIED.contains(&error.code))
    }

    fn is_of_a_server_that_ends(&self) -> bool {
        matches!(self, Trouble::Sql(mysql::Error::MySqlError(error)) if ENDING.contains(&error.code))
    }

    pub(super) fn is_broken_connection(&self) -> bool {
        matches!(self, Trouble::Sql(error) if error.is_connectivity_error())
    }
}

/// The first row, or none.
pub(super) fn first<T: FromRow>(
    on: &mut impl Queryable,
    statement: &str,
    parameters: impl Into<Params>,
) -> Result<Option<T>, Trouble> {
    match on.exec_first_opt(statement, parameters)? {
        Some(Ok(row)) => Ok(Some(row)),
        Some(Err(error)) => Err(Trouble::Row(error.to_string())),
        None => Ok(None),
    }
}

/// All rows.
pub(super) fn all<T: FromRow>(
    on: &mut impl Queryable,
    statement: &str,
    parameters: impl Into<Params>,
) -> Result<Vec<T>, Trouble> {
    let rows = on.exec_opt(statement, parameters)?;
    rows.into_iter().map(|row| row.map_err(|error| Trouble::Row(error.to_string()))).collect()
}
