//! How the bytes of a file go to its members: what was asked for.
//!
//! Not here: what was measured (`link`), chains (`chaining`).

use std::sync::atomic::{AtomicU8, Ordering};

/// How the bytes of a file go to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transfer {
    /// From member to member when there are so many that this is faster, by what was measured of the network.
    #[default]
    Auto,
    /// From here to each.
    Parallel,
    /// From member to member.
    Chain,
}

/// A [`Transfer`] that may be changed.
#[derive(Default)]
pub(crate) struct Choice(AtomicU8);

impl Choice {
    pub(crate) fn get(&self) -> Transfer {
        match self.0.load(Ordering::Relaxed) {
            1 => Transfer::Parallel,
            2 => Transfer::Chain,
            _ => Transfer::Auto,
        }
    }

    pub(crate) fn set(&self, transfer: Transfer) {
        let number = match transfer {
            Transfer::Auto => 0,
            Transfer::Parallel => 1,
            Transfer::Chain => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }
}
