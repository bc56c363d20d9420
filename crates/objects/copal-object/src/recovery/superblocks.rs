//! Superblock copies: the newest, older ones, and those that are damaged or behind.
//!
//! Invariant: a copy that the system cannot read at this time does not count as damaged, and nothing is
//! decided then. An older copy would bring back an older state, and unreadable copies may belong to an intact
//! store.

use crate::{
    StoreOpenError,
    format::superblock::{COPIES, SUPERBLOCK_LEN, Superblock, SuperblockError},
};
use copal_device::{Device, DeviceError};

/// State of a copy.
pub(crate) enum FoundCopy {
    /// Its place lies behind the end of the device.
    Absent,
    /// The medium cannot be read there.
    Unreadable(DeviceError),
    /// Its decoded content.
    Read(Result<Superblock, SuperblockError>),
}

impl FoundCopy {
    /// The superblock, if the copy is intact.
    pub(crate) fn good(&self) -> Option<&Superblock> {
        match self {
            FoundCopy::Read(Ok(superblock)) => Some(superblock),
            FoundCopy::Read(Err(_)) | FoundCopy::Unreadable(_) | FoundCopy::Absent => None,
        }
    }
}

/// Reads all superblock copies.
/// # Errors
/// A copy could not be read at this time.
pub(crate) fn read_superblocks(device: &dyn Device) -> Result<Vec<FoundCopy>, DeviceError> {
    let size = device.geometry().size;
    let read = |(copy, &at): (usize, &u64)| {
        if at + SUPERBLOCK_LEN as u64 > size {
            return Ok(FoundCopy::Absent);
        }
        match device.read_again(at, SUPERBLOCK_LEN) {
            Ok(bytes) => Ok(FoundCopy::Read(Superblock::decode(&bytes, copy as u8))),
            Err(error) if error.is_passing() => Err(error),
            Err(error) => Ok(FoundCopy::Unreadable(error)),
        }
    };
    COPIES.iter().enumerate().map(read).collect()
}

/// Every state that a superblock names, the newest first. The state of an older one may still exist.
/// # Errors
/// As of [`read_superblocks`].
pub(crate) fn older_superblocks(device: &dyn Device) -> Result<Vec<Superblock>, DeviceError> {
    let copies = read_superblocks(device)?;
    let mut found: Vec<Superblock> = copies.iter().filter_map(FoundCopy::good).cloned().collect();
    found.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
    found.dedup_by_key(|superblock| superblock.generation);
    Ok(found)
}

/// The newest superblock, and the copies that are damaged or behind.
pub(crate) fn newest_superblock(device: &dyn Device) -> Result<(Superblock, Vec<usize>), StoreOpenError> {
    let copies = read_superblocks(device)?;
    let newest =
        copies.iter().filter_map(FoundCopy::good).max_by_key(|superblock| superblock.generation).cloned();
    let Some(newest) = newest else {
        return Err(no_superblock(&copies));
    };
    let stale = copies
        .iter()
        .enumerate()
        .filter(|(index, copy)| match copy.good() {
            Some(superblock) => {
                let own = Superblock::places(newest.generation).contains(index);
                (own && superblock.generation != newest.generation) || superblock.uuid != newest.uuid
            }
            None => true,
        })
        .map(|(index, _)| index)
        .collect();
    Ok((newest, stale))
}

fn no_superblock(copies: &[FoundCopy]) -> StoreOpenError {
    use copal_codec::EnvelopeError;
    let (mut any, mut unreadable) = (false, None);
    for copy in copies {
        match copy {
            FoundCopy::Read(Err(SuperblockError::Envelope(
                error @ (EnvelopeError::Version { .. } | EnvelopeError::Flags { .. }),
            ))) => {
                return StoreOpenError::Version { what: error.to_string() };
            }
            FoundCopy::Read(Err(SuperblockError::Envelope(EnvelopeError::Magic { .. }))) => {}
            FoundCopy::Read(Err(_)) => any = true,
            FoundCopy::Unreadable(error) => unreadable = Some(error.clone()),
            FoundCopy::Read(Ok(_)) | FoundCopy::Absent => {}
        }
    }
    if let Some(error) = unreadable.filter(|_| !any) {
        // A store may exist where nothing can be read.
        return StoreOpenError::Device(error);
    }
    if any {
        let what = "all four copies of its superblock are damaged; restore the file from another copy";
        StoreOpenError::Damaged { what: what.into() }
    } else {
        StoreOpenError::NotAStore
    }
}
