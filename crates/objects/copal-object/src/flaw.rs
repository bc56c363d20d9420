//! Rules of docs/design/object.md that tests can break, so that the crash enumerator must catch the
//! violation.
//!
//! Outside of tests this is an empty type and every question is answered `false` at compile time.

/// A violation of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreFlaw {
    /// OBJ-1: data of the tail is not verified.
    NoDataSum,
    /// OBJ-1: sums are over the bytes, so they do not differ between pages that end with their own.
    SumsOfBytes,
    /// OBJ-38: recovery takes inline pages as placed.
    InlineForgotten,
    /// OBJ-38: recovery places inline pages also if they have another owner.
    InlineOfFreedPages,
    /// OBJ-38: a checkpoint passes records with inline pages that are not placed.
    CheckpointAheadOfInline,
    /// OBJ-2: records carry a sequence number, but no hash of the previous record.
    SequenceOnly,
    /// OBJ-3: freed pages are reused at once.
    ReuseAtOnce,
    /// OBJ-3: freed pages are reused when their epoch is flushed.
    ReuseAfterFlush,
    /// OBJ-3: freed pages are reused after one more flush.
    ReuseAfterTwoFlushes,
    /// OBJ-4: no mount record.
    NoMount,
    /// OBJ-5: stream extents are reused at once.
    StreamReuseAtOnce,
    /// OBJ-6: a record carries the epoch that is closing, and its flush does not wait for it.
    StampedClosing,
    /// OBJ-6: staged data carries the epoch that was open when it was submitted.
    StagedAtSubmission,
    /// OBJ-7: journal space is reused when the superblock that passes it is written, not when it is durable.
    /// OBJ-31: segments of records are reused when the checkpoint that passes them begins.
    JournalReusedEarly,
    /// OBJ-8: a checkpoint overwrites the live one.
    CheckpointInPlace,
    /// OBJ-8: checkpoint and superblock are made durable by one flush.
    CheckpointOneEpoch,
    /// OBJ-35: a checkpoint is encoded from the tables as they are while it is written.
    CheckpointOfLiveTables,
    /// OBJ-9: a checkpoint that stands in for the mount record keeps the chain.
    KeepChain,
    /// OBJ-10: epochs continue above those of kept records only.
    KeptRecordsOnly,
    /// OBJ-11: no flush at open.
    NoFlushAtOpen,
    /// OBJ-12: a frame written through is acknowledged although earlier frames or its extent are not durable.
    ThroughEarly,
    /// OBJ-12: a frame written through counts as a flush.
    ThroughIsFlush,
    /// OBJ-13: a stream continues under its old incarnation after a mount.
    KeepIncarnation,
    /// OBJ-13: a stream continues where its frames end, also before its trim.
    TrimBehindTheEnd,
    /// OBJ-14: frames count although their commit is lost.
    AfterIgnored,
    /// OBJ-14: records count although their frame is lost.
    DepIgnored,
    /// OBJ-15: a checkpoint's superblock waits for its epoch only, not for the frames that its commits come
    /// after.
    CheckpointAheadOfFrames,
    /// OBJ-15: a record calls an epoch durable whose groups wait for a frame that is written through.
    FlushedAheadOfFrames,
    /// OBJ-16: operations enter a group that is not measured.
    GroupNotMeasured,
    /// OBJ-16: records go on behind a checkpoint that replaces one and is not durable.
    RecordAheadOfCheckpoint,
    /// OBJ-36: a caller that waits for space leaves the cleaner to its own sum.
    WaiterSleeps,
    /// OBJ-20: the old pages of a move are free at once.
    MovedPagesReusedAtOnce,
    /// OBJ-20: the pages of a copy are pinned while they are read, and not until the move is entered.
    CopyWithoutPin,
    /// OBJ-32: records go on in a segment whose header is written, and not durable.
    HeaderNotFlushed,
    /// OBJ-32: the header of a segment does not wait for the zeros that are written there.
    ZerosNotAwaited,
    /// OBJ-33: a checkpoint calls frames durable that are on their way.
    FramesAhead,
    /// OBJ-34: a frame is longer than its stream promises.
    LongFramesUnsaid,
    /// OBJ-37: a stream whose end was cut continues on the pages of the frames that are gone.
    CutPagesReused,
    /// OBJ-19: free pages may be taken while they are discarded.
    DiscardReleasedFirst,
    /// OBJ-17: freed space and the end of the file go back to the file system before a durable checkpoint
    /// lists them.
    GiveBackEarly,
    /// OBJ-18: no checkpoint lists the hollow runs.
    HollowUnsaid,
}

/// The broken rule; none outside of tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BrokenRule {
    #[cfg(test)]
    pub(crate) flaw: Option<StoreFlaw>,
}

impl BrokenRule {
    #[cfg(test)]
    pub(crate) fn by(self, flaw: StoreFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    pub(crate) fn by(self, _: StoreFlaw) -> bool {
        false
    }
}
