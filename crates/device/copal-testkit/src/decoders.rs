//! Runs decoders on malformed input: noise, truncated noise, noise with a flipped bit.
//!
//! Not here: the lists of decoders (`fuzz` of each crate), and coverage-guided fuzzing (`fuzz/` in the root).

use crate::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Takes any bytes, returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

/// Longest input.
const MOST_BYTES: u64 = 600;
/// One of that many inputs is also truncated at every byte, and gets each bit of its first [`TURNED_BYTES`]
/// flipped.
const INJURED_ONE_IN: u64 = 200;
/// Number of bytes whose bits are flipped: kinds, counts and lengths lie there.
const TURNED_BYTES: usize = 64;

/// Runs each decoder on `rounds` inputs, equal in every run. Some of them are also given as every prefix, and
/// with each bit of their first bytes flipped.
///
/// # Panics
/// When a decoder panics; the message has its name and the input.
pub fn decoders_survive(decoders: &[(&str, Decoder)], rounds: u64) {
    for (name, decode) in decoders {
        for seed in 0..rounds {
            let mut bytes = input(&mut Random::new(seed));
            survives(name, *decode, &bytes);
            if seed % INJURED_ONE_IN != 0 {
                continue;
            }
            (0..bytes.len()).for_each(|len| survives(name, *decode, &bytes[..len]));
            for bit in 0..bytes.len().min(TURNED_BYTES) * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                survives(name, *decode, &bytes);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

fn survives(name: &str, decode: Decoder, bytes: &[u8]) {
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(bytes)));
    assert!(decoded.is_ok(), "decoder {name:?} panics on {bytes:?}");
}

/// Mostly small bytes, so that counts and lengths are often plausible.
fn input(random: &mut Random) -> Vec<u8> {
    let byte = |word: u64| {
        if word & 0x300 == 0 { word as u8 } else { (word % 5) as u8 }
    };
    let len = random.below(MOST_BYTES);
    (0..len).map(|_| byte(random.next_u64())).collect()
}

#[cfg(test)]
mod tests {
    use super::decoders_survive;

    #[test]
    fn every_decoder_is_asked_and_one_that_panics_is_named() {
        decoders_survive(&[("patient", |_| ())], 10);
        let found = std::panic::catch_unwind(|| {
            decoders_survive(
                &[("patient", |_| ()), ("hasty", |bytes| assert!(bytes.len() != 5, "five bytes"))],
                2000,
            );
        });
        let message = *found.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("\"hasty\" panics on ["), "{message}");
    }
}
