//! Decoders of overlay files, by name: for the fuzz target, and a short run of each here.
//!
//! A checksum protects the header, so its body is also decoded with a valid checksum, which random bytes
//! never have.
//! Built for tests and fuzzing only.

use crate::overlay::format::{FORMAT, OverlayHeader};
use copal_codec::{ENVELOPE_LEN, Envelope, Put};

/// Decodes any bytes, discards the result, and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("head of an overlay", |bytes| {
        let _ = OverlayHeader::decode(bytes);
    }),
    ("head of an overlay behind its sum", |bytes| {
        let mut head = vec![0; ENVELOPE_LEN];
        head.put_bytes(bytes);
        Envelope::seal(&FORMAT, 0, 0, &mut head);
        if let Ok(head) = OverlayHeader::decode(&head) {
            assert!(head.blocks_at() >= head.bitmap_bytes());
            let encoded = head.encode();
            assert_eq!(OverlayHeader::decode(&encoded), Ok(head));
        }
    }),
];

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
