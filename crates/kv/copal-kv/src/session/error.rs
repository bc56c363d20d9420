//! Errors of the engine. They are one type, since every call may meet an error of the device.

use super::limits::MAX_GROUP_BYTES;
use copal_object::StoreError;

/// Reason why a call of this crate failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object store below returned an error.
    #[error(transparent)]
    Object(StoreError),
    /// Bytes on disk differ from the written ones. Other ranges stay readable.
    #[error("damaged: {what}")]
    Corrupt {
        /// Damaged structure, its place, and the failed check.
        what: String,
    },
    /// Nothing was written; deletes still work.
    #[error("the store is full")]
    NoSpace,
    /// An earlier write failed. Reads still work; writes fail until the store is reopened.
    #[error("the store is read-only until reopened: {reason}")]
    Poisoned {
        /// The first failure.
        reason: String,
        /// The host ran out of space inside a write: free space there, then reopen the store. No disk failed.
        host_full: bool,
    },
    /// A write to a store opened with `read_only`.
    #[error("the store is open read-only")]
    ReadOnly,
    /// The keyspace was dropped or never existed.
    #[error("keyspace {0} does not exist")]
    NoKeyspace(String),
    /// Keys are at most 65535 bytes long.
    #[error("key of {0} bytes is longer than 65535")]
    KeyTooLong(usize),
    /// Values are at most 1 GiB long.
    #[error("value of {0} bytes is longer than 1 GiB")]
    ValueTooLong(usize),
    /// Limit of memory for one batch or single put; directly written values do not count.
    #[error("a batch of {bytes} bytes is longer than {limit}: split it{}", or_more_memory(*limit, *total_bytes))]
    BatchTooLarge {
        /// Bytes that the batch would take in the memtable.
        bytes: u64,
        /// The limit.
        limit: u64,
        /// Total of the memory budget.
        total_bytes: u64,
    },
    /// Memory that cannot be reclaimed (memtables that iterators pin, table descriptors) leaves too little of
    /// the memory budget.
    #[error(
        "{needed} bytes of memory are needed, {total_bytes} is the budget: drop old iterators, or open with more"
    )]
    OverBudget {
        /// Bytes that would have been in use.
        needed: u64,
        /// Total of the memory budget.
        total_bytes: u64,
    },
    /// The entries of a repair must ascend strictly and lie in the range; this key does not.
    #[error("key {key} is out of order or outside the range that is repaired")]
    NotInRange {
        /// The key, escaped.
        key: String,
    },
    /// The object does not exist, or does not belong to a key-value store.
    #[error("object {object} does not exist or is not of a key-value store; an outline lists those that are")]
    NoObject {
        /// Id of the object.
        object: u64,
    },
    /// Nothing was written, and no further write is possible: the sequence numbers are used up.
    #[error("the store has no sequence number left; copy its contents into a new store")]
    NumbersUsedUp,
    /// An option has an impossible value.
    #[error("the option {name} cannot be {value}: {why}")]
    Options {
        /// Name of the option.
        name: &'static str,
        /// The given value.
        value: u64,
        /// Permitted values, and the reason.
        why: &'static str,
    },
    /// This process already has a key-value store open on these objects.
    #[error("the store is open already in this process; use that handle, or close it first")]
    AlreadyOpen,
    /// The store was closed by [`crate::Store::close`].
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// Whether the requested bytes are damaged; a copy elsewhere may be intact.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Object(StoreError::Corrupt { .. }))
    }

    /// Whether the host ran out of space inside a write. The store then refuses writes until it is reopened,
    /// and the failed operation may or may not have taken effect.
    #[must_use]
    pub fn is_host_full(&self) -> bool {
        match self {
            Error::Object(error) => error.is_host_full(),
            Error::Poisoned { host_full, .. } => *host_full,
            _ => false,
        }
    }

    /// Whether the store is full; deleting frees space.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace | Error::Object(StoreError::NoSpace { .. }))
    }

    /// An internal failure that ends all writing.
    pub(crate) fn poisoned(reason: impl Into<String>) -> Error {
        Error::Poisoned { reason: reason.into(), host_full: false }
    }

    /// Damage in `what`, detected by the check `why`.
    pub(crate) fn corrupt(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
        Error::Corrupt { what: format!("{what}: {why}") }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        match error {
            StoreError::NoSpace { .. } => Error::NoSpace,
            other => Error::Object(other),
        }
    }
}

/// Advice for a batch beyond `limit` where the memory budget sets the limit.
fn or_more_memory(limit: u64, total_bytes: u64) -> String {
    if limit < MAX_GROUP_BYTES as u64 {
        format!(", or open the store with more memory than {total_bytes} bytes")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::DeviceError;

    /// An opening returns the error of the object layer itself.
    #[test]
    fn a_full_host_is_distinguished_from_a_full_store_and_a_failed_disk() {
        let of_device = |error| Error::Object(StoreError::Device(error));
        let met = |kind: std::io::ErrorKind| of_device(DeviceError::io("write", 0, 1, kind.into()));
        assert!(met(std::io::ErrorKind::StorageFull).is_host_full());
        assert!(met(std::io::ErrorKind::QuotaExceeded).is_host_full());
        for other in [
            met(std::io::ErrorKind::Other),
            of_device(DeviceError::Poisoned),
            Error::poisoned("a thread of the engine panicked"),
            Error::NoSpace,
        ] {
            assert!(!other.is_host_full(), "{other}");
        }
        assert!(!met(std::io::ErrorKind::StorageFull).is_no_space());
    }
}
