//! The command of `--from-command`, whose standard output is a disk.
//!
//! In a shell's pipe, a failure of the first program is invisible, so half a disk looks like a small one.
//! Here the command is a child of this process, and its output becomes a snapshot only if it succeeds.
//!
//! Invariant: the command does not get the password, and ends with this process, together with its own
//! children.

use crate::failure::{Failure, Outcome, exit};
use copal_backup::CancelFlag;
use copal_disk::source::{SourceError, stream::StreamSource};
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, Signal, kill_process_group},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

/// Poll interval of the cancel flag.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts the command; its output is the source.
pub(super) fn start(words: &[OsString], cancel: &CancelFlag) -> Outcome<StreamSource> {
    let what = format!("the output of {}", words.join(OsStr::new(" ")).display());
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::usage("--from-command names no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("COPAL_PASSWORD");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // If a shell waits for a pipe, killing the shell alone leaves the pipe running. At a terminal Ctrl-C
    // reaches all processes of the pipe. There, only the foreground process group may ask for a password.
    let has_group = File::open("/dev/tty").is_err();
    if has_group {
        command.process_group(0);
    }
    let failed = |error: io::Error| {
        let sentence = format!(
            "cannot run {}: {error}; check its name and that it may be run, no snapshot was made",
            program.display()
        );
        Failure::new(exit::SOURCE, "source", sentence)
    };
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().ok_or_else(|| failed(io::Error::other("it has no output")))?;
    let producer = Arc::new(ProducerProcess {
        name: program.display().to_string(),
        child: Mutex::new(child),
        has_group,
    });
    let reader = ProducerOutput { output, cancel: cancel.clone(), _producer: Arc::clone(&producer) };
    let cancel = cancel.clone();
    let end = Box::new(move || producer.end(&cancel));
    Ok(StreamSource::with_end(what, Box::new(reader), end))
}

/// The running command; dropping it ends it.
struct ProducerProcess {
    name: String,
    child: Mutex<Child>,
    /// Whether it leads its own process group.
    has_group: bool,
}

impl ProducerProcess {
    /// Waits for its end, and fails unless it succeeded.
    fn end(&self, cancel: &CancelFlag) -> Result<(), SourceError> {
        let unusable = |how: String| SourceError::Unusable {
            reason: format!("{} {how}: its output is not used as a disk, no snapshot was made", self.name),
        };
        loop {
            let ended = self.child.lock().try_wait();
            match ended {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(unusable(format!("failed ({status})"))),
                Ok(None) if cancel.is_cancelled() => return Err(unusable("was interrupted".into())),
                // It has closed its output and still runs.
                Ok(None) => std::thread::park_timeout(std::time::Duration::from_millis(20)),
                Err(error) => return Err(unusable(format!("cannot be waited for ({error})"))),
            }
        }
    }
}

impl Drop for ProducerProcess {
    fn drop(&mut self) {
        let mut child = self.child.lock();
        // After a wait, its number may belong to another process.
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        // It may end at this moment, which is the goal.
        let group = Pid::from_raw(child.id() as i32).filter(|_| self.has_group);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Its output, until the user interrupts.
struct ProducerOutput {
    output: ChildStdout,
    cancel: CancelFlag,
    _producer: Arc<ProducerProcess>,
}

impl Read for ProducerOutput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.cancel.is_cancelled() {
                return Err(io::Error::other("interrupted"));
            }
            let mut files = [PollFd::new(&self.output, PollFlags::IN)];
            match rustix::event::poll(&mut files, Some(&STEP)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) if self.cancel.is_cancelled() => {}
                Ok(_) => return self.output.read(buf),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
