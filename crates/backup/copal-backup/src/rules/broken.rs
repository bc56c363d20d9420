//! The rules of this crate that a test can break, to see that the tests of the rule notice: permanent
//! negative controls.
//!
//! A rule is broken for one thread at a time, so tests may run side by side. Outside of tests every question
//! is answered `false` at compile time.

/// One way to get a rule wrong, or one fault of the machine below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// BAK-6: The mark skips what has the same name as in the snapshot before, wherever it stands.
    MarkByName,
    /// The cost of a password hash is not bounded before it is paid.
    UnboundedCost,
    /// BAK-5: A fenced session publishes.
    FencedPublishes,
    /// BAK-11: A frame is not opened again before it leaves.
    NoSelfCheck,
    /// No rule: a bit flips between encrypting a frame and decrypting it.
    BadMemory,
    /// BAK-7: A pack whose live frames could not be copied is unlinked.
    UnlinksUncopied,
    /// BAK-15: What a prune removes in a cluster is not listed first.
    RemovesUnlisted,
    /// BAK-16: Machines of a fleet have one index.
    OneIndex,
    /// BAK-17: A removal does not look for sessions that opened meanwhile.
    RemovesBesideSessions,
    /// BAK-18: A block of a summary vector is merged whatever its seal says.
    NoVectorSeal,
    /// A spot leads to whatever stands there.
    AnyRowFits,
    /// BAK-11: A chunk is not compared with its id.
    NoIdCheck,
    /// BAK-18: A vector counts whoever wrote it.
    TrustsAnyVector,
    /// BAK-19: The signature of the delete role is not looked at.
    NoSignature,
    /// BAK-21: A session is ended as soon as somebody else wants its VM.
    FencesAtOnce,
    /// BAK-22: A record names a list of moved frames that is not there.
    NamesUnwritten,
    /// BAK-22: A chunk moves to a popular frame that nobody has opened.
    MovesUnopened,
    /// The order of snapshots is that of the times that the store stamps.
    TrustsStamps,
    /// BAK-20: A popular pack counts that nobody has checked.
    CountsUnchecked,
    /// BAK-20: What a host says of its own pack counts for others.
    ChecksOwn,
    /// BAK-20: What a host says counts also when its key was removed.
    RemovedKeyCounts,
    /// BAK-20: A popular pack is referred to that is known to be spoiled.
    RefersToSpoiled,
    /// BAK-23: A prune does not look for others that removed meanwhile.
    RemovesBesideRemovals,
    /// BAK-23: A prune counts on packs that another one has announced to go.
    CountsOnGoingPacks,
    /// BAK-24: A popular pack that its writer left goes without a mark in the log.
    SweepsUnmarked,
    /// BAK-27: A session refers to popular packs that were condemned before it opened.
    RefersToCondemned,
    /// BAK-27: Whoever counts what is needed does not wait for sessions that were open.
    CountsBesideSessions,
    /// BAK-27: What forgotten snapshots need does not count.
    CountsPublishedOnly,
    /// BAK-27: What chunks moved to does not count.
    CountsWithoutMoved,
    /// BAK-27: Frames are given up for popular ones that were condemned meanwhile.
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

#[cfg(test)]
mod tests;

#[cfg(test)]
mod cleanup;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod liars;
#[cfg(test)]
mod removals;
#[cfg(test)]
mod removers;
#[cfg(test)]
mod roles;
