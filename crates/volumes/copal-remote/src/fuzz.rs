//! Decoders of objects and answers, by name, for the fuzz targets; a test runs each of them briefly.
//!
//! Random input does not pass a checksum. For a structure with a checksum, the list therefore also has a decoder of
//! the contents behind it. Built for tests and fuzzing only.

use crate::{client, format, store::cache, url::RemoteUrl};

/// Decoder of arbitrary bytes. It returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

const KEY: &str = "f/0000000000000001/61";

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("object head", |bytes| {
        let _ = format::ObjectHead::decode(KEY, bytes);
    }),
    ("object head behind its sum", |bytes| format::fuzz_fields(KEY, bytes)),
    ("volume record", |bytes| {
        let _ = format::open_record(KEY, bytes);
    }),
    ("cached object", |bytes| {
        let _ = cache::entry::decode(KEY, bytes);
        let _ = cache::entry::fields(KEY, bytes);
        let _ = cache::entry::first(bytes);
    }),
    ("error code and date of an answer", client::fuzz_answer),
    ("address", |bytes| {
        let _ = RemoteUrl::parse(&format!("s3://{}", String::from_utf8_lossy(bytes)));
    }),
];

#[cfg(test)]
mod tests {
    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 2000);
    }
}
