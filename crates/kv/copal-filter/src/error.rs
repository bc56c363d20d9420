//! Errors of filter pages. None of them loses data: without a filter a reader reads the block.

/// The keys do not fit one Ribbon system of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{keys} keys do not fit a Ribbon system of at most {max_slots} slots; close the partition earlier")]
pub struct DoesNotFit {
    /// Number of keys.
    pub keys: u32,
    /// Slots of the largest system.
    pub max_slots: u32,
}

/// Reason why a filter page is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// Fewer bytes than the header or its units need.
    #[error("filter page has {actual} bytes, {needed} needed")]
    Short {
        /// Bytes needed.
        needed: u64,
        /// Bytes present.
        actual: u64,
    },
    /// Not a filter page.
    #[error("not a filter page: it starts with {0:#010x}")]
    Magic(u32),
    /// Written by a newer release.
    #[error("filter page has version {found}, this program reads up to {known}")]
    Version {
        /// Version in the page.
        found: u16,
        /// Newest version understood here.
        known: u16,
    },
    /// The header's checksum differs.
    #[error("filter page header is damaged")]
    HeaderChecksum,
    /// One unit's checksum differs.
    #[error("unit {unit} of the filter page is damaged")]
    UnitChecksum {
        /// Number of the unit.
        unit: u8,
    },
    /// A field has a value that no writer produces.
    #[error("filter page field {field} holds {value}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The page belongs to another partition: a misdirected read or write.
    #[error("filter page of partition {found:#x} stands where {expected:#x} belongs")]
    Partition {
        /// Uid in the page.
        found: u64,
        /// Uid wanted.
        expected: u64,
    },
    /// Built with another seed.
    #[error("filter page was built under another seed")]
    Seed,
}
