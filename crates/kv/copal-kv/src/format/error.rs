//! Errors of tables: kind and place of the damage.

use copal_codec::{DecodeError, EnvelopeError};
use copal_filter::PageError;
use copal_object::{ObjectId, StoreError};
use std::fmt;

/// A table could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The object layer failed.
    #[error(transparent)]
    Object(#[from] StoreError),
    /// The bytes are not those that were written: read another replica, or restore.
    #[error("table {} is damaged at {place}: {damage}", object.0)]
    Corrupt {
        /// The table.
        object: ObjectId,
        /// Part of the table.
        place: DamageAt,
        /// Kind of the damage.
        damage: Damage,
    },
    /// The entries of a new table do not ascend: their source is damaged in a way that no checksum reveals.
    #[error("entries for table {} do not ascend: a table they come from is damaged", object.0)]
    OutOfOrder {
        /// The table that was being written.
        object: ObjectId,
    },
    /// Intact, but written by another release.
    #[error("table {}: {source}", object.0)]
    Unsupported {
        /// The table.
        object: ObjectId,
        /// Reason for the refusal.
        source: EnvelopeError,
    },
}

impl TableError {
    /// Whether bytes on the device are wrong, as opposed to temporarily unreadable.
    pub fn is_corruption(&self) -> bool {
        matches!(
            self,
            TableError::Corrupt { .. }
                | TableError::OutOfOrder { .. }
                | TableError::Object(StoreError::Corrupt { .. })
        )
    }
}

impl From<TableError> for crate::Error {
    fn from(error: TableError) -> crate::Error {
        match error {
            TableError::Object(error) => error.into(),
            damaged => crate::Error::Corrupt { what: damaged.to_string() },
        }
    }
}

/// Part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageAt {
    /// Both footers.
    Footer,
    /// A section after the partitions.
    Section(&'static str),
    /// A data block.
    Block {
        /// Partition, from 0.
        partition: u32,
        /// Block in it, from 0.
        block: u32,
    },
    /// The data blocks of a partition as a whole.
    Partition(u32),
    /// Index page of a partition.
    Index(u32),
    /// Filter page of a partition.
    Filter(u32),
    /// The object as a whole.
    Object,
}

impl fmt::Display for DamageAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DamageAt::Footer => write!(f, "its footers"),
            DamageAt::Section(name) => write!(f, "its {name}"),
            DamageAt::Block { partition, block } => write!(f, "partition {partition}, block {block}"),
            DamageAt::Partition(partition) => write!(f, "partition {partition}"),
            DamageAt::Index(partition) => write!(f, "the index page of partition {partition}"),
            DamageAt::Filter(partition) => write!(f, "the filter page of partition {partition}"),
            DamageAt::Object => write!(f, "the object as a whole"),
        }
    }
}

/// Kind of damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A checksum differs.
    #[error("its checksum is {stored:08x}, its bytes give {computed:08x}")]
    Checksum {
        /// Checksum found.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A field has a value that no writer produces.
    #[error("its {0} is impossible")]
    Field(&'static str),
    /// A field could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A filter page is refused.
    #[error(transparent)]
    Filter(#[from] PageError),
    /// The header is refused.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// Compressed bytes do not decompress.
    #[error("it does not decompress")]
    Codec,
    /// The object is missing.
    #[error("it is missing")]
    Missing,
    /// Entries are out of order or outside their partition.
    #[error("its entries are out of order")]
    Order,
}

impl Damage {
    /// The table error for this damage at `place`.
    pub(crate) fn at(self, object: ObjectId, place: DamageAt) -> TableError {
        TableError::Corrupt { object, place, damage: self }
    }
}
