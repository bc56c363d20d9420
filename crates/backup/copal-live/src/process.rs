//! Process behind a QMP socket, read from `/proc`: its command line and the location of its files.
//!
//! QEMU reports a file by the name it was given. That name may be relative to another directory, or below
//! another root. Nothing fails here: for a process on another host, in another container or of another user,
//! less or nothing is known.

use crate::qmp::QmpClient;
use std::{
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Maximum length of a command line, in bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A process, by its directory in `/proc`.
#[derive(Debug, Default)]
pub(crate) struct QemuProcess(Option<PathBuf>);

impl QemuProcess {
    /// The process that listens on the socket. If the socket was passed to QEMU, it is the process that
    /// created it.
    pub(crate) fn of(client: &QmpClient) -> QemuProcess {
        QemuProcess(client.peer().map(|process| format!("/proc/{process}").into()))
    }

    /// Its command line, with a zero byte after each argument; empty if the system does not show it.
    pub(crate) fn command_line(&self) -> String {
        let read = |process: &PathBuf| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let line = File::open(process.join("cmdline"))?;
            line.take(MAX_LINE_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let line = self.0.as_ref().and_then(|process| read(process).ok());
        String::from_utf8_lossy(&line.unwrap_or_default()).into_owned()
    }

    /// The path of a file that the process names; `None` if it cannot be determined. A relative name counts
    /// only for a file that the process has open, since the process may have passed the socket on.
    pub(crate) fn find(&self, name: &Path) -> Option<PathBuf> {
        let as_named = name.is_absolute().then(|| name.to_owned());
        let Some(process) = &self.0 else { return as_named };
        let link = process.join(if name.is_absolute() { "root" } else { "cwd" });
        let through = link.join(name.strip_prefix("/").unwrap_or(name));
        let Ok(theirs) = through.metadata() else {
            return as_named;
        };
        if !name.is_absolute() && !has_open(process, &theirs) {
            return None;
        }
        // Prefer the usual name, if it leads to the same file here.
        let known = std::fs::read_link(&link).map(|base| base.join(name)).ok()?;
        match known.metadata() {
            Ok(ours) if is_same(&ours, &theirs) => Some(known),
            _ => Some(through),
        }
    }
}

fn has_open(process: &Path, file: &Metadata) -> bool {
    let mut open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.any(|open| open.path().metadata().is_ok_and(|open| is_same(&open, file)))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_the_name_that_a_process_uses() {
        let process = QemuProcess(Some("/proc/self".into()));
        assert!(process.command_line().contains('\0'));
        // Tests run in the directory of their crate.
        let name = Path::new("Cargo.toml");
        assert_eq!(process.find(name), None);
        let open = File::open(name).unwrap();
        let known = std::env::current_dir().unwrap().join(name);
        assert_eq!(process.find(name), Some(known.clone()));
        drop(open);
        assert_eq!(process.find(&known), Some(known.clone()));
        assert_eq!(process.find(Path::new("none")), None);
        let unknown = QemuProcess::default();
        assert_eq!(unknown.command_line(), "");
        assert_eq!((unknown.find(name), unknown.find(&known)), (None, Some(known)));
    }
}
