//! Database of a master: a file of its own, or a database that several masters share.
//!
//! Invariant: the password of a database is in a file only: never among the arguments of a process, nor in a
//! message.

use crate::failure::{Failure, Outcome};
use copal_master::{MetaError, MetaStore, MysqlStore, SqliteStore};
use copal_server::{MasterHome, OpenMeta};
use std::path::{Path, PathBuf};

/// Longest password file that is read.
const MOST_BYTES: u64 = 4096;

/// Database of a master.
#[derive(Clone)]
pub(super) enum MasterDatabase {
    File(PathBuf),
    Shared { url: String, password_file: Option<PathBuf> },
}

impl MasterDatabase {
    pub(super) fn of(home: &MasterHome, directory: &Path) -> MasterDatabase {
        match &home.meta {
            None => MasterDatabase::File(MasterHome::database(directory)),
            Some(url) => {
                MasterDatabase::Shared { url: url.clone(), password_file: home.meta_password_file.clone() }
            }
        }
    }

    pub(super) fn open(&self) -> Result<Box<dyn MetaStore>, MetaError> {
        match self {
            MasterDatabase::File(path) => Ok(Box::new(SqliteStore::open(path)?)),
            MasterDatabase::Shared { url, password_file } => {
                let url = match password_file {
                    None => url.clone(),
                    Some(path) => with_password(url, &read(path)?),
                };
                Ok(Box::new(MysqlStore::open(&url)?))
            }
        }
    }

    pub(super) fn opener(self) -> OpenMeta {
        Box::new(move || self.open())
    }
}

fn read(path: &Path) -> Result<String, MetaError> {
    let failed = |error: std::io::Error| {
        let path = path.display();
        MetaError::Failed(format!("the file {path} with its password cannot be read: {error}"))
    };
    if path.metadata().map_err(failed)?.len() > MOST_BYTES {
        return Err(failed(std::io::Error::other("it is too long for one")));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The address with a password after the user.
fn with_password(url: &str, password: &str) -> String {
    let Some((user, rest)) = url.split_once('@') else {
        return url.to_owned();
    };
    let escaped: String = password
        .bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    format!("{user}:{escaped}@{rest}")
}

/// Refuses an invalid address, and one with a password in it.
pub(super) fn check_url(url: &str) -> Outcome<()> {
    let usage = |text: &str| Err(Failure::usage(text.to_owned()));
    let Some(rest) = url.strip_prefix("mysql://") else {
        return usage("--meta takes mysql://USER@HOST:PORT/DATABASE");
    };
    let (user, place) = rest.split_once('@').unwrap_or_default();
    if user.contains(':') {
        return usage(
            "every user of this machine can read a password in the arguments of a command; write it into a file that only you can read, and give --meta-password-file",
        );
    }
    match user.is_empty() || !place.contains('/') || place.ends_with('/') {
        true => usage("--meta takes mysql://USER@HOST:PORT/DATABASE"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_put_where_it_belongs_and_not_taken_from_words() {
        let url = "mysql://copal@127.0.0.1:3306/copal";
        assert_eq!(with_password(url, "a:b@/é"), "mysql://copal:a%3Ab%40%2F%C3%A9@127.0.0.1:3306/copal");
        assert!(check_url(url).is_ok());
        for wrong in ["copal", "mysql://127.0.0.1/copal", "mysql://copal@host", "mysql://copal:pw@host/db"] {
            assert!(check_url(wrong).is_err(), "{wrong}");
        }
    }
}
