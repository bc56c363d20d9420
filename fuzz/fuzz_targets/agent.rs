//! Every decoder of `copal-agent` on any bytes: the first byte chooses the decoder.
#![no_main]

use copal_agent::{fuzz, wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((&choice, rest)) = bytes.split_first() {
        let decoders = || fuzz::DECODERS.iter().chain(wire::fuzz::DECODERS);
        let count = fuzz::DECODERS.len() + wire::fuzz::DECODERS.len();
        if let Some((_, decode)) = decoders().nth(usize::from(choice) % count) {
            decode(rest);
        }
    }
});
