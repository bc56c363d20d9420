//! End of a job: a second request for all private ids; the VMs give up those that have become popular.
//!
//! The detectors are the real ones; each answers all private ids of the job in one comparison. The snapshots
//! are published before, so this extends no VM's time. Not modelled: the read of each popular frame before a
//! VM gives up its own frame.

use super::super::inputs::copal;
use super::owners::{Batch, io_bytes};
use super::{DAY, Job};
use anyhow::Result;
use copal_backup::peers::{Answer, ShortId};
use std::time::Duration;

impl Job<'_> {
    /// Sends requests for the private ids of all parts, and moves the popular ones.
    pub(super) fn settle(&mut self) -> Result<()> {
        let round = self.markers.len();
        for number in 0..self.parts.len() {
            self.parts[number].private.sort_unstable();
            let part = &self.parts[number];
            self.bytes.messages += part.private.len() as f64 * self.chunks_per_id * copal::MESSAGE_BYTES;
            let batches: Vec<_> = self.domain.owners.batches(&part.private).collect();
            for (first, ids) in batches {
                self.domain.owners.take(&Batch {
                    job: self.domain.day,
                    round,
                    host: part.host,
                    vm: part.vm,
                    number: (number as u64) << 32 | first as u64,
                    ids,
                })?;
            }
        }
        self.domain.owners.close(round);
        let now = DAY * self.domain.day + Duration::from_nanos(self.engine.now());
        let mut stored: Vec<ShortId> = Vec::new();
        let mut moved = 0;
        for owner in 0..self.domain.owners.count() {
            while let Some((compared, replies)) = self.domain.owners.begin(owner, &self.domain.log, now)? {
                self.domain.owners.end(owner);
                self.bytes.local_io += io_bytes(&compared, self.chunks_per_id);
                for reply in replies {
                    let (number, first) = ((reply.batch >> 32) as usize, reply.batch as u32 as usize);
                    let ids = &self.parts[number].private[first..first + reply.answers.len()];
                    for (&answer, id) in reply.answers.iter().zip(ids) {
                        match answer {
                            Answer::NEW | Answer::FRACTION_USED => continue,
                            Answer::STORE_POPULAR => {
                                stored.push(*id);
                                self.chunks.popular += 1;
                            }
                            // Another VM stores it as popular, or has stored it.
                            _ => self.chunks.hits += 1,
                        }
                        self.chunks.private -= 1;
                        moved += 1;
                    }
                }
            }
        }
        if !stored.is_empty() {
            let pack = self.domain.log.store(&stored);
            let ids = self.domain.log.check(pack).to_vec();
            self.domain.checked.extend(ids);
        }
        self.bytes.stored += stored.len() as f64 * self.trace.id_bytes;
        self.bytes.given_up += moved as f64 * self.trace.id_bytes;
        Ok(())
    }
}
