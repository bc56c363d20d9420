//! Where the reader's steps go: on the line at once, or into a spool until others were asked.

use super::job::{Job, Numbered, Step};
use super::spool::SpoolWriter;
use super::stop::{Stop, Stopping};
use crossbeam_channel::{Receiver, Sender};

/// Where the reader takes empty jobs from and sends what it decides.
pub(crate) struct Channels {
    pub(crate) free: Receiver<Box<Job>>,
    pub(crate) compress: Sender<Numbered>,
    pub(crate) pack: Sender<Numbered>,
}

/// Where steps go.
pub(crate) enum Outlet {
    /// To the compressors and the packer, with the number the next step has.
    Line(Channels, u64),
    /// Into a file: chunks get their names, and are stored later or never.
    Spool(SpoolWriter),
}

impl Outlet {
    pub(super) fn line(channels: Channels) -> Outlet {
        Outlet::Line(channels, 0)
    }

    pub(super) fn is_spool(&self) -> bool {
        matches!(self, Outlet::Spool(_))
    }

    /// An empty job; blocks until there is one.
    pub(super) fn job(&self) -> Stopping<Box<Job>> {
        match self {
            Outlet::Line(channels, _) => channels.free.recv().map_err(|_| Stop::Disconnected),
            // One at a time: it comes back from `send`.
            Outlet::Spool(_) => Ok(Job::new()),
        }
    }

    /// Sends a step on; a job that is free again.
    pub(super) fn send(&mut self, step: Step) -> Stopping<Option<Box<Job>>> {
        match self {
            Outlet::Line(channels, next) => {
                let outlet = match &step {
                    Step::Write(_) => &channels.compress,
                    _ => &channels.pack,
                };
                let number = *next;
                *next += 1;
                let sent = outlet.send(Numbered { number, step });
                sent.map(|()| None).map_err(|_| Stop::Disconnected)
            }
            Outlet::Spool(spool) => {
                spool.push(&step)?;
                Ok(match step {
                    Step::Write(job) => Some(job),
                    _ => None,
                })
            }
        }
    }
}
