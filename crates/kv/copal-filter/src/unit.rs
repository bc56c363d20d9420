//! Kinds of filter units, as one enum for building and one for probing.

use crate::{
    bloom::{self, BloomUnits},
    hash::KeyHash,
    ribbon::{self, UnitColumns},
};

/// Kind of unit, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Kind {
    /// Ribbon columns: 15 units of 1.013 bits per key.
    #[default]
    Ribbon = 1,
    /// The paper's Bloom units: 6 of 4 bits per key.
    Bloom = 2,
}

impl Kind {
    /// The kind with the stored number `byte`.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Ribbon),
            2 => Some(Kind::Bloom),
            _ => None,
        }
    }

    /// Units of a page of this kind.
    pub fn units(self) -> u8 {
        match self {
            Kind::Ribbon => ribbon::COLUMNS,
            Kind::Bloom => bloom::UNITS,
        }
    }

    /// Bytes of one unit over `keys` keys.
    pub fn unit_bytes(self, keys: u32) -> u32 {
        match self {
            Kind::Ribbon => ribbon::unit_bytes(keys),
            Kind::Bloom => bloom::unit_bytes(keys),
        }
    }

    /// Probability that `units` loaded units admit an absent key.
    pub fn fpr(self, units: u8) -> f64 {
        match self {
            Kind::Ribbon => ribbon::fpr(units),
            Kind::Bloom => bloom::fpr(units),
        }
    }
}

/// Loaded units of one partition.
#[derive(Clone, Debug)]
pub enum Units {
    /// Ribbon columns, interleaved.
    Ribbon(UnitColumns),
    /// Bloom units.
    Bloom(BloomUnits),
}

impl Units {
    /// False: the key is not in the partition. True for every key of the partition.
    #[inline]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        match self {
            Units::Ribbon(columns) => columns.may_contain(hash),
            Units::Bloom(units) => units.may_contain(hash),
        }
    }

    /// Number of loaded units.
    pub fn count(&self) -> u8 {
        match self {
            Units::Ribbon(columns) => columns.count(),
            Units::Bloom(units) => units.count(),
        }
    }

    /// The first `count` of the loaded units, or all of them: dropping units needs no page.
    #[must_use]
    pub fn first(&self, count: u8) -> Units {
        match self {
            Units::Ribbon(columns) => Units::Ribbon(columns.first(count)),
            Units::Bloom(units) => Units::Bloom(units.first(count)),
        }
    }

    /// Kind of the units.
    pub fn kind(&self) -> Kind {
        match self {
            Units::Ribbon(_) => Kind::Ribbon,
            Units::Bloom(_) => Kind::Bloom,
        }
    }

    /// Bytes of heap memory of this value.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Units::Ribbon(columns) => columns.heap_bytes(),
            Units::Bloom(units) => units.heap_bytes(),
        }
    }
}
