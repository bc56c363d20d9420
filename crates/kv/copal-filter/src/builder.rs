//! Builds one partition's filter while its keys arrive, and says when the partition is full.

use crate::{
    KEYS_PER_PARTITION,
    hash::KeyHash,
    page::FilterPage,
    ribbon::{BandPlacement, MAX_SLOTS, RibbonBand},
    unit::Kind,
};

/// Whether a key went in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFit {
    /// It did.
    Fits,
    /// It did not; nothing changed. The key opens the next partition.
    Full,
}

/// Collects the keys of one partition. Reused from partition to partition.
///
/// Guard against crafted keys: a partition full below [`Self::MIN_KEYS`] keys gives up its filter rather than
/// making thousands of tiny partitions; from then on every key fits and [`Self::finish`] gives no page.
pub struct PartitionFilterBuilder {
    kind: Kind,
    store_seed: u64,
    band: RibbonBand,
    hashes: Vec<KeyHash>,
    keys: u32,
    unfiltered: bool,
}

impl PartitionFilterBuilder {
    /// A partition that would close with fewer keys stays open, unfiltered.
    pub const MIN_KEYS: u32 = 256;

    /// An empty partition.
    pub fn new(kind: Kind, store_seed: u64) -> PartitionFilterBuilder {
        PartitionFilterBuilder {
            kind,
            store_seed,
            band: RibbonBand::new(MAX_SLOTS),
            hashes: Vec::with_capacity(MAX_SLOTS as usize),
            keys: 0,
            unfiltered: false,
        }
    }

    /// Offers one user key (once: further versions of a key are not offered again).
    pub fn add(&mut self, hash: KeyHash) -> FilterFit {
        if self.keys >= self.max_keys() {
            return FilterFit::Full;
        }
        if !self.unfiltered && self.kind == Kind::Ribbon && self.band.add(hash) == BandPlacement::DoesNotFit {
            if self.keys >= Self::MIN_KEYS {
                return FilterFit::Full;
            }
            self.unfiltered = true;
        }
        self.hashes.push(hash);
        self.keys += 1;
        FilterFit::Fits
    }

    /// Keys in the partition so far.
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// The finished page, or `None` for an empty or unfiltered partition; ready for the next partition.
    pub fn finish(&mut self, uid: u64) -> Option<FilterPage> {
        let page = if self.unfiltered || self.keys == 0 {
            None
        } else if self.kind == Kind::Ribbon && self.keys > MAX_SLOTS / 2 {
            // Already banded at full size, nothing smaller can hold them.
            let columns = self.band.columns(uid);
            Some(FilterPage::from_units(self.kind, self.keys, MAX_SLOTS, &columns, uid, self.store_seed))
        } else {
            // Cannot fail: what fits 2048 slots was banded there key by key.
            FilterPage::build(self.kind, &self.hashes, uid, self.store_seed).ok()
        };
        self.band.clear();
        self.hashes.clear();
        self.keys = 0;
        self.unfiltered = false;
        page
    }

    fn max_keys(&self) -> u32 {
        match self.kind {
            Kind::Ribbon => MAX_SLOTS,
            Kind::Bloom => KEYS_PER_PARTITION,
        }
    }
}
