//! How the bytes of a file go to its members: what was asked for.
//!
//! Not here: what was measured (`link`), chains (`chaining`).

use std::sync::atomic::{AtomicU8, Ordering};

/// How the bytes of a file go to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransferMode {
    /// From member to member when there are so many that this is faster, by what was measured of the network.
    #[default]
    Auto,
    /// From here to each.
    Parallel,
    /// From member to member.
    Chain,
}

/// A [`TransferMode`] that may be changed.
#[derive(Default)]
pub(crate) struct Choice(AtomicU8);

impl Choice {
    pub(crate) fn get(&self) -> TransferMode {
        match self.0.load(Ordering::Relaxed) {
            1 => TransferMode::Parallel,
            2 => TransferMode::Chain,
            _ => TransferMode::Auto,
        }
    }

    pub(crate) fn set(&self, transfer: TransferMode) {
        let number = match transfer {
            TransferMode::Auto => 0,
            TransferMode::Parallel => 1,
            TransferMode::Chain => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }
}
