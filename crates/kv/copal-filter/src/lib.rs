//! Filter units: small filters over one partition of a table that load and drop one by one.
//!
//! Paper: elasticbf §3.1 (filter units, separability). Our default unit is a Ribbon column; the paper's
//! Bloom unit is kept beside it, selectable, so that both can be measured in the same engine.
//! Format: `docs/formats/kv-filter-page.md` v1 ([`FilterPage`]).
//!
//! Invariants
//! - No false negative: a key that went into a partition's filter is reported by every subset of its units
//!   (KV-14).
//! - Exactly separable: `k` Ribbon columns answer "maybe" for an absent key with probability 2^-k, any `k`.
//! - Pure: no I/O, no clock, no ambient randomness. The same keys, seed and partition uid give the same
//!   bytes.
//! - No byte of a page is trusted before its checksum and its bounds are checked.
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

/// Keys at which a partition of a kind without a natural end is closed; the average of 2048-slot Ribbon
/// systems.
pub const KEYS_PER_PARTITION: u32 = 2021;

#[cfg(test)]
mod tests;
