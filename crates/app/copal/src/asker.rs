//! What a command brings along when it asks the agents of a fleet.

use copal_backup::{Error, Result};
use std::path::{Path, PathBuf};

/// Bytes of a disk that are asked for at once: the answers for 1.5 million chunks take 6 MB.
pub(crate) const PART_BYTES: u64 = 24 << 30;
/// Longest name of whoever asks, as agents take it.
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

/// A directory for what waits between the passes; on a disk, if nobody says otherwise: /tmp may be memory.
pub(crate) fn spool_directory() -> Result<tempfile::TempDir> {
    let parent = match std::env::var_os("TMPDIR") {
        Some(named) => PathBuf::from(named),
        None if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        None => std::env::temp_dir(),
    };
    let made = tempfile::Builder::new().prefix("copal-").tempdir_in(&parent);
    made.map_err(|error| Error::Spool { detail: format!("{}: {error}", parent.display()) })
}
