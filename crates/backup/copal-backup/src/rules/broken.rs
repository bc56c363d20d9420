//! Flaws: rules of this crate that a test can break, to prove that the tests of the rule notice it.
//!
//! A rule is broken for one thread at a time, so tests may run side by side. Outside of tests every flaw is
//! `false` at compile time.

/// One way to break a rule, or one fault of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// BAK-6: the mark skips a node that has the same name as in the previous snapshot, at any location.
    MarkByName,
    /// The cost of a password hash is not bounded before the hash is computed.
    UnboundedCost,
    /// BAK-5: a fenced session publishes.
    FencedPublishes,
    /// BAK-11: a frame is not decrypted again before it is written.
    NoSelfCheck,
    /// No rule: a bit flips between encrypting and decrypting a frame.
    BadMemory,
    /// BAK-7: a pack whose live frames could not be copied is unlinked.
    UnlinksUncopied,
    /// BAK-15: a prune in a cluster removes packs that it has not listed.
    RemovesUnlisted,
    /// BAK-16: VMs of a fleet share one index.
    OneIndex,
    /// BAK-17: a removal ignores sessions that opened meanwhile.
    RemovesBesideSessions,
    /// BAK-18: a block of a summary vector is merged with any MAC.
    NoVectorSeal,
    /// A location leads to any frame that is there.
    AnyRowFits,
    /// BAK-11: a chunk is not compared with its id.
    NoIdCheck,
    /// BAK-18: a vector of any writer counts.
    TrustsAnyVector,
    /// BAK-19: the signature of the delete role is not verified.
    NoSignature,
    /// BAK-21: a session is ended as soon as another host wants its VM.
    FencesAtOnce,
    /// BAK-22: a record names a list of moved frames that does not exist.
    NamesUnwritten,
    /// BAK-22: a chunk moves to a popular frame that was not decrypted.
    MovesUnopened,
    /// Snapshots are ordered by the stamps of the store.
    TrustsStamps,
    /// BAK-20: an unchecked popular pack is used.
    CountsUnchecked,
    /// BAK-20: a host's check of its own pack counts for others.
    ChecksOwn,
    /// BAK-20: records of a host count although its key was removed.
    RemovedKeyCounts,
    /// BAK-20: a spoiled popular pack is referred to.
    RefersToSpoiled,
    /// BAK-23: a prune ignores other prunes that removed packs meanwhile.
    RemovesBesideRemovals,
    /// BAK-23: a prune relies on packs that another one has listed for removal.
    CountsOnGoingPacks,
    /// BAK-24: an abandoned popular pack is removed without a mark in the log.
    SweepsUnmarked,
    /// BAK-27: a session refers to popular packs that were condemned before it opened.
    RefersToCondemned,
    /// BAK-27: a count of references does not wait for sessions that were open.
    CountsBesideSessions,
    /// BAK-27: references of forgotten snapshots are not counted.
    CountsPublishedOnly,
    /// BAK-27: references of moved chunks are not counted.
    CountsWithoutMoved,
    /// BAK-27: frames are given up for popular ones that were condemned meanwhile.
    MovesToCondemned,
}

#[cfg(test)]
mod rules {
    use super::Flaw;
    use std::cell::Cell;

    thread_local! {
        static BROKEN: Cell<&'static [Flaw]> = const { Cell::new(&[]) };
    }

    /// Whether this thread breaks a rule.
    pub(crate) fn by(flaw: Flaw) -> bool {
        BROKEN.get().contains(&flaw)
    }

    pub(super) fn here() -> &'static [Flaw] {
        BROKEN.get()
    }

    /// Runs `work` with these rules broken.
    pub(crate) fn with<T>(flaws: &'static [Flaw], work: impl FnOnce() -> T) -> T {
        BROKEN.set(flaws);
        let done = work();
        BROKEN.set(&[]);
        done
    }
}

#[cfg(test)]
pub(crate) use rules::{by, with};

/// Whether a rule is broken.
#[cfg(not(test))]
pub(crate) const fn by(_: Flaw) -> bool {
    false
}

/// The rules that are broken for a thread, to be carried to the threads that work for it.
#[derive(Clone, Copy)]
pub(crate) struct ThreadFlaws {
    #[cfg(test)]
    flaws: &'static [Flaw],
}

impl ThreadFlaws {
    /// Those of this thread.
    pub(crate) fn here() -> ThreadFlaws {
        ThreadFlaws {
            #[cfg(test)]
            flaws: rules::here(),
        }
    }

    /// Runs `work` on this thread with them.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        #[cfg(test)]
        return with(self.flaws, work);
        #[cfg(not(test))]
        work()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod concurrent_removals;
#[cfg(test)]
mod consolidate;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod malicious_hosts;
#[cfg(test)]
mod removals;
#[cfg(test)]
mod roles;
