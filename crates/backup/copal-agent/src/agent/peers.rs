//! The peers of one VM's backup: sends its queries, and waits for its turns, through the job's askers and
//! turns.

use super::{
    job::HostJob,
    turns::{TurnEffect, TurnTable},
};
use crate::asker::{Asker, AskerTraffic};
use copal_backup::peers::{Answer, Ids, Peers, Turn};
use parking_lot::Mutex;
use std::{
    io,
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Interval between repeated queries about carried chunks.
const PAUSE: Duration = Duration::from_millis(300);

/// A VM's number among all VMs: a part of its UUID, which is random.
pub(crate) fn tag_of(vm: Uuid) -> u32 {
    vm.as_bytes().first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
}

/// Repeats queries about carried chunks until they are found or the time is over.
pub(crate) struct RetryAsker {
    asker: Asker,
    patience: Duration,
}

impl RetryAsker {
    pub(crate) fn new(asker: Asker, patience: Duration) -> RetryAsker {
        RetryAsker { asker, patience }
    }

    /// Ends all connections.
    pub(crate) fn end(&self) {
        self.asker.end();
    }

    pub(crate) fn traffic(&self) -> &AskerTraffic {
        self.asker.traffic()
    }

    /// `since`: time of the VM's first query.
    pub(crate) fn ask(&self, since: Instant, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        if since.elapsed() >= self.patience {
            return Ok(None);
        }
        std::thread::park_timeout(PAUSE);
        let sent = self.send(vm, ids)?;
        Ok(Some(self.asker.receive(sent)))
    }

    /// Sends a query that is answered as soon as the owners have compared it.
    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        let sent = self.asker.send(tag_of(vm), ids)?;
        self.asker.end_round();
        Ok(sent)
    }
}

/// The peers of one VM of a job.
pub(crate) struct VmPeers<'a> {
    pub(crate) job: &'a HostJob,
    /// Its position in the plan.
    pub(crate) index: usize,
    pub(crate) turns: &'a TurnTable,
    pub(crate) again_since: Mutex<Option<Instant>>,
}

impl VmPeers<'_> {
    fn count_refused(&self, answers: &[Answer]) {
        let refused = answers.iter().filter(|answer| **answer == Answer::FRACTION_USED);
        self.job.note_refused(self.index, refused.count() as u64);
    }

    fn note(&self, after: TurnEffect) {
        if after == TurnEffect::AllAsked {
            self.job.end_round();
        }
    }
}

impl Peers for VmPeers<'_> {
    fn begin(&self, _vm: Uuid, turn: Turn) -> Result<(), String> {
        let ends = || self.job.ends();
        let goes_on = match turn {
            Turn::Read(part) => {
                *self.again_since.lock() = None;
                self.turns.begin_reading((self.index, part), &ends)
            }
            Turn::Store(_) => self.turns.begin_storing(self.index, &ends),
        };
        match goes_on {
            true => Ok(()),
            false => Err("the job was ended; run it again".into()),
        }
    }

    fn end(&self, _vm: Uuid, turn: Turn) {
        self.note(match turn {
            Turn::Read(part) => self.turns.end_reading((self.index, part)),
            Turn::Store(part) => self.turns.end_storing((self.index, part)),
        });
    }

    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        self.job.asker().send(tag_of(vm), ids)
    }

    fn receive(&self, sent: u64) -> Vec<Answer> {
        let answers = self.job.asker().receive(sent);
        self.count_refused(&answers);
        answers
    }

    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        let since = *self.again_since.lock().get_or_insert_with(Instant::now);
        let answers = self.job.again().ask(since, vm, ids)?;
        self.count_refused(answers.as_deref().unwrap_or_default());
        Ok(answers)
    }

    fn stored(&self) {
        self.job.wake_checker();
    }
}

/// Peers for the settlement of a VM: owners wait for no other host, and no turn is needed.
pub(super) struct SettlingPeers<'a> {
    job: &'a HostJob,
    again_since: Mutex<Option<Instant>>,
}

impl<'a> SettlingPeers<'a> {
    pub(super) fn new(job: &'a HostJob) -> SettlingPeers<'a> {
        SettlingPeers { job, again_since: Mutex::new(None) }
    }
}

impl Peers for SettlingPeers<'_> {
    fn begin(&self, _vm: Uuid, _turn: Turn) -> Result<(), String> {
        match self.job.ends() {
            false => Ok(()),
            true => Err("the job was ended".into()),
        }
    }

    fn end(&self, _vm: Uuid, _turn: Turn) {}

    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        *self.again_since.lock() = None;
        self.job.again().send(vm, ids)
    }

    fn receive(&self, sent: u64) -> Vec<Answer> {
        self.job.again().asker.receive(sent)
    }

    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        if self.job.ends() {
            return Ok(None);
        }
        let since = *self.again_since.lock().get_or_insert_with(Instant::now);
        self.job.again().ask(since, vm, ids)
    }

    fn stored(&self) {
        self.job.wake_checker();
    }
}
