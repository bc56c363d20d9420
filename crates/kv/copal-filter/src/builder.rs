//! Builder of one partition's filter, key by key; it reports when the partition is full.

use crate::{
    KEYS_PER_PARTITION,
    hash::KeyHash,
    page::FilterPage,
    ribbon::{BandPlacement, MAX_SLOTS, RibbonBand},
    unit::Kind,
};

/// Result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFit {
    /// The key was added.
    Fits,
    /// The key was not added and nothing changed. It begins the next partition.
    Full,
}

/// Collects the keys of one partition. Reused for one partition after another.
///
/// Guard against crafted keys: a partition that would be full with fewer than [`Self::MIN_KEYS`] keys drops
/// its filter, instead of making thousands of tiny partitions. From then on every key fits and
/// [`Self::finish`] gives no page.
pub struct PartitionFilterBuilder {
    kind: Kind,
    store_seed: u64,
    band: RibbonBand,
    hashes: Vec<KeyHash>,
    keys: u32,
    unfiltered: bool,
}

impl PartitionFilterBuilder {
    /// A partition that would be full with fewer keys continues without a filter.
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

    /// Adds one user key; further versions of the same key must not be added.
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

    /// Number of keys in the partition so far.
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// The finished page, or `None` for an empty partition or one without a filter; the builder is then ready
    /// for the next partition.
    pub fn finish(&mut self, uid: u64) -> Option<FilterPage> {
        let page = if self.unfiltered || self.keys == 0 {
            None
        } else if self.kind == Kind::Ribbon && self.keys > MAX_SLOTS / 2 {
            // The keys are already banded at full size, and no smaller system can hold them.
            let columns = self.band.columns(uid);
            Some(FilterPage::from_units(self.kind, self.keys, MAX_SLOTS, &columns, uid, self.store_seed))
        } else {
            // Cannot fail: keys that fit 2048 slots were banded there one by one.
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
