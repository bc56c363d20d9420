//! Reads a short file of text that may be a pipe, such as `<(...)` of a shell.
//!
//! Invariant: a signal ends the wait for a writer or its bytes. A read that blocks would begin again after the first
//! signal, whose handler only raises a flag.

use super::is_caught;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{fs::File, io, io::Read, path::Path};
use zeroize::Zeroizing;

/// Longest wait between two looks at an interruption: 50 ms.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The first `bytes_max` bytes of a file. `None`: a signal asked the process to end.
/// # Errors
/// It cannot be opened or read, or is not UTF-8.
pub(crate) fn read(path: &Path, bytes_max: usize) -> io::Result<Option<Zeroizing<String>>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    // Of full length from the start: a vector that grows leaves copies of a password behind.
    let mut bytes = Zeroizing::new(vec![0; bytes_max]);
    let mut length = 0;
    while length < bytes_max {
        if !wait_readable(&file)? {
            return Ok(None);
        }
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
            }
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&bytes[..length])
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?;
    Ok(Some(Zeroizing::new(text.to_owned())))
}

/// Waits until a read does not block. False: a signal asked the process to end.
fn wait_readable(file: &File) -> io::Result<bool> {
    loop {
        if is_caught() {
            return Ok(false);
        }
        // A pipe without a writer is not readable before one has come and gone.
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&LOOK_INTERVAL)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
