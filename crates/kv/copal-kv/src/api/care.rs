//! Care of a store, as its users call it: verification, damaged ranges, scrubbing.

use crate::{
    DamagedRange, Error, Scrub, Store, VerifyReport,
    care::{quarantine, scrub, verify},
};

impl Store {
    /// Checks names and accounts; with `deep` also reads every table and every separated value. Blocks;
    /// others read and write meanwhile, and the store is judged as it was at the beginning. What is to be
    /// read is not freed before the end.
    /// # Errors
    /// What the object layer answers. Damage is told in the report, not as an error.
    pub fn verify(&self, deep: bool) -> Result<VerifyReport, Error> {
        self.verify_telling(deep, &mut |_| ())
    }

    /// As [`Store::verify`]; `told` is shown what was found so far, after every table and, in between, every
    /// few values.
    /// # Errors
    /// As [`Store::verify`].
    pub fn verify_telling(
        &self,
        deep: bool,
        told: &mut dyn FnMut(&VerifyReport),
    ) -> Result<VerifyReport, Error> {
        verify::verify(self.engine(), deep, told)
    }

    /// Key ranges found damaged since the store was opened and not repaired, deleted or purged yet, newest
    /// data first: what another replica should send. [`Store::verify`] with `deep` and [`Store::scrub`] find
    /// the rest.
    #[must_use]
    pub fn damaged_ranges(&self) -> Vec<DamagedRange> {
        quarantine::damaged_ranges(self.engine())
    }

    /// Starts to read every table and separated value on a thread of its own, at most `bytes_per_second`
    /// (`u64::MAX`: as fast as it goes). Returns at once; in a store without threads, at the end.
    /// # Errors
    /// `Closed`; `Poisoned` when no thread could be started (the store itself is not harmed).
    pub fn scrub(&self, bytes_per_second: u64) -> Result<Scrub, Error> {
        scrub::start(self.engine().clone(), bytes_per_second)
    }
}
