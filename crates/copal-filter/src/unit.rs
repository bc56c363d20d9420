//! The kinds of filter units behind one trait at build time and one enum at probe time.

use crate::{
    bloom::{Bloom, BloomUnits},
    error::DoesNotFit,
    hash::KeyHash,
    one_probe::{OneProbe, OneProbeUnits},
    page::FilterPage,
    ribbon::{self, Columns},
};

/// What every kind of unit can do. No I/O; static: the engine probes through [`Units`].
pub trait UnitKind {
    /// Its name on disk.
    const KIND: Kind;
    /// Units a page of this kind holds.
    const UNITS: u8;
    /// Bytes of one unit over `keys` keys.
    fn unit_bytes(keys: u32) -> u32;
    /// Probability that `units` loaded units report an absent key.
    fn fpr(units: u8) -> f64;
    /// All units over the keys of one partition.
    ///
    /// # Errors
    /// [`DoesNotFit`]: only Ribbon; [`crate::PartitionFilterBuilder`] closes partitions before it happens.
    fn build(hashes: &[KeyHash], uid: u64, store_seed: u64) -> Result<FilterPage, DoesNotFit>;
}

/// Kind of unit, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Kind {
    /// Ribbon columns: 15 units of 1.013 bits per key.
    #[default]
    Ribbon = 1,
    /// The paper's Bloom units: 6 of 4 bits per key.
    Bloom = 2,
    /// Bloom units with one probe: 10 of 1.44 bits per key.
    OneProbe = 3,
}

impl Kind {
    /// The kind stored as `byte`.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Ribbon),
            2 => Some(Kind::Bloom),
            3 => Some(Kind::OneProbe),
            _ => None,
        }
    }

    /// Units a page of this kind holds.
    pub fn units(self) -> u8 {
        match self {
            Kind::Ribbon => Ribbon::UNITS,
            Kind::Bloom => Bloom::UNITS,
            Kind::OneProbe => OneProbe::UNITS,
        }
    }

    /// Bytes of one unit over `keys` keys.
    pub fn unit_bytes(self, keys: u32) -> u32 {
        match self {
            Kind::Ribbon => Ribbon::unit_bytes(keys),
            Kind::Bloom => Bloom::unit_bytes(keys),
            Kind::OneProbe => OneProbe::unit_bytes(keys),
        }
    }

    /// Probability that `units` loaded units report an absent key.
    pub fn fpr(self, units: u8) -> f64 {
        match self {
            Kind::Ribbon => Ribbon::fpr(units),
            Kind::Bloom => Bloom::fpr(units),
            Kind::OneProbe => OneProbe::fpr(units),
        }
    }

    /// All units over the keys of one partition.
    ///
    /// # Errors
    /// See [`UnitKind::build`].
    pub fn build(self, hashes: &[KeyHash], uid: u64, store_seed: u64) -> Result<FilterPage, DoesNotFit> {
        match self {
            Kind::Ribbon => Ribbon::build(hashes, uid, store_seed),
            Kind::Bloom => Bloom::build(hashes, uid, store_seed),
            Kind::OneProbe => OneProbe::build(hashes, uid, store_seed),
        }
    }
}

/// Loaded units of one partition.
#[derive(Clone, Debug)]
pub enum Units {
    /// Ribbon columns, interleaved.
    Ribbon(Columns),
    /// Bloom units.
    Bloom(BloomUnits),
    /// One-probe units.
    OneProbe(OneProbeUnits),
}

impl Units {
    /// False: the key is not in the partition. True for every key that is.
    #[inline]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        match self {
            Units::Ribbon(columns) => columns.may_contain(hash),
            Units::Bloom(units) => units.may_contain(hash),
            Units::OneProbe(units) => units.may_contain(hash),
        }
    }

    /// Units loaded.
    pub fn count(&self) -> u8 {
        match self {
            Units::Ribbon(columns) => columns.count(),
            Units::Bloom(units) => units.count(),
            Units::OneProbe(units) => units.count(),
        }
    }

    /// The first `count` of the units loaded, or all of them: dropping units needs no page.
    #[must_use]
    pub fn first(&self, count: u8) -> Units {
        match self {
            Units::Ribbon(columns) => Units::Ribbon(columns.first(count)),
            Units::Bloom(units) => Units::Bloom(units.first(count)),
            Units::OneProbe(units) => Units::OneProbe(units.first(count)),
        }
    }

    /// Kind of the units.
    pub fn kind(&self) -> Kind {
        match self {
            Units::Ribbon(_) => Kind::Ribbon,
            Units::Bloom(_) => Kind::Bloom,
            Units::OneProbe(_) => Kind::OneProbe,
        }
    }

    /// Bytes of memory behind this value.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Units::Ribbon(columns) => columns.heap_bytes(),
            Units::Bloom(units) => units.heap_bytes(),
            Units::OneProbe(units) => units.heap_bytes(),
        }
    }
}

/// Kind marker of the Ribbon columns.
pub(crate) struct Ribbon;

impl UnitKind for Ribbon {
    const KIND: Kind = Kind::Ribbon;
    const UNITS: u8 = ribbon::COLUMNS;

    fn unit_bytes(keys: u32) -> u32 {
        let slots = ribbon::SLOT_CHOICES
            .into_iter()
            .find(|&s| f64::from(s) >= f64::from(keys) * 1.005);
        slots.unwrap_or(ribbon::MAX_SLOTS) / 8
    }

    fn fpr(units: u8) -> f64 {
        0.5f64.powi(i32::from(units))
    }

    fn build(hashes: &[KeyHash], uid: u64, store_seed: u64) -> Result<FilterPage, DoesNotFit> {
        let (slots, columns) = ribbon::solve(hashes, uid)?;
        Ok(FilterPage::from_units(
            Kind::Ribbon,
            hashes.len() as u32,
            slots,
            &columns,
            uid,
            store_seed,
        ))
    }
}
