//! Sink of the reader's steps: the pipeline, or a spool until the answers of other hosts have come.

use super::job::{Job, Numbered, Step};
use super::spool::SpoolWriter;
use super::stop::{Stop, Stopping};
use crossbeam_channel::{Receiver, Sender};

/// The reader's ends of the pipeline: empty jobs come from one, steps go to the others.
pub(crate) struct Channels {
    pub(crate) free: Receiver<Box<Job>>,
    pub(crate) compress: Sender<Numbered>,
    pub(crate) pack: Sender<Numbered>,
}

/// Sink of steps.
pub(crate) enum Outlet {
    /// The compressors and the packer, with the number of the next step.
    Line(Channels, u64),
    /// A file: chunks are named, and stored later or never.
    Spool(SpoolWriter),
}

impl Outlet {
    pub(super) fn line(channels: Channels) -> Outlet {
        Outlet::Line(channels, 0)
    }

    pub(super) fn is_spool(&self) -> bool {
        matches!(self, Outlet::Spool(_))
    }

    /// Takes an empty job; blocks until there is one.
    pub(super) fn job(&self) -> Stopping<Box<Job>> {
        match self {
            Outlet::Line(channels, _) => channels.free.recv().map_err(|_| Stop::Disconnected),
            // Only one job is in use: `send` returns it.
            Outlet::Spool(_) => Ok(Job::new()),
        }
    }

    /// Sends a step on. Returns a job that is free again.
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
