//! Keys, values and the order of drawn ids, equal for every engine.
//!
//! Invariants
//! - A key is a hash of its id, and ids are loaded in order. A rank is scattered over the ids, so
//!   neighbouring ranks differ in key order and in age.
//! - Ids below `keys` are loaded, ids from `keys` on are not: a miss is a hash between real ones.
//! - A generator made from the same seed yields the same ids for each engine.

use serde::{Deserialize, Serialize};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

/// A key.
pub(crate) type Key = [u8; KEY_BYTES];

/// The key of an id; all ids have different keys.
pub(crate) fn key(id: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    // The first half alone is a bijection of the id.
    key[..8].copy_from_slice(&mix(id).to_be_bytes());
    key[8..].copy_from_slice(&mix(id ^ 0x5851_f42d_4c95_7f2d).to_be_bytes());
    key
}

/// The value of an id: incompressible bytes, equal at each call.
pub(crate) fn fill_value(id: u64, value: &mut [u8]) {
    let mut random = Random::new(id ^ 0x7661_6c75_6573);
    for word in value.chunks_mut(8) {
        let bytes = random.next().to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// The id of a rank: a bijection of `[0, keys)`, so that the most popular keys are not also the oldest.
pub(crate) fn scattered(rank: u64, keys: u64) -> u64 {
    // A prime that divides none of the numbers of keys in use.
    const PRIME: u64 = 2_654_435_761;
    ((u128::from(rank) * u128::from(PRIME) + 0x9e37) % u128::from(keys)) as u64
}

/// Finalizer of SplitMix64: a bijection of 64 bits.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        let out = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        out
    }

    /// In `[0, bound)`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Distribution of the Gets over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Skew {
    Uniform,
    /// Rank r with weight r^-exponent, over the true number of keys.
    Zipf(f64),
    /// That many ranks with equal probability, the others never.
    Hot(u64),
}

impl Skew {
    /// The four distributions of the paper's Table 1.
    pub(crate) const PAPER: [Skew; 4] = [Skew::Uniform, Skew::Zipf(0.99), Skew::Zipf(1.10), Skew::Zipf(1.20)];

    pub(crate) fn name(self) -> String {
        match self {
            Skew::Uniform => "uniform".to_owned(),
            Skew::Zipf(exponent) => format!("zipf {exponent:.2}"),
            Skew::Hot(ranks) => format!("uniform over {ranks} keys"),
        }
    }
}

/// Draws ranks in `[0, count)`.
pub(crate) enum Ranks {
    Uniform(u64),
    Zipf(Zipf),
}

impl Ranks {
    pub(crate) fn new(skew: Skew, count: u64) -> Ranks {
        match skew {
            Skew::Uniform => Ranks::Uniform(count),
            Skew::Zipf(exponent) => Ranks::Zipf(Zipf::new(count, exponent)),
            Skew::Hot(ranks) => Ranks::Uniform(ranks.min(count)),
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Ranks::Uniform(count) => random.below(*count),
            Ranks::Zipf(zipf) => zipf.draw(random),
        }
    }
}

/// Zipf by rejection-inversion (Hörmann and Derflinger, 1996): exact for any exponent, no table.
pub(crate) struct Zipf {
    count: f64,
    exponent: f64,
    low: f64,
    high: f64,
    skip: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { count: count as f64, exponent, low: 0.0, high: 0.0, skip: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.skip = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Integral of the weight; the exponents in use are not 1.
    fn integral(&self, x: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        ((rest * x.ln()).exp() - 1.0) / rest
    }

    fn inverse(&self, area: f64) -> f64 {
        let rest = 1.0 - self.exponent;
        ((1.0 + area * rest).max(f64::MIN_POSITIVE).ln() / rest).exp()
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.skip || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Ranks, Skew, fill_value, key, scattered};
    use std::collections::HashSet;

    #[test]
    fn keys_of_loaded_and_missing_ids_are_all_different() {
        let keys: HashSet<_> = (0..100_000).map(key).collect();
        assert_eq!(keys.len(), 100_000);
    }

    #[test]
    fn every_rank_has_an_id_of_its_own_and_the_first_are_of_all_ages() {
        for keys in [1, 2, 40_000, 300_000] {
            let ids: HashSet<_> = (0..keys).map(|rank| scattered(rank, keys)).collect();
            assert_eq!(ids.len() as u64, keys);
            assert!(ids.iter().all(|&id| id < keys));
        }
        let old = (0..1000).filter(|&rank| scattered(rank, 300_000) < 150_000).count();
        assert!((450..550).contains(&old), "{old} of the first 1000 ranks are in the older half");
    }

    #[test]
    fn misses_lie_between_real_keys() {
        let mut loaded: Vec<_> = (0..1000).map(key).collect();
        loaded.sort_unstable();
        let inside = (1000..2000).map(key).filter(|key| loaded[0] < *key && *key < loaded[999]).count();
        assert!(inside > 980, "{inside} of 1000 misses lie in the loaded range");
    }

    #[test]
    fn an_id_has_one_value_and_other_ids_have_others() {
        let value = |id| {
            let mut value = vec![0; 101];
            fill_value(id, &mut value);
            value
        };
        assert_eq!(value(7), value(7));
        assert_ne!(value(7), value(8));
        assert!(value(7)[96..].iter().any(|&byte| byte != 0), "the tail is filled too");
    }

    /// Shares of the first ranks against the definition.
    #[test]
    fn zipf_ranks_follow_the_law_over_the_true_number_of_keys() {
        for exponent in [0.99, 1.10, 1.20] {
            let (count, draws) = (10_000_u64, 400_000);
            let ranks = Ranks::new(Skew::Zipf(exponent), count);
            let mut random = Random::new(3);
            let mut seen = vec![0_u32; count as usize];
            for _ in 0..draws {
                seen[ranks.draw(&mut random) as usize] += 1;
            }
            let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
            for rank in [1_u64, 2, 3, 10, 100] {
                let wanted = (rank as f64).powf(-exponent) / total * f64::from(draws);
                let got = f64::from(seen[rank as usize - 1]);
                let sigma = wanted.sqrt();
                assert!(
                    (got - wanted).abs() < 5.0 * sigma,
                    "zipf {exponent}, rank {rank}: {got} draws, {wanted:.0} by the law"
                );
            }
            let tail: u32 = seen[5000..].iter().sum();
            let wanted: f64 = (5001..=count).map(|rank| (rank as f64).powf(-exponent)).sum::<f64>() / total;
            let got = f64::from(tail) / f64::from(draws);
            assert!((got - wanted).abs() < 0.003, "zipf {exponent}: tail {got} against {wanted}");
        }
    }

    #[test]
    fn uniform_ranks_reach_every_tenth_alike() {
        let ranks = Ranks::new(Skew::Uniform, 1000);
        let mut random = Random::new(5);
        let mut tenths = [0_u32; 10];
        for _ in 0..100_000 {
            tenths[ranks.draw(&mut random) as usize / 100] += 1;
        }
        assert!(tenths.iter().all(|&n| (9500..10_500).contains(&n)), "{tenths:?}");
    }
}
