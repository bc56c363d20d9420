//! Packs: immutable files of encrypted chunks or recipes.
//!
//! Format: docs/formats/backup-pack.md v1
//! - [`format`]: byte format. [`writer`]: streams a pack into a volume. [`reader`]: footers and frames.
//!
//! Invariants
//! - A pack is complete or absent, and never changes.
//! - The pack id is random and new for every attempt; a pack is named by the first 8 bytes of its id.
//! - Each byte of a pack is covered twice: by a hash that needs no key, and by an authentication tag or by a
//!   check of the envelope against the key.

pub(crate) mod format;
pub(crate) mod piece_buffers;
pub(crate) mod reader;
pub(crate) mod writer;

use crate::packs::home::PackHome;
use std::fmt;

/// The first 8 bytes of a pack id. They name the file, and stand in recipes and in the index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackNumber(pub(crate) u64);

impl PackNumber {
    pub(crate) fn of(pack_id: &[u8; 16]) -> PackNumber {
        let mut first = [0; 8];
        first.copy_from_slice(&pack_id[..8]);
        PackNumber(u64::from_be_bytes(first))
    }
    /// Name of the pack's file in its volume.
    pub(crate) fn file_name(self) -> String {
        format!("{:016x}", self.0)
    }
    /// The pack of a file name; `None` for other files.
    pub(crate) fn from_file_name(name: &[u8]) -> Option<PackNumber> {
        let text = std::str::from_utf8(name).ok()?;
        let shaped = text.len() == 16 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        shaped.then(|| u64::from_str_radix(text, 16).ok().map(PackNumber))?
    }
}
impl fmt::Display for PackNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
impl fmt::Debug for PackNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Location of a frame. The volume number counts within the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameLocation {
    pub(crate) home: PackHome,
    pub(crate) volume: u32,
    pub(crate) pack: PackNumber,
    pub(crate) slot: u32,
}

impl FrameLocation {
    /// Home, volume and number of its pack.
    pub(crate) fn place_of_pack(&self) -> (PackHome, u32, PackNumber) {
        (self.home, self.volume, self.pack)
    }
}
