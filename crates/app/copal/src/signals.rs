//! Ctrl-C and SIGTERM: the first asks the operation to stop where the store is consistent, the
//! second ends the process at once (the store survives that too, by its own recovery).

use crate::failure::{Failure, Outcome, exit};
use copal_backup::CancelFlag;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::sync::{Arc, atomic::AtomicBool};

/// Catches the signals from here on; the flag is raised by the first of them.
pub(crate) fn catch() -> Outcome<CancelFlag> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the shutdown looks at the flag before the same signal raises it.
        flag::register_conditional_shutdown(signal, i32::from(exit::INTERRUPTED), Arc::clone(&raised))
            .and_then(|_| flag::register(signal, Arc::clone(&raised)))
            .map_err(|error| Failure::plain("signals", format!("cannot catch signals: {error}")))?;
    }
    Ok(CancelFlag::from_shared(raised))
}
