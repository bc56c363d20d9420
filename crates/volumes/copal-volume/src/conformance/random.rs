//! Seeded random numbers of the suite: equal seeds give equal histories on every machine.
//!
//! Not here: random numbers for tests of other crates (`copal-testkit`). Product code may not use that crate,
//! and the suite is product code.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// A generator determined by the seed.
    pub(super) fn new(seed: u64) -> Random {
        Random { state: seed }
    }
    /// The next 64 bits.
    pub(super) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }
    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
