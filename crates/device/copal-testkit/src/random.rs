//! Seeded random numbers: equal seeds give equal tests on every machine.
//!
//! Not here: unpredictable randomness (`getrandom`).

/// Fraction of the golden ratio in 64 bits, odd: its multiples spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64. Neighbouring seeds give unrelated streams.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream determined by the seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`. The bias of the remainder does not matter to a test.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        self.next_u64() % bound
    }

    /// An index of a slice of `len` items.
    ///
    /// # Panics
    /// When `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `n` times.
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number of random bit length: small and large ones are equally likely.
    pub fn any_magnitude(&mut self) -> u64 {
        let shift = self.below(64);
        self.next_u64() >> shift
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Overwrites `bytes` with noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            let number = self.next_u64().to_le_bytes();
            eight.copy_from_slice(&number[..eight.len()]);
        }
    }

    /// Overwrites `bytes` with letters; they compress to about half.
    pub fn text(&mut self, bytes: &mut [u8]) {
        const LETTERS: &[u8; 16] = b"etaoinshrdlu \n.,";
        for byte in bytes {
            *byte = LETTERS[self.index(LETTERS.len())];
        }
    }

    /// `len` bytes of noise.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Noise of a random length from 0 to `most` bytes.
    pub fn bytes_up_to(&mut self, most: usize) -> Vec<u8> {
        let len = self.index(most + 1);
        self.bytes(len)
    }
}

/// Maps numbers to different numbers spread over 64 bits: keys in hash order.
pub const fn scattered(number: u64) -> u64 {
    number.wrapping_mul(GOLDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation for seed 1234567.
    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first.map(|_| random.next_u64()), first);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_bytes_have_their_length() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(7) < 7 && random.unit() < 1.0));
        assert!((0..20).all(|len| random.bytes(len).len() == len));
    }
}
