//! Checksums of units, and the placement class of an object.

use crate::ObjectLifetime;

/// Sums of consecutive units of `bytes`.
pub(crate) fn unit_sums(bytes: &[u8], unit_bytes: usize) -> Vec<u32> {
    bytes.chunks(unit_bytes).map(|unit| copal_codec::crc32c(0, unit)).collect()
}

/// Streams have class 0.
pub(crate) fn placement_class(lifetime: ObjectLifetime) -> usize {
    match lifetime {
        ObjectLifetime::Short => 1,
        ObjectLifetime::Medium => 2,
        ObjectLifetime::Long => 3,
    }
}
