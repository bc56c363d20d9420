//! Jobs with a round that this host, as an owner, compared before all hosts of the job had asked.
//!
//! A host that asks later learns the chunks of the others, but the others do not learn its chunks: their
//! copies stay until they ask again.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Number of jobs that are kept.
const MOST_JOBS: usize = 64;

/// Jobs with an early comparison.
#[derive(Default)]
pub(crate) struct EarlyRounds {
    jobs: Mutex<VecDeque<[u8; 16]>>,
}

impl EarlyRounds {
    /// Records that a round of this job was compared early.
    pub(crate) fn note(&self, job: [u8; 16]) {
        let mut jobs = self.jobs.lock();
        if !jobs.contains(&job) {
            if jobs.len() >= MOST_JOBS {
                jobs.pop_front();
            }
            jobs.push_back(job);
        }
    }

    /// Whether a round of this job was compared early.
    pub(crate) fn has(&self, job: &[u8; 16]) -> bool {
        self.jobs.lock().contains(job)
    }
}
