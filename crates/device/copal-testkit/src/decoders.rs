//! Decoders meet bytes that nobody wrote on purpose: noise, noise cut short, noise with a bit turned.
//!
//! Not here: the lists of decoders (`fuzz` of each crate), and coverage-guided fuzzing (`fuzz/` in the root).

use crate::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Takes any bytes, gives nothing back and must not panic.
pub type Decoder = fn(&[u8]);

/// Longest input.
const MOST_BYTES: u64 = 600;
/// One input in so many is also cut at every byte and turned at every bit of the first [`TURNED_BYTES`].
const INJURED_ONE_IN: u64 = 200;
/// The bits of so many bytes are turned: kinds, counts and lengths stand there.
const TURNED_BYTES: usize = 64;

/// Gives each decoder `rounds` inputs, the same in every run. A few of them are also given in every prefix
/// and with every bit of their first bytes turned.
///
/// # Panics
/// When a decoder does, with the name of the decoder and the bytes it did not survive.
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

/// Mostly small numbers, so that counts and lengths are often plausible.
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
