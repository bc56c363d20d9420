//! One market for the memory of an engine: rows, blocks, index pages and filter columns compete by one price.
//!
//! Design: docs/design/kv.md#market KV-11
//! The price is reads of the device saved per byte and Get. The simulator runs this code; the engine will.
//!
//! Invariants
//! - Pure: no I/O, no lock, no clock, no randomness. Each answer follows from the calls before it.
//! - The sum of claims and pools never exceeds the total.
//! - A pool pays for another only if that one's gain is more than [`FACTOR`] times the payer's loss.
//!
//! Not here: columns themselves (`copal-filter`), threads and shards (`copal-kv`).

mod market;
pub mod pool;
#[cfg(test)]
mod tests;
mod worth;

pub use market::{MarketAnswer, MemoryMarket, PoolKind};
pub use pool::{CachePool, ENTRY_BYTES, EvictedEntry, PoolEvents};
pub use worth::{ByteWorth, ColumnOffer, FACTOR};
