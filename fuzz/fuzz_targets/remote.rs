//! Every decoder of `copal-remote` on any bytes: the first byte chooses the decoder.
#![no_main]

use copal_remote::fuzz::DECODERS;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((&choice, rest)) = bytes.split_first() {
        let (_, decode) = DECODERS[usize::from(choice) % DECODERS.len()];
        decode(rest);
    }
});
