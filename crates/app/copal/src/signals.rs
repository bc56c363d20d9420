//! Ctrl-C and SIGTERM: the first asks the operation to stop where the store is consistent, a later one ends
//! the process at once (the store survives that too, by its own recovery).

use crate::failure::{Failure, Outcome, exit};
use copal_backup::CancelFlag;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// What comes so soon behind the first signal asks for the same: `timeout` signals its child and then its
/// group, and Ctrl-C reaches the servers of `copal serve` from the terminal and from their parent.
const SAME: Duration = Duration::from_millis(500);
/// The thread only waits.
const STACK_BYTES: usize = 64 << 10;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A write beyond the largest file that this process may have (ulimit -f) is an error from here on, as on a
/// full disk, and ends no process.
pub(crate) fn outlive_file_limits() {
    // A handler, since programs that are started would inherit an ignored signal. Where it cannot be set
    // nothing changes.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Catches the signals from here on; the flag is raised by the first of them, in its handler: whoever fails
/// behind it, since the reader of a pipe was told as well, knows that it was interrupted.
pub(crate) fn catch() -> Outcome<CancelFlag> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        flag::register(signal, Arc::clone(&raised)).map_err(uncaught)?;
    }
    let caught = Signals::new(SIGNALS).and_then(|signals| {
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.stack_size(STACK_BYTES).spawn(move || end_at_the_second(signals))
    });
    caught.map_err(uncaught)?;
    Ok(CancelFlag::from_shared(raised))
}

fn uncaught(error: std::io::Error) -> Failure {
    Failure::plain("signals", format!("cannot catch signals: {error}"))
}

fn end_at_the_second(mut signals: Signals) {
    let mut first: Option<Instant> = None;
    for _ in signals.forever() {
        if first.get_or_insert_with(Instant::now).elapsed() > SAME {
            low_level::exit(i32::from(exit::INTERRUPTED));
        }
    }
}
