//! Standard input whose blocked reads end when the user interrupts.
//!
//! A signal does not end a blocked read on a pipe, so reads wait with `poll` in short steps.

use copal_backup::CancelFlag;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, Read};

/// Reads descriptor 0 until the flag is raised; then every read fails.
pub(crate) struct InterruptibleStdin {
    cancel: CancelFlag,
    inner: io::Stdin,
}

impl InterruptibleStdin {
    pub(crate) fn new(cancel: CancelFlag) -> InterruptibleStdin {
        InterruptibleStdin { cancel, inner: io::stdin() }
    }
}

impl Read for InterruptibleStdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            if self.cancel.is_cancelled() {
                return Err(io::Error::other("interrupted"));
            }
            let mut files = [PollFd::new(&self.inner, PollFlags::IN)];
            match rustix::event::poll(&mut files, Some(&STEP)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // The interruption may also have ended the pipe's writer: then the end of the pipe is not the
                // end of a disk.
                Ok(_) if self.cancel.is_cancelled() => {}
                // Reads below the buffer of `io::Stdin`, which `poll` would not see.
                Ok(_) => return Ok(rustix::io::read(&self.inner, &mut *buf)?),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
