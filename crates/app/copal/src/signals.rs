//! Handling of Ctrl-C and SIGTERM. The first asks the operation to stop where the store is consistent. A
//! later one ends the process at once, which the store survives by its own recovery.

pub(crate) mod text_file;

use crate::failure::{Failure, Outcome, exit};
use copal_backup::CancelFlag;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Signals within this time after the first count as the same request: `timeout` signals its child and then
/// its group, and Ctrl-C reaches the servers of `copal serve` from the terminal and from their parent.
const SAME: Duration = Duration::from_millis(500);
/// The thread only waits, so a small stack suffices.
const STACK_BYTES: usize = 64 << 10;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Raised by the first signal.
static CAUGHT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether a signal asked this process to end.
pub(crate) fn is_caught() -> bool {
    CAUGHT.get().is_some_and(|raised| raised.load(Ordering::SeqCst))
}

/// Turns a write beyond the file size limit of this process (ulimit -f) into an error, as on a full disk,
/// instead of a fatal signal.
pub(crate) fn outlive_file_limits() {
    // A handler, since child processes would inherit an ignored signal. If it cannot be set, the default
    // remains.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Catches the signals from now on. The handler of the first raises the flag. So code that fails afterwards,
/// for example because a pipe's reader got the signal as well, sees the interruption.
pub(crate) fn catch() -> Outcome<CancelFlag> {
    let raised = Arc::clone(CAUGHT.get_or_init(Arc::default));
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
