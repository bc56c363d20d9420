//! The sum of a unit of data: CRC32C over the hash of each page.
//!
//! A CRC32C of the bytes alone is the same for all pages that end with their own CRC32C, as blocks of databases and file
//! systems do. A recovery would take an older page for the lost one.
//!
//! Format: docs/formats/object-record.md v1, object-frame.md v1

use super::hash64;
use copal_codec::crc32c;

/// How sums are computed. It belongs to an object for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SumRule {
    /// CRC32C of the bytes: objects that a build made which knows nothing else.
    Crc32c,
    /// CRC32C over hashes: the XXH3-64 of each page.
    #[default]
    Hashes,
}

impl SumRule {
    /// Sum of the whole pages `bytes`, after those with the sum `before`.
    pub(crate) fn sum(self, before: u32, bytes: &[u8], page_bytes: usize) -> u32 {
        match self {
            SumRule::Crc32c => crc32c(before, bytes),
            SumRule::Hashes => {
                bytes.chunks(page_bytes).fold(before, |sum, page| crc32c(sum, &hash64(page).to_le_bytes()))
            }
        }
    }

    /// Sums of consecutive units.
    pub(crate) fn unit_sums(self, bytes: &[u8], unit_pages: u32, page_bytes: usize) -> Vec<u32> {
        bytes.chunks(unit_pages as usize * page_bytes).map(|unit| self.sum(0, unit, page_bytes)).collect()
    }
}
