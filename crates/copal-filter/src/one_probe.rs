//! One-probe Bloom units: 1.44 bits per key, FPR 1/2 each. The fall-back if banding proved too slow.

use crate::{
    error::DoesNotFit,
    hash::KeyHash,
    page::FilterPage,
    unit::{Kind, UnitKind},
};

/// Units per page: as many as fit 4 KiB at 2021 keys.
pub(crate) const UNITS: u8 = 10;
/// Unit hashes of this kind are numbered from here, apart from those of the other Bloom kind.
const FIRST_HASH: u64 = 0x100;

/// The first units of a partition's page in memory, one after the other.
#[derive(Clone, Debug)]
pub struct OneProbeUnits {
    words: Box<[u64]>,
    unit_words: u32,
    count: u8,
}

impl OneProbeUnits {
    /// Lays the words of the loaded units end to end; each has `unit_words` words.
    ///
    /// # Panics
    /// When `words` is not `count` units long.
    pub fn new(words: Vec<u64>, unit_words: u32, count: u8) -> OneProbeUnits {
        assert_eq!(words.len(), unit_words as usize * usize::from(count));
        OneProbeUnits {
            words: words.into_boxed_slice(),
            unit_words,
            count,
        }
    }

    /// Units loaded.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// The first `count` of them, or all.
    #[must_use]
    pub fn first(&self, count: u8) -> OneProbeUnits {
        let count = count.min(self.count);
        let words = &self.words[..self.unit_words as usize * usize::from(count)];
        OneProbeUnits::new(words.to_vec(), self.unit_words, count)
    }

    /// Bytes of memory behind this value.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// False: the key is not in the partition.
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        let units = self.words.chunks_exact(self.unit_words as usize);
        units
            .enumerate()
            .all(|(unit, words)| admits(words, unit as u8, hash))
    }
}

/// Whether unit number `unit` says maybe.
pub(crate) fn admits(words: &[u64], unit: u8, hash: KeyHash) -> bool {
    let at = position(hash, unit, words.len() as u32 * 64);
    words[(at / 64) as usize] >> (at % 64) & 1 == 1
}

fn position(hash: KeyHash, unit: u8, bits: u32) -> u32 {
    let h = hash.unit_hash(FIRST_HASH + u64::from(unit));
    (((h >> 32) * u64::from(bits)) >> 32) as u32
}

/// Kind marker: see [`UnitKind`].
pub(crate) struct OneProbe;

impl UnitKind for OneProbe {
    const KIND: Kind = Kind::OneProbe;
    const UNITS: u8 = UNITS;

    fn unit_bytes(keys: u32) -> u32 {
        // keys / ln 2 bits.
        (f64::from(keys) * std::f64::consts::LOG2_E / 64.0)
            .ceil()
            .max(1.0) as u32
            * 8
    }

    fn fpr(units: u8) -> f64 {
        0.5f64.powi(i32::from(units))
    }

    fn build(hashes: &[KeyHash], uid: u64, store_seed: u64) -> Result<FilterPage, DoesNotFit> {
        let unit_bytes = Self::unit_bytes(hashes.len() as u32);
        let mut units = vec![vec![0u64; unit_bytes as usize / 8]; usize::from(UNITS)];
        for (unit, words) in units.iter_mut().enumerate() {
            for &hash in hashes {
                let at = position(hash, unit as u8, unit_bytes * 8);
                words[(at / 64) as usize] |= 1 << (at % 64);
            }
        }
        Ok(FilterPage::from_units(
            Kind::OneProbe,
            hashes.len() as u32,
            unit_bytes * 8,
            &units,
            uid,
            store_seed,
        ))
    }
}
