//! Setting: how the bytes of a file are sent to its replicas.
//!
//! Not here: measurements of the network (`network_estimate`), chains (`chain`).

use std::sync::atomic::{AtomicU8, Ordering};

/// How the bytes of a file are sent to its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransferMode {
    /// From replica to replica, for bodies large enough that this is faster by the measured speed of the network.
    #[default]
    Auto,
    /// From the client to each replica.
    Parallel,
    /// From replica to replica.
    Chain,
}

/// A [`TransferMode`] that may be changed.
#[derive(Default)]
pub(crate) struct TransferSetting(AtomicU8);

impl TransferSetting {
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
