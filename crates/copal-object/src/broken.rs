//! The rules of object.md §6, each of which the tests can break to see the crash enumerator catch it.
//!
//! Outside of tests this is an empty type and every question is answered `false` at compile time.

/// One way to get a rule wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// R1: data of the tail is not verified.
    NoDataSum,
    /// R2: records carry a sequence number, no hash of the one before.
    SequenceOnly,
    /// R3: freed pages are reused at once.
    ReuseAtOnce,
    /// R3: freed pages are reused when their epoch is flushed.
    ReuseAfterFlush,
    /// R3: freed pages are reused after one more flush.
    ReuseAfterTwoFlushes,
    /// R4: no mount record.
    NoMount,
    /// R5: stream extents are reused at once.
    StreamReuseAtOnce,
    /// R6: a record carries the epoch that is closing, and its flush does not wait for it.
    StampedClosing,
    /// R6: staged data carries the epoch that was open when it was submitted.
    StagedAtSubmission,
    /// R7: journal space is reused when the superblock that passes it is written, not when it is durable.
    JournalReusedEarly,
    /// R8: a checkpoint overwrites the live one.
    CheckpointInPlace,
    /// R8: checkpoint and superblock are made durable by one flush.
    CheckpointOneEpoch,
    /// R9: a checkpoint that stands in for the mount record keeps the chain.
    KeepChain,
    /// R10: epochs resume above those of kept records only.
    KeptRecordsOnly,
    /// R11: no flush at open.
    NoFlushAtOpen,
    /// R12: a frame written through is acknowledged although earlier frames or its extent are not durable.
    ThroughEarly,
    /// R12: a frame written through counts as a flush.
    ThroughIsFlush,
    /// R13: a stream goes on under its old incarnation after a mount.
    KeepIncarnation,
    /// R13: a stream goes on where its frames end, also before its trim.
    TrimBehindTheEnd,
    /// R14: frames count although their commit is lost.
    AfterIgnored,
    /// R14: records count although their frame is lost.
    DepIgnored,
    /// R15: a checkpoint's superblock waits for its epoch only, not for the frames its commits come after.
    CheckpointAheadOfFrames,
    /// R15: a record says an epoch is durable whose groups wait for a frame that is written through.
    FlushedAheadOfFrames,
    /// R17: what was freed, and the end of the file, go back to the file system before a durable checkpoint says so.
    GiveBackEarly,
    /// R18: no checkpoint says which runs are hollow.
    HollowUnsaid,
}

/// Which rule is broken; none outside of tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    #[cfg(test)]
    pub(crate) flaw: Option<Flaw>,
}

impl Broken {
    #[cfg(test)]
    pub(crate) fn by(self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    pub(crate) fn by(self, _: Flaw) -> bool {
        false
    }
}
