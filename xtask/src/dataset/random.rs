//! Seeded random numbers of the data set (SplitMix64): equal parameters give equal content.

/// One stream of numbers.
pub struct Random {
    state: u64,
}

impl Random {
    /// An independent stream for each list of numbers.
    pub fn new(seeds: &[u64]) -> Random {
        let mut random = Random { state: 0x0c09_a1ca_5eed_0001 };
        for seed in seeds {
            random.state ^= seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random.next();
        }
        random
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; `bound` is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// 16 bytes in the form of a UUID.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        let node = low & 0xffff_ffff_ffff;
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{node:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            (low >> 48) & 0xfff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seeds_give_the_same_stream_and_others_another() {
        let draw = |seeds: &[u64]| {
            let mut random = Random::new(seeds);
            (0..4).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_eq!(Random::new(&[7]).uuid().len(), 36);
    }
}
