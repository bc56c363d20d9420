//! Bytes that an asker sent and received: complete frames, before TLS.

use copal_proto::FRAME_HEADER_LEN;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a frame beside its message: its length, its header, and the remaining time.
const FRAME_BYTES: u64 = 4 + FRAME_HEADER_LEN as u64 + 4;

/// Bytes sent and received.
#[derive(Debug, Default)]
pub struct AskerTraffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl AskerTraffic {
    /// Bytes sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes received.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn note_sent(&self, message_bytes: usize) {
        self.sent.fetch_add(FRAME_BYTES + message_bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_received(&self, message_bytes: usize) {
        self.received.fetch_add(FRAME_BYTES + message_bytes as u64, Ordering::Relaxed);
    }
}
