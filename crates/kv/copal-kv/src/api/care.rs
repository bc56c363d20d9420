//! Public calls for verification, damaged ranges and scrubbing.

use crate::{
    DamagedRange, Error, Scrub, Store, VerifyDepth, VerifyReport,
    care::{quarantine, scrub, verify},
};

impl Store {
    /// Checks names and accounts; with `deep` also reads every table and every separated value. Blocks.
    ///
    /// Checks the state at the beginning of the call; concurrent reads and writes go on. Objects that it will
    /// read are not freed before it returns.
    /// # Errors
    /// Errors of the object layer. Damage is in the report, not an error.
    pub fn verify(&self, deep: bool) -> Result<VerifyReport, Error> {
        let depth = if deep { VerifyDepth::Values } else { VerifyDepth::Accounts };
        self.verify_telling(depth, &mut |_| ())
    }

    /// Like [`Store::verify`], and calls `report` with the findings so far after every table and, within one,
    /// every few values.
    /// # Errors
    /// As [`Store::verify`].
    pub fn verify_telling(
        &self,
        depth: VerifyDepth,
        report: &mut dyn FnMut(&VerifyReport),
    ) -> Result<VerifyReport, Error> {
        verify::verify(self.engine(), depth, report)
    }

    /// Damaged key ranges found since the store was opened, newest data first, without those already
    /// repaired, deleted or purged.
    ///
    /// These are the ranges to request from another replica. [`Store::verify`] with `deep` and
    /// [`Store::scrub`] find damage that no read has met yet.
    #[must_use]
    pub fn damaged_ranges(&self) -> Vec<DamagedRange> {
        quarantine::damaged_ranges(self.engine())
    }

    /// Starts a thread that reads all data of the object store in the order of its addresses, at most
    /// `bytes_per_second` (`u64::MAX`: no limit). It goes on where the last scrub was interrupted, unless the store is
    /// open read-only. Returns at once; a store without threads scrubs before it returns.
    /// # Errors
    /// `Closed`; `Poisoned` when no thread could be started (the store itself is not poisoned).
    pub fn scrub(&self, bytes_per_second: u64) -> Result<Scrub, Error> {
        scrub::start(self.engine().clone(), bytes_per_second)
    }
}
