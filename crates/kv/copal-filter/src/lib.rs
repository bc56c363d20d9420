//! Filter units: small filters over one partition of a table that are loaded and dropped one by one.
//!
//! Paper: elasticbf §3.1 (filter units, separability). The default unit is a Ribbon column. The paper's Bloom
//! unit is selectable as well, so that both can be measured in the same engine.
//! Format: `docs/formats/kv-filter-page.md` v1 ([`FilterPage`]).
//!
//! Invariants
//! - No false negative: every subset of a partition's units admits every key of the partition (KV-14).
//! - Exactly separable: `k` Ribbon columns admit an absent key with probability 2^-k, for any `k`.
//! - Pure: no I/O, no clock, no ambient randomness. The same keys, seed and partition uid give the same
//!   bytes.
//! - No byte of a page is used before its checksum and its bounds are checked.
//!
//! Not here: loading pages, the threads that drive the rules (`copal-kv`).

mod bloom;
mod builder;
mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod hash;
mod page;
pub mod ribbon;
pub mod rules;
mod unit;

pub use bloom::BloomUnits;
pub use builder::{FilterFit, PartitionFilterBuilder};
pub use error::{DoesNotFit, PageError};
pub use hash::KeyHash;
pub use page::{FilterPage, HEADER_BYTES, MAX_UNITS};
pub use unit::{Kind, Units};

/// Keys at which a partition ends, for kinds without a natural end: the average of 2048-slot Ribbon systems.
pub const KEYS_PER_PARTITION: u32 = 2021;

#[cfg(test)]
mod tests;
