//! Keys of the Gets: uniform or zipf over hashed keys, half of them missing; the hot set moves half-way.

use super::{
    key::Key,
    random::{Random, Zipf, mix},
};
use anyhow::{Context, Result, bail};
use std::{fmt, str::FromStr};

/// Distribution of the Gets over the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Access {
    Uniform,
    Zipf(f64),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Uniform => f.write_str("uniform"),
            Access::Zipf(skew) => write!(f, "zipf:{skew:.2}"),
        }
    }
}

impl FromStr for Access {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Access> {
        if name == "uniform" {
            return Ok(Access::Uniform);
        }
        let skew = name.strip_prefix("zipf:").context("an access is `uniform` or `zipf:SKEW`")?;
        let skew: f64 = skew.parse().with_context(|| format!("{skew:?} is not a skew"))?;
        if !(0.01..=5.0).contains(&skew) {
            bail!("the skew of a zipf access must lie between 0.01 and 5, not at {skew}");
        }
        Ok(Access::Zipf(skew))
    }
}

/// An endless sequence of Gets.
pub(super) struct Gets {
    keys: u64,
    missing_share: f64,
    zipf: Option<Zipf>,
    random: Random,
    /// Offset of every rank; another value selects another hot set.
    shift: u64,
}

impl Gets {
    /// Gets on ids 0..keys, which exist, and on as many that do not.
    pub(super) fn new(access: Access, keys: u64, missing_share: f64, seed: u64) -> Gets {
        let zipf = match access {
            Access::Uniform => None,
            Access::Zipf(skew) => Some(Zipf::new(keys, skew)),
        };
        Gets { keys, missing_share, zipf, random: Random(mix(seed)), shift: 0 }
    }

    /// Moves the hot set to other keys.
    pub(super) fn move_hot_set(&mut self) {
        self.shift += self.keys / 2 + 1;
    }

    pub(super) fn next(&mut self) -> Key {
        let rank = match &self.zipf {
            None => self.random.below(self.keys),
            Some(zipf) => zipf.rank(&mut self.random) - 1,
        };
        let id = (rank + self.shift) % self.keys;
        let present = self.random.unit() >= self.missing_share;
        Key::numbered(id, self.keys, present)
    }
}

/// Probability of each id among the Gets of existing keys, hottest first.
pub(super) fn probabilities(access: Access, keys: u64) -> Vec<f64> {
    let skew = match access {
        Access::Uniform => 0.0,
        Access::Zipf(skew) => skew,
    };
    let mut weights: Vec<f64> = (1..=keys).map(|rank| (rank as f64).powf(-skew)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}
