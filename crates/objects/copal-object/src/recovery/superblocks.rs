//! The superblock copies as found: the newest, the older ones, and those that are damaged or behind.

use crate::{
    OpenError,
    format::superblock::{COPIES, SUPERBLOCK_LEN, Superblock, SuperblockError},
};
use copal_device::{AlignedBuf, Device};

/// Superblock copies as found.
pub(crate) fn read_superblocks(device: &dyn Device) -> Vec<Option<Result<Superblock, SuperblockError>>> {
    let size = device.geometry().size;
    COPIES
        .iter()
        .enumerate()
        .map(|(copy, &at)| {
            if at + SUPERBLOCK_LEN as u64 > size {
                return None;
            }
            let bytes = device.read_now(at, AlignedBuf::zeroed(SUPERBLOCK_LEN)).ok()?;
            Some(Superblock::decode(&bytes, copy as u8))
        })
        .collect()
}

/// Every state that a superblock names, the newest first: what an older one names may be there still.
pub(crate) fn older_superblocks(device: &dyn Device) -> Vec<Superblock> {
    let mut found: Vec<Superblock> = read_superblocks(device)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .collect();
    found.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
    found.dedup_by_key(|superblock| superblock.generation);
    found
}

/// The newest superblock, and the copies that are damaged or behind.
pub(crate) fn newest_superblock(device: &dyn Device) -> Result<(Superblock, Vec<usize>), OpenError> {
    let copies = read_superblocks(device);
    let newest = copies
        .iter()
        .flatten()
        .filter_map(|copy| copy.as_ref().ok())
        .max_by_key(|superblock| superblock.generation)
        .cloned();
    let Some(newest) = newest else {
        return Err(no_superblock(&copies));
    };
    let stale = copies
        .iter()
        .enumerate()
        .filter(|(index, copy)| match copy {
            Some(Ok(superblock)) => {
                let own = Superblock::places(newest.generation).contains(index);
                (own && superblock.generation != newest.generation) || superblock.uuid != newest.uuid
            }
            _ => true,
        })
        .map(|(index, _)| index)
        .collect();
    Ok((newest, stale))
}

fn no_superblock(copies: &[Option<Result<Superblock, SuperblockError>>]) -> OpenError {
    use copal_codec::EnvelopeError;
    let mut any = false;
    for error in copies.iter().flatten().filter_map(|copy| copy.as_ref().err()) {
        match error {
            SuperblockError::Envelope(
                error @ (EnvelopeError::Version { .. } | EnvelopeError::Flags { .. }),
            ) => {
                return OpenError::Version {
                    what: error.to_string(),
                };
            }
            SuperblockError::Envelope(EnvelopeError::Magic { .. }) => {}
            _ => any = true,
        }
    }
    if any {
        let what = "all four copies of its superblock are damaged; restore the file from another copy";
        OpenError::Damaged { what: what.into() }
    } else {
        OpenError::NotAStore
    }
}
