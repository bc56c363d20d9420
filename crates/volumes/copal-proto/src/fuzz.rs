//! Decoders of bytes from the network, by name, for the fuzz targets and a short test here.
//!
//! A checksum guards each frame, and random bytes do not pass it. So the messages in frames are listed, too.
//! Built for tests and fuzzing only.

use crate::{Method, WireFrame, administration::READERS, answer_of, messages, view_of};
use bytes::Bytes;
use copal_volume::group::DiskId;
use prost::Message;

/// Decodes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("frame", |bytes| {
        let _ = WireFrame::decode(Bytes::copy_from_slice(bytes));
    }),
    ("frame with a valid checksum", |bytes| {
        let frame = WireFrame {
            permit: Bytes::new(),
            id: 1,
            method: 2,
            is_reply: false,
            is_failure: false,
            is_more: true,
            trace: 3,
            left_ms: Some(4),
            message: Bytes::copy_from_slice(bytes),
        };
        assert_eq!(WireFrame::decode(frame.encode()).as_ref(), Ok(&frame));
    }),
    ("map", |bytes| {
        if let Ok(map) = messages::Map::decode(bytes) {
            map.views.iter().for_each(|view| drop(view_of(view)));
        }
    }),
    ("failure", |bytes| {
        if let Ok(failure) = messages::Failure::decode(bytes) {
            let _ = (answer_of(&failure), failure.view.as_ref().map(view_of));
        }
    }),
    ("put", |bytes| drop(messages::Put::decode(bytes))),
    ("ranges", |bytes| {
        let message = Bytes::copy_from_slice(bytes);
        assert!(crate::CallCost::of(Method::GetRanges, &message).bytes <= bytes.len() + (4 << 20));
        drop(messages::GetRangesReply::decode(bytes));
    }),
    ("piece", |bytes| drop(messages::PutPiece::decode(bytes))),
    ("chain", |bytes| {
        if let Ok(chain) = messages::PutChain::decode(bytes) {
            let hops = chain.hops.clone();
            let _ = crate::checked_hops(&hops, DiskId(1), &[DiskId(1), DiskId(2)]);
            assert!(crate::CallCost::of(Method::PutChain, &Bytes::copy_from_slice(bytes)).bytes < 9 << 20);
        }
    }),
    ("chain data", |bytes| {
        if let Ok(data) = messages::ChainData::decode(bytes) {
            let mut body = crate::ChainBody::new(200_000).expect("a length that is allowed");
            if body.add(&data).is_ok() {
                assert!(body.add(&data).is_err(), "each part has another number");
            }
        }
    }),
    ("chain commit", |bytes| {
        if let Ok(commit) = messages::ChainCommit::decode(bytes) {
            let body = crate::ChainBody::new(0).expect("a length that is allowed");
            drop(body.finish(&commit));
        }
    }),
    ("chain ack", |bytes| drop(messages::ChainAck::decode(bytes))),
    ("list", |bytes| drop(messages::ListReply::decode(bytes))),
    ("entries", |bytes| drop(messages::SyncEntries::decode(bytes))),
    ("heartbeat", |bytes| drop(messages::Heartbeat::decode(bytes))),
    ("join", |bytes| drop(messages::Join::decode(bytes))),
    ("lease", |bytes| drop(messages::WriterLease::decode(bytes))),
    ("order", |bytes| {
        drop(messages::ApplyRebalance::decode(bytes));
        drop(messages::ForceAccept::decode(bytes));
    }),
    ("administration", |bytes| {
        let json = String::from_utf8_lossy(bytes);
        for (_, reads) in READERS {
            let _ = reads(&json);
        }
    }),
];

#[cfg(test)]
mod tests {
    #[test]
    fn no_bytes_make_a_decoder_panic() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
