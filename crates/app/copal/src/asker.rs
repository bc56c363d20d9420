//! Name, working directory and part size of a command that asks the agents of a fleet.

use copal_backup::{Error, Result};
use std::path::{Path, PathBuf};

/// Bytes of a disk per request: the answers for 1.5 million chunks take 6 MB.
pub(crate) const PART_BYTES: u64 = 24 << 30;
/// Longest name that agents accept.
const MAX_NAME_BYTES: usize = 64;

/// The name of this host.
pub(crate) fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c));
    let name: String = plain.take(MAX_NAME_BYTES).collect();
    match name.is_empty() {
        true => "host".to_owned(),
        false => name,
    }
}

/// A directory for files between the passes; by default on a disk, since /tmp may be in memory.
pub(crate) fn spool_directory() -> Result<tempfile::TempDir> {
    let parent = match std::env::var_os("TMPDIR") {
        Some(named) => PathBuf::from(named),
        None if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        None => std::env::temp_dir(),
    };
    let made = tempfile::Builder::new().prefix("copal-").tempdir_in(&parent);
    made.map_err(|error| Error::Spool { detail: format!("{}: {error}", parent.display()) })
}
