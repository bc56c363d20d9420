//! Stripes of sequences: versions of a key that readers cannot tell apart.

use super::entry::MAX_SEQ;

/// Held sequences divide the versions of a key into stripes; readers see at most the newest version of a
/// stripe.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceStripes {
    held: Vec<u64>,
}

impl SequenceStripes {
    /// `held` must ascend.
    pub(crate) fn new(held: Vec<u64>) -> SequenceStripes {
        SequenceStripes { held }
    }

    /// The stripe of `seq`: the oldest held sequence that sees it, or [`MAX_SEQ`] for the newest stripe.
    pub(crate) fn of(&self, seq: u64) -> u64 {
        let newer = self.held.partition_point(|held| *held < seq);
        self.held.get(newer).copied().unwrap_or(MAX_SEQ)
    }

    /// The newest sequence of the stripe before that of `seq`; `None`: it is in the oldest.
    pub(crate) fn before(&self, seq: u64) -> Option<u64> {
        let older = self.held.partition_point(|held| *held < seq);
        self.held.get(older.checked_sub(1)?).copied()
    }

    /// Whether every held sequence sees `seq`.
    pub(crate) fn is_oldest(&self, seq: u64) -> bool {
        self.held.first().is_none_or(|oldest| seq <= *oldest)
    }

    /// The oldest held sequence.
    pub(crate) fn oldest(&self) -> u64 {
        self.held.first().copied().unwrap_or(MAX_SEQ)
    }
}
