//! Jobs of which this host, as an owner, compared a round before all hosts of the job had asked.
//!
//! A host that asks later learns what the others have, and the others do not learn what it has: their copies
//! stay, until they ask again.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Jobs that are remembered.
const MOST_JOBS: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct EarlyRounds {
    jobs: Mutex<VecDeque<[u8; 16]>>,
}

impl EarlyRounds {
    /// A round of this job was compared early.
    pub(crate) fn note(&self, job: [u8; 16]) {
        let mut jobs = self.jobs.lock();
        if !jobs.contains(&job) {
            if jobs.len() >= MOST_JOBS {
                jobs.pop_front();
            }
            jobs.push_back(job);
        }
    }

    /// Whether one of this job was.
    pub(crate) fn has(&self, job: &[u8; 16]) -> bool {
        self.jobs.lock().contains(job)
    }
}
