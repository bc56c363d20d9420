//! Finds the processes that hold the lock of a store, for the message that asks to wait for them.
//!
//! The kernel is the source: `/proc/locks` names the process of each lock, `/proc/PID` its command and age.
//! So no file has to be written that a killed writer would leave stale, or that could be forged. The answer
//! decides nothing. Unknown are processes on another machine, in another container, or hidden by another
//! user.

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Longest command in a message, in characters.
const COMMAND_CHARS: usize = 120;

/// A process that holds the lock of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Process id.
    pub pid: u32,
    /// Its command line at the start. Any user may have chosen it, so it is shown escaped only. Empty for a
    /// process that has ended while the kernel still releases its lock.
    pub command: String,
    /// Age of the process in seconds; `None`: unknown.
    pub age_seconds: Option<u64>,
}

/// The processes that hold the lock of the store at `path`: a file, a block device, or a directory of files.
/// Reads `/proc`; empty if that has no answer.
pub fn holders(path: &Path) -> Vec<LockHolder> {
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else {
        return Vec::new();
    };
    let mut found: Vec<LockHolder> = Vec::new();
    let locked = locked_files(path);
    for lock in locks.lines().filter_map(FileLock::parse) {
        let fits = locked.iter().any(|(name, meta)| lock.is_on(name, meta));
        if fits && found.iter().all(|holder| holder.pid != lock.pid) {
            found.push(look_at(lock.pid));
        }
    }
    found
}

/// Files that carry the lock of a store: the file or device itself; of a directory, also each entry in it.
fn locked_files(path: &Path) -> Vec<(PathBuf, Metadata)> {
    let within = std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    std::iter::once(path.to_owned())
        .chain(within)
        .filter_map(|name| Some((name.clone(), name.metadata().ok()?)))
        .collect()
}

/// A held lock on a whole file, from a line of `/proc/locks`.
#[derive(Debug, PartialEq, Eq)]
struct FileLock {
    pid: u32,
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileLock {
    /// Parses `1: FLOCK ADVISORY WRITE 3997 fe:00:5391347 0 EOF`; a process that waits for a lock has `->`
    /// behind the number.
    fn parse(line: &str) -> Option<FileLock> {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let mut words = words.skip(2);
        let pid = words.next()?.parse().ok()?;
        let mut place = words.next()?.split(':');
        let mut hex = || u32::from_str_radix(place.next()?, 16).ok();
        Some(FileLock { pid, major: hex()?, minor: hex()?, inode: place.next()?.parse().ok()? })
    }

    fn is_on(&self, name: &Path, meta: &Metadata) -> bool {
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        self.inode == meta.ino() && ((self.major, self.minor) == (major, minor) || self.has_open(name, meta))
    }

    /// Some file systems (btrfs, overlays) report another device to programs than in the lock. In that case
    /// the open files of the process decide.
    fn has_open(&self, name: &Path, meta: &Metadata) -> bool {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        let same = |file: PathBuf| {
            file.metadata().is_ok_and(|open| (open.dev(), open.ino()) == (meta.dev(), meta.ino()))
                || std::fs::read_link(&file).is_ok_and(|link| link == name)
        };
        files.into_iter().flatten().any(|file| file.is_ok_and(|file| same(file.path())))
    }
}

fn look_at(pid: u32) -> LockHolder {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    LockHolder { pid, command: command(&words), age_seconds: age_seconds(pid) }
}

/// The command line of a process, with the program's directory removed.
fn command(words: &[u8]) -> String {
    let words = String::from_utf8_lossy(words).trim_end_matches('\0').replace('\0', " ");
    let (program, rest) = words.split_at(words.find(' ').unwrap_or(words.len()));
    let program = program.rsplit('/').next().unwrap_or(program);
    let line = format!("{program}{rest}");
    match line.char_indices().nth(COMMAND_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn age_seconds(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // The name of the program stands in brackets and may hold any bytes; the start time is field 20 behind
    // it, in ticks.
    let began: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let now: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Some((now as u64).saturating_sub(began / ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_a_held_lock() {
        let lock = FileLock::parse("1: FLOCK  ADVISORY  WRITE 3997 fe:0a:5391347 0 EOF");
        let want = FileLock { pid: 3997, major: 0xfe, minor: 10, inode: 5_391_347 };
        assert_eq!(lock, Some(want));
        for line in [
            "",
            "1: -> FLOCK  ADVISORY  WRITE 3997 fe:00:5391347 0 EOF",
            "2: POSIX  ADVISORY  WRITE 3997 fe:00:5391347 0 EOF",
            "3: FLOCK  ADVISORY  WRITE -1 fe:00:5391347 0 EOF",
            "4: FLOCK  ADVISORY  WRITE 3997",
        ] {
            assert_eq!(FileLock::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_command_is_one_line_without_the_directory_of_its_program() {
        assert_eq!(command(b"/usr/bin/copal\0prune\0--repo\0/a b\0"), "copal prune --repo /a b");
        assert_eq!(command(b""), "");
        let long = command("ä".repeat(1000).as_bytes());
        assert_eq!(long.chars().count(), COMMAND_CHARS + 3);
    }

    #[test]
    fn this_process_is_found_by_its_lock() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("store");
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(holders(&path), []);
        file.lock_shared().unwrap();
        for path in [&path, &scratch.path().to_owned()] {
            let found = holders(path);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].pid, std::process::id());
            assert!(!found[0].command.is_empty() && found[0].age_seconds.is_some());
        }
    }
}
