//! Frames of chains: their parts as they arrive, and the answers of their hops.

use crate::net::admission::AdmittedBytes;
use bytes::Bytes;
use copal_proto::{CHAIN_BYTES, CHAIN_PART_BYTES, Method, WireFrame};
use std::collections::HashMap;
use tokio::sync::mpsc;

/// Calls of one connection in progress at a time.
pub(crate) const MAX_CALLS: usize = 128;

/// A frame of a chain after its first.
#[derive(Debug)]
pub enum ChainPart {
    /// `ChainData`.
    Data(Bytes),
    /// `ChainCommit`.
    Commit(Bytes),
}

/// Frames of a chain in order of arrival. The channel closes when the connection ends, or when more frames
/// arrive than its bytes can need.
pub type ChainParts = mpsc::Receiver<ChainPart>;

/// Sends the answers of a chain's hops before the last one.
pub struct ChainAcks {
    pub(crate) id: u64,
    pub(crate) out: mpsc::Sender<OutgoingFrame>,
}

impl ChainAcks {
    /// Sends an answer that is not the last.
    pub async fn send(&self, message: Bytes) {
        let frame = WireFrame {
            id: self.id,
            method: Method::PutChain as u16,
            is_reply: true,
            is_failure: false,
            is_more: true,
            trace: 0,
            left_ms: None,
            permit: Bytes::new(),
            message,
        };
        // Fails if the connection has ended.
        let _ = self.out.send(OutgoingFrame { frame, room: None }).await;
    }
}

/// A frame to write, with the memory that its call holds until then.
pub(crate) struct OutgoingFrame {
    pub(crate) frame: WireFrame,
    pub(crate) room: Option<AdmittedBytes>,
}

/// Chains of a connection whose parts are still arriving.
#[derive(Default)]
pub(crate) struct OpenChains {
    open: HashMap<u64, mpsc::Sender<ChainPart>>,
}

impl OpenChains {
    /// Chains of a connection at a time: half of all calls, so that others still get a turn.
    const MOST: usize = MAX_CALLS / 2;
    /// Frames of a chain after its first.
    const PARTS: usize = CHAIN_BYTES / CHAIN_PART_BYTES + 2;

    /// Opens a chain; `None`: too many are open, or this one is open already.
    pub(crate) fn begin(&mut self, id: u64) -> Option<ChainParts> {
        self.open.retain(|_, to| !to.is_closed());
        if self.open.len() >= OpenChains::MOST || self.open.contains_key(&id) {
            return None;
        }
        let (to, parts) = mpsc::channel(OpenChains::PARTS);
        self.open.insert(id, to);
        Some(parts)
    }

    /// Passes a part to its chain; drops it if the chain has ended.
    pub(crate) fn take(&mut self, frame: WireFrame) {
        let is_last = frame.method == Method::ChainCommit as u16;
        let part = match is_last {
            true => ChainPart::Commit(frame.message),
            false => ChainPart::Data(frame.message),
        };
        let Some(to) = self.open.get(&frame.id) else {
            return;
        };
        // Too many frames, or a closed receiver: dropping the sender ends the chain.
        if to.try_send(part).is_err() || is_last {
            self.open.remove(&frame.id);
        }
    }
}
