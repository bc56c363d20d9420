//! What decodes what another agent says, by name: for the fuzz targets, and a short run of each here.
//!
//! Built for tests and fuzzing only.

use super::Message;

/// Takes any bytes, gives nothing back and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("message", round_trip),
    ("hello", |bytes| behind(&[super::HELLO, 1, 0], bytes)),
    ("ask", |bytes| behind(&[super::ASK], bytes)),
    ("answers", |bytes| behind(&[super::ANSWERS], bytes)),
    ("refused", |bytes| behind(&[super::REFUSED], bytes)),
    ("control", |bytes| behind(&[super::CONTROL], bytes)),
];

fn behind(head: &[u8], bytes: &[u8]) {
    round_trip(&[head, bytes].concat());
}

/// What is read is written the same: a message has one form.
fn round_trip(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert!(message.encode() == bytes, "{message:?} has two forms");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }
}
