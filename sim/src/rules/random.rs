//! Pseudo-random numbers: SplitMix64, and zipf by rejection-inversion.

/// One step of SplitMix64 as a function: spreads ids over 64 bits.
pub(crate) fn mix(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        let now = self.0;
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(now)
    }

    /// Uniform in 0..end.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Uniform in 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks 1..=n with probability proportional to `rank^-skew`, any skew above 0.
///
/// Hoermann and Derflinger, *Rejection-inversion to generate variates from monotone discrete distributions*
/// (1996): constant time and memory, exact for any n.
pub(crate) struct Zipf {
    n: f64,
    skew: f64,
    h_first: f64,
    h_last: f64,
    sure: f64,
}

impl Zipf {
    pub(crate) fn new(n: u64, skew: f64) -> Zipf {
        let mut zipf = Zipf { n: n as f64, skew, h_first: 0.0, h_last: 0.0, sure: 0.0 };
        zipf.h_first = zipf.h(1.5) - 1.0;
        zipf.h_last = zipf.h(zipf.n + 0.5);
        zipf.sure = 2.0 - zipf.h_inverse(zipf.h(2.5) - 2f64.powf(-skew));
        zipf
    }

    /// Integral of `x^-skew`.
    fn h(&self, x: f64) -> f64 {
        let exponent = 1.0 - self.skew;
        if exponent.abs() < 1e-9 { x.ln() } else { (x.powf(exponent) - 1.0) / exponent }
    }

    fn h_inverse(&self, y: f64) -> f64 {
        let exponent = 1.0 - self.skew;
        if exponent.abs() < 1e-9 { y.exp() } else { (1.0 + y * exponent).max(0.0).powf(1.0 / exponent) }
    }

    /// A rank, the most frequent being 1.
    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let y = self.h_last + random.unit() * (self.h_first - self.h_last);
            let x = self.h_inverse(y);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.sure || y >= self.h(rank + 0.5) - rank.powf(-self.skew) {
                return rank as u64;
            }
        }
    }
}
