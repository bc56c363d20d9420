//! Every decoder of `copal-agent` on any bytes: the first byte chooses the decoder.
#![no_main]

use copal_agent::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((&choice, rest)) = bytes.split_first() {
        let (_, decode) = fuzz::DECODERS[usize::from(choice) % fuzz::DECODERS.len()];
        decode(rest);
    }
});
