//! Mount: a FUSE file system on a directory, until it is unmounted or ended.
//!
//! Not here: its content (`filesystem`), file names (`names`).

mod content;
mod filesystem;
mod names;

pub use content::MountContent;

use crate::CloseFlag;
use filesystem::SnapshotTree;
use fuser::{BackgroundSession, Config, MountOption, Session};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Threads that answer the kernel.
const THREADS: usize = 4;

/// Error of a mount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The path is not a directory.
    #[error("{path} is not a directory; make an empty one and name that")]
    NoDirectory {
        /// The path as given.
        path: String,
    },
    /// The directory is not empty.
    #[error("{path} is not empty; name an empty directory, the files in this one would be hidden")]
    NotEmpty {
        /// The path as given.
        path: String,
    },
    /// The process of the existing mount has ended.
    #[error(
        "{path} is a mount whose process was killed; unmount it (fusermount3 -u {path}, as root also umount {path}), then \
         try again"
    )]
    Left {
        /// The path as given.
        path: String,
    },
    /// The kernel or the helper program refused.
    #[error(
        "cannot mount on {path}: {source}; this needs /dev/fuse, and unless you are root the program fusermount3 \
         (apt install fuse3)"
    )]
    System {
        /// The path as given.
        path: String,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// A mounted file system, unmounted on drop.
pub struct SnapshotMount {
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl SnapshotMount {
    /// Mounts on an empty directory, read-only and for this user only. Returns when the mount is ready.
    /// # Errors
    /// See [`MountError`]; nothing is mounted.
    pub fn start(
        path: &Path,
        content: MountContent,
        close_flag: &CloseFlag,
    ) -> Result<SnapshotMount, MountError> {
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
        let session = Session::new(SnapshotTree::new(content, close_flag), path, &config);
        let session = session
            .and_then(Session::spawn)
            .map_err(|source| MountError::System { path: named(), source })?;
        Ok(SnapshotMount { path: path.to_owned(), session: Some(session) })
    }

    /// Whether the mount was unmounted by others.
    pub fn is_gone(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts. If a file is still open, the mount is detached at once, and reads fail when this process
    /// ends.
    /// # Errors
    /// The system refused.
    pub fn end(mut self) -> Result<(), MountError> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let ended = match session.guard.is_finished() {
            // Unmounted already.
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

/// Detaches a busy mount; returns whether that worked.
fn detach(path: &Path) -> bool {
    let ways: [&[&str]; 2] = [&["fusermount3", "-u", "-z", "-q"], &["umount", "--lazy"]];
    ways.iter().any(|way| {
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
