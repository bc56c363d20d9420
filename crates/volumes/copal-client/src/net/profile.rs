//! Profile of a client: addresses of the masters and its credentials, in one private file.

use serde::{Deserialize, Serialize};
use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Contents of the file `client.json`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientProfile {
    /// Version of this file.
    pub v: u32,
    /// Id of the cluster, in hexadecimal digits.
    pub cluster: String,
    /// Masters: host:port.
    pub masters: Vec<String>,
    /// Certificate of the cluster's authority, PEM.
    pub authority: String,
    /// This client's certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// Name of a client with restricted rights; `None`: a client with all rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file does not exist or cannot be read.
    #[error("cannot read the profile {}: {source}; `copal master --new` and `copal serve --dev` write one into their directory", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The file is no profile.
    #[error("{} is no profile of a cluster: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem in its contents.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write the profile {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
}

const VERSION: u32 = 1;
/// Longest profile that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

impl ClientProfile {
    /// Reads a profile.
    /// # Errors
    /// `Read`, `Malformed`.
    pub fn read(path: &Path) -> Result<ClientProfile, ProfileError> {
        let read = |source| ProfileError::Read { path: path.to_owned(), source };
        let malformed = |reason: String| ProfileError::Malformed { path: path.to_owned(), reason };
        let length = path.metadata().map_err(read)?.len();
        if length > MAX_BYTES {
            return Err(malformed(format!("it has {length} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        let profile: ClientProfile =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if profile.v != VERSION {
            return Err(malformed(format!("it has version {}, this release knows {VERSION}", profile.v)));
        }
        if profile.masters.is_empty() {
            return Err(malformed("it names no master".to_owned()));
        }
        Ok(profile)
    }

    /// A profile of this release.
    pub fn new(
        cluster: [u8; 16],
        masters: Vec<String>,
        authority: String,
        certificate: String,
        key: String,
    ) -> ClientProfile {
        ClientProfile {
            v: VERSION,
            cluster: cluster.iter().map(|byte| format!("{byte:02x}")).collect(),
            masters,
            authority,
            certificate,
            key,
            client: None,
        }
    }

    /// Writes a profile that only its owner may read. Replaces an existing file atomically.
    /// # Errors
    /// `Write`.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let failed = |source| ProfileError::Write { path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        write_private(path, &text).map_err(failed)
    }

    /// The same profile with `master` as the first address.
    pub fn with_first_master(mut self, master: &str) -> ClientProfile {
        self.masters.retain(|known| known != master);
        self.masters.insert(0, master.to_owned());
        self
    }
}

/// Writes a file that only its owner may read, durably. Replaces an existing file atomically. Concurrent writers
/// do not interfere: the last rename counts.
/// # Errors
/// As the file system says.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    // Each writer has its own unfinished file, under a random name.
    let drawn =
        copal_volume::random_incarnation().map_err(|error| std::io::Error::other(error.to_string()))?;
    let unfinished = path.with_extension(format!("{drawn:016x}.unfinished"));
    let written = write_new(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, path));
    if let Err(error) = written {
        // The file may not exist.
        let _ = std::fs::remove_file(&unfinished);
        return Err(error);
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl std::fmt::Debug for ClientProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not appear in logs.
        f.debug_struct("Profile")
            .field("cluster", &self.cluster)
            .field("masters", &self.masters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: `copal serve --masters 3` ended with "cannot write the profile: No such file" while another
    /// command used the cluster. Cause: both wrote through the same unfinished file, and each removed the
    /// other's. Fix: each writer has its own.
    #[test]
    fn concurrent_writers_leave_one_complete_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.json");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let text = format!("{writer}").repeat(5000);
                    for _ in 0..25 {
                        write_private(path, &text).unwrap();
                        let read = std::fs::read_to_string(path).unwrap();
                        assert!(read.len() == 5000 && read.bytes().all(|byte| byte == read.as_bytes()[0]));
                    }
                });
            }
        });
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "no unfinished file is left");
    }
}
