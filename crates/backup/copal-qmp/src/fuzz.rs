//! What decodes what QEMU says, by name: for the fuzz target, and a short run of each here.
//!
//! Built for tests and fuzzing only.

use crate::{line::Lines, message};

/// Takes any bytes, gives nothing back and must not panic.
pub type Decoder = fn(&[u8]);

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("message", |bytes| {
        let _ = message::parse(bytes);
    }),
    ("lines", |bytes| {
        let mut lines = Lines::new(bytes);
        while let Ok(Some(line)) = lines.next_line() {
            let _ = message::parse(&line);
        }
    }),
];

#[test]
fn no_decoder_panics() {
    let mut random = copal_testkit::Random::new(1);
    for (_, decode) in DECODERS {
        for length in 0..300 {
            decode(&random.bytes(length));
        }
        for line in [
            r#"{"return":"#,
            r#"{"error":7}"#,
            r#"{"event":"A","data":"#,
            r#"{"QMP":{"version":{"qemu":{"major":"#,
        ] {
            let mut bytes = line.as_bytes().to_vec();
            bytes.extend(random.bytes(20));
            decode(&bytes);
        }
    }
}
