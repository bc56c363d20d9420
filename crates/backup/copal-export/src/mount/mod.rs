//! Mounting: from a directory to a file system that is there until it is unmounted or told to end.
//!
//! Not here: what is in it (`filesystem`), names (`names`).

mod filesystem;
mod names;
mod shown;

pub use shown::Shown;

use crate::Closing;
use filesystem::SnapshotTree;
use fuser::{BackgroundSession, Config, MountOption, Session};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Threads that answer the kernel.
const THREADS: usize = 4;

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory is none.
    #[error("{path} is no directory; make an empty one and name that")]
    NoDirectory {
        /// As it was named.
        path: String,
    },
    /// What is in it would be hidden.
    #[error("{path} is not empty; name an empty directory, what is in this one would be hidden")]
    NotEmpty {
        /// As it was named.
        path: String,
    },
    /// Its file system has nobody who answers for it.
    #[error(
        "{path} is a mount whose process was killed; unmount it (fusermount3 -u {path}, as root also umount {path}), then \
         try again"
    )]
    Left {
        /// As it was named.
        path: String,
    },
    /// The kernel, or the helper, refused.
    #[error(
        "cannot mount on {path}: {source}; this needs /dev/fuse, and unless you are root the program fusermount3 \
         (apt install fuse3)"
    )]
    System {
        /// As it was named.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// A mounted file system; unmounted when it is dropped.
pub struct Mount {
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts on an empty directory, for reading and for its user alone. Returns once it is there.
    /// # Errors
    /// See [`MountError`]; nothing is mounted.
    pub fn start(path: &Path, shown: Shown, closing: &Closing) -> Result<Mount, MountError> {
        let named = || path.display().to_string();
        let mut entries = std::fs::read_dir(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => MountError::NoDirectory { path: named() },
            ErrorKind::NotConnected => MountError::Left { path: named() },
            _ => MountError::System { path: named(), source: error },
        })?;
        if entries.next().is_some() {
            return Err(MountError::NotEmpty { path: named() });
        }
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("copal".to_owned()),
            MountOption::Subtype("copal".to_owned()),
            MountOption::RO,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
            MountOption::DefaultPermissions,
        ];
        config.n_threads = Some(THREADS);
        let session = Session::new(SnapshotTree::new(shown, closing), path, &config);
        let session = session
            .and_then(Session::spawn)
            .map_err(|source| MountError::System { path: named(), source })?;
        Ok(Mount { path: path.to_owned(), session: Some(session) })
    }

    /// Whether somebody has unmounted it.
    pub fn is_gone(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts it. Where somebody has a file of it open the name goes at once, and their reads fail once
    /// this process ends.
    /// # Errors
    /// The system refused.
    pub fn end(mut self) -> Result<(), MountError> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let ended = match session.guard.is_finished() {
            // Nothing is left to unmount.
            true => session.join(),
            false => session.umount_and_join(),
        };
        match ended {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && detach(&self.path) => Ok(()),
            ended => {
                ended.map_err(|source| MountError::System { path: self.path.display().to_string(), source })
            }
        }
    }
}

/// Takes the name away from a mount in use; whether that worked.
fn detach(path: &Path) -> bool {
    let ways: [&[&str]; 2] = [&["fusermount3", "-u", "-z", "-q"], &["umount", "--lazy"]];
    ways.iter().any(|way| {
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
