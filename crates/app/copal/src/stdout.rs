//! Standard output whose failed writes make the command fail: a result that was not delivered is no success.
//!
//! The standard library opens `/dev/null` in place of a closed standard output (`copal stats >&-`), so the
//! check runs before `main`.
//!
//! Not here: the content of the output (`output`).
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
/// Error of the first failed write.
static FAILED: Mutex<Option<String>> = Mutex::new(None);

#[cfg(target_os = "linux")]
#[used]
// SAFETY: the loader calls the functions of this section before `main`, in one thread; `look` takes no
// arguments, allocates nothing and uses nothing of the standard library but an atomic.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

#[cfg(target_os = "linux")]
extern "C" fn look() {
    // SAFETY: F_GETFD queries whether a descriptor is open, and changes nothing.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Whether standard output was closed at the start.
pub(crate) fn is_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

/// Writes and flushes; a failure is recorded, and the work continues.
pub(crate) fn write(text: &str) {
    let outcome = match is_closed() {
        true => Err(io::Error::other("it is closed")),
        false => io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()),
    };
    if let Err(error) = outcome {
        note(&error);
    }
}

/// Records a write that failed elsewhere.
pub(crate) fn note(error: &io::Error) {
    FAILED.lock().get_or_insert_with(|| error.to_string());
}

/// The failure of a command that completed but could not deliver its result.
pub(crate) fn failure() -> Option<Failure> {
    let error = FAILED.lock().clone()?;
    Some(Failure::plain(
        "standard_output",
        format!(
            "standard output did not take the whole result: {error}; the command itself completed, check the target of its output"
        ),
    ))
}
