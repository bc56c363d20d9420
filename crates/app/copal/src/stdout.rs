//! Standard output that takes no more: a result that nobody got is no success.
//!
//! The standard library opens `/dev/null` in the place of a standard output that was closed (`copal stats
//! >&-`), so that has to be looked at before `main`.
//!
//! Not here: what is written (`output`).
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "a function that the loader runs before the standard library")
)]

use crate::failure::Failure;
use parking_lot::Mutex;
use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);
/// What the first write that failed met.
static FAILED: Mutex<Option<String>> = Mutex::new(None);

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls what stands in this section, before `main`, in one thread; `look` takes no
// arguments, allocates nothing and uses nothing of the standard library but an atomic.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

#[cfg(target_os = "linux")]
extern "C" fn look() {
    // SAFETY: F_GETFD looks whether a descriptor is open, and changes nothing.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Whether there is none.
pub(crate) fn is_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

/// Writes and flushes; what fails is remembered, and the work goes on.
pub(crate) fn write(text: &str) {
    let outcome = match is_closed() {
        true => Err(io::Error::other("it is closed")),
        false => io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()),
    };
    if let Err(error) = outcome {
        note(&error);
    }
}

/// Remembers a write that failed elsewhere.
pub(crate) fn note(error: &io::Error) {
    FAILED.lock().get_or_insert_with(|| error.to_string());
}

/// How the command ends that did its work and could not say so.
pub(crate) fn failure() -> Option<Failure> {
    let error = FAILED.lock().clone()?;
    Some(Failure::plain(
        "standard_output",
        format!(
            "standard output took not all of the result: {error}; the command itself did its work, look at what it \
             writes to"
        ),
    ))
}
