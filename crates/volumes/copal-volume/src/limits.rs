//! Limits of sizes in every store of volumes.

use crate::error::VolumeError;

/// Longest name of a file, in bytes.
pub const MAX_FILE_NAME_BYTES: usize = 1280;
/// Longest name of a volume (one component of its path), in bytes.
pub const MAX_VOLUME_NAME_BYTES: usize = 255;
/// Deepest path of a volume, in components.
pub const MAX_VOLUME_DEPTH: usize = 32;
/// Most caller metadata a file carries, in bytes.
pub const MAX_METADATA_BYTES: usize = 1024;
/// Most bytes of names, metadata and bodies in one batch call.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// Largest file, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 30;

/// Refuses metadata above [`MAX_METADATA_BYTES`].
/// # Errors
/// `TooLarge`.
pub fn check_metadata(metadata: &[u8]) -> Result<(), VolumeError> {
    if metadata.len() > MAX_METADATA_BYTES {
        return Err(VolumeError::TooLarge {
            what: "the metadata of the file",
            bytes: metadata.len() as u64,
            limit: MAX_METADATA_BYTES as u64,
        });
    }
    Ok(())
}
